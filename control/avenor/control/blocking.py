"""A client of control sockets for programs without trio: the standard library and msgspec, and no thread.

`client` has the same for trio programs; the names are the same.
"""

import builtins
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, TypeVar
from weakref import WeakSet

import msgspec

from avenor.control.stream import RECONNECT_SECONDS, OnLag, Place, Session, decoded
from avenor.host.sockaddr import dial
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


@contextmanager
def open_client(
    path: str, *, timeout_seconds: float | None = None, on_notice: Callable[[Notice], None] | None = None
) -> Generator["Client"]:
    """A connected client.

    Args:
        path: The control socket, of a supervisor or of a run.
        timeout_seconds: How long to wait for a server that says nothing; None waits for ever.
        on_notice: Called with notices to this connection, while an answer is awaited.

    Raises:
        BrokenError: No server is there.
    """
    client = Client(path, timeout_seconds=timeout_seconds, on_notice=on_notice)
    try:
        yield client
    finally:
        client.close()


class Connection:
    """One connection, one call at a time.

    Raises:
        BrokenError: No server is there.
    """

    def __init__(self, path: str, *, timeout_seconds: float | None, on_notice: Callable[[Notice], None] | None) -> None:
        self.session = Session(on_notice)
        try:
            self._socket = dial(path)
        except OSError as error:
            text = f"no server answers at {path} ({error.strerror or error}); `avenor stable` starts one"
            raise BrokenError(text, reason="no_server") from error
        self._socket.settimeout(timeout_seconds)
        self._end: Unavailable | None = None

    def call(self, method: str, params: object, result_type: type[T]) -> T:
        """The result of a method, decoded.

        Raises:
            AvenorError: The server refused.
            BrokenError: The connection broke.
            ClosedError: It was closed, or a call was given up half sent.
            TimeoutError: Nothing came for so long; the call may have been carried out all the same.
        """
        self._send(self.session.request(method, params))
        while (result := self.session.take_answer()) is None:
            self.receive()
        return msgspec.json.decode(result, type=result_type)

    def receive(self) -> None:
        """Waits for more; raises as `call` does."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            self._fail(_broken(error), error)
        if not data:
            self._fail(BrokenError("the server closed the connection"))
        self.session.feed(data)

    def close(self) -> None:
        """Closes it, and wakes who waits for it in another thread; harmless twice."""
        self._close(ClosedError("this connection was closed"))

    def _send(self, line: bytes) -> None:
        if self._end is not None:
            self._fail(self._end)
        try:
            self._socket.sendall(line)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                self._fail(_broken(error), error)
            # The server would take the next call for the rest of this one.
            self._close(ClosedError("a call was given up while it was being sent"))
            raise

    def _close(self, end: ClosedError) -> None:
        self._end = self._end or end
        with suppress(OSError):  # the other side was faster, or it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _fail(self, error: Unavailable, cause: OSError | None = None) -> NoReturn:
        """Raises what ended the connection: this, unless something else had before."""
        self._end = self._end or error
        raise type(self._end)(self._end.message) from cause


class Client:
    """Calls on one connection, one at a time; made by `open_client`.

    Every method raises the `AvenorError` that the server refused with, `BrokenError` when the connection broke before
    the answer came, `ClosedError` when it was closed, and `TimeoutError` when nothing came for so long. A call that is
    given up half sent, by that or by an interrupt, closes the connection.
    """

    def __init__(self, path: str, *, timeout_seconds: float | None, on_notice: Callable[[Notice], None] | None) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._connection = Connection(path, timeout_seconds=timeout_seconds, on_notice=on_notice)
        self._streams: WeakSet[EventStream] = WeakSet()

    def call(self, method: str, params: object, result_type: type[T]) -> T:
        """The result of any method, decoded."""
        return self._connection.call(method, params, result_type)

    def ping(self) -> Pong:
        """Which server this is."""
        return self.call("ping", NoParams(), Pong)

    def status(self, runtime_id: str | None = None) -> Snapshot:
        """The snapshot of a runtime; without an id of the only live one, as in all methods."""
        return self.call("status", Target(runtime_id=runtime_id), Snapshot)

    def list(self, fields: "builtins.list[str] | None" = None) -> "builtins.list[Snapshot]":
        """The snapshots of all runtimes; with `fields` only these members of each, and nothing in the others."""
        return self.call("list", ListParams(fields=fields), builtins.list[Snapshot])

    def spec(self, runtime_id: str | None = None) -> SpawnParams:
        """What a runtime was asked to do: the params of a spawn of the same run."""
        return self.call("spec", Target(runtime_id=runtime_id), SpawnParams)

    def result(self, runtime_id: str | None = None) -> RunResult:
        """The final output of the last turn, complete."""
        return self.call("result", Target(runtime_id=runtime_id), RunResult)

    def history(self, runtime_id: str | None = None, *, after_seq: int = 0, limit: int = 64) -> History:
        """Events from the log, of ended runtimes too."""
        params = HistoryParams(runtime_id=runtime_id, after_seq=after_seq, limit=limit)
        return self.call("history", params, History)

    def wait(
        self, runtime_id: str | None = None, *, until: Until = "done", timeout_seconds: float | None = None
    ) -> Snapshot:
        """The snapshot when the runtime is done or wants attention, or when the time is over."""
        timeout_ms = None if timeout_seconds is None else round(timeout_seconds * 1000)
        return self.call("wait", WaitParams(runtime_id=runtime_id, until=until, timeout_ms=timeout_ms), Snapshot)

    def spawn(self, params: SpawnParams) -> Spawned:
        """Starts a runtime. With a `key` it is safe to ask again after a break."""
        return self.call("spawn", params, Spawned)

    def prompt(self, text: str, runtime_id: str | None = None, *, force: bool = False) -> PromptAccepted:
        """Gives the agent one more prompt. Takes ownership, as the methods below do; `force` takes it from another."""
        params = PromptParams(text=text, runtime_id=runtime_id, force=force)
        return self.call("prompt", params, PromptAccepted)

    def interrupt_and_prompt(
        self, text: str, runtime_id: str | None = None, *, keep_queue: bool = False, force: bool = False
    ) -> Accepted:
        """Cuts the turn short and gives the agent this prompt."""
        params = InterruptParams(text=text, runtime_id=runtime_id, keep_queue=keep_queue, force=force)
        return self.call("interrupt_and_prompt", params, Accepted)

    def answer_permission(
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
        return self.call("answer_permission", params, Accepted)

    def cancel(self, runtime_id: str | None = None, *, force: bool = False) -> Cancelled:
        """Ends a run; the answer comes when it has ended and its processes are gone."""
        return self.call("cancel", OwnerTarget(runtime_id=runtime_id, force=force), Cancelled)

    def claim(self, runtime_id: str | None = None, *, force: bool = False) -> Owner:
        """Takes ownership, until this client releases it or disconnects."""
        return self.call("claim", OwnerTarget(runtime_id=runtime_id, force=force), Owner)

    def release(self, runtime_id: str | None = None) -> Owner:
        """Gives ownership up."""
        return self.call("release", Target(runtime_id=runtime_id), Owner)

    def prune(self, keep: float | str, *, dry_run: bool = False) -> Pruned:
        """Forgets runtimes that ended longer ago than `keep` (seconds, or text like `7d`), and their files."""
        return self.call("prune", PruneParams(keep=keep, dry_run=dry_run), Pruned)

    def log_level(self, level: LogLevel | None = None) -> LogLevelSet:
        """The least important messages that the supervisor logs; with a level, from now on."""
        return self.call("log_level", LogLevelParams(level=level), LogLevelSet)

    def shutdown(self, mode: ShutdownMode = "graceful") -> ShuttingDown:
        """Ends the server."""
        return self.call("shutdown", ShutdownParams(mode=mode), ShuttingDown)

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

    def close(self) -> None:
        """Disconnects, and closes all event streams; harmless twice."""
        self._connection.close()
        for stream in self._streams:
            stream.close()


class EventStream:
    """Iterates over events, each once and those of a runtime in order; made by `Client.events`.

    It reads only when asked for the next event, so that a slow reader slows nobody and fills no memory. Ends after the
    `run.end` of the one runtime that is followed, asked for or not. Use it in `with`, or `close` it, in another thread
    too; the client's end does so.
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
        self._connection: Connection | None = None
        self._has_begun = False
        self._is_closed = False

    def __enter__(self) -> "EventStream":
        """Subscribes, so that nothing is missed from here on."""
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next event: decoded, or its line.

        Raises:
            Unavailable: The connection broke, and was not to be made again.
            AvenorError: The server refused the subscription.
        """
        while not (self._is_closed or self._place.has_ended):
            connection = self._connection
            if connection is None or not connection.session.events:
                self._receive_more(connection)
                continue
            line = connection.session.events.popleft()
            if self._place.accept(line):
                return line if self._raw else decoded(line)
        raise StopIteration

    def close(self) -> None:
        """Ends the stream, for a reader in another thread too; harmless twice."""
        self._is_closed = True
        self._disconnect()

    def _receive_more(self, connection: Connection | None) -> None:
        try:
            if connection is not None:
                connection.receive()
            elif self._has_begun and self._reconnect:
                self._connect_again()
            else:
                self._connect()
        except Unavailable:
            self._disconnect()
            # After a break the next round connects again. Who closed it in another thread wants no error here.
            if not self._is_closed and (connection is None or not self._reconnect):
                raise

    def _connect_again(self) -> None:
        for attempt in range(1 << 30):
            time.sleep(RECONNECT_SECONDS[min(attempt, len(RECONNECT_SECONDS) - 1)])
            try:
                self._connect()
            except Unavailable:
                if not self._is_closed:
                    continue
            return

    def _connect(self) -> None:
        try:
            while not self._subscribe():
                self._disconnect()  # runtimes have begun in between: the next try knows them
        except BaseException:
            self._disconnect()
            raise
        self._has_begun = True

    def _subscribe(self) -> bool:
        """Whether nothing was missed on this new connection."""
        self._check_open()
        # Between events it may be quiet for long, so there is no limit to how long one takes.
        connection = self._connection = Connection(self._path, timeout_seconds=None, on_notice=self._on_notice)
        self._check_open()  # closed in another thread, which may not have seen the connection
        steps = self._place.steps()
        answer: Any = None
        while True:
            try:
                method, params, result_type = steps.send(answer)
            except StopIteration as stop:
                return bool(stop.value)
            answer = connection.call(method, params, result_type)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this event stream was closed")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _broken(error: OSError) -> BrokenError:
    return BrokenError(f"the connection broke: {error.strerror or error}")
