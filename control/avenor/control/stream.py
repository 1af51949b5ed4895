"""What clients that follow events must remember, without the connection: where to go on after it broke, and repeats."""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from avenor.protocol.errors import AvenorError, RemoteProtocolError, from_wire
from avenor.protocol.events import AnyEvent, decode_event
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import (
    EVENT_PREFIX,
    LINE_LIMIT_BYTES,
    SUBSCRIPTION_LIMIT,
    ListParams,
    NoParams,
    Notice,
    Pong,
    Subscribed,
    SubscribeParams,
    Target,
)
from avenor.protocol.peer import IncomingError, IncomingNotification, IncomingResult, Malformed, Peer
from avenor.protocol.snapshot import Snapshot

OnLag = Literal["drop", "disk"]

# After a break: at once, then slower, since a supervisor that is being replaced needs a moment.
RECONNECT_SECONDS: Final = (0.0, 0.1, 0.2, 0.5, 1.0)

# A method, its params, and the type of its result.
Step = tuple[str, object, Any]

_RUN_END: Final = "run.end"
_RUN_END_START: Final = b'{"event":"run.end",'
_LIST: Final[Step] = ("list", ListParams(fields=["runtime_id", "status", "latest_seq"]), list[Snapshot])


class _Place(msgspec.Struct):
    seq: int
    runtime_id: str | UnsetType = UNSET


_decode_place: Final = msgspec.json.Decoder(_Place).decode
_decode_notice: Final = msgspec.json.Decoder(Notice).decode


class Place:
    """Where a stream of events stands, over any number of connections.

    Args:
        runtime_id: The runtime that is followed; None follows all that the server has.
        after_seq: The last `seq` that is had already; needs a runtime, or a server that has but one.
        replay: Begin with what is in the log.
        on_lag: What the server does when this stream is read too slowly.
        events: Only events of these names.

    Attributes:
        has_ended: Nothing can follow: the run that is followed has ended, and all of it was had.
    """

    def __init__(
        self,
        runtime_id: str | None = None,
        *,
        after_seq: int | None = None,
        replay: bool = False,
        on_lag: OnLag = "disk",
        events: list[str] | None = None,
    ) -> None:
        self._runtime_id = runtime_id
        self._after_seq = after_seq
        self._replay = replay
        self._on_lag: OnLag = on_lag
        self._events = events
        self._seen: dict[str | None, int] = {}
        self._has_begun = False
        # Known of a server without a runtime only when it is asked.
        self._is_one = True if runtime_id is not None or after_seq is not None else None
        self.has_ended = False

    def steps(self) -> Generator[Step, Any, bool]:
        """What to ask on a new connection, one call after the other, each to be answered with its result.

        Returns: Whether nothing was missed. If not, the connection is to be given up for another one.
        """
        if self._is_one is None:
            pong: Pong = yield "ping", NoParams(), Pong
            self._is_one = pong.mode == "run"
        return (yield from self._one_steps() if self._is_one else self._all_steps())

    def accept(self, line: bytes) -> bool:
        """Whether this event is new and asked for; it counts as had from now on."""
        place = _decode_place(line)
        key = self._runtime_id if self._is_one or place.runtime_id is UNSET else place.runtime_id
        if place.seq <= self._seen.get(key, 0):
            return False
        self._seen[key] = place.seq
        if line.startswith(_RUN_END_START):
            self.has_ended = self._is_one is True
            return self._events is None or _RUN_END in self._events
        return True

    def _one_steps(self) -> Generator[Step, Any, bool]:
        if self._runtime_id is None:
            # Which one is meant may be another question once it has ended, or another has begun.
            meant: Snapshot = yield "status", Target(), Snapshot
            self._runtime_id = meant.runtime_id
        key = self._runtime_id
        seen = self._seen.get(key, self._after_seq)
        params = self._params(key, seen, self._replay)
        answer: Subscribed = yield "subscribe", params, Subscribed
        if answer.reset is True:  # the log is another one, and begins anew
            seen = 0
        elif seen is None:
            seen = 0 if self._replay or answer.latest_seq is UNSET else answer.latest_seq
        self._seen[key] = seen
        # Asked after the subscription, so that an end between the two is an event that comes.
        snapshot: Snapshot = yield "status", Target(runtime_id=key), Snapshot
        self.has_ended = snapshot.status == "ended" and snapshot.latest_seq <= seen
        return True

    def _all_steps(self) -> Generator[Step, Any, bool]:
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._replay:
            yield "subscribe", self._params(None, None, replay=True), Subscribed
            return True
        snapshots: list[Snapshot] = yield _LIST
        for snapshot in snapshots:
            # What begins while nobody is connected is wanted from its first event, and so is a log that is another one.
            seen = self._seen.get(snapshot.runtime_id, snapshot.latest_seq if is_first else 0)
            self._seen[snapshot.runtime_id] = seen if seen <= snapshot.latest_seq else 0
        followed = [one.runtime_id for one in snapshots if one.status != "ended" or self._is_behind(one)]
        if len(followed) >= SUBSCRIPTION_LIMIT:
            # Too many to name: everything comes again, and `accept` leaves out what was had.
            yield "subscribe", self._params(None, None, replay=True), Subscribed
            return True
        for key in followed:
            yield "subscribe", self._params(key, self._seen[key]), Subscribed
        yield "subscribe", self._params(None, None), Subscribed
        if is_first:
            return True
        # What has begun since the list was taken comes from where it was when the last subscription was made.
        snapshots = yield _LIST
        return not any(self._is_behind(one) for one in snapshots if one.runtime_id not in followed)

    def _is_behind(self, one: Snapshot) -> bool:
        return one.latest_seq != self._seen.get(one.runtime_id, 0)

    def _params(self, runtime_id: str | None, after_seq: int | None, replay: bool = False) -> SubscribeParams:
        events = self._events
        if events is not None:
            # It is not given out, but ends the stream of one run, and of all tells which need no more looking at.
            events = [*events, _RUN_END]
        return SubscribeParams(
            runtime_id=runtime_id,
            after_seq=after_seq,
            replay=replay and after_seq is None,
            on_lag=self._on_lag,
            events=events,
        )


def event_line(line: bytes) -> bytes | None:
    """The event that a line (without newline) from the server carries, if it does."""
    return line[len(EVENT_PREFIX) : -1] if line.startswith(EVENT_PREFIX) else None


def notice_in(method: str, params: msgspec.Raw) -> Notice | None:
    """The notice that a notification carries, if it does and this version knows its kind."""
    try:
        return _decode_notice(params) if method == "notice" else None
    except msgspec.DecodeError:
        return None


def decoded(line: bytes) -> AnyEvent | dict[str, Any]:
    """An event; of a kind that this version does not know, its members."""
    try:
        return decode_event(line)
    except msgspec.ValidationError:
        return msgspec.json.decode(line, type=dict[str, Any])


class Session:
    """One connection of a client that does one thing at a time, without the connection.

    Args:
        on_notice: Called with each notice that comes.

    Attributes:
        events: Event lines that have come and were not taken yet.
    """

    def __init__(self, on_notice: Callable[[Notice], None] | None) -> None:
        self.events: deque[bytes] = deque()
        self._on_notice = on_notice
        self._splitter = LineSplitter(LINE_LIMIT_BYTES)
        self._peer = Peer()
        self._awaited = 0
        self._answer: msgspec.Raw | AvenorError | None = None

    def request(self, method: str, params: object) -> bytes:
        """The line of a call, whose answer is awaited from now on in the place of any other."""
        self._peer.forget(self._awaited)
        self._answer = None
        self._awaited, line = self._peer.request(method, params)
        return line

    def feed(self, data: bytes) -> None:
        """Takes what came.

        Raises:
            RemoteProtocolError: It is not from a control server.
        """
        for line in self._splitter.feed(data):
            if isinstance(line, Oversized):
                continue  # an event too large for the protocol: its seq is missing
            event = event_line(line)
            if event is not None:
                self.events.append(event)
            else:
                self._take_other(line)

    def take_answer(self) -> msgspec.Raw | None:
        """The awaited result, None while it has not come.

        Raises:
            AvenorError: The server refused.
        """
        answer = self._answer
        if isinstance(answer, AvenorError):
            raise answer
        return answer

    def _take_other(self, line: bytes) -> None:
        match self._peer.receive(line):
            case IncomingResult(_, result):
                self._answer = result
            case IncomingError(_, error):
                self._answer = from_wire(error)
            case IncomingNotification(method, params):
                notice = notice_in(method, params)
                if notice is not None and self._on_notice is not None:
                    self._on_notice(notice)
            case Malformed(reason):
                raise RemoteProtocolError(f"the server sent what is no JSON-RPC message: {reason}")
            case _:
                pass  # an answer to a call that was given up
