"""One event for the chunks of each message."""

from typing import Any

import pytest

from avenor.control.messages import MessageJoiner


def chunk(text: str, name: str = "agent.message_chunk", **members: Any) -> dict[str, Any]:
    return {"event": name, "session_id": "ses_1", "content": {"type": "text", "text": text}, **members}


def other(name: str, **members: Any) -> dict[str, Any]:
    return {"event": name, "session_id": "ses_1", **members}


def joined(*events: dict[str, Any]) -> list[Any]:
    """The texts and names of what comes out."""
    joiner = MessageJoiner()
    out = [each for at, event in enumerate(events) for each in joiner.feed(event, at)]
    return [each["content"]["text"] if "content" in each else each["event"] for each in [*out, *joiner.finish()]]


def test_the_chunks_of_a_message_are_one_event_with_the_stamps_of_the_last() -> None:
    """So that a reader who goes on after its seq misses nothing."""
    joiner = MessageJoiner()
    assert joiner.feed(chunk("a ", seq=1), 0) == []
    assert joiner.feed(chunk("b", seq=2), 9) == []
    assert joiner.feed(other("turn.end", seq=3), 20) == [chunk("a b", seq=2), other("turn.end", seq=3)]
    assert joiner.finish() == []


@pytest.mark.parametrize("name", ["tool.call", "tool.call_update", "permission.request", "turn.end", "session.end"])
def test_a_message_ends_with_what_interrupts_it(name: str) -> None:
    """And comes before it."""
    assert joined(chunk("a"), other(name), chunk("b")) == ["a", name, "b"]


@pytest.mark.parametrize("name", ["agent.status", "session.usage", "agent.stderr", "prompt.queued", "session.plan"])
def test_a_message_goes_on_over_what_is_beside_it(name: str) -> None:
    """Which is not held back."""
    assert joined(chunk("a"), other(name), chunk("b")) == [name, "ab"]


def test_thoughts_and_messages_are_joined_each_for_themselves() -> None:
    """The one ends the other."""
    thought = "agent.thought_chunk"
    assert joined(chunk("a", thought), chunk("b", thought), chunk("c"), chunk("d"), chunk("e", thought)) == [
        "ab",
        "cd",
        "e",
    ]


def test_another_message_id_is_another_message() -> None:
    """Where the agent gives ids."""
    assert joined(chunk("a", messageId="1"), chunk("b", messageId="1"), chunk("c", messageId="2")) == ["ab", "c"]


def test_messages_of_parallel_sessions_are_joined_side_by_side() -> None:
    """What ends one does not end the other, and the end of the run ends them all."""
    there = {"session_id": "ses_2"}
    events = (
        chunk("a"),
        chunk("x", **there),
        chunk("b"),
        {**other("tool.call"), **there},
        chunk("c"),
        other("run.end"),
    )
    assert joined(*events) == ["x", "tool.call", "abc", "run.end"]


def test_the_open_offset_is_where_the_oldest_open_message_begins() -> None:
    """A reader that is killed goes on there."""
    joiner = MessageJoiner()
    assert joiner.open_offset is None
    joiner.feed(chunk("a"), 100)
    joiner.feed(chunk("x", session_id="ses_2"), 200)
    joiner.feed(chunk("b"), 300)
    assert joiner.open_offset == 100
    joiner.feed(other("turn.end"), 400)
    assert joiner.open_offset == 200
    joiner.finish()
    assert joiner.open_offset is None
