"""Turns `session/update` notifications into events, so that nothing is dropped. Pure.

Each update is read as a dictionary of raw members. Those that the event of its kind has, and that have the type it
expects, go there; all others go to `extra`. An update without an event of its own, or without a member that its event
cannot be without, is kept whole as `session.update`.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event

Members = dict[str, Raw]

_members = msgspec.json.Decoder(Members)
_text = msgspec.json.Decoder(str)
_integer = msgspec.json.Decoder(int)

# Kinds that tell of the session as it is, not of what was said or done: true during a replay as well.
STATE_EVENTS: Final = (
    events.SessionMode,
    events.SessionCommands,
    events.SessionUsage,
    events.SessionInfo,
    events.SessionUpdate,
)


class _Kind:
    """How one kind of update becomes an event.

    Args:
        event: The event's class.
        raw: Members that are taken as they are.
        text: Members that must be strings.
        integer: Members that must be integers.
        needed: Members without which it is no such event.
    """

    def __init__(
        self,
        event: Callable[..., Event],
        *,
        raw: tuple[str, ...] = (),
        text: tuple[str, ...] = (),
        integer: tuple[str, ...] = (),
        needed: tuple[str, ...] = (),
    ) -> None:
        self.event = event
        self.raw = raw
        self.typed: tuple[tuple[str, msgspec.json.Decoder[str] | msgspec.json.Decoder[int]], ...] = (
            *((name, _text) for name in text),
            *((name, _integer) for name in integer),
        )
        self.needed = needed


_TOOL_RAW = ("rawInput", "locations", "content", "rawOutput")

_KINDS: Final[dict[str, _Kind]] = {
    "agent_message_chunk": _Kind(events.MessageChunk, raw=("content",), text=("messageId",), needed=("content",)),
    "agent_thought_chunk": _Kind(events.ThoughtChunk, raw=("content",), text=("messageId",), needed=("content",)),
    "user_message_chunk": _Kind(events.UserChunk, raw=("content",), text=("messageId",), needed=("content",)),
    "tool_call": _Kind(
        events.ToolCall,
        raw=_TOOL_RAW,
        text=("toolCallId", "title", "kind", "status"),
        needed=("toolCallId", "title"),
    ),
    "tool_call_update": _Kind(
        events.ToolCallUpdate, raw=_TOOL_RAW, text=("toolCallId", "title", "kind", "status"), needed=("toolCallId",)
    ),
    "plan": _Kind(events.SessionPlan, raw=("entries",), needed=("entries",)),
    "current_mode_update": _Kind(events.SessionMode, text=("currentModeId",), needed=("currentModeId",)),
    "available_commands_update": _Kind(
        events.SessionCommands, raw=("availableCommands",), needed=("availableCommands",)
    ),
    "usage_update": _Kind(events.SessionUsage, raw=("cost",), integer=("used", "size"), needed=("used", "size")),
    "session_info_update": _Kind(events.SessionInfo, text=("title", "updatedAt")),
}


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """One notification, read.

    Attributes:
        session_id: Whose it is; empty if it does not say.
        kind: The agent's word for it; empty if it does not say.
        event: What it is to us.
        raw: The update as it came, without what stood around it.
    """

    session_id: str
    kind: str
    event: Event
    raw: Raw


def read_update(params: Raw) -> Update:
    """The event of the params of one `session/update`; never raises on what an agent sends."""
    try:
        notification = _members.decode(params)
        session_id = _text.decode(notification.pop("sessionId"))
        update = notification.pop("update")
        members = _members.decode(update)
        kind = _text.decode(members.pop("sessionUpdate"))
    except (msgspec.DecodeError, KeyError):
        return Update(session_id="", kind="", event=events.SessionUpdate(update=params), raw=params)
    if notification:
        members["notification"] = Raw(msgspec.json.encode(notification))
    return Update(session_id=session_id, kind=kind, event=_event(kind, members, update), raw=update)


def foreign_notification(method: str, params: Raw) -> events.SessionUpdate:
    """The event that keeps a notification which ACP does not define."""
    return events.SessionUpdate(update=Raw(msgspec.json.encode({"method": method, "params": params})))


def _event(kind: str, members: Members, update: Raw) -> Event:
    spec = _KINDS.get(kind)
    if spec is None:
        return events.SessionUpdate(update=update)
    values: dict[str, object] = {name: members.pop(name) for name in spec.raw if name in members}
    for name, decoder in spec.typed:
        value = _decoded(decoder, members.get(name))
        if value is not None:
            values[name] = value
            del members[name]
    if any(name not in values for name in spec.needed):
        return events.SessionUpdate(update=update)
    if members:
        values["extra"] = members
    return spec.event(**values)


def _decoded(decoder: msgspec.json.Decoder[str] | msgspec.json.Decoder[int], raw: Raw | None) -> str | int | None:
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        return None
