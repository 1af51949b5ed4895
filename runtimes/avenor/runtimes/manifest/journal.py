"""The one way in which a manifest run's state changes: an event is told, folded, and whoever decides is woken."""

import time
from collections.abc import Iterable, Sequence

import trio

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import JoinEvent
from avenor.protocol.manifest.state import ManifestState
from avenor.runtimes.eventlog import EventLog


class RunClock:
    """Unix milliseconds that never jump: read off the wall once, and counted on trio's clock from there."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - round(trio.current_time() * 1000)

    def now_ms(self) -> int:
        """The time now."""
        return round(trio.current_time() * 1000) + self._offset_ms

    def at(self, when_ms: int) -> float:
        """A moment on trio's clock."""
        return (when_ms - self._offset_ms) / 1000


class Pauses:
    """How long the run has waited for decisions of a person. A fold over events."""

    def __init__(self) -> None:
        self._total_ms = 0
        self._since_ms = 0
        self._open: set[str] = set()

    def apply(self, event: Event, at_ms: int) -> None:
        """Takes the next event, which came then."""
        if not isinstance(event, JoinEvent):
            return
        if event.state == "conflict":
            self._since_ms = self._since_ms if self._open else at_ms
            self._open.add(event.join_id)
        elif event.join_id in self._open:
            self._open.discard(event.join_id)
            self._total_ms += 0 if self._open else max(0, at_ms - self._since_ms)

    def total_ms(self) -> int:
        """The time of all pauses that are over."""
        return self._total_ms


class Journal:
    """Tells events of a manifest run, and keeps the state that they come to.

    Args:
        log: The run's log.
        past: What an earlier process of the run has told, in order.

    Attributes:
        state: The fold.
        pauses: The fold of the run's pauses.
        clock: The run's time.
    """

    def __init__(self, log: EventLog, past: Iterable[Event] = ()) -> None:
        self.state = ManifestState()
        self.pauses = Pauses()
        self.clock = RunClock()
        self._log = log
        self._changed = trio.Event()
        for event in past:
            self._apply(event, event.ts)

    def tell(self, events: Sequence[Event]) -> None:
        """Tells events in their order; they are part of the state at once."""
        for event in events:
            self._log.emit(event)
            self._apply(event, self.clock.now_ms())
        self.wake()

    def wake(self) -> None:
        """Something has changed of which there is no event."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_change(self) -> None:
        """Returns once something has changed after the call."""
        await self._changed.wait()

    def _apply(self, event: Event, at_ms: int) -> None:
        self.state.apply(event)
        self.pauses.apply(event, at_ms)
