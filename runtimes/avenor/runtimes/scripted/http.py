"""One HTTP request of the scripted agent, on its own loop: no thread, and a cancel closes the connection."""

import io
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from avenor.runtimes.scripted.loop import Loop, Wait

if TYPE_CHECKING:
    from socket import socket

# What it speaks to is on this machine.
SEND_SECONDS = 10.0


class HttpFailed(Exception):
    """There was no answer, or none that can be read."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; the names of its headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


def post(loop: Loop, url: str, headers: Mapping[str, str], value: Any) -> Generator[Wait, bool, Answer]:
    """Sends a value as JSON and waits for the whole answer.

    Args:
        url: An http address.
        headers: Beside those of the body.

    Raises:
        HttpFailed: There was no answer.
    """
    # Imported here, as most scripts ask nobody.
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HttpFailed(f"{url!r} is no address of the form http://HOST:PORT/…")
    body = msgspec.json.encode(value)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {"Host": parts.netloc, "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    lines = [f"POST {path} HTTP/1.1", "Connection: close", *(f"{name}: {text}" for name, text in given.items()), "", ""]
    try:
        connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=SEND_SECONDS)
        with connection:
            connection.sendall("\r\n".join(lines).encode() + body)
            data = yield from _read_all(loop, connection)
    except OSError as error:
        raise HttpFailed(f"{url}: {error}") from error
    return _parse(url, data)


def _read_all(loop: Loop, connection: "socket") -> Generator[Wait, bool, bytes]:
    connection.setblocking(False)
    pieces: list[bytes] = []
    problems: list[OSError | None] = []

    def read() -> None:
        try:
            piece = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            problems.append(error)
            return
        if piece:
            pieces.append(piece)
        else:
            problems.append(None)

    loop.add_reader(connection.fileno(), read)
    try:
        yield Wait(is_over=lambda: bool(problems))
    finally:
        loop.remove_reader(connection.fileno())
    if problems[0] is not None:
        raise problems[0]
    return b"".join(pieces)


def _parse(url: str, data: bytes) -> Answer:
    from http.client import HTTPException, HTTPResponse

    response = HTTPResponse(_Received(data))  # type: ignore[arg-type]  # it asks for the file, and for nothing else
    try:
        response.begin()
        body = response.read()
    except (HTTPException, OSError, ValueError) as error:
        raise HttpFailed(f"{url} broke off its answer: {type(error).__name__}") from error
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, headers=headers, body=body)


class _Received:
    """What `http.client` reads an answer from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)
