"""Which events are milestones, which are findings, and which are activity."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.control.eventclass import ACTIVITY, FINDING, MILESTONE, Classifier


def event(name: str, **members: Any) -> dict[str, Any]:
    return {"event": name, "session_id": "ses_1", **members}


def says(text: str, **members: Any) -> dict[str, Any]:
    return event("agent.message_chunk", content={"type": "text", "text": text}, **members)


def classes(*events: dict[str, Any]) -> list[str]:
    classifier = Classifier()
    return [classifier.classify(each) for each in events]


@pytest.mark.parametrize(
    "name",
    [
        "session.start",
        "session.end",
        "avenor.loop.start",
        "avenor.loop.end",
        "avenor.team.start",
        "avenor.team.end",
        "avenor.phase.end",
        "permission.request",
        "avenor.retry",
        "avenor.error",
    ],
)
def test_what_a_run_goes_through_is_a_milestone(name: str) -> None:
    """Whatever its members are."""
    assert classes(event(name)) == [MILESTONE]


@pytest.mark.parametrize(
    "name",
    [
        "run.start",
        "run.end",
        "avenor.phase.start",
        "permission.response",
        "agent.thought_chunk",
        "user.message_chunk",
        "tool.call",
        "tool.call_update",
        "session.plan",
        "session.update",
        "agent.stderr",
        "turn.start",
        "turn.end",
        "agent.new",
    ],
)
def test_the_rest_is_activity(name: str) -> None:
    """Text with a sign in it too, if it is not the agent's message."""
    assert classes(event(name, content={"type": "text", "text": "[finding]"}, text="[finding]")) == [ACTIVITY]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("waiting", MILESTONE), ("done", MILESTONE), ("thinking", ACTIVITY), ("working", ACTIVITY), (["done"], ACTIVITY)],
)
def test_the_statuses_waiting_and_done_are_milestones(phase: Any, expected: str) -> None:
    """The others change all the time."""
    assert classes(event("agent.status", phase=phase)) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [finding] below", FINDING),
        ("[FINDING]", FINDING),
        ("a finding", ACTIVITY),
        ("one failed test", FINDING),
        ("3 Failed tests", FINDING),
        ("the test failed", ACTIVITY),
        ("Correction needed: x", FINDING),
        ("the reviewer flagged it", FINDING),
        ("confidence: 60%", FINDING),
        ("confidence: 59%", ACTIVITY),
        ("confidence: 59.9%", ACTIVITY),
        ("confidence: 100 %", FINDING),
        ("**Confidence:** 85.5%", FINDING),
        ("confidence:75%", FINDING),
        ("confidence: 7%, then confidence: 70%", FINDING),
        ("confidence: 99", ACTIVITY),
        ("confidence 99%", ACTIVITY),
        ("", ACTIVITY),
    ],
)
def test_a_message_with_a_sign_is_a_finding(text: str, expected: str) -> None:
    """Upper and lower case are the same."""
    assert classes(says(text)) == [expected]


SIGNS = ("[finding]", "confidence: 75%", "failed test", "correction needed", "reviewer flagged")


@given(sign=st.sampled_from(SIGNS), cut=st.integers(1, 15), before=st.text(max_size=80))
def test_a_sign_that_chunks_cut_in_two_counts_where_it_is_complete(sign: str, cut: int, before: str) -> None:
    """And only there."""
    cut = min(cut, len(sign) - 1)
    assert classes(says(before + sign[:cut]), says(sign[cut:]), says(" and so on")) == [ACTIVITY, FINDING, ACTIVITY]


@pytest.mark.parametrize(
    "between",
    [
        event("tool.call", toolCallId="t"),
        event("agent.thought_chunk", content={"type": "text", "text": "hm"}),
        event("turn.end"),
    ],
)
def test_two_messages_make_no_sign_together(between: dict[str, Any]) -> None:
    """Nor do messages of other ids, or of other sessions."""
    first, second = says("[find"), says("ing]")
    assert classes(first, between, second)[2] == ACTIVITY
    assert classes(says("[find", messageId="a"), says("ing]", messageId="b")) == [ACTIVITY, ACTIVITY]
    assert classes(first, {**second, "session_id": "ses_2"}) == [ACTIVITY, ACTIVITY]


def test_messages_of_parallel_sessions_do_not_disturb_each_other() -> None:
    """A sign of one is seen although another speaks in between."""
    other = {**says("x"), "session_id": "ses_2"}
    assert classes(says("[find"), other, event("tool.call", session_id="ses_2"), says("ing]"))[3] == FINDING


@pytest.mark.parametrize(
    "call",
    [
        {"title": "git commit -m x"},
        {"title": "Run", "rawInput": {"command": "cd x && git commit -am y"}},
        {"title": "Run", "rawInput": {"command": ["git", "commit", "-m", "x"]}},
    ],
)
def test_a_completed_commit_is_a_milestone(call: dict[str, Any]) -> None:
    """Its title and command may be in the event that began it, and only the end counts."""
    begun = event("tool.call", toolCallId="t1", status="pending", **call)
    runs = event("tool.call_update", toolCallId="t1", status="in_progress")
    done = event("tool.call_update", toolCallId="t1", status="completed")
    assert classes(begun, runs, done) == [ACTIVITY, ACTIVITY, MILESTONE]
    assert classes({**begun, "status": "completed"}) == [MILESTONE]


def test_a_commit_that_failed_and_other_tools_are_activity() -> None:
    """Ids are of one session only."""
    begun = event("tool.call", toolCallId="t1", title="git commit -m x", status="pending")
    other = event("tool.call_update", toolCallId="t2", title="git status", status="completed")
    elsewhere = {**event("tool.call_update", toolCallId="t1", status="completed"), "session_id": "ses_2"}
    failed = event("tool.call_update", toolCallId="t1", status="failed")
    assert classes(begun, other, elsewhere, failed) == [ACTIVITY] * 4


@pytest.mark.parametrize(
    "strange",
    [
        {"event": "agent.message_chunk", "content": None, "session_id": ["x"], "messageId": {}},
        {"event": "agent.message_chunk", "content": {"type": "image"}},
        {"event": "agent.message_chunk", "content": {"type": "text", "text": 5}},
        {"event": "tool.call", "toolCallId": [1], "title": 3, "rawInput": "x", "status": {}},
        {"event": "tool.call", "rawInput": {"command": {"a": 1}}},
    ],
)
def test_foreign_members_do_no_harm(strange: dict[str, Any]) -> None:
    """They are activity."""
    assert classes(strange, strange) == [ACTIVITY, ACTIVITY]
