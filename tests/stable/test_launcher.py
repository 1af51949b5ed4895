"""The local launcher with real runtimes: forked, started plainly, and refused."""

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from avenor.host.identity import is_alive, process_id, read_stat, signal_process, wait_dead
from avenor.host.lock import FileLock
from avenor.host.rundir import RunDir
from avenor.host.tree import children
from avenor.protocol.errors import SpawnError
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.stable.launcher import LocalLauncher
from avenor.stable.zygote import ZygoteKeeper
from tests.helpers import eventually, name_of

_NO_ZYGOTE = ("/nonexistent/program",)


def accept(tmp_path: Path, name: str = "rt_1", directory: str = "/") -> Path:
    """A runtime directory with a record whose agent waits for ever."""
    path = tmp_path / name
    path.mkdir()
    spec = resolve_spec(RunSpec(prompt="x", dir=directory, backend="acp", agent_command="sleep 1000"))
    record = Record(runtime_id=name, run_id="r1", spec=spec, prompt="x", environ=dict(os.environ))
    RunDir(path).write_record(msgspec.json.encode(record))
    return path


@asynccontextmanager
async def launching(
    tmp_path: Path, program: tuple[str, ...] = ()
) -> AsyncGenerator[tuple[LocalLauncher, ZygoteKeeper], None]:
    """A launcher with its zygote, if the program is one."""
    zygote = ZygoteKeeper(tmp_path / "zygote.log", program)
    launcher = LocalLauncher(zygote, lambda: ())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(zygote.run)
        try:
            yield launcher, zygote
        finally:
            nursery.cancel_scope.cancel()


async def test_the_end_of_one_runtime_spares_another_that_is_still_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started plainly it is our child, and has not said yet who it is: no sweep may take it for a leftover."""
    ended, starting = accept(tmp_path, "rt_1"), accept(tmp_path, "rt_2")
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    slow.chmod(0o755)
    async with launching(tmp_path, _NO_ZYGOTE) as (launcher, _zygote), trio.open_nursery() as nursery:
        process = await launcher.launch(ended)
        monkeypatch.setattr("sys.executable", str(slow))
        nursery.start_soon(_launch_in_vain, launcher, starting)
        await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
        other = process_id(int((tmp_path / "pid").read_text()))
        assert other is not None
        await launcher.end(ended)
        assert not is_alive(process)
        assert is_alive(other)
        signal_process(other, signal.SIGKILL)


async def test_a_fork_that_its_zygote_did_not_tell_of_is_known_by_its_command_line(tmp_path: Path) -> None:
    """So that a sweep between the zygote's death and the fork's first word takes it for no leftover."""
    path = accept(tmp_path)
    async with launching(tmp_path, ()) as (launcher, zygote):
        await eventually(lambda: zygote.pid is not None)
        process = await launcher.launch(path)
        assert zygote.is_fork(process.pid)
        assert not zygote.is_fork(os.getpid())
        await launcher.end(path)
        assert not zygote.is_fork(process.pid)


async def test_a_runtime_that_has_not_said_who_it_is_yet_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    """A new process has the lock, and the file still names the one before it, which is dead."""
    directory = RunDir(accept(tmp_path))
    alive = process_id(os.getpid())
    assert alive is not None
    launcher = LocalLauncher(ZygoteKeeper(tmp_path / "zygote.log", _NO_ZYGOTE), lambda: ())
    lock = FileLock(directory.lock_path)
    assert lock.try_acquire()
    directory.process_path.write_bytes(msgspec.json.encode(replace(alive, start_ticks=alive.start_ticks - 1)))
    assert launcher.probe(directory.path) is None
    directory.process_path.write_bytes(msgspec.json.encode(alive))
    assert launcher.probe(directory.path) == alive
    lock.release()
    assert launcher.probe(directory.path) is None


def spare_of(zygote: ZygoteKeeper) -> int | None:
    """The fork that waits, once it has rehearsed; None while there is none."""
    return next((pid for pid in children(zygote.pid or 0) if name_of(pid) == "avenor-spare"), None)


async def test_a_fork_that_was_made_ahead_becomes_the_runtime(tmp_path: Path) -> None:
    """And another one is made in its place."""
    path = accept(tmp_path)
    async with launching(tmp_path) as (launcher, zygote):
        await eventually(lambda: spare_of(zygote) is not None)
        spare = spare_of(zygote)
        process = await launcher.launch(path)
        assert process.pid == spare
        assert name_of(process.pid) == "avenor-rt_1"
        await eventually(lambda: spare_of(zygote) not in (None, spare))
        await launcher.end(path)


async def test_spawns_do_without_a_spare_that_was_killed(tmp_path: Path) -> None:
    """Another one is made when there was one more spawn, and not before."""
    path = accept(tmp_path)
    async with launching(tmp_path) as (launcher, zygote):
        await eventually(lambda: spare_of(zygote) is not None)
        spare = spare_of(zygote)
        assert spare is not None
        os.kill(spare, signal.SIGKILL)
        await eventually(lambda: spare not in children(zygote.pid or 0))
        process = await launcher.launch(path)
        assert is_alive(process)
        await eventually(lambda: spare_of(zygote) is not None)
        await launcher.end(path)


async def test_a_spare_ends_with_its_zygote(tmp_path: Path) -> None:
    """However that ends: nobody else could ever take it."""
    async with launching(tmp_path) as (_launcher, zygote):
        await eventually(lambda: spare_of(zygote) is not None)
        spare = process_id(spare_of(zygote) or 0)
        assert zygote.pid is not None
        assert spare is not None
        os.kill(zygote.pid, signal.SIGKILL)
        await wait_dead(spare)


async def _launch_in_vain(launcher: LocalLauncher, path: Path) -> None:
    with pytest.raises(SpawnError):
        await launcher.launch(path)


@pytest.mark.parametrize("program", [(), _NO_ZYGOTE], ids=["zygote", "plain"])
async def test_a_runtime_is_launched_probed_and_ended(tmp_path: Path, program: tuple[str, ...]) -> None:
    """With the zygote, and without one; afterwards neither it nor its agent lives."""
    path = accept(tmp_path)
    async with launching(tmp_path, program) as (launcher, zygote):
        if not program:
            await eventually(lambda: zygote.pid is not None)
        process = await launcher.launch(path)
        assert launcher.probe(path) == process
        # The zygote's word and the runtime's own come by different ways.
        await eventually(lambda: (str(path) in zygote.forked) == (not program))
        await eventually(lambda: RunDir(path).procs_path.exists())
        await launcher.end(path)
        assert not is_alive(process)
        assert launcher.probe(path) is None
        assert await launcher.exit_status(path) == -signal.SIGKILL
        launcher.forget(path)
        assert zygote.forked == {}


@pytest.mark.parametrize("program", [(), _NO_ZYGOTE], ids=["zygote", "plain"])
async def test_a_runtime_that_cannot_take_its_place_says_why(tmp_path: Path, program: tuple[str, ...]) -> None:
    """The directory of the run was removed after the spawn was checked."""
    path = accept(tmp_path, directory=str(tmp_path / "gone"))
    async with launching(tmp_path, program) as (launcher, _):
        with pytest.raises(SpawnError, match="gone") as failed:
            await launcher.launch(path)
        assert failed.value.data["field"] == "dir"
        launcher.reap()


async def test_a_request_that_dies_with_the_zygote_is_met_plainly(tmp_path: Path) -> None:
    """The zygote is halted with the request in its socket, and killed: the spawn still succeeds, once."""
    path = accept(tmp_path)
    async with launching(tmp_path) as (launcher, zygote):
        await eventually(lambda: zygote.pid is not None)
        assert zygote.pid is not None
        os.kill(zygote.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.launch, path)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(zygote.pid, signal.SIGKILL)
        process = launcher.probe(path)
        assert process is not None
        assert is_alive(process)
        assert zygote.forked == {}
        await launcher.end(path)


async def test_a_zygote_that_is_ending_is_collected_by_its_keeper_only(tmp_path: Path) -> None:
    """Its end may take a moment, and what looks for orphans meanwhile is not to take it for one."""
    told = tmp_path / "holder"
    script = f"sleep 1000 & echo $! > {told}; wait"  # what it has started holds its socket open
    zygote = ZygoteKeeper(tmp_path / "zygote.log", ("/bin/sh", "-c", script))
    launcher = LocalLauncher(zygote, lambda: ())
    scope = trio.CancelScope()

    async def keep() -> None:
        with scope:
            await zygote.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        await eventually(lambda: told.exists() and told.read_text().endswith("\n"))
        pid = zygote.pid
        assert pid is not None
        scope.cancel()
        await eventually(lambda: (found := read_stat(pid)) is not None and found.is_dead)
        launcher.reap()
        assert pid in children(os.getpid())
        os.kill(int(told.read_text()), signal.SIGKILL)
    assert pid not in children(os.getpid())


async def test_runtimes_outlive_the_zygote(tmp_path: Path) -> None:
    """Its end, by whatever cause, is none of theirs."""
    path = accept(tmp_path)
    async with launching(tmp_path) as (launcher, zygote):
        await eventually(lambda: zygote.pid is not None)
        process = await launcher.launch(path)
    assert is_alive(process)
    os.kill(process.pid, signal.SIGTERM)
    await wait_dead(process)


async def test_a_zygote_that_cannot_be_started_causes_no_storm(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again ever later: a few times in a minute, not thousands."""
    tries = 0

    def refuse(*_arguments: object, **_options: object) -> int:
        nonlocal tries
        tries += 1
        raise FileNotFoundError

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with trio.move_on_after(60):
        await ZygoteKeeper(tmp_path / "zygote.log", (sys.executable,)).run()
    assert 5 < tries < 15
