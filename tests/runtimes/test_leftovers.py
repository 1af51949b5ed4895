"""What killed `avenor run`s have left is swept by the next one, and nothing else is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from avenor.host import tree
from avenor.host.identity import ProcessId, process_id
from avenor.host.lock import FileLock
from avenor.host.procs import ProcsFile
from avenor.host.rundir import RunDir
from avenor.runtimes.leftovers import sweep_leftovers


class Dead:
    """The directory of a run whose process was killed; what that has started may be alive."""

    def __init__(self, runs: Path) -> None:
        self.rundir = RunDir(runs / "run-1")
        self.rundir.path.mkdir()
        started = subprocess.Popen([sys.executable, "-c", ""])
        found = process_id(started.pid)
        assert found is not None
        started.wait()
        self.write(found)
        (self.rundir.path / "private").mkdir()

    def write(self, process: ProcessId) -> None:
        """Writes the process down as the run's."""
        self.process = process
        self.rundir.process_path.write_bytes(msgspec.json.encode(process))

    @property
    def is_there(self) -> bool:
        """Whether anything is left of it."""
        return self.rundir.path.exists()


@pytest.fixture
def dead(tmp_path: Path) -> Dead:
    return Dead(tmp_path)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_dead_run_is_swept_with_what_it_has_started(
    dead: Dead, tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """Nothing is kept of a run that had no writers; what is no run's directory is not looked at."""
    (tmp_path / "other").mkdir()
    agent = process_id(sleeper.pid)
    assert agent is not None
    ProcsFile(dead.rundir.procs_path).append(agent, agent.pid)
    assert sweep_leftovers(tmp_path) == []
    assert not dead.is_there
    assert sleeper.wait(timeout=30) < 0
    assert (tmp_path / "other").exists()


def test_a_run_that_lives_or_begins_is_left_alone(dead: Dead, tmp_path: Path) -> None:
    """Its lock is held; or it has not written down its process, which it does once it holds the lock."""
    lock = FileLock(dead.rundir.lock_path)
    assert lock.try_acquire()
    assert sweep_leftovers(tmp_path) == []
    assert dead.is_there
    lock.release()
    dead.rundir.process_path.unlink()
    sweep_leftovers(tmp_path)
    assert dead.is_there


def test_a_run_of_another_user_is_left_alone(dead: Dead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where we could remove it, as root could."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    sweep_leftovers(tmp_path)
    assert dead.is_there


def test_a_run_that_we_belong_to_is_left_to_others(dead: Dead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent may have started us: by the mark in our environment, or above us."""
    name, value = tree.tree_tag(dead.process.pid, dead.process.start_ticks)
    with monkeypatch.context() as patch:
        patch.setenv(name, value)
        sweep_leftovers(tmp_path)
        assert dead.is_there
    parent = process_id(os.getppid())
    assert parent is not None
    ProcsFile(dead.rundir.procs_path).append(parent, parent.pid)
    sweep_leftovers(tmp_path)
    assert dead.is_there


def test_after_a_reboot_nothing_is_looked_for(dead: Dead, tmp_path: Path) -> None:
    """The pids are others' now; what is on the disk goes."""
    own = process_id(os.getpid())
    assert own is not None
    dead.write(ProcessId(own.pid, own.start_ticks, "earlier"))
    sweep_leftovers(tmp_path)
    assert not dead.is_there


def test_a_record_that_cannot_be_read_keeps_the_directory(dead: Dead, tmp_path: Path) -> None:
    """It may be a later version's, and the files in it somebody's work; the copies of logins go."""
    dead.rundir.record_path.write_bytes(b"?")
    assert sweep_leftovers(tmp_path) == []
    assert dead.is_there
    assert not (dead.rundir.path / "private").exists()
