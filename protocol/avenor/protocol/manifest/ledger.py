"""The ledger of a manifest run: who may still use how much.

A child's budget is a piece of its parent's, never a new one. What is reserved for a child is gone from its parent's
rest; what the child uses is used by the parent as well; what it leaves goes back when it ends. So the rest of an
account is its limit, less what it and its ended children have used, less what its living children were promised. Where
somebody has used more than was promised to him, less is left above: then an account has no more than those above it can
give, beside what they keep for others.

The ledger is changed by events only. Everything that decides something returns the event that says so, and `apply`
takes it: what was decided is what is in the log, and the log gives the ledger again.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET

from avenor.protocol.manifest.amounts import DIGITS, UNITS, Amounts, Bounded, Limits, Unit, limits_of
from avenor.protocol.manifest.events import BudgetEvent, MeterSource

ROOT: Final = "run"
# Of a limit: from here on somebody is told, once.
WARN_AT: Final = 0.8


class Account(msgspec.Struct, kw_only=True):
    """One account.

    Attributes:
        permitted_by: The field of the manifest that gives it its limits.
        used: By it and all that is below it.
        is_open: Its reservation holds; what it has not used is kept for it.
        warned: What was told to be near its end.
    """

    name: str
    parent: str | None
    limits: Limits
    permitted_by: str
    used: Amounts = Amounts()
    is_open: bool = True
    warned: set[Bounded] = set()

    def unused(self, unit: Unit) -> float | None:
        """What it and all that is below it have not used of its limit; None where it has none."""
        limit = self.limits.of(unit)
        return None if limit is None else limit - self.used.of(unit)


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is not paid for: which unit of which account, the payer's or one above, and what it has left."""

    account: str
    unit: Unit
    rest: float
    wanted: float

    def __str__(self) -> str:
        return f"{self.unit} of {self.account}: {self.wanted:g} wanted, {self.rest:g} left"


class Ledger:
    """The accounts of a run, from `run` downwards.

    Args:
        limits: What the whole run may use.
    """

    def __init__(self, limits: Limits) -> None:
        self.accounts: dict[str, Account] = {
            ROOT: Account(name=ROOT, parent=None, limits=limits, permitted_by="run.aggregate_budget")
        }

    # ---- what is left

    def rest(self, name: str) -> Limits:
        """What an account may still use, its parents' limits counted; None of a unit has no limit anywhere."""
        return limits_of({unit: self.rest_of(name, unit) for unit in UNITS})

    def rest_of(self, name: str, unit: Unit) -> float | None:
        """The same of one unit; below zero where more was used than there was, as tokens of a last call can be."""
        bound = self._bound(name, unit)
        return None if bound is None else bound[0]

    def _bound(self, name: str, unit: Unit) -> tuple[float, str] | None:
        """What is left of a unit, and which account sets that bound; None if none does."""
        account = self.accounts[name]
        bounds = [] if (own := account.unused(unit)) is None else [(own, name)]
        above = None if account.parent is None else self._bound(account.parent, unit)
        if above is not None:
            bounds.append((above[0] + self._kept(account, unit), above[1]))
        if not bounds:
            return None
        rest, bounded_by = min(bounds, key=lambda bound: bound[0])
        return round(rest - self._promised(name, unit), DIGITS), bounded_by

    def _promised(self, name: str, unit: Unit) -> float:
        """What living children may still take, and has to be kept for them."""
        return sum(self._kept(child, unit) for child in self.accounts.values() if child.parent == name)

    def _kept(self, account: Account, unit: Unit) -> float:
        """What an account's parent keeps for it."""
        own = account.unused(unit)
        if own is None or not account.is_open:  # nothing for itself, but its children may have been promised some
            return self._promised(account.name, unit)
        return max(0.0, own)

    def why_not(self, name: str, wanted: Amounts) -> Exhausted | None:
        """Why an account cannot pay for something; None if it can. A unit that is not asked for may be used up."""
        for unit in UNITS:
            amount = wanted.of(unit)
            if amount and (why := self._lacks(name, unit, amount)) is not None:
                return why
        return None

    def _lacks(self, name: str, unit: Unit, wanted: float) -> Exhausted | None:
        bound = self._bound(name, unit)
        if bound is None or wanted <= bound[0]:
            return None
        return Exhausted(account=bound[1], unit=unit, rest=max(0.0, bound[0]), wanted=wanted)

    def why_no_call(self, name: str) -> Exhausted | None:
        """Why an account cannot begin another model call: it has no call, no token or no money left.

        How many tokens a call takes is known when it has ended, so one token is enough to begin it.
        """
        if (why := self.why_not(name, Amounts(model_calls=1, tokens=1))) is not None:
            return why
        money = self._bound(name, "cost_usd")
        if money is not None and money[0] <= 0:
            return Exhausted(account=money[1], unit="cost_usd", rest=0.0, wanted=0.0)
        return None

    # ---- decisions: each is an event, which changes nothing before it is applied

    def reserve(self, name: str, parent: str, limits: Limits, *, permitted_by: str) -> BudgetEvent | Exhausted:
        """A new account with a piece of the parent's rest, or why the parent has not so much.

        A name that is there already and not open is opened again, with new limits on top of what it has used: another
        attempt at the same task.
        """
        for unit in UNITS:
            wanted = limits.of(unit)
            if wanted is not None and (why := self._lacks(parent, unit, wanted)) is not None:
                return why
        return BudgetEvent(
            op="reserve",
            account=name,
            parent=parent,
            limits=limits,
            rest=limits,
            source="manifest",
            permitted_by=permitted_by,
        )

    def debit(
        self, name: str, amounts: Amounts, *, source: MeterSource, permitted_by: str, attempt_id: str | None = None
    ) -> BudgetEvent:
        """What was used; it is charged even where it was more than there was."""
        event = BudgetEvent(
            op="debit",
            account=name,
            amounts=amounts,
            rest=limits_of({unit: self._rest_after(name, unit, amounts) for unit in UNITS}),
            source=source,
            permitted_by=permitted_by,
        )
        if attempt_id is not None:
            event.attempt_id = attempt_id
        return event

    def release(self, name: str, *, permitted_by: str) -> BudgetEvent:
        """What an account has not used goes back to its parent."""
        account = self.accounts[name]
        left: dict[Unit, float | None] = {}
        for unit in UNITS:
            own = account.unused(unit)
            left[unit] = None if own is None else own - self._promised(name, unit)
        back = limits_of(left)
        return BudgetEvent(
            op="release",
            account=name,
            amounts=Amounts(
                model_calls=back.model_calls or 0,
                tool_calls=back.tool_calls or 0,
                tokens=back.tokens or 0,
                cost_usd=back.cost_usd or 0.0,
            ),
            rest=Limits(model_calls=0, tool_calls=0, tokens=0, cost_usd=0.0),
            source="manifest",
            permitted_by=permitted_by,
        )

    def warnings(self, name: str) -> list[BudgetEvent]:
        """Which units of the account, and of those above it, have come near their end and nobody was told."""
        found: list[BudgetEvent] = []
        for account in self._upwards(name):
            for unit in UNITS:
                limit = account.limits.of(unit)
                if limit and unit not in account.warned and account.used.of(unit) >= WARN_AT * limit:
                    found.append(self._warn(account.name, unit))
        return found

    def warn_of_time(self, name: str) -> BudgetEvent:
        """The time of an account has come near its end."""
        event = self._warn(name, "seconds")
        event.source = "clock"
        return event

    def block(self, why: Exhausted, *, attempt_id: str | None = None) -> BudgetEvent:
        """Something was not let through, for this reason."""
        event = self._note("block", why.account, why.unit, str(why))
        if attempt_id is not None:
            event.attempt_id = attempt_id
        return event

    # ---- the fold

    def apply(self, event: BudgetEvent) -> None:
        """Takes an entry of the log. An account that it never saw opened is one of the run's, without limits."""
        if event.op == "reserve":
            self._open(event)
            return
        if event.account not in self.accounts:  # a full disk has kept the line out of the log
            self._open(_unseen(event.account))
        if event.op == "debit":
            amounts = Amounts() if event.amounts is UNSET else event.amounts
            for account in self._upwards(event.account):
                account.used = account.used.plus(amounts)
        elif event.op == "release":
            self.accounts[event.account].is_open = False
        elif event.op == "warn" and event.unit is not UNSET:
            self.accounts[event.account].warned.add(event.unit)

    def _open(self, event: BudgetEvent) -> None:
        limits = Limits() if event.limits is UNSET else event.limits
        parent = ROOT if event.parent is UNSET else event.parent
        before = self.accounts.get(event.account)
        if before is None:
            self.accounts[event.account] = Account(
                name=event.account, parent=parent, limits=limits, permitted_by=event.permitted_by
            )
            return
        before.limits = limits_of({unit: _on_top(limits.of(unit), before.used.of(unit)) for unit in UNITS})
        before.is_open = True
        before.warned.clear()

    def _upwards(self, name: str) -> list[Account]:
        account = self.accounts[name]
        return [account] if account.parent is None else [account, *self._upwards(account.parent)]

    def _rest_after(self, name: str, unit: Unit, amounts: Amounts) -> float | None:
        rest = self.rest_of(name, unit)
        return None if rest is None else rest - amounts.of(unit)

    def _warn(self, name: str, unit: Bounded) -> BudgetEvent:
        return self._note("warn", name, unit, f"{WARN_AT:.0%} of {unit} is used")

    def _note(self, op: Literal["warn", "block"], name: str, unit: Bounded, reason: str) -> BudgetEvent:
        return BudgetEvent(
            op=op,
            account=name,
            unit=unit,
            rest=self.rest(name),
            reason=reason,
            source="manifest",
            permitted_by=self.accounts[name].permitted_by,
        )


def _on_top(limit: float | None, used: float) -> float | None:
    return None if limit is None else limit + used


def _unseen(name: str) -> BudgetEvent:
    return BudgetEvent(op="reserve", account=name, source="manifest", permitted_by="", rest=Limits())
