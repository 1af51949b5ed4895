"""One connection to a control server under trio, with any number of calls in flight. It starts no task itself."""

import socket
from collections.abc import Callable
from typing import Any, Final

import trio

from avenor.host.sockaddr import dial, short_address
from avenor.protocol.errors import AvenorError, BrokenError, ClosedError, RemoteProtocolError, from_wire
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import LINE_LIMIT_BYTES
from avenor.protocol.peer import IncomingError, IncomingNotification, IncomingResult, Malformed, Peer

_RECEIVE_BYTES: Final = 256 * 1024

OnNotification = Callable[[str, Any], None]


async def dial_trio(path: str) -> socket.socket:
    """A connected, non-blocking socket; whoever called closes it.

    Raises:
        BrokenError: No server is there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await trio.lowlevel.checkpoint()
        with short_address(path) as address:
            connection.connect(address)
    except BlockingIOError:  # its queue of new clients is full: only a blocking connect waits for that
        connection.close()
        connection = await trio.to_thread.run_sync(_dial, path)
    except OSError as error:
        connection.close()
        raise no_server(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def no_server(path: str, error: OSError) -> BrokenError:
    """The error for a socket at which nobody answers."""
    text = f"no server answers at {path} ({error.strerror or error}); `avenor stable` starts one"
    return BrokenError(text, reason="no_server")


def _dial(path: str) -> socket.socket:
    try:
        connection = dial(path)
    except OSError as error:
        raise no_server(path, error) from error
    connection.setblocking(False)
    return connection


class Wire:
    """One connection.

    Args:
        sock: Connected and non-blocking; whoever made the wire closes it.
        on_notification: Given the method and the params, still encoded, of every notification.
    """

    def __init__(self, sock: socket.socket, on_notification: OnNotification) -> None:
        self._socket = sock
        self._on_notification = on_notification
        self._peer = Peer()
        self._answers: dict[int, _Answer] = {}
        self._sending = trio.Lock()
        self._end: AvenorError | None = None
        self._broken = trio.Event()

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be called any more."""
        return self._end is not None

    async def wait_broken(self) -> None:
        """Returns when nothing can be called any more."""
        await self._broken.wait()

    async def run(self) -> None:
        """Reads until the server closes the connection; calls in flight then fail. Without it none is answered."""
        splitter = LineSplitter(LINE_LIMIT_BYTES)
        try:
            while data := await self._receive():
                for frame in splitter.feed(data):
                    if not isinstance(frame, Oversized):  # no server of ours sends such a line
                        self._take(frame)
            self._fail(BrokenError("the server closed the connection"))
        except OSError as error:
            self._fail(BrokenError(f"the connection broke: {error.strerror or error}"))
        finally:
            self._fail(ClosedError("this connection was closed"))

    async def call(self, method: str, params: object) -> Any:
        """The result of a call, still encoded.

        Raises:
            AvenorError: The server refused; of the class that the error stands for.
            BrokenError: The connection broke before the answer came.

        Cancellation: The call may have been carried out all the same.
        """
        self._check()
        call_id, line = self._peer.request(method, params)
        answer = self._answers[call_id] = _Answer()
        try:
            await self._send(line)
            await answer.done.wait()
        finally:
            self._answers.pop(call_id, None)
            self._peer.forget(call_id)
        if answer.error is not None:
            raise answer.error
        return answer.result

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue

    async def _send(self, line: bytes) -> None:
        """Sends a line whole. Once begun it is finished in spite of cancellation only if it fits into the socket."""
        async with self._sending:
            rest = memoryview(line)
            while rest:
                self._check()
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    await self._wait_writable(len(rest) < len(line))
                except OSError as error:
                    self._fail(BrokenError(f"the connection broke: {error.strerror or error}"))

    async def _wait_writable(self, is_amid_line: bool) -> None:
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except trio.Cancelled:
            if is_amid_line:  # the server would take the next call for the rest of this one
                self._fail(ClosedError("a call was cancelled while it was being sent"))
                self._socket.shutdown(socket.SHUT_RDWR)
            raise
        except trio.ClosedResourceError:
            self._fail(ClosedError("this connection was closed"))

    def _check(self) -> None:
        """Raises what ended the connection, if anything has."""
        if self._end is not None:
            raise type(self._end)(self._end.message)

    def _take(self, frame: bytes) -> None:
        match self._peer.receive(frame):
            case IncomingNotification(method, params):
                self._on_notification(method, params)
            case IncomingResult(call_id, result):
                self._settle(call_id, result, None)
            case IncomingError(call_id, error):
                self._settle(call_id, None, from_wire(error))
            case Malformed(reason):
                self._fail(RemoteProtocolError(f"the server sent what is no JSON-RPC message: {reason}"))
            case _:
                pass  # an answer to a call that was given up; servers do not call clients

    def _settle(self, call_id: int, result: Any, error: AvenorError | None) -> None:
        answer = self._answers.pop(call_id, None)
        if answer is not None:
            answer.settle(result, error)

    def _fail(self, error: AvenorError) -> None:
        if self._end is None:
            self._end = error
            self._broken.set()
            for answer in self._answers.values():
                answer.settle(None, type(error)(error.message))
            self._answers.clear()


class _Answer:
    """The answer to one call, when it comes."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: Any = None
        self.error: AvenorError | None = None

    def settle(self, result: Any, error: AvenorError | None) -> None:
        self.result, self.error = result, error
        self.done.set()
