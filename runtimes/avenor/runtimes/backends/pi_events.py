"""Turns pi's records into events, so that nothing is dropped. Pure.

What only marks a border (`turn_start`, `text_end` …) or repeats what was told (`message_end` with the whole text) has
no event; what has no event of its own is kept whole as `session.update`.
"""

import secrets
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.pi_turn import read_usage
from avenor.runtimes.backends.pi_types import (
    AgentEnd,
    AgentSettled,
    AgentStart,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    Record,
    ToolEnd,
    ToolStart,
    ToolUpdate,
    TurnEnd,
    TurnStart,
    Unread,
)

_KINDS: Final = {
    "bash": "execute",
    "read": "read",
    "edit": "edit",
    "write": "edit",
    "grep": "search",
    "find": "search",
    "ls": "search",
}
_SHOWN: Final = ("command", "path", "pattern", "url", "query")  # The argument that tells people most, if there is one.
_ROLES: Final = frozenset({"assistant", "user", "toolResult", "system"})
_BORDERS: Final = frozenset(
    {
        *(f"{block}_{part}" for block in ("text", "thinking") for part in ("start", "end")),
        *(f"toolcall_{part}" for part in ("start", "delta", "end")),
        *("start", "done", "error"),
    }
)


class _Result(msgspec.Struct, frozen=True):
    """What a tool gave; its blocks are those of ACP."""

    content: list[Raw] = []


_arguments = msgspec.json.Decoder(dict[str, Any])
_result = msgspec.json.Decoder(_Result)


class PiEvents:
    """The events of one session, in the order of its records."""

    def __init__(self) -> None:
        # A resumed session is another process: its first message must not have the id of an earlier one.
        self._prefix = secrets.token_hex(4)
        self._messages = 0
        self.context_window = 0

    def read(self, record: Record | Unread, line: bytes) -> Iterator[Event]:
        """The events of a record, which came as `line`."""
        match record:
            case MessageUpdate():
                yield from self._delta(record, line)
            case MessageStart():
                self._messages += record.message.role == "assistant"
            case MessageEnd():
                yield from self._end(record, line)
            case ToolStart():
                yield _tool_call(record)
            case ToolUpdate():
                yield _tool_update(record)
            case ToolEnd():
                yield _tool_end(record)
            case AgentStart() | AgentEnd() | AgentSettled() | TurnStart() | TurnEnd():
                pass
            case _:
                yield events.SessionUpdate(update=Raw(line))

    def _delta(self, record: MessageUpdate, line: bytes) -> Iterator[Event]:
        told = record.assistant_message_event
        message_id = f"{self._prefix}-{self._messages}.{told.content_index}"
        if told.type == "text_delta":
            yield events.MessageChunk(content=_text(told.delta), messageId=message_id)
        elif told.type == "thinking_delta":
            yield events.ThoughtChunk(content=_text(told.delta), messageId=message_id)
        elif told.type not in _BORDERS:
            yield events.SessionUpdate(update=Raw(line))

    def _end(self, record: MessageEnd, line: bytes) -> Iterator[Event]:
        if record.message.role not in _ROLES:
            yield events.SessionUpdate(update=Raw(line))
        usage = read_usage(record.message) if record.message.role == "assistant" else None
        if usage is not None and self.context_window > 0:
            yield events.SessionUsage(used=usage.total_tokens, size=self.context_window)


def tool_kind(name: str) -> str:
    """ACP's kind for one of pi's tools."""
    return _KINDS.get(name, "other")


def tool_title(name: str, args: Raw | UnsetType) -> str:
    """What a tool call is about, for people: its command, or its name and what it works on."""
    arguments = _decoded(args)
    shown = next((arguments[key] for key in _SHOWN if isinstance(arguments.get(key), str)), "")
    if not shown:
        return name
    return shown if name == "bash" else f"{name} {shown}"


def _tool_call(record: ToolStart) -> Event:
    path = _decoded(record.args).get("path")
    return events.ToolCall(
        toolCallId=record.tool_call_id,
        title=tool_title(record.tool_name, record.args),
        kind=tool_kind(record.tool_name),
        status="in_progress",
        rawInput=record.args,
        locations=Raw(msgspec.json.encode([{"path": path}])) if isinstance(path, str) else UNSET,
    )


def _tool_update(record: ToolUpdate) -> Event:
    content = _content(record.partial_result)
    # pi repeats all output so far with each update: once is enough.
    rest = record.partial_result if content is UNSET else UNSET
    return events.ToolCallUpdate(toolCallId=record.tool_call_id, status="in_progress", content=content, rawOutput=rest)


def _tool_end(record: ToolEnd) -> Event:
    return events.ToolCallUpdate(
        toolCallId=record.tool_call_id,
        status="failed" if record.is_error else "completed",
        content=_content(record.result),
        rawOutput=record.result,
    )


def _content(result: Raw | UnsetType) -> Raw | UnsetType:
    content = [{"type": "content", "content": block} for block in _blocks(result)]
    return Raw(msgspec.json.encode(content)) if content else UNSET


def _text(text: str) -> Raw:
    return Raw(msgspec.json.encode({"type": "text", "text": text}))


def _blocks(result: Raw | UnsetType) -> list[Raw]:
    try:
        return [] if result is UNSET else _result.decode(result).content
    except msgspec.ValidationError:
        return []


def _decoded(raw: Raw | UnsetType) -> dict[str, Any]:
    try:
        return {} if raw is UNSET else _arguments.decode(raw)
    except msgspec.ValidationError:
        return {}
