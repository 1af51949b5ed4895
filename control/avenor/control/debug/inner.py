"""A client of this process's own control server: what HTTP asks is asked there, so that there is one way to do it."""

import socket
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from avenor.control.stream import event_line
from avenor.protocol.errors import ClosedError, ErrorObject, Unavailable, from_wire
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import LINE_LIMIT_BYTES

Connect = Callable[[str], socket.socket]

_RECEIVE_BYTES: Final = 64 * 1024


class Item(NamedTuple):
    """What comes by itself: the JSON of an event, or of a notice."""

    is_notice: bool
    text: bytes


class _Message(msgspec.Struct):
    id: int | None = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_batch: Final = msgspec.json.Decoder(list[_Message]).decode
_encode: Final = msgspec.json.Encoder().encode


class Inner:
    """One connection; it does one thing at a time. Close it, or use it in `with`.

    Args:
        connect: See `ControlServer.serve_within`.

    Raises:
        Unavailable: The server is closing, or there are no descriptors.
    """

    def __init__(self, connect: Connect) -> None:
        try:
            self._socket = connect("h")  # as in `h7`, which people see as an owner
        except OSError as error:
            raise Unavailable(f"no connection to the control server: {error.strerror}; ask again later") from error
        self._splitter = LineSplitter(LINE_LIMIT_BYTES)
        self._items: deque[Item] = deque()
        self._answers: list[_Message] = []

    def __enter__(self) -> "Inner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects."""
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    async def call(self, method: str, params: object) -> Raw:
        """The result of a call, encoded.

        Raises:
            AvenorError: The server refused.
            ClosedError: It closed the connection before it answered.

        Cancellation: The call may have been carried out all the same.
        """
        return (await self._ask([(method, params)]))[0]

    async def call_at_once(self, *calls: tuple[str, object]) -> list[Raw]:
        """The results of calls between which nothing else happens on the server.

        Raises:
            AvenorError: The first that was refused; the others were carried out.
        """
        return await self._ask(calls)

    async def items(self) -> list[Item]:
        """What has come, or comes next; empty when the server has closed the connection.

        Cancellation: Nothing is lost.
        """
        while not self._items:
            if not await self._receive():
                return []
        items = list(self._items)
        self._items.clear()
        return items

    async def _ask(self, calls: Sequence[tuple[str, object]]) -> list[Raw]:
        requests = [
            {"jsonrpc": "2.0", "id": index, "method": method, "params": params}
            for index, (method, params) in enumerate(calls)
        ]
        await self._send(_encode(requests) + b"\n")
        while not self._answers:
            if not await self._receive():
                raise ClosedError("the server has closed; ask again when it is back")
        answers = sorted(self._answers, key=lambda answer: answer.id or 0)
        self._answers = []
        return [_result_of(answer) for answer in answers]

    async def _send(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise ClosedError("the server has closed; ask again when it is back") from error

    async def _receive(self) -> bool:
        await trio.lowlevel.wait_readable(self._socket)
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for line in self._splitter.feed(data):
            if not isinstance(line, Oversized):  # else an event too large for the protocol: its seq is missing
                self._take(line)
        return bool(data)

    def _take(self, line: bytes) -> None:
        event = event_line(line)
        if event is not None:
            self._items.append(Item(False, event))
        elif line.startswith(b"["):
            self._answers = _decode_batch(line)
        else:
            message = _decode_message(line)
            if isinstance(message.params, Raw):
                self._items.append(Item(True, bytes(message.params)))
            else:  # a batch that was refused as a whole
                self._answers = [message]


def _result_of(answer: _Message) -> Raw:
    if isinstance(answer.error, ErrorObject):
        raise from_wire(answer.error)
    assert isinstance(answer.result, Raw)  # JSON-RPC: one of the two
    return answer.result
