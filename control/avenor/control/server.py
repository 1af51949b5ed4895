"""The server side of control sockets: accepts clients of our user, and ends in good order.

What can be asked is the method table's; which runtime is meant, who may do what and what it does are the handlers'.
"""

import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog
import trio

from avenor.control.accepting import accept_clients
from avenor.control.connection import Connection
from avenor.control.rpc import MethodTable
from avenor.host.unixsock import peer_uid
from avenor.protocol.errors import ClosedError

_logger: Final = structlog.get_logger()

FLUSH_SECONDS: Final = 1.0
# Of that, for calls which are about to be answered anyway.
_PATIENCE_SECONDS: Final = 0.1


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
        async with self._serving() as service:
            task_status.started()
            with service.accepting:
                await accept_clients(listener, partial(self._welcome, service.nursery), name="control")
            await trio.sleep_forever()

    async def serve_within(
        self, *, task_status: trio.TaskStatus[Callable[[str], socket.socket]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves clients within this process until `close`.

        What it reports when it has started connects one: given the first letter of its id, it returns a connected,
        non-blocking socket, which whoever called closes. It raises `ClosedError` when no clients are taken any more.
        """
        async with self._serving() as service:
            task_status.started(partial(self._connect, service))
            await trio.sleep_forever()

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
            service.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_SECONDS):
            for service in services:
                await service.over.wait()

    @asynccontextmanager
    async def _serving(self) -> "AsyncGenerator[_Service]":
        over = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                service = _Service(nursery, over)
                self._services.append(service)
                try:
                    yield service
                finally:
                    self._services.remove(service)
        finally:
            over.set()

    def _welcome(self, nursery: trio.Nursery, sock: socket.socket) -> None:
        if self._is_welcome(sock):
            self._take(sock, "c", nursery)
        else:
            sock.close()

    def _connect(self, service: "_Service", letter: str) -> socket.socket:
        if service.accepting.cancel_called:
            raise ClosedError("this server is closing; ask again when it is back")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._take(ours, letter, service.nursery)
        return theirs

    def _take(self, sock: socket.socket, letter: str, nursery: trio.Nursery) -> None:
        self._last_id += 1
        nursery.start_soon(self._serve_client, sock, f"{letter}{self._last_id}", nursery)

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
    """One `serve` or `serve_within` call."""

    def __init__(self, nursery: trio.Nursery, over: trio.Event) -> None:
        self.accepting = trio.CancelScope()
        self.nursery = nursery
        self.over = over
