"""Tokens and cost of a turn, from the several ways in which agents tell them. Pure."""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import Usage
from avenor.runtimes.backends.acp_types import PromptMeta, PromptResult, PromptUsage

T = TypeVar("T")


class _Cost(msgspec.Struct, frozen=True):
    """Tolerant."""

    amount: float
    currency: str


class CostMeter:
    """Agents tell what the whole session has cost so far; this gives what one turn added, in US dollars.

    Args:
        is_resumed: The session has a past, so that the first figure is only a starting point.
    """

    def __init__(self, *, is_resumed: bool) -> None:
        self._now: float | None = None if is_resumed else 0.0
        self._told = False
        self._at_start = self._now

    def take(self, raw: Raw | UnsetType) -> None:
        """Takes the `cost` of a usage update; other currencies are left to the event."""
        cost = _decode(raw, _Cost)
        if cost is None or cost.currency != "USD":
            return
        self._now, self._told = cost.amount, True
        if self._at_start is None:
            self._at_start = cost.amount

    def start_turn(self) -> None:
        """What comes from now on is the turn's."""
        self._at_start = self._now
        self._told = False

    def turn_cost(self) -> float | UnsetType:
        """What this turn has cost so far; unset if the agent did not tell."""
        if not self._told or self._now is None or self._at_start is None:
            return UNSET
        return max(0.0, self._now - self._at_start)


def turn_usage(result: PromptResult, cost_usd: float | UnsetType) -> Usage | None:
    """The usage of a turn; None if the agent told nothing."""
    told = _decode(result.usage, PromptUsage) or _quota(result)
    if told is None:
        return None if cost_usd is UNSET else Usage(cost_usd=cost_usd)
    return Usage(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=told.total_tokens or told.input_tokens + told.output_tokens,
        cached_read_tokens=told.cached_read_tokens or 0,
        cost_usd=cost_usd,
    )


def _quota(result: PromptResult) -> PromptUsage | None:
    meta = _decode(result.meta, PromptMeta)
    if meta is None or meta.quota is None or meta.quota.token_count is None:
        return None
    count = meta.quota.token_count
    return PromptUsage(input_tokens=count.input_tokens, output_tokens=count.output_tokens)


def _decode(raw: Raw | UnsetType, kind: type[T]) -> T | None:
    if raw is UNSET:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None
