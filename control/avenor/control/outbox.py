"""What one connection sends: answers, notices and events, in one order, through one non-blocking socket.

Answers are queued. Events are not: the outbox takes the next chunk from a feed only when the socket has room, so a
client that does not read holds no more than one chunk. What comes after a quiet moment goes out at once; what comes
behind it, before the writer has had its turn, goes out together in that turn. Before an answer goes out the events that
were there before it are taken, as far as the bounds of a subscriber allow; a feed that is further behind does not hold
up answers.
"""

import socket
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple, Protocol

import trio

from avenor.control.feed import Need
from avenor.control.ring import PENDING_BYTES, PENDING_EVENTS, Chunk

# Buffers for one sendmsg; the kernel's IOV_MAX is 1024, and a socket's buffer is full long before.
_GATHER: Final = 64


class Source(Protocol):
    """Where events come from: a feed."""

    def take(self) -> Chunk | Need:
        """What comes next, or what must be done first."""
        ...

    async def read_log(self) -> Chunk | None:
        """What comes next, from the log."""
        ...


class _Entry(NamedTuple):
    data: bytes | memoryview
    answer_bytes: int
    events: int


class Outbox:
    """The sending half of a connection.

    Args:
        sock: Connected and non-blocking; whoever made the outbox closes it.
        progressed: Called when answers have left, and when the connection is found broken.

    Attributes:
        unread_bytes: Of answers that the client has not made room for.
        is_broken: Nobody is at the other end.
    """

    def __init__(self, sock: socket.socket, progressed: Callable[[], None]) -> None:
        self.unread_bytes = 0
        self.is_broken = False
        self._socket = sock
        self._progressed = progressed
        self._queue: deque[_Entry] = deque()
        self._queued_events = 0
        self._queued_event_bytes = 0
        self._marked: dict[Source, None] = {}
        self._from_log: dict[Source, None] = {}
        self._is_held = False
        self._is_reading_log = False
        self._is_quiet = True
        self._writer = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()

    def answer(self, line: bytes) -> None:
        """Sends a line (with its newline) after all events that came before it."""
        if self._marked:
            self._commit_events()
        self._put(_Entry(line, len(line), 0))

    def mark(self, feed: Source) -> None:
        """A feed has something; the writer takes it in its next turn."""
        if feed not in self._from_log and not self.is_broken:
            self._marked[feed] = None
            self._writer.unpark_all()

    def pass_on(self, feed: Source) -> None:
        """A feed that had nothing has something: sends it now, if nothing was sent so since the writer had its turn."""
        if not self._is_quiet or self._queue or self._is_held or self.is_broken:
            self.mark(feed)
            return
        self._is_quiet = False
        while self._take_from(feed) and not self.is_broken:
            if self._queue:  # no room for more
                self._marked[feed] = None
                break
        self._writer.unpark_all()

    def forget(self, feed: Source) -> None:
        """Takes nothing more from a feed."""
        self._marked.pop(feed, None)
        self._from_log.pop(feed, None)

    def pump(self) -> None:
        """Sends what the feeds have, one chunk of each in turn, until the socket has no room. Never waits."""
        while self._marked and not self._queue and not self.is_broken:
            feed = next(iter(self._marked))
            del self._marked[feed]
            if self._take_from(feed) and not self.is_broken:
                self._marked[feed] = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Answers given within are sent together at its end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._flush()

    async def run(self) -> None:
        """Sends whatever could not be sent at once. Returns when the connection is broken."""
        while not self.is_broken:
            if self._queue:
                await trio.lowlevel.wait_writable(self._socket)
                self._flush()
            elif self._marked:
                self.pump()
            elif self._from_log:
                await self._send_from_log()
            else:
                self._is_quiet = True
                self._drained.unpark_all()
                await self._writer.park()

    async def wait_drained(self) -> None:
        """Waits until all has been sent, events included."""
        await trio.lowlevel.checkpoint()
        while not self.is_broken and (self._queue or self._marked or self._from_log or self._is_reading_log):
            await self._drained.park()

    def _take_from(self, feed: Source) -> bool:
        """Puts a feed's next chunk into the queue; says whether there may be more."""
        taken = feed.take()
        if taken is Need.LOG:
            self._from_log[feed] = None
            self._writer.unpark_all()
        if isinstance(taken, Need):
            return False
        self._put(_Entry(taken.data, 0, taken.events))
        return True

    def _commit_events(self) -> None:
        """Puts before the next answer what the feeds have, unless that is more than may be pending."""
        for feed in tuple(self._marked):
            while self._queued_events < PENDING_EVENTS and self._queued_event_bytes < PENDING_BYTES:
                if not self._take_from(feed):
                    self._marked.pop(feed, None)
                    break

    async def _send_from_log(self) -> None:
        feed = next(iter(self._from_log))
        self._is_reading_log = True
        try:
            chunk = await feed.read_log()
        finally:
            self._is_reading_log = False
        if feed in self._from_log:  # else it was forgotten meanwhile
            del self._from_log[feed]
            self._marked[feed] = None
            if chunk is not None:
                self._put(_Entry(chunk.data, 0, chunk.events))

    def _put(self, entry: _Entry) -> None:
        if self.is_broken:
            return
        if not self._queue and not self._is_held:
            sent = self._send(entry.data)
            if sent == len(entry.data) or self.is_broken:
                return
            if sent:
                entry = entry._replace(data=memoryview(entry.data)[sent:])
        self._enqueue(entry)

    def _enqueue(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self.unread_bytes += entry.answer_bytes
        if entry.events:
            self._queued_events += entry.events
            self._queued_event_bytes += len(entry.data)
        self._writer.unpark_all()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return 0

    def _flush(self) -> None:
        """Sends of the queue what the socket takes."""
        while self._queue:
            try:
                sent = self._socket.sendmsg([entry.data for entry in islice(self._queue, _GATHER)])
            except BlockingIOError:
                break
            except OSError:
                self._break()
                return
            if not self._remove(sent):
                break
        self._progressed()

    def _remove(self, sent: int) -> bool:
        """Takes sent bytes off the queue; says whether the socket took whole entries only."""
        while self._queue and sent >= len(self._queue[0].data):
            entry = self._queue.popleft()
            sent -= len(entry.data)
            self._account(entry, len(entry.data))
        if not sent:
            return True
        entry = self._queue[0]
        self._queue[0] = entry._replace(data=memoryview(entry.data)[sent:])
        if entry.events:
            self._queued_event_bytes -= sent
        return False

    def _account(self, entry: _Entry, left_bytes: int) -> None:
        self.unread_bytes -= entry.answer_bytes
        if entry.events:
            self._queued_events -= entry.events
            self._queued_event_bytes -= left_bytes

    def _break(self) -> None:
        self.is_broken = True
        self._queue.clear()
        self._marked.clear()
        self._from_log.clear()
        self._writer.unpark_all()
        self._drained.unpark_all()
        self._progressed()
