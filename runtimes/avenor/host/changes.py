"""Waits until a file changes: at once where the system can tell, by looking now and then where it cannot."""

import ctypes
import os
import select
import sys
from typing import Final

# inotify(7). Of the file: modified, attributes (unlinked), moved. Of its directory: created, moved in, deleted.
_FILE_MASK: Final = 0x02 | 0x04 | 0x800
_DIRECTORY_MASK: Final = 0x100 | 0x80 | 0x200
_NOTICES_BYTES: Final = 64 * 1024
# Where the system tells of changes it still cannot tell of those that another machine makes in a shared directory.
_LOOK_WHEN_NOTIFIED_MS: Final = 1000
_LOOK_MS: Final = 100


class FileChanges:
    """Watches one path, from construction until it is closed; the file may come, go and be replaced meanwhile.

    Args:
        path: Of the file; its directory is there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._open()
        self.renew()

    def renew(self) -> None:
        """Watch the file that is at the path now; what happened to it before is for the caller to look at."""
        if self._fd >= 0:
            self._libc.inotify_add_watch(self._fd, os.fsencode(self._path), _FILE_MASK)

    def wait(self, reader_fd: int) -> bool:
        """Wait until something may have changed, about a second at most.

        Args:
            reader_fd: Our end of a pipe, whose other end is looked at too.

        Returns:
            Whether nobody reads that pipe any more; then there is nothing to wait for.
        """
        poll = select.poll()
        poll.register(reader_fd, 0)  # errors and hang-ups are always told
        if self._fd >= 0:
            poll.register(self._fd, select.POLLIN)
        ready = dict(poll.poll(_LOOK_WHEN_NOTIFIED_MS if self._fd >= 0 else _LOOK_MS))
        if self._fd in ready:
            os.read(self._fd, _NOTICES_BYTES)  # what is left of them wakes us once more, harmlessly
        return bool(ready.get(reader_fd, 0) & (select.POLLERR | select.POLLHUP))

    def close(self) -> None:
        """Ends the watch; harmless twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        """A non-blocking inotify descriptor on the directory, -1 where there is none to be had."""
        if sys.platform != "linux":
            return -1
        fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            return -1  # the user's limit of instances is reached
        directory = os.path.dirname(self._path) or "."
        if self._libc.inotify_add_watch(fd, os.fsencode(directory), _DIRECTORY_MASK) < 0:
            os.close(fd)
            return -1
        return fd
