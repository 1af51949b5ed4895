"""One side of a JSON-RPC 2.0 connection, without the connection: lines in, facts out; calls in, lines out.

Owns the ids of our calls and which are still unanswered. Cutting the stream into lines is `framing`'s, meaning and
order of methods the caller's. Used towards agents (ACP and the like), between supervisor and runtimes, and by clients.

Tolerant, because the other side is often not ours: unknown members are ignored, a missing `jsonrpc` member is accepted
(codex app-server leaves it out), broken text is mended rather than lost, and an answer of the wrong shape to a call of
ours settles that call as an error, so that nobody waits for ever. Batches are not taken: ACP forbids them, and the
control server has a reader of its own.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, ErrorObject

RequestId = int | str | None

_NO_PARAMS = Raw(b"{}")


class IncomingRequest(msgspec.Struct, frozen=True, gc=False):
    """The peer calls us and waits for an answer with this id.

    Args:
        params: Still encoded; `{}` if the peer left them out, so that a struct can always be decoded from them.
    """

    id: RequestId
    method: str
    params: Raw


class IncomingNotification(msgspec.Struct, frozen=True, gc=False):
    """The peer tells us something; `params` as in `IncomingRequest`."""

    method: str
    params: Raw


class IncomingResult(msgspec.Struct, frozen=True, gc=False):
    """The answer to a call of ours that was waiting for it."""

    id: int
    result: Raw


class IncomingError(msgspec.Struct, frozen=True, gc=False):
    """The refusal of a call of ours that was waiting. `error.data` is the whole error if it was no proper one."""

    id: int
    error: ErrorObject


class Stray(msgspec.Struct, frozen=True, gc=False):
    """An answer to nothing that we wait for: late, given twice, or made up.

    Args:
        id: As the peer wrote it; None also for a complaint that names no call.
        error: What it complains about; None if it was a result.
    """

    id: RequestId
    error: ErrorObject | None = None


class Malformed(msgspec.Struct, frozen=True, gc=False):
    """A line that is no JSON-RPC message, which among agents may be mere noise.

    Args:
        reason: What is wrong, for people.
        line: The line as it came.
        code: −32700 if it is no JSON, −32600 if it is no message: what a server answers.
        id: The id to answer with, where one could be read.
    """

    reason: str
    line: bytes
    code: int
    id: RequestId = None


Incoming = IncomingRequest | IncomingNotification | IncomingResult | IncomingError | Stray | Malformed


class Peer:
    """The state of one connection: which calls of ours are unanswered.

    Every line that it returns ends with its line feed and is ready to be written.

    Args:
        first_id: The id of the first call; ids count up from there and are never used again.
    """

    def __init__(self, first_id: int = 1) -> None:
        self._next_id = first_id
        self._pending: dict[int, str] = {}

    @property
    def pending(self) -> Mapping[int, str]:
        """The unanswered calls, oldest first: id to method. A view that follows the state."""
        return MappingProxyType(self._pending)

    def request(self, method: str, params: object = UNSET) -> tuple[int, bytes]:
        """A new call: its id, which is pending from now on, and its line. Params left out are not sent.

        Raises:
            TypeError: msgspec cannot encode the params; nothing is pending then. Also of the methods below.
        """
        request_id = self._next_id
        line = _encode_line(_Request(request_id, method, params))
        self._next_id += 1
        self._pending[request_id] = method
        return request_id, line

    def notify(self, method: str, params: object = UNSET) -> bytes:
        """The line of a notification. Params left out are not sent."""
        return _encode_line(_Notification(method, params))

    def reply(self, request_id: RequestId, result: object) -> bytes:
        """The line of a result."""
        return _encode_line(_Result(request_id, result))

    def reply_error(self, request_id: RequestId, error: ErrorObject) -> bytes:
        """The line of an error; the id is None if the request's could not be read."""
        return _encode_line(_Error(request_id, error))

    def forget(self, request_id: int) -> bool:
        """Stops waiting for an answer, which will be `Stray` if it comes. Returns whether it was awaited."""
        return self._pending.pop(request_id, None) is not None

    def receive(self, line: bytes) -> Incoming:
        """What one line says. Never raises; an answer settles its call.

        Params, results and error data are valid UTF-8 and JSON when they come out of here, and not decoded further.
        """
        try:
            if not line.isascii():
                # msgspec does not look into strings that it passes on as they are.
                str(line, "utf-8")
            envelope = _ENVELOPE_DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            mended = _mend(line, str(problem))
            return mended if isinstance(mended, Malformed) else self._classify(mended, line)
        return self._classify(envelope, line)

    def _classify(self, envelope: "_Envelope", line: bytes) -> Incoming:
        if envelope.method is UNSET:
            return self._settle(envelope, line)
        if envelope.id is UNSET:
            return IncomingNotification(envelope.method, envelope.params)
        return IncomingRequest(envelope.id, envelope.method, envelope.params)

    def _settle(self, envelope: "_Envelope", line: bytes) -> Incoming:
        """What an answer means. `"error": null` beside a result, as JSON-RPC 1.0 has it, is no error."""
        answer_id, error, result = envelope.id, envelope.error, envelope.result
        if error is UNSET or error is None:
            error = None
            if answer_id is UNSET or (result is UNSET and envelope.jsonrpc is UNSET):
                return Malformed("it is neither a call nor an answer", line, INVALID_REQUEST)
            if result is UNSET:
                # The header shows that it was to be an answer, unlike a log line that happens to have an id.
                error = ErrorObject(code=INTERNAL_ERROR, message="the answer has neither result nor error")
        if answer_id is UNSET:
            return Stray(None, error)
        if not isinstance(answer_id, int) or self._pending.pop(answer_id, None) is None:
            return Stray(answer_id, error)
        if error is not None:
            return IncomingError(answer_id, error)
        assert result is not UNSET
        return IncomingResult(answer_id, result)


class _Request(msgspec.Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: int
    method: str
    params: object


class _Notification(msgspec.Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: object


class _Result(msgspec.Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: RequestId
    result: object


class _Error(msgspec.Struct, frozen=True, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: RequestId
    error: ErrorObject


class _Envelope(msgspec.Struct, gc=False):
    """Any message. Tolerant."""

    jsonrpc: Any = UNSET
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = _NO_PARAMS
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType | None = UNSET


class _LooseEnvelope(msgspec.Struct, gc=False):
    """Any object that may have been meant as a message; types are judged afterwards."""

    jsonrpc: Any = UNSET
    id: Any = UNSET
    method: Any = UNSET
    params: Raw = _NO_PARAMS
    result: Raw | UnsetType = UNSET
    error: Any = UNSET


_encode = msgspec.json.Encoder().encode
_ENVELOPE_DECODER = msgspec.json.Decoder(_Envelope)
_LOOSE_DECODER = msgspec.json.Decoder(_LooseEnvelope)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _encode_line(message: msgspec.Struct) -> bytes:
    line = _encode(message)
    if b"\n" in line:
        # Only `Raw` parts can bring line feeds, and in JSON they are blanks between tokens.
        line = line.replace(b"\n", b" ")
    return line + b"\n"


def _mend(line: bytes, problem: str) -> _Envelope | Malformed:
    """The message that a line was meant to be, or what is wrong with it.

    Args:
        problem: Why the strict decoder refused the line.
    """
    try:
        text = _mend_text(line)
        try:
            return _ENVELOPE_DECODER.decode(text)
        except msgspec.ValidationError:
            return _mend_shape(text, line, problem)
    except (ValueError, RecursionError):
        return Malformed(problem, line, PARSE_ERROR)


def _mend_text(line: bytes) -> bytes:
    """The same JSON without what msgspec refuses and agents write.

    That is invalid UTF-8, halves of surrogate pairs (a JavaScript string cut within a character), control characters in
    strings, a byte order mark, and NaN, which becomes null.

    Raises:
        ValueError: It is no JSON even so.
    """
    value = json.loads(line.decode("utf-8-sig", "replace"), strict=False, parse_constant=lambda _: None)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _LONE_SURROGATE.sub("\ufffd", text).encode()


def _mend_shape(text: bytes, line: bytes, problem: str) -> _Envelope | Malformed:
    """Makes a message of JSON with members of the wrong type, if its header shows that it was to be one."""
    try:
        loose = _LOOSE_DECODER.decode(text)
        message_id = _mend_id(loose.id)
    except msgspec.ValidationError:
        return Malformed(problem, line, INVALID_REQUEST)
    if not isinstance(loose.method, str | UnsetType) or loose.jsonrpc is UNSET:
        return Malformed(problem, line, INVALID_REQUEST, None if message_id is UNSET else message_id)
    return _Envelope(
        jsonrpc=loose.jsonrpc,
        id=message_id,
        method=loose.method,
        params=loose.params,
        result=loose.result,
        error=_mend_error(loose.error),
    )


def _mend_id(value: Any) -> RequestId | UnsetType:
    """An id; 1.0 is 1, as to many writers of JSON. Raises `ValidationError` for what can be none."""
    if value is UNSET or (isinstance(value, float) and value.is_integer()):
        return UNSET if value is UNSET else int(value)
    return msgspec.convert(value, type=int | str | None)


def _mend_error(error: Any) -> ErrorObject | None:
    """An error object that says what it can of an error of any shape; the whole of it becomes `data`."""
    if error is UNSET or error is None:
        return None
    members = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    code, message = members.get("code"), members.get("message")
    raw = _encode(error)
    return ErrorObject(
        code=code if type(code) is int else INTERNAL_ERROR,
        message=message if isinstance(message, str) else raw.decode(),
        data=Raw(raw),
    )
