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
from trio.testing import MockClock

from avenor.host.identity import is_alive, wait_dead
from avenor.host.rundir import RunDir
from avenor.protocol.errors import SpawnError
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.stable.launcher import LocalLauncher
from avenor.stable.zygote import ZygoteKeeper
from tests.helpers import eventually

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


@pytest.mark.parametrize("program", [(), _NO_ZYGOTE], ids=["zygote", "plain"])
async def test_a_runtime_is_launched_probed_and_ended(tmp_path: Path, program: tuple[str, ...]) -> None:
    """With the zygote, and without one; afterwards neither it nor its agent lives."""
    path = accept(tmp_path)
    async with launching(tmp_path, program) as (launcher, zygote):
        if not program:
            await eventually(lambda: zygote.pid is not None)
        process = await launcher.launch(path)
        assert launcher.probe(path) == process
        assert (str(path) in zygote.forked) == (not program)
        await eventually(lambda: RunDir(path).procs_path.exists())
        await launcher.end(path)
        assert not is_alive(process)
        assert launcher.probe(path) is None
        assert await launcher.exit_status(path) == (None if program else -signal.SIGKILL)
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
