"""A runtime in its directory, as a supervisor starts it: readiness, life, parking, and what it leaves."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from avenor.control.blocking import open_client
from avenor.host.lock import is_locked
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import Sentinel
from avenor.protocol.errors import ErrorObject
from avenor.protocol.events import Error
from avenor.protocol.outcomes import Status, parse_sentinel
from tests.helpers import eventually_sync
from tests.runtimes.run_driver import Child, alive, read_log, script_of, start_in

SAY = {"do": "say", "text": "the answer"}


def names(child: Child) -> list[str]:
    return [str(event.__struct_config__.tag) for event in read_log(child.log_path)]


def test_a_ready_runtime_holds_its_lock_and_answers_on_its_socket(tmp_path: Path) -> None:
    """The readiness line comes when the socket answers."""
    child = Child(tmp_path / "rt_1", script=script_of(tmp_path, SAY))
    assert child.ready == "ready\n"
    with open_client(child.socket_path) as client:
        pong = client.ping()
        assert (pong.pid, pong.runtime_id, pong.mode) == (child.process.pid, "rt_1", "run")
        rundir = RunDir(child.directory)
        assert is_locked(rundir.lock_path)
        written = rundir.read_process()
        assert written is not None
        assert (written.pid, written.start_ticks, written.boot_id) == (pong.pid, pong.start_time, pong.boot_id)
        client.cancel()
    assert child.finish() in (0, 130)
    assert not is_locked(rundir.lock_path)
    assert not os.path.exists(child.socket_path)


def test_a_parked_runtime_takes_a_follow_up_in_the_same_session(tmp_path: Path) -> None:
    """Idle with its sentinel; then the next turn in the warm agent; then a cancel leaves the sentinel as it was."""
    child = Child(tmp_path / "rt_1", script=script_of(tmp_path, {"do": "echo"}))
    with open_client(child.socket_path) as client:
        first = client.wait(until="done")
        assert first.status == "idle"
        assert parse_sentinel(child.sentinel_path.read_text()).status is Status.DONE
        client.prompt("again")
        second = client.wait(until="done")
        assert (second.status, second.session_id) == ("idle", first.session_id)
        assert "again" in (client.result().final_output or "")
        inode = child.sentinel_path.stat().st_ino
        assert client.cancel().ok
    assert child.finish() == 0
    assert child.sentinel_path.stat().st_ino == inode
    assert names(child)[-1] == "run.end"
    assert names(child).count("session.start") == 1


def test_sigterm_ends_a_parked_runtime_without_touching_its_sentinel(tmp_path: Path) -> None:
    """The outcome of its last turn stands."""
    child = Child(tmp_path / "rt_1", script=script_of(tmp_path, SAY))
    with open_client(child.socket_path) as client:
        client.wait(until="done")
    before = child.sentinel_path.read_bytes()
    child.process.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert child.sentinel_path.read_bytes() == before


def test_a_parked_runtime_ends_itself_when_nobody_comes(tmp_path: Path) -> None:
    """Without any supervisor."""
    child = Child(tmp_path / "rt_1", parked_timeout=0.2, script=script_of(tmp_path, SAY))
    assert child.finish() == 0
    assert parse_sentinel(child.sentinel_path.read_text()).status is Status.DONE


def test_a_second_process_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    """The lock is the fence: the first one's files are not touched."""
    child = Child(tmp_path / "rt_1", script=script_of(tmp_path, SAY))
    process_file = (child.directory / "process.json").read_bytes()
    second, said = start_in(child.directory)
    assert second.wait(timeout=60) == 1
    kind, _, error = said.partition(" ")
    assert kind == "error"
    assert "another process" in msgspec.json.decode(error, type=ErrorObject).message
    assert (child.directory / "process.json").read_bytes() == process_file
    child.process.send_signal(signal.SIGTERM)
    child.finish()


def test_a_late_process_that_finds_an_outcome_leaves_it_alone(tmp_path: Path) -> None:
    """The run has ended; nothing is appended."""
    child = Child(tmp_path / "rt_1", parks=False, script=script_of(tmp_path, SAY))
    child.finish()
    log = child.log_path.read_bytes()
    late, said = start_in(child.directory)
    late.wait(timeout=60)
    assert said.startswith("error ")
    assert child.log_path.read_bytes() == log


@pytest.mark.parametrize("content", [b"", b"{", b'{"runtime_id": 5}'])
def test_a_record_that_cannot_be_read_is_told_on_the_readiness_pipe(tmp_path: Path, content: bytes) -> None:
    """And nothing is run."""
    (tmp_path / "record.json").write_bytes(content)
    process, said = start_in(tmp_path)
    assert process.wait(timeout=60) != 0
    assert said.startswith("error ")
    assert not (tmp_path / "events.ndjson").exists()


def test_a_runtime_that_cannot_open_its_copy_fails_with_outcome_and_sentinel(tmp_path: Path) -> None:
    """The readiness pipe, the log and the sentinel say the same."""
    child = Child(tmp_path / "rt_1", on_event=str(tmp_path / "missing" / "log"), script=script_of(tmp_path, SAY))
    assert child.ready.startswith("error ")
    assert child.finish() == 1
    assert names(child) == ["run.start", "run.end"]
    assert parse_sentinel(child.sentinel_path.read_text()).stop_reason == "invalid_config"


def test_a_parked_runtime_leaves_its_sentinel_to_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a process that goes on with it. A follow-up finds the sentinel taken, says so, and is done all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sentinel = tmp_path / "run.done"
    child = Child(tmp_path / "rt_1", sentinel_file=str(sentinel), script=script_of(tmp_path, {"do": "echo"}))
    with open_client(child.socket_path) as client:
        client.wait(until="done")
    child.process.kill()
    child.finish()
    other = Sentinel(sentinel)
    other.keep()
    sentinel.unlink()
    process, said = start_in(child.directory)
    assert said == "ready\n"
    with open_client(child.socket_path) as client:
        assert client.status().status == "idle"
        client.prompt("again")
        client.wait(until="done")
        assert "again" in (client.result().final_output or "")
        assert not sentinel.exists()
        other.give_up()
        client.prompt("more")
        client.wait(until="done")
        assert parse_sentinel(sentinel.read_text()).stop_reason == "end_turn"
        client.cancel()
    process.wait(timeout=60)
    problems = [event.message for event in read_log(child.log_path) if isinstance(event, Error)]
    assert problems == [f"cannot write {sentinel} for this turn: it is in use by another run"]


def test_a_killed_runtimes_log_has_whole_lines_and_names_what_it_started(tmp_path: Path) -> None:
    """SIGKILL leaves no sentinel, and the procs file tells what to sweep."""
    child = Child(tmp_path / "rt_1", script=script_of(tmp_path, SAY, {"do": "hang"}))
    eventually_sync(lambda: "turn.start" in names(child))
    child.process.kill()
    child.finish()
    assert not child.sentinel_path.exists()
    started = [msgspec.json.decode(line)["pid"] for line in (child.directory / "procs").read_bytes().splitlines()]
    assert len(started) == 1
    # Its stdin has ended with the runtime, which is how this agent learns of it.
    eventually_sync(lambda: alive(started) == [])
