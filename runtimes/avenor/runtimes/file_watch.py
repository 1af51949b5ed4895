"""Notices changes in a directory: at once where the system can tell, by looking now and then where it cannot."""

import ctypes
import os
import sys
from types import TracebackType
from typing import Final, Self

import trio

# inotify(7): a file was closed after writing, moved in, or created (a hard link is created and never written).
_MASK: Final = 0x08 | 0x80 | 0x100
_NOTICES_BYTES: Final = 4096


class DirectoryWatch:
    """Watches one directory, from construction until it is closed.

    Args:
        directory: An existing directory.
    """

    def __init__(self, directory: str) -> None:
        self._fd = _open_inotify(directory)

    @property
    def is_notified(self) -> bool:
        """Whether changes are told by the system; False where one has to look."""
        return self._fd >= 0

    async def wait_change(self) -> None:
        """Returns once something in the directory changed. Only for a watch that is notified."""
        await trio.lowlevel.wait_readable(self._fd)
        while _drain(self._fd):
            pass

    def close(self) -> None:
        """Ends the watch; harmless twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drain(fd: int) -> bool:
    try:
        return bool(os.read(fd, _NOTICES_BYTES))
    except BlockingIOError:
        return False


def _open_inotify(directory: str) -> int:
    """A non-blocking inotify descriptor on the directory, -1 where there is none to be had."""
    if sys.platform != "linux":
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return -1  # the user's limit of instances is reached
    if libc.inotify_add_watch(fd, os.fsencode(directory), _MASK) < 0:
        os.close(fd)
        return -1
    return fd
