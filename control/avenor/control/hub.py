"""What is known of one runtime's events in this process: the newest of them, the snapshot, and who follows.

Used by the process that writes the log and by the supervisor, through which the same lines pass. Whoever publishes
never waits: a follower that is slow reads later, from the ring or from the log.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import trio

from avenor.control.pieces import LogPieces
from avenor.control.ring import BYTES, PENDING_EVENTS, Ring
from avenor.protocol.events import EventHead
from avenor.protocol.methods import unwrap_event
from avenor.protocol.snapshot import COUNTED_ONLY, Fold, Snapshot


class Follower(Protocol):
    """Somebody who is told of new events. None of the methods waits or raises."""

    def mark(self) -> None:
        """There is more; told once, until the follower reports with `EventHub.in_step`."""

    def more(self) -> None:
        """The same, just now, to one that had everything: the first of it may go out at once."""

    def hurry(self) -> None:
        """Much has come at once: take it now if it can be passed on."""

    def evicting(self, count: int) -> None:
        """So many of the ring's oldest lines are removed after this."""

    def released(self) -> None:
        """It has everything, and nothing more will come: it may let go of the hub."""


class HubSource(Protocol):
    """Where the hubs of a server are found."""

    def find(self, runtime_id: str | None) -> "EventHub":
        """The hub of a runtime, by its id, its run id or its label; with None, of the only live one.

        Raises:
            NoSuchRuntime: There is none, or several could be meant.
        """
        ...

    def all_hubs(self) -> "Iterable[EventHub]":
        """Those of all runtimes, ended ones too."""
        ...

    def on_hub_added(self, action: "Callable[[EventHub], None]") -> None:
        """Has `action` called for each hub that comes later."""
        ...


class SingleHub:
    """The source of a server that serves one runtime.

    Args:
        hub: Its hub; the runtime's id, its run id, its label, or none of them finds it.
        no_such: Makes the error for another name.
    """

    def __init__(self, hub: "EventHub", no_such: Callable[[str], Exception]) -> None:
        self._hub = hub
        self._no_such = no_such

    def find(self, runtime_id: str | None) -> "EventHub":
        """The hub, if it is meant."""
        known = self._hub.fold.state
        if runtime_id is not None and runtime_id not in (self._hub.runtime_id, known.run_id, known.label):
            raise self._no_such(runtime_id)
        return self._hub

    def all_hubs(self) -> "Iterable[EventHub]":
        """The one."""
        return (self._hub,)

    def on_hub_added(self, action: "Callable[[EventHub], None]") -> None:
        """None comes later."""


class EventHub:
    """One runtime's events as they pass.

    Args:
        runtime_id: None for a run without a supervisor.
        log_path: The runtime's journal, in which every published event is already.
        fold: Already fed with what the log held before; the hub feeds it from here on.

    Attributes:
        ring: The newest events.
        pieces: The log, for those who are further behind than the ring goes.
    """

    def __init__(self, runtime_id: str | None, log_path: str | Path, fold: Fold) -> None:
        self.runtime_id = runtime_id
        self.log_path = Path(log_path)
        self.pieces = LogPieces(self.log_path)
        self.fold = fold
        self.ring = Ring(fold.state.latest_seq)
        self._in_step: dict[Follower, None] = {}
        self._behind: dict[Follower, None] = {}
        self._waiters: list[_Waiter] = []
        self._unhurried_events = 0
        self._unhurried_bytes = 0
        self._is_retired = False

    @property
    def latest_seq(self) -> int:
        """The last `seq` that passed; 0 before the first."""
        return self.ring.latest

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        """Takes the next events. Those that were here before are skipped.

        Args:
            lines: As `wrap_event` makes them.
            heads: Of the same events.
        """
        if heads and heads[0].seq <= self.ring.latest:
            known = sum(head.seq <= self.ring.latest for head in heads)
            lines, heads = lines[known:], heads[known:]
        for batch_lines, batch_heads, size_bytes in _batches(lines, heads):
            self._publish_batch(batch_lines, batch_heads, size_bytes)

    def snapshot(self) -> Snapshot:
        """The state now; valid until the next event, encode it at once."""
        return self.fold.snapshot(time.time_ns() // 1_000_000)

    async def wait_until(self, predicate: Callable[[Snapshot], bool]) -> Snapshot:
        """The state at the moment when it first was so, now or later. Holds for states that last only one event."""
        if predicate(self.fold.state):
            await trio.lowlevel.checkpoint()
            return copy.copy(self.snapshot())
        waiter = _Waiter(predicate)
        self._waiters.append(waiter)
        try:
            await waiter.done.wait()
        finally:
            self._waiters.remove(waiter)
        assert waiter.snapshot is not None
        return waiter.snapshot

    async def changed(self) -> None:
        """Waits for the next event."""
        seq = self.ring.latest
        await self.wait_until(lambda state: state.latest_seq > seq)

    def touch(self) -> None:
        """To be called when a member of the snapshot was set that no event carries: looks whom that wakes."""
        for waiter in self._waiters:
            if waiter.snapshot is None and waiter.predicate(self.fold.state):
                waiter.snapshot = copy.copy(self.snapshot())
                waiter.done.set()

    def attach(self, follower: Follower) -> None:
        """Adds a follower, which is behind until it says otherwise, and marks it."""
        self._behind[follower] = None
        follower.mark()

    def in_step(self, follower: Follower) -> None:
        """A follower says that it has everything, and is to be marked when there is more."""
        if follower in self._behind:
            del self._behind[follower]
            self._in_step[follower] = None
            if self._is_retired:
                follower.released()

    def fell_behind(self, follower: Follower) -> None:
        """A follower says that it has gone back."""
        if follower in self._in_step:
            del self._in_step[follower]
            self._behind[follower] = None
        follower.mark()

    def detach(self, follower: Follower) -> None:
        """Removes a follower; harmless if it is none."""
        self._in_step.pop(follower, None)
        self._behind.pop(follower, None)

    def retire(self) -> None:
        """The runtime is forgotten: those who follow are released, each when it has everything."""
        self._is_retired = True
        for follower in tuple(self._in_step):
            follower.released()

    def _publish_batch(self, lines: Sequence[bytes], heads: Sequence[EventHead], size_bytes: int) -> None:
        if self._unhurried_events + len(lines) > PENDING_EVENTS or self._unhurried_bytes + size_bytes > BYTES:
            self._hurry()
        if heads[0].seq != self.ring.latest + 1:
            self._tell_evicting(len(self.ring.lines))
            self.ring.skip_to(heads[0].seq - 1)
        self.ring.append(lines, heads, size_bytes)
        self._unhurried_events += len(lines)
        self._unhurried_bytes += size_bytes
        self._fold(lines, heads)
        if self._in_step:
            told, self._in_step = self._in_step, {}
            self._behind |= told
            for follower in told:
                follower.more()
        self._evict()

    def _hurry(self) -> None:
        """Has what came so far passed on before more comes, so that only who really is slow seems slow."""
        self._unhurried_events = self._unhurried_bytes = 0
        for follower in tuple(self._behind):
            follower.hurry()

    def _fold(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        fold, waiters = self.fold, self._waiters
        for line, head in zip(lines, heads, strict=True):
            if head.event not in COUNTED_ONLY:  # what is only counted need not be unwrapped
                fold.apply_line(head, unwrap_event(line))
            elif waiters:
                fold.count(head.seq, head.ts)
            if waiters:
                self.touch()
        fold.count(heads[-1].seq, heads[-1].ts)

    def _evict(self) -> None:
        count = self.ring.excess()
        if count:
            self._tell_evicting(count)
            self.ring.drop(count)

    def _tell_evicting(self, count: int) -> None:
        for follower in self._behind:
            follower.evicting(count)


class _Waiter:
    def __init__(self, predicate: Callable[[Snapshot], bool]) -> None:
        self.predicate = predicate
        self.done = trio.Event()
        self.snapshot: Snapshot | None = None


def _batches(
    lines: Sequence[bytes], heads: Sequence[EventHead]
) -> Iterator[tuple[Sequence[bytes], Sequence[EventHead], int]]:
    """The same in batches with their sizes, none over the bounds that a subscriber is promised."""
    for start in range(0, len(lines), PENDING_EVENTS):
        batch_lines, batch_heads = lines[start : start + PENDING_EVENTS], heads[start : start + PENDING_EVENTS]
        size_bytes = sum(map(len, batch_lines))
        if size_bytes <= BYTES:
            yield batch_lines, batch_heads, size_bytes
        else:
            for line, head in zip(batch_lines, batch_heads, strict=True):
                yield [line], [head], len(line)
