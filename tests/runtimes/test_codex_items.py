"""What codex tells, as events: nothing is dropped, whatever it sends."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.codex_items import ItemReader
from tests.runtimes.transcripts import HERE, read_transcript


def _read(method: str, params: object, reader: ItemReader | None = None) -> Event:
    return (reader or ItemReader()).read(method, Raw(msgspec.json.encode(params)))


def _item(item: dict[str, Any], method: str = "item/completed") -> Event:
    return _read(method, {"threadId": "t", "turnId": "u", "item": item})


def _recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(HERE.glob("codex-*.ndjson")):
        for direction, message in read_transcript(path):
            if direction == "agent->client" and "method" in message and "id" not in message:
                yield message["method"], message["params"]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for member in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _leaves(member)
    elif isinstance(value, list):
        for member in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _leaves(member)
    elif value is not None:
        yield value


def test_every_word_of_the_recordings_is_in_an_event() -> None:
    """Whatever kind of event it becomes, all that was said can be read there, but for the ids that they share."""
    kinds: set[type[Event]] = set()
    reader = ItemReader()
    for method, params in _recorded():
        event = _read(method, params, reader)
        kinds.add(type(event))
        kept = json.dumps(msgspec.json.decode(events.encode_event(event)))
        shared = {"threadId", "turnId"} if method.endswith("elta") else {"threadId"}
        for word in _leaves({name: value for name, value in params.items() if name not in shared}):
            assert json.dumps(word).strip('"') in kept, (method, word)
    assert kinds == {
        *(events.MessageChunk, events.ThoughtChunk, events.ToolCall, events.ToolCallUpdate),
        *(events.SessionUsage, events.SessionUpdate),
    }


@given(
    st.sampled_from(
        [
            *("item/started", "item/completed", "item/agentMessage/delta", "item/commandExecution/outputDelta"),
            *("item/fileChange/patchUpdated", "turn/plan/updated", "thread/name/updated", "thread/tokenUsage/updated"),
        ]
    ),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["item", "itemId", "id", "type", "delta", "plan", "status", "changes", "tokenUsage"]),
                inner | st.sampled_from(["commandExecution", "fileChange", "webSearch", "agentMessage", "reasoning"]),
                max_size=4,
            )
        ),
    ),
)
@example("item/started", {"item": {"type": []}})
@example("item/completed", {"item": {"type": {}}})
def test_whatever_codex_sends_becomes_an_event(method: str, params: object) -> None:
    """One that can be written to the log."""
    events.encode_event(_read(method, params))


@pytest.mark.parametrize(
    ("item", "title", "kind"),
    [
        ({"type": "commandExecution", "command": "sh -c ls", "commandActions": []}, "sh -c ls", "execute"),
        ({"type": "commandExecution", "command": "sh", "commandActions": [{"command": "ls"}]}, "ls", "execute"),
        ({"type": "commandExecution", "commandActions": 7}, "a command", "execute"),
        ({"type": "fileChange", "changes": [{"path": "/w/a"}, {"path": "b"}]}, "Change a, b", "edit"),
        ({"type": "fileChange", "changes": []}, "Change files", "edit"),
        ({"type": "mcpToolCall", "server": "notes", "tool": "add", "arguments": [1]}, "notes: add", "other"),
        ({"type": "dynamicToolCall", "tool": "add", "arguments": {}}, "add", "other"),
        ({"type": "collabAgentToolCall", "tool": "spawnAgent", "prompt": "go"}, "agent: spawnAgent", "other"),
        ({"type": "webSearch", "query": "storks"}, "Search the web: storks", "search"),
        ({"type": "webSearch", "query": ""}, "Search the web", "search"),
        ({"type": "imageView", "path": "/w/a.png"}, "Look at /w/a.png", "read"),
        ({"type": "imageGeneration", "status": "completed"}, "Make an image", "other"),
    ],
)
def test_the_work_of_a_tool_is_a_tool_call(item: dict[str, Any], title: str, kind: str) -> None:
    """With a title for people and ACP's word for its kind, both when it starts and when it ends."""
    started = _item({**item, "id": "call-1"}, "item/started")
    ended = _item({**item, "id": "call-1"})
    assert isinstance(started, events.ToolCall)
    assert isinstance(ended, events.ToolCallUpdate)
    for event in (started, ended):
        assert (event.toolCallId, event.title, event.kind) == ("call-1", title, kind)


@pytest.mark.parametrize(
    ("status", "shown"),
    [("completed", "completed"), ("failed", "failed"), ("declined", "failed"), ("odd", "odd")],
)
def test_the_end_of_a_tool_has_acps_word(status: str, shown: str) -> None:
    """codex's own is in `extra`; one that we do not know is kept."""
    event = _item({"type": "fileChange", "id": "c", "changes": [{"path": "a"}], "status": status})
    assert isinstance(event, events.ToolCallUpdate)
    assert event.status == shown
    assert isinstance(event.extra, dict)
    assert event.extra["status"] == Raw(msgspec.json.encode(status))
    assert event.locations == Raw(b'[{"path":"a"}]')


def test_a_tool_without_a_status_has_ended_well() -> None:
    """Such as a search."""
    event = _item({"type": "webSearch", "id": "c", "query": "q", "results": [1]})
    assert isinstance(event, events.ToolCallUpdate)
    assert (event.status, event.rawOutput) == ("completed", Raw(b'{"results":[1]}'))


@pytest.mark.parametrize(
    ("method", "members"),
    [
        ("item/commandExecution/outputDelta", {"delta": "more"}),
        ("item/fileChange/outputDelta", {"delta": "more"}),
        ("item/mcpToolCall/progress", {"message": "more"}),
    ],
)
def test_more_of_a_running_tool_is_an_update(method: str, members: dict[str, str]) -> None:
    """The new piece alone, so it is not in `content`, which would replace what was there."""
    event = _read(method, {"threadId": "t", "turnId": "u", "itemId": "c", **members})
    assert isinstance(event, events.ToolCallUpdate)
    assert (event.toolCallId, event.status, event.content) == ("c", "in_progress", msgspec.UNSET)
    assert event.extra == {"turnId": Raw(b'"u"'), **{name: Raw(b'"more"') for name in members}}


def test_a_patch_that_grows_is_new_input() -> None:
    """codex tells the whole of it each time."""
    event = _read("item/fileChange/patchUpdated", {"itemId": "c", "changes": [{"path": "a"}]})
    assert isinstance(event, events.ToolCallUpdate)
    assert event.rawInput == Raw(b'{"changes":[{"path":"a"}]}')


@pytest.mark.parametrize(
    ("item", "kind", "text"),
    [
        ({"type": "agentMessage", "id": "m", "text": "hello"}, events.MessageChunk, "hello"),
        ({"type": "reasoning", "id": "m", "summary": ["one", "two"]}, events.ThoughtChunk, "one\n\ntwo"),
        ({"type": "reasoning", "id": "m", "summary": [], "content": ["raw"]}, events.ThoughtChunk, "raw"),
    ],
)
def test_text_that_comes_at_once_is_told_once(item: dict[str, Any], kind: type[Event], text: str) -> None:
    """At the item's end, unless it has come in pieces before."""
    event = _item(item)
    assert isinstance(event, kind)
    assert isinstance(event, events.MessageChunk | events.ThoughtChunk)
    assert (event.messageId, msgspec.json.decode(event.content)["text"]) == ("m", text)
    reader = ItemReader()
    method = "item/agentMessage/delta" if kind is events.MessageChunk else "item/reasoning/textDelta"
    assert isinstance(_read(method, {"itemId": "m", "delta": text}, reader), kind)
    again = _read("item/completed", {"item": item}, reader)
    assert isinstance(again, events.SessionUpdate)
    reader.start_turn()
    assert isinstance(_read("item/completed", {"item": item}, reader), kind)


def test_the_name_of_a_thread_is_told() -> None:
    """Also that it has none any more."""
    named = _read("thread/name/updated", {"threadId": "t", "threadName": "Storks"})
    assert isinstance(named, events.SessionInfo)
    assert named.title == "Storks"
    unnamed = _read("thread/name/updated", {"threadId": "t"})
    assert isinstance(unnamed, events.SessionInfo)
    assert unnamed.title is None


def test_the_plan_is_told_in_acps_words() -> None:
    """What codex says about it besides is kept."""
    plan = [{"step": "look", "status": "inProgress"}, {"step": "leap", "status": "pending"}]
    event = _read("turn/plan/updated", {"threadId": "t", "plan": plan, "explanation": "why"})
    assert isinstance(event, events.SessionPlan)
    statuses = [(entry["content"], entry["status"]) for entry in msgspec.json.decode(event.entries)]
    assert statuses == [("look", "in_progress"), ("leap", "pending")]
    assert event.extra == {"explanation": Raw(b'"why"')}


def test_without_the_size_of_the_context_its_use_is_kept_as_it_came() -> None:
    """A provider of one's own may not tell."""
    tokens = {"totalTokens": 5, "inputTokens": 4, "cachedInputTokens": 0, "outputTokens": 1}
    usage = {"total": tokens, "last": tokens, "modelContextWindow": None}
    assert isinstance(_read("thread/tokenUsage/updated", {"tokenUsage": usage}), events.SessionUpdate)
    known = _read("thread/tokenUsage/updated", {"tokenUsage": {**usage, "modelContextWindow": 9}})
    assert isinstance(known, events.SessionUsage)
    assert (known.used, known.size) == (5, 9)
