"""Charges what attempts use, as they use it, and says when there is no more: only here the ledger is debited."""

from collections.abc import Callable
from typing import Literal

from msgspec import UNSET

from avenor.protocol.event_base import Event
from avenor.protocol.events import Usage
from avenor.protocol.manifest.amounts import Amounts
from avenor.protocol.manifest.events import BudgetEvent, MeterSource
from avenor.protocol.manifest.ledger import Exhausted
from avenor.protocol.manifest.roster import Prices
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.plan import Plan
from avenor.runtimes.manifest.view import OVER_BUDGET


class Metering:
    """The run's meter; the desk's `Meter` is a part of it.

    Args:
        plan: Whose members have which prices.
        journal: Takes the debits.
        refused: Told of each attempt to which something was refused.

    Attributes:
        blocked: By attempt, what was last refused to it.
    """

    def __init__(self, plan: Plan, journal: Journal, refused: Callable[[str], None]) -> None:
        self._plan = plan
        self._journal = journal
        self._refused = refused
        self._told: set[tuple[str, str, str]] = set()
        self._calling: set[str] = set()
        self.blocked: dict[str, str] = {}

    # ---- model calls, as the gateway counts them

    async def may_call(self, attempt_id: str) -> str | None:
        """Charges a model call that begins; where there is none left, says so instead.

        An attempt has one call at a time: only when one has ended is it known what is left for the next.

        Cancellation: Nothing was charged.
        """
        ledger, account = self._journal.state.ledger, self._account(attempt_id)
        while attempt_id in self._calling and ledger.why_no_call(account) is None:
            await self._journal.wait_change()
        refusal = self._begin_call(attempt_id, "gateway")
        if refusal is None:
            self._calling.add(attempt_id)
        return refusal

    def called(self, attempt_id: str, *, input_tokens: int, output_tokens: int, cached_read_tokens: int) -> None:
        """Charges the tokens of a call that has ended; the cached ones are among the input."""
        self._calling.discard(attempt_id)
        self._journal.wake()
        self._charge_tokens(
            attempt_id,
            "gateway",
            tokens=input_tokens + output_tokens,
            cost_usd=self._cost(attempt_id, input_tokens, output_tokens, cached_read_tokens),
        )

    # ---- as the agent reports it, where no gateway stands in front of its model

    def may_prompt(self, attempt_id: str) -> str | None:
        """Charges a prompt, which is one model call at least; says why where there is none left."""
        return self._begin_call(attempt_id, "agent")

    def reported(self, attempt_id: str, usage: Usage) -> None:
        """Charges what an agent says that its turn has used."""
        inputs = usage.input_tokens + usage.cached_read_tokens
        tokens = max(usage.total_tokens, inputs + usage.output_tokens)
        cost = usage.cost_usd
        if cost is UNSET:
            cost = self._cost(attempt_id, inputs, usage.output_tokens, usage.cached_read_tokens)
        self._charge_tokens(attempt_id, "agent", tokens=tokens, cost_usd=cost)

    # ---- tool calls and time

    def use_tool(self, attempt_id: str, source: Literal["agent", "broker"] = "broker") -> str | None:
        """Charges a tool call that begins; where there is none left, says so instead, and charges nothing."""
        why = self._journal.state.ledger.why_not(self._account(attempt_id), Amounts(tool_calls=1))
        if why is not None:
            return self._block(attempt_id, why)
        self._debit(attempt_id, Amounts(tool_calls=1), source)
        return None

    def used_tool(self, attempt_id: str) -> str | None:
        """Charges a tool call that has begun without asking; says so if there was none left."""
        why = self._journal.state.ledger.why_not(self._account(attempt_id), Amounts(tool_calls=1))
        self._debit(attempt_id, Amounts(tool_calls=1), "agent")
        return None if why is None else self._block(attempt_id, why)

    def spent(self, attempt_id: str, seconds: float) -> None:
        """Charges the time of an attempt that has ended."""
        self._debit(attempt_id, Amounts(seconds=round(seconds, 3)), "clock")

    def may_go_on(self, attempt_id: str) -> bool:
        """Whether an attempt that has more to say can pay for a model call; where it cannot, that is a refusal."""
        why = self._journal.state.ledger.why_no_call(self._account(attempt_id))
        if why is not None:
            self._block(attempt_id, why)
        return why is None

    # ---- its own

    def _begin_call(self, attempt_id: str, source: MeterSource) -> str | None:
        why = self._journal.state.ledger.why_no_call(self._account(attempt_id))
        if why is not None:
            return self._block(attempt_id, why)
        self._debit(attempt_id, Amounts(model_calls=1), source)
        return None

    def _charge_tokens(self, attempt_id: str, source: MeterSource, *, tokens: int, cost_usd: float) -> None:
        if tokens or cost_usd:
            self._debit(attempt_id, Amounts(tokens=tokens, cost_usd=cost_usd), source)

    def _debit(self, attempt_id: str, amounts: Amounts, source: MeterSource) -> None:
        account, field = self._account(attempt_id), self._field(attempt_id)
        ledger = self._journal.state.ledger
        debit = ledger.debit(account, amounts, source=source, permitted_by=field, attempt_id=attempt_id)
        self._journal.tell([debit])
        warnings: list[BudgetEvent] = ledger.warnings(account)
        self._journal.tell([*warnings])

    def _block(self, attempt_id: str, why: Exhausted) -> str:
        key = (attempt_id, why.account, why.unit)
        if key not in self._told:  # agents try again, some of them often
            self._told.add(key)
            events: list[Event] = [self._journal.state.ledger.block(why, attempt_id=attempt_id)]
            self._journal.tell(events)
        self._refused(attempt_id)
        self.blocked[attempt_id] = f"{OVER_BUDGET}: {why}"
        return self.blocked[attempt_id]

    def _cost(self, attempt_id: str, input_tokens: int, output_tokens: int, cached_read_tokens: int) -> float:
        prices: Prices | None = self._plan.members[self._member(attempt_id)].profile.prices
        if prices is None:
            return 0.0
        return prices.cost(
            input_tokens=input_tokens, output_tokens=output_tokens, cached_read_tokens=cached_read_tokens
        )

    def _account(self, attempt_id: str) -> str:
        task = self._journal.state.task_of(attempt_id)
        assert task is not None
        return task.task_id

    def _member(self, attempt_id: str) -> str:
        task = self._journal.state.task_of(attempt_id)
        assert task is not None
        return task.member

    def _field(self, attempt_id: str) -> str:
        return f"{self._plan.members[self._member(attempt_id)].field}.budget"
