"""One HTTP request of an agent, and its answer: a thin layer over ASGI, for all that answers at the desk."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import msgspec
import trio

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
# A body over its handler's limit is read on and thrown away, up to here, so that the client gets to read the answer.
_DRAIN_BYTES: Final = 256 * 1024 * 1024


class ClientGone(Exception):
    """The client has left before its request was whole."""


class Exchange:
    """A request that is being answered.

    Args:
        scope: ASGI's description of it.
        receive: Gives the pieces of its body, and tells when the client has left.
        send: Takes the answer.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = bytes(scope["raw_path"]).decode("ascii", "replace")
        self.query: str = bytes(scope["query_string"]).decode("ascii", "replace")
        self.headers: list[tuple[bytes, bytes]] = [(bytes(name).lower(), bytes(v)) for name, v in scope["headers"]]
        self.status: int | None = None
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        """The value of a header that stands there once; None if it is missing or stands there more often."""
        values = self.header_values(name)
        return values[0] if len(values) == 1 else None

    def header_values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    async def read_body(self, limit_bytes: int) -> bytes | None:
        """The whole body; None if it is over the limit.

        Raises:
            ClientGone: The client has left.
        """
        pieces: list[bytes] = []
        size = 0
        while size <= max(limit_bytes, _DRAIN_BYTES):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size <= limit_bytes:
                pieces.append(piece)
            if not message.get("more_body", False):
                break
        return b"".join(pieces) if size <= limit_bytes else None

    async def wait_gone(self) -> None:
        """Waits until the client has left, or its answer is complete.

        Call this after the body was read, beside whatever answers.
        What is left of a body over the limit is thrown away here: hypercorn waits for its reader, even with the end of
        the answer.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Headers) -> None:
        """Begins the answer."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send(self, piece: bytes) -> None:
        """Sends a piece of the answer's body, at once."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self) -> None:
        """Ends the answer. Without it the client sees that the answer is not whole.

        Cancellation: None. The answer's end is told as the client's leaving too, which cancels, and hypercorn would
        leave the connection between two requests. A client that does not read loses its connection in the end.
        """
        with trio.CancelScope(shield=True):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Answers with a body that is there already; JSON, unless the headers say otherwise."""
        kind = [] if any(name == b"content-type" for name, _ in headers) or not body else [JSON]
        await self.start(status, [*kind, (b"content-length", str(len(body)).encode()), *headers])
        await self.send(body)
        await self.finish()

    async def answer_json(self, status: int, value: object, *headers: tuple[bytes, bytes]) -> None:
        """Answers with a value as JSON."""
        await self.answer(status, msgspec.json.encode(value), *headers)
