"""The part of ASGI 3.0 that is used here. Source: https://asgi.readthedocs.io, HTTP connection scope."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = "application/json"

# On every response: nothing is kept, guessed, framed, or told to other sites; and the page loads what is ours, no more.
_SECURITY: Final = (
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class Response(msgspec.Struct, frozen=True):
    """A response that is there as a whole.

    Attributes:
        headers: Besides those of its content and those that every response has.
    """

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def send_response(send: Send, response: Response) -> None:
    """Sends it whole. For HEAD the server leaves the body out."""
    headers = list(response.headers)
    if response.status != 204:
        headers += [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
        ]
    await send_start(send, response.status, headers)
    await send({"type": "http.response.body", "body": response.body})


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Sends status and headers."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_SECURITY]})


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """All values of a header; its name is in lower case, as ASGI has them."""
    return [value for key, value in headers if key == name]
