"""The HTTP server of one process: its listener, its connections, and their end.

hypercorn speaks HTTP on each connection. Accepting and ending them is done here: `hypercorn.trio.serve` takes any
number of clients, and would not end as long as one of them does not read what it is sent.
"""

import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from avenor.control.accepting import accept_clients
from avenor.control.address import Address, listen, parse_address
from avenor.control.debug.app import DebugApp
from avenor.control.debug.assets import load_assets, page_folder
from avenor.control.debug.guard import Guard
from avenor.control.debug.inner import Connect
from avenor.control.debug.tokenfile import token_file
from avenor.protocol.errors import SpawnError

_logger: Final = structlog.get_logger()

# A browser opens six to one server.
CONNECTION_LIMIT: Final = 128
# Room for a `Last-Event-ID` that tells of a thousand runtimes.
HEAD_LIMIT_BYTES: Final = 32 * 1024
# Within them the head of a request must come.
_HEAD_SECONDS: Final = 5.0
_FLUSH_SECONDS: Final = 1.0
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 5\r\n\r\n"


class Clients(Protocol):
    """A control server that takes clients from within: this process's own, or one elsewhere."""

    async def serve_within(self, *, task_status: trio.TaskStatus[Connect] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports what connects a client, and lasts until there are no more to be had."""
        ...


@contextmanager
def open_debug(
    where: str, token_path: str, *, follows_one: bool = False, flag: str = "--http-debug"
) -> "Generator[DebugServer, None, None]":
    """A server that listens and has its token; `serve` has it answer.

    Args:
        where: The address, as `--http-debug` has it.
        token_path: Where the token is to be found.
        follows_one: Whether the control server that it will be given has but one runtime.
        flag: What the address was given with.

    Raises:
        SpawnError: The address or the file cannot be had.
    """
    try:
        address = parse_address(where)
    except ValueError as error:
        raise SpawnError(f"{flag}: {error}", reason="http_address") from error
    try:
        listener = listen(address)
    except OSError as error:
        text = f"{flag}: cannot listen on {address.host}:{address.port}: {os.strerror(error.errno or 0)}"
        raise SpawnError(f"{text}; choose another port, or 0 for a free one", reason="http_address") from error
    with listener, token_file(token_path) as token:
        yield DebugServer(listener, address, token, token_path, follows_one=follows_one)


class DebugServer:
    """Serves one control server over HTTP; made by `open_debug`.

    Attributes:
        url: Where it is.
        token_path: Where the token is.
    """

    def __init__(
        self, listener: socket.socket, address: Address, token: str, token_path: str, *, follows_one: bool
    ) -> None:
        port = listener.getsockname()[1]
        self.url = f"http://{address.host}:{port}/"
        self.token_path = token_path
        self._listener = listener
        self._token = token
        self._guard = Guard(address, port, token)
        self._follows_one = follows_one
        self._config = _config()
        self._context = WorkerContext(None)
        self._sockets: set[trio.socket.SocketType] = set()
        self._accepting = trio.CancelScope()
        self._is_over = trio.Event()

    @property
    def board_url(self) -> str:
        """The address of the board with the token in it, for the eyes of this user alone."""
        return f"{self.url}#token={self._token}"

    def told(self, *, is_terminal: bool) -> str:
        """What a user is told: on a terminal, which only they see, the address of the board with the token in it."""
        if is_terminal:
            return f"the board is at {self.board_url}"
        return f"HTTP is at {self.url}, its token in {self.token_path}"

    async def serve(self, control: Clients, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answers until `close`; to be called once.

        Cancellation: Connections are cut.
        """
        try:
            async with trio.open_nursery() as nursery:
                connect = await nursery.start(control.serve_within)
                assets = load_assets(page_folder())
                app = DebugApp(connect, self._guard, assets, follows_one=self._follows_one)
                _logger.info("http.listening", url=self.url, token_file=self.token_path)
                task_status.started()
                try:
                    await self._answer(app, nursery)
                finally:
                    # What is being sent to a client that does not read is waited for, shielded, by hypercorn.
                    for sock in tuple(self._sockets):
                        sock.close()
                nursery.cancel_scope.cancel()
        finally:
            self._is_over.set()

    async def close(self) -> None:
        """Ends `serve`: takes no new clients, sends what is due, closes. To be called when the control server has.

        Takes little more than a second at most; cancellation does not shorten it.
        """
        self._accepting.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * _FLUSH_SECONDS):
            await self._is_over.wait()

    async def _answer(self, app: DebugApp, nursery: trio.Nursery) -> None:
        with self._accepting:
            await accept_clients(self._listener, partial(self._take, app, nursery), name="http")
        await self._context.terminated.set()  # connections on which nothing is asked close now
        with trio.move_on_after(_FLUSH_SECONDS):
            await app.wait_idle()

    def _take(self, app: DebugApp, nursery: trio.Nursery, sock: socket.socket) -> None:
        if len(self._sockets) >= CONNECTION_LIMIT:
            with sock, suppress(OSError):
                sock.send(_BUSY)
            return
        client = trio.socket.from_stdlib_socket(sock)
        self._sockets.add(client)
        nursery.start_soon(self._serve_client, app, client)

    async def _serve_client(self, app: DebugApp, sock: trio.socket.SocketType) -> None:
        state = ConnectionState(LifespanState())
        wrapped: Any = app  # hypercorn describes ASGI in types of its own
        try:
            with trio.CancelScope() as scope:
                stream: Any = _Stream(trio.SocketStream(sock), scope.cancel)  # it expects one with TLS, and takes this
                await TCPServer(ASGIWrapper(wrapped), self._config, self._context, state, stream).run()
        except* Exception as errors:  # one client's fault is not the others'
            _logger.error("http.connection_failed", exc_info=errors)
        finally:
            sock.close()
            self._sockets.discard(sock)


class _Stream:
    """As much of a stream as hypercorn uses, which keeps a connection for seconds after its client has closed it.

    Args:
        stream: The connection.
        gone: Called when the client has closed it.
    """

    def __init__(self, stream: trio.SocketStream, gone: Callable[[], None]) -> None:
        self.socket = stream.socket
        self.send_all = stream.send_all
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose
        self._stream = stream
        self._gone = gone

    async def receive_some(self, max_bytes: int) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        finally:
            if not data:
                self._gone()
        return data


def _config() -> Config:
    config = Config()
    config.errorlog = None  # what goes wrong in a request is logged by us
    config.h11_max_incomplete_size = HEAD_LIMIT_BYTES
    config.keep_alive_timeout = _HEAD_SECONDS
    config.include_server_header = False
    return config
