"""Accepting clients, as long as there are descriptors for them and when there are some again."""

import errno
import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

_logger: Final = structlog.get_logger()

_RETRY_SECONDS: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_clients(listener: socket.socket, take: Callable[[socket.socket], None], *, name: str) -> None:
    """Accepts clients until cancelled.

    Args:
        listener: Listening and non-blocking.
        take: Gets each client's socket, non-blocking, and closes it in the end.
        name: What is listened for, in the log.

    Raises:
        OSError: The listener is broken.
    """
    is_short = False
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            _accept_all(listener, take)
            is_short = False
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
            if not is_short:  # said once, not at every try
                _logger.error(f"{name}.cannot_accept", error=error.strerror)
            is_short = True
            # The listener stays readable, and nothing tells us when there are descriptors again.
            await trio.sleep(_RETRY_SECONDS)


def _accept_all(listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
    """Takes every client that waits: one for each wake-up would starve those behind a crowd."""
    while True:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        take(sock)
