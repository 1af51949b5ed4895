"""The reducer: a run's state from its events alone."""

from typing import Any

import msgspec
from msgspec import Raw

from avenor.protocol import events as ev
from avenor.protocol.events import EventHead, Usage, decode_head, encode_event
from avenor.protocol.snapshot import OUTPUT_LIMIT_CHARS, Fold, Snapshot


def fold(*events: ev.AnyEvent) -> Snapshot:
    """The state after these events, stamped in order and passed as lines like a supervisor does."""
    reducer = Fold(Snapshot(runtime_id="rt_1"))
    for seq, event in enumerate(events, start=1):
        event.seq, event.ts, event.run_id = seq, 1000 * seq, "run_a"
        line = encode_event(event)
        reducer.apply_line(decode_head(line), line)
    return reducer.snapshot(now_ms=1000 * len(events) + 250)


START = (
    ev.RunStart(kind="single", backend="scripted", dir="/d", version="0", run_label="x", parks=True),
    ev.SessionStart(backend="scripted", dir="/d", model="m", agent="a", session_id="ses_1"),
    ev.TurnStart(text="go", source="initial"),
)
OPTION = ev.PermissionOption(option_id="once", kind="allow_once", name="Once")


def ask(request_id: str, resolver: str = "control") -> ev.PermissionRequest:
    """A permission request of a turn."""
    return msgspec.convert(
        {"event": "permission.request", "request_id": request_id, "tool": "bash", "question": "ls", "options": [],
         "resolver": resolver},
        ev.PermissionRequest,
    )  # fmt: skip


def test_a_run_that_has_started_shows_its_identity() -> None:
    """Start events fill in who, where and what."""
    state = fold(*START)

    assert (
        state.run_id, state.label, state.session_id, state.model, state.agent, state.dir
    ) == ("run_a", "x", "ses_1", "m", "a", "/d")  # fmt: skip
    assert (
        state.status, state.turn_state, state.latest_seq, state.started_at, state.updated_at
    ) == ("running", "running", 3, 1000, 3000)  # fmt: skip
    assert state.silent_for_ms == 250


def test_a_clean_turn_with_an_empty_queue_is_idle_and_its_output_is_there() -> None:
    """A turn's end is enough to know that the run waits for a prompt."""
    state = fold(*START, ev.TurnEnd(stop_reason="end_turn", final_output="hi", usage=Usage(input_tokens=3)))

    assert (
        state.status, state.outcome, state.exit_code, state.final_output, state.final_output_truncated
    ) == ("idle", "DONE", 0, "hi", False)  # fmt: skip
    assert state.is_settled
    assert state.silent_for_ms == 0


def test_a_turn_that_ends_with_prompts_waiting_is_not_idle() -> None:
    """The next turn is due."""
    state = fold(*START, ev.PromptQueued(text="more", source="control", queued=1), ev.TurnEnd(stop_reason="end_turn"))

    assert (state.status, state.queued_prompts) == ("running", 1)


def test_a_run_that_does_not_park_is_never_idle() -> None:
    """Between its last turn and its end it still runs, so that nobody who waits for it is told too early."""
    start = ev.RunStart(kind="single", backend="scripted", dir="/d", version="0")

    assert fold(start, *START[1:], ev.TurnEnd(stop_reason="end_turn")).status == "running"


def test_an_interrupted_turn_is_not_idle() -> None:
    """Only a clean end parks."""
    assert fold(*START, ev.TurnEnd(stop_reason="cancelled")).status == "running"


def test_usage_adds_up_over_the_turns_of_a_run() -> None:
    """Tokens and cost are sums; a cost that one turn lacks does not hide the other's."""
    end = ev.TurnEnd(stop_reason="end_turn", usage=Usage(input_tokens=3, total_tokens=5, cost_usd=0.5))
    again = ev.TurnEnd(stop_reason="end_turn", usage=Usage(input_tokens=4, total_tokens=4))
    more = ev.TurnEnd(stop_reason="end_turn", usage=Usage(cost_usd=0.25))

    assert Usage(input_tokens=7, total_tokens=9, cost_usd=0.75) == fold(*START, end, again, more).usage


def test_open_permissions_are_listed_until_each_is_answered() -> None:
    """Several may be open; the first is the one shown, and the turn waits."""
    both = fold(*START, ask("p1"), ask("p2"), ask("p1", "file"))

    assert [p.request_id for p in both.permissions] == ["p2", "p1"]
    assert both.permission == both.permissions[0]
    assert (both.turn_state, both.pending_permission, both.silent_for_ms) == ("permission", True, 0)
    assert both.wants_attention

    none = fold(
        *START, ask("p1"), ev.PermissionResponse(request_id="p1", option_id="once", kind="allow", source="control")
    )

    assert (
        none.permissions, none.permission, none.turn_state, none.pending_permission
    ) == ([], None, "running", False)  # fmt: skip


def test_a_permission_is_open_until_its_own_answer() -> None:
    """The end of a turn answers nothing: whoever still waits is shown."""
    state = fold(*START, ask("p1"), ev.TurnEnd(stop_reason="end_turn"))

    assert ([p.request_id for p in state.permissions], state.turn_state) == (["p1"], "ended")


def test_an_ended_run_tells_its_outcome() -> None:
    """`run.end` is the last word; nothing stays open."""
    state = fold(
        *START,
        ask("p1"),
        ev.SessionEnd(stop_reason="cancelled", left_processes=["7 stuck"]),
        ev.RunEnd(status="KILLED", exit_code=130, stop_reason="cancelled", reason="by c1"),
    )

    assert (
        state.status, state.outcome, state.exit_code, state.stop_reason, state.reason, state.ended_at,
        state.left_processes, state.permissions,
    ) == ("ended", "KILLED", 130, "cancelled", "by c1", 6000, ["7 stuck"], [])  # fmt: skip


def test_a_run_that_never_had_a_turn_says_so() -> None:
    """No turn is not an ended turn."""
    state = fold(START[0], ev.RunEnd(status="FAILED", exit_code=1, stop_reason="spawn_failed"))

    assert (state.status, state.turn_state) == ("ended", "none")


def test_a_retry_shows_which_attempt_comes() -> None:
    """Attempt and limit are there for an operator."""
    state = fold(*START, ev.TurnEnd(stop_reason="error", error="boom"),
                 ev.Retry(attempt=2, max_retries=3, delay_ms=2000, retry_class="crash"))  # fmt: skip

    assert (state.turn_state, state.retry_attempt, state.max_retries) == ("retrying", 2, 3)


def test_agent_status_and_phases_are_shown() -> None:
    """What the agent is at, and which phases ran."""
    state = fold(
        START[0],
        ev.PhaseStart(phase="plan", kind="pre", session_id="ses_1"),
        ev.AgentStatus(phase="working", source="agent", label="reading"),
        ev.PhaseEnd(phase="plan", kind="pre", iteration=0, stop_reason="end_turn", exit_code=0),
        ev.PhaseStart(phase="build", kind="loop", iteration=1),
    )

    assert (state.phase, state.phase_label) == ("working", "reading")
    assert [(p.name, p.state, p.iteration) for p in state.phases] == [("plan", "done", 0), ("build", "running", 1)]


def test_an_event_that_the_state_knows_nothing_of_is_counted() -> None:
    """As decoded events are that only tell of the time."""
    reducer = Fold(Snapshot())

    reducer.apply(ev.AgentNoise(text="x", seq=7, ts=9))

    assert (reducer.state.latest_seq, reducer.state.updated_at) == (7, 9)


def test_turns_of_parallel_sessions_are_told_apart() -> None:
    """While one goes on, the run is in a turn, and only the questions of the other are over."""
    state = fold(
        ev.RunStart(kind="team", backend="scripted", dir="/d", version="0"),
        ev.TeamStart(pre_phase_count=0, team_member_count=2, post_phase_count=0),
        ev.TurnStart(text="a", source="run", phase="a", session_id="s1"),
        ev.TurnStart(text="b", source="run", phase="b", session_id="s1"),
        ev.TurnEnd(stop_reason="end_turn", phase="a", session_id="s1", final_output="A"),
    )

    assert (state.kind, state.status, state.turn_state) == ("team", "running", "running")


def test_no_phase_runs_on_in_a_run_that_has_ended() -> None:
    """A runtime that was killed has not told the end of its phases."""
    state = fold(
        ev.PhaseStart(phase="plan", kind="pre"),
        ev.PhaseEnd(phase="plan", kind="pre", stop_reason="end_turn", exit_code=0),
        ev.PhaseStart(phase="build", kind="loop", iteration=1),
        ev.RunEnd(status="FAILED", exit_code=1, stop_reason="runtime_lost"),
    )

    assert [(p.name, p.state) for p in state.phases] == [("plan", "done"), ("build", "failed")]


def test_the_end_of_a_team_tells_what_it_has_to_say() -> None:
    """Which none of its turns does."""
    state = fold(
        ev.TurnEnd(stop_reason="end_turn", final_output="A"),
        ev.TeamEnd(exit_reason="end_turn", members_completed=1, members_aborted=0, final_output="## a\nA\n"),
    )

    assert state.final_output == "## a\nA\n"


def test_long_output_is_cut_and_said_to_be() -> None:
    """A snapshot stays small."""
    state = fold(*START, ev.TurnEnd(stop_reason="end_turn", final_output="x" * (OUTPUT_LIMIT_CHARS + 1)))

    assert state.final_output_truncated
    assert len(state.final_output or "") == OUTPUT_LIMIT_CHARS


def test_events_that_change_nothing_or_that_we_do_not_know_are_counted() -> None:
    """Chunks and events of a newer version move the counters only."""
    reducer = Fold(Snapshot())
    chunk = encode_event(ev.MessageChunk(seq=1, ts=5, content=Raw(b"{}")))
    reducer.apply_line(decode_head(chunk), chunk)
    reducer.apply_line(EventHead("new.kind", 2, 6), b'{"event":"new.kind","seq":2,"ts":6}')

    assert (reducer.state.latest_seq, reducer.state.updated_at) == (2, 6)


def test_every_key_is_always_there() -> None:
    """A snapshot's JSON never changes shape."""
    empty = msgspec.json.decode(msgspec.json.encode(Snapshot()))
    full = msgspec.json.decode(msgspec.json.encode(fold(*START, ask("p1"))))

    assert set(empty) == set(full)
    assert {
        "runtime_id", "run_id", "label", "kind", "session_id", "agent", "model", "backend", "dir", "status", "phase",
        "phase_label", "phases", "turn_state", "pending_permission", "permission", "permissions", "latest_seq", "usage",
        "retry_attempt", "max_retries", "queued_prompts", "silent_for_ms", "started_at", "updated_at", "ended_at",
        "outcome", "exit_code", "pid", "owner", "on_event", "sentinel_file", "final_output", "final_output_truncated",
        "parent_id", "children", "depth", "left_processes",
    } <= set(empty)  # fmt: skip


def test_a_run_that_goes_on_in_a_new_process_starts_again_and_asks_nothing() -> None:
    """Whoever ran a turn, or asked, is gone with the old process."""
    resumed = ev.RunResumed(cut="a turn", goes_on="session ses_1")
    state = fold(*START, ask("p1"), resumed)
    assert (state.status, state.turn_state, state.pending_permission) == ("starting", "none", False)


def test_a_parked_run_stays_parked_in_a_new_process() -> None:
    """Its last turn's outcome stands."""
    resumed = ev.RunResumed(cut="nothing", goes_on="parked")
    state = fold(*START, ev.TurnEnd(stop_reason="end_turn"), resumed)
    assert (state.status, state.outcome) == ("idle", "DONE")


def test_what_a_run_will_come_to_and_its_new_processes_are_remembered() -> None:
    """A supervisor asks for both when the process of the run was lost."""
    kept = Fold(Snapshot())
    kept.apply(ev.RunResumed(cut="nothing", goes_on="parked", ts=5))
    kept.apply(ev.RunEnding(status="KILLED", exit_code=130, stop_reason="cancelled"))
    assert kept.resumed_at == [5]
    assert kept.ending is not None
    assert kept.ending.status == "KILLED"


def test_what_a_rule_settles_at_once_is_never_pending() -> None:
    """Whoever waits for attention is not called for it; handed on to somebody, it is."""
    fold = Fold(Snapshot())
    asked: dict[str, Any] = {"request_id": "p1", "tool": "execute", "question": "?", "options": []}
    fold.apply(ev.PermissionRequest(resolver="automatic", **asked))
    assert not fold.state.wants_attention

    fold.apply(ev.PermissionRequest(resolver="control", **asked))
    assert fold.state.wants_attention
