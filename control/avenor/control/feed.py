"""One connection's place in one runtime's events.

A feed is a cursor: the last `seq` that it looked at. What comes next it takes from the ring if that reaches back far
enough, else from the log; so replay, lag and joining the live events are one mechanism, and a client that reads slowly
costs no memory. One that would rather lose events than be late skips what is beyond its bounds and is told how many.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from avenor.control.hub import EventHub
from avenor.control.interests import Interest, Interests
from avenor.control.ring import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    PENDING_BYTES,
    PENDING_EVENTS,
    Chunk,
    join_lines,
    within_bytes,
)
from avenor.control.rpc import encode_notification
from avenor.protocol.methods import Lagged


class Need(Enum):
    """What a feed says instead of giving a chunk."""

    NOTHING = "in step: it will mark itself"
    LOG = "what comes next must be read from the log"


class FeedOutbox(Protocol):
    """What a feed needs of its connection's outbox."""

    def mark(self, feed: "Feed") -> None:
        """The feed has something to take."""

    def pass_on(self, feed: "Feed") -> None:
        """The feed had nothing to take, and has now."""

    def pump(self) -> None:
        """Sends what can be sent without waiting."""


class Feed:
    """What one connection gets of one runtime's events.

    Args:
        hub: The runtime's.
        outbox: Of the connection; it takes chunks from the feed whenever it can send.
        start: The cursor to begin with.
        on_released: Called when the hub has nothing more, for whoever keeps the feed to close it.
    """

    def __init__(
        self, hub: EventHub, outbox: FeedOutbox, start: int, on_released: Callable[[], None] | None = None
    ) -> None:
        self.interests = Interests()
        self._hub = hub
        self._outbox = outbox
        self._cursor = start
        self._is_replaying = start < hub.latest_seq
        self._replays_from = start
        self._log_offset = 0
        self._dropped = 0
        # Wanted by a filter, gone from the ring, not sent yet: (seq, name, line).
        self._kept: deque[tuple[int, str, bytes]] = deque()
        self._kept_bytes = 0
        self._on_released = on_released
        hub.attach(self)

    def add(self, subscription_id: str, interest: Interest) -> None:
        """Takes one more subscription; its events come as soon as the outbox has room."""
        if interest.start < self._cursor:
            self._go_back(interest.start)
        self.interests.add(subscription_id, interest)
        self._hub.fell_behind(self)

    def remove(self, subscription_id: str) -> None:
        """Forgets a subscription, and what was kept for it alone."""
        self.interests.remove(subscription_id)
        self._kept = deque(entry for entry in self._kept if self.interests.wants(entry[0], entry[1]))
        self._kept_bytes = sum(len(line) for _, _, line in self._kept)

    def close(self) -> None:
        """Ends the feed."""
        self._hub.detach(self)
        self._hub.pieces.closed(self)

    def mark(self) -> None:
        """The hub has more."""
        self._outbox.mark(self)

    def more(self) -> None:
        """The hub has something new."""
        self._outbox.pass_on(self)

    def hurry(self) -> None:
        """The hub has much more at once."""
        self._outbox.pump()

    def released(self) -> None:
        """The hub has nothing more."""
        if self._on_released is not None:
            self._on_released()

    def evicting(self, count: int) -> None:
        """The hub's ring loses its oldest lines: what of them may not be dropped here is kept."""
        ring = self._hub.ring
        start = ring.index_after(self._cursor)
        if start < count and not self._catches_up:
            self._set_aside(start, count)

    def take(self) -> Chunk | Need:
        """What comes next, which counts as sent from now on."""
        ring = self._hub.ring
        start = ring.index_after(self._cursor)
        pending = len(ring.seqs) - start
        if not self._catches_up and (self._kept or pending > PENDING_EVENTS):
            self._set_aside(start, len(ring.seqs))
            return self._take_kept() if self._kept else self._nothing_left()
        if self._kept:
            return self._take_kept()
        if self._cursor < ring.floor and self._catches_up:
            self._hub.pieces.opened(self)
            return Need.LOG
        if not pending:
            return self._nothing_left()
        if self.interests.takes_all_after(self._cursor):
            chunk = ring.chunk_from(start)
            self._cursor = chunk.last_seq
            return self._told(chunk)
        return self._take_wanted(start)

    async def read_log(self) -> Chunk | None:
        """Takes what comes next from the log; None if there is nothing to send of it, or it was for nothing."""
        cursor, version, floor = self._cursor, self.interests.version, self._hub.ring.floor
        wants = None if self.interests.takes_all_after(cursor) else self.interests.wants
        piece = await self._hub.pieces.read(cursor, floor, self._log_offset, wants)
        if (cursor, version) != (self._cursor, self.interests.version):
            return None
        self._log_offset = piece.offset
        if piece.last_seq is None:  # the log does not have them: lost by a full disk, or somebody removed it
            self._dropped += floor - cursor
            self._cursor = floor
            return None
        self._cursor = piece.last_seq
        if not piece.events:
            return None
        return self._told(Chunk(piece.data, piece.events, piece.last_seq))

    @property
    def _catches_up(self) -> bool:
        return self._is_replaying or self.interests.is_lossless

    def _nothing_left(self) -> Chunk | Need:
        self._end_replay()
        self._hub.pieces.closed(self)
        if self._dropped:
            return self._told(Chunk(b"", 0, self._cursor))
        self._hub.in_step(self)
        return Need.NOTHING

    def _take_wanted(self, start: int) -> Chunk | Need:
        ring = self._hub.ring
        wanted: list[bytes] = []
        size_bytes = 0
        for seq, name, line in zip(ring.seqs[start:], ring.names[start:], ring.lines[start:], strict=True):
            if self.interests.wants(seq, name):
                wanted.append(line)
                size_bytes += len(line)
            self._cursor = seq
            if len(wanted) == CHUNK_EVENTS or size_bytes > CHUNK_BYTES:
                break
        if not wanted:
            return self._nothing_left()
        return self._told(Chunk(join_lines(wanted), len(wanted), self._cursor))

    def _take_kept(self) -> Chunk:
        lines = within_bytes([line for _, _, line in self._kept], CHUNK_BYTES)
        last_seq = self._kept[len(lines) - 1][0]
        for _ in lines:
            self._kept_bytes -= len(self._kept.popleft()[2])
        return self._told(Chunk(join_lines(lines), len(lines), last_seq))

    def _set_aside(self, start: int, end: int) -> None:
        """Looks at lines of the ring and keeps those that are wanted, or the newest of them where they are too many."""
        ring = self._hub.ring
        takes_all = self.interests.takes_all_after(self._cursor)
        for seq, name, line in zip(ring.seqs[start:end], ring.names[start:end], ring.lines[start:end], strict=True):
            if takes_all or self.interests.wants(seq, name):
                self._kept.append((seq, name, line))
                self._kept_bytes += len(line)
            self._cursor = seq
        while len(self._kept) > PENDING_EVENTS or (self._kept_bytes > PENDING_BYTES and len(self._kept) > 1):
            seq, _, line = self._kept.popleft()
            self._kept_bytes -= len(line)
            self._dropped += 1
            self.interests.lost(seq, seq)

    def _told(self, chunk: Chunk) -> Chunk:
        """The chunk, after a notice of what was dropped before it."""
        if not self._dropped:
            return chunk
        lagged = Lagged(dropped_count=self._dropped, runtime_id=self._hub.runtime_id)
        self._dropped = 0
        return chunk._replace(data=encode_notification("notice", lagged) + chunk.data)

    def _go_back(self, start: int) -> None:
        self._end_replay()
        looked_at = self._kept[0][0] - 1 if self._kept else self._cursor
        self._kept.clear()
        self._kept_bytes = 0
        self.interests.went_back(looked_at)
        self._cursor = self._replays_from = start
        self._log_offset = 0
        self._is_replaying = True

    def _end_replay(self) -> None:
        if self._is_replaying:
            self._is_replaying = False
            self.interests.caught_up(self._replays_from, self._cursor)
