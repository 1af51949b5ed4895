"""The one way in which a manifest run's state changes: an event is told, folded, and whoever decides is woken."""

import time
from collections.abc import Iterable, Sequence

import trio

from avenor.protocol.event_base import Event
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
    """How long the run has waited for decisions of a person, while nobody worked. A fold over events."""

    def __init__(self) -> None:
        self._total_ms = 0
        self._since_ms: int | None = None

    def apply(self, at_ms: int, *, is_paused: bool) -> None:
        """Takes what an event has come to, and when."""
        if is_paused != (self._since_ms is not None):
            self._total_ms = self.total_ms(at_ms)
            self._since_ms = at_ms if is_paused else None

    def total_ms(self, now_ms: int) -> int:
        """The time of all pauses, the one that goes on included."""
        return self._total_ms + (0 if self._since_ms is None else max(0, now_ms - self._since_ms))


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
        self.pauses.apply(at_ms, is_paused=self.state.is_paused)
