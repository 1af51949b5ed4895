"""Reads along with the tool calls of one attempt, and finds those that come to the same again and again. Pure."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.event_base import Event
from avenor.protocol.events import ToolCall, ToolCallUpdate
from avenor.protocol.manifest.roster import WRITING_KINDS
from avenor.runtimes.manifest.stops import Repeats

_OVER = ("completed", "failed")


class _Call(msgspec.Struct):
    title: str
    kind: str
    arguments: bytes = b""
    result: bytes = b""


class ToolWatch:
    """The tool calls of one attempt."""

    def __init__(self) -> None:
        self._repeats = Repeats()
        self._running: dict[str, _Call] = {}

    def note(self, event: Event) -> str | None:
        """Takes the next event of the session; returns the title of a call that has come to the same too often."""
        if isinstance(event, ToolCall):
            self._running[event.toolCallId] = _Call(title=event.title, kind=event.kind)
        if not isinstance(event, (ToolCall, ToolCallUpdate)):
            return None
        call = self._running.get(event.toolCallId)
        if call is None:
            return None
        _take(call, event)
        if event.status is UNSET or event.status not in _OVER:
            return None
        del self._running[event.toolCallId]
        if call.kind in WRITING_KINDS and event.status == "completed":
            self._repeats.changed()
        status = event.status.encode()
        return call.title if self._repeats.note(call.title, call.arguments, status + call.result) else None


def _take(call: _Call, event: ToolCall | ToolCallUpdate) -> None:
    if event.title is not UNSET:
        call.title = event.title
    if event.kind is not UNSET:
        call.kind = event.kind
    call.arguments = _bytes(event.rawInput) or call.arguments
    call.result = _bytes(event.rawOutput) or _bytes(event.content) or call.result


def _bytes(value: Raw | UnsetType) -> bytes:
    return b"" if value is UNSET else bytes(value)
