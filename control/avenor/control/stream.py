"""What clients that follow events must remember, without the connection: where to go on after it broke, and repeats."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from avenor.protocol.errors import AvenorError, RemoteProtocolError, from_wire
from avenor.protocol.events import AnyEvent, decode_event
from avenor.protocol.framing import LineSplitter, Oversized
from avenor.protocol.methods import EVENT_PREFIX, LINE_LIMIT_BYTES, Notice, Subscribed, SubscribeParams
from avenor.protocol.peer import IncomingError, IncomingNotification, IncomingResult, Malformed, Peer
from avenor.protocol.snapshot import Snapshot

OnLag = Literal["drop", "disk"]

# After a break: at once, then slower, since a supervisor that is being replaced needs a moment.
RECONNECT_SECONDS: Final = (0.0, 0.1, 0.2, 0.5, 1.0)


_RUN_END: Final = b'{"event":"run.end",'


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

    @property
    def needs_list(self) -> bool:
        """Whether `subscriptions` must be given the server's list: any runtime is followed, whenever it began."""
        return self._runtime_id is None and self._after_seq is None

    def subscriptions(self, snapshots: list[Snapshot]) -> list[SubscribeParams]:
        """What to subscribe to on a new connection.

        Args:
            snapshots: The server's list, empty if it is not needed.
        """
        if not self.needs_list:
            return [self._params(self._runtime_id, self._seen.get(self._runtime_id, self._after_seq), self._replay)]
        is_first, self._has_begun = not self._has_begun, True
        if is_first and self._replay:
            return [self._params(None, None, replay=True)]
        for snapshot in snapshots:
            # What begins while nobody is connected is wanted from its first event.
            self._seen.setdefault(snapshot.runtime_id, snapshot.latest_seq if is_first else 0)
        missed = [one for one in snapshots if one.status != "ended" or one.latest_seq != self._seen[one.runtime_id]]
        return [*(self._params(one.runtime_id, self._seen[one.runtime_id]) for one in missed), self._params(None, None)]

    def subscribed(self, params: SubscribeParams, answer: Subscribed) -> None:
        """Takes the answer to a subscription. After a `reset` the log is another one, and begins anew."""
        key = params.runtime_id
        if answer.reset is True:
            self._seen[key] = 0
        elif not self.needs_list and key not in self._seen:
            latest = 0 if answer.latest_seq is UNSET or self._replay else answer.latest_seq
            self._seen[key] = latest if self._after_seq is None else self._after_seq

    def is_last(self, line: bytes) -> bool:
        """Whether nothing can follow this event: it is the end of the one run that is followed."""
        if not line.startswith(_RUN_END):
            return False
        return not self.needs_list or _decode_place(line).runtime_id is UNSET

    def accept(self, line: bytes) -> bool:
        """Whether this event is new; it counts as had from now on."""
        place = _decode_place(line)
        key = self._runtime_id
        if self.needs_list:
            key = None if place.runtime_id is UNSET else place.runtime_id
        if place.seq <= self._seen.get(key, 0):
            return False
        self._seen[key] = place.seq
        return True

    def _params(self, runtime_id: str | None, after_seq: int | None, replay: bool = False) -> SubscribeParams:
        return SubscribeParams(
            runtime_id=runtime_id,
            after_seq=after_seq,
            replay=replay and after_seq is None,
            on_lag=self._on_lag,
            events=self._events,
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
