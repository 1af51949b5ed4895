"""What a row of the load test gives: what was done, what was counted, and what follows from that."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

from tests.e2e.harness import Place, open_place


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was counted, and what it had to come to.

    Attributes:
        what: In words.
        found: What it came to.
        wanted: What it had to be, in words; it is the same as `found` where the two are to be equal.
        is_met: Whether it is that.
    """

    what: str
    found: str
    wanted: str
    is_met: bool


class Row(msgspec.Struct, kw_only=True):
    """One row, filled while it is measured.

    Attributes:
        key: What `--only` takes.
        done: What was done, as a sentence.
        facts: What the verdict is made of.
        figures: What is told and judges nothing: name and value.
        skipped: Why it could not be done here; empty when it was.
    """

    key: str
    done: str
    facts: list[Fact] = []
    figures: list[tuple[str, str]] = []
    skipped: str = ""

    def equal(self, what: str, found: object, wanted: object) -> None:
        """Counts as kept if both are equal."""
        self.facts.append(Fact(what=what, found=str(found), wanted=str(wanted), is_met=found == wanted))

    def holds(self, what: str, is_met: bool) -> None:
        """Counts as kept if it is so."""
        self.facts.append(Fact(what=what, found="yes" if is_met else "no", wanted="yes", is_met=is_met))

    def at_most(self, what: str, found: float, limit: float, unit: str = "") -> None:
        """Counts as kept if it is not above the limit."""
        is_met = found <= limit
        self.facts.append(
            Fact(what=what, found=f"{_number(found)}{unit}", wanted=f"at most {_number(limit)}{unit}", is_met=is_met)
        )

    def tell(self, name: str, value: float | str, unit: str = "") -> None:
        """A figure that a reader wants to know."""
        self.figures.append((name, value if isinstance(value, str) else f"{_number(value)}{unit}"))

    @property
    def is_kept(self) -> bool:
        """Whether everything that was counted is what it had to be, and something was."""
        return bool(self.skipped) or (bool(self.facts) and all(fact.is_met for fact in self.facts))

    @property
    def verdict(self) -> str:
        """In few words."""
        if self.skipped:
            return "not done"
        met = sum(fact.is_met for fact in self.facts)
        return "kept" if self.is_kept else f"BROKEN ({met} of {len(self.facts)})"


class Load(msgspec.Struct, frozen=True):
    """How much of everything: one for what the issue asks for, less for an impression.

    Attributes:
        share: What the numbers are multiplied by.
    """

    share: float = 1.0

    def times(self, count: int) -> int:
        """So many, or that share of them."""
        return max(2, round(count * self.share))

    @contextmanager
    def place(self) -> Generator[Place, None, None]:
        """Where a row works; all processes that were started there are ended with it."""
        with open_place() as opened:
            yield opened


Measurement = Callable[[Load], Row]


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
