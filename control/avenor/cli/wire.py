"""The control protocol for one command: one connection, one call at a time, nothing imported that can be left out.

`_socket` is the C half of `socket`; the other half would cost as much as the rest of the command. JSON is decoded only
where it must be: an answer in the form that avenor's servers give it is cut out of its line as it is.
"""

from __future__ import annotations

import _socket
import os

from avenor.cli.output import ReaderGone
from avenor.cli.signalled import wait_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

EVENT_PREFIX = b'{"jsonrpc":"2.0","method":"event","params":'
NOTICE_PREFIX = b'{"jsonrpc":"2.0","method":"notice","params":'
_RESULT_PREFIX = b'{"jsonrpc":"2.0","result":'
_CHUNK_BYTES = 256 * 1024
_TOMBSTONE_BYTES = 4096


class NoServer(Exception):
    """Nobody answers at the socket."""


class SaidNo(Exception):
    """The server answered with an error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.error = error


class Connection:
    """One connection to a control socket; closed at the end of its `with` block.

    Args:
        path: The socket.
        timeout_seconds: How long any one step may take; None waits as long as it takes.
        reader_fd: Who reads this is what the answers are for: once nobody does, waiting for one without a limit of time
            raises `ReaderGone`.

    Raises:
        NoServer: There is none.
    """

    def __init__(self, path: str, *, timeout_seconds: float | None = None, reader_fd: int | None = None) -> None:
        self.path = path
        self._socket = _open_socket()
        self._timeout_seconds = timeout_seconds
        self._reader_fd = reader_fd
        self._socket.settimeout(timeout_seconds)
        self._last_id = 0
        self._lines: list[bytes] = []
        self._partial: list[bytes] = []
        try:
            _connect(self._socket, path)
        except OSError as error:
            self._socket.close()
            raise NoServer(_nobody(path, error)) from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request and give its id."""
        self._last_id += 1
        line = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}\n' % (
            self._last_id,
            method.encode(),
            _encode(params),
        )
        try:
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            return self._last_id  # what it had sent before it went can still be read; reading then tells of the end
        except OSError as error:
            raise NoServer(f"{self.path}: the server takes no request ({error.strerror or error})") from error
        return self._last_id

    def call(self, method: str, params: Mapping[str, Any]) -> bytes:
        """The result of a call as JSON. Events and notices that come before it are dropped.

        Raises:
            SaidNo: The server answered with an error.
            NoServer: It went away without an answer.
        """
        call_id = self.send(method, params)
        for batch in self.batches():
            for index, line in enumerate(batch):
                result = answer_to(call_id, line)
                if result is not None:
                    self._lines = batch[index + 1 :] + self._lines
                    return result
        raise NoServer(f"{self.path}: the server closed the connection before it had answered")

    def batches(self) -> Iterator[list[bytes]]:
        """The lines that come, without newline, as many at a time as are there; ends when the server closes."""
        while True:
            while not self._lines:
                try:
                    chunk = self._receive()
                except OSError as error:
                    raise NoServer(f"{self.path}: no answer ({error.strerror or error})") from error
                if not chunk:
                    return
                self._feed(chunk)
            batch, self._lines = self._lines, []
            yield batch

    def _receive(self) -> bytes:
        if self._timeout_seconds is None and wait_readable(self._socket.fileno(), self._reader_fd):
            raise ReaderGone
        return self._socket.recv(_CHUNK_BYTES)

    def _feed(self, chunk: bytes) -> None:
        if b"\n" not in chunk:
            self._partial.append(chunk)
            return
        *lines, rest = (b"".join(self._partial) + chunk).split(b"\n")
        self._partial = [rest] if rest else []
        self._lines.extend(line for line in lines if line)


def answer_to(call_id: int, line: bytes) -> bytes | None:
    """The result in a line, as JSON, if it is the answer to that call.

    Raises:
        SaidNo: It is, and is an error.
    """
    if line.startswith(EVENT_PREFIX):
        return None
    suffix = b',"id":%d}' % call_id
    if line.startswith(_RESULT_PREFIX) and line.endswith(suffix):
        return line[len(_RESULT_PREFIX) : -len(suffix)]
    return _decoded_answer(call_id, line)


def _decoded_answer(call_id: int, line: bytes) -> bytes | None:
    import json

    from avenor.cli.untyped import object_in

    try:
        message = object_in(json.loads(line))
    except ValueError as error:
        raise NoServer(f"what answers there does not speak avenor's protocol: {line[:80]!r}") from error
    if not message:
        raise NoServer(f"what answers there does not speak avenor's protocol: {line[:80]!r}")
    if "method" in message or message.get("id") not in (call_id, None):
        return None
    if "error" in message:
        raise SaidNo(object_in(message["error"]))
    return json.dumps(message.get("result"), separators=(",", ":")).encode()


def _encode(params: Mapping[str, Any]) -> bytes:
    if not params:
        return b"{}"
    import json

    return json.dumps(params, separators=(",", ":")).encode()


def _open_socket() -> _socket.socket:
    """A socket that is no standard stream: where one is closed, what is written to it must not go to the server."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    if sock.fileno() > 2:
        return sock
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    try:
        return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fcntl(sock.fileno(), F_DUPFD_CLOEXEC, 3))
    finally:
        sock.close()


def _connect(sock: _socket.socket, path: str) -> None:
    try:
        sock.connect(path)
    except OSError as error:
        # Too long for sockaddr_un: that has no errno, it is found before the system is asked.
        if error.errno is not None or not os.path.isdir("/proc/self/fd"):
            raise
        folder, name = os.path.split(path)
        descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{descriptor}/{name}")
        finally:
            os.close(descriptor)


def _nobody(path: str, error: OSError) -> str:
    reason = error.strerror or str(error)
    from avenor.host.regular import read_regular

    try:
        said, *_ = read_regular(path + ".dead", limit_bytes=_TOMBSTONE_BYTES).splitlines() or [b""]
        last = f"; the last one left: {said.decode(errors='replace').strip()}"
    except OSError:
        last = ""
    return f"no server at {path} ({reason}){last}. `avenor stable` starts one; --socket names another"
