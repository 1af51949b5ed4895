"""How a run ends: stop reasons, exit codes, and the text of the sentinel file."""

import enum
import re
from typing import Final

import msgspec


class ExitCode(enum.IntEnum):
    """Exit codes of `avenor run`, which scripts may trust."""

    OK = 0
    FAILED = 1
    REFUSAL = 2
    MAX_TOKENS = 3
    MAX_TURN_REQUESTS = 4
    BLOCKED = 5
    BUDGET_EXHAUSTED = 6
    TIMEOUT = 124
    CANCELLED = 130


class Status(enum.StrEnum):
    """The bare first line of a sentinel."""

    DONE = "DONE"
    BLOCKED = "BLOCKED"
    TIMEOUT = "TIMEOUT"
    KILLED = "KILLED"
    FAILED = "FAILED"


_CODES: Final[dict[str, ExitCode]] = {
    "end_turn": ExitCode.OK,
    "max_iterations": ExitCode.OK,
    "refusal": ExitCode.REFUSAL,
    "max_tokens": ExitCode.MAX_TOKENS,
    "max_turn_requests": ExitCode.MAX_TURN_REQUESTS,
    "blocked": ExitCode.BLOCKED,
    "budget_exhausted": ExitCode.BUDGET_EXHAUSTED,
    "timeout": ExitCode.TIMEOUT,
    "progress_timeout": ExitCode.TIMEOUT,
    "cancelled": ExitCode.CANCELLED,
}
_STATUSES: Final[dict[int, Status]] = {
    ExitCode.OK: Status.DONE,
    ExitCode.BLOCKED: Status.BLOCKED,
    ExitCode.TIMEOUT: Status.TIMEOUT,
    ExitCode.CANCELLED: Status.KILLED,
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def exit_code_for(stop_reason: str) -> int:
    """The exit code of a stop reason; reasons that we do not know are failures (1)."""
    return int(_CODES.get(stop_reason, ExitCode.FAILED))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run (or the turn of a parked one) came to, as it is told in sentinel, `run.end` and exit status.

    Attributes:
        stop_reason: The word the backend gave, kept verbatim.
        session_id: The session that decided, empty if there was none.
        reason: The label of a `blocked` end, or why a run failed.
        exit_code: Overrides the code of the stop reason (a phase's own 124 fails the run with 124).
    """

    stop_reason: str
    exit_code: int
    status: Status
    session_id: str = ""
    reason: str | None = None
    run_id: str = ""

    @classmethod
    def of(
        cls,
        stop_reason: str,
        *,
        run_id: str,
        session_id: str = "",
        reason: str | None = None,
        exit_code: int | None = None,
    ) -> "Outcome":
        """The outcome of a stop reason, with status and exit code as the table says."""
        code = exit_code_for(stop_reason) if exit_code is None else exit_code
        status = _STATUSES.get(code, Status.FAILED)
        if exit_code is not None and exit_code != exit_code_for(stop_reason) and code != ExitCode.OK:
            status = Status.FAILED  # TIMEOUT and KILLED are for the run, never for a phase's own code
        return cls(
            stop_reason=stop_reason,
            exit_code=code,
            status=status,
            session_id=session_id,
            reason=reason,
            run_id=run_id,
        )


def render_sentinel(outcome: Outcome) -> str:
    """The sentinel's text: UTF-8, LF, the bare status first, `RUN=` last.

    Control characters in a value become one space, so that no value can add a line.
    """
    lines = [
        outcome.status.value,
        f"SESSION={_one_line(outcome.session_id)}",
        f"STOP_REASON={_one_line(outcome.stop_reason)}",
    ]
    if outcome.status is Status.BLOCKED and outcome.reason:
        lines.append(f"REASON={_one_line(outcome.reason)}")
    if outcome.status in (Status.KILLED, Status.FAILED):
        lines.append(f"EXIT_CODE={outcome.exit_code}")
    lines.append(f"RUN={_one_line(outcome.run_id)}")
    return "\n".join(lines) + "\n"


def parse_sentinel(text: str) -> Outcome:
    """The outcome that a sentinel tells.

    Raises:
        ValueError: The text is no sentinel.
    """
    first, *rest = text.splitlines() or [""]
    try:
        status = Status(first)
    except ValueError:
        raise ValueError(f"not a sentinel: the first line is {first!r}") from None
    values: dict[str, str] = {}
    for line in rest:
        key, _, value = line.partition("=")
        values[key] = value
    stop_reason = values.get("STOP_REASON", "")
    code = {Status.DONE: 0, Status.BLOCKED: 5, Status.TIMEOUT: 124}.get(status)
    return Outcome(
        status=status,
        exit_code=int(values.get("EXIT_CODE", "1")) if code is None else code,
        stop_reason=stop_reason,
        session_id=values.get("SESSION", ""),
        reason=values.get("REASON"),
        run_id=values.get("RUN", ""),
    )


def _one_line(value: str) -> str:
    return _CONTROL.sub(" ", value)
