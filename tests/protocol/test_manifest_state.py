"""The state of a manifest run is a fold over its events."""

from pathlib import Path

from avenor.protocol.events import Event, RunStart, decode_event
from avenor.protocol.manifest.amounts import Amounts, Limits
from avenor.protocol.manifest.events import (
    AuthorityEvent,
    BudgetEvent,
    CandidateEvent,
    HandoffEvent,
    JoinEvent,
    LeaseEvent,
    ManifestEnd,
    ManifestStart,
    PlanEvent,
    ReceiptEvent,
    ResultEvent,
    TaskEvent,
    TaskWord,
    VerdictEvent,
)
from avenor.protocol.manifest.records import Finding, Result
from avenor.protocol.manifest.state import ManifestState

GOLDEN = Path(__file__).parent.parent / "data" / "events.ndjson"
RESULT = Result(source_revision="r1", plan_epoch=7, findings=[Finding(subject="s", claim="c", finding="f")])


def _start() -> ManifestStart:
    return ManifestStart(
        team_id="t",
        source_revision="git:r1",
        revision="9f1c",
        plan_epoch=7,
        sandbox="none",
        metering={},
        limits=Limits(model_calls=9),
        deadline_ms=1000,
    )


def _task(state: TaskWord, number: int = 0, *, task: str = "reader", ts: int = 0, **more: object) -> TaskEvent:
    event = TaskEvent(task_id=task, state=state, permitted_by="p", member=task, plan_epoch=7, ts=ts)
    if number:
        event.attempt_id = f"{task}.{number}"
    for name, value in more.items():
        setattr(event, name, value)
    return event


def _state(*events: Event) -> ManifestState:
    state = ManifestState()
    for event in (_start(), *events):
        state.apply(event)
    return state


def test_before_the_start_there_is_nothing() -> None:
    """And an event of something else changes nothing."""
    state = ManifestState()
    state.apply(RunStart(kind="manifest", backend="b", dir="/", version="0"))

    assert (state.start, state.tasks, state.candidates, state.terminal) == (None, {}, [], None)


def test_the_start_gives_epoch_and_limits() -> None:
    """They are the manifest's."""
    state = _state()

    assert (state.plan_epoch, state.ledger.rest("run")) == (7, Limits(model_calls=9))


def test_a_conflict_pauses_the_run_while_nobody_works() -> None:
    """Until each was decided."""
    opened = [JoinEvent(join_id=join_id, state="conflict", permitted_by="p") for join_id in ("a", "b")]
    told = [*opened, *(JoinEvent(join_id=join_id, state="decided", permitted_by="p") for join_id in ("a", "b"))]
    assert [_state(*told[: number + 1]).is_paused for number in range(4)] == [True, True, True, False]
    assert not _state(told[0], _task("started", 1)).is_paused
    assert _state(told[0], _task("started", 1), _task("done", 1)).is_paused


def test_a_task_goes_through_its_attempts() -> None:
    """A lost attempt is followed by another under the same task; what each had is kept."""
    state = _state(
        _task("created", contract="look", paths=["a"], ts=1),
        _task("started", 1, ts=2, revision="9f1c", deadline_ms=99, lease_until_ms=30),
        LeaseEvent(attempt_id="reader.1", until_ms=40),
        LeaseEvent(attempt_id="stranger.1", until_ms=40),
        _task("lost", 1, ts=5, reason="its lease ran out", partial="refs/x"),
        _task("lost", 1, ts=6),
        _task("started", 2, ts=7),
    )
    task = state.tasks["reader"]
    first, second = task.attempts

    assert (task.contract, task.paths, task.created_ms, task.is_running, task.is_finished) == (
        "look",
        ["a"],
        1,
        True,
        False,
    )
    assert (first.number, first.state, first.revision, first.deadline_ms) == (1, "lost", "9f1c", 99)
    assert (first.lease_until_ms, first.reason, first.partial) == (40, "its lease ran out", "refs/x")
    assert (first.started_ms, first.ended_ms, first.is_over) == (2, 5, True)
    assert (second.number, second.ended_ms, second.is_over) == (2, None, False)
    assert state.running == [second]
    assert state.task_of("reader.2") is task
    assert state.task_of("stranger.1") is None


def test_what_counts_of_a_task_is_its_latest_accepted_result() -> None:
    """Stale ones are kept beside it."""

    def handed(number: int, status: str) -> ResultEvent:
        return ResultEvent(
            task_id="reader",
            attempt_id=f"reader.{number}",
            status=status,  # type: ignore[arg-type]
            permitted_by="p",
            result=RESULT,
        )

    state = _state(_task("started", 1), handed(1, "stale"))
    assert state.tasks["reader"].result is None

    for event in (handed(1, "accepted"), _task("done", 1), handed(9, "accepted")):
        state.apply(event)

    assert state.tasks["reader"].result == RESULT
    assert state.tasks["reader"].is_finished
    assert [each.status for each in state.results] == ["stale", "accepted", "accepted"]
    assert _state(_task("created")).tasks["reader"].result is None
    assert _state(_task("created")).tasks["reader"].latest is None


def test_children_are_found_by_their_parent() -> None:
    """With how deep they are."""
    state = _state(_task("created"), _task("created", task="extra", parent_task="reader", task_depth=1))

    assert [(task.task_id, task.depth) for task in state.children_of("reader")] == [("extra", 1)]


def test_what_was_denied_and_what_was_done_without_asking_is_the_attempts() -> None:
    """By the field that decided."""

    def held(decision: str, attempt: str = "reader.1") -> AuthorityEvent:
        return AuthorityEvent(
            attempt_id=attempt,
            tool="t",
            tool_kind="edit",
            decision=decision,  # type: ignore[arg-type]
            permitted_by=f"by {decision}",
        )

    state = _state(_task("started", 1), held("allow"), held("deny"), held("violation"), held("deny", "stranger.1"))
    attempt = state.attempt("reader.1")

    assert attempt is not None
    assert (attempt.denied, attempt.violations) == (["by deny"], ["by violation"])
    assert len(state.authority) == 4


def test_the_ledger_is_part_of_the_fold() -> None:
    """Debits are what is left."""
    debit = BudgetEvent(
        op="debit", account="run", source="agent", permitted_by="p", rest=Limits(), amounts=Amounts(model_calls=2)
    )

    assert _state(debit).ledger.rest("run") == Limits(model_calls=7)


def test_candidates_are_kept_in_order_and_receipts_go_by_revision() -> None:
    """Which of them counts depends on the plan, and is not for the fold to say."""

    def candidate(revision: str) -> CandidateEvent:
        return CandidateEvent(
            task_id="w", attempt_id="w.1", revision=revision, base="9f1c", files=[], digest="d", permitted_by="p"
        )

    def receipt(name: str, revision: str) -> ReceiptEvent:
        return ReceiptEvent(
            receipt_id=name, name=name, revision=revision, passed=True, digest="d", output="", permitted_by="p"
        )

    state = _state(candidate("r2"), receipt("one", "r2"), candidate("r3"), receipt("two", "r3"))

    assert [each.revision for each in state.candidates] == ["r2", "r3"]
    assert [each.receipt_id for each in state.receipts_of("r3")] == ["two"]


def test_repairs_plans_joins_handoffs_and_the_end_are_kept() -> None:
    """Of repairs those of an attempt that is done; of ends the first."""
    asked = [
        VerdictEvent(attempt_id=each, verdict="accept", revision="r2", counted_as="repair", permitted_by="p")
        for each in ("reader.1", "reader.2", "stranger.1")
    ]
    handoff = HandoffEvent(from_task="a", to_task="b", state="offered", permitted_by="p")
    accepted = HandoffEvent(from_task="a", to_task="b", state="accepted", permitted_by="p")
    state = _state(
        _task("started", 1),
        _task("missing", 1),
        _task("started", 2),
        *asked,
        _task("done", 2),
        PlanEvent(plan_epoch=8, reason="r", permitted_by="p"),
        JoinEvent(join_id="j", state="missing", permitted_by="p"),
        handoff,
        accepted,
        ManifestEnd(state="rejected", permitted_by="p"),
        ManifestEnd(state="cancelled", permitted_by="p"),
    )

    assert (state.repairs, state.plan_epoch, len(state.plans)) == (1, 8, 1)
    assert state.joins["j"].state == "missing"
    assert state.handoffs["a", "b"] is accepted
    assert state.terminal == "rejected"


def test_a_handoff_that_was_accepted_is_of_the_attempt_that_made_it() -> None:
    """Not of the next one at the same task."""

    def handoff(state: str) -> HandoffEvent:
        return HandoffEvent(from_task="reader", to_task="b", state=state, permitted_by="p")  # type: ignore[arg-type]

    handed = [_task("created"), handoff("accepted"), _task("started", 1), handoff("offered"), handoff("accepted")]
    state = _state(*handed, _task("started", 2), handoff("rejected"))

    assert [each.handed_to for each in state.tasks["reader"].attempts] == ["b", None]


def test_the_golden_events_fold() -> None:
    """A log that this version has written loads in later ones."""
    state = ManifestState()
    for line in GOLDEN.read_bytes().splitlines():
        state.apply(decode_event(line))

    assert state.terminal == "accepted"
    assert state.tasks["writer"].attempts[0].denied == ["members[3].tools"]
