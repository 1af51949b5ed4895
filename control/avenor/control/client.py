"""A client of control sockets for trio programs: calls with typed results, and events that outlive a connection.

`blocking` has the same for programs without trio.
"""

import builtins
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Literal, TypeVar
from weakref import WeakSet

import msgspec
import trio

from avenor.control.stream import RECONNECT_SECONDS, OnLag, Place, Session, decoded, notice_in
from avenor.control.wire import Wire, dial_trio
from avenor.protocol.errors import BrokenError, ClosedError, Unavailable
from avenor.protocol.methods import (
    Accepted,
    AnswerParams,
    Cancelled,
    History,
    HistoryParams,
    InterruptParams,
    ListParams,
    LogLevel,
    LogLevelParams,
    LogLevelSet,
    NoParams,
    Notice,
    Owner,
    OwnerTarget,
    Pong,
    PromptAccepted,
    PromptParams,
    Pruned,
    PruneParams,
    RunResult,
    ShutdownParams,
    ShuttingDown,
    Spawned,
    Target,
    WaitParams,
)
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams

T = TypeVar("T")
Until = Literal["attention", "done"]
ShutdownMode = Literal["graceful", "drain", "detach", "kill"]

_RECEIVE_BYTES: Final = 256 * 1024


@asynccontextmanager
async def open_client(path: str, *, on_notice: Callable[[Notice], None] | None = None) -> AsyncGenerator["Client"]:
    """A connected client.

    Args:
        path: The control socket, of a supervisor or of a run.
        on_notice: Called with notices to this connection, such as `OwnerChanged`.

    Raises:
        BrokenError: No server is there.
    """
    sock = await dial_trio(path)
    try:
        async with trio.open_nursery() as nursery:
            client = Client(path, sock, on_notice)
            nursery.start_soon(client.wire.run)
            try:
                yield client
            finally:
                client.close_streams()
                nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()


class Client:
    """Calls on one connection, any number at a time; made by `open_client`.

    Every method raises the `AvenorError` that the server refused with, and `BrokenError` when the connection broke
    before the answer came. Cancelling a call does not take it back.

    Attributes:
        wire: The connection.
    """

    def __init__(self, path: str, sock: socket.socket, on_notice: Callable[[Notice], None] | None) -> None:
        self.wire = Wire(sock, self._notified)
        self._path = path
        self._on_notice = on_notice
        self._streams: WeakSet[EventStream] = WeakSet()

    async def call(self, method: str, params: object, result_type: type[T]) -> T:
        """The result of any method, decoded."""
        return msgspec.json.decode(await self.wire.call(method, params), type=result_type)

    async def ping(self) -> Pong:
        """Which server this is."""
        return await self.call("ping", NoParams(), Pong)

    async def status(self, runtime_id: str | None = None) -> Snapshot:
        """The snapshot of a runtime; without an id of the only live one, as in all methods."""
        return await self.call("status", Target(runtime_id=runtime_id), Snapshot)

    async def list(self, fields: "builtins.list[str] | None" = None) -> "builtins.list[Snapshot]":
        """The snapshots of all runtimes; with `fields` only these members of each, and nothing in the others."""
        return await self.call("list", ListParams(fields=fields), builtins.list[Snapshot])

    async def spec(self, runtime_id: str | None = None) -> SpawnParams:
        """What a runtime was asked to do: the params of a spawn of the same run."""
        return await self.call("spec", Target(runtime_id=runtime_id), SpawnParams)

    async def result(self, runtime_id: str | None = None) -> RunResult:
        """The final output of the last turn, complete."""
        return await self.call("result", Target(runtime_id=runtime_id), RunResult)

    async def history(self, runtime_id: str | None = None, *, after_seq: int = 0, limit: int = 64) -> History:
        """Events from the log, of ended runtimes too."""
        params = HistoryParams(runtime_id=runtime_id, after_seq=after_seq, limit=limit)
        return await self.call("history", params, History)

    async def wait(
        self, runtime_id: str | None = None, *, until: Until = "done", timeout_seconds: float | None = None
    ) -> Snapshot:
        """The snapshot when the runtime is done or wants attention, or when the time is over."""
        timeout_ms = None if timeout_seconds is None else round(timeout_seconds * 1000)
        return await self.call("wait", WaitParams(runtime_id=runtime_id, until=until, timeout_ms=timeout_ms), Snapshot)

    async def spawn(self, params: SpawnParams) -> Spawned:
        """Starts a runtime. With a `key` it is safe to ask again after a break."""
        return await self.call("spawn", params, Spawned)

    async def prompt(self, text: str, runtime_id: str | None = None, *, force: bool = False) -> PromptAccepted:
        """Gives the agent one more prompt. Takes ownership, as the methods below do; `force` takes it from another."""
        params = PromptParams(text=text, runtime_id=runtime_id, force=force)
        return await self.call("prompt", params, PromptAccepted)

    async def interrupt_and_prompt(
        self, text: str, runtime_id: str | None = None, *, keep_queue: bool = False, force: bool = False
    ) -> Accepted:
        """Cuts the turn short and gives the agent this prompt."""
        params = InterruptParams(text=text, runtime_id=runtime_id, keep_queue=keep_queue, force=force)
        return await self.call("interrupt_and_prompt", params, Accepted)

    async def answer_permission(
        self,
        request_id: str,
        option_id: str,
        runtime_id: str | None = None,
        *,
        message: str | None = None,
        force: bool = False,
    ) -> Accepted:
        """Settles a permission request with one of its options."""
        params = AnswerParams(
            request_id=request_id, option_id=option_id, message=message, runtime_id=runtime_id, force=force
        )
        return await self.call("answer_permission", params, Accepted)

    async def cancel(self, runtime_id: str | None = None, *, force: bool = False) -> Cancelled:
        """Ends a run; the answer comes when it has ended and its processes are gone."""
        return await self.call("cancel", OwnerTarget(runtime_id=runtime_id, force=force), Cancelled)

    async def claim(self, runtime_id: str | None = None, *, force: bool = False) -> Owner:
        """Takes ownership, until this client releases it or disconnects."""
        return await self.call("claim", OwnerTarget(runtime_id=runtime_id, force=force), Owner)

    async def release(self, runtime_id: str | None = None) -> Owner:
        """Gives ownership up."""
        return await self.call("release", Target(runtime_id=runtime_id), Owner)

    async def prune(self, keep: float | str, *, dry_run: bool = False) -> Pruned:
        """Forgets runtimes that ended longer ago than `keep` (seconds, or text like `7d`), and their files."""
        return await self.call("prune", PruneParams(keep=keep, dry_run=dry_run), Pruned)

    async def log_level(self, level: LogLevel | None = None) -> LogLevelSet:
        """The least important messages that the supervisor logs; with a level, from now on."""
        return await self.call("log_level", LogLevelParams(level=level), LogLevelSet)

    async def shutdown(self, mode: ShutdownMode = "graceful") -> ShuttingDown:
        """Ends the server."""
        return await self.call("shutdown", ShutdownParams(mode=mode), ShuttingDown)

    def events(
        self,
        runtime_id: str | None = None,
        *,
        after_seq: int | None = None,
        replay: bool = False,
        on_lag: OnLag = "disk",
        events: "builtins.list[str] | None" = None,
        reconnect: bool = True,
        raw: bool = False,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> "EventStream":
        """Events as they come, on a connection of their own; after a break it goes on where it was.

        Args:
            runtime_id: Whose; None is all that the server has, later ones too.
            after_seq: Begin after this one.
            replay: Begin with the first.
            on_lag: Whether events may be left out when they are read too slowly.
            events: Only those of these names.
            reconnect: Whether to connect again, for as long as it takes, when the connection breaks.
            raw: Give the lines of the log instead of decoded events.
            on_notice: Called with notices, such as `Lagged`.
        """
        place = Place(runtime_id, after_seq=after_seq, replay=replay, on_lag=on_lag, events=events)
        stream = EventStream(self._path, place, reconnect=reconnect, raw=raw, on_notice=on_notice)
        self._streams.add(stream)
        return stream

    def close_streams(self) -> None:
        """Closes the connections of all event streams."""
        for stream in self._streams:
            stream.close()

    def _notified(self, method: str, params: Any) -> None:
        notice = notice_in(method, params)
        if notice is not None and self._on_notice is not None:
            self._on_notice(notice)


class EventStream:
    """Iterates over events, each once and those of a runtime in order; made by `Client.events`.

    It reads only when asked for the next event, so that a slow reader slows nobody and fills no memory. Ends after the
    `run.end` of the one runtime that is followed, asked for or not. Use it in `async with`, or `close` it, in another
    task too; the client's end does so.
    """

    def __init__(
        self,
        path: str,
        place: Place,
        *,
        reconnect: bool,
        raw: bool,
        on_notice: Callable[[Notice], None] | None,
    ) -> None:
        self._path = path
        self._place = place
        self._reconnect = reconnect
        self._raw = raw
        self._on_notice = on_notice
        self._session = Session(on_notice)
        self._socket: socket.socket | None = None
        self._has_begun = False
        self._is_closed = False

    async def __aenter__(self) -> "EventStream":
        """Subscribes, so that nothing is missed from here on."""
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        self.close()

    def __aiter__(self) -> "EventStream":
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next event: decoded, or its line.

        Raises:
            Unavailable: The connection broke, and was not to be made again.
            AvenorError: The server refused the subscription.

        Cancellation: No event is lost.
        """
        while not (self._is_closed or self._place.has_ended):
            if not self._session.events:
                await self._receive_more()
                continue
            line = self._session.events.popleft()
            if self._place.accept(line):
                return line if self._raw else decoded(line)
        raise StopAsyncIteration

    def close(self) -> None:
        """Ends the stream, for a reader in another task too; harmless twice."""
        self._is_closed = True
        self._disconnect()

    async def _receive_more(self) -> None:
        sock = self._socket
        try:
            if sock is not None:
                await self._receive(sock)
            elif self._has_begun and self._reconnect:
                await self._connect_again()
            else:
                await self._connect()
        except Unavailable:
            self._disconnect()
            # After a break the next round connects again. Who closed it in another task wants no error here.
            if not self._is_closed and (sock is None or not self._reconnect):
                raise

    async def _connect_again(self) -> None:
        for attempt in range(1 << 30):
            await trio.sleep(RECONNECT_SECONDS[min(attempt, len(RECONNECT_SECONDS) - 1)])
            try:
                await self._connect()
            except Unavailable:
                if not self._is_closed:
                    continue
            return

    async def _connect(self) -> None:
        try:
            while not await self._subscribe():
                self._disconnect()  # runtimes have begun in between: the next try knows them
        except BaseException:
            self._disconnect()
            raise
        self._has_begun = True

    async def _subscribe(self) -> bool:
        """Whether nothing was missed on this new connection."""
        self._check_open()
        sock = self._socket = await dial_trio(self._path)
        self._check_open()  # closed in another task meanwhile
        steps = self._place.steps()
        answer: Any = None
        while True:
            try:
                method, params, result_type = steps.send(answer)
            except StopIteration as stop:
                return bool(stop.value)
            answer = await self._call(sock, method, params, result_type)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this event stream was closed")

    async def _call(self, sock: socket.socket, method: str, params: object, result_type: type[T]) -> T:
        rest = memoryview(self._session.request(method, params))
        while rest:
            try:
                await trio.lowlevel.wait_writable(sock)
                rest = rest[sock.send(rest) :]
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise self._broken(error) from error
        while (result := self._session.take_answer()) is None:
            await self._receive(sock)
        return msgspec.json.decode(result, type=result_type)

    async def _receive(self, sock: socket.socket) -> None:
        try:
            await trio.lowlevel.wait_readable(sock)
            data = sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error
        if not data:
            raise BrokenError("the server closed the connection")
        self._session.feed(data)

    def _disconnect(self) -> None:
        if self._socket is not None:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._socket = None
            self._session = Session(self._on_notice)  # what it had and did not give out comes again

    def _broken(self, error: OSError | trio.ClosedResourceError) -> Unavailable:
        if self._is_closed:
            return ClosedError("this event stream was closed")
        return BrokenError(f"the connection broke: {getattr(error, 'strerror', None) or error}")
