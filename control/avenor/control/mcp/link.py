"""One connection to the supervisor, kept for as long as the MCP server lives, and made again when it breaks.

What was spawned over it is owned by it, so that there is only this one: every tool call uses it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from avenor.control.client import Client, open_client
from avenor.protocol.errors import ClosedError, Unavailable

T = TypeVar("T")

# A server that closes may cut the first short, and leave a second, which came too late for it, without any answer.
_TRIES: Final = 3
# How long a server that says that it closes may take to hang up. It needs a second.
_FAREWELL_SECONDS: Final = 3.0


@asynccontextmanager
async def open_link(find: Callable[[], Awaitable[str]]) -> AsyncGenerator["Link"]:
    """A link; nothing is connected before the first call.

    Args:
        find: Gives the supervisor's socket, and sees to it that a supervisor is there, each time one is needed.
    """
    async with trio.open_nursery() as nursery:
        yield Link(find, nursery)
        nursery.cancel_scope.cancel()


class Link:
    """Made by `open_link`, whose nursery holds the connection."""

    def __init__(self, find: Callable[[], Awaitable[str]], nursery: trio.Nursery) -> None:
        self._find = find
        self._nursery = nursery
        self._connecting = trio.Lock()
        self._client: Client | None = None
        self._leave = trio.Event()

    async def ask(self, question: Callable[[Client], Awaitable[T]], *, again: bool = True) -> T:
        """What the question comes to.

        Args:
            question: Calls on the client that it is given.
            again: Whether it may be asked once more, over a new connection, if the first breaks or is closed meanwhile.

        Raises:
            Unavailable: The connection broke, and the call may have been carried out; or, with the reason `no_server`,
                there is no supervisor, and it was not.
            AvenorError: The supervisor refused.
        """
        client = await self._connected()
        for _ in range(_TRIES - 1):
            try:
                return await question(client)
            except Unavailable as error:
                if not again or not await _is_over(client, error):
                    raise
                client = await self._connected_again(error)
        return await question(client)

    async def _connected_again(self, broken: Unavailable) -> Client:
        try:
            return await self._connected()
        except Unavailable as error:
            raise broken from error  # what is not there now may have carried the call out

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or self._client.wire.is_broken:
                self._leave.set()
                self._leave = trio.Event()
                client: Client = await self._nursery.start(self._hold, self._leave)
                self._client = client
            return self._client

    async def _hold(self, leave: trio.Event, task_status: trio.TaskStatus[Client]) -> None:
        async with open_client(await self._find()) as client:
            task_status.started(client)
            await leave.wait()


async def _is_over(client: Client, error: Unavailable) -> bool:
    """Whether the connection is, and not only that of the supervisor to a runtime.

    A server that closes refuses what it cannot answer any more, and then hangs up.
    """
    if isinstance(error, ClosedError):
        with trio.move_on_after(_FAREWELL_SECONDS):
            await client.wire.wait_broken()
    return client.wire.is_broken
