"""Fixtures: hostile processes that are gone for certain when a test is over."""

import ctypes
import os
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from subprocess import PIPE

import pytest
import trio

from avenor.host import tree
from tests.host.processes import SCRIPT, Agent, StartAgent, announced, end


@pytest.fixture
async def start_agent() -> AsyncGenerator[StartAgent, None]:
    """Starts hostile processes in a mode; all that they announced are killed afterwards."""
    agents: list[Agent] = []

    async def start(mode: str, env: Mapping[str, str] | None = None) -> Agent:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-S", str(SCRIPT), mode],
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        agents.append(Agent(process, await announced(process)))
        return agents[-1]

    yield start
    for agent in agents:
        await end(agent)


@pytest.fixture
def subreaper() -> Generator[None, None, None]:
    """This process is a child subreaper while the test lasts."""
    assert tree.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    assert not tree.is_subreaper()
    tree.reap_adopted(())


@pytest.fixture
def bystanders() -> set[int]:
    """Children that the test process had before: none of the test's business."""
    return {found.id.pid for found in tree.descendants(os.getpid())}
