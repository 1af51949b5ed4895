"""Notices that the other end of a connection is gone, without reading from it.

A client may close only its sending half and wait for answers, and one that is not read from may leave with bytes
unread: in both cases reading does not tell.
"""

import select
import socket
import sys
from typing import Final

import trio

# Without an epoll to wait on, nothing tells us of a hang-up that is not read.
_POLL_SECONDS: Final = 1.0


def is_hung_up(sock: socket.socket) -> bool:
    """Whether nobody is there any more, neither to read nor to write."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


async def wait_hung_up(sock: socket.socket) -> None:
    """Waits until nobody is there any more."""
    if sys.platform != "linux":  # pragma: no cover - macOS
        while not is_hung_up(sock):  # noqa: ASYNC110
            await trio.sleep(_POLL_SECONDS)
        return
    # An epoll of its own, since trio waits for readable or writable only, and either may hold for long.
    with select.epoll(1) as epoll:
        epoll.register(sock, 0)
        await trio.lowlevel.wait_readable(epoll.fileno())
