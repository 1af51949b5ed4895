"""What the document that manifests are taken from says in passing: small statements, each held by a test."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.amounts import Amounts, Limits
from avenor.protocol.manifest.events import (
    CandidateEvent,
    JoinEvent,
    ManifestStart,
    ResultEvent,
    TaskEvent,
    VerdictEvent,
)
from avenor.protocol.manifest.ledger import Ledger
from avenor.protocol.manifest.model import AggregateBudget
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import (
    PINNED,
    PLANNER_TOOLS,
    Actor,
    ManifestRig,
    handoff,
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


# ---- the evaluator


async def test_the_evaluator_is_told_raw_receipts_and_not_what_the_writer_makes_of_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The contract, the candidate and the check's own output; no word of the worker's conclusion."""

    async def praises(actor: Actor) -> None:
        actor.session.say("It could not be better.")
        actor.write("src/retry.py")
        await actor.submit(claim="it is perfect", summary="accept it at once")

    rig = ManifestRig(tmp_path)
    rig.play(writer=praises)
    await rig.run()
    (prompt,) = rig.prompts("evaluator")
    assert "fix retry regression without changing the public API" in prompt
    assert "r2 (branch avenor/run_1/candidate)" in prompt
    assert "exit code: 0\npassed: yes" in prompt
    for conclusion in ("perfect", "at once", "better"):
        assert conclusion not in prompt


async def test_what_the_evaluator_has_in_common_with_others_is_in_the_trace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """So nobody takes their agreement for two independent votes."""
    rig = ManifestRig(
        tmp_path,
        manifest(
            member("planner", tools=PLANNER_TOOLS, family="f", contexts=["repository_map"]),
            member("writer", needs=["planner"], writes=["src/retry.py"], family="other", contexts=["candidate_branch"]),
            member("evaluator", needs=["writer"], family="f", **JUDGE),
        ),
    )
    await rig.run()
    (start,) = rig.only(ManifestStart)
    assert [(each.members, each.shared, each.value) for each in start.correlations] == [
        (["evaluator", "planner"], "family", "f")
    ]


async def test_a_verdict_of_another_member_counts_for_nothing_whatever_a_record_grants(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Only `evaluation.owner` names who judges; the loader refuses such a manifest, and the run would not go by it."""
    replies: list[ToolReply] = []

    async def judges_itself(actor: Actor) -> None:
        actor.write("src/retry.py")
        replies.append(await actor.judge("accept"))
        await actor.submit()

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("writer", writes=["src/retry.py"], tools=["submit_verdict"]),
            member("evaluator", needs=["writer"], **JUDGE),
        ),
    )
    rig.play(writer=judges_itself)
    await rig.run()
    assert [reply.is_error for reply in replies] == [True]
    assert "only the owner of the evaluation" in replies[0].text
    assert [event.attempt_id for event in rig.only(VerdictEvent)] == ["evaluator.1"]


# ---- revisions and epochs


async def test_whoever_comes_after_the_writer_looks_at_the_candidate_and_at_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A reviewer beside the checks works at r2, which the runner has accepted, and not at what came in last."""
    rig = ManifestRig(
        tmp_path,
        manifest(
            member("writer", writes=["src/retry.py"]),
            member("late_reader"),
            member("reviewer", needs=["writer", "late_reader"]),
            member("evaluator", needs=["reviewer"], **JUDGE),
        ),
    )
    await rig.run()
    assert rig.workshop.opened == {
        "writer.1": PINNED,
        "late_reader.1": PINNED,
        "reviewer.1": "r2",
        "evaluator.1": "r2",
    }


async def test_a_patch_that_belongs_to_an_older_plan_never_becomes_the_candidate(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is kept for audit, and for people on a branch; the writer begins anew by the new plan."""

    async def replans(actor: Actor) -> None:
        await trio.sleep(5)
        await actor.tool("replan", reason="the schema has changed")
        await actor.submit(plan_epoch=8)

    async def is_slow(actor: Actor) -> None:
        actor.write("src/retry.py")
        await trio.sleep(20)
        await actor.submit(plan_epoch=7)

    async def knows(actor: Actor) -> None:
        actor.write("src/retry.py")
        await actor.submit(plan_epoch=8)

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("planner", tools=PLANNER_TOOLS),
            member("writer", writes=["src/retry.py"]),
            member("evaluator", needs=["planner", "writer"], **JUDGE),
        ),
    )
    rig.play(planner=replans, writer=[is_slow, knows])
    assert (await rig.run()).exit_code == 0
    stale = [(event.attempt_id, event.result.plan_epoch) for event in rig.only(ResultEvent, status="stale")]
    assert stale == [("writer.1", 7)]
    assert [event.attempt_id for event in rig.only(CandidateEvent)] == ["writer.2"]
    assert rig.workshop.kept == ["avenor/run_1/lost/writer.1"]


async def test_a_join_takes_no_old_work_under_a_new_number(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What was begun by epoch 7 and says 8 is kept; the join has the attempt that was begun by 8."""

    async def replans(actor: Actor) -> None:
        await trio.sleep(1)
        await actor.tool("replan", reason="why not")
        await actor.submit(plan_epoch=8)

    async def pretends(actor: Actor) -> None:
        await trio.sleep(3)
        await actor.submit(claim="the old way", plan_epoch=8)

    async def knows(actor: Actor) -> None:
        await actor.submit(claim="the new way", plan_epoch=8)

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("planner", tools=PLANNER_TOOLS),
            member("reader"),
            member("writer", needs=["planner", "readers"], writes=["src/retry.py"], contexts=["joined_evidence"]),
            member("evaluator", needs=["writer"], **JUDGE),
            joins=[join("readers", "reader")],
        ),
    )
    rig.play(planner=replans, reader=[pretends, knows], writer=knows)
    assert (await rig.run()).exit_code == 0
    (joined,) = rig.only(JoinEvent)
    assert joined.accepted == {"reader": "reader.2"}
    assert [(each.attempt_id, each.reason) for each in joined.rejected] == [("reader.1", "stale_epoch")]
    (prompt,) = rig.prompts("writer")
    assert "the new way" in prompt
    assert "the old way" not in prompt


# ---- children


async def test_every_child_has_all_that_bounds_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Run, parent, task and attempt, revision, epoch, lease and deadline, before its agent is started."""

    async def manages(actor: Actor) -> None:
        await actor.tool("start_worker", member="specialist", contract="look")
        await actor.submit()

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("manager", tools=PLANNER_TOOLS, calls=8),
            member("specialist", callable_by=["manager"]),
            member("evaluator", needs=["manager"], **JUDGE),
            receipts=[],
        ),
    )
    rig.play(manager=manages)
    await rig.run()
    (start,) = rig.only(TaskEvent, state="started", task_id="specialist-2")
    parent = next(iter(rig.only(TaskEvent, state="started", task_id="manager")))
    assert (start.run_id, start.parent_task, start.attempt_id) == ("run_1", "manager", "specialist-2.1")
    assert (start.revision, start.plan_epoch) == (PINNED, 7)
    assert start.lease_until_ms - start.ts == pytest.approx(30_000, abs=1000)
    assert start.deadline_ms == parent.deadline_ms


async def test_a_specialist_that_comes_to_nothing_is_an_error_of_the_call(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Never an empty result: its caller is told, and goes on with what it knows."""
    replies: list[ToolReply] = []

    async def manages(actor: Actor) -> None:
        replies.append(await actor.tool("start_worker", member="specialist", contract="look"))
        await actor.submit()

    async def says_nothing(_actor: Actor) -> None:
        pass

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("manager", tools=PLANNER_TOOLS, calls=8),
            member("specialist", callable_by=["manager"]),
            member("evaluator", needs=["manager"], **JUDGE),
            receipts=[],
        ),
    )
    rig.play(**{"manager": manages, "specialist-2": says_nothing})
    assert (await rig.run()).exit_code == 0
    assert replies[0].is_error
    assert replies[0].text.startswith("specialist-2 has missing, and no result counts")


async def test_a_member_has_no_more_time_than_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its own seconds do not move the deadline of the run."""
    declared = seed(
        budget=AggregateBudget(
            model_calls=18, tool_calls=40, input_output_tokens=120000, cost_usd=1.2, deadline_seconds=40
        )
    )
    rig = ManifestRig(tmp_path, declared)
    await rig.run()
    (start,) = rig.only(ManifestStart)
    first = rig.only(TaskEvent, state="started")[0]
    assert first.task_id == "planner"  # which has 60 s of its own
    assert first.deadline_ms == start.deadline_ms


async def test_a_retry_names_the_failure_that_it_follows(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The trace links the two: the loss has its reason, and what comes next says which attempt was lost."""

    async def dies(_actor: Actor) -> TurnStop:
        return TurnStop(stop_reason="agent_exited", error=TurnError(message="signal 9", failure_class="crash"))

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[dies, reads])
    assert (await rig.run()).exit_code == 0
    (lost,) = rig.only(TaskEvent, task_id="test_reader", state="lost")
    again = rig.only(TaskEvent, task_id="test_reader", state="created")[-1]
    assert (lost.attempt_id, lost.reason) == ("test_reader.1", "signal 9")
    assert again.reason == "another attempt: test_reader.1 was lost"
    assert again.permitted_by == "members[2].budget"


# ---- hand-offs


def _handing() -> Any:
    return manifest(
        member("intake", tools=["hand_off"]),
        member(
            "controller",
            tools=["accept_handoff", "reject_handoff"],
            writes=["runbook.md"],
            contexts=["handoff_record"],
        ),
        member("evaluator", needs=["controller"], **JUDGE),
        handoffs=[handoff("intake", "controller")],
    )


async def test_the_record_of_a_handoff_says_what_its_receiver_may_do_and_why_it_gets_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Beside contract, summary, revision and rest: authority, reason, receipts and effects that are under way."""

    async def hands_over(actor: Actor) -> None:
        await actor.tool("hand_off", to="controller", summary="down", reason="it has the runbooks", pending_effects=[])

    async def takes(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=hands_over, controller=takes)
    await rig.run()
    (prompt,) = rig.prompts("controller")
    record = json.loads(prompt.partition("## handoff_record\n\n")[2].partition("\n\n## ")[0])
    assert record["authority"] == ["read_file", "runbook.md"]
    assert record["reason"] == "it has the runbooks"
    assert (record.get("receipts", []), record.get("pending_effects", [])) == ([], [])


async def test_who_has_handed_over_has_no_result_any_more(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It does not go on with an answer of its own beside the new owner."""
    replies: list[ToolReply] = []

    async def hands_over_and_goes_on(actor: Actor) -> None:
        await actor.tool("hand_off", to="controller", summary="down", reason="it has the runbooks", pending_effects=[])
        replies.append(await actor.submit(claim="I know better"))

    async def takes(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await trio.sleep(5)
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=hands_over_and_goes_on, controller=takes)
    assert (await rig.run()).exit_code == 0
    assert replies[0].is_error
    assert [event.attempt_id for event in rig.only(ResultEvent, status="accepted")] == ["controller.1"]


# ---- credentials


async def test_credentials_are_worth_nothing_once_the_attempt_has_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Each attempt's are revoked before the next member starts, however it ended."""
    rig = ManifestRig(tmp_path)
    seen: list[list[str]] = []

    async def looks(actor: Actor) -> None:
        seen.append(list(rig.desk.revoked))
        await actor.judge("accept")

    rig.play(evaluator=looks)
    await rig.run()
    assert sorted(seen[0]) == ["implementation_reader.1", "planner.1", "test_reader.1", "writer.1"]
    assert set(rig.desk.admitted) == set(rig.desk.revoked)


async def test_a_member_that_ends_by_its_deadline_loses_its_credentials_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Also one that does not listen."""

    async def is_deaf(_actor: Actor) -> None:
        await trio.sleep_forever()

    rig = ManifestRig(tmp_path)
    rig.play(planner=is_deaf)
    assert (await rig.run()).exit_code == 124
    assert rig.desk.revoked.count("planner.1") >= 1


async def test_who_is_being_ended_can_use_no_tool_any_more(tmp_path: Path, autojump_clock: MockClock) -> None:
    """In the grace it may finish what it says; it plans nothing, and starts nobody."""
    replies: list[ToolReply] = []

    async def goes_on(actor: Actor) -> None:
        await actor.session.cancelled.wait()
        replies.append(await actor.tool("replan", reason="more time"))
        replies.append(await actor.tool("start_worker", member="test_reader", contract="look"))

    rig = ManifestRig(tmp_path)
    rig.play(planner=goes_on)
    assert (await rig.run()).exit_code == 124
    assert [reply.is_error for reply in replies] == [True, True]
    assert rig.state.plan_epoch == 7
    assert rig.started() == ["planner.1"]


# ---- money


def test_working_at_the_same_time_saves_time_and_no_money() -> None:
    """Three readers of 0.18, 0.27 and 0.11 dollars and a join of 0.09 cost 0.65, in whatever order they run."""
    ledger = Ledger(Limits(cost_usd=1.0))
    for name, cost in (("a", 0.18), ("b", 0.27), ("c", 0.11), ("join", 0.09)):
        reserved = ledger.reserve(name, "run", Limits(cost_usd=cost), permitted_by="x")
        assert isinstance(reserved, Event)
        ledger.apply(reserved)
        ledger.apply(ledger.debit(name, Amounts(cost_usd=cost), source="gateway", permitted_by="x"))
    assert ledger.accounts["run"].used.cost_usd == pytest.approx(0.65)


# ---- what is left behind


async def test_useful_findings_stay_attached_when_a_sibling_ends_the_run(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One branch proves the contract impossible: its sibling is cancelled with the reason, what was found is kept."""

    async def gives_up(actor: Actor) -> None:
        await trio.sleep(1)
        await actor.submit(claim="the API forbids it", blocked="the contract contradicts itself")

    rig = ManifestRig(
        tmp_path,
        manifest(
            member("early"),
            member("thorough"),
            member("hopeless"),
            member("evaluator", needs=["early", "thorough", "hopeless"], **JUDGE),
            receipts=[],
        ),
    )
    rig.play(early=reads, thorough=hangs, hopeless=gives_up, writer=writes)
    assert (await rig.run()).exit_code == 5
    assert [event.attempt_id for event in rig.only(ResultEvent, status="accepted")] == ["early.1", "hopeless.1"]
    cancelled = rig.only(TaskEvent, task_id="thorough")[-1]
    assert cancelled.state == "cancelled"
    assert "the contract contradicts itself" in cancelled.reason
    assert "the contract contradicts itself" in str(rig.end.reason)
