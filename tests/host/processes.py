"""Hostile processes, as a runtime starts its agents, and what tests ask about them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from avenor.host.identity import ProcessId, process_id, read_stat
from tests.helpers import eventually, kill_each

SCRIPT = Path(__file__).with_name("hostile.py")


class Agent:
    """A hostile process as a runtime would have started it, and the pids that it announced."""

    def __init__(self, process: trio.Process, pids: list[int]) -> None:
        self.process = process
        self.pids = pids
        self.id = identity_of(process.pid)

    async def close_stdin(self) -> None:
        """Closes the process's standard input."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()


def identity_of(pid: int) -> ProcessId:
    """The identity of a process that must be there."""
    found = process_id(pid)
    assert found is not None
    return found


def is_gone(pid: int) -> bool:
    """Whether no process with this pid runs; a zombie does not run."""
    found = read_stat(pid)
    return found is None or found.is_dead


StartAgent = Callable[..., Awaitable[Agent]]


async def announced(process: trio.Process) -> list[int]:
    """The pids that a hostile process and its children wrote before it was ready."""
    assert process.stdout is not None
    text = b""
    with trio.fail_after(60):
        while b"ready\n" not in text:
            data = await process.stdout.receive_some()
            assert data, "the hostile process ended early"
            text += data
    return [int(word) for word in text.split() if word != b"ready"]


async def end(agent: Agent) -> None:
    """Kills all of it that was announced, and waits."""

    def are_gone() -> bool:
        return all(is_gone(pid) for pid in agent.pids)

    kill_each(agent.pids)
    with trio.fail_after(60):
        await agent.process.wait()
        await eventually(are_gone)
    assert agent.process.stdin is not None
    assert agent.process.stdout is not None
    await agent.process.stdin.aclose()
    await agent.process.stdout.aclose()
