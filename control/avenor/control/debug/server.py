"""The HTTP server of one process: its listener, its token, and its end."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Protocol

import structlog
import trio

from avenor.control.address import Address, listen, parse_address
from avenor.control.debug.app import DebugApp
from avenor.control.debug.assets import load_assets, page_folder
from avenor.control.debug.guard import Guard
from avenor.control.debug.inner import Connect
from avenor.control.debug.tokenfile import token_file
from avenor.control.httpconnections import FLUSH_SECONDS, HttpConnections
from avenor.protocol.errors import SpawnError

_logger: Final = structlog.get_logger()

# A browser opens six to one server.
CONNECTION_LIMIT: Final = 128
# Within them the head of a request must come.
_HEAD_SECONDS: Final = 5.0


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
        self._token = token
        self._guard = Guard(address, port, token)
        self._follows_one = follows_one
        self._connections = HttpConnections(listener, name="http", limit=CONNECTION_LIMIT, idle_seconds=_HEAD_SECONDS)
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
                await self._connections.serve(app)
                nursery.cancel_scope.cancel()
        finally:
            self._is_over.set()

    async def close(self) -> None:
        """Ends `serve`: takes no new clients, sends what is due, closes. To be called when the control server has.

        Takes little more than a second at most; cancellation does not shorten it.
        """
        self._connections.close()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * FLUSH_SECONDS):
            await self._is_over.wait()
