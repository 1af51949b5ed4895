"""What a stream of all runtimes' events has had: more than a `seq`, since each runtime counts for itself.

As text, which is the stream's `id:` and comes back as `Last-Event-ID`, it is `12;3:17,5:20`: everything of the runtimes
up to `rt_12`, but of `rt_3` only what comes up to `seq` 17, and of `rt_5` up to 20. So it names only those that go on,
and a stream that is taken up again needs nobody to remember it.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

_PREFIX: Final = "rt_"
# Nine digits are more runtimes, and fifteen more events, than any state directory will see.
_TEXT: Final = re.compile(r"(\d{1,9});((?:\d{1,9}:\d{1,15}(?:,\d{1,9}:\d{1,15})*)?)", re.ASCII)


class Standing(msgspec.Struct, frozen=True):
    """Where a runtime stands: as much of a snapshot as is needed here."""

    runtime_id: str | None  # None only in a run's own process, where nobody needs its number
    status: str
    latest_seq: int

    @property
    def number(self) -> int:
        """The number in its id."""
        return _number(self.runtime_id or "")


class Cursors:
    """Made by `at_end` or `parse`."""

    def __init__(self, known: int, had: dict[int, int]) -> None:
        self._known = known
        self._had = had

    @classmethod
    def at_end(cls, standings: Iterable[Standing]) -> "Cursors":
        """Those of a stream that has had everything that there is."""
        all_of_them = list(standings)
        known = max((each.number for each in all_of_them), default=0)
        return cls(known, {each.number: each.latest_seq for each in all_of_them if each.status != "ended"})

    @classmethod
    def parse(cls, text: str) -> "Cursors":
        """The cursors that a text tells of.

        Raises:
            ValueError: It is none of ours.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("it is no id of a stream of all runtimes, which look like 12;3:17,5:20")
        pairs = (pair.partition(":") for pair in found[2].split(",") if pair)
        return cls(int(found[1]), {int(number): int(seq) for number, _, seq in pairs})

    def __str__(self) -> str:
        return f"{self._known};{','.join([f'{number}:{seq}' for number, seq in self._had.items()])}"

    def meet(self, standings: Iterable[Standing]) -> dict[str, int]:
        """Takes in which runtimes there are now; gives those that have events to come, each with what was had of it."""
        missing: dict[str, int] = {}
        had: dict[int, int] = {}
        known = self._known
        for each in standings:
            number = each.number
            seq = self._had.get(number) if number <= self._known else 0
            known = max(known, number)
            if seq is not None and (each.status != "ended" or each.latest_seq != seq):
                missing[each.runtime_id or ""] = had[number] = seq
        self._known, self._had = known, had
        return missing

    def have_missed(self, standings: Iterable[Standing]) -> bool:
        """Whether there are events of runtimes that were not there at the last `meet`."""
        return any(each.number > self._known and each.latest_seq > 0 for each in standings)

    def begin_anew(self, runtime_id: str) -> None:
        """Nothing was had of this runtime."""
        self._had[_number(runtime_id)] = 0

    def take(self, runtime_id: str, seq: int, *, is_end: bool) -> bool:
        """Whether this event is new; it counts as had from now on."""
        number = _number(runtime_id)
        for between in range(self._known + 1, number + 1):  # they have begun, though their events have not come yet
            self._had[between] = 0
        self._known = max(self._known, number)
        if seq <= self._had.get(number, seq):
            return False
        self._had[number] = seq
        if is_end:
            del self._had[number]
        return True


def _number(runtime_id: str) -> int:
    return int(runtime_id.removeprefix(_PREFIX))
