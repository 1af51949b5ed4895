"""Refusals in words that tell an agent what to do next."""

from typing import Any, Final

from avenor.protocol.errors import (
    AvenorError,
    Ended,
    InternalError,
    LimitReached,
    NoPendingPermission,
    NoSuchRuntime,
    NotOwner,
    Unavailable,
)

_NEXT: Final[tuple[tuple[type[AvenorError], str], ...]] = (
    (NoSuchRuntime, "avenor_list shows all runs."),
    (NotOwner, "Another client steers this run; you can still watch it, with avenor_status and avenor_result."),
    (NoPendingPermission, "It was settled already, or never asked: avenor_status shows what is pending."),
    (Ended, "It takes no more prompts: wait for its end (avenor_result), then use avenor_follow_up."),
    (LimitReached, "Wait for one of your runs (avenor_result) or end one (avenor_cancel), then try again."),
    (InternalError, "This is a fault in avenor; its supervisor's log has the details."),
)
# What the message says already, or what is of no use to an agent.
_SAID: Final = frozenset({"field", "value", "reason", "retryable", "owner"})


def problem_text(tool: str, error: AvenorError) -> str:
    """What went wrong, the facts of it, and what to do next."""
    lines = [f"{tool}: {error.message}"]
    facts = {name: _shown(value) for name, value in error.data.items() if name not in _SAID and value}
    lines += [f"{name}: {text}" for name, text in facts.items() if text not in error.message]
    lines += [hint for kind, hint in _NEXT if isinstance(error, kind)]
    if isinstance(error, Unavailable) and error.reason_word != "no_server":
        lines.append("The call may have been carried out all the same: look with avenor_list before you repeat it.")
    elif error.retryable and len(lines) == 1:
        lines.append("The same call may succeed later.")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    match value:
        case [*items]:
            return "; ".join(map(_shown, items))
        case {"optionId": option_id}:
            return str(option_id)
        case {"message": message}:  # of a config: where it is, and what is wrong
            return " ".join(str(value[name]) for name in ("file", "path") if value.get(name)) + f" {message}"
        case _:
            return str(value)
