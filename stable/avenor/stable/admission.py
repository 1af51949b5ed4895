"""Who may run now, who waits, and who is refused (contract, part 7). Pure: counts in, decisions out.

A place is taken by a runtime that starts or works. A parked one has none, and when it is woken it takes one at once,
even beyond the limit; so do the children of a live runtime, which must never wait for the parent that waits for them.
"""

from collections import deque
from typing import Final, Literal

import msgspec

from avenor.protocol.errors import LimitReached

Decision = Literal["start", "queue"]

_TRY_LATER: Final = "wait until one has ended, and try again"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The declared bounds; see `Options`."""

    max_runtimes: int
    queue: int
    max_tree: int
    max_parked: int


class Admission:
    """The queue of spawns that wait for a place, and the order of parked runtimes.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: deque[str] = deque()
        self._parked: dict[str, None] = {}

    @property
    def queued(self) -> tuple[str, ...]:
        """The ids that wait, the next one first."""
        return tuple(self._queue)

    def decide(self, *, busy: int, tree_size: int | None) -> Decision:
        """Whether a new spawn starts or waits.

        Args:
            busy: Runtimes that start or work now.
            tree_size: For the child of a live runtime, how many work or wait in its tree already; else None.

        Raises:
            LimitReached: Neither; nothing has changed.
        """
        limits = self._limits
        if tree_size is not None:
            if tree_size >= limits.max_tree:
                raise LimitReached(
                    f"{tree_size} runtimes of this tree work or wait (--max-tree {limits.max_tree}): {_TRY_LATER}",
                    data={"limit": "max_tree"},
                )
            return "start"
        if busy < limits.max_runtimes and not self._queue:
            return "start"
        if len(self._queue) < limits.queue:
            return "queue"
        raise LimitReached(
            f"{busy} runtimes work (--max-runtimes {limits.max_runtimes}) and {len(self._queue)} wait "
            f"(--queue {limits.queue}): {_TRY_LATER}",
            data={"limit": "queue"},
        )

    def enqueue(self, runtime_id: str) -> None:
        """Put a spawn at the end of the queue."""
        self._queue.append(runtime_id)

    def leave_queue(self, runtime_id: str) -> bool:
        """Take a spawn out of the queue; False if it is not there (any more)."""
        try:
            self._queue.remove(runtime_id)
        except ValueError:
            return False
        return True

    def take_startable(self, *, busy: int) -> list[str]:
        """Take those out of the queue that have a place now."""
        free = max(0, self._limits.max_runtimes - busy)
        return [self._queue.popleft() for _ in range(min(free, len(self._queue)))]

    def park(self, runtime_id: str) -> list[str]:
        """A runtime is parked; returns those to reap for it, the oldest first, which count as gone from now on."""
        self._parked.pop(runtime_id, None)
        self._parked[runtime_id] = None
        surplus = list(self._parked)[: max(0, len(self._parked) - self._limits.max_parked)]
        for each in surplus:
            del self._parked[each]
        return surplus

    def unpark(self, runtime_id: str) -> None:
        """A runtime was woken, or has ended; harmless if it was not parked."""
        self._parked.pop(runtime_id, None)
