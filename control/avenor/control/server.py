"""The server side of control sockets: accepts clients of our user, and ends in good order.

What can be asked is the method table's; which runtime is meant, who may do what and what it does are the handlers'.
"""

import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from avenor.control.connection import Connection
from avenor.control.rpc import MethodTable
from avenor.host.unixsock import peer_uid

_logger: Final = structlog.get_logger()

FLUSH_SECONDS: Final = 1.0
# Of that, for calls which are about to be answered anyway.
_PATIENCE_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ControlServer:
    """Serves any number of listeners with the same methods.

    Args:
        methods: What clients may call.
        left: Told the id of each client that has left.
    """

    def __init__(self, methods: MethodTable, left: Callable[[str], None] | None = None) -> None:
        self._methods = methods
        self._left = left
        self._connections: dict[str, Connection] = {}
        self._last_id = 0
        self._services: list[_Service] = []

    @property
    def clients(self) -> list[str]:
        """The ids of those who are connected."""
        return list(self._connections)

    def notify(self, client_id: str, params: object, method: str = "notice") -> bool:
        """Sends a notification to one client; says whether it is there."""
        connection = self._connections.get(client_id)
        if connection is None:
            return False
        connection.notify(method, params)
        return True

    async def serve(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accepts and serves clients until `close`.

        Args:
            listener: Listening and non-blocking; whoever made it closes it, and removes its file.

        Cancellation: Connections are cut; `close` is the polite way.
        """
        service = _Service()
        self._services.append(service)
        try:
            async with trio.open_nursery() as nursery:
                service.nursery = nursery
                task_status.started()
                with service.accepting:
                    await self._accept(listener, nursery)
                await trio.sleep_forever()
        finally:
            self._services.remove(service)
            service.over.set()

    async def close(self) -> None:
        """Ends all `serve` calls: takes no new clients and requests, sends what is due, closes.

        Calls that still wait are refused as `closed`. Takes little more than a second at most; cancellation does
        not shorten it.
        """
        services = list(self._services)
        for service in services:
            service.accepting.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_SECONDS):
            async with trio.open_nursery() as nursery:
                for connection in list(self._connections.values()):
                    nursery.start_soon(connection.finish, _PATIENCE_SECONDS)
        for service in services:
            if service.nursery is not None:
                service.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_SECONDS):
            for service in services:
                await service.over.wait()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        is_short = False
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                self._accept_all(listener, nursery)
                is_short = False
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                if not is_short:  # said once, not at every try
                    _logger.error("control.cannot_accept", error=error.strerror)
                is_short = True
                # The listener stays readable, and nothing tells us when there are descriptors again.
                await trio.sleep(_RETRY_SECONDS)

    def _accept_all(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Takes every client that waits: one for each wake-up would starve those behind a crowd."""
        while True:
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            sock.setblocking(False)
            if not self._is_welcome(sock):
                sock.close()
                continue
            self._last_id += 1
            nursery.start_soon(self._serve_client, sock, f"c{self._last_id}", nursery)

    @staticmethod
    def _is_welcome(sock: socket.socket) -> bool:
        try:
            uid = peer_uid(sock)
        except OSError:
            return False  # it has left already
        if uid == os.geteuid():
            return True
        _logger.warning("control.stranger_refused", uid=uid)
        return False

    async def _serve_client(self, sock: socket.socket, client_id: str, nursery: trio.Nursery) -> None:
        connection = Connection(sock, client_id=client_id, methods=self._methods, detached=nursery)
        if self._left is not None:
            connection.on_close.append(partial(self._left, client_id))
        self._connections[client_id] = connection
        try:
            await connection.run()
        except* Exception as errors:  # one client's fault is not the others'
            _logger.error("control.connection_failed", client=client_id, exc_info=errors)
        finally:
            sock.close()
            del self._connections[client_id]


class _Service:
    """One `serve` call."""

    def __init__(self) -> None:
        self.accepting = trio.CancelScope()
        self.nursery: trio.Nursery | None = None
        self.over = trio.Event()
