"""Reads from the answer of a model service, as it passes, how many tokens the call has used. Pure."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from avenor.protocol.manifest.roster import Dialect
from avenor.runtimes.backends.http_sse import EventStream, EventTooLong

# An answer that is no stream is kept until its end, in order to be read; far longer ones than any model writes are not.
_JSON_LIMIT_BYTES: Final = 64 * 1024 * 1024


# The events after which clients do not wait for the end of the stream.
_LAST_EVENT: Final = re.compile(
    rb'\[DONE\]|\{\s*"type"\s*:\s*"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one call. Of the `input_tokens`, so many were read from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_read_tokens: int = 0


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    """Usage in the words of any dialect: chat completions, responses, messages. Tolerant."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Holder(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


class _Answer(msgspec.Struct, frozen=True):
    """An answer, or an event of one: its usage stands in it, in its `response`, or in its `message`. Tolerant."""

    usage: _Usage | None = None
    response: _Holder | None = None
    message: _Holder | None = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


class UsageReader:
    """Takes an answer piece by piece.

    Args:
        dialect: Of the service.
        headers: The answer's, by their names in small letters.

    Attributes:
        is_complete: The client can tell that nothing more comes, though the answer may not have ended.
    """

    def __init__(self, dialect: Dialect, headers: Mapping[str, str]) -> None:
        self.is_complete = False
        self._dialect: Dialect = dialect
        self._seen = _Usage()
        self._is_known = False
        is_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
        self._events = EventStream() if is_stream else None
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._whole_size = headers.get("content-length")

    def feed(self, piece: bytes) -> None:
        """Takes the next piece. What cannot be read is passed over: the answer is the client's."""
        self._size += len(piece)
        self.is_complete = self.is_complete or str(self._size) == self._whole_size
        if self._events is not None:
            self._feed_events(self._events, piece)
        elif self._pieces is not None:
            self._pieces.append(piece)
            if self._size > _JSON_LIMIT_BYTES:
                self._pieces = None

    def finish(self) -> Used | None:
        """What was told, now that nothing more is taken; None if nothing was. Call it once."""
        if self._events is not None:
            self._feed_events(self._events, b"\n\n")  # some services leave out the last blank line
        elif self._pieces:
            self._take(b"".join(self._pieces))
        if not self._is_known:
            return None
        return _anthropic(self._seen) if self._dialect == "anthropic" else _openai(self._seen)

    def _feed_events(self, events: EventStream, piece: bytes) -> None:
        try:
            for data in events.feed(piece):
                self._take(data)
        except EventTooLong:
            self._events, self._pieces = None, None

    def _take(self, data: bytes) -> None:
        self.is_complete = self.is_complete or _LAST_EVENT.match(data) is not None
        if b'"usage"' not in data:  # most events; decoding them all would be in the stream's way
            return
        try:
            answer = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for holder in (answer, answer.response, answer.message):
            if holder is not None and holder.usage is not None:
                self._is_known = True
                self._seen = _merged(self._seen, holder.usage)


def _merged(old: _Usage, new: _Usage) -> _Usage:
    """Later numbers are whole ones, not additions; a number that a later event leaves out stands."""
    told = {name: value for name in _Usage.__struct_fields__ if (value := getattr(new, name)) is not None}
    return msgspec.structs.replace(old, **told)


def _openai(usage: _Usage) -> Used:
    details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    whole = _count(usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens)
    output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    cached = min(whole, _count(details.cached_tokens))
    return Used(input_tokens=whole, output_tokens=_count(output), cached_read_tokens=cached)


def _anthropic(usage: _Usage) -> Used:
    """What was read from the cache, and what was written to it, stands beside the input."""
    cached = _count(usage.cache_read_input_tokens)
    return Used(
        input_tokens=_count(usage.input_tokens) + _count(usage.cache_creation_input_tokens) + cached,
        output_tokens=_count(usage.output_tokens),
        cached_read_tokens=cached,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)
