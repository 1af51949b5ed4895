"""When a failed attempt is tried again, and after how long. Pure: chance and time are arguments."""

from typing import Final

import msgspec

from avenor.protocol.events import RetryClass
from avenor.protocol.outcomes import ExitCode

# Doubling from 2 s, capped at 30 s (contract, part 4): long enough for an overloaded service to shed load, short enough
# that a person who watches does not give up.
SHORTEST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 30.0
_STEPS: Final = (2.0, 4.0, 8.0, 16.0, 30.0)
_JITTER: Final = 0.2


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt failed.

    Attributes:
        retry_class: crash, transport, overloaded, rate_limit or unknown.
        retry_after_seconds: What the service asked to wait, if it did.
        permanent: The same attempt cannot succeed (missing program, unknown model, refused configuration).
    """

    message: str
    retry_class: RetryClass = "unknown"
    retry_after_seconds: float | None = None
    permanent: bool = False


def should_retry(*, exit_code: int, failure: Failure | None, attempt: int, max_retries: int) -> bool:
    """Whether the attempt of this number (from 1), ended with this code, is followed by another."""
    if exit_code != ExitCode.FAILED or attempt > max_retries:
        return False
    return failure is None or not failure.permanent


def retry_delay(
    *,
    attempt: int,
    chance: float,
    retry_after_seconds: float | None,
    remaining_seconds: float,
) -> float:
    """Seconds to wait after the failed attempt of this number (from 1).

    Args:
        attempt: The attempt that failed.
        chance: A random number in [0, 1): spreads the waits of runs that failed together.
        retry_after_seconds: Honoured when it is longer than our own wait.
        remaining_seconds: What the run's timeout leaves, infinity without one; nothing waits longer.
    """
    step = _STEPS[min(attempt, len(_STEPS)) - 1]
    spread = step * (1 - _JITTER + 2 * _JITTER * chance)
    own = min(max(spread, SHORTEST_SECONDS), LONGEST_SECONDS)
    return max(0.0, min(max(own, retry_after_seconds or 0.0), remaining_seconds))
