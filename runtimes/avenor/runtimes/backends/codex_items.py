"""Turns codex's notifications into events, so that nothing is dropped. Pure.

Most of what codex tells has no event of ours and is kept whole as `session.update`, with its method. Text comes as
chunks; an item that is the work of a tool becomes `tool.call` when it starts and `tool.call_update` when it goes on and
ends.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.codex_tools import Members, as_text, text_of, to_raw, tool_call, tool_end
from avenor.runtimes.backends.codex_types import UsageParams

STREAMED_LIMIT: Final = 1024  # Items of one turn whose text came in pieces; more are told once again as a whole.

_members = msgspec.json.Decoder(Members)

_PLAN_STATUS: Final = {"inProgress": "in_progress"}  # ACP's word for codex's, where they differ


class ItemReader:
    """Reads the notifications of one session.

    It keeps only which items' text has come in pieces, so that the whole text at the end is not told again.
    """

    def __init__(self) -> None:
        self._streamed: set[str] = set()
        self._readers: Mapping[str, Callable[[Members], Event | None]] = {
            "item/agentMessage/delta": self._read_message,
            "item/reasoning/summaryTextDelta": self._read_thought,
            "item/reasoning/textDelta": self._read_thought,
            "item/started": _read_started,
            "item/completed": self._read_completed,
            "item/commandExecution/outputDelta": _read_progress,
            "item/fileChange/outputDelta": _read_progress,
            "item/mcpToolCall/progress": _read_progress,
            "item/fileChange/patchUpdated": _read_patch,
            "turn/plan/updated": _read_plan,
            "thread/name/updated": _read_name,
            "thread/tokenUsage/updated": _read_tokens,
        }

    def start_turn(self) -> None:
        """Forgets the items of earlier turns."""
        self._streamed.clear()

    def read(self, method: str, params: Raw) -> Event:
        """The event of a notification; never raises on what codex sends."""
        reader = self._readers.get(method)
        if reader is not None:
            try:
                event = reader(_members.decode(params))
            except (msgspec.DecodeError, KeyError, TypeError):  # a list where a word should be cannot be looked up
                event = None
            if event is not None:
                return event
        return verbatim(method, params)

    def _read_message(self, params: Members) -> Event:
        content, extra = _said(params["delta"]), _piece_extra(params)
        return events.MessageChunk(content=content, messageId=self._note_piece(params), extra=extra)

    def _read_thought(self, params: Members) -> Event:
        content, extra = _said(params["delta"]), _piece_extra(params)
        return events.ThoughtChunk(content=content, messageId=self._note_piece(params), extra=extra)

    def _note_piece(self, params: Members) -> str:
        item_id = as_text(params["itemId"])
        if len(self._streamed) < STREAMED_LIMIT:
            self._streamed.add(item_id)
        return item_id

    def _read_completed(self, params: Members) -> Event | None:
        item = _item(params)
        return tool_end(item, params) or self._read_whole_text(item)

    def _read_whole_text(self, item: Members) -> Event | None:
        """The text of an item that did not come in pieces."""
        item_id = as_text(item["id"])
        if item_id in self._streamed:
            return None
        if item["type"] == "agentMessage" and text_of(item, "text"):
            return events.MessageChunk(content=_said(item["text"]), messageId=item_id)
        if item["type"] == "reasoning":
            summary = msgspec.convert(item.get("summary") or item.get("content") or [], type=list[str])
            return events.ThoughtChunk(content=_said("\n\n".join(summary)), messageId=item_id) if summary else None
        return None


def verbatim(method: str, params: Raw) -> Event:
    """The event that keeps a notification as it came."""
    return events.SessionUpdate(update=to_raw({"method": method, "params": params}))


def _piece_extra(params: Members) -> dict[str, Raw] | UnsetType:
    """Which part of a thought it is; the turn is the same for all pieces of an item and is told with the item."""
    placed = ("itemId", "delta", "threadId", "turnId")
    return {name: to_raw(value) for name, value in params.items() if name not in placed} or UNSET


def _read_started(params: Members) -> Event | None:
    return tool_call(_item(params), params)


def _read_progress(params: Members) -> Event:
    """More of a running tool. `content` would replace what was told before, so the new piece is in `extra`."""
    extra = {name: to_raw(value) for name, value in params.items() if name not in ("itemId", "threadId")}
    return events.ToolCallUpdate(toolCallId=as_text(params["itemId"]), status="in_progress", extra=extra)


def _read_patch(params: Members) -> Event:
    extra = {name: to_raw(value) for name, value in params.items() if name not in ("itemId", "threadId", "changes")}
    raw_input = to_raw({"changes": params["changes"]})
    return events.ToolCallUpdate(
        toolCallId=as_text(params["itemId"]), status="in_progress", rawInput=raw_input, extra=extra
    )


def _read_plan(params: Members) -> Event:
    steps = msgspec.convert(params["plan"], type=list[dict[str, Any]])
    entries = [
        {"content": step["step"], "status": _PLAN_STATUS.get(step["status"], step["status"]), "priority": "medium"}
        for step in steps
    ]
    extra = {name: to_raw(value) for name, value in params.items() if name not in ("plan", "threadId")}
    return events.SessionPlan(entries=to_raw(entries), extra=extra)


def _read_name(params: Members) -> Event:
    return events.SessionInfo(title=msgspec.convert(params.get("threadName"), type=str | None))


def _read_tokens(params: Members) -> Event | None:
    """How full the context is: the latest request is what the next one builds on."""
    usage = msgspec.convert(params, type=UsageParams).token_usage
    if usage.model_context_window is None:
        return None
    extra = {name: to_raw(value) for name, value in params.items() if name != "threadId"}
    return events.SessionUsage(used=usage.last.total_tokens, size=usage.model_context_window, extra=extra)


def _item(params: Members) -> Members:
    return msgspec.convert(params["item"], type=Members)


def _said(text: Any) -> Raw:
    return to_raw({"type": "text", "text": as_text(text)})
