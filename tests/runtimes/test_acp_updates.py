"""Updates of agents become events, and nothing of them is dropped."""

import json
from typing import Any, TypeVar

import msgspec
import pytest
from acp import schema
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.acp_updates import foreign_notification, read_update
from tests.runtimes.transcripts import agent_messages

E = TypeVar("E", bound=Event)

_EVENTS = {
    "agent_message_chunk": events.MessageChunk,
    "agent_thought_chunk": events.ThoughtChunk,
    "user_message_chunk": events.UserChunk,
    "tool_call": events.ToolCall,
    "tool_call_update": events.ToolCallUpdate,
    "plan": events.SessionPlan,
    "current_mode_update": events.SessionMode,
    "available_commands_update": events.SessionCommands,
    "usage_update": events.SessionUsage,
    "session_info_update": events.SessionInfo,
    "config_option_update": events.SessionUpdate,
}
_STAMPS = {"event", "seq", "ts", "run_id"}


def _params(**update: Any) -> Raw:
    return Raw(json.dumps({"sessionId": "s", "update": update}).encode())


def _event(kind: type[E], **update: Any) -> E:
    event = read_update(_params(**update)).event
    assert isinstance(event, kind)
    return event


def _value(raw: object) -> Any:
    assert isinstance(raw, Raw)
    return msgspec.json.decode(raw)


def _members(event: Event) -> dict[str, Any]:
    """The update that an event was made of, without the name of its kind."""
    encoded: dict[str, Any] = json.loads(events.encode_event(event))
    if "update" in encoded:
        whole: dict[str, Any] = encoded["update"]
        return {name: value for name, value in whole.items() if name != "sessionUpdate"}
    extra: dict[str, Any] = encoded.pop("extra", {})
    own = {name: value for name, value in encoded.items() if name not in _STAMPS}
    extra.pop("notification", None)
    return {**own, **extra}


def test_every_recorded_update_is_what_the_published_schema_says_and_has_its_event() -> None:
    """All updates of all recorded agents are valid ACP, and each kind becomes the event that the contract names."""
    seen: set[str] = set()
    for name, message in agent_messages("session/update"):
        schema.SessionNotification.model_validate(message["params"])
        update = read_update(Raw(json.dumps(message["params"]).encode()))
        kind = message["params"]["update"]["sessionUpdate"]
        assert (update.session_id, update.kind) == (message["params"]["sessionId"], kind), name
        assert type(update.event) is _EVENTS[kind], name
        seen.add(kind)
    assert seen >= set(_EVENTS) - {"plan"}


def test_no_member_of_any_recorded_update_is_dropped() -> None:
    """What went into the event comes out of its encoded line again, member for member."""
    checked = 0
    for name, message in agent_messages("session/update"):
        event = read_update(Raw(json.dumps(message["params"]).encode())).event
        update = dict(message["params"]["update"])
        del update["sessionUpdate"]
        members = _members(event)
        if isinstance(event, events.ToolCall):  # the event fills in what ACP lets an agent leave out
            members = {key: value for key, value in members.items() if key in update}
        assert members == update, name
        checked += 1
    assert checked > 500


def test_members_that_we_do_not_know_are_kept_in_extra() -> None:
    """`_meta` and members of later versions stay with their event."""
    event = _event(
        events.MessageChunk,
        sessionUpdate="agent_message_chunk",
        content={"type": "text", "text": "x"},
        _meta={"a": 1},
        colour="red",
    )
    assert isinstance(event.extra, dict)
    assert {name: _value(raw) for name, raw in event.extra.items()} == {"_meta": {"a": 1}, "colour": "red"}


def test_members_of_the_notification_itself_are_kept_too() -> None:
    """`_meta` beside `update` is kept under `notification`."""
    raw = json.dumps({"sessionId": "s", "_meta": {"t": 1}, "update": {"sessionUpdate": "plan", "entries": []}}).encode()
    event = read_update(Raw(raw)).event
    assert isinstance(event, events.SessionPlan)
    assert isinstance(event.extra, dict)
    assert _value(event.extra["notification"]) == {"_meta": {"t": 1}}


def test_a_plan_becomes_its_event() -> None:
    """No recorded agent sent one, so here is one."""
    entries = [{"content": "do it", "priority": "high", "status": "pending"}]
    schema.SessionNotification.model_validate(
        {"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": entries}}
    )
    assert _value(_event(events.SessionPlan, sessionUpdate="plan", entries=entries).entries) == entries


@pytest.mark.parametrize(
    "update",
    [
        {"sessionUpdate": "never_heard_of", "x": [1]},
        {"sessionUpdate": "tool_call", "title": "no id"},
        {"sessionUpdate": "tool_call", "toolCallId": 7, "title": "id of the wrong type"},
        {"sessionUpdate": "usage_update", "used": "many", "size": 1},
        {"sessionUpdate": "agent_message_chunk"},
        {"sessionUpdate": "current_mode_update", "currentModeId": None},
    ],
)
def test_an_update_that_fits_no_event_is_kept_whole(update: dict[str, Any]) -> None:
    """Unknown kinds, and known ones without what their event needs, are `session.update`, verbatim."""
    assert _value(_event(events.SessionUpdate, **update).update) == update


def test_a_null_where_text_is_expected_is_kept_as_it_is() -> None:
    """ACP lets an agent say null for 'unchanged'; the event's own member stays unset."""
    event = _event(
        events.ToolCallUpdate, sessionUpdate="tool_call_update", toolCallId="t", title=None, status="completed"
    )
    assert event.title is msgspec.UNSET
    assert event.status == "completed"
    assert isinstance(event.extra, dict)
    assert bytes(event.extra["title"]) == b"null"


@pytest.mark.parametrize("params", [b"{}", b"[]", b"7", b'{"sessionId":"s"}', b'{"sessionId":1,"update":{}}', b"null"])
def test_params_that_are_no_update_are_kept_whole(params: bytes) -> None:
    """An agent that breaks the protocol is heard all the same."""
    update = read_update(Raw(params))
    assert (update.session_id, update.kind) == ("", "")
    assert isinstance(update.event, events.SessionUpdate)
    assert _value(update.event.update) == json.loads(params)


def test_a_notification_outside_acp_is_kept_with_its_method() -> None:
    """`_session/retrying` and the like become `session.update`."""
    event = foreign_notification("_session/retrying", Raw(b'{"attempt":2}'))
    assert isinstance(event, events.SessionUpdate)
    assert _value(event.update) == {"method": "_session/retrying", "params": {"attempt": 2}}


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    kind=st.sampled_from([*_EVENTS, "other"]),
    members=st.dictionaries(
        st.sampled_from(
            [
                "content",
                "messageId",
                "toolCallId",
                "title",
                "kind",
                "status",
                "used",
                "size",
                "cost",
                "entries",
                "_meta",
            ]
        ),
        _json,
    ),
)
def test_whatever_the_members_are_none_is_lost(kind: str, members: dict[str, Any]) -> None:
    """For any kind and any members of any type, the event holds all of them and can be encoded."""
    event = read_update(_params(sessionUpdate=kind, **members)).event
    kept = _members(event)
    assert {name: kept[name] for name in members} == members
