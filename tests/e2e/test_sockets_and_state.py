"""Families: stale and strange things at the socket's path, start races, corrupt state, full disks."""

import json
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import AVENOR, WAIT_SECONDS, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync, kill_each


def test_ten_starts_at_once_have_one_winner(place: Place) -> None:
    """Nine say that one is there, touch nothing of it, and leave no tombstone; the winner serves."""
    starts = [Stable(place, wait=False) for _ in range(10)]
    losers = eventually_sync(lambda: _nine(starts), WAIT_SECONDS)
    (winner,) = [each for each in starts if each not in losers]
    winner.wait_ready()
    with Client(winner.socket) as client:
        assert client.call("ping")["pid"] == winner.process.pid
        assert client.call("list") == []
    for each in losers:
        assert each.wait_exit() == 1
    assert not winner.tombstone.exists()
    assert winner.shutdown() == 0
    assert f"pid={winner.process.pid} " in winner.tombstone.read_text()


def _nine(starts: list[Stable]) -> list[Stable]:
    ended = [each for each in starts if each.process.poll() is not None]
    return ended if len(ended) == 9 else []


def test_a_failed_second_start_harms_nothing(stable: Stable) -> None:
    """Same socket, or another socket with the same state: refused with 1, and the first's files are untouched."""
    client = stable.connect()
    runtime_id = client.spawn(stable.place, script=stable.place.script(steps({"do": "hang"})))["runtime_id"]
    inode, names = stable.socket.stat().st_ino, sorted(os.listdir(stable.place.path))
    second = Stable(stable.place, wait=False)
    assert second.wait_exit() == 1
    other = stable.place.path / "other.sock"
    third = stable.place.start("stable", "--control-socket", str(other), "--state-dir", str(stable.state))
    assert third.wait(WAIT_SECONDS) == 1
    elsewhere = stable.place.path / "elsewhere"
    fourth = stable.place.start("stable", "--control-socket", str(stable.socket), "--state-dir", str(elsewhere))
    assert fourth.wait(WAIT_SECONDS) == 1
    assert stable.socket.stat().st_ino == inode
    assert not other.exists()
    assert not stable.tombstone.exists()
    assert set(os.listdir(stable.place.path)) - set(names) <= {"elsewhere", "other.sock.lock"}
    assert client.call("status", runtime_id=runtime_id)["status"] == "running"


@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "dangling link", "link to a file"])
def test_what_is_no_socket_is_left_alone(place: Place, kind: str) -> None:
    """Whatever stands at the socket's path that is no socket is neither removed nor followed; the start says so."""
    path = place.path / "s.sock"
    target = place.path / "target"
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        if kind == "link to a file":
            target.write_text("mine")
        path.symlink_to(target)
    before = os.lstat(path)
    stable = Stable(place, wait=False)
    complaints = stable.complaints()
    assert stable.process.returncode == 1
    assert str(path) in complaints
    assert "Traceback" not in complaints
    assert (os.lstat(path).st_ino, os.lstat(path).st_mode) == (before.st_ino, before.st_mode)
    assert not target.exists() or target.read_text() == "mine"
    assert "reason=start_failed" in stable.tombstone.read_text()


def test_a_foreign_live_socket_is_refused(place: Place) -> None:
    """Another program listens there: it is not robbed of its path."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.path / "s.sock"))
        listener.listen()
        stable = Stable(place, wait=False)
        assert stable.wait_exit() == 1
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(place.path / "s.sock"))


def test_an_overlong_path_is_a_clear_error(place: Place) -> None:
    """More than 107 bytes: the error names the limit, nothing is left."""
    stable = Stable(place, name="s" * 120, wait=False)
    complaints = stable.complaints()
    assert stable.process.returncode == 1
    assert "107" in complaints
    assert "Traceback" not in complaints
    run = place.run("--prompt", "x", "--control-socket", str(place.path / ("r" * 120)))
    assert run.finish() == 1
    assert b"107" in run.complaints
    assert run.outcome().status == "FAILED"


def test_a_deep_state_directory_is_no_problem(place: Place) -> None:
    """Runtimes' own sockets may lie beyond the limit: they are ours alone."""
    stable = Stable(place, name="s")
    stable.shutdown()
    deep = place.path / ("d" * 100) / ("e" * 100)
    process = place.start("stable", "--control-socket", str(stable.socket), "--state-dir", str(deep))
    stable.process = process
    stable.wait_ready()
    client = stable.connect()
    runtime_id = client.spawn(place)["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}


def test_a_socket_that_was_removed_is_not_removed_again(stable: Stable) -> None:
    """Somebody removed our socket and another took its place: at our exit that one stays."""
    client = stable.connect()
    client.call("ping")
    stable.socket.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(stable.socket))
        client.call("shutdown", mode="graceful")
        assert stable.wait_exit() == 0
        assert stable.socket.exists()


def test_corrupt_state_is_reported_and_the_rest_goes_on(place: Place) -> None:
    """Damaged records, logs and strangers in the state directory: it starts, and goes on with the rest."""
    first = Stable(place, "--max-parked", "100")
    client = first.connect()
    count = 9
    asked = [
        client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", label=f"l{number}")
        for number in range(count)
    ]
    for each in asked:
        runtime_id = client.answer(each)["result"]["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
    assert first.shutdown() == 0

    def damage(number: int, name: str, data: bytes) -> None:
        (first.state / f"rt_{number}" / name).write_bytes(data)

    damage(1, "record.json", b"")
    damage(2, "record.json", b'{"runtime_id":"rt_2","run')
    damage(3, "record.json", b'{"runtime_id":7}')
    log = (first.state / "rt_4" / "events.ndjson").read_bytes()
    damage(4, "events.ndjson", log[: log.index(b'{"event":"run.ending"') + 20])
    damage(5, "events.ndjson", log[:300] + b"\x00" * 200 + b"\n\xff\xfe\n{}\n[]\nnull\n" + log[300:])
    damage(6, "events.ndjson", b"")
    damage(7, "process.json", b"\xff")
    (first.state / "rt_8" / "events.ndjson").unlink()
    (first.state / "rt_8" / "events.ndjson").mkdir()
    (first.state / "rt_x").mkdir()
    (first.state / "rt_12").write_text("a file")
    (first.state / "rt_13").mkdir()
    (first.state / "rt_00").mkdir()
    second = Stable(place)
    client = second.connect()
    eventually_sync(lambda: all(each["status"] == "ended" for each in client.call("list")), WAIT_SECONDS)
    listed = {each["runtime_id"]: each for each in client.call("list")}
    assert {"rt_4", "rt_5", "rt_6", "rt_7", "rt_9"} <= set(listed)
    assert {listed[name]["outcome"] for name in ("rt_7", "rt_9")} == {"DONE"}
    assert listed["rt_4"]["stop_reason"] == "runtime_lost"
    assert [json.loads(line) for line in (first.state / "rt_4" / "events.ndjson").read_bytes().splitlines()]
    for name in listed:
        assert all(
            each.keys() & {"result", "error"}
            for each in map(
                client.answer, [client.send("history", runtime_id=name), client.send("result", runtime_id=name)]
            )
        )
    assert (first.state / "rt_2" / "record.json").read_bytes() == b'{"runtime_id":"rt_2","run'
    spawned = client.spawn(place)
    assert spawned["runtime_id"] == "rt_14"
    assert client.call("wait", runtime_id="rt_14", until="done")["outcome"] == "DONE"
    assert second.shutdown() == 0
    complaints = second.complaints() if second.process.stderr and not second.process.stderr.closed else ""
    assert "Traceback" not in complaints


def test_a_stale_record_that_points_to_a_stranger(place: Place) -> None:
    """A runtime's process file names a pid that is somebody else's now: nobody is signalled, the run is told lost."""
    first = Stable(place)
    client = first.connect()
    runtime_id = client.spawn(place, script=place.script(steps({"do": "hang"})))["runtime_id"]
    first.signal(signal.SIGKILL)
    first.wait_exit()
    pid = first.runtime_pid(runtime_id)
    kill_each(place.processes())
    eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        directory = first.state / runtime_id
        process = json.loads((directory / "process.json").read_text())
        (directory / "process.json").write_text(json.dumps({**process, "pid": stranger.pid}))
        procs = (directory / "procs").read_text()
        (directory / "procs").write_text(procs.replace(str(pid), str(stranger.pid)))
        second = Stable(place)
        client = second.connect()
        assert client.call("wait", runtime_id=runtime_id, until="done")["stop_reason"] == "runtime_lost"
        eventually_sync(lambda: (directory / "sentinel.env").exists(), WAIT_SECONDS)
        assert is_alive(stranger.pid)
        stranger.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_loses_events_and_says_which(place: Place) -> None:
    """The journal's file system fills up: the run goes on, every line is whole, and what was lost is named."""
    small = place.path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        stable = Stable(place, name="small/s")
        client = stable.connect()
        gate, end = place.work / "gate", place.work / "end"
        script = place.script(
            steps(
                {"do": "flood", "count": 400, "size": 10_000},
                {"do": "wait_for", "path": str(gate)},
                say("After."),
            )
        )
        runtime_id = client.spawn(place, script=script)["runtime_id"]
        client.call("subscribe", runtime_id=runtime_id)
        filler = small / "filler"
        eventually_sync(lambda: os.statvfs(small).f_bavail * 4096 < 20_000, WAIT_SECONDS)
        assert client.call("status", runtime_id=runtime_id)["status"] == "running"
        assert not filler.exists()
        log = stable.log_path(runtime_id)
        # Room again: what was written so far is all whole lines.
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        gate.touch()
        assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
        assert client.call("cancel", runtime_id=runtime_id)["ok"] is True
        events = read_log(log)
        assert not end.exists()
        seqs = [event["seq"] for event in events]
        assert seqs == sorted(set(seqs))
        missing = sorted(set(range(1, seqs[-1] + 1)) - set(seqs))
        told = [seq for e in events if "lost_from" in e for seq in range(e["lost_from"], e["lost_to"] + 1)]
        assert missing
        assert told == missing
        assert events[-1]["event"] == "run.end"
        assert stable.sentinel(runtime_id).status == "DONE"
        assert stable.shutdown() == 0
    finally:
        kill_each(place.processes())
        eventually_sync(
            lambda: subprocess.run(["umount", str(small)], capture_output=True).returncode == 0, WAIT_SECONDS
        )


def test_a_log_that_may_not_grow_does_not_end_the_run(place: Place) -> None:
    """RLIMIT_FSIZE on the `--on-event` copy of a one-shot run: no SIGXFSZ death, the true outcome, whole lines."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    script = place.script(steps({"do": "flood", "count": 300, "size": 1000}, say("Done.")))
    run = place.run("--prompt", "x", "--script", script, setup=limit)
    assert run.finish() == 0
    assert run.outcome().status == "DONE"
    data = run.log.read_bytes()
    assert data.endswith(b"\n")
    assert len(data) <= 100_000
    assert all(json.loads(line)["event"] for line in data.splitlines())


def test_control_without_a_server_says_so(place: Place) -> None:
    """Exit code 3, and what to do; a stale socket is the same as none."""
    path = place.path / "s.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    for missing in (path, place.path / "nowhere.sock", Path("/")):
        result = subprocess.run([AVENOR, "control", "--socket", str(missing), "list"], capture_output=True, timeout=60)
        assert result.returncode == 3, result
        assert b"Traceback" not in result.stderr
