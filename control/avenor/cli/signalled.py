"""Waiting that a signal ends, whenever it comes."""

from __future__ import annotations

import os
import select

# The C half of `signal`, of which no type checker knows; the other half would load enum.
_set_wakeup_fd = __import__("_signal").set_wakeup_fd


def wait_readable(fd: int, reader_fd: int | None = None) -> bool:
    """Return when `fd` can be read, or when a signal has come. For the main thread, which runs the handlers.

    Python runs the handlers of signals between its own instructions. One that is due just before a blocking call would
    wait with it, so that a Ctrl-C could be lost. The kernel's part of the handler writes to a pipe, which is waited for
    as well.

    Args:
        fd: What is waited for.
        reader_fd: Our end of a pipe, whose other end is looked at too.

    Returns:
        Whether nobody reads that pipe any more.
    """
    told_fd, notices_fd = os.pipe()
    try:
        os.set_blocking(notices_fd, False)
        before = _set_wakeup_fd(notices_fd, warn_on_full_buffer=False)
        try:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.register(told_fd, select.POLLIN)
            if reader_fd is not None:
                poller.register(reader_fd, 0)  # errors and hang-ups are always told
            found = poller.poll()
        finally:
            _set_wakeup_fd(before)
    finally:
        os.close(told_fd)
        os.close(notices_fd)
    return any(each == reader_fd and event & (select.POLLERR | select.POLLHUP) for each, event in found)
