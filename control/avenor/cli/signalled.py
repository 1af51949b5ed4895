"""Waiting that a signal ends, whenever it comes."""

from __future__ import annotations

import os
import select

_NOTICES_BYTES = 4096
# The C half of `signal`, of which no type checker knows; the other half would load enum.
_set_wakeup_fd = __import__("_signal").set_wakeup_fd
# Told from the moment on when it is first needed, to the end of the process.
_told_fd: int | None = None


def wait_readable(fd: int) -> None:
    """Return when `fd` can be read, or when a signal has come.

    Python runs the handlers of signals between its own instructions. One that is due just before a blocking call would
    wait with it, so that a Ctrl-C could be lost. The kernel's part of the handler writes to a pipe, which is waited for
    as well.
    """
    told_fd = _told()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.register(told_fd, select.POLLIN)
    if any(ready_fd == told_fd for ready_fd, _ in poller.poll()):
        os.read(told_fd, _NOTICES_BYTES)


def _told() -> int:
    """A descriptor that can be read when a signal has come since."""
    global _told_fd
    if _told_fd is None:
        _told_fd, notices_fd = os.pipe()
        for each in (_told_fd, notices_fd):
            os.set_blocking(each, False)
        try:
            _set_wakeup_fd(notices_fd, warn_on_full_buffer=False)
        except ValueError:  # another thread than the main one, which runs no handlers either
            return _told_fd
    return _told_fd
