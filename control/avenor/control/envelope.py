"""Reads request lines strictly, as JSON-RPC 2.0 has them: single requests, notifications and batches.

What is wrong with a line becomes an error object with the id that it deserves. Which methods there are, and what their
params must be, is `rpc`'s to judge.
"""

from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.errors import AvenorError, InvalidParams, ParseFailed, RemoteProtocolError
from avenor.protocol.framing import Oversized
from avenor.protocol.methods import LINE_LIMIT_BYTES

RequestId = int | float | str | None

# A line of 16 MiB could hold eight million requests, each with an answer longer than itself.
BATCH_LIMIT: Final = 1000

_NO_PARAMS: Final = Raw(b"{}")


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request; without an id a notification.

    Attributes:
        params: A JSON object, still encoded; `{}` where none were sent.
    """

    jsonrpc: Literal["2.0"]
    method: str
    id: RequestId | UnsetType = UNSET
    params: Raw = _NO_PARAMS


class Rejected(msgspec.Struct, frozen=True):
    """What is answered in the place of one request that was none; nothing if there is no id to answer to."""

    id: RequestId | UnsetType
    error: AvenorError


Item = Request | Rejected

_decode_request = msgspec.json.Decoder(Request).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder().decode


def read_line(line: bytes | Oversized) -> Item | list[Item]:
    """What one line asks for: a list if it was a batch. Never raises."""
    if isinstance(line, Oversized):
        return _unreadable(f"the line has more than {LINE_LIMIT_BYTES} bytes and was skipped")
    try:
        if not line.isascii():
            # msgspec does not look into strings that it passes on as they are.
            str(line, "utf-8")
        if line.lstrip(b" \t\r").startswith(b"["):
            return _read_batch(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(str(error))
    return _read_request(line)


def _read_batch(line: bytes) -> Item | list[Item]:
    items = _decode_batch(line)
    if not items:
        return Rejected(None, RemoteProtocolError("a batch must hold at least one request"))
    if len(items) > BATCH_LIMIT:
        return Rejected(
            None, RemoteProtocolError(f"a batch may hold {BATCH_LIMIT} requests, this one has {len(items)}")
        )
    return [_read_request(item) for item in items]


def _read_request(line: bytes | Raw) -> Item:
    try:
        request = _decode_request(line)
    except msgspec.ValidationError as error:
        return _explain(line, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(str(error))
    if request.params is _NO_PARAMS:
        return request
    match bytes(memoryview(request.params)[:1]):
        case b"{":
            return request
        case b"[":
            text = f"{request.method}: params must be an object with named members, not an array"
            return Rejected(request.id, InvalidParams(text, data={"field": "params"}))
        case _:
            refusal = RemoteProtocolError("params must be an object, or left out", data={"field": "params"})
            return Rejected(None if request.id is UNSET else request.id, refusal)


def _explain(line: bytes | Raw, problem: msgspec.ValidationError) -> Rejected:
    """The refusal of JSON that is no request, with its id if it has a usable one."""
    try:
        value = _decode_any(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(str(error))
    found: Any = cast("dict[str, Any]", value).get("id") if isinstance(value, dict) else None
    usable = found if isinstance(found, int | float | str) and not isinstance(found, bool) else None
    return Rejected(usable, RemoteProtocolError(f"this is no JSON-RPC 2.0 request: {problem}"))


def _unreadable(reason: str) -> Rejected:
    return Rejected(None, ParseFailed(f"this line cannot be read: {reason}"))
