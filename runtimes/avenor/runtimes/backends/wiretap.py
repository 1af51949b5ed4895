"""Listening in on what is said with an agent: for `avenor doctor --transcript`, and nothing else.

Whoever listens sets a tap in its own task; every program that is started below it has its pipes tapped. Adapters whose
wire is no pipe tell it themselves, by `tell`. Without a tap nothing is wrapped.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Literal, Protocol

from trio.abc import ReceiveStream, SendStream

Direction = Literal["client->agent", "agent->client"]


class Tap(Protocol):
    """Who listens. Nothing here waits or raises."""

    def started(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """A program is about to be started. The environment may hold secrets that we made."""
        ...

    def passed(self, direction: Direction, data: bytes) -> None:
        """Bytes went over a pipe, cut anywhere."""
        ...

    def told(self, direction: Direction, message: object) -> None:
        """A whole message went, over a wire of another kind; it can be encoded as JSON."""
        ...


_TAP: ContextVar[Tap | None] = ContextVar("tap", default=None)


def current_tap() -> Tap | None:
    """Who listens to this task; None almost always."""
    return _TAP.get()


def set_tap(tap: Tap) -> None:
    """Makes somebody listen to this task, and to those that it starts from now on."""
    _TAP.set(tap)


def tell(direction: Direction, message: object) -> None:
    """Tells who listens of a message that went over no pipe."""
    tap = _TAP.get()
    if tap is not None:
        tap.told(direction, message)


class TappedSend(SendStream):
    """A pipe to an agent that somebody listens to."""

    def __init__(self, stream: SendStream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends, and tells of it; see `SendStream`."""
        self._tap.passed("client->agent", bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Closes the pipe."""
        await self._stream.aclose()


class TappedReceive(ReceiveStream):
    """A pipe from an agent that somebody listens to."""

    def __init__(self, stream: ReceiveStream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receives, and tells of it; see `ReceiveStream`."""
        data = await self._stream.receive_some(max_bytes)
        self._tap.passed("agent->client", bytes(data))
        return data

    async def aclose(self) -> None:
        """Closes the pipe."""
        await self._stream.aclose()
