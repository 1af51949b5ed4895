"""Tokens and cost of a turn, from the several ways in which agents tell them. Pure."""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import Usage
from avenor.runtimes.backends.acp_types import ChunkMeta, PromptMeta, PromptResult, PromptUsage

T = TypeVar("T")


class _Cost(msgspec.Struct, frozen=True):
    """Tolerant."""

    amount: float
    currency: str


class UsageMeter:
    """What one turn has used, of agents that tell what the turn, the whole session, or one call of the model has.

    Args:
        is_resumed: The session has a past, so that the first cost that is told is only a starting point.

    Attributes:
        is_of_session: The tokens in the answer to a prompt are those that the agent's process has used for the session
            so far. A resumed session begins with none.
    """

    def __init__(self, *, is_resumed: bool) -> None:
        self._cost: float | None = None if is_resumed else 0.0
        self._is_cost_told = False
        self._cost_at_start = self._cost
        self._calls: Usage | None = None
        self._session = Usage()
        self.is_of_session = False

    def start_turn(self) -> None:
        """What comes from now on is the turn's."""
        self._cost_at_start = self._cost
        self._is_cost_told = False
        self._calls = None

    def take_cost(self, raw: Raw | UnsetType) -> None:
        """Takes the `cost` of a usage update, in US dollars; other currencies are left to the event."""
        cost = _decode(raw, _Cost)
        if cost is None or cost.currency != "USD":
            return
        self._cost, self._is_cost_told = cost.amount, True
        if self._cost_at_start is None:
            self._cost_at_start = cost.amount

    def take_call(self, meta: Raw) -> None:
        """Takes the `_meta` of a message chunk, where qwen tells what each call of its model has used."""
        told = _decode(meta, ChunkMeta)
        if told is not None and told.usage is not None:
            call = _usage(told.usage)
            self._calls = call if self._calls is None else self._calls.plus(call)

    def turn_usage(self, result: PromptResult) -> Usage | None:
        """The usage of the turn with this result; None if the agent told nothing."""
        told = _decode(result.usage, PromptUsage) or _quota(result)
        used = self._calls if told is None else _usage(told)
        if told is not None and self.is_of_session:
            used = self._since(_usage(told))
        cost = self._turn_cost()
        if cost is UNSET:
            return used
        return msgspec.structs.replace(used or Usage(), cost_usd=cost)

    def _turn_cost(self) -> float | UnsetType:
        if not self._is_cost_told or self._cost is None or self._cost_at_start is None:
            return UNSET
        return max(0.0, self._cost - self._cost_at_start)

    def _since(self, now: Usage) -> Usage:
        before, self._session = self._session, now
        return Usage(
            input_tokens=max(0, now.input_tokens - before.input_tokens),
            output_tokens=max(0, now.output_tokens - before.output_tokens),
            total_tokens=max(0, now.total_tokens - before.total_tokens),
            cached_read_tokens=max(0, now.cached_read_tokens - before.cached_read_tokens),
        )


def _usage(told: PromptUsage) -> Usage:
    return Usage(
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=told.total_tokens or told.input_tokens + told.output_tokens,
        cached_read_tokens=told.cached_read_tokens or 0,
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
