"""opencode's tool calls as events: what each part tells beyond what was told before. Pure.

Titles, kinds, statuses and contents are those that opencode itself uses when it speaks ACP.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.opencode_types import Part, ToolState

_KINDS: Final = {
    "bash": "execute",
    "edit": "edit",
    "glob": "search",
    "grep": "search",
    "list": "search",
    "patch": "edit",
    "apply_patch": "edit",
    "read": "read",
    "webfetch": "fetch",
    "websearch": "fetch",
    "write": "edit",
}
_STATUSES: Final = {"pending": "pending", "running": "in_progress", "completed": "completed", "error": "failed"}
_RANKS: Final = {"pending": 0, "running": 1, "completed": 2, "error": 2}
_PATH_KEYS: Final = ("filePath", "filepath", "path")

_object = msgspec.json.Decoder(dict[str, Any])


def tool_kind(name: str) -> str:
    """ACP's kind for one of opencode's tools or permissions."""
    return _KINDS.get(name, "other")


class ToolCalls:
    """The tool calls of a turn, and the last that was told of each."""

    def __init__(self) -> None:
        self._told: dict[str, ToolState] = {}

    def clear(self) -> None:
        """Forgets them."""
        self._told.clear()

    def take(self, part: Part) -> list[Event]:
        """The events for a tool's part; none if it tells nothing new, or what was so before."""
        state = part.state
        if state is None or not part.callID:
            return []
        before = self._told.get(part.callID)
        if before is not None and (state == before or _rank(state) < _rank(before)):
            return []
        self._told[part.callID] = state
        told: list[Event] = [] if before is not None else [_call(part)]
        if state.status != "pending":
            told.append(_update(part, state))
        return told


def members(raw: Raw | UnsetType) -> Mapping[str, Any]:
    """The members of an object; none if it is something else."""
    if raw is UNSET:
        return {}
    try:
        return _object.decode(raw)
    except msgspec.DecodeError:
        return {}


def locations(values: Mapping[str, Any]) -> Raw | UnsetType:
    """The file that a tool's input names, as ACP lists locations; unset without one."""
    paths = [values[key] for key in _PATH_KEYS if isinstance(values.get(key), str)]
    return _raw([{"path": paths[0]}]) if paths else UNSET


def _rank(state: ToolState) -> int:
    return _RANKS.get(state.status, 1)


def _call(part: Part) -> Event:
    return events.ToolCall(toolCallId=part.callID, title=part.tool, kind=tool_kind(part.tool), status="pending")


def _update(part: Part, state: ToolState) -> Event:
    values = members(state.input)
    said = state.error if state.status == "error" else state.output
    if said is None and isinstance(output := members(state.metadata).get("output"), str):
        said = output or None
    return events.ToolCallUpdate(
        toolCallId=part.callID,
        status=_STATUSES.get(state.status, "in_progress"),
        kind=tool_kind(part.tool),
        title=_title(part, state, values),
        rawInput=state.input if values else UNSET,
        locations=locations(values),
        content=UNSET if said is None else _raw([{"type": "content", "content": {"type": "text", "text": said}}]),
        rawOutput=_output(state),
    )


def _title(part: Part, state: ToolState, values: Mapping[str, Any]) -> str:
    if state.title:
        return state.title
    command = values.get("command")
    return command if isinstance(command, str) and command else part.tool


def _output(state: ToolState) -> Raw | UnsetType:
    if state.status not in ("completed", "error"):
        return UNSET
    said: dict[str, object] = {"error": state.error} if state.status == "error" else {"output": state.output}
    if state.metadata is not UNSET:
        said["metadata"] = state.metadata
    return _raw(said)


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
