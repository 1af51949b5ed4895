"""Events and digests of a run, as the MCP tools give them: bounded whatever the log holds."""

from typing import Any

import msgspec
import pytest

from avenor.control.mcp.looking import ANSWER_LIMIT_BYTES, digest, events_after, inspect, raw_tail, recent_events
from avenor.protocol.events import decode_head
from avenor.protocol.snapshot import Snapshot
from tests.control.mcp_kit import FakeClient, events


def chunk(text: str) -> dict[str, Any]:
    """Agent text."""
    return {"event": "agent.message_chunk", "content": {"type": "text", "text": text}}


def tool(call_id: str, **members: Any) -> dict[str, Any]:
    """A tool call, or news of one."""
    return {"event": "tool.call", "toolCallId": call_id, **members}


def run_of(log: list[dict[str, Any]]) -> tuple[FakeClient, Snapshot]:
    """A client whose only run has this log."""
    snapshot = Snapshot(run_id="r", runtime_id="rt_1", status="running", latest_seq=len(log))
    return FakeClient(snapshot, log=log), snapshot


@pytest.mark.parametrize("page_size", [1, 7, 10_000])
async def test_recent_events_are_the_last_of_their_names_in_order(page_size: int) -> None:
    """However far back they are, and however many the server gives at a time."""
    log = events(*({"event": "turn.end" if n % 1000 == 0 else "noise"} for n in range(1, 3501)))
    client, snapshot = run_of(log)
    client.page_size = page_size
    found = await recent_events(client.client, snapshot, ["turn.end"], 2)
    assert [event["seq"] for event in found.events] == [2000, 3000]
    assert (found.latest_seq, found.next_after_seq, found.complete) == (3500, 3500, True)
    assert [event["seq"] for event in (await recent_events(client.client, snapshot, None, 3)).events] == [
        3498,
        3499,
        3500,
    ]


async def test_events_of_a_log_with_a_gap_come_once_and_in_order() -> None:
    """Some are missing after a full disk."""
    log = [event for event in events(*({"event": "noise"} for _ in range(3010))) if not 1500 < event["seq"] <= 1600]
    client, snapshot = run_of(log)
    snapshot.latest_seq = 3010
    expected = [event["seq"] for event in log]
    assert [decode_head(line).seq for line in await raw_tail(client.client, snapshot, 10_000_000)] == expected
    recent = await recent_events(client.client, snapshot, None, 1500)
    assert [event["seq"] for event in recent.events] == expected[-1500:]


async def test_events_after_one_can_be_read_to_the_end_in_pieces() -> None:
    """`next_after_seq` goes on where the limit was; none is left out, none comes twice."""
    log = events(*({"event": "turn.end" if n % 3 else "noise"} for n in range(1, 11)))
    client, snapshot = run_of(log)
    seqs: list[int] = []
    after, complete = 0, False
    while not complete:
        piece = await events_after(client.client, snapshot, ["turn.end"], after, 2)
        assert len(piece.events) <= 2
        seqs += [event["seq"] for event in piece.events]
        after, complete = piece.next_after_seq, piece.complete
    assert seqs == [1, 2, 4, 5, 7, 8, 10]
    assert after == 10


async def test_an_answer_is_bounded_in_bytes() -> None:
    """Large events are named and left out; many middling ones come in pieces."""
    client, snapshot = run_of(events(chunk("x" * 1_000_000), *(chunk("y" * 20_000) for _ in range(20))))
    everything = await recent_events(client.client, snapshot, None, 500)
    assert len(msgspec.json.encode(everything)) < ANSWER_LIMIT_BYTES + 1000
    assert everything.events[-1]["seq"] == 21
    first = await events_after(client.client, snapshot, None, 0, 500)
    assert first.events[0] == {"event": "agent.message_chunk", "seq": 1, "ts": 1, "omitted_bytes": 1_000_099}
    assert not first.complete
    rest = await events_after(client.client, snapshot, None, first.next_after_seq, 500)
    assert first.events[-1]["seq"] + 1 == rest.events[0]["seq"]


async def test_an_inspection_is_made_from_the_last_events_only() -> None:
    """And says from which."""
    client, snapshot = run_of(events(*(chunk(f"{n}.") for n in range(3000))))
    seen = await inspect(client.client, snapshot)
    assert seen.looked_at_seqs == [2001, 3000]
    assert len(seen.sessions[0].text) <= 4000
    assert seen.sessions[0].text.endswith("2999.")


def test_a_digest_begins_with_the_last_prompt_and_merges_tool_calls() -> None:
    """What the agent is at, not what it did an hour ago."""
    log = events(
        {"event": "turn.start", "text": "old"},
        chunk("old text"),
        tool("1", title="Old", kind="read", status="completed"),
        {"event": "turn.start", "text": "new"},
        chunk("new "),
        tool("2", title="Edit it", kind="edit", status="pending"),
        {"event": "tool.call_update", "toolCallId": "2", "status": "completed"},
        {"event": "session.plan", "entries": [{"content": "c" * 1000, "status": "pending"}] * 100},
        chunk("text"),
        {"event": "run.end"},
    )
    (speaker,) = digest(log)
    assert (speaker.prompt, speaker.text) == ("new", "new text")
    assert msgspec.to_builtins(speaker.tools) == [{"title": "Edit it", "kind": "edit", "status": "completed"}]
    assert isinstance(speaker.plan, list)
    assert (len(speaker.plan), len(speaker.plan[0]["content"])) == (50, 200)


@pytest.mark.parametrize(
    ("entries", "plan"),
    [
        (["first step", 2], [{"content": "first step"}, {"content": "2"}]),
        ({"first": "step"}, msgspec.UNSET),
        (None, msgspec.UNSET),
    ],
)
def test_a_digest_takes_what_it_can_of_a_plan_of_another_shape(entries: Any, plan: Any) -> None:
    """An agent's payload is passed on as it came."""
    (speaker,) = digest(events(chunk("text"), {"event": "session.plan", "entries": entries}))
    assert (speaker.text, speaker.plan) == ("text", plan)


@pytest.mark.parametrize("content", [[{"type": "text", "text": "q"}], "q", None, {"type": "image"}])
def test_a_digest_leaves_content_out_that_has_no_text(content: Any) -> None:
    """And goes on behind it."""
    (speaker,) = digest(events(chunk("a"), {"event": "agent.message_chunk", "content": content}, chunk("b")))
    assert speaker.text == "ab"


def test_a_digest_keeps_parallel_sessions_apart() -> None:
    """Members of a team speak at the same time, and number their tools alike."""
    a = [{**event, "phase": "a"} for event in events(chunk("from a"), tool("1", title="A"), session="sa")]
    b = [{**event, "phase": "b"} for event in events(chunk("from b"), tool("1", title="B"), session="sb")]
    mixed = [event for pair in zip(a, b, strict=True) for event in pair]
    assert [(s.phase, s.text, s.tools[0].title) for s in digest(mixed)] == [("a", "from a", "A"), ("b", "from b", "B")]


async def test_the_end_of_a_log_is_given_in_whole_lines() -> None:
    """As many as fit."""
    client, snapshot = run_of(events(*(chunk("x" * 1000) for _ in range(1500))))
    lines = await raw_tail(client.client, snapshot, 10_000)
    assert [decode_head(line).seq for line in lines] == list(range(1492, 1501))
    assert len(await raw_tail(client.client, snapshot, 10_000_000)) == 1500
    assert await raw_tail(client.client, snapshot, 10) == []
