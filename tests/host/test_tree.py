"""Finding processes: below a process, by tag, and adopted ones."""

import os
import signal

import pytest
import trio

from avenor.host import tree
from avenor.host.identity import ProcessStat, signal_process, wait_dead
from tests.helpers import eventually
from tests.host.processes import StartAgent, identity_of


def pids(found: list[ProcessStat]) -> set[int]:
    return {each.id.pid for each in found}


@pytest.mark.parametrize("has_lists", [True, False])
async def test_descendants_are_found_with_and_without_the_kernels_lists(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, has_lists: bool
) -> None:
    """Both ways see the same tree, whichever thread forked; the root is not part of it."""
    monkeypatch.setattr(tree, "HAS_CHILDREN_LISTS", has_lists)
    agent = await start_agent("leader_exits")
    assert pids(tree.descendants(agent.process.pid)) == {agent.pids[1]}
    assert pids(tree.descendants(os.getpid())) >= set(agent.pids)
    below = tree.walk([os.getpid()], spare_pids=[agent.process.pid])
    assert pids(below.alive).isdisjoint(agent.pids)


async def test_a_zombie_is_gone_not_alive(start_agent: StartAgent) -> None:
    """An ended child that was not reaped is told apart."""
    agent = await start_agent("polite")
    await agent.close_stdin()
    await wait_dead(agent.id)
    below = tree.walk([os.getpid()])
    assert agent.process.pid in below.gone_pids
    assert agent.process.pid not in pids(below.alive)


async def test_the_tag_finds_what_left_the_tree(start_agent: StartAgent) -> None:
    """Whole values only, and never this process."""
    agent = await start_agent("leader_exits", env={"AVENOR_TEST_TAG": "xyzzy-1"})
    signal_process(agent.id, signal.SIGKILL)
    await agent.process.wait()
    assert pids(tree.tagged("AVENOR_TEST_TAG", "xyzzy-1")) == {agent.pids[1]}
    assert tree.tagged("AVENOR_TEST_TAG", "xyzzy") == []
    assert tree.tagged("TEST_TAG", "xyzzy-1") == []


async def test_a_subreaper_gets_back_what_escaped(start_agent: StartAgent, subreaper: None) -> None:
    """Double fork, a new session and a cleared environment end below us all the same."""
    assert tree.is_subreaper()
    agent = await start_agent("escape")
    assert agent.pids[-1] in pids(tree.descendants(os.getpid()))


async def test_adopted_zombies_are_reaped_and_owned_ones_are_not(start_agent: StartAgent, subreaper: None) -> None:
    """An ended orphan goes; the agent that trio waits for keeps its exit status."""
    agent = await start_agent("escape")
    daemon = identity_of(agent.pids[-1])
    await agent.close_stdin()
    await wait_dead(agent.id)
    signal_process(daemon, signal.SIGKILL)
    await wait_dead(daemon)
    reaped: list[int] = []

    def is_reaped() -> bool:
        reaped.extend(tree.reap_adopted({agent.process.pid}))
        return daemon.pid in reaped

    await eventually(is_reaped)
    assert agent.process.pid not in reaped
    assert await agent.process.wait() == 7


def test_reaping_what_is_no_child_or_still_runs_does_nothing() -> None:
    """Process 1 is not ours to reap."""
    assert tree.reap([1]) == []


def test_ancestors_go_up_to_the_first() -> None:
    """Our parent is among them, we are not."""
    above = tree.ancestors(os.getpid())
    assert os.getppid() in above
    assert os.getpid() not in above


async def test_walking_from_nothing_finds_nothing() -> None:
    """Pids that do not exist have nothing below them."""
    assert tree.walk([2**22 + 1]) == tree.Walk([], set())
    await trio.lowlevel.checkpoint()
