"""Orphans that come to this process are collected; the children that it starts keep their exit status."""

import sys
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from avenor.host.children import Children
from avenor.host.identity import read_stat
from tests.helpers import eventually

_ORPHAN = """
import os, sys
if os.fork() == 0:
    os.write(1, b"%d" % os.getpid())
    if os.fork():
        os._exit(0)  # its child comes to the subreaper
    os.write(1, b" %d" % os.getpid())
    os._exit(0)
"""


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and was not collected."""
    found = read_stat(pid)
    return found is not None and found.is_dead


async def read_pids(process: trio.Process) -> list[int]:
    """What it and its children have said of themselves, when all of them have ended or are about to."""
    assert process.stdout is not None
    said = b""
    while data := await process.stdout.receive_some():
        said += data
    await process.stdout.aclose()
    return [int(word) for word in said.split()]


async def leave_orphans(children: Children) -> tuple[trio.Process, list[int]]:
    """Start a program that leaves two orphans, both ended; returns it, ended and not waited for, and their pids."""
    process = await children.start([sys.executable, "-S", "-c", _ORPHAN], stdout=-1)
    pids = await read_pids(process)
    await eventually(lambda: all(is_zombie(pid) for pid in [process.pid, *pids]))
    return process, pids


async def test_orphans_are_collected_and_our_own_are_not(subreaper: None) -> None:
    """Of several that have ended only those that somebody else started go; ours keeps its exit status."""
    children = Children()
    process = await children.start([sys.executable, "-S", "-c", "import os; os._exit(7)"])
    await eventually(lambda: is_zombie(process.pid))
    gone, pids = await leave_orphans(children)
    reaped = await children.reap_orphans()  # earlier tests may have left some too
    assert set(pids) <= set(reaped)
    assert not {process.pid, gone.pid} & set(reaped)
    assert [read_stat(pid) for pid in pids] == [None, None]
    assert await process.wait() == 7
    assert await gone.wait() == 0
    assert await children.reap_orphans() == []


async def test_nothing_is_collected_while_a_child_starts(subreaper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has ended before its pid is known would look like an orphan."""
    children = Children()
    open_process: Any = trio.lowlevel.open_process
    started, go_on = trio.Event(), trio.Event()
    pids: list[int] = []

    async def open_slowly(argv: list[str], **options: object) -> trio.Process:
        process: trio.Process = await open_process(argv, **options)
        pids.append(process.pid)
        await eventually(lambda: is_zombie(process.pid))
        started.set()
        await go_on.wait()
        return process

    monkeypatch.setattr(trio.lowlevel, "open_process", open_slowly)
    statuses: list[int] = []

    async def start() -> None:
        process = await children.start([sys.executable, "-S", "-c", "import os; os._exit(7)"])
        statuses.append(await process.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await started.wait()
        nursery.start_soon(children.reap_orphans)
        await wait_all_tasks_blocked()
        assert is_zombie(pids[0])
        go_on.set()
    assert statuses == [7]


async def test_they_are_collected_as_they_end(subreaper: None) -> None:
    """Without being asked, and when several end at once."""
    children = Children()
    async with trio.open_nursery() as nursery:
        await nursery.start(children.keep_reaping)
        process = await children.start([sys.executable, "-S", "-c", _ORPHAN], stdout=-1)
        pids = await read_pids(process)
        await eventually(lambda: [read_stat(pid) for pid in pids] == [None, None])
        assert await process.wait() == 0
        nursery.cancel_scope.cancel()


async def test_who_adopts_nobody_collects_nothing() -> None:
    """A process that is no subreaper leaves all its children to those who started them."""
    process = await trio.lowlevel.open_process([sys.executable, "-S", "-c", "import os; os._exit(7)"])
    await eventually(lambda: is_zombie(process.pid))
    assert await Children().reap_orphans() == []
    assert await process.wait() == 7
