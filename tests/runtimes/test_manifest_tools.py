"""The tools that avenor offers to members: giving out work, replanning, reading, handing over, in virtual time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from avenor.protocol.manifest.binding import BoundMember, ResolvedManifest
from avenor.protocol.manifest.events import AuthorityEvent, HandoffEvent, JoinEvent, PlanEvent, ResultEvent, TaskEvent
from avenor.protocol.manifest.model import Join
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import (
    PINNED,
    PLANNER_TOOLS,
    Act,
    Actor,
    ManifestRig,
    accepts,
    handoff,
    hangs,
    join,
    manifest,
    member,
    reads,
    writes,
)
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]

JUDGE: dict[str, Any] = {"verdict": True, "contexts": ["task_contract"]}


# ---- giving out work


async def test_a_manager_gets_a_specialists_result_as_the_answer_of_its_tool(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The specialist is isolated: its own contract, its caller's revision, and no other word."""
    replies: list[ToolReply] = []

    async def manages(actor: Actor) -> None:
        actor.session.say("my own thoughts")
        replies.append(
            await actor.tool("start_worker", member="inspect_logs", contract="look at 10:00 to 10:05", paths=["logs"])
        )
        await actor.submit()

    async def inspects(actor: Actor) -> None:
        assert actor.revision == PINNED
        await actor.submit(claim="the pool is empty")

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS, calls=10),
        member("inspect_logs", contexts=["assigned_paths"], callable_by=["manager"]),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(**{"manager": manages, "inspect_logs-2": inspects})
    assert (await rig.run()).exit_code == 0
    answer = json.loads(replies[0].text)
    assert answer["task_id"] == "inspect_logs-2"
    assert answer["result"]["findings"][0]["claim"] == "the pool is empty"
    (prompt,) = rig.prompts("inspect_logs-2")
    assert "look at 10:00 to 10:05" in prompt
    assert "## assigned_paths\n\nlogs" in prompt
    assert "thoughts" not in prompt
    assert "public API" not in prompt  # the manager's contract is none of its business
    (started,) = rig.only(TaskEvent, task_id="inspect_logs-2", state="started")
    assert (started.parent_task, started.task_depth, started.permitted_by) == ("manager", 1, "members[1].callable_by")


async def test_nobody_delegates_deeper_than_two(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A member's worker may start one more, and that one nobody."""
    replies: list[ToolReply] = []

    async def delegates(actor: Actor) -> None:
        replies.append(await actor.tool("start_worker", member="helper", contract="go on"))
        await actor.submit()

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS, calls=15),
        member("helper", tools=PLANNER_TOOLS, callable_by=["manager", "helper"]),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(**dict.fromkeys(("manager", "helper-2", "helper-3"), delegates))
    assert (await rig.run()).exit_code == 0
    assert [reply.is_error for reply in replies] == [True, False, False]
    assert "nobody delegates deeper than 2" in replies[0].text
    assert rig.state.tasks["helper-3"].depth == 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nobody", "there is no member nobody"),
        ("writer", "nobody starts a writer"),
        ("patcher", "nobody starts a writer"),
        ("evaluator", "started by the scheduler alone"),
        ("planner", "started by the scheduler alone"),
        ("special", "callable by writer"),
    ],
)
async def test_only_what_may_help_is_started_as_a_worker(
    tmp_path: Path, autojump_clock: MockClock, name: str, told: str
) -> None:
    """Nobody starts a second writer, a second judge, itself, an unknown member, or another's specialist."""
    replies: list[ToolReply] = []

    async def starts(actor: Actor) -> None:
        replies.append(await actor.tool("start_worker", member=name, contract="go on"))
        await actor.submit()

    declared = manifest(
        member("planner", tools=PLANNER_TOOLS),
        member("writer", needs=["planner"], writes=["src/retry.py"]),
        member("special", callable_by=["writer"]),
        member("patcher", callable_by=["planner"], writes=["src/other.py"]),
        member("evaluator", needs=["writer"], **JUDGE),
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(planner=starts)
    assert (await rig.run()).exit_code == 0
    assert replies[0].is_error
    assert told in replies[0].text
    assert len(rig.state.tasks) == 3


async def test_a_worker_ends_with_whoever_has_started_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its result could change nothing any more: it is cancelled, and what it has not used goes back."""

    async def starts(actor: Actor) -> None:
        await actor.tool("start_worker", member="test_reader", contract="look", budget={"model_calls": 1}, wait=False)
        await trio.sleep(2)
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(**{"planner": starts, "test_reader-2": hangs})
    assert (await rig.run()).exit_code == 0
    child = rig.state.tasks["test_reader-2"]
    assert (child.state, child.attempts[0].reason) == ("cancelled", "planner, which has started it, has ended")
    assert not rig.state.ledger.accounts["test_reader-2"].is_open


async def test_a_worker_can_be_cancelled_by_whoever_has_started_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And by nobody else; one that has ended, or never was, cannot."""
    replies: list[ToolReply] = []

    async def starts(actor: Actor) -> None:
        await actor.tool("start_worker", member="test_reader", contract="look", budget={"model_calls": 1}, wait=False)
        await trio.sleep(2)
        for name in ("test_reader-2", "test_reader-2", "test_reader"):
            replies.append(await actor.tool("cancel_worker", task_id=name, reason="not needed"))
            await trio.sleep(1)
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(**{"planner": starts, "test_reader-2": hangs})
    assert (await rig.run()).exit_code == 0
    assert [reply.is_error for reply in replies] == [False, True, True]
    assert rig.state.tasks["test_reader-2"].attempts[0].reason == "not needed"


CRASHED = TurnStop(stop_reason="agent_exited", error=TurnError(message="signal 9", failure_class="crash"))


async def test_a_lost_worker_begins_anew_and_its_caller_waits_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The loss is the child's; its parent gets the result of the second attempt."""
    replies: list[ToolReply] = []

    async def dies(_actor: Actor) -> TurnStop:
        return CRASHED

    async def starts(actor: Actor) -> None:
        replies.append(await actor.tool("start_worker", member="test_reader", contract="look"))
        await actor.submit()

    declared = manifest(
        member("planner", tools=PLANNER_TOOLS, calls=10),
        member("test_reader", needs=["planner"]),
        member("evaluator", needs=["test_reader"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    again: list[Act] = [dies, reads]
    rig.play(planner=starts)
    rig.play(**{"test_reader-2": again})
    assert (await rig.run()).exit_code == 0
    assert not replies[0].is_error
    assert [each.attempt_id for each in rig.state.tasks["test_reader-2"].attempts] == [
        "test_reader-2.1",
        "test_reader-2.2",
    ]


@pytest.mark.parametrize(("name", "told"), [("nobody", "no member nobody"), ("planner", "started already")])
async def test_a_contract_is_for_a_declared_member_that_waits(
    tmp_path: Path, autojump_clock: MockClock, name: str, told: str
) -> None:
    """An unknown one is refused, and so is one that works by its contract already."""
    replies: list[ToolReply] = []

    async def creates(actor: Actor) -> None:
        replies.append(await actor.tool("create_task", member=name, contract="do this"))
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=creates)
    assert (await rig.run()).exit_code == 0
    assert told in replies[0].text


async def test_an_undeclared_tool_is_refused_and_recorded(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With the field that decided."""

    async def tries(actor: Actor) -> None:
        assert (await actor.tool("replan", reason="why not")).is_error
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=tries)
    assert (await rig.run()).exit_code == 0
    (denied,) = rig.only(AuthorityEvent)
    assert (denied.tool, denied.decision, denied.permitted_by) == ("replan", "deny", "members[2].tools")
    assert rig.only(PlanEvent) == []


async def test_arguments_that_do_not_fit_are_explained(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The agent hears what is wrong, and may call again."""

    async def tries(actor: Actor) -> None:
        reply = await actor.tool("start_worker", contract="x")
        assert reply.is_error
        assert "member" in reply.text
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=tries)
    assert (await rig.run()).exit_code == 0


# ---- replanning


async def test_a_replan_makes_what_was_begun_before_it_stale_and_it_is_done_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A slow reader of epoch 7 is kept for audit; its second attempt works by epoch 8, and only that is joined."""

    async def plans(actor: Actor) -> None:
        await trio.sleep(3)
        await actor.tool("replan", reason="the schema has changed")
        await actor.submit(plan_epoch=8)

    async def is_slow(actor: Actor) -> None:
        await trio.sleep(5)
        assert "stale_epoch: 7, expected 8" in (await actor.submit(plan_epoch=7)).text

    async def is_new(actor: Actor) -> None:
        assert "your plan epoch is 8" in actor.text
        await actor.submit(plan_epoch=8)

    declared = manifest(
        member("planner", tools=PLANNER_TOOLS),
        member("early"),
        member("slow"),
        member("writer", needs=["reader_join"], writes=["src/retry.py"]),
        member("evaluator", needs=["writer"], **JUDGE),
        joins=[join("reader_join", "planner", "early", "slow")],
    )

    async def writes_new(actor: Actor) -> None:
        actor.write("src/retry.py")
        await actor.submit(plan_epoch=8)

    rig = ManifestRig(tmp_path, declared)
    rig.play(planner=plans, early=[reads, is_new], slow=[is_slow, is_new], writer=writes_new)
    outcome = await rig.run()
    assert outcome.exit_code == 0
    (plan,) = rig.only(PlanEvent)
    assert (plan.plan_epoch, plan.attempt_id, plan.permitted_by) == (8, "planner.1", "members[0].tools[3]")
    assert [event.status for event in rig.only(ResultEvent, task_id="slow")] == ["stale", "accepted"]
    joined = rig.only(JoinEvent)[-1]
    assert joined.accepted == {"planner": "planner.1", "early": "early.2", "slow": "slow.2"}
    assert {(each.task_id, each.reason) for each in joined.rejected} == {
        ("early", "stale_epoch"),
        ("slow", "stale_epoch"),
    }
    assert rig.state.tasks["early"].attempts[1].plan_epoch == 8


async def test_a_new_number_on_old_work_does_not_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An attempt that was started under epoch 7 cannot say that it has worked by 8."""

    async def plans(actor: Actor) -> None:
        await trio.sleep(1)
        await actor.tool("replan", reason="why not")
        await actor.submit(plan_epoch=8)

    async def pretends(actor: Actor) -> None:
        await trio.sleep(3)
        assert (await actor.submit(plan_epoch=8)).is_error

    async def is_new(actor: Actor) -> None:
        await actor.submit(plan_epoch=8)

    declared = manifest(
        member("planner", tools=PLANNER_TOOLS),
        member("reader"),
        member("evaluator", needs=["planner", "reader"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(planner=plans, reader=[pretends, is_new])
    assert (await rig.run()).exit_code == 0
    assert rig.history("reader").count("started") == 2


async def test_what_led_to_the_new_plan_stands(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A result that the planner has worked upon is not done anew."""

    async def plans(actor: Actor) -> None:
        await actor.tool("replan", reason="the schema has changed")
        await actor.submit(plan_epoch=8)

    declared = manifest(
        member("scout"),
        member("planner", needs=["scout_join"], tools=PLANNER_TOOLS),
        member("evaluator", needs=["planner"], **JUDGE),
        joins=[join("scout_join", "scout")],
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(planner=plans)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["scout.1", "planner.1", "evaluator.1"]


# ---- reading


async def test_the_evaluator_reads_diff_receipts_and_results(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Raw, as they were recorded."""
    read: dict[str, str] = {}

    async def judges(actor: Actor) -> None:
        for name, arguments in (
            ("read_diff", {}),
            ("read_test_receipt", {"name": "focused_tests"}),
            ("read_receipt", {"task_id": "writer"}),
            ("read_receipt", {"task_id": "nobody"}),
            ("read_receipt", {"name": "focused_tests"}),
        ):
            read[f"{name} {arguments}"] = (await actor.tool(name, **arguments)).text
        await actor.judge("accept")

    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("evaluator", needs=["writer"], tools=["read_diff", "read_test_receipt", "read_receipt"], **JUDGE),
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(evaluator=judges)
    assert (await rig.run()).exit_code == 0
    texts = list(read.values())
    assert texts[0] == f"diff {PINNED}..r2"
    assert "exit code: 0\npassed: yes" in texts[1]
    assert json.loads(texts[2])["tasks"][0]["result"]["findings"][0]["subject"] == "writer.1"
    assert texts[3] == "There is no task nobody; there are writer, evaluator."
    assert [each["receipt_id"] for each in json.loads(texts[4])["receipts"]] == ["receipt-1"]


# ---- hand-offs


def _handing(
    on_reject: str = "return",
    *,
    others: Sequence[BoundMember] = (),
    sender_writes: Sequence[str] = (),
    looks: Sequence[str] = (),
    writes: Sequence[str] = (),
    judged: str = "controller",
    joins: Sequence[Join] = (),
) -> ResolvedManifest:
    """Intake may hand over to the controller, whom the evaluator waits for."""
    return manifest(
        member("intake", tools=["hand_off"], writes=sender_writes),
        member(
            "controller", tools=["accept_handoff", "reject_handoff", *looks], writes=writes, contexts=["handoff_record"]
        ),
        *others,
        member("evaluator", needs=[judged], **JUDGE),
        handoffs=[handoff("intake", "controller", on_reject)],
        joins=list(joins),
        receipts=[],
    )


def _result_block(claim: str) -> str:
    findings = [{"subject": "s", "claim": claim, "finding": "f"}]
    record = {"source_revision": PINNED, "plan_epoch": 7, "findings": findings}
    return f"```avenor-result\n{json.dumps(record)}\n```\n"


async def _hands_over(actor: Actor) -> None:
    reply = await actor.tool(
        "hand_off", to="controller", summary="the database is down", reason="it has the runbooks", pending_effects=["x"]
    )
    if reply.is_error:
        await actor.submit(summary=reply.text)


async def test_a_handoff_ends_one_owner_where_the_next_has_accepted(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The record holds all that it takes to go on; the sender has no result of its own to give."""

    async def takes_over(actor: Actor) -> None:
        assert rig.state.tasks["intake"].is_running  # its lease is not released before
        await actor.tool("accept_handoff")
        await trio.sleep(2)
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=_hands_over, controller=takes_over)
    assert (await rig.run()).exit_code == 0
    assert [event.state for event in rig.only(HandoffEvent)] == ["offered", "accepted"]
    assert rig.history("intake")[-1] == "done"
    assert rig.state.tasks["intake"].attempts[0].reason == "handed over to controller"
    (prompt,) = rig.prompts("controller")
    record = json.loads(prompt.partition("## handoff_record\n\n")[2].partition("\n\n## ")[0])
    assert record["summary"] == "the database is down"
    assert record["contract"].startswith("fix retry regression")
    assert (record["source_revision"], record["plan_epoch"]) == (PINNED, 7)
    assert record["pending_effects"] == ["x"]
    assert record["rest"]["model_calls"] == 3


async def test_a_rejected_handoff_returns_to_the_sender(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It is still its owner, and ends the work itself; who was not needed is not waited for."""

    async def refuses(actor: Actor) -> None:
        await actor.tool("reject_handoff", reason="not my database")
        assert (await actor.submit()).text == "you have rejected the task: end your turn"

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=_hands_over, controller=refuses)
    assert (await rig.run()).exit_code == 0
    assert rig.history("intake")[-1] == "done"
    assert rig.only(HandoffEvent)[-1].reason == "not my database"


async def test_a_rejected_handoff_may_need_a_person(tmp_path: Path, autojump_clock: MockClock) -> None:
    """As the manifest says."""

    async def refuses(actor: Actor) -> None:
        await actor.tool("reject_handoff", reason="not my database")

    rig = ManifestRig(tmp_path, _handing("needs_human"))
    rig.play(intake=_hands_over, controller=refuses)
    outcome = await rig.run()
    assert (outcome.exit_code, rig.end.permitted_by) == (5, "handoffs[0].on_reject")


async def test_a_receiver_that_comes_to_nothing_has_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The sender does not wait for an answer that nobody will give."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    rig = ManifestRig(tmp_path, _handing("needs_human"))
    rig.play(intake=_hands_over, controller=says_nothing)
    assert (await rig.run()).exit_code == 5
    assert rig.only(HandoffEvent)[-1].state == "rejected"


async def test_a_receiver_that_comes_to_nothing_leaves_it_where_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Where the manifest says so, the sender goes on, and may hand over once more."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await actor.submit()

    async def offers_twice(actor: Actor) -> None:
        asked = {"to": "controller", "summary": "s", "reason": "r"}
        assert "controller has missing" in (await actor.tool("hand_off", **asked)).text
        assert not (await actor.tool("hand_off", **asked)).is_error

    rig = ManifestRig(tmp_path, _handing())
    late: list[Act] = [says_nothing, says_nothing, takes_over]
    rig.play(intake=offers_twice, controller=late)
    assert (await rig.run()).exit_code == 0
    assert rig.history("controller").count("started") == 2
    assert [event.record.rest.model_calls for event in rig.only(HandoffEvent, state="offered")] == [3, 3]


async def test_an_offer_of_a_sender_that_is_gone_is_withdrawn(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whoever considers it is ended and asked again when it is offered again."""

    async def offers_and_dies(actor: Actor) -> TurnStop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hands_over, actor)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        return CRASHED

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing("needs_human"))
    again: list[Act] = [offers_and_dies, _hands_over]
    late: list[Act] = [hangs, takes_over]
    rig.play(intake=again, controller=late)
    assert (await rig.run()).exit_code == 0
    assert [event.state for event in rig.only(HandoffEvent)] == ["offered", "rejected", "offered", "accepted"]
    assert rig.started() == ["intake.1", "controller.1", "intake.2", "controller.2", "evaluator.1"]


async def test_who_has_handed_over_composes_no_answer_beside_the_new_owner(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Neither by tool nor by message: what it says then is late."""

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await trio.sleep(5)
        await actor.submit()

    async def talks_on(actor: Actor) -> None:
        await _hands_over(actor)
        assert (await actor.submit()).text == "the task is controller's now: end your turn"
        actor.session.say(_result_block("c"))

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=talks_on, controller=takes_over)
    assert (await rig.run()).exit_code == 0
    assert [event.status for event in rig.only(ResultEvent, task_id="intake")] == ["late"]
    assert rig.state.tasks["intake"].result is None


async def test_a_handoff_is_answered_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Who has accepted cannot accept or reject again, and who has handed over cannot do it twice."""
    replies: list[str] = []

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        replies.append((await actor.tool("accept_handoff")).text)
        replies.append((await actor.tool("reject_handoff", reason="after all not")).text)
        await trio.sleep(5)
        await actor.submit()

    async def hands_over_twice(actor: Actor) -> None:
        await _hands_over(actor)
        replies.append((await actor.tool("hand_off", to="controller", summary="s", reason="r")).text)

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=hands_over_twice, controller=takes_over)
    assert (await rig.run()).exit_code == 0
    assert sorted(replies, key=len, reverse=True) == [
        "the task is controller's now: end your turn",
        "nothing is offered to you",
        "nothing is offered to you",
    ]


async def test_what_was_not_accepted_is_not_the_receivers(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It may look before it answers; what it does as an owner is refused, counts for nothing, and is no answer."""
    replies: list[ToolReply] = []

    async def takes_without_asking(actor: Actor) -> None:
        actor.write("runbook.md")
        replies.append(await actor.tool("read_receipt"))
        replies.append(await actor.submit())
        actor.session.say(_result_block("recovery"))

    rig = ManifestRig(tmp_path, _handing("needs_human", looks=["read_receipt"], writes=["runbook.md"]))
    rig.play(intake=_hands_over, controller=takes_without_asking)
    outcome = await rig.run()
    assert (outcome.exit_code, rig.end.permitted_by) == (5, "handoffs[0].on_reject")
    refused = "call accept_handoff first, or reject_handoff: the task is not yours yet"
    assert [(each.is_error, each.text == refused) for each in replies[:2]] == [(False, False), (True, True)]
    assert [event.state for event in rig.only(HandoffEvent)] == ["offered", "rejected"]
    assert {event.status for event in rig.only(ResultEvent, task_id="controller")} == {"late"}
    assert rig.state.candidates == []
    assert rig.workshop.kept == ["avenor/run_1/lost/controller.1"]
    (session,) = [each for each in rig.backend.sessions if each.params.cwd.endswith("controller.1")]
    assert "late: you have not accepted the task" in session.prompts[1]  # it may still do so


async def test_a_task_is_offered_to_one_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Two who accept at once would both own it."""
    replies: dict[str, ToolReply] = {}

    async def offers_to_both(actor: Actor) -> None:
        async def offer(to: str) -> None:
            replies[to] = await actor.tool("hand_off", to=to, summary="s", reason="r")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(offer, "database")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(offer, "network")

    async def takes_over(actor: Actor) -> None:
        await trio.sleep(1)
        await actor.tool("accept_handoff")
        await actor.submit()

    answers: dict[str, Any] = {"tools": ["accept_handoff", "reject_handoff"], "contexts": ["handoff_record"]}
    declared = manifest(
        member("intake", tools=["hand_off"]),
        member("database", **answers),
        member("network", **answers),
        member("evaluator", needs=["database", "network"], **JUDGE),
        handoffs=[handoff("intake", "database"), handoff("intake", "network")],
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(intake=offers_to_both, database=takes_over, network=takes_over)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["intake.1", "database.1", "evaluator.1"]
    assert not replies["database"].is_error
    assert replies["network"].text == "database has not answered yet: it may still accept"


async def test_who_has_a_result_hands_nothing_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its result ends the work: an offer that is still open is withdrawn, and no other one is made."""
    replies: list[str] = []

    async def changes_its_mind(actor: Actor) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hands_over, actor)
            await trio.sleep(1)
            await actor.submit()
            assert rig.tools is not None
            replies.append((await rig.tools.call("controller.1", "accept_handoff", b"{}")).text)
        replies.append((await actor.tool("hand_off", to="controller", summary="s", reason="r")).text)

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=changes_its_mind, controller=hangs)
    assert (await rig.run()).exit_code == 0
    assert sorted(replies) == ["nothing is offered to you", "you have handed over your result already"]
    assert [event.state for event in rig.only(HandoffEvent)] == ["offered", "rejected"]
    assert rig.history("intake")[-2:] == ["submitted", "done"]


async def test_a_worker_does_not_hand_over_what_is_its_callers(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It has the tools of its member, and a piece of another's task."""
    replies: list[str] = []

    async def tries(actor: Actor) -> None:
        replies.append((await actor.tool("hand_off", to="controller", summary="s", reason="r")).text)
        await actor.submit()

    async def delegates(actor: Actor) -> None:
        await actor.tool("start_worker", member="intake", contract="look", budget={"model_calls": 1})
        await actor.submit()

    declared = _handing(others=[member("planner", tools=PLANNER_TOOLS)])
    rig = ManifestRig(tmp_path, declared)
    rig.play(**{"planner": delegates, "intake": reads, "intake-2": tries})
    assert (await rig.run()).exit_code == 0
    assert replies == ["your task is a part of that of planner, which alone may hand it over"]
    assert rig.only(HandoffEvent) == []


@pytest.mark.parametrize("writing", [[], ["notes.md"]], ids=["reader", "writer"])
async def test_a_task_that_was_handed_over_stays_so_when_the_process_is_lost(
    tmp_path: Path, autojump_clock: MockClock, writing: list[str]
) -> None:
    """The sender had not ended its turn: it does not begin anew beside the new owner, who does."""

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await trio.sleep(5)
        await actor.submit()

    async def lingers(actor: Actor) -> None:
        await _hands_over(actor)
        await trio.sleep(20)

    rig = ManifestRig(tmp_path, _handing(sender_writes=writing))
    rig.play(intake=lingers, controller=takes_over)
    await rig.run()
    lines = rig.log_path.read_bytes().splitlines(keepends=True)
    accepted = next(number for number, event in enumerate(rig.events) if getattr(event, "state", "") == "accepted")
    rig.log_path.write_bytes(b"".join(lines[: accepted + 1]))
    rig.again()
    rig.play(controller=reads)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["intake.1", "controller.1", "controller.2", "evaluator.1"]
    assert rig.history("intake")[-1] == "done"
    assert rig.state.tasks["intake"].attempts[0].reason == "handed over to controller"


async def test_a_handoff_ends_with_the_plan_under_which_it_was_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The sender has the task again, and who had it is ended; it may be handed over anew."""

    async def replans(actor: Actor) -> None:
        await trio.sleep(5)
        await actor.tool("replan", reason="the schema has changed")
        await actor.submit(plan_epoch=8)

    async def takes_over(actor: Actor) -> TurnStop:
        await actor.tool("accept_handoff")
        return await hangs(actor)

    async def does_it_itself(actor: Actor) -> None:
        await actor.submit(plan_epoch=8)

    declared = _handing(others=[member("planner", tools=PLANNER_TOOLS)])
    rig = ManifestRig(tmp_path, declared)
    acts: list[Act] = [_hands_over, does_it_itself]
    rig.play(planner=replans, intake=acts, controller=takes_over)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["intake.1", "planner.1", "controller.1", "intake.2", "evaluator.1"]
    assert rig.state.tasks["controller"].attempts[0].state == "cancelled"


async def test_no_join_counts_what_was_said_after_handing_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The answer of who gave the task away is missing, whatever it says."""

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await trio.sleep(5)
        await actor.submit()

    async def answers_all_the_same(actor: Actor) -> None:
        await _hands_over(actor)
        actor.session.say(_result_block("mine"))

    declared = _handing(judged="both", joins=[join("both", "intake", "controller")])
    rig = ManifestRig(tmp_path, declared)
    rig.play(intake=answers_all_the_same, controller=takes_over)
    assert (await rig.run()).exit_code == 5
    assert rig.end.reason == "both: no result that counts of intake"


async def test_one_writer_hands_over_to_another(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What the first has changed is no part of the candidate: it is kept aside, and the other begins without it."""

    async def gives_up(actor: Actor) -> None:
        actor.write("notes.md")
        await _hands_over(actor)
        await trio.sleep(2)

    async def takes_over(actor: Actor) -> None:
        assert actor.revision == PINNED
        await actor.tool("accept_handoff")
        actor.write("runbook.md")
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing(sender_writes=["notes.md"], writes=["runbook.md"]))
    rig.play(intake=gives_up, controller=takes_over)
    assert (await rig.run()).exit_code == 0
    assert [(each.task_id, each.files) for each in rig.state.candidates] == [("controller", ["runbook.md"])]
    assert rig.state.tasks["intake"].attempts[0].partial == "avenor/run_1/lost/intake.1"


async def test_who_has_made_the_candidate_mends_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Not the receiver of a hand-off that was not needed."""

    async def does_it_itself(actor: Actor) -> None:
        actor.write("notes.md")
        await actor.submit()

    async def wants_more(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    rig = ManifestRig(tmp_path, _handing(sender_writes=["notes.md"], writes=["runbook.md"]))
    verdicts: list[Act] = [wants_more, accepts]
    rig.play(intake=does_it_itself, evaluator=verdicts)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["intake.1", "evaluator.1", "intake.2", "evaluator.2"]
    assert ["Mend this, and nothing else:\nnames" in prompt for prompt in rig.prompts("intake")] == [False, True]


async def test_where_nobody_has_written_nobody_is_asked_to_mend(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The one who might have was not needed: there is nothing that another attempt would change."""

    async def wants_more(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    rig = ManifestRig(tmp_path, _handing(writes=["runbook.md"]))
    rig.play(intake=reads, evaluator=wants_more)
    assert (await rig.run()).exit_code == 1
    assert (rig.end.state, rig.end.reason) == ("rejected", "names")
    assert rig.started() == ["intake.1", "evaluator.1"]


async def test_after_a_repair_before_it_a_handoff_is_made_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its sender has the task again, and its receiver waits."""

    async def takes_over(actor: Actor) -> None:
        await actor.tool("accept_handoff")
        await actor.submit()

    async def wants_more(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("intake", needs=["writer"], tools=["hand_off"]),
        member("controller", tools=["accept_handoff", "reject_handoff"], contexts=["handoff_record"]),
        member("evaluator", needs=["controller"], **JUDGE),
        handoffs=[handoff("intake", "controller")],
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    senders: list[Act] = [_hands_over, reads]
    verdicts: list[Act] = [wants_more, accepts]
    rig.play(intake=senders, controller=takes_over, evaluator=verdicts)
    assert (await rig.run()).exit_code == 0
    expected = ["writer.1", "intake.1", "controller.1", "evaluator.1", "writer.2", "intake.2", "evaluator.2"]
    assert rig.started() == expected


async def test_of_those_who_are_not_needed_nobody_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whoever might have been handed over to by one of them is not needed either."""
    answers: dict[str, Any] = {"tools": ["accept_handoff", "reject_handoff"], "contexts": ["handoff_record"]}
    declared = manifest(
        member("intake", tools=["hand_off"]),
        member("controller", tools=["hand_off", *answers["tools"]], contexts=answers["contexts"]),
        member("specialist", **answers),
        member("evaluator", needs=["specialist"], **JUDGE),
        handoffs=[handoff("intake", "controller"), handoff("controller", "specialist")],
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(intake=reads)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["intake.1", "evaluator.1"]


async def test_a_join_misses_who_was_not_needed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It needs a result, and there will be none: it comes to what it declares."""
    declared = _handing(judged="recovered", joins=[join("recovered", "controller", on_missing="rejected")])
    rig = ManifestRig(tmp_path, declared)
    rig.play(intake=reads)
    assert (await rig.run()).exit_code == 1
    assert rig.end.permitted_by == "joins[0].on_missing"
    assert rig.end.reason == "recovered: no result that counts of controller"


async def test_a_handoff_goes_only_where_it_is_declared(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nobody else may be given the task, and nobody can accept what was not offered."""
    replies: list[ToolReply] = []

    async def tries(actor: Actor) -> None:
        replies.append(await actor.tool("hand_off", to="evaluator", summary="s", reason="r"))
        await actor.submit()

    rig = ManifestRig(tmp_path, _handing())
    rig.play(intake=tries)
    assert (await rig.run()).exit_code == 0
    assert "you may hand over to controller, not to evaluator" in replies[0].text
    assert rig.started() == ["intake.1", "evaluator.1"]


# ---- how much at once


async def test_no_more_run_at_once_than_was_said(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`--max-parallel` bounds what the scheduler starts; what a member waits for is not held back by it."""

    async def delegates(actor: Actor) -> None:
        await actor.tool("start_worker", member="test_reader", contract="look", budget={"model_calls": 1})
        await actor.submit()

    rig = ManifestRig(tmp_path, max_parallel=1)
    rig.play(planner=delegates)
    assert (await rig.run()).exit_code == 0
    order = [(event.task_id, event.state) for event in rig.only(TaskEvent) if event.state in ("started", "done")]
    one = ["implementation_reader", "test_reader"]
    assert order[:4] == [
        ("planner", "started"),
        ("test_reader-2", "started"),
        ("test_reader-2", "done"),
        ("planner", "done"),
    ]
    assert order[4:8] == [(name, state) for name in one for state in ("started", "done")]


async def test_writers_come_one_after_the_other_and_each_begins_with_what_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """They share one candidate: nobody starts from a revision that another is about to replace."""

    async def writes_other(actor: Actor) -> None:
        actor.write("src/other.py")
        await actor.submit()

    declared = manifest(
        member("one", writes=["src/retry.py"]),
        member("other", writes=["src/other.py"]),
        member("evaluator", needs=["one", "other"], **JUDGE),
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(one=writes, other=writes_other)
    assert (await rig.run()).exit_code == 0
    assert [rig.workshop.opened[each] for each in ("one.1", "other.1", "evaluator.1")] == [PINNED, "r2", "r3"]
