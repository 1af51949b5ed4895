"""The whole of it: a supervisor process, its zygote, real runtimes, the scripted agent."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.host.identity import process_id
from avenor.host.tree import children, descendants
from avenor.protocol.outcomes import Outcome, parse_sentinel
from tests.helpers import command_of, eventually, kill_each
from tests.stable.kit import SPAWN, Client

_PROGRAM = """
import json, sys, msgspec
from avenor.stable.options import Options
from avenor.stable.supervisor import run_supervisor
sys.exit(run_supervisor(msgspec.convert(json.loads(sys.argv[1]), Options)))
"""
# The agent is started, says nothing for ever, and ignores a polite end.
_HANGING = {"rules": [{"steps": [{"do": "say", "text": "hm"}, {"do": "hang"}]}]}


class Started:
    """A supervisor process."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.socket = tmp_path / "s.sock"
        self.state = tmp_path / "state"
        self.tombstone = tmp_path / "s.sock.dead"
        chosen = {"control_socket": str(self.socket), "state_dir": str(self.state), **options}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(chosen)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self._streams: list[trio.SocketStream] = []

    async def connect(self) -> Client:
        """A client, once the supervisor answers."""
        stream = await eventually(self._dial)
        assert stream is not None
        self._streams.append(stream)
        client = Client(stream)
        await client.call("ping")
        return client

    async def _dial(self) -> trio.SocketStream | None:
        assert self.process.poll() is None, "the supervisor has ended"
        try:
            return await trio.open_unix_socket(str(self.socket))
        except OSError:  # not there yet, or not listening yet
            return None

    async def wait(self) -> int:
        """The exit code."""
        await eventually(lambda: self.process.poll() is not None)
        return self.process.wait()

    def zygote(self) -> int:
        """The pid of its zygote."""
        return next(
            found.id.pid
            for found in descendants(self.process.pid)
            if "avenor.runtimes.zygote" in command_of(found.id.pid)
        )

    def clean_up(self) -> None:
        """Leave nothing behind, whatever the test came to."""
        for stream in self._streams:
            stream.socket.close()
        pids = [json.loads(path.read_text())["pid"] for path in self.state.glob("rt_*/process.json")]
        for pid in [*pids, self.process.pid]:
            kill_each([*(found.id.pid for found in descendants(pid)), pid])
        self.process.communicate()


@pytest.fixture
async def supervisors() -> AsyncGenerator[list[Started], None]:
    """Supervisors started here are ended with all below them."""
    started: list[Started] = []
    yield started
    for each in started:
        each.clean_up()


def told(spawned: dict[str, Any]) -> Outcome:
    """What the sentinel of a spawn says."""
    return parse_sentinel(Path(spawned["sentinel_file"]).read_text())


def names_in(directory: Path) -> list[str]:
    """What is in a directory."""
    return sorted(path.name for path in directory.iterdir())


def ignored_signals(pid: int) -> int:
    """The mask of the signals that a process ignores."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))


def start(supervisors: list[Started], tmp_path: Path, **options: Any) -> Started:
    """Start a supervisor."""
    supervisors.append(Started(tmp_path, **options))
    return supervisors[-1]


async def test_a_run_is_spawned_followed_up_and_shut_down(tmp_path: Path, supervisors: list[Started]) -> None:
    """The main job, ended by SIGTERM: sentinel, tombstone, and nothing left."""
    stable = start(supervisors, tmp_path)
    client = await stable.connect()
    spawned = await client.call("spawn", **SPAWN)
    assert spawned["session_id"]
    first = await client.call("wait", until="done", timeout_ms=20000)
    assert (first["status"], first["outcome"]) == ("idle", "DONE")
    await client.call("prompt", text="again")
    await client.call("wait", until="done", timeout_ms=20000)
    assert "turn 2" in (await client.call("result"))["final_output"]
    below = descendants(stable.process.pid)
    stable.process.send_signal(signal.SIGTERM)
    assert await stable.wait() == 0
    assert stable.tombstone.read_text().startswith(f"STOPPED reason=signal pid={stable.process.pid} at=")
    assert told(spawned).status == "DONE"
    assert not stable.socket.exists()
    await eventually(lambda: all(process_id(found.id.pid) != found.id for found in below))


async def test_a_runtime_killed_in_a_turn_is_told_as_lost_and_its_agent_ends(
    tmp_path: Path, supervisors: list[Started]
) -> None:
    """kill -9 of the runtime: its tools are swept, log and sentinel say what happened, the supervisor goes on."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(_HANGING))
    stable = start(supervisors, tmp_path)
    client = await stable.connect()
    spawned = await client.call("spawn", **{**SPAWN, "script": str(script)})
    status = await client.call("status")
    agents = descendants(status["pid"])
    assert agents
    os.kill(status["pid"], signal.SIGKILL)
    ended = await client.call("wait", runtime_id="rt_1", until="done", timeout_ms=20000)
    assert (ended["outcome"], ended["stop_reason"]) == ("FAILED", "runtime_lost")
    assert "-9" in ended["reason"]
    assert all(process_id(agent.id.pid) != agent.id for agent in agents)
    await eventually(lambda: told(spawned).stop_reason == "runtime_lost")
    assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_2"


async def test_a_second_start_touches_nothing_of_the_first(tmp_path: Path, supervisors: list[Started]) -> None:
    """Neither on its socket nor on its state directory; the first goes on."""
    first = start(supervisors, tmp_path)
    client = await first.connect()
    inode = first.socket.stat().st_ino
    same = start(supervisors, tmp_path)
    assert await same.wait() == 1
    other = start(supervisors, tmp_path, control_socket=str(tmp_path / "other.sock"))
    assert await other.wait() == 1
    elsewhere = start(supervisors, tmp_path, state_dir=str(tmp_path / "elsewhere"))
    assert await elsewhere.wait() == 1
    assert first.socket.stat().st_ino == inode
    assert names_in(tmp_path) == ["elsewhere", "s.sock", "s.sock.lock", "state"]
    assert (await client.call("ping"))["pid"] == first.process.pid


async def test_a_start_that_cannot_bind_says_so(tmp_path: Path, supervisors: list[Started]) -> None:
    """What is not a socket is left alone, and the tombstone tells why there is no supervisor."""
    (tmp_path / "s.sock").write_text("mine")
    stable = start(supervisors, tmp_path)
    assert await stable.wait() == 1
    assert (tmp_path / "s.sock").read_text() == "mine"
    assert "reason=start_failed" in stable.tombstone.read_text()


async def test_a_start_that_fails_does_not_deny_the_supervisor_that_lives(
    tmp_path: Path, supervisors: list[Started]
) -> None:
    """Its state directory cannot be made, and on its socket is another one: no tombstone says that none is there."""
    first = start(supervisors, tmp_path)
    await first.connect()
    (tmp_path / "file").touch()
    second = start(supervisors, tmp_path, state_dir=str(tmp_path / "file/state"))
    assert await second.wait() == 1
    assert not first.tombstone.exists()
    first.process.send_signal(signal.SIGKILL)
    await first.wait()
    third = start(supervisors, tmp_path, state_dir=str(tmp_path / "file/state"))
    assert await third.wait() == 1
    assert f"reason=start_failed pid={third.process.pid} " in first.tombstone.read_text()


async def test_a_supervisor_that_inherits_ignored_ends_of_children_learns_of_them(
    tmp_path: Path, supervisors: list[Started]
) -> None:
    """SIGCHLD was ignored by whoever started it: its zygote may die all the same, and its own end is in good order."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        stable = start(supervisors, tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)
    client = await stable.connect()
    killed = stable.zygote()
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: children(stable.process.pid) not in ([], [killed]))
    await client.call("shutdown")
    assert await stable.wait() == 0
    assert "reason=shutdown" in stable.tombstone.read_text()


async def test_runtimes_outlive_a_detached_supervisor(tmp_path: Path, supervisors: list[Started]) -> None:
    """SIGHUP: the run goes on, and the next supervisor has it under the same id and process."""
    first = start(supervisors, tmp_path)
    client = await first.connect()
    await client.call("spawn", **SPAWN)
    before = await client.call("wait", until="done", timeout_ms=20000)
    first.process.send_signal(signal.SIGHUP)
    assert await first.wait() == 0
    assert "reason=detached" in first.tombstone.read_text()
    second = start(supervisors, tmp_path)
    client = await second.connect()
    assert not second.tombstone.exists()
    after = await eventually(lambda: client.call("status"))
    await client.call("wait", until="done", timeout_ms=20000)
    assert (after["runtime_id"], (await client.call("status"))["pid"]) == ("rt_1", before["pid"])
    await client.call("prompt", text="still there?")
    await client.call("wait", until="done", timeout_ms=20000)
    assert "turn 2" in (await client.call("result"))["final_output"]
    assert (await client.call("cancel"))["ok"] is True


async def test_a_killed_zygote_costs_nothing(tmp_path: Path, supervisors: list[Started]) -> None:
    """Its runtimes live on, and the next spawn works at once; a new zygote comes."""
    stable = start(supervisors, tmp_path)
    client = await stable.connect()
    await client.call("spawn", **SPAWN, wait="started")
    old = stable.zygote()
    os.kill(old, signal.SIGKILL)
    await client.call("spawn", **SPAWN, wait="started")
    assert [each["outcome"] for each in await client.call("list")].count("FAILED") == 0
    assert await eventually(lambda: stable.zygote() != old)
    await client.call("cancel", runtime_id="rt_1")
    await client.call("cancel", runtime_id="rt_2")


async def test_a_runtime_has_nothing_of_the_supervisors(tmp_path: Path, supervisors: list[Started]) -> None:
    """A session, directory, environment and signal settings of its own, and no descriptor but its own."""
    work = tmp_path / "work"
    work.mkdir()
    stable = start(supervisors, tmp_path)
    client = await stable.connect()
    await client.call("spawn", **{**SPAWN, "dir": str(work), "env": {"MARK": "here"}})
    pid = (await client.call("wait", until="done", timeout_ms=20000))["pid"]
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == str(work)
    targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    standard = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert standard == ["/dev/null", "/dev/null", str(stable.state / "rt_1/stderr.log")]
    assert not [target for target in targets if "zygote" in target or target == str(stable.state / "lock")]
    ignored = ignored_signals(pid)
    assert ignored & 0x7FFF_FFFF == (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)
    await client.call("cancel")


async def test_a_queue_of_many_short_runs_gives_each_its_outcome(tmp_path: Path, supervisors: list[Started]) -> None:
    """Many at once over several clients: distinct ids, one sentinel each."""
    stable = start(supervisors, tmp_path, max_runtimes=3, max_parked=0)
    results: list[dict[str, Any]] = []

    async def spawn_three() -> None:
        client = await stable.connect()
        for _ in range(3):
            results.append(await client.call("spawn", **SPAWN))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(spawn_three)
    assert len({result["runtime_id"] for result in results}) == 9
    client = await stable.connect()

    async def all_ended() -> bool:
        return all(each["status"] == "ended" for each in await client.call("list"))

    await eventually(all_ended)
    assert {told(each).status for each in results} == {"DONE"}
    assert msgspec.json.decode((stable.state / "rt_9/record.json").read_bytes())["runtime_id"] == "rt_9"
