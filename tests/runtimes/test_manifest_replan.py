"""What becomes of candidates, verdicts and failures when the plan is made anew meanwhile, in virtual time."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.errors import SpawnError
from avenor.protocol.events import Error
from avenor.protocol.manifest.binding import BoundReceipt, ResolvedManifest
from avenor.protocol.manifest.events import BudgetEvent, CandidateEvent, VerdictEvent
from avenor.runtimes.backends.base import TurnStop
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import PINNED, Act, Actor, ManifestRig, hangs, manifest, member
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]

BRANCH = "avenor/run_1/candidate"
LOST = "avenor/run_1/lost/writer.1"


def team(*needs: str, **changes: Any) -> ResolvedManifest:
    """A writer that the evaluator waits for, and a manager beside them that may replan."""
    return manifest(
        member("manager", tools=["replan"]),
        member("writer", writes=["src/retry.py"]),
        member("evaluator", needs=["writer", *needs], verdict=True, contexts=["task_contract", "candidate_revision"]),
        **{"receipts": [], **changes},
    )


def replans_after(seconds: float) -> Act:
    """Changes the plan then."""

    async def act(actor: Actor) -> None:
        await trio.sleep(seconds)
        await actor.tool("replan", reason="the schema has changed")
        await actor.submit(plan_epoch=8)

    return act


def writes_by(epoch: int, seconds: float = 0) -> Act:
    """Changes the module by this plan, and goes on for so long."""

    async def act(actor: Actor) -> None:
        actor.write("src/retry.py")
        await actor.submit(plan_epoch=epoch)
        await trio.sleep(seconds)

    return act


async def changes_nothing(actor: Actor) -> None:
    """Finds that the new plan needs no change."""
    await actor.submit(plan_epoch=8)


def judges_after(seconds: float, word: str, replies: list[ToolReply] | None = None, *, dwells: float = 0) -> Act:
    """Judges what it was given after so long, and ends after so long again."""

    async def act(actor: Actor) -> None:
        await trio.sleep(seconds)
        reply = await actor.judge(word, failed_criterion="names")
        if replies is not None:
            replies.append(reply)
        await trio.sleep(dwells)

    return act


def told_candidates(rig: ManifestRig) -> list[tuple[str, str]]:
    """Who has made which, on what."""
    return [(event.attempt_id, event.base) for event in rig.only(CandidateEvent)]


# ---- candidates


async def test_a_candidate_of_an_older_plan_is_none_any_more(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The writer begins anew without it; it is kept for people, and only what counts is on the candidate's branch."""
    rig = ManifestRig(tmp_path, team("manager"))
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    assert (await rig.run()).exit_code == 0
    assert told_candidates(rig) == [("writer.1", PINNED), ("writer.2", PINNED)]
    assert rig.workshop.opened["evaluator.1"] == rig.end.revision == "r3"
    assert rig.workshop.branches == {BRANCH: "r3", LOST: "r2"}


async def test_where_the_new_plan_needs_no_change_the_old_one_is_gone_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What is judged is the source revision, and the branch is brought back to that."""
    rig = ManifestRig(tmp_path, team("manager"))
    rig.play(manager=replans_after(5), writer=[writes_by(7), changes_nothing])
    assert (await rig.run()).exit_code == 0
    assert rig.end.revision == PINNED
    assert "There is no candidate: nothing was changed." in next(iter(rig.prompts("evaluator")))
    assert rig.workshop.branches == {BRANCH: PINNED, LOST: "r2"}


async def test_a_result_that_was_handed_over_before_the_replan_makes_no_candidate_after_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The writer's turn has ended when there was a new plan: what it has changed is kept as what was lost."""
    rig = ManifestRig(tmp_path, team("manager"))
    rig.play(manager=replans_after(5), writer=[writes_by(7, seconds=10), writes_by(8)])
    assert (await rig.run()).exit_code == 0
    assert told_candidates(rig) == [("writer.2", PINNED)]
    assert rig.workshop.kept == [LOST]
    first = rig.state.tasks["writer"].attempts[0]
    assert (first.state, first.reason) == ("missing", "stale: stale_epoch: 7, expected 8")


async def test_a_commit_that_a_replan_overtakes_counts_for_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The plan changes while git works."""
    rig = ManifestRig(tmp_path, team("manager"))
    commit = rig.workshop.commit

    async def is_slow(attempt_id: str, branch: str, message: str) -> str:
        await trio.sleep(10)
        return await commit(attempt_id, branch, message)

    rig.workshop.commit = is_slow  # type: ignore[method-assign]
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    assert (await rig.run()).exit_code == 0
    assert told_candidates(rig) == [("writer.1", PINNED), ("writer.2", PINNED)]
    assert rig.workshop.branches == {BRANCH: "r3", LOST: "r2"}


async def test_what_the_planner_depends_on_stays_in_the_candidate(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The new plan was made upon it, and it is not done anew."""
    declared = manifest(
        member("first", writes=["src/retry.py"]),
        member("manager", needs=["first"], tools=["replan"]),
        member("writer", needs=["manager"], writes=["src/retry.py"]),
        member("evaluator", needs=["writer"], verdict=True),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(first=writes_by(7), manager=replans_after(5), writer=writes_by(8))
    assert (await rig.run()).exit_code == 0
    assert told_candidates(rig) == [("first.1", PINNED), ("writer.1", "r2")]
    assert rig.workshop.branches == {BRANCH: "r3"}


async def test_checks_of_an_older_candidate_end_before_those_of_the_next_begin(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Each has a number and a worktree of its own."""
    rig = ManifestRig(tmp_path, team(receipts=[BoundReceipt(name="tests", command=["true"], timeout=60.0)]))
    rig.workshop.may_check = trio.Event()
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.until(lambda: len(rig.only(CandidateEvent)) == 2)
        rig.workshop.may_check.set()
    assert rig.workshop.checked == [("tests", "r2"), ("tests", "r3")]
    assert list(rig.state.receipts) == ["receipt-1", "receipt-2"]
    assert (rig.end.state, rig.end.revision) == ("accepted", "r3")


async def test_a_branch_that_cannot_be_moved_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It changes nothing about the run."""
    rig = ManifestRig(tmp_path, team("manager"))
    rig.workshop.faults["move"] = SpawnError("git is gone")
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    assert (await rig.run()).exit_code == 0
    (told,) = rig.only(Error)
    assert told.message == "what belongs to an older plan is not set aside: git is gone"


# ---- verdicts


@pytest.mark.parametrize("word", ["accept", "repair"])
async def test_a_verdict_by_an_older_plan_is_refused_and_the_evaluation_done_anew(
    tmp_path: Path, autojump_clock: MockClock, word: str
) -> None:
    """Whoever began to judge before the plan was changed is not asked for more, and ends nothing."""
    replies: list[ToolReply] = []
    rig = ManifestRig(tmp_path, team())
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    rig.play(evaluator=[judges_after(10, word, replies), judges_after(0, "accept")])
    assert (await rig.run()).exit_code == 0
    assert replies[0].text == "It does not count: the plan epoch is 8 now, and evaluator.1 was begun before"
    assert [(each.attempt_id, each.revision) for each in rig.only(VerdictEvent)] == [("evaluator.2", "r3")]
    assert [len(each.prompts) for each in rig.backend.sessions if each.params.cwd.endswith("evaluator.1")] == [1]


@pytest.mark.parametrize("word", ["accept", "repair", "reject"])
async def test_a_verdict_that_a_replan_overtakes_counts_for_nothing(
    tmp_path: Path, autojump_clock: MockClock, word: str
) -> None:
    """The evaluator's turn goes on when the plan is changed: neither an end nor the one repair comes of it."""
    rig = ManifestRig(tmp_path, team())
    rig.play(manager=replans_after(5), writer=[writes_by(7), writes_by(8)])
    rig.play(evaluator=[judges_after(0, word, dwells=10), judges_after(0, "accept")])
    assert (await rig.run()).exit_code == 0
    assert (rig.end.revision, rig.state.repairs) == ("r3", 0)
    assert rig.started()[-1] == "evaluator.2"
    assert all("## Repair" not in prompt for prompt in rig.prompts("writer"))


# ---- what an older plan comes to


async def _says_nothing(_actor: Actor) -> None:
    pass


async def _goes_in_circles(actor: Actor) -> TurnStop:
    for _ in range(3):
        actor.use("read", "same")
    return await hangs(actor)


@pytest.mark.parametrize("ends", [hangs, _says_nothing, _goes_in_circles])
async def test_a_failure_under_an_older_plan_is_not_the_runs(
    tmp_path: Path, autojump_clock: MockClock, ends: Act
) -> None:
    """It is done anew, with its whole budget, whatever the old attempt came to."""

    async def is_slow(actor: Actor) -> TurnStop | None:
        await trio.sleep(10)
        return await ends(actor)

    rig = ManifestRig(tmp_path, team("manager"))
    rig.play(manager=replans_after(5), writer=[is_slow, writes_by(8)])
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["manager.1", "writer.1", "writer.2", "evaluator.1"]
    reserved = [event.limits.model_calls for event in rig.only(BudgetEvent, op="reserve", account="writer")]
    assert reserved == [3, 3]


async def test_a_violation_is_one_under_any_plan(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whoever has changed what it may not change is not begun anew: a person has to look."""

    async def strays(actor: Actor) -> None:
        actor.write("setup.py")
        await actor.submit(plan_epoch=7)
        await trio.sleep(10)

    rig = ManifestRig(tmp_path, team("manager"))
    rig.play(manager=replans_after(5), writer=strays)
    assert (await rig.run()).exit_code == 5
    assert "denied by members[1].allowed_writes" in str(rig.end.reason)
    assert rig.started() == ["manager.1", "writer.1"]


async def test_what_one_replan_has_set_aside_the_next_does_not_bring_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Not even where the next plan is made upon what the writer found under the one before."""
    judged: list[str] = []

    async def is_overtaken(_actor: Actor) -> TurnStop:
        await trio.sleep(20)
        return TurnStop(stop_reason="end_turn")

    async def replans(actor: Actor) -> None:
        await actor.tool("replan", reason="again")
        await actor.submit(plan_epoch=9)

    async def accepts(actor: Actor) -> None:
        judged.append(actor.revision)
        await actor.judge("accept")

    declared = manifest(
        member("manager", tools=["replan"]),
        member("writer", writes=["src/retry.py"]),
        member("planner", needs=["writer"], tools=["replan"]),
        member("evaluator", needs=["planner"], verdict=True, contexts=["task_contract", "candidate_revision"]),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(
        manager=replans_after(5),
        writer=[writes_by(7), changes_nothing],
        planner=[is_overtaken, replans],
        evaluator=accepts,
    )
    assert (await rig.run()).exit_code == 0
    assert judged == [PINNED]
