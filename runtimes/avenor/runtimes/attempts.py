"""One prompt with its retries: the step that every kind of run is made of."""

import random
from collections.abc import Awaitable, Callable

import msgspec
import trio

from avenor.protocol.events import Retry
from avenor.runtimes.conversations import Conversation
from avenor.runtimes.endings import Ending
from avenor.runtimes.eventlog import EventLog
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.retries import Failure, retry_delay, should_retry
from avenor.runtimes.turns import TurnResult


class RetryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often to try, and what bounds the waiting.

    Attributes:
        remaining_seconds: What the run's timeout leaves now, infinity without one.
    """

    max_retries: int
    remaining_seconds: Callable[[], float]

    def retry(self, attempt: int, failure: Failure | None, stop_reason: str) -> Retry:
        """The event of the retry that follows a failed attempt of this number (from 1), after the delay that it tells.

        Args:
            attempt: The attempt that failed.
            failure: Why, where that is known.
            stop_reason: How it ended.
        """
        failure = failure or Failure(message=stop_reason)
        delay = retry_delay(
            attempt=attempt,
            chance=random.random(),
            retry_after_seconds=failure.retry_after_seconds,
            remaining_seconds=self.remaining_seconds(),
        )
        return Retry(
            attempt=attempt + 1,
            max_retries=self.max_retries,
            delay_ms=round(delay * 1000),
            retry_class=failure.retry_class,
        )


async def run_prompt(
    conversation: Conversation,
    prompt: Prompt,
    *,
    plan: RetryPlan,
    log: EventLog,
    ending: Ending,
    interrupted: trio.Event,
    queued: Callable[[], int],
    finishing: Callable[[TurnResult], Awaitable[None]],
    attempt: int = 1,
    ended: TurnResult | None = None,
    wait_seconds: float = 0.0,
) -> TurnResult:
    """Sends a prompt until an attempt ends with what counts, and returns that.

    A retry gets a new agent process, which resumes the session where it can, and the same prompt.

    Args:
        conversation: Whose prompt it is; after a failed attempt its session is closed.
        prompt: What to send.
        plan: How often.
        log: Takes the retry events.
        ending: Cuts the waiting short.
        interrupted: Cuts the prompt short, waiting included.
        queued: How many prompts wait behind it.
        finishing: Called with each attempt's result before the end of its turn is told.
        attempt: The number of the first.
        ended: How that one has ended, where an earlier process of the run has told it.
        wait_seconds: What is left of the wait for that one, where an earlier process of the run has told of it.
    """
    if wait_seconds:
        await _wait(wait_seconds, ending, interrupted)
    while True:
        result, ended = ended, None
        if result is None:
            result = await conversation.turn(prompt, interrupted=interrupted, queued=queued, finishing=finishing)
        if ending.cause is not None or interrupted.is_set():
            return result
        if not should_retry(
            exit_code=result.exit_code, failure=result.failure, attempt=attempt, max_retries=plan.max_retries
        ):
            return result
        await conversation.close()
        retry = plan.retry(attempt, result.failure, result.stop_reason)
        log.emit(retry)
        if not await _wait(retry.delay_ms / 1000, ending, interrupted):
            return msgspec.structs.replace(result, was_interrupted=ending.cause is None, is_session_usable=False)
        attempt += 1


async def _wait(seconds: float, ending: Ending, interrupted: trio.Event) -> bool:
    """Waits; False if something cut it short."""
    with ending.interruptible(), trio.move_on_after(seconds):
        await interrupted.wait()
    return ending.cause is None and not interrupted.is_set()
