"""What a manifest counts: how much of each unit was used, and how much may be.

Four units are handed down from a parent to its children and add up: model calls, tool calls, tokens, money. Seconds do
not: members work at the same time, and a deadline is a moment (`state.py`). They are counted here, and bounded there.
"""

from typing import Final, Literal, get_args

import msgspec

Unit = Literal["model_calls", "tool_calls", "tokens", "cost_usd"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
# What can come near its end.
Bounded = Literal["model_calls", "tool_calls", "tokens", "cost_usd", "seconds"]

# Prices are given for a million tokens; what a single token costs is still exact to nine digits.
DIGITS: Final = 9


class Amounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much was used. `tokens` are input and output together; `seconds` are those of the clock, of one attempt."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0

    def plus(self, other: "Amounts") -> "Amounts":
        """The sum, unit by unit."""
        return Amounts(
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            tokens=self.tokens + other.tokens,
            cost_usd=round(self.cost_usd + other.cost_usd, DIGITS),
            seconds=round(self.seconds + other.seconds, DIGITS),
        )

    def of(self, unit: Unit) -> float:
        """One unit."""
        return float(getattr(self, unit))


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be used; None of a unit is no limit of its own, so that the parent's counts."""

    model_calls: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def of(self, unit: Unit) -> float | None:
        """One unit."""
        value = getattr(self, unit)
        return None if value is None else float(value)


def limits_of(values: dict[Unit, float | None]) -> Limits:
    """Limits from numbers; none of them is below zero afterwards."""
    counts = {unit: None if value is None else max(0, round(value)) for unit, value in values.items()}
    cost = values.get("cost_usd")
    return Limits(
        model_calls=counts.get("model_calls"),
        tool_calls=counts.get("tool_calls"),
        tokens=counts.get("tokens"),
        cost_usd=None if cost is None else max(0.0, round(cost, DIGITS)),
    )
