"""Events as server-sent events: a subscription of a client of ours, read no faster than the reader takes it.

So what makes a slow reader harmless is what makes any slow subscriber harmless: `feed` serves it from the log.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
import trio

from avenor.control.debug.cursors import Cursors, Standing
from avenor.control.debug.inner import Connect, Inner, Item
from avenor.control.debug.refusals import bad_request
from avenor.protocol.errors import LimitReached
from avenor.protocol.methods import ListParams, Subscribed, SubscribeParams, Target

CONTENT_TYPE: Final = "text/event-stream"
# Browsers choose 3 s by themselves, which is long for somebody who looks on.
_HELLO: Final = b"retry: 1000\n\n"
_KEEP_ALIVE: Final = b": keep-alive\n\n"
# A client that has vanished without a word, or that sends what is not read, is noticed only by writing to it.
KEEP_ALIVE_SECONDS: Final = 15.0
_RUN_END: Final = b'{"event":"run.end",'
# Each costs a member of one batch, of which a control server takes a thousand.
_MISSING_LIMIT: Final = 900
_STANDINGS: Final = ListParams(fields=list(Standing.__struct_fields__))


class _Head(msgspec.Struct):
    seq: int
    runtime_id: str = ""


class _Reset(msgspec.Struct, frozen=True):
    """Notice: the log is given from its beginning, since it is another than the one that was followed."""

    runtime_id: str | None
    kind: str = "reset"


_decode_head: Final = msgspec.json.Decoder(_Head).decode
_decode_standing: Final = msgspec.json.Decoder(Standing).decode
_decode_standings: Final = msgspec.json.Decoder(list[Standing]).decode
_decode_subscribed: Final = msgspec.json.Decoder(Subscribed).decode


class Follow(msgspec.Struct, frozen=True):
    """What a request wants to follow.

    Attributes:
        runtime_id: Whose; None for all, or for the only one.
        after_seq: What was had of that one; None begins with what comes next.
        is_all: Whether all runtimes are followed.
        cursors: What was had of all; None begins with what comes next.
    """

    runtime_id: str | None = None
    after_seq: int | None = None
    is_all: bool = False
    cursors: Cursors | None = None


def read_follow(query: dict[str, str], last_ids: Sequence[bytes], *, follows_one: bool) -> Follow:
    """What a request to `/events` asks for.

    Args:
        query: Its params but the token.
        last_ids: The values of `Last-Event-ID`, which counts more than `after_seq`: a browser that connects again
            sends both.
        follows_one: Whether the server has but one runtime.

    Raises:
        HttpRefusal: It makes no sense.
    """
    runtime_id = query.get("runtime_id")
    after_seq = _seq("after_seq", query["after_seq"]) if "after_seq" in query else None
    if len(last_ids) > 1:
        raise bad_request("Last-Event-ID is there more than once", field="Last-Event-ID", value=len(last_ids))
    last = b"".join(last_ids).decode("latin-1").strip()
    if follows_one or runtime_id is not None or after_seq is not None:
        return Follow(runtime_id, _seq("Last-Event-ID", last) if last else after_seq)
    try:
        return Follow(is_all=True, cursors=Cursors.parse(last) if last else None)
    except ValueError as error:
        raise bad_request(f"Last-Event-ID: {error}", field="Last-Event-ID", value=last) from error


def _seq(field: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    raise bad_request(f"{field} must be the seq of an event, 0 or more", field=field, value=text)


class Stream(Protocol):
    """A stream that is open.

    Attributes:
        hello: What it begins with.
    """

    hello: bytes

    def render(self, items: Iterable[Item]) -> tuple[bytes, bool]:
        """The text of what has come, and whether nothing can follow it."""
        ...


async def open_stream(connect: Connect, follow: Follow) -> tuple[Inner, Stream] | None:
    """A subscribed client and its stream, or None if nothing can ever come; whoever called closes the client.

    Raises:
        AvenorError: The control server refused.
    """
    if not follow.is_all:
        return await _opened(connect, partial(_open_one, follow))
    while (opened := await _opened(connect, partial(_open_all, follow.cursors))) is None:
        pass  # runtimes have begun in between; the next try knows them
    return opened


async def pour(inner: Inner, stream: Stream, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Sends what comes until nothing can follow, or the server closes.

    Args:
        send: Returns when the reader has room for more.
    """
    await send(stream.hello)
    is_over = False
    while not is_over:
        items = None
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            items = await inner.items()
        if items is None:
            await send(_KEEP_ALIVE)
            continue
        text, is_over = stream.render(items)
        is_over = is_over or not items
        if text:
            await send(text)


class OneStream:
    """The events of one runtime, up to its end."""

    def __init__(self, hello: bytes) -> None:
        self.hello = hello

    def render(self, items: Iterable[Item]) -> tuple[bytes, bool]:
        """See `Stream.render`."""
        parts: list[bytes] = []
        for item in items:
            if item.is_notice:
                parts.append(_notice(item.text))
                continue
            parts.append(_event(item.text, _decode_head(item.text).seq))
            if item.text.startswith(_RUN_END):
                return b"".join(parts), True
        return b"".join(parts), False


class AllStream:
    """The events of all runtimes."""

    def __init__(self, hello: bytes, cursors: Cursors) -> None:
        self.hello = hello
        self._cursors = cursors

    def render(self, items: Iterable[Item]) -> tuple[bytes, bool]:
        """See `Stream.render`."""
        return b"".join(map(self._render, items)), False

    def _render(self, item: Item) -> bytes:
        if item.is_notice:
            return _notice(item.text)
        head = _decode_head(item.text)
        is_new = self._cursors.take(head.runtime_id, head.seq, is_end=item.text.startswith(_RUN_END))
        return _event(item.text, self._cursors) if is_new else b""


async def _opened(
    connect: Connect, open_on: Callable[[Inner], Awaitable[Stream | None]]
) -> tuple[Inner, Stream] | None:
    inner = Inner(connect)
    stream = None
    try:
        stream = await open_on(inner)
    finally:
        if stream is None:
            inner.close()
    return None if stream is None else (inner, stream)


async def _open_one(follow: Follow, inner: Inner) -> OneStream | None:
    """The stream of one runtime; None if that has ended, and all of it was had."""
    params = SubscribeParams(runtime_id=follow.runtime_id, after_seq=follow.after_seq, on_lag="disk")
    answer, status = await inner.call_at_once(("subscribe", params), ("status", Target(runtime_id=follow.runtime_id)))
    standing = _decode_standing(status)
    if standing.status == "ended" and follow.after_seq in (None, standing.latest_seq):
        return None
    is_reset = _decode_subscribed(answer).reset is True
    return OneStream(_HELLO + (_reset(standing.runtime_id) if is_reset else b""))


async def _open_all(cursors: Cursors | None, inner: Inner) -> AllStream | None:
    """The stream of all runtimes; None if the first events of one were missed, which `cursors` know of now."""
    hello = _HELLO if cursors is None else _HELLO + await _subscribe_missing(inner, cursors)
    subscribe = ("subscribe", SubscribeParams(on_lag="disk"))
    _, listed = await inner.call_at_once(subscribe, ("list", _STANDINGS))
    standings = _decode_standings(listed)
    if cursors is None:
        return AllStream(hello, Cursors.at_end(standings))
    return None if cursors.have_missed(standings) else AllStream(hello, cursors)


async def _subscribe_missing(inner: Inner, cursors: Cursors) -> bytes:
    """Subscribes to each runtime that has events which were not had; the notices of those that begin anew."""
    missing = cursors.meet(_decode_standings(await inner.call("list", _STANDINGS)))
    if len(missing) > _MISSING_LIMIT:
        raise LimitReached(
            f"{len(missing)} runtimes have events that were not had, and {_MISSING_LIMIT} can be caught up with: "
            "follow each with runtime_id, or all without Last-Event-ID",
            retryable=False,
        )
    calls = [
        ("subscribe", SubscribeParams(runtime_id=runtime_id, after_seq=seq, on_lag="disk"))
        for runtime_id, seq in missing.items()
    ]
    answers = await inner.call_at_once(*calls) if calls else []
    anew = [each for each, answer in zip(missing, answers, strict=True) if _decode_subscribed(answer).reset is True]
    for runtime_id in anew:
        cursors.begin_anew(runtime_id)
    return b"".join(map(_reset, anew))


def _event(line: bytes, event_id: object) -> bytes:
    # A carriage return would end the field. In JSON it can only be a blank between tokens.
    return b"id: %b\ndata: %b\n\n" % (str(event_id).encode(), line.replace(b"\r", b" "))


def _notice(text: bytes) -> bytes:
    return b"event: notice\ndata: %b\n\n" % text


def _reset(runtime_id: str | None) -> bytes:
    return _notice(msgspec.json.encode(_Reset(runtime_id)))
