"""Another process's control server in the place of our own: what HTTP asks is asked at its socket."""

import socket
from collections.abc import Callable

import trio

from avenor.host.sockaddr import short_address


class RemoteControl:
    """Gives connections to a control socket, as `ControlServer.serve_within` gives them to its own server.

    Nothing is connected between requests, so a supervisor that is replaced is found again by the next one.

    Args:
        path: The control socket, of a supervisor or of a run.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def serve_within(
        self, *, task_status: trio.TaskStatus[Callable[[str], socket.socket]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Reports what connects, and lasts until it is cancelled.

        That returns a connected, non-blocking socket, which whoever called closes. It raises `OSError` when no server
        is there.
        """
        task_status.started(self._connect)
        await trio.sleep_forever()

    def _connect(self, _letter: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)  # with a full queue it fails, and is asked again
            with short_address(self._path) as address:
                connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection
