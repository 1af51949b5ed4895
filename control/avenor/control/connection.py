"""One client's connection to a server: reads requests, runs them in order, answers.

Handlers run in the reader, so that pipelined requests take effect in the order in which they came; only what waits
becomes a task. The client's leaving ends those tasks, unless a handler detached its own.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from msgspec import UNSET

from avenor.control.envelope import Item, Rejected, Request, RequestId, read_line
from avenor.control.hangup import is_hung_up, wait_hung_up
from avenor.control.outbox import Outbox
from avenor.control.rpc import (
    Call,
    MethodTable,
    awaitable_of,
    encode_answer,
    encode_notification,
    failure,
    settle,
    too_large,
)
from avenor.protocol.errors import ClosedError
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import LINE_LIMIT_BYTES

# A client with more requests in flight, or with more answers that it has not read, is not read further.
IN_FLIGHT_LIMIT: Final = 64
UNREAD_LIMIT_BYTES: Final = 1024 * 1024
_RECEIVE_BYTES: Final = 64 * 1024


class Connection:
    """A connection, from accept to close.

    Args:
        sock: Connected and non-blocking; whoever made the connection closes it.
        client_id: What it is called on this server.
        methods: What it may call.
        detached: The server's nursery, for calls that outlive their client.

    Attributes:
        outbox: Its sending half.
        on_close: Called, in order, when the connection is over.
        is_subscribed: Whether events go to it, so that it is kept although it has closed its sending half.
        in_flight: How many requests wait for their answer.
    """

    def __init__(self, sock: socket.socket, *, client_id: str, methods: MethodTable, detached: trio.Nursery) -> None:
        self.client_id = client_id
        self.outbox = Outbox(sock, self._wake)
        self.on_close: list[Callable[[], None]] = []
        self.is_subscribed = False
        self.in_flight = 0
        self._socket = sock
        self._methods = methods
        self._detached = detached
        self._nursery: trio.Nursery | None = None
        self._reading = trio.CancelScope()
        self._waiting_calls: set[trio.CancelScope] = set()
        self._changed = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Serves the client until it has left, or `finish` has."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write)
                with self._reading:
                    await self._read()
                    await self._outlast_half_close()
                if not self._reading.cancelled_caught:
                    nursery.cancel_scope.cancel()
        finally:
            self.outbox.is_broken = True
            for action in self.on_close:
                action()

    def notify(self, method: str, params: object) -> None:
        """Sends a notification, after all events and answers that came before it."""
        self.outbox.answer(encode_notification(method, params))

    async def finish(self, patience_seconds: float) -> None:
        """Ends the connection in good order: reads no more, answers what is in flight, sends all that is pending.

        Args:
            patience_seconds: How long calls that wait may go on; then they are refused as `closed`.

        Cancellation: The connection may still be open; nothing more is promised to it.
        """
        self._reading.cancel()
        with trio.move_on_after(patience_seconds):
            await self._settled()
        for scope in self._waiting_calls:
            scope.cancel()
        await self._settled()
        await self.outbox.wait_drained()
        self.cut()

    def cut(self) -> None:
        """Ends the connection at once."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _write(self) -> None:
        await self.outbox.run()
        self.cut()

    async def _read(self) -> None:
        splitter = LineSplitter(LINE_LIMIT_BYTES)
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            await self._take_frames(splitter.feed(data))

    async def _take_frames(self, frames: list[bytes | Oversized]) -> None:
        if len(frames) == 1:
            self._take(frames[0])
        else:
            start = 0
            while start < len(frames):
                start = self._take_some(frames, start)
                if self._is_full:
                    await self._wait_room()
        if self._is_full:
            await self._wait_room()

    def _take_some(self, frames: list[bytes | Oversized], start: int) -> int:
        """Takes frames until there is no room for more, and sends their answers together. Returns where it stopped."""
        with self.outbox.held():
            for index in range(start, len(frames)):
                self._take(frames[index])
                if self._is_full:
                    return index + 1
        return len(frames)

    @property
    def _is_full(self) -> bool:
        return self.in_flight > IN_FLIGHT_LIMIT or self.outbox.unread_bytes > UNREAD_LIMIT_BYTES

    async def _wait_room(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while self._is_full and not self.outbox.is_broken:
                await self._changed.park()
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Ends the connection when nobody is there any more, which nobody else notices while nothing is read."""
        await wait_hung_up(self._socket)
        self.cut()

    async def _outlast_half_close(self) -> None:
        """A client that has closed its sending half gets what it has asked for, as long as it is there."""
        if is_hung_up(self._socket):
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while self.in_flight or self.is_subscribed:
                await self._changed.park()
            await self.outbox.wait_drained()
            nursery.cancel_scope.cancel()

    async def _settled(self) -> None:
        while self.in_flight:
            await self._changed.park()

    def _wake(self) -> None:
        self._changed.unpark_all()

    def _take(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, bytes) and not frame.strip():
            return  # blank lines between messages mean nothing
        read = read_line(frame)
        if isinstance(read, list):
            batch = _Batch(self, len(read))
            for item in read:
                self._start(item, batch.add)
        else:
            self._start(read, self._answer)

    def _start(self, item: Item, deliver: "Callable[[Call, bytes | None], None]") -> None:
        """Runs one request up to where it waits; `deliver` gets its answer, None for a notification."""
        if isinstance(item, Rejected):
            answer = None if item.id is UNSET else encode_answer(item.id, failure(item.error))
            deliver(Call(self, self.client_id, item.id), answer)
            return
        call = Call(self, self.client_id, item.id)
        outcome = self._methods.dispatch(call, item)
        awaitable = awaitable_of(outcome)
        if awaitable is None:
            deliver(call, _encoded(item, outcome))
            return
        self.in_flight += 1
        nursery = self._detached if call.is_detached else self._nursery
        assert nursery is not None
        nursery.start_soon(self._finish_call, call, item, awaitable, deliver)

    async def _finish_call(
        self, call: Call, request: Request, awaitable: Awaitable[Any], deliver: "Callable[[Call, bytes | None], None]"
    ) -> None:
        outcome = None
        with trio.CancelScope() as scope:
            if not call.is_detached:
                self._waiting_calls.add(scope)
            outcome = await settle(request.method, awaitable)
        self._waiting_calls.discard(scope)
        if outcome is None:
            outcome = failure(ClosedError(f"{request.method}: the server is closing; ask again when it is back"))
        self.in_flight -= 1
        deliver(call, _encoded(request, outcome))
        self._wake()

    def _answer(self, call: Call, answer: bytes | None) -> None:
        if answer is not None:
            self.outbox.answer(answer + b"\n")
        call.answered()


class _Batch:
    """Collects the answers to a batch; they go out together when the last is there."""

    def __init__(self, connection: Connection, size: int) -> None:
        self._connection = connection
        self._missing = size
        self._answers: list[bytes] = []
        self._size_bytes = 2
        self._calls: list[Call] = []

    def add(self, call: Call, answer: bytes | None) -> None:
        self._missing -= 1
        self._calls.append(call)
        if answer is not None:
            self._keep(answer, call)
        if self._missing == 0:
            self._send()

    def _keep(self, answer: bytes, call: Call) -> None:
        if self._size_bytes + len(answer) + 1 > LINE_LIMIT_BYTES - _BATCH_RESERVE_BYTES and len(answer) > 1024:
            answer = encode_answer(_id_of(call), failure(too_large(self._size_bytes + len(answer))))
        self._size_bytes += len(answer) + 1
        self._answers.append(answer)

    def _send(self) -> None:
        if self._answers:
            self._connection.outbox.answer(b"[" + b",".join(self._answers) + b"]\n")
        for call in self._calls:
            call.answered()


# For the refusals that stand in the place of answers which no longer fit into a batch's line.
_BATCH_RESERVE_BYTES: Final = 1024 * 1024


def _id_of(call: Call) -> RequestId:
    return None if call.request_id is UNSET else call.request_id


def _encoded(request: Request, outcome: Any) -> bytes | None:
    return None if request.id is UNSET else encode_answer(request.id, outcome)
