"""The connections of one HTTP listener: how many there may be, and their end, whatever their clients do.

hypercorn speaks HTTP on each connection. Accepting and ending them is done here: `hypercorn.trio.serve` takes any
number of clients, and would not end as long as one of them does not read what it is sent.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from avenor.control.accepting import accept_clients

_logger: Final = structlog.get_logger()

# ASGI: scope, receive, send. Nothing is called with the scope `lifespan`.
App = Callable[[Any, Any, Any], Awaitable[None]]

# For so long, after `close`, answers may still be sent.
FLUSH_SECONDS: Final = 1.0
# A client that sends no more may still read, or have left: for so long it may be answered, before that is taken for it.
HALF_CLOSED_SECONDS: Final = 1.0
# Room for a `Last-Event-ID` that tells of a thousand runtimes.
HEAD_LIMIT_BYTES: Final = 32 * 1024
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 5\r\n\r\n"


class HttpConnections:
    """Serves an application at a listener.

    Args:
        listener: Listening and non-blocking. It stays its owner's, who closes it after `serve`.
        name: What is served, in the log.
        limit: So many connections there may be; the next is told to come later.
        idle_seconds: After so long a connection is closed on which nothing is asked, or on which the head of a request
            does not come.
    """

    def __init__(self, listener: socket.socket, *, name: str, limit: int, idle_seconds: float) -> None:
        self._listener = listener
        self._name = name
        self._limit = limit
        self._config = _config(idle_seconds)
        self._streams: set[_Stream] = set()
        self._has_left = trio.lowlevel.ParkingLot()
        self._accepting = trio.CancelScope()

    async def serve(self, app: App) -> None:
        """Answers until `close`; to be called once.

        Cancellation: Connections are cut.

        Raises:
            OSError: The listener is broken.
        """
        async with trio.open_nursery() as nursery:
            try:
                with self._accepting:
                    await accept_clients(self._listener, partial(self._take, app, nursery), name=self._name)
                await self._flush()
            finally:
                # What is being sent to a client that does not read is waited for, shielded, by hypercorn.
                for stream in tuple(self._streams):
                    stream.socket.close()
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Ends `serve`: it takes no new clients, sends what is due, and closes.

        That takes `FLUSH_SECONDS` at most, and less where all requests are answered sooner.
        """
        self._accepting.cancel()

    async def _flush(self) -> None:
        for stream in tuple(self._streams):
            await stream.end_when_idle()
        with trio.move_on_after(FLUSH_SECONDS):
            while self._streams:
                await self._has_left.park()

    def _take(self, app: App, nursery: trio.Nursery, sock: socket.socket) -> None:
        if len(self._streams) >= self._limit:
            with sock, suppress(OSError):
                sock.send(_BUSY)
            return
        stream = _Stream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
        self._streams.add(stream)
        nursery.start_soon(self._serve_client, app, stream)

    async def _serve_client(self, app: App, stream: "_Stream") -> None:
        state = ConnectionState(LifespanState())
        # hypercorn describes ASGI in types of its own, and expects a stream with TLS, but takes this.
        asked: Any = partial(self._answer, app)
        given: Any = stream
        try:
            await TCPServer(asked, self._config, stream.context, state, given).run()
        except* Exception as errors:  # one client's fault is not the others'
            _logger.error(f"{self._name}.connection_failed", exc_info=errors)
        finally:
            stream.socket.close()
            self._streams.discard(stream)
            self._has_left.unpark_all()

    async def _answer(self, app: App, scope: Any, receive: Any, send: Any, *_threads: object) -> None:
        try:
            await app(scope, receive, send)
        except* Exception as errors:  # one request's fault is not the others'; hypercorn answers 500 where we have not
            _logger.error(f"{self._name}.request_failed", exc_info=errors)


class _Stream:
    """As much of a stream as hypercorn uses.

    hypercorn takes a connection that its client has closed for an idle one, and keeps it for as long: it is told here.

    Args:
        stream: The connection.

    Attributes:
        context: hypercorn's, of this connection alone.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.context = WorkerContext(None)
        self.socket = stream.socket
        self.send_all = stream.send_all
        self.send_eof = stream.send_eof
        self._stream = stream
        self._is_closed = trio.Event()

    async def receive_some(self, max_bytes: int) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        finally:
            if not data:
                await self.end_when_idle()
        if not data:
            with trio.move_on_after(HALF_CLOSED_SECONDS):
                await self._is_closed.wait()
        return data

    async def aclose(self) -> None:
        self._is_closed.set()
        await self._stream.aclose()

    async def end_when_idle(self) -> None:
        """Has the connection closed once nothing is asked on it. Not a checkpoint."""
        await self.context.terminated.set()


def _config(idle_seconds: float) -> Config:
    config = Config()
    config.errorlog = None  # what goes wrong in a request is logged by us
    config.h11_max_incomplete_size = HEAD_LIMIT_BYTES
    config.keep_alive_timeout = idle_seconds
    config.include_server_header = False
    return config
