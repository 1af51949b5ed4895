"""What a run came to, in figures."""

from typing import Any

import pytest

from avenor.control.figures import figures_of


def event(at: int, name: str, **members: Any) -> dict[str, Any]:
    return {"event": name, "ts": at, **members}


START = event(
    1000, "run.start", run_id="run_a", run_label="x", kind="single", backend="scripted", dir="/d", version="1"
)
END = event(9000, "run.end", status="DONE", exit_code=0, stop_reason="end_turn")


def of(*events: dict[str, Any]) -> dict[str, Any]:
    return figures_of([START, *events, END])


def test_a_run_has_what_its_first_and_last_event_tell() -> None:
    """And the time between them."""
    figures = of()
    told = {name: figures[name] for name in ("run_id", "run_label", "kind", "status", "exit_code", "stop_reason")}
    assert told == {
        "run_id": "run_a",
        "run_label": "x",
        "kind": "single",
        "status": "DONE",
        "exit_code": 0,
        "stop_reason": "end_turn",
    }
    times = [figures[name] for name in ("started_at", "ended_at", "duration_ms", "events")]
    assert times == [1000, 9000, 8000, 2]


def test_a_run_that_has_not_ended_goes_as_far_as_its_log() -> None:
    """What is open stays open."""
    figures = figures_of([START, event(1500, "turn.start", text="go", source="run"), event(2000, "agent.noise")])
    assert (figures["status"], figures["ended_at"], figures["duration_ms"]) == (None, None, 1000)
    turn = figures["turns"][0]
    assert (turn["outcome"], turn["ended_at"], turn["duration_ms"]) == ("open", None, 500)


def test_usage_is_the_sum_of_the_turns_and_of_each_phase() -> None:
    """A cost is there only where an agent tells one."""
    place = {"phase": "build"}
    figures = of(
        event(1100, "avenor.phase.start", kind="loop", iteration=1, **place),
        event(1200, "turn.end", stop_reason="end_turn", usage={"total_tokens": 5, "cost_usd": 0.25}, **place),
        event(1300, "turn.end", stop_reason="refusal", usage={"total_tokens": 2, "input_tokens": 1}, **place),
        event(1400, "avenor.phase.end", stop_reason="end_turn", exit_code=0, **place),
        event(1500, "turn.end", stop_reason="end_turn", usage={"total_tokens": 100}),
    )
    tokens = {"output_tokens": 0, "cached_read_tokens": 0, "input_tokens": 1, "cost_usd": 0.25}
    assert figures["usage"] == {**tokens, "total_tokens": 107}
    assert figures["phases"][0]["usage"] == {**tokens, "total_tokens": 7}
    assert [turn["outcome"] for turn in figures["turns"]] == ["done", "failed", "done"]
    assert "cost_usd" not in of()["usage"]


@pytest.mark.parametrize(
    ("members", "outcome"),
    [
        ({"exit_code": 0}, "done"),
        ({"exit_code": 1}, "failed"),
        ({"exit_code": 1, "retried": True}, "retried"),
        ({"exit_code": 0, "abort_marker": True, "abort_marker_label": "no"}, "aborted"),
    ],
)
def test_a_phase_ends_as_its_event_tells(members: dict[str, Any], outcome: str) -> None:
    """With its label, if it has one."""
    place = {"phase": "b", "path": "a", "kind": "pre", "iteration": 0, "attempt": 2}
    figures = of(
        event(1100, "avenor.phase.start", **place),
        event(1400, "avenor.phase.end", stop_reason="x", **place, **members),
    )
    (phase,) = figures["phases"]
    assert (phase["path"], phase["name"], phase["attempt"], phase["duration_ms"]) == ("a", "b", 2, 300)
    assert (phase["outcome"], phase["stop_reason"], phase["exit_code"]) == (outcome, "x", members["exit_code"])
    assert phase.get("abort_marker_label") == members.get("abort_marker_label")


def test_phases_side_by_side_are_told_apart() -> None:
    """By name and path; iterations follow each other."""
    figures = of(
        event(1100, "avenor.phase.start", phase="a", iteration=1),
        event(1200, "avenor.phase.start", phase="b"),
        event(1300, "avenor.phase.end", phase="a", exit_code=0),
        event(1400, "avenor.phase.start", phase="a", iteration=2),
        event(1500, "avenor.phase.end", phase="b", exit_code=1),
        event(1900, "avenor.phase.end", phase="a", exit_code=0),
    )
    spans = [(each["name"], each["iteration"], each["duration_ms"], each["outcome"]) for each in figures["phases"]]
    assert spans == [("a", 1, 200, "done"), ("b", 0, 300, "failed"), ("a", 2, 500, "done")]


def test_a_phase_whose_process_was_lost_ends_where_the_next_attempt_begins() -> None:
    """And the resumption is told."""
    figures = of(
        event(1100, "avenor.phase.start", phase="a"),
        event(1150, "turn.start", phase="a", text="x", source="run"),
        event(1500, "run.resumed", cut="a turn", goes_on="phase a"),
        event(1600, "avenor.phase.start", phase="a"),
        event(1650, "turn.start", phase="a", text="go on", source="resume"),
        event(1700, "avenor.phase.end", phase="a", exit_code=0),
    )
    assert [(each["outcome"], each["ended_at"]) for each in figures["phases"]] == [("lost", 1600), ("done", 1700)]
    assert [each["outcome"] for each in figures["turns"]] == ["lost", "open"]
    assert figures["resumed"] == [{"at": 1500, "cut": "a turn", "goes_on": "phase a"}]


def test_an_end_without_its_beginning_counts_all_the_same() -> None:
    """As of a phase whose session could not be opened."""
    figures = of(event(1200, "avenor.phase.end", phase="a", exit_code=1, stop_reason="spawn_failed"))
    assert [(each["outcome"], each["duration_ms"]) for each in figures["phases"]] == [("failed", 0)]


def test_permissions_have_who_answered_them_and_how_long_it_took() -> None:
    """Asked again through another resolver, it is still the same; the first answer counts."""
    figures = of(
        event(2000, "permission.request", request_id="p1", tool="execute", question="ls", resolver="control"),
        event(3000, "permission.request", request_id="p1", tool="execute", question="ls", resolver="file"),
        event(4000, "permission.response", request_id="p1", kind="allow", option_id="once", source="file"),
        event(4100, "permission.response", request_id="p1", kind="reject", option_id="no", source="cancel"),
        event(5000, "permission.request", request_id="p2", tool="edit", question=""),
        event(5100, "permission.response", request_id="p3", kind="allow", option_id="once", source="file"),
    )
    first, second = figures["permissions"]
    assert (first["asked_at"], first["answered_at"], first["answer"], first["option_id"], first["source"]) == (
        2000,
        4000,
        "allow",
        "once",
        "file",
    )
    assert (second["answered_at"], second["answer"], second["source"]) == (None, None, None)


def test_what_was_waited_for_is_in_order() -> None:
    """The agent's start, permissions to their answer or the end, and the pauses before a retry."""
    figures = of(
        event(1400, "session.start"),
        event(1500, "avenor.retry", phase="a", attempt=2, delay_ms=2000, **{"class": "crash"}),
        event(3600, "session.start"),
        event(4000, "permission.request", request_id="p1", tool="execute", question="ls"),
        event(4500, "permission.response", request_id="p1", kind="allow", option_id="once", source="control"),
        event(8000, "permission.request", request_id="p2", tool="edit", question=""),
        event(8500, "avenor.retry", attempt=3, delay_ms=2000, **{"class": "unknown"}),
    )
    waits = [(each["what"], each["detail"], each["from"], each["ms"]) for each in figures["waits"]]
    assert waits == [
        ("start", "the agent's session", 1000, 400),
        ("retry", "a crash", 1500, 2000),
        ("permission", "ls", 4000, 500),
        ("permission", "edit", 8000, 1000),
        ("retry", "unknown", 8500, 500),
    ]
    assert [each["attempt"] for each in figures["retries"]] == [2, 3]


def test_tools_are_counted_by_how_they_ended() -> None:
    """Ids are of one session of one phase."""
    figures = of(
        event(1100, "tool.call", toolCallId="t1", status="pending", session_id="a"),
        event(1200, "tool.call", toolCallId="t1", status="pending", session_id="b"),
        event(1300, "tool.call_update", toolCallId="t1", status="failed", session_id="a"),
        event(1300, "tool.call_update", toolCallId="t1", session_id="a"),
        event(1400, "tool.call_update", toolCallId="t1", status="completed", session_id="b"),
        event(1500, "tool.call", toolCallId="t2"),
        event(1500, "avenor.error", source="log", message="disk full"),
    )
    assert figures["tools"] == {"calls": 3, "failed": 1, "completed": 1, "pending": 1}
    assert figures["errors"] == [{"at": 1500, "source": "log", "message": "disk full"}]


@pytest.mark.parametrize("strange", [None, "x", [], {}, -5, 1e300, float("inf"), float("nan"), 10**40])
def test_foreign_members_do_no_harm(strange: Any) -> None:
    """Whatever is in their place."""
    names = ("run.start", "run.end", "turn.start", "turn.end", "avenor.phase.start", "avenor.phase.end", "avenor.retry")
    more = ("permission.request", "permission.response", "tool.call", "avenor.error", "session.start", "run.resumed")
    members = ("ts", "phase", "path", "usage", "delay_ms", "attempt", "status", "request_id", "toolCallId", "text")
    strange_usage = {"usage": {"total_tokens": strange, "cost_usd": strange}}
    events = [{"event": name, **dict.fromkeys(members, strange)} for name in (*names, *more)]
    figures = figures_of([*events, event(5, "turn.end", **strange_usage), {"event": "turn.end", "usage": strange}])
    assert figures["events"] == 15
    assert figures["usage"]["total_tokens"] == 0
