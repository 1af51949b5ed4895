"""Refusals as HTTP says them: a status, and the control protocol's error object as JSON."""

from typing import Any, Final

import msgspec

from avenor.control.debug.asgi import Response
from avenor.protocol.errors import (
    AvenorError,
    InternalError,
    InvalidParams,
    LimitReached,
    NoSuchRuntime,
    ParseFailed,
    RemoteProtocolError,
    Unavailable,
    Unsupported,
    to_wire,
)

# More of a wrong value helps nobody.
_SHOWN: Final = 200

# The first class that fits; what fits none is refused for a state that may change.
_STATUS: Final[tuple[tuple[type[AvenorError], int], ...]] = (
    (NoSuchRuntime, 404),
    (LimitReached, 503),
    (Unavailable, 503),
    (Unsupported, 501),
    (InternalError, 500),
    (RemoteProtocolError, 400),
)
_CONFLICT: Final = 409
# What was not read of a request would be taken for the next one.
_CLOSE: Final = (b"connection", b"close")


class HttpRefusal(Exception):
    """A request that HTTP itself refuses.

    Args:
        status: The HTTP status.
        error: What the body says.
        headers: Those that the status asks for.
    """

    def __init__(self, status: int, error: AvenorError, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(error.message)
        self.response = Response(status, error_body(error), headers=headers)


def bad_request(message: str, *, field: str, value: object) -> HttpRefusal:
    """A field that cannot be used."""
    return HttpRefusal(400, InvalidParams(message, data={"field": field, "value": shown(value)}))


def unreadable(status: int, message: str, *, reason: str, **data: Any) -> HttpRefusal:
    """A body that is not read."""
    return HttpRefusal(status, ParseFailed(message, reason=reason, data={"field": "body", **data}), _CLOSE)


def refused(
    status: int, message: str, *, reason: str, headers: tuple[tuple[bytes, bytes], ...] = (), **data: Any
) -> HttpRefusal:
    """A request that is not let through."""
    return HttpRefusal(status, RemoteProtocolError(message, reason=reason, data=data), *headers)


def refusal_of(error: AvenorError) -> Response:
    """The response to a call that the control server has refused."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), _CONFLICT)
    return Response(status, error_body(error))


def error_body(error: AvenorError) -> bytes:
    """The JSON of an error."""
    return msgspec.json.encode({"error": to_wire(error)})


def shown(value: object) -> object:
    """A value, cut where it is a long text."""
    return value[:_SHOWN] + "…" if isinstance(value, str) and len(value) > _SHOWN else value
