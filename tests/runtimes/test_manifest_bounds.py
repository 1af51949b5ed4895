"""Budgets, losses, stops, deadlines, cancelling and resuming of a manifest's run, in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.events import PermissionRequest, Usage
from avenor.protocol.manifest.amounts import Amounts
from avenor.protocol.manifest.events import BudgetEvent, LeaseEvent, ResultEvent, TaskEvent
from avenor.protocol.manifest.model import AggregateBudget
from avenor.protocol.manifest.roster import Prices
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.endings import Cause
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import (
    PLANNER_TOOLS,
    Act,
    Actor,
    ManifestRig,
    accepts,
    hangs,
    join,
    manifest,
    member,
    reads,
    seed,
    writes,
)
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]

JUDGE: dict[str, Any] = {"verdict": True, "contexts": ["task_contract"]}


async def crashes(_actor: Actor) -> TurnStop:
    """Its process dies."""
    return TurnStop(stop_reason="agent_exited", error=TurnError(message="signal 9", failure_class="crash"))


async def says_nothing(_actor: Actor) -> None:
    """Hands nothing over."""


# ---- the ledger


async def test_every_member_is_reserved_its_budget_before_anything_starts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """And what a task leaves goes back when it ends; a prompt is a call where no gateway counts."""
    rig = ManifestRig(tmp_path)
    await rig.run()
    kinds = [(event.op, event.account) for event in rig.only(BudgetEvent)]
    names = ["planner", "implementation_reader", "test_reader", "writer", "evaluator"]
    assert kinds[:5] == [("reserve", name) for name in names]
    assert kinds.index(("release", "planner")) < kinds.index(("debit", "test_reader"))
    assert [event.amounts for event in rig.debits("planner") if event.source == "agent"] == [Amounts(model_calls=1)]
    assert rig.state.ledger.accounts["run"].used.model_calls == 5


async def test_what_an_agent_reports_is_charged_with_its_prices(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Tokens and money of members without a gateway are as their agents tell."""

    async def costs(actor: Actor) -> TurnStop:
        await actor.submit()
        return TurnStop(
            stop_reason="end_turn", usage=Usage(input_tokens=1000, output_tokens=500, cached_read_tokens=500)
        )

    prices = Prices(input_per_million=2.0, output_per_million=10.0, cached_read_per_million=1.0)
    declared = manifest(member("reader", prices=prices), member("evaluator", needs=["reader"], **JUDGE), receipts=[])
    rig = ManifestRig(tmp_path, declared)
    rig.play(reader=costs)
    await rig.run()
    used = rig.state.ledger.accounts["reader"].used
    assert (used.tokens, used.cost_usd) == (2000, 0.0075)


async def test_a_call_beyond_the_budget_does_not_happen_and_the_run_says_which_budget(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The gateway is told no, a warning came at four fifths, and the run ends for it."""
    answers: list[str | None] = []

    async def calls(actor: Actor) -> TurnStop:
        assert actor.rig.meter is not None
        for _ in range(6):
            answers.append(await actor.rig.meter.may_call(actor.attempt_id))
            actor.rig.meter.called(actor.attempt_id, input_tokens=10, output_tokens=5, cached_read_tokens=0)
        return TurnStop(stop_reason="error", error=TurnError(message="429 budget_exhausted"))

    declared = manifest(
        member("reader", endpoint=True, calls=5), member("evaluator", needs=["reader"], **JUDGE), receipts=[]
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(reader=calls)
    outcome = await rig.run()
    assert answers[:5] == [None] * 5
    assert answers[5] == "budget_exhausted: model_calls of reader: 1 wanted, 0 left"
    assert (outcome.stop_reason, outcome.exit_code, rig.end.permitted_by) == (
        "budget_exhausted",
        6,
        "members[0].budget",
    )
    warned = rig.only(BudgetEvent, op="warn", account="reader")
    assert [event.unit for event in warned] == ["model_calls"]
    assert rig.state.ledger.accounts["run"].used.model_calls == 5
    assert rig.history("reader").count("started") == 1


async def test_the_limit_of_the_run_holds_for_all_its_members(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What one uses beyond its own is not there for the next, whatever that was promised."""

    async def takes_all(actor: Actor) -> TurnStop:
        await actor.submit()
        return TurnStop(stop_reason="end_turn", usage=Usage(input_tokens=50_000, output_tokens=10))

    budget = AggregateBudget(
        model_calls=18, tool_calls=40, input_output_tokens=1500, cost_usd=1.2, deadline_seconds=480
    )
    declared = manifest(
        member("reader", tokens=500),
        member("other", needs=["reader"], tokens=500),
        member("evaluator", needs=["other"], tokens=500, **JUDGE),
        receipts=[],
        budget=budget,
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(reader=takes_all)
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.reason) == (
        6,
        "other: budget_exhausted: tokens of run: 1 wanted, 0 left",
    )
    assert [event.permitted_by for event in rig.only(BudgetEvent, op="block")] == ["run.aggregate_budget"]
    assert [event.source for event in rig.debits("other")] == ["clock"]


async def test_an_attempt_has_one_model_call_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """So that no more than one goes beyond the limit; what waits is refused when that one has used up the rest."""
    answers: list[str | None] = []

    async def calls_at_once(actor: Actor) -> TurnStop:
        meter = actor.rig.meter
        assert meter is not None

        async def call(tokens: int) -> None:
            answer = await meter.may_call(actor.attempt_id)
            answers.append(answer)
            if answer is None:
                await trio.sleep(1)
                meter.called(actor.attempt_id, input_tokens=tokens, output_tokens=0, cached_read_tokens=0)

        await call(0)
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(call, 1000)
        return TurnStop(stop_reason="error", error=TurnError(message="429 budget_exhausted"))

    declared = manifest(
        member("reader", endpoint=True, calls=15, tokens=1010),
        member("evaluator", needs=["reader"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(reader=calls_at_once)
    assert (await rig.run()).exit_code == 6
    assert answers == [None, None, None, *["budget_exhausted: tokens of reader: 1 wanted, 0 left"] * 6]
    assert rig.state.ledger.accounts["reader"].used.tokens == 2000


async def test_time_that_comes_near_its_end_is_told_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Of an attempt and of the run: at four fifths of what there is before somebody is asked to end."""
    told: list[list[str]] = []

    def warned() -> list[str]:
        return [event.account for event in rig.only(BudgetEvent, op="warn", unit="seconds", source="clock")]

    async def is_slow(actor: Actor) -> None:
        for seconds in (63.9, 0.2, 7.8, 0.2, 7.8):
            await trio.sleep(seconds)
            told.append(warned())
        await actor.submit()

    budget = AggregateBudget(model_calls=18, tool_calls=40, input_output_tokens=120000, deadline_seconds=95)
    declared = manifest(
        member("reader", seconds=85), member("evaluator", needs=["reader"], **JUDGE), receipts=[], budget=budget
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(reader=is_slow)
    assert (await rig.run()).exit_code == 0
    assert told == [[], ["reader"], ["reader"], ["reader", "run"], ["reader", "run"]]


async def test_time_is_looked_at_where_nobody_works(tmp_path: Path, autojump_clock: MockClock) -> None:
    """While the checks of a candidate run there is no attempt whose time could be the next to be over."""
    rig = ManifestRig(tmp_path)
    rig.workshop.may_check = trio.Event()

    async def take_long() -> None:
        await trio.sleep(420)
        assert [event.account for event in rig.only(BudgetEvent, op="warn", unit="seconds")] == ["run"]
        rig.workshop.may_check.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_long)
        assert (await rig.run()).exit_code == 0


async def test_an_attempt_that_has_handed_over_is_ended_where_it_would_go_on_without_budget(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its last word is no failure: it is refused, told once, and the turn is over."""

    async def talks_on(actor: Actor) -> TurnStop:
        assert actor.rig.meter is not None
        assert await actor.rig.meter.may_call(actor.attempt_id) is None
        await actor.judge("accept")
        for _ in range(6):
            assert await actor.rig.meter.may_call(actor.attempt_id) is not None
        return await hangs(actor)

    declared = manifest(
        member("reader"), member("evaluator", needs=["reader"], endpoint=True, calls=1, **JUDGE), receipts=[]
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(evaluator=talks_on)
    began = trio.current_time()
    assert (await rig.run()).exit_code == 0
    assert trio.current_time() - began < 10
    assert len(rig.only(BudgetEvent, op="block")) == 1
    assert rig.history("evaluator")[-1] == "done"


async def test_a_tool_call_that_did_not_ask_and_is_too_much_cuts_the_attempt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """An agent that does not ask is ended where its tool calls are used up."""

    async def uses(actor: Actor) -> TurnStop:
        for number in range(9):
            actor.use(f"read {number}")
        return await hangs(actor)

    rig = ManifestRig(tmp_path)
    rig.play(planner=uses)
    outcome = await rig.run()
    assert outcome.exit_code == 6
    assert rig.state.tasks["planner"].attempts[0].reason.startswith("budget_exhausted: tool_calls of planner")


async def test_a_tool_of_avenor_is_paid_for_and_refused_when_nothing_is_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """But handing over is free."""
    replies: list[ToolReply] = []

    async def reads_on(actor: Actor) -> None:
        for _ in range(9):
            replies.append(await actor.tool("read_receipt"))
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=reads_on)
    assert (await rig.run()).exit_code == 0
    assert [reply.is_error for reply in replies] == [False] * 8 + [True]


async def test_the_numbers_of_the_seed_a_worker_beyond_the_rest_of_its_parent_never_starts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Of 18 calls 3 plan and 3 judge; two readers of 4 leave 4 for the writer, and a fifth is refused."""
    replies: list[ToolReply] = []

    async def manages(actor: Actor) -> None:
        for name, calls in (("reader", 4), ("reader", 4), ("reader", 5), ("reader", 4)):
            budget = {"model_calls": calls, "tool_calls": 1, "tokens": 100}
            replies.append(await actor.tool("start_worker", member=name, contract="look", budget=budget, wait=False))
        await trio.sleep(5)
        await actor.submit()

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS, calls=15),
        member("reader", calls=5, callable_by=["manager"]),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(**{"manager": manages, "reader-2": hangs, "reader-3": hangs, "reader-4": hangs})
    await rig.run()
    # One call is the manager's own prompt.
    assert [reply.is_error for reply in replies] == [False, False, False, True]
    assert replies[3].text.startswith("budget_exhausted: model_calls of manager: 4 wanted, 1 left")
    assert [each for each in rig.state.tasks if each.startswith("reader")] == ["reader-2", "reader-3", "reader-4"]


async def test_a_nested_child_spends_its_parents_budget_and_with_it_the_run_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Delegation cannot make calls out of nothing: what the child of a child uses is gone for all above it."""

    async def delegates(actor: Actor) -> None:
        await actor.tool("start_worker", member="bottom", contract="look closer")
        assert actor.rig.meter is not None
        assert await actor.rig.meter.may_call(actor.attempt_id) is not None

    async def burns(actor: Actor) -> None:
        assert actor.rig.meter is not None
        while await actor.rig.meter.may_call(actor.attempt_id) is None:
            actor.rig.meter.called(actor.attempt_id, input_tokens=1, output_tokens=1, cached_read_tokens=0)

    async def stuck(actor: Actor) -> TurnStop:
        await actor.tool("start_worker", member="middle", contract="look")
        assert actor.rig.meter is not None
        assert await actor.rig.meter.may_call(actor.attempt_id) is not None
        return TurnStop(stop_reason="error", error=TurnError(message="429"))

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS, calls=4, endpoint=True),
        member("middle", tools=PLANNER_TOOLS, calls=4, callable_by=["manager"], endpoint=True),
        member("bottom", calls=4, callable_by=["middle"], endpoint=True),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(**{"manager": stuck, "middle-2": delegates, "bottom-2": burns})
    outcome = await rig.run()
    assert outcome.exit_code == 6
    accounts = rig.state.ledger.accounts
    assert [accounts[name].used.model_calls for name in ("bottom-2", "middle-2", "manager", "run")] == [4, 4, 4, 4]
    assert accounts["bottom-2"].parent == "middle-2"
    assert {event.account for event in rig.only(BudgetEvent, op="debit") if event.source == "gateway"} == {"bottom-2"}


# ---- losses


async def test_a_lost_reader_begins_anew_under_a_new_attempt_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What the lost attempt has used stays charged; the rest comes from what the run has left."""
    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[crashes, reads])
    assert (await rig.run()).exit_code == 0
    assert rig.history("test_reader") == ["created", "started", "lost", "created", "started", "submitted", "done"]
    assert [each.attempt_id for each in rig.state.tasks["test_reader"].attempts] == ["test_reader.1", "test_reader.2"]
    assert rig.state.ledger.accounts["test_reader"].used.model_calls == 2


async def test_a_reader_that_is_lost_again_and_again_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Three losses are enough; the join acts as declared."""
    rig = ManifestRig(tmp_path)
    rig.play(test_reader=crashes)
    await rig.run()
    assert rig.history("test_reader").count("started") == 3
    assert rig.history("test_reader")[-1] == "failed"
    assert rig.end.permitted_by == "joins[0].on_missing"


async def test_a_lost_writer_is_reconciled_before_another_attempt(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its effect is unknown; what it has left is kept aside, and the next attempt starts from the pinned revision."""

    async def writes_and_crashes(actor: Actor) -> TurnStop:
        actor.write("src/retry.py")
        return await crashes(actor)

    rig = ManifestRig(tmp_path)
    rig.play(writer=[writes_and_crashes, writes])
    assert (await rig.run()).exit_code == 0
    assert rig.history("writer")[:6] == ["created", "started", "effect_unknown", "reconciled", "created", "started"]
    assert rig.workshop.kept == ["avenor/run_1/lost/writer.1"]
    (reconciled,) = rig.only(TaskEvent, state="reconciled")
    assert reconciled.partial == "avenor/run_1/lost/writer.1"
    assert rig.workshop.opened["writer.2"] == rig.workshop.opened["writer.1"]
    assert rig.workshop.closed.index("writer.1") < rig.workshop.closed.index("writer.2")


@pytest.mark.parametrize(("files", "told"), [([], "as it was"), (["src/other.py"], "outside what it may write")])
async def test_what_a_lost_writer_may_not_have_written_is_not_kept(
    tmp_path: Path, autojump_clock: MockClock, files: list[str], told: str
) -> None:
    """Unchanged, or outside its rights: nothing of it stays, and another attempt follows."""

    async def crashes_first(actor: Actor) -> TurnStop:
        actor.write(*files)
        return await crashes(actor)

    rig = ManifestRig(tmp_path)
    rig.play(writer=[crashes_first, writes])
    assert (await rig.run()).exit_code == 0
    assert rig.workshop.kept == []
    assert told in rig.only(TaskEvent, state="reconciled")[0].reason


async def test_a_permanent_failure_is_not_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A refused configuration stays refused."""

    async def cannot(_actor: Actor) -> TurnStop:
        return TurnStop(stop_reason="error", error=TurnError(message="no such model", permanent=True))

    rig = ManifestRig(tmp_path)
    rig.play(planner=cannot)
    outcome = await rig.run()
    assert rig.history("planner") == ["created", "started", "failed"]
    assert (outcome.exit_code, str(outcome.reason)) == (5, "no result: planner: no such model")


async def test_leases_are_renewed_while_an_agent_lives(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Thirty seconds, renewed every ten."""

    async def takes_long(actor: Actor) -> None:
        await trio.sleep(35)
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=takes_long)
    assert (await rig.run()).exit_code == 0
    # One more is for the clean-up.
    assert len(rig.only(LeaseEvent, attempt_id="planner.1")) == 4


async def test_an_agent_that_is_gone_loses_its_lease(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its process is dead, though its turn never ends: nobody renews, and the attempt counts as lost."""

    async def dies(actor: Actor) -> TurnStop:
        actor.session.exited.set()
        await trio.sleep_forever()
        raise AssertionError

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[dies, reads])
    assert (await rig.run()).exit_code == 0
    assert rig.history("test_reader")[2] == "lost"
    assert rig.state.tasks["test_reader"].attempts[0].reason == "its lease has run out"


async def test_what_a_lost_attempt_has_said_is_late(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It is kept for audit; only the attempt that follows counts."""

    async def says_and_dies(actor: Actor) -> TurnStop:
        record: dict[str, Any] = {"source_revision": actor.revision, "plan_epoch": 7}
        record["findings"] = [{"subject": "s", "claim": "c", "finding": "f"}]
        actor.session.say(f"```avenor-result\n{json.dumps(record)}\n```\n")
        actor.session.exited.set()
        await trio.sleep_forever()
        raise AssertionError

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[says_and_dies, reads])
    assert (await rig.run()).exit_code == 0
    found = [(event.attempt_id, event.status) for event in rig.only(ResultEvent, task_id="test_reader")]
    assert sorted(found) == [("test_reader.1", "late"), ("test_reader.2", "accepted")]


# ---- stops


async def test_the_same_tool_call_with_the_same_result_three_times_is_no_progress(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The run is rejected, and says which tool."""

    async def repeats(actor: Actor) -> TurnStop:
        for _ in range(3):
            actor.use("read src/retry.py", "same")
        return await hangs(actor)

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=repeats)
    outcome = await rig.run()
    assert (outcome.stop_reason, outcome.exit_code) == ("rejected", 1)
    assert str(outcome.reason).startswith("no_progress: test_reader")


async def test_another_result_or_a_change_in_between_is_progress(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only what comes to the same counts, and nothing from before a change."""

    async def works(actor: Actor) -> None:
        for result in ("1", "1", "2"):
            actor.use("run tests", result)
        actor.use("edit", kind="edit")
        for result in ("1", "1"):
            actor.use("run tests", result)
        await writes(actor)

    rig = ManifestRig(tmp_path)
    rig.play(writer=works)
    assert (await rig.run()).exit_code == 0


async def test_denied_authority_without_which_a_member_has_no_result_needs_a_person(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The field that decided is the one that the run ends by."""

    async def asks(actor: Actor) -> None:
        assert (await actor.session.ask()).option_id == "reject"

    rig = ManifestRig(tmp_path)
    rig.deny = {"shell"}
    rig.play(test_reader=asks)
    outcome = await rig.run()
    assert (outcome.exit_code, rig.end.permitted_by) == (5, "members[2].tools")


async def test_a_denial_that_a_member_goes_on_without_stops_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It has handed over its result all the same."""

    async def asks(actor: Actor) -> None:
        await actor.session.ask()
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.deny = {"shell"}
    rig.play(test_reader=asks)
    assert (await rig.run()).exit_code == 0


async def test_a_write_outside_never_becomes_a_candidate(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The diff is the proof: a violation is recorded, and a person is needed."""

    async def strays(actor: Actor) -> None:
        actor.write("src/retry.py", "setup.py")
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(writer=strays)
    outcome = await rig.run()
    assert (outcome.exit_code, rig.end.permitted_by) == (5, "members[3].allowed_writes")
    assert rig.state.candidates == []
    assert [each.detail for each in rig.state.authority if each.decision == "violation"] == ["setup.py"]


async def test_without_a_sandbox_a_reader_that_writes_is_found_by_the_diff(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Where nothing holds it back, the proof is made for readers too."""

    async def strays(actor: Actor) -> None:
        actor.write("src/retry.py")
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.workshop.is_sandboxed = False
    rig.play(planner=strays)
    assert (await rig.run()).exit_code == 5
    assert rig.history("planner")[-1] == "failed"


# ---- time


async def test_an_attempt_is_asked_to_end_before_its_deadline_and_made_to_at_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The grace is within its seconds; what an agent leaves that does not listen is not waited for."""
    asked_at: list[float] = []

    async def ignores(actor: Actor) -> TurnStop:
        await actor.session.cancelled.wait()
        asked_at.append(trio.current_time() - began)
        await trio.sleep_forever()
        raise AssertionError

    rig = ManifestRig(tmp_path)
    rig.play(planner=ignores)
    began = trio.current_time()
    outcome = await rig.run()
    assert asked_at == [55.0]
    assert trio.current_time() - began <= 60.0
    assert (outcome.status, outcome.exit_code) == ("TIMEOUT", 124)
    assert rig.history("planner") == ["created", "started", "timed_out"]
    assert rig.end.permitted_by == "members[0].budget.seconds"


async def test_a_child_has_no_more_time_than_its_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nested delegation makes no time: the child's deadline is its parent's."""

    async def manages(actor: Actor) -> None:
        await trio.sleep(50)
        await actor.tool("start_worker", member="test_reader", contract="look", budget={"model_calls": 1})

    rig = ManifestRig(tmp_path)
    rig.play(**{"planner": manages, "test_reader-2": hangs})
    await rig.run()
    parent, child = rig.state.tasks["planner"].attempts[0], rig.state.tasks["test_reader-2"].attempts[0]
    assert child.deadline_ms == parent.deadline_ms
    assert child.state in ("timed_out", "cancelled")


async def test_a_worker_has_no_more_time_than_it_was_given(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`seconds` of a worker's budget count."""

    async def manages(actor: Actor) -> None:
        budget = {"model_calls": 1, "seconds": 10}
        reply = await actor.tool("start_worker", member="test_reader", contract="look", budget=budget)
        assert "timed out" in reply.text
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(**{"planner": manages, "test_reader-2": hangs})
    assert (await rig.run()).exit_code == 0


async def test_the_deadline_of_the_run_ends_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """However much its members have left; the clean-up is over by then."""
    budget = AggregateBudget(model_calls=18, tool_calls=40, input_output_tokens=120000, deadline_seconds=40)
    rig = ManifestRig(tmp_path, seed(budget=budget))
    rig.play(planner=hangs)
    began = trio.current_time()
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == ("TIMEOUT", "timeout")
    assert trio.current_time() - began <= 40
    assert rig.end.permitted_by == "run.aggregate_budget.deadline_seconds"


async def test_the_timeout_of_the_run_is_a_terminal_state_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`--timeout` ends a manifest as it ends any run."""
    rig = ManifestRig(tmp_path, timeout=20.0)
    rig.play(planner=hangs)
    outcome = await rig.run()
    assert (outcome.status, rig.end.state) == ("TIMEOUT", "timed_out")


# ---- cancelling and losing the process


async def test_a_cancel_reaches_every_member_and_is_told_before_it_does(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Every attempt that runs is cancelled; partial work of a writer stays."""

    async def half_writes(actor: Actor) -> TurnStop:
        actor.write("src/retry.py")
        return await hangs(actor)

    rig = ManifestRig(tmp_path)
    rig.play(writer=half_writes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.until(lambda: "writer.1" in rig.desk.admitted)
        rig.host.end(Cause(stop_reason="cancelled", reason="somebody said so"))
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.exit_code) == ("KILLED", 130)
    assert (rig.end.state, rig.end.reason) == ("cancelled", "somebody said so")
    assert rig.history("writer")[-1] == "cancelled"
    assert rig.state.tasks["writer"].attempts[0].partial == "avenor/run_1/lost/writer.1"
    names = [type(event).__name__ for event in rig.events]
    assert names.index("RunEnding") < names.index("ManifestEnd") < names.index("RunEnd")


def _claims(subject: str) -> Act:
    async def act(actor: Actor) -> None:
        await actor.submit(subject=subject, claim=actor.attempt_id)

    return act


async def test_no_deadline_passes_while_a_person_thinks_about_one_conflict_of_two(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Also where something goes on between two long thoughts; the time of that work counts."""
    declared = manifest(
        *(member(name, seconds=20) for name in ("r1", "r2", "r3", "r4")),
        member("late", needs=["j1"], seconds=20),
        member("evaluator", needs=["late", "j2"], seconds=20, **JUDGE),
        joins=[join("j1", "r1", "r2"), join("j2", "r3", "r4")],
        receipts=[],
        budget=AggregateBudget(model_calls=18, tool_calls=48, input_output_tokens=120000, deadline_seconds=60),
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(r1=_claims("a"), r2=_claims("a"), r3=_claims("b"), r4=_claims("b"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.until(lambda: bool(rig.only(PermissionRequest)))
        for joined in ("j1", "j2"):
            await trio.sleep(10_000)
            (asked,) = rig.only(PermissionRequest, tool=f"join {joined}")
            rig.host.broker.answer(asked.request_id, "side_1", None)
            await rig.until(lambda: rig.history("late")[-1] == "done" or rig.state.end is not None)
    assert rig.end.state == "accepted"


async def test_a_question_that_was_open_when_the_process_was_lost_is_asked_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """However long ago that was."""
    rig = ManifestRig(tmp_path)
    rig.play(implementation_reader=_claims("s"), test_reader=_claims("s"))
    with trio.move_on_after(5):
        await rig.run()
    _cut_log(rig, before="RunEnding")
    _put_back(rig, seconds=10_000)
    rig.again()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.until(lambda: len(rig.only(PermissionRequest)) == 2 or rig.state.end is not None)
        await trio.sleep(10_000)
        rig.host.broker.answer(rig.only(PermissionRequest)[-1].request_id, "side_1", None)
    assert rig.end.state == "accepted"


async def test_a_cancel_while_a_person_is_asked_ends_the_question(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nothing waits for an answer that would count no more."""

    async def claims(actor: Actor) -> None:
        await actor.submit(subject="s", claim=actor.attempt_id)

    rig = ManifestRig(tmp_path)
    rig.play(implementation_reader=claims, test_reader=claims)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(5)
        rig.host.end(Cause(stop_reason="cancelled", reason="no"))
    assert rig.end.state == "cancelled"


async def test_a_new_process_goes_on_from_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What was finished stands; readers that ran are lost and begin anew, under other attempt ids."""
    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[hangs, reads])
    with trio.move_on_after(3):
        await rig.run()
    assert rig.started() == ["planner.1", "implementation_reader.1", "test_reader.1"]
    _cut_log(rig, before="RunEnding")
    rig.again()
    outcome = await rig.run()
    assert outcome.exit_code == 0
    assert rig.started()[3:] == ["test_reader.2", "writer.1", "evaluator.1"]
    assert rig.history("planner").count("started") == 1
    assert "gone" in rig.state.tasks["test_reader"].attempts[0].reason


async def test_a_writer_that_ran_when_the_process_was_lost_is_reconciled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nobody knows what it has done, so its worktree is looked at before it begins anew."""

    async def half_writes(actor: Actor) -> TurnStop:
        actor.write("src/retry.py")
        return await hangs(actor)

    rig = ManifestRig(tmp_path)
    rig.play(writer=[half_writes, writes])
    with trio.move_on_after(3):
        await rig.run()
    _cut_log(rig, before="RunEnding")
    rig.again()
    assert (await rig.run()).exit_code == 0
    assert rig.history("writer")[2:5] == ["effect_unknown", "reconciled", "created"]
    assert rig.workshop.kept[-1] == "avenor/run_1/lost/writer.1"


async def test_a_terminal_state_is_not_decided_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A process lost between the terminal state and the end of the run comes to the same."""
    rig = ManifestRig(tmp_path)
    await rig.run()
    _cut_log(rig, before="RunEnd")
    rig.again()
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.stop_reason) == (0, "accepted")
    assert rig.started().count("planner.1") == 1


@pytest.mark.parametrize("kept", range(2, 80, 3))
async def test_a_run_may_be_lost_after_any_event_and_is_accepted_all_the_same(
    tmp_path: Path, autojump_clock: MockClock, kept: int
) -> None:
    """The log cut anywhere: the fold decides as the lost process would have, a repair in between included."""

    async def asks_for_repair(actor: Actor) -> None:
        await actor.judge("repair" if actor.revision == "r2" else "accept", failed_criterion="names")

    rig = ManifestRig(tmp_path)
    rig.play(evaluator=asks_for_repair)
    await rig.run()
    lines = rig.log_path.read_bytes().splitlines(keepends=True)
    rig.log_path.write_bytes(b"".join(lines[:kept]))
    rig.workshop.revisions = 1 + len(rig.state.candidates)
    rig.again()
    assert (await rig.run()).exit_code == 0
    assert rig.state.repairs == 1
    assert rig.state.ledger.rest_of("run", "model_calls") == 18 - rig.state.ledger.accounts["run"].used.model_calls


def _put_back(rig: ManifestRig, *, seconds: int) -> None:
    """Makes all that has happened so much older."""
    lines = [json.loads(line) for line in rig.log_path.read_bytes().splitlines()]
    for line in lines:
        for name in ("ts", "deadline_ms"):
            if name in line:
                line[name] -= seconds * 1000
    rig.log_path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _cut_log(rig: ManifestRig, *, before: str) -> None:
    """What a killed process has left: nothing from the first event of this name on."""
    names = [type(event).__name__ for event in rig.events]
    lines = rig.log_path.read_bytes().splitlines(keepends=True)
    cut = names.index(before) if before in names else len(lines)
    rig.log_path.write_bytes(b"".join(lines[:cut]))


async def test_the_repair_is_not_begun_where_its_judge_cannot_be_paid(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A change that nobody could judge is worth nothing: the last in the graph is reserved first."""

    async def asks_for_repair(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    declared = manifest(
        member("writer", writes=["src/retry.py"], calls=1),
        member("evaluator", needs=["writer"], calls=1, **JUDGE),
        budget=AggregateBudget(model_calls=3, tool_calls=40, input_output_tokens=120000, deadline_seconds=480),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(writer=writes, evaluator=[asks_for_repair, accepts])
    outcome = await rig.run()
    assert outcome.exit_code == 6
    assert rig.history("writer").count("started") == 1
    assert rig.end.reason is not None
    assert "no other attempt at writer" in str(rig.end.reason)
