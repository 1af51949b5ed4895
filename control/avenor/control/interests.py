"""Which events of one runtime a connection wants, and which of them it has had.

A connection has the union of its subscriptions and gets each event once. Its cursor moves over a runtime's events from
old to new; a subscription that starts further back moves it back, and then what other subscriptions have had already
is left out.
"""

from typing import Final

# Beyond this many gaps the oldest two become one, and a later replay may then repeat what lay between them.
_GAP_LIMIT: Final = 64


class Interest:
    """One subscription's part in one runtime.

    Attributes:
        names: The events that it is for; None is all.
        start: Only events after this `seq`.
        reached: What it matched up to this `seq` was sent before the cursor went back.
        is_lossless: Whether it catches up rather than drop.
    """

    __slots__ = ("is_lossless", "names", "reached", "start")

    def __init__(self, names: frozenset[str] | None, start: int, is_lossless: bool) -> None:
        self.names = names
        self.start = start
        self.reached = 0
        self.is_lossless = is_lossless


class Interests:
    """The union of what a connection's subscriptions want of one runtime.

    Attributes:
        version: Changes with every change of what is wanted.
        is_lossless: Whether any of them catches up rather than drop.
    """

    def __init__(self) -> None:
        self.version = 0
        self.is_lossless = False
        self._by_id: dict[str, Interest] = {}
        self._gaps: list[tuple[int, int]] = []
        self._plain_from = float("inf")

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def add(self, subscription_id: str, interest: Interest) -> None:
        """Adds what one more subscription wants."""
        # A new dictionary each time: `wants` may be running in a thread.
        self._by_id = {**self._by_id, subscription_id: interest}
        self._changed()

    def remove(self, subscription_id: str) -> None:
        """Forgets a subscription, and what it had; harmless if it is not there."""
        if subscription_id in self._by_id:
            self._by_id = {key: interest for key, interest in self._by_id.items() if key != subscription_id}
            self._changed()

    def went_back(self, cursor: int) -> None:
        """Notes that everything up to here was looked at, before the cursor goes back."""
        for interest in self._by_id.values():
            interest.reached = max(interest.reached, cursor)
        self._changed()

    def lost(self, first: int, last: int) -> None:
        """Notes seqs that were passed over without being sent."""
        if self._gaps and self._gaps[-1][1] == first - 1:
            first = self._gaps.pop()[0]
        self._gaps.append((first, last))
        if len(self._gaps) > _GAP_LIMIT:
            self._gaps[:2] = [(self._gaps[0][0], self._gaps[1][1])]

    def caught_up(self, start: int, end: int) -> None:
        """Notes that of what was lost nothing is owed any more between two cursors: all that was wanted was sent."""
        self._gaps = [
            (first, last)
            for gap in self._gaps
            for first, last in ((gap[0], min(gap[1], start)), (max(gap[0], end + 1), gap[1]))
            if first <= last
        ]

    def takes_all_after(self, seq: int) -> bool:
        """Whether every later event is wanted and new."""
        return seq >= self._plain_from

    def wants(self, seq: int, name: str) -> bool:
        """Whether this event is wanted and was not sent before."""
        is_wanted = False
        for interest in self._by_id.values():
            if seq > interest.start and (interest.names is None or name in interest.names):
                if seq <= interest.reached and not self._was_lost(seq):
                    return False
                is_wanted = True
        return is_wanted

    def _was_lost(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self._gaps)

    def _changed(self) -> None:
        self.version += 1
        interests = self._by_id.values()
        self.is_lossless = any(interest.is_lossless for interest in interests)
        plain = min((interest.start for interest in interests if interest.names is None), default=float("inf"))
        self._plain_from = max([plain, *(interest.reached for interest in interests)])
