"""Manifests whose members do anything at all, in virtual time: every run ends, and its books are right."""

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.manifest.events import BudgetEvent, TaskEvent
from avenor.protocol.outcomes import Status
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import Act, Actor, ManifestRig, hangs, reads, seed, writes
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]


async def _crashes(_actor: Actor) -> TurnStop:
    return TurnStop(stop_reason="agent_exited", error=TurnError(message="signal 9", failure_class="crash"))


async def _says_nothing(_actor: Actor) -> None:
    pass


async def _is_stale(actor: Actor) -> None:
    await actor.submit(plan_epoch=6)


async def _writes_and_crashes(actor: Actor) -> TurnStop:
    actor.write("src/retry.py")
    return await _crashes(actor)


async def _strays(actor: Actor) -> None:
    actor.write("setup.py")
    await actor.submit()


async def _starts_workers(actor: Actor) -> None:
    replies: list[ToolReply] = []
    for wait in (False, True):
        budget = {"model_calls": 1, "tool_calls": 1, "tokens": 100}
        replies.append(
            await actor.tool("start_worker", member="test_reader", contract="look", budget=budget, wait=wait)
        )
    await reads(actor)


async def _replans(actor: Actor) -> None:
    await actor.tool("replan", reason="why not")
    await actor.submit(plan_epoch=actor.rig.state.plan_epoch)


async def _works_by_the_plan(actor: Actor) -> None:
    await actor.submit(plan_epoch=actor.rig.state.plan_epoch)


async def _writes_by_the_plan(actor: Actor) -> None:
    actor.write("src/retry.py")
    await actor.submit(plan_epoch=actor.rig.state.plan_epoch)


async def _is_slow(actor: Actor) -> None:
    await trio.sleep(40)
    await reads(actor)


async def _loops(actor: Actor) -> TurnStop:
    for _ in range(3):
        actor.use("read", "same")
    return await hangs(actor)


def _judges(word: str) -> Act:
    async def judge(actor: Actor) -> None:
        await actor.judge(word, failed_criterion="names")

    return judge


ANYBODY: list[Act] = [_crashes, _says_nothing, _is_stale, hangs, _loops, _is_slow]
CHOICES: dict[str, list[Act]] = {
    "planner": [*ANYBODY, reads, reads, _starts_workers, _replans, _replans],
    "implementation_reader": [*ANYBODY, *[_works_by_the_plan] * 9],
    "test_reader": [*ANYBODY, *[_works_by_the_plan] * 9],
    "writer": [*ANYBODY, _writes_and_crashes, _strays, writes, *[_writes_by_the_plan] * 9],
    "evaluator": [*ANYBODY, *map(_judges, ("accept", "accept", "accept", "repair", "repair", "reject", "needs_human"))],
    "test_reader-2": [*ANYBODY, _works_by_the_plan],
    "test_reader-3": [*ANYBODY, _works_by_the_plan],
}


@pytest.mark.parametrize("number", range(40))
async def test_whatever_members_do_a_run_ends_within_its_bounds(
    tmp_path: Path, autojump_clock: MockClock, number: int
) -> None:
    """Every attempt is over, every account closed, nothing was used that was not there, and the deadline held."""
    rig = _rig(tmp_path, random.Random(number))
    began = trio.current_time()
    outcome = await rig.run()
    assert trio.current_time() - began <= 480
    assert outcome.status in (Status.DONE, Status.BLOCKED, Status.FAILED, Status.TIMEOUT)
    assert outcome.stop_reason != "internal_error"
    state = rig.state
    assert state.end is not None
    assert state.running == []
    assert state.repairs <= 1
    assert rig.workshop.closed.count("writer.1") <= 2
    _check_books(rig)
    if state.end.state == "accepted":
        assert state.tasks["evaluator"].state == "done"
        assert all(each.passed for each in state.receipts_of(str(state.end.revision))[-1:])


@pytest.mark.parametrize("number", range(20))
async def test_whatever_members_do_a_run_that_was_lost_anywhere_ends_too(
    tmp_path: Path, autojump_clock: MockClock, number: int
) -> None:
    """Twice its process is lost after any event; the log is all that the next one has."""
    chance = random.Random(number)
    rig = _rig(tmp_path, chance)
    await rig.run()
    for _ in range(2):
        lines = rig.log_path.read_bytes().splitlines(keepends=True)
        rig.log_path.write_bytes(b"".join(lines[: chance.randrange(1, len(lines))]))
        rig.workshop.revisions = 1 + len(rig.state.candidates)
        rig.again()
        await rig.run()
    assert rig.outcome is not None
    assert rig.outcome.stop_reason != "internal_error"
    assert rig.state.end is not None
    assert rig.state.running == []
    _check_books(rig)


def _rig(directory: Path, chance: random.Random) -> ManifestRig:
    """The manifest of the seed with members that do what chance says."""
    rig = ManifestRig(directory, seed(), max_parallel=chance.choice([None, 1, 2]))
    rig.workshop.failing["focused_tests"] = lambda revision: chance.random() < 0.3 and revision != "r9"
    for name, acts in CHOICES.items():
        rig.play(**{name: [chance.choice(acts) for _ in range(4)]})
    return rig


def _check_books(rig: ManifestRig) -> None:
    state = rig.state
    for account in state.ledger.accounts.values():
        limit = account.limits.model_calls
        assert limit is None or account.used.model_calls <= limit
    debits = rig.only(BudgetEvent, op="debit")
    assert sum(event.amounts.model_calls for event in debits) == state.ledger.accounts["run"].used.model_calls
    started = [event.attempt_id for event in rig.only(TaskEvent, state="started")]
    assert len(set(started)) == len(started)
    assert all(event.permitted_by for event in rig.only(TaskEvent))
