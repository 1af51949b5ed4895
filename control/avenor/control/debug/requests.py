"""Requests: the query, and the body as it comes."""

from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import trio

from avenor.control.debug.asgi import Receive
from avenor.control.debug.refusals import bad_request, shown, unreadable

# Room for a prompt with a big file in it; for more there is the control socket, which takes 16 MiB.
BODY_LIMIT_BYTES: Final = 1024 * 1024
# A body that is sent from this machine takes milliseconds.
BODY_SECONDS: Final = 10.0
# Who is still sending when it is refused may not see the answer unless it is read a little further.
_DISCARD_SECONDS: Final = 1.0

_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Gone(Exception):
    """The client has left."""


class Body:
    """The body of one request, and after it the client's leaving."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_complete = False

    async def read(self) -> bytes:
        """All of it.

        Raises:
            HttpRefusal: It is too large, or does not come.
            Gone: The client has left.
        """
        body = bytearray()
        with trio.move_on_after(BODY_SECONDS) as waiting:
            while not self._is_complete:
                body += await self._next()
                if len(body) > BODY_LIMIT_BYTES:
                    text = f"the body has more than {BODY_LIMIT_BYTES} bytes; the control socket takes more"
                    raise unreadable(413, text, reason="body_too_large", limit_bytes=BODY_LIMIT_BYTES)
        if waiting.cancelled_caught:
            text = f"the body did not come within {BODY_SECONDS:g} s: send as much as Content-Length says"
            raise unreadable(408, text, reason="body_too_slow")
        return bytes(body)

    async def discard(self) -> None:
        """Reads what is left of it, within a bound.

        Raises:
            Gone: The client has left.
        """
        with trio.move_on_after(_DISCARD_SECONDS):
            while not self._is_complete:
                await self._next()

    async def wait_gone(self) -> None:
        """Waits until the client has left, and discards what it sends."""
        try:
            while True:
                await self._next()
        except Gone:
            return

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Gone
        self._is_complete = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data


def read_params(body: bytes) -> dict[str, Any]:
    """The members of a body; an empty one has none.

    Raises:
        HttpRefusal: It is no JSON object.
    """
    if not body.strip():
        return {}
    try:
        return _decode_object(body)
    except msgspec.ValidationError as error:
        raise bad_request(f"the body must be a JSON object: {error}", field="body", value=_text(body)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(400, f"the body is no JSON: {error}", reason="parse_error", value=_text(body)) from error


def read_query(query: bytes, allowed: tuple[str, ...]) -> dict[str, str]:
    """The params of a query.

    Args:
        query: As it stands in the address.
        allowed: Which there may be, each once.

    Raises:
        HttpRefusal: There are others, or one is there twice.
    """
    found: dict[str, str] = {}
    for name, value in parse_query(query):
        if name not in allowed:
            text = f"the query takes {', '.join(allowed) or 'nothing'} here, not {shown(name)!r}"
            raise bad_request(text, field="query", value=name)
        if name in found:
            raise bad_request(f"{name} is there more than once", field=name, value=value)
        found[name] = value
    return found


def parse_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values in a query, as they come."""
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def _text(body: bytes) -> str:
    return body[:400].decode("utf-8", "replace")
