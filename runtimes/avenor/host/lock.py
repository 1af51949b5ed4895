"""Locks that prove life: held by a process for as long as it lives, freed by the kernel when it dies."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# A probe (`is_locked`) holds its shared lock for microseconds. One that was halted in between counts as a holder after
# this time.
_PROBE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.005
# Who only tells of a run that failed to start has its files for milliseconds.
MOMENT_SECONDS: Final = 2.0


class FileLock:
    """An exclusive `flock` on a file, which is made (0600) when it is not there.

    The lock belongs to the open file description, not to the process. So it is not held twice by one process; it
    ends when the last copy of the descriptor is closed, by death too; it does not survive `exec` (the descriptor is
    close-on-exec); and **a child forked without exec shares it** and would keep it alive after its parent's death:
    take locks after the fork, and close inherited descriptors. Not for network file systems.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._fd: int | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def try_acquire(self) -> bool:
        """Take the lock if it is free. False means that a live holder has it; a concurrent probe never causes that.

        Raises:
            OSError: The file can neither be opened nor made.
        """
        if self._fd is not None:
            return True
        deadline = time.monotonic() + _PROBE_SECONDS
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _flock(fd, fcntl.LOCK_EX):
                if _is_file_at(fd, self._path):
                    self._fd = fd
                    return True
                os.close(fd)  # removed by its last holder while we waited for our turn
                continue
            is_held = not _flock(fd, fcntl.LOCK_SH)  # an exclusive holder refuses this too, a probe does not
            os.close(fd)
            if is_held or time.monotonic() > deadline:
                return False
            os.sched_yield()

    def release(self) -> None:
        """Give the lock up; without effect when it is not held. Forked copies of the descriptor do not keep it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def remove(self) -> None:
        """Remove the file and give the lock up; only the holder may, for only then can nobody get two locks of it.

        Raises:
            OSError: The file cannot be removed. The lock is given up all the same.
        """
        assert self._fd is not None
        try:
            self._path.unlink(missing_ok=True)
        finally:
            self.release()


def acquired_within(seconds: float, try_acquire: Callable[[], bool]) -> bool:
    """Whether a lock could be taken in that time. Blocks."""
    deadline = time.monotonic() + seconds
    # Polling: flock has no deadline, and a holder that was halted must not halt us.
    while not try_acquire():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def keep_alone(fd: int, path: str | Path) -> None:
    """Let no other run write to an open file as long as it is open; a pipe or device stays everybody's. Blocks.

    Raises:
        OSError: `EBUSY`, another one has had it for longer than a moment.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        is_ours = acquired_within(MOMENT_SECONDS, lambda: _flock(fd, fcntl.LOCK_EX))
    except OSError:  # a file system without locks
        return
    if not is_ours:
        raise in_use(path)


def in_use(path: str | Path) -> OSError:
    """The error for a file that another live run has for itself."""
    return OSError(errno.EBUSY, "it is in use by another run", str(path))


def is_locked(path: str | Path) -> bool:
    """Whether somebody holds the lock; a file that is not there is not locked.

    Raises:
        OSError: The file cannot be opened, other than for not being there.
    """
    try:
        # O_NONBLOCK: somebody may have put a named pipe there.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
