"""The stop ladder against processes that do what agents' tools do."""

import contextlib
import os
import signal
from collections.abc import Generator

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.host.identity import ProcessStat, is_alive, read_stat
from avenor.host.ladder import Graces, StopResult, left_reason, stop_tree
from tests.helpers import eventually
from tests.host.processes import Agent, StartAgent, identity_of, is_gone

LONG = Graces(stdin_seconds=20, term_seconds=20, kill_seconds=20)
SHORT = Graces(stdin_seconds=0.1, term_seconds=0.1, kill_seconds=20)
TAG = ("AVENOR_TEST_TAG", "plugh-2")


async def stop_all(agent: Agent, graces: Graces, bystanders: set[int]) -> StopResult:
    """Stops as a runtime does that ends: everything below this process."""
    return await stop_tree(
        roots=[agent.id],
        tag=TAG,
        close_stdin=agent.close_stdin,
        graces=graces,
        own_children_of=os.getpid(),
        spare_pids=lambda: bystanders,
    )


async def test_an_agent_that_ends_with_its_input_needs_no_signal(
    start_agent: StartAgent, subreaper: None, bystanders: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its exit status, nothing is left, and no process but ours is read for it."""

    def no_scan(name: str, value: str) -> list[ProcessStat]:
        raise AssertionError("a subreaper has no use for reading every process")

    monkeypatch.setattr(tree, "tagged", no_scan)
    agent = await start_agent("polite")
    assert await stop_all(agent, LONG, bystanders) == StopResult()
    assert await agent.process.wait() == 7


@pytest.mark.parametrize("mode", ["deaf", "leader_exits", "escape", "respawn", "headless", "crash"])
@pytest.mark.parametrize("has_lists", [True, False])
async def test_whatever_an_agent_started_is_gone_afterwards(
    start_agent: StartAgent,
    subreaper: None,
    bystanders: set[int],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    has_lists: bool,
) -> None:
    """Deaf, orphaned, escaped or restarted: all are dead, proven, and the orphans reaped."""
    monkeypatch.setattr(tree, "HAS_CHILDREN_LISTS", has_lists)
    agent = await start_agent(mode)
    assert await stop_all(agent, SHORT, bystanders) == StopResult()
    assert [pid for pid in agent.pids if not is_gone(pid)] == []
    assert [pid for pid in agent.pids[1:] if read_stat(pid) is not None] == []
    assert {found.id.pid for found in tree.descendants(os.getpid())} <= bystanders


async def test_a_chain_of_forks_is_caught(start_agent: StartAgent, subreaper: None, bystanders: set[int]) -> None:
    """A process that is another one each time one looks ends too."""
    agent = await start_agent("walker")
    result = await stop_all(agent, SHORT, bystanders)
    assert result == StopResult()
    assert {found.id.pid for found in tree.descendants(os.getpid())} <= bystanders


async def test_the_exit_status_of_the_agent_stays_with_trio(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """A crash is not reported as success: the ladder never reaps a root."""
    agent = await start_agent("crash")
    await stop_all(agent, SHORT, bystanders)
    assert await agent.process.wait() == 3


async def test_a_halted_agent_hears_sigterm(start_agent: StartAgent, subreaper: None, bystanders: set[int]) -> None:
    """It is woken with the signal, so it need not be killed."""
    agent = await start_agent("halted")
    graces = msgspec.structs.replace(LONG, stdin_seconds=0.1)
    assert await stop_all(agent, graces, bystanders) == StopResult()
    assert await agent.process.wait() == -signal.SIGTERM


async def test_spared_children_and_their_trees_are_left_alone(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """Somebody else's child below us is not signalled."""
    spared = await start_agent("leader_exits")
    agent = await start_agent("deaf")
    await stop_all(agent, SHORT, bystanders | {spared.process.pid})
    assert is_gone(agent.process.pid)
    assert [pid for pid in spared.pids if is_gone(pid)] == []


async def test_a_stranger_with_the_same_command_line_is_untouched(start_agent: StartAgent) -> None:
    """Only what the roots and the tag prove to be ours is signalled."""
    stranger = await start_agent("leader_exits")
    agent = await start_agent("leader_exits", env=dict([TAG]))
    await stop_tree(roots=[agent.id], tag=TAG, close_stdin=None, graces=SHORT, own_children_of=None)
    assert [pid for pid in agent.pids if not is_gone(pid)] == []
    assert [pid for pid in stranger.pids if is_gone(pid)] == []


async def test_a_root_whose_pid_was_reused_is_a_stranger(start_agent: StartAgent) -> None:
    """With a stale record nothing is signalled, not even below it."""
    agent = await start_agent("leader_exits")
    stale = msgspec.structs.replace(agent.id, start_ticks=agent.id.start_ticks - 1)
    await stop_tree(roots=[stale], tag=None, close_stdin=None, graces=SHORT, own_children_of=None)
    assert [pid for pid in agent.pids if is_gone(pid)] == []


async def test_after_a_crash_the_tag_finds_the_orphans(start_agent: StartAgent) -> None:
    """With the root dead and orphans out of reach, the environment tells; the proof stays open and says so."""
    agent = await start_agent("crash", env=dict([TAG]))
    await agent.process.wait()
    result = await stop_tree(roots=[agent.id], tag=TAG, close_stdin=None, graces=SHORT, own_children_of=None)
    assert [pid for pid in agent.pids if not is_gone(pid)] == []
    assert result.left == []
    assert result.unverified is not None
    assert "environment" in result.unverified


async def test_what_escapes_while_it_is_stopped_is_followed(start_agent: StartAgent) -> None:
    """Without a subreaper, a child seen before its parent's end is ended although it has left the tree."""
    agent = await start_agent("leader_exits")
    result = await stop_tree(roots=[agent.id], tag=None, close_stdin=None, graces=SHORT, own_children_of=None)
    assert [pid for pid in agent.pids if not is_gone(pid)] == []
    assert result.left == []


async def test_a_cancelled_stop_still_kills(start_agent: StartAgent, subreaper: None, bystanders: set[int]) -> None:
    """Cancelling cuts the graces short, never the kill."""
    agent = await start_agent("escape")
    deaf = await start_agent("deaf")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stop_tree(
            roots=[agent.id, deaf.id],
            tag=None,
            close_stdin=None,
            graces=LONG,
            own_children_of=os.getpid(),
            spare_pids=lambda: bystanders,
        )
    assert scope.cancelled_caught
    assert [pid for pid in [*agent.pids, *deaf.pids] if not is_gone(pid)] == []


async def test_what_starts_during_the_stop_is_spared_too(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """Who may not be touched is asked at every look: a child that came after the first is nobody's leftover."""
    deaf = await start_agent("deaf")
    newcomers: list[Agent] = []

    async def start_another() -> None:
        with trio.CancelScope(shield=True):  # whatever the grace says
            newcomers.append(await start_agent("polite"))
        bystanders.update(newcomers[0].pids)

    result = await stop_tree(
        roots=[deaf.id],
        tag=None,
        close_stdin=start_another,
        graces=SHORT,
        own_children_of=os.getpid(),
        spare_pids=lambda: bystanders,
    )
    assert result == StopResult()
    assert is_gone(deaf.process.pid)
    assert is_alive(newcomers[0].id)


async def test_an_input_that_is_broken_or_never_closes_does_not_hold_the_ladder_up(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """Closing is one step among others, with its own grace."""

    async def broken() -> None:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError

    for close_stdin in (broken, trio.sleep_forever):
        agent = await start_agent("deaf")
        result = await stop_tree(
            roots=[agent.id],
            tag=None,
            close_stdin=close_stdin,
            graces=SHORT,
            own_children_of=os.getpid(),
            spare_pids=lambda: bystanders,
        )
        assert result == StopResult()
        assert is_gone(agent.process.pid)


async def test_stopping_the_dead_is_done_at_once(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """A stop that comes after the natural end keeps the real exit status."""
    agent = await start_agent("polite")
    await agent.close_stdin()
    assert await agent.process.wait() == 7
    assert await stop_all(agent, LONG, bystanders) == StopResult()
    assert agent.process.returncode == 7


async def test_descriptors_are_as_many_after_as_before(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """Neither waits that end nor waits that are cut short leave one open."""
    agents = [await start_agent(mode) for mode in ("deaf", "leader_exits", "polite")]
    for agent in agents:
        await agent.close_stdin()
    before = len(os.listdir("/proc/self/fd"))
    await stop_tree(
        roots=[agent.id for agent in agents],
        tag=None,
        close_stdin=trio.sleep_forever,
        graces=SHORT,
        own_children_of=os.getpid(),
        spare_pids=lambda: bystanders,
    )
    assert len(os.listdir("/proc/self/fd")) == before


@contextlib.contextmanager
def as_nobody() -> Generator[None, None, None]:
    """Without the right to signal root's processes, and with the way back."""
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user to play with")
async def test_another_users_process_is_named_as_left(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """What we may not signal is told, with the reason, and the ladder does not wait for it to the end."""
    agent = await start_agent("deaf")
    with as_nobody():
        result = await stop_all(agent, msgspec.structs.replace(SHORT, kill_seconds=1000), bystanders)
    assert result.unverified is None
    (left,) = result.left
    assert left.pid == agent.process.pid
    assert "uid 0" in left.reason
    assert is_alive(agent.id)


async def test_a_process_that_outlives_the_kill_is_explained_or_doubted(start_agent: StartAgent) -> None:
    """Uninterruptible sleep is a reason; running on is none, and makes the proof open."""
    agent = await start_agent("deaf")
    found = read_stat(agent.process.pid)
    assert found is not None
    assert left_reason(msgspec.structs.replace(found, state="D"), is_denied=False) == "in uninterruptible sleep"
    assert left_reason(found, is_denied=False) is None


async def test_with_no_time_at_all_the_answer_is_a_doubt(
    start_agent: StartAgent, subreaper: None, bystanders: set[int]
) -> None:
    """A kill that could not be waited for is not called verified, unless it was proven after all."""
    agent = await start_agent("deaf")
    result = await stop_all(agent, Graces(stdin_seconds=0, term_seconds=0, kill_seconds=0), bystanders)
    assert result.left == []
    assert result.unverified is None or str(agent.process.pid) in result.unverified
    await eventually(lambda: is_gone(agent.process.pid))


async def test_the_walk_of_the_tree_names_the_identity(start_agent: StartAgent) -> None:
    """What the ladder signals is what `process_id` says."""
    agent = await start_agent("leader_exits")
    (child,) = tree.descendants(agent.process.pid)
    assert child.id == identity_of(agent.pids[1])


async def test_what_only_its_mark_finds_is_killed_without_a_grace(start_agent: StartAgent) -> None:
    """No root is known, nothing is below us, and there is no time for SIGTERM: the mark alone leads to it."""
    own = ("AVENOR_TEST_TAG", "plugh-alone")  # tests beside this one use the other
    agent = await start_agent("deaf", env=dict([own]))
    at_once = Graces(stdin_seconds=0.0, term_seconds=0.0, kill_seconds=20)
    await stop_tree(roots=[], tag=own, close_stdin=None, graces=at_once, own_children_of=None)
    assert all(is_gone(pid) for pid in agent.pids)
