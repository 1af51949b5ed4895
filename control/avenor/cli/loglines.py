"""The events of an event log's lines; what is none is told with its number."""

from __future__ import annotations

import json

from avenor.cli.output import complain
from avenor.cli.untyped import object_in
from avenor.control.safetext import one_line
from avenor.host.growing import LINE_LIMIT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from avenor.host.growing import Line


def event_of(line: Line, path: str, command: str) -> dict[str, Any] | None:
    """The event of a line; None for one that is blank or malformed, and the latter is told on stderr.

    Args:
        line: Of the log.
        path: The log's.
        command: Who tells.
    """
    if line.data is None:
        problem = f"it has more than {LINE_LIMIT_BYTES} bytes"
    elif not line.data.strip():
        return None
    else:
        try:
            event = object_in(_DECODER.decode(line.data.decode()))
            if isinstance(event.get("event"), str):
                return event
            problem = "it is no object with an event"
        except (ValueError, RecursionError) as error:
            problem = f"it is no JSON ({one_line(str(error)) or 'nested too deep'})"
    complain(f"avenor {command}: {path}:{line.number}: malformed line: {problem}")
    return None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no value")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
