"""Locks that live as long as their holder."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from avenor.host import lock as lock_module
from avenor.host.lock import FileLock, is_locked, keep_alone

HOLDER = """
import sys, subprocess
from avenor.host import lock as lock_module
from avenor.host.lock import FileLock
lock = FileLock(sys.argv[1])
assert lock.try_acquire()
tool = subprocess.Popen(["sleep", "1000"], close_fds=False, stdout=subprocess.DEVNULL)
print(tool.pid, flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second try fails, in the same process too, until the first lets go."""
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert first.is_held
    assert is_locked(tmp_path / "lock")
    assert not second.try_acquire()
    assert not second.is_held
    first.release()
    first.release()
    assert not is_locked(tmp_path / "lock")
    assert second.try_acquire()
    second.release()


def test_only_the_user_can_open_the_file(tmp_path: Path) -> None:
    """Nobody else can hold our locks."""
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    lock.release()


def test_death_frees_the_lock_although_a_tool_lives_on(tmp_path: Path) -> None:
    """SIGKILL frees it at once, and a program that the holder started has no part in it."""
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        tool = int(holder.stdout.readline())
        try:
            assert is_locked(path)
            assert not FileLock(path).try_acquire()
            holder.kill()
            holder.wait()
            assert not is_locked(path)
            os.kill(tool, 0)
        finally:
            os.kill(tool, signal.SIGKILL)


def test_a_probe_never_makes_an_acquire_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody only looks, the free lock is waited for and got."""
    path = tmp_path / "lock"
    path.touch()
    lock, was_refused = FileLock(path), threading.Event()
    monkeypatch.setattr(os, "sched_yield", was_refused.set)
    acquire = threading.Thread(target=lock.try_acquire)
    with path.open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        acquire.start()
        assert was_refused.wait(60)
    acquire.join()
    assert lock.is_held
    lock.release()


def test_a_probe_that_was_halted_does_not_halt_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it counts as a holder."""
    path = tmp_path / "lock"
    path.touch()
    monkeypatch.setattr(lock_module, "_PROBE_SECONDS", 0)
    with path.open() as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        assert not FileLock(path).try_acquire()


def test_a_lock_removed_by_its_holder_is_not_held_by_who_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the old file ends up with the one that others see."""
    path = tmp_path / "lock"
    holder, waiting = FileLock(path), FileLock(path)
    assert holder.try_acquire()
    flock = fcntl.flock

    def remove_first(fd: int, operation: int) -> None:
        monkeypatch.undo()
        holder.remove()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert waiting.try_acquire()
    assert is_locked(path)
    assert not FileLock(path).try_acquire()
    waiting.remove()
    assert not path.exists()


def test_a_lock_whose_file_cannot_be_removed_is_given_up(tmp_path: Path) -> None:
    """Whoever waits for it has not to wait for the end of the process."""
    path = tmp_path / "lock"
    lock = FileLock(path)
    assert lock.try_acquire()
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="lock"):
        lock.remove()
    assert not lock.is_held


def test_a_lock_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    """No directory is no free lock; only a missing file is."""
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "no" / "lock").try_acquire()
    assert not is_locked(tmp_path / "no" / "lock")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "link").try_acquire()


def test_a_file_that_is_kept_alone_is_refused_to_others_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who only has it for a moment is waited for."""
    path = tmp_path / "log"
    path.touch()
    first, second = (os.open(path, os.O_WRONLY) for _ in range(2))
    keep_alone(first, path)

    def let_go(_seconds: float) -> None:
        os.close(first)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", let_go)
        keep_alone(second, path)
    third = os.open(path, os.O_WRONLY)
    monkeypatch.setattr(lock_module, "MOMENT_SECONDS", 0.0)
    with pytest.raises(OSError, match=r"in use by another run.*log"):
        keep_alone(third, path)
    os.close(second)
    os.close(third)


def test_what_cannot_be_kept_alone_stays_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices and pipes, and files on a system without locks."""
    null = [os.open(os.devnull, os.O_WRONLY) for _ in range(2)]
    for fd in null:
        keep_alone(fd, os.devnull)
        os.close(fd)

    def refuse(_fd: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open(tmp_path / "log", "wb") as file:
        keep_alone(file.fileno(), tmp_path / "log")


def test_a_named_pipe_at_a_locks_path_is_not_waited_for(tmp_path: Path) -> None:
    """Somebody may have put it there; nobody holds it."""
    os.mkfifo(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
