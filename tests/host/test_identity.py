"""Process identity, against real processes."""

import os
import signal

import pytest
import trio
from msgspec.structs import replace

from avenor.host import identity
from avenor.host.identity import is_alive, process_id, read_stat, signal_process, wait_dead
from tests.helpers import eventually
from tests.host.processes import StartAgent, identity_of


async def test_a_process_is_known_by_pid_start_and_boot_until_it_ends(start_agent: StartAgent) -> None:
    """Alive while it runs, dead as a zombie, dead when reaped."""
    agent = await start_agent("polite")
    assert is_alive(agent.id)
    await agent.close_stdin()
    await wait_dead(agent.id)
    zombie = read_stat(agent.process.pid)
    assert zombie is not None
    assert zombie.state == "Z"
    assert zombie.id == agent.id
    assert not is_alive(agent.id)
    assert await agent.process.wait() == 7
    assert process_id(agent.process.pid) is None
    assert not is_alive(agent.id)


async def test_a_reused_pid_is_a_stranger(start_agent: StartAgent) -> None:
    """With another start time, or of another boot, it is neither alive nor signalled nor waited for."""
    agent = await start_agent("polite")
    for stale in (
        replace(agent.id, start_ticks=agent.id.start_ticks - 1),
        replace(agent.id, boot_id="00000000-0000-0000-0000-000000000000"),
    ):
        assert not is_alive(stale)
        assert not signal_process(stale, signal.SIGKILL)
        with trio.fail_after(60):
            await wait_dead(stale)
    assert is_alive(agent.id)
    await agent.close_stdin()
    assert await agent.process.wait() == 7


async def test_signalling_the_dead_says_so(start_agent: StartAgent) -> None:
    """A zombie and a reaped process get no signal."""
    agent = await start_agent("polite")
    assert signal_process(agent.id, signal.SIGKILL)
    await wait_dead(agent.id)
    assert not signal_process(agent.id, signal.SIGTERM)
    await agent.process.wait()
    assert not signal_process(agent.id, signal.SIGTERM)


async def test_the_end_of_a_process_that_is_no_child_is_noticed(start_agent: StartAgent) -> None:
    """A daemon that left us is waited for like a child."""
    agent = await start_agent("escape")
    daemon = identity_of(agent.pids[-1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_dead, daemon)
        await trio.testing.wait_all_tasks_blocked()
        assert signal_process(daemon, signal.SIGKILL)
    assert not is_alive(daemon)


async def test_a_process_whose_main_thread_ended_is_alive(start_agent: StartAgent) -> None:
    """It shows as a zombie, but its other threads run."""
    agent = await start_agent("headless")

    def state() -> bool:
        found = read_stat(agent.process.pid)
        return found is not None and found.state == "Z"

    await eventually(state)
    assert is_alive(agent.id)
    assert signal_process(agent.id, signal.SIGKILL)
    await wait_dead(agent.id)
    assert not is_alive(agent.id)


async def test_without_pidfds_everything_still_works(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none, signals go by pid and ends are polled for."""
    agent = await start_agent("deaf")
    monkeypatch.delattr(os, "pidfd_open")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_dead, agent.id)
        await trio.testing.wait_all_tasks_blocked()
        assert signal_process(agent.id, signal.SIGKILL)
    assert not is_alive(agent.id)


async def test_without_proc_processes_are_read_through_psutil(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fallback gives the same identity each time, sees the end, and knows the parent."""
    agent = await start_agent("polite")
    monkeypatch.setattr(identity, "HAS_PROC", False)
    own = identity_of(agent.process.pid)
    assert identity_of(agent.process.pid) == own
    assert is_alive(own)
    found = read_stat(agent.process.pid)
    assert found is not None
    assert (found.ppid, found.pgid) == (os.getpid(), agent.process.pid)
    assert agent.process.pid in identity.all_pids()
    await agent.close_stdin()
    await wait_dead(own)
    assert not is_alive(own)
    await agent.process.wait()
    assert process_id(agent.process.pid) is None


def test_numbers_that_name_no_process_are_dead() -> None:
    """Neither a pid that cannot exist nor zero is taken for a process."""
    own = identity_of(os.getpid())
    for pid in (0, 2**22 + 1):
        assert not is_alive(replace(own, pid=pid))
        assert not signal_process(replace(own, pid=pid), signal.SIGKILL)
