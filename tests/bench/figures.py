"""What a measurement gives: samples in rounds, what is read from them, and the limit that this is held against."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

Unit = Literal["ms", "µs", "/s", "MiB", "%"]

# Samples are in seconds, events or spawns a second, MiB, and shares of one.
_SCALES: Mapping[Unit, float] = {"ms": 1e3, "µs": 1e6, "/s": 1.0, "MiB": 1.0, "%": 100.0}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic over rounds of samples.

    Attributes:
        value: The median over the rounds.
        low, high: The smallest and the largest round.
        count: How many samples there were.
    """

    value: float
    low: float
    high: float
    count: int


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure must reach, in the row's unit as it is shown."""

    shown: float
    is_floor: bool = False

    def is_met(self, shown: float) -> bool:
        """Whether a figure, in the same unit, is within the limit."""
        return shown >= self.shown if self.is_floor else shown <= self.shown


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        key: What `--only` takes; rows of one measurement begin alike.
        what: What was measured.
        unit: How it is shown.
        ours: avenor's figure.
        peers: supervisord's and circus's, where they can do the same work.
        others: Floors and other points of reference.
        limit: None where the row is there for information.
        notes: What a reader must know of this row.
        idle_before: The share of the processors that nothing used before the row, 0 to 1.
    """

    key: str
    what: str
    unit: Unit
    ours: Figure
    peers: Mapping[str, Figure] = {}
    others: Mapping[str, Figure] = {}
    limit: Limit | None = None
    notes: Sequence[str] = ()
    idle_before: float = 1.0

    @property
    def is_met(self) -> bool:
        """Whether the limit, if there is one, is kept."""
        # What is printed is what is judged: 0.04 % is 0.0 %, and 4.04 MiB are more than 4.
        digits = 1 if self.unit == "%" else 2
        return self.limit is None or self.limit.is_met(round(self.shown(self.ours.value), digits))

    def shown(self, value: float) -> float:
        """A sample's value in the row's unit."""
        return value * _SCALES[self.unit]


Rounds = Sequence[Sequence[float]]


def median(rounds: Rounds) -> Figure:
    """The median of each round's median."""
    return _over_rounds([statistics.median(samples) for samples in rounds], rounds)


def percentile_99(rounds: Rounds) -> Figure:
    """The 99th percentile of all samples together; the spread is that of the rounds' largest."""
    pooled = sorted(sample for samples in rounds for sample in samples)
    largest = [max(samples) for samples in rounds]
    value = pooled[max(0, -(-99 * len(pooled) // 100) - 1)]
    return Figure(value=value, low=min(largest), high=max(largest), count=len(pooled))


def sample_in_turns(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int, samples: int, warm_up: int = 0
) -> dict[str, list[list[float]]]:
    """Samples of each contender, round by round in turns, so that a busy moment hits all of them.

    Args:
        contenders: Each does its work once and returns the sample.
        rounds: How often each has its turn.
        samples: How often it works in a turn.
        warm_up: How often before it counts, in each turn.
    """
    taken: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            for _ in range(warm_up):
                work()
            taken[name].append([work() for _ in range(samples)])
    return taken


def _over_rounds(values: Sequence[float], rounds: Rounds) -> Figure:
    return Figure(
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        count=sum(len(samples) for samples in rounds),
    )
