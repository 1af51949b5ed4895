"""Requests to one HTTP server: JSON in, bytes out, and a body that is read as it comes.

Each request has a connection of its own: on loopback that costs nothing, and no request can be lost on a connection
that the server has just closed.
"""

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, urlencode

import httpcore
import msgspec

from avenor.runtimes.backends.wiretap import Direction, current_tap, tell

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 300.0  # A server that starts up on a busy machine was seen to take 15 s for its first answer.
BODY_LIMIT_BYTES: Final = 256 * 1024 * 1024  # A long session's messages, with all that its tools have put out.
ERROR_LIMIT_BYTES: Final = 64 * 1024


class HttpFailed(Exception):
    """The server answered with an error.

    Attributes:
        status: The HTTP status.
        body: What it said, cut off where that is long.
    """

    def __init__(self, request: str, status: int, body: bytes) -> None:
        super().__init__(f"{request}: HTTP status {status}")
        self.status = status
        self.body = body


class HttpUnreachable(Exception):
    """No answer: the server is not there, or the connection broke."""


class HttpClient:
    """Speaks to one server.

    Args:
        base_url: Scheme, host and port, and where the interface begins.
        user: For basic authentication, with the password; empty for none.
        password: See `user`.
    """

    def __init__(self, base_url: str, *, user: str = "", password: str = "") -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {"Accept": "application/json, text/event-stream"}
        if password:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._pool = httpcore.AsyncConnectionPool(max_connections=None, max_keepalive_connections=0)

    async def call(self, method: str, path: str, *, query: Mapping[str, str], body: object = None) -> bytes:
        """The body of the answer.

        Args:
            method: GET, POST …
            path: Below the base address; quoted by `quoted` where it holds foreign text.
            query: Added to it.
            body: Sent as JSON, unless None.

        Raises:
            HttpFailed: The answer is an error.
            HttpUnreachable: There is no answer, or not a whole one.

        Cancellation: The server may have got the request.
        """
        content = None if body is None else msgspec.json.encode(body)
        request = _shown(method, path, query)
        _tell("client->agent", request, content)
        async with self._answer(method, path, query, content, ANSWER_SECONDS) as answer:
            body_read = await _read(answer, BODY_LIMIT_BYTES)
        _tell("agent->client", request, body_read)
        return body_read

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """The body of a GET, as it comes.

        Args:
            path: See `call`.
            query: See `call`.
            silence_seconds: For how long nothing may come before the connection counts as broken.

        Raises:
            HttpFailed: The answer is an error.
            HttpUnreachable: There is no answer, or the connection broke; inside the block as well.
        """
        async with self._answer("GET", path, query, None, silence_seconds) as answer:
            yield _tapped(answer.aiter_stream(), _shown("GET", path, query))

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._pool.aclose()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], content: bytes | None, read_seconds: float
    ) -> AsyncGenerator[httpcore.Response, None]:
        url = f"{self.base_url}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = [*self._headers.items()]
        if content is not None:
            headers.append(("Content-Type", "application/json"))
        timeouts = {"connect": CONNECT_SECONDS, "write": ANSWER_SECONDS, "read": read_seconds, "pool": CONNECT_SECONDS}
        try:
            async with self._pool.stream(
                method, url, headers=headers, content=content, extensions={"timeout": timeouts}
            ) as answer:
                if answer.status >= 300:
                    raise HttpFailed(f"{method} {path}", answer.status, await _read(answer, ERROR_LIMIT_BYTES))
                yield answer
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise HttpUnreachable(f"{method} {self.base_url}{path}: {error or type(error).__name__}") from error


def _shown(method: str, path: str, query: Mapping[str, str]) -> str:
    return f"{method} {path}" + (f"?{urlencode(query)}" if query else "")


async def _tapped(pieces: AsyncIterator[bytes], request: str) -> AsyncIterator[bytes]:
    async for piece in pieces:
        _tell("agent->client", request, piece)
        yield piece


def _tell(direction: Direction, request: str, body: bytes | None) -> None:
    """Tells who listens, if anybody; headers, which hold the password, are left out."""
    if current_tap() is None:
        return
    try:
        content: object = None if body is None else msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = (body or b"").decode(errors="replace")
    tell(direction, {"request": request, "body": content})


def quoted(text: str) -> str:
    """Foreign text as one segment of a path."""
    return quote(text, safe="")


async def _read(answer: httpcore.Response, limit_bytes: int) -> bytes:
    """The body, or its beginning where that is over the limit."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer.aiter_stream():
        pieces.append(piece)
        size += len(piece)
        if size > limit_bytes:
            break
    return b"".join(pieces)[:limit_bytes]
