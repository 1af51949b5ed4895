"""The supervisor's connection to one runtime: its events come in, our clients' calls go out, both in order.

The link introduces itself as a router. It is never a client itself: each call names the client that it is for. Calls
made before there is a connection go out first thing when there is one. When the connection breaks, the calls under way
fail, for nobody can know what became of them, and the events go on after the last one that came.
"""

import contextlib
import socket
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog
import trio

from avenor.control.hub import EventHub
from avenor.host import logfile
from avenor.host.sockaddr import dial
from avenor.protocol.errors import AvenorError, BrokenError, InvalidParams, Refused, from_wire
from avenor.protocol.events import EventHead, decode_head
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import (
    EVENT_PREFIX,
    LINE_LIMIT_BYTES,
    RouterCall,
    RouterHello,
    RouterLeft,
    RouterNotice,
    RouterOwner,
    SubscribeParams,
    wrap_event,
)
from avenor.protocol.peer import IncomingError, IncomingNotification, IncomingResult, Peer
from avenor.stable.runtime import Runtime

# More than a Unix socket's buffer holds, so that a flood is taken in few and large pieces.
_READ_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 256 * 1024
# Several of the largest prompts. A runtime that does not read them is stuck, and must not fill our memory.
_OUT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_WAITING_LIMIT: Final = 1024
_FIRST_DELAY_SECONDS: Final = 0.02
_LAST_DELAY_SECONDS: Final = 2.0

_logger: Final = structlog.get_logger()


class _EventNote(msgspec.Struct):
    """An event notification, looked at just enough to pass it on. Tolerant."""

    params: EventHead


_decode_note: Final = msgspec.json.Decoder(_EventNote).decode
_decode_notice: Final = msgspec.json.Decoder(RouterNotice).decode
_decode_owner: Final = msgspec.json.Decoder(RouterOwner).decode
_decode_hello: Final = msgspec.json.Decoder(RouterHello).decode


class Listener(Protocol):
    """Who hears what comes over the links."""

    def runtime_changed(self, runtime: Runtime) -> None:
        """Events have come, and are folded."""
        ...

    def pass_notice(self, client: str, params: msgspec.Raw) -> None:
        """A runtime has something to say to one client."""
        ...


class Call:
    """A call to a runtime that is under way.

    Args:
        method, params: What goes over the link.
        on_answer: Told in the order of what comes over the link, before the next line is looked at; the result is None
            if the answer was an error. Not called when the connection breaks.
    """

    def __init__(
        self, method: str, params: object, on_answer: Callable[[msgspec.Raw | None], None] | None = None
    ) -> None:
        self.method = method
        self.params = params
        self._on_answer = on_answer
        self._done = trio.Event()
        self._result: msgspec.Raw | None = None
        self._error: AvenorError | None = None

    def answer(self, result: msgspec.Raw | None, error: AvenorError | None) -> None:
        """The runtime has answered."""
        if self._on_answer is not None:
            self._on_answer(result)
        self._result, self._error = result, error
        self._done.set()

    def give_up(self, error: AvenorError) -> None:
        """There will be no answer."""
        self._error = error
        self._done.set()

    async def wait(self) -> msgspec.Raw:
        """The result, still encoded.

        Raises:
            AvenorError: What the runtime answered, as it is; `BrokenError` if it went away before it answered.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Link:
    """The connection to one runtime, which it publishes into the runtime's hub.

    Args:
        runtime: Whose process is at the other end.
        listener: Hears of changes, right after they are folded.
    """

    def __init__(self, runtime: Runtime, listener: Listener) -> None:
        self._runtime = runtime
        self._listener = listener
        self._peer = Peer()
        self._calls: dict[int, Call] = {}
        self._waiting: list[Call] = []
        self._named: set[str] = set()
        self._socket: socket.socket | None = None
        self._was_introduced = False
        self._out = bytearray()
        self._has_out = trio.Event()
        self._is_over = trio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it connects no more."""
        return self._is_over.is_set()

    def call(
        self,
        client: str,
        method: str,
        params: msgspec.Raw | None = None,
        on_answer: Callable[[msgspec.Raw | None], None] | None = None,
    ) -> Call:
        """Send a client's call; it is on its way, in order, when this returns. For `on_answer` see `Call`.

        Raises:
            Refused: The runtime does not read what is sent to it.
        """
        passed = msgspec.UNSET if params is None else params
        call = self._send(Call("router.call", RouterCall(client=client, method=method, params=passed), on_answer))
        self._named.add(client)
        return call

    def reap(self, on_answer: Callable[[msgspec.Raw | None], None]) -> Call:
        """Ask the runtime to end if it is parked: it alone knows what it has accepted. For `on_answer` see `Call`.

        Raises:
            Refused: The runtime does not read what is sent to it.
        """
        return self._send(Call("router.reap", {}, on_answer))

    def client_left(self, client: str) -> None:
        """Tell that a client has disconnected, if it was ever named here, and after all that it has called."""
        if client not in self._named:
            return
        self._named.discard(client)
        left = RouterLeft(client=client)
        if self._socket is not None:
            self._write(self._peer.notify("router.left", left))
        elif not self.is_over:
            self._waiting.append(Call("router.left", left))

    def close(self) -> None:
        """The process at the other end is dead: what is in the socket still comes, but no new connection is made."""
        self._is_over.set()
        if self._socket is None:
            self._give_up_waiting()

    async def run(self) -> None:
        """Keep the connection, and make it anew when it breaks; returns when it has ended after `close`."""
        delay = _FIRST_DELAY_SECONDS
        try:
            while True:
                if await self._connect_once():
                    delay = _FIRST_DELAY_SECONDS
                with trio.move_on_after(delay):
                    await self._is_over.wait()
                if self._is_over.is_set():
                    return
                delay = min(delay * 2, _LAST_DELAY_SECONDS)
        finally:
            self._is_over.set()
            self._give_up_waiting()

    async def _connect_once(self) -> bool:
        """One connection, from its beginning to its end; False if there was none to be had."""
        try:
            sock = dial(self._runtime.directory.socket_path)
        except OSError as error:
            _logger.debug("link.no_connection", runtime_id=self._runtime.id, error=str(error))
            return False
        with sock:
            sock.setblocking(False)
            self._socket = sock
            try:
                self._introduce()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_out, sock)
                    await self._read(sock)
                    nursery.cancel_scope.cancel()
            finally:
                self._socket = None
                self._out.clear()
                self._peer = Peer()
                self._give_up(list(self._calls.values()))
                self._calls.clear()
        return True

    def _introduce(self) -> None:
        """Say what this connection is for, ask for the events that are new, and send what has waited."""
        calls = [Call("router.hello", {}, self._greet)]
        after = SubscribeParams(replay=True, after_seq=self._runtime.hub.latest_seq, on_lag="disk")
        client = None if self._was_introduced else self._runtime.spawner
        self._was_introduced = True
        if client is None:
            calls.append(Call("subscribe", after, self._have_started))
        else:
            # The spawner owns what it spawned, from the first moment on.
            self._named.add(client)
            claim = RouterCall(client=client, method="claim", params=msgspec.Raw(b"{}"))
            calls += [Call("subscribe", after), Call("router.call", claim, self._have_started)]
        waiting, self._waiting = self._waiting, []
        # In one piece: a new run begins as soon as it has read who is there.
        self._write(b"".join(map(self._frame, [*calls, *waiting])))

    def _greet(self, result: msgspec.Raw | None) -> None:
        try:
            hello = None if result is None else _decode_hello(result)
        except msgspec.DecodeError as error:
            hello = None
            _logger.error("link.bad_hello", runtime_id=self._runtime.id, error=str(error))
        if hello is not None:
            self._runtime.state.pid = hello.ping.pid
            self._set_owner(hello.snapshot.owner)
            self._runtime.revise()

    def _have_started(self, _result: msgspec.Raw | None) -> None:
        self._runtime.started.set()

    async def _read(self, sock: socket.socket) -> None:
        splitter = LineSplitter()
        while data := await _receive(sock):
            await self._take(splitter.feed(data))

    async def _take(self, lines: list[bytes | Oversized]) -> None:
        events: list[bytes] = []
        for line in lines:
            if isinstance(line, bytes) and line.startswith(EVENT_PREFIX):
                events.append(line)
                continue
            if events:
                await self._publish(events)
                events = []
            if isinstance(line, bytes):
                self._take_message(line)
        if events:
            await self._publish(events)

    async def _publish(self, notes: list[bytes]) -> None:
        """Pass events on as they came, each once and in order."""
        hub = self._runtime.hub
        try:
            heads = [_decode_note(note).params for note in notes]
        except msgspec.DecodeError as error:
            _logger.error("link.bad_event", runtime_id=self._runtime.id, error=str(error))
            return
        expected = hub.latest_seq + 1
        if heads[0].seq == expected and heads[-1].seq == expected + len(heads) - 1:
            hub.publish(notes, heads)
        else:
            await self._publish_around_gaps(notes, heads)
        self._listener.runtime_changed(self._runtime)

    async def _publish_around_gaps(self, notes: list[bytes], heads: list[EventHead]) -> None:
        for note, head in zip(notes, heads, strict=True):
            # A line over the limit was skipped, and is in the log. A disk that was full leaves gaps that stay.
            if head.seq > self._runtime.hub.latest_seq + 1:
                await catch_up(self._runtime, before_seq=head.seq)
            if head.seq > self._runtime.hub.latest_seq:
                self._runtime.hub.publish([note], [head])

    def _take_message(self, line: bytes) -> None:
        message = self._peer.receive(line)
        if isinstance(message, IncomingResult):
            self._calls.pop(message.id).answer(message.result, None)
        elif isinstance(message, IncomingError):
            self._calls.pop(message.id).answer(None, from_wire(message.error))
        elif isinstance(message, IncomingNotification):
            self._take_notification(message)

    def _take_notification(self, message: IncomingNotification) -> None:
        try:
            if message.method == "router.owner":
                self._set_owner(_decode_owner(message.params).owner)
            elif message.method == "router.notice":
                notice = _decode_notice(message.params)
                self._listener.pass_notice(notice.client, notice.params)
        except msgspec.DecodeError as error:
            _logger.error("link.bad_message", runtime_id=self._runtime.id, method=message.method, error=str(error))

    def _set_owner(self, owner: str | None) -> None:
        if self._runtime.state.owner != owner:
            self._runtime.state.owner = owner
            self._runtime.revise()

    def _send(self, call: Call) -> Call:
        if len(self._out) > _OUT_LIMIT_BYTES or len(self._waiting) >= _WAITING_LIMIT:
            raise Refused(
                f"runtime {self._runtime.id} does not read what is sent to it; cancel it, or try again later",
                data={"runtime_id": self._runtime.id},
                retryable=True,
            )
        if self._is_over.is_set():
            call.give_up(self._gone())
        elif self._socket is None:
            self._waiting.append(call)
        else:
            self._write(self._frame(call))
        return call

    def _frame(self, call: Call) -> bytes:
        """The line of a call, whose answer is awaited from now on; nothing if it was given up."""
        request_id, line = self._peer.request(call.method, call.params)
        if len(line) > LINE_LIMIT_BYTES:  # the runtime would skip it, and never answer
            self._peer.forget(request_id)
            call.give_up(InvalidParams(f"the call is too long to pass on: {len(line)} bytes with its frame"))
            return b""
        self._calls[request_id] = call
        return line

    def _write(self, lines: bytes) -> None:
        """Put lines out: at once if nothing waits before them and the socket takes them."""
        sent = 0
        if not self._out and self._socket is not None:
            with contextlib.suppress(OSError):  # full; or broken, which the reader will notice
                sent = self._socket.send(lines)
        if sent < len(lines):
            self._out += lines[sent:]
            self._has_out.set()

    async def _write_out(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # broken, which the reader will notice
            while True:
                while self._out:
                    await trio.lowlevel.wait_writable(sock)
                    with contextlib.suppress(BlockingIOError):
                        del self._out[: sock.send(self._out[:_CHUNK_BYTES])]
                self._has_out = trio.Event()
                await self._has_out.wait()

    def _give_up_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._give_up(waiting)

    def _give_up(self, calls: list[Call]) -> None:
        for call in calls:
            call.give_up(self._gone())

    def _gone(self) -> BrokenError:
        return BrokenError(
            f"the connection to runtime {self._runtime.id} broke before it answered; look at its status",
            data={"runtime_id": self._runtime.id},
        )


async def catch_up(runtime: Runtime, before_seq: int | None = None, *, holds_end: bool = False) -> None:
    """Publish what is in a runtime's log and has not come over its link.

    Args:
        runtime: Whose log.
        before_seq: Where to stop; None goes to the log's end.
        holds_end: Leave its end to a later time.

    Raises:
        OSError: The log cannot be read.
    """
    hub, hint = runtime.hub, 0
    while True:
        lines, hint = await trio.to_thread.run_sync(
            logfile.read_after, runtime.directory.log_path, hub.latest_seq, _CHUNK_BYTES, hint
        )
        heads = [decode_head(line) for line in lines]
        new = [
            (wrap_event(line), head)
            for line, head in zip(lines, heads, strict=True)
            if _is_in(head, hub, before_seq) and not (holds_end and head.event == "run.end")
        ]
        if not new:
            return
        hub.publish([line for line, _ in new], [head for _, head in new])


def _is_in(head: EventHead, hub: EventHub, before_seq: int | None) -> bool:
    return head.seq > hub.latest_seq and (before_seq is None or head.seq < before_seq)


async def _receive(sock: socket.socket) -> bytes:
    while True:
        try:
            return sock.recv(_READ_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except OSError:
            return b""
