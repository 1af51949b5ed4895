"""An error object of the control protocol, for people."""

from __future__ import annotations

from avenor.cli.output import dump
from avenor.cli.table import Command
from avenor.cli.untyped import list_in, object_in
from avenor.control.safetext import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_OWNER = -32010


def refusal_text(command: Command, error: dict[str, Any], *, as_json: bool) -> str:
    """The message, and below it what its data says: candidates, options, errors, the owner.

    Args:
        command: The one that was refused.
        error: The JSON-RPC error object.
        as_json: The object itself, on one line.
    """
    if as_json:
        return dump(error).decode()
    facts = dict(object_in(error.get("data")))
    reason = facts.pop("reason", None)
    retryable = facts.pop("retryable", False)
    message, *more = map(one_line, str(error.get("message", "refused")).splitlines() or [""])
    first = f"avenor {command.name}: {message}"
    lines = [f"{first} [{one_line(str(reason))}]" if reason else first, *(f"  {line}" for line in more)]
    for name, value in facts.items():
        lines.extend(_fact(name, value))
    if error.get("code") == NOT_OWNER and command.flag("--force"):
        lines.append("  --force takes the ownership over")
    if retryable:
        lines.append("  the same command may succeed later")
    return "\n".join(lines)


def _fact(name: str, value: Any) -> list[str]:
    items = list_in(value)
    if not items:
        return [] if value in (None, []) else [f"  {name}: {_shown(value)}"]
    if name != "errors" and all(isinstance(item, str) for item in items):
        return [f"  {name}: {', '.join(map(_shown, items))}"]
    return [f"  {name}:", *(f"    {_shown(item)}" for item in items)]


def _shown(value: Any) -> str:
    option = object_in(value)
    if "optionId" in option:
        return one_line(f"{option['optionId']} ({option.get('kind', '')}) {option.get('name', '')}")
    return one_line(value if isinstance(value, str) else dump(value).decode())
