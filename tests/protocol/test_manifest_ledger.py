"""The ledger: a child's budget is a piece of its parent's, and what was decided is what the log gives again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest.amounts import UNITS, Amounts, Limits
from avenor.protocol.manifest.events import BudgetEvent
from avenor.protocol.manifest.ledger import ROOT, Exhausted, Ledger


def _ledger(**limits: int) -> Ledger:
    return Ledger(Limits(**limits))


def _reserve(ledger: Ledger, name: str, limits: Limits, parent: str = ROOT) -> None:
    event = ledger.reserve(name, parent, limits, permitted_by=f"members[{name}].budget")
    assert isinstance(event, BudgetEvent)
    ledger.apply(event)


def _use(ledger: Ledger, name: str, **amounts: int) -> None:
    ledger.apply(ledger.debit(name, Amounts(**amounts), source="gateway", permitted_by="b"))


def test_the_example_with_eighteen_calls_is_kept() -> None:
    """Three calls for planning, three for evaluation, twelve for workers: two readers with four leave four."""
    ledger = _ledger(model_calls=18)
    for name, calls in (("planner", 3), ("evaluator", 3), ("reader_a", 4), ("reader_b", 4)):
        _reserve(ledger, name, Limits(model_calls=calls))

    refused = ledger.reserve("writer", ROOT, Limits(model_calls=5), permitted_by="b")

    assert refused == Exhausted(account=ROOT, unit="model_calls", rest=4, wanted=5)
    assert str(refused) == "model_calls of run: 5 wanted, 4 left"
    _reserve(ledger, "writer", Limits(model_calls=4))
    assert ledger.rest(ROOT).model_calls == 0


def test_what_a_child_leaves_goes_back_and_what_it_used_stays_charged() -> None:
    """Unused reservations are released when it ends."""
    ledger = _ledger(model_calls=10, tokens=1000)
    _reserve(ledger, "a", Limits(model_calls=4, tokens=400))
    _use(ledger, "a", model_calls=1, tokens=150)

    event = ledger.release("a", permitted_by="b")
    ledger.apply(event)

    assert event.amounts == Amounts(model_calls=3, tokens=250)
    assert ledger.rest(ROOT) == Limits(model_calls=9, tokens=850)


def test_a_grandchild_takes_from_its_parents_rest_and_not_from_the_run() -> None:
    """Delegation makes no new allowance."""
    ledger = _ledger(model_calls=18)
    _reserve(ledger, "planner", Limits(model_calls=3))
    _reserve(ledger, "extra", Limits(model_calls=2), "planner")
    before = ledger.rest(ROOT).model_calls

    _use(ledger, "extra", model_calls=2)

    assert ledger.rest("planner").model_calls == 1
    assert ledger.rest(ROOT).model_calls == before == 15
    assert isinstance(ledger.reserve("more", "planner", Limits(model_calls=2), permitted_by="b"), Exhausted)
    assert ledger.accounts["planner"].used.model_calls == 2


def test_a_living_grandchild_is_kept_for_when_its_parent_has_ended() -> None:
    """The promise to it does not end with its parent."""
    ledger = _ledger(model_calls=10)
    _reserve(ledger, "planner", Limits(model_calls=6))
    _reserve(ledger, "extra", Limits(model_calls=4), "planner")

    ledger.apply(ledger.release("planner", permitted_by="b"))

    assert ledger.rest(ROOT).model_calls == 6


def test_a_unit_without_a_limit_draws_on_the_parent() -> None:
    """It is bounded by what the parent has not promised to others."""
    ledger = _ledger(model_calls=5, tokens=100)
    _reserve(ledger, "a", Limits(model_calls=2))
    _reserve(ledger, "b", Limits(model_calls=1, tokens=60))

    _use(ledger, "a", tokens=30)

    assert ledger.rest("a") == Limits(model_calls=2, tokens=10)
    assert ledger.why_not("a", Amounts(tokens=11)) == Exhausted(account=ROOT, unit="tokens", rest=10, wanted=11)
    assert ledger.why_not("a", Amounts(tokens=10)) is None
    assert ledger.rest_of("a", "cost_usd") is None


def test_a_limit_above_holds_where_somebody_has_used_more_than_his_own() -> None:
    """What one has used beyond its reservation is gone for all that are paid from the same."""
    ledger = _ledger(tokens=1500)
    for name in ("a", "b", "c"):
        _reserve(ledger, name, Limits(tokens=500))
    _use(ledger, "a", tokens=600)
    assert [ledger.rest(name).tokens for name in (ROOT, "b", "c")] == [0, 400, 400]
    _use(ledger, "a", tokens=50_000)
    assert ledger.why_no_call("b") == Exhausted(account=ROOT, unit="tokens", rest=0, wanted=1)
    refused = ledger.reserve("worker", "b", Limits(tokens=1), permitted_by="b")
    assert refused == Exhausted(account=ROOT, unit="tokens", rest=0, wanted=1)


def test_what_is_kept_for_others_is_theirs_when_they_come_to_it() -> None:
    """One that has used too much takes from all; what the next leaves is there again for the last."""
    ledger = _ledger(tokens=1500)
    for name in ("a", "b", "c"):
        _reserve(ledger, name, Limits(tokens=500))
    _use(ledger, "a", tokens=600)
    ledger.apply(ledger.release("a", permitted_by="b"))
    _reserve(ledger, "worker", Limits(tokens=300), "b")
    assert ledger.rest("b").tokens == 100
    _use(ledger, "worker", tokens=300)
    event = ledger.release("b", permitted_by="b")
    ledger.apply(event)
    assert isinstance(event.amounts, Amounts)
    assert event.amounts.tokens == 200
    assert ledger.rest("c").tokens == 500


def test_the_run_has_no_more_money_than_it_was_given() -> None:
    """Each member's share does not make it more, and three tenths are three times one."""
    ledger = Ledger(Limits(cost_usd=0.3))
    for name in ("a", "b", "c"):
        _reserve(ledger, name, Limits(cost_usd=0.1))
    assert ledger.rest("c").cost_usd == 0.1
    ledger.apply(ledger.debit("a", Amounts(cost_usd=9.5), source="agent", permitted_by="b"))
    assert ledger.why_no_call("b") == Exhausted(account=ROOT, unit="cost_usd", rest=0, wanted=0)


def test_a_unit_without_a_limit_keeps_what_its_children_were_promised() -> None:
    """Also through an account that has no limit itself."""
    ledger = _ledger(tokens=100)
    _reserve(ledger, "a", Limits())
    _reserve(ledger, "child", Limits(tokens=40), "a")

    assert ledger.rest(ROOT).tokens == 60


def test_a_call_needs_a_call_a_token_and_some_money() -> None:
    """How much it takes is known only afterwards, so the last call may go over, and the next is not begun."""
    ledger = Ledger(Limits(model_calls=3, tokens=100, cost_usd=0.01))
    assert ledger.why_no_call(ROOT) is None

    ledger.apply(ledger.debit(ROOT, Amounts(model_calls=1, tokens=150), source="gateway", permitted_by="b"))

    assert ledger.why_no_call(ROOT) == Exhausted(account=ROOT, unit="tokens", rest=0, wanted=1)
    assert ledger.rest(ROOT).tokens == 0


@pytest.mark.parametrize(
    ("used", "unit"), [(Amounts(model_calls=3), "model_calls"), (Amounts(cost_usd=0.01), "cost_usd")]
)
def test_no_call_begins_when_a_unit_is_spent(used: Amounts, unit: str) -> None:
    """Each unit blocks by itself."""
    ledger = Ledger(Limits(model_calls=3, tokens=100, cost_usd=0.01))
    ledger.apply(ledger.debit(ROOT, used, source="gateway", permitted_by="b"))

    why = ledger.why_no_call(ROOT)

    assert why is not None
    assert why.unit == unit


def test_a_warning_comes_once_at_four_fifths_for_the_account_and_those_above() -> None:
    """A limit that comes near is told before it blocks."""
    ledger = _ledger(tool_calls=10)
    _reserve(ledger, "a", Limits(tool_calls=8))
    _use(ledger, "a", tool_calls=6)
    assert ledger.warnings("a") == []

    _use(ledger, "a", tool_calls=2)
    events = ledger.warnings("a")
    for event in events:
        ledger.apply(event)

    assert [(event.op, event.account, event.unit, event.permitted_by) for event in events] == [
        ("warn", "a", "tool_calls", "members[a].budget"),
        ("warn", ROOT, "tool_calls", "run.aggregate_budget"),
    ]
    assert ledger.warnings("a") == []


def test_a_block_names_the_unit_the_account_and_the_attempt() -> None:
    """The trace says which limit it was."""
    ledger = _ledger(tool_calls=1)
    why = ledger.why_not(ROOT, Amounts(tool_calls=2))
    assert why is not None

    event = ledger.block(why, attempt_id="a.1")

    assert (event.op, event.unit, event.attempt_id, event.reason) == ("block", "tool_calls", "a.1", str(why))
    assert ledger.block(why).op == "block"


def test_another_attempt_opens_the_account_again_on_top_of_what_was_used() -> None:
    """A crash does not erase what was spent."""
    ledger = _ledger(model_calls=10)
    _reserve(ledger, "reader", Limits(model_calls=3))
    _use(ledger, "reader", model_calls=2)
    ledger.apply(ledger.release("reader", permitted_by="b"))

    _reserve(ledger, "reader", Limits(model_calls=3))

    assert ledger.rest("reader").model_calls == 3
    assert ledger.rest(ROOT).model_calls == 5
    assert ledger.accounts["reader"].used.model_calls == 2


def test_a_debit_says_what_is_left_and_whose_attempt_it_was() -> None:
    """So that a reader of the trace need not add up."""
    ledger = _ledger(model_calls=3)

    event = ledger.debit(ROOT, Amounts(model_calls=1), source="agent", permitted_by="b", attempt_id="a.1")

    assert (event.rest, event.attempt_id, event.source) == (Limits(model_calls=2), "a.1", "agent")


def test_an_entry_that_lacks_its_numbers_changes_nothing_else() -> None:
    """A log of another version still folds."""
    ledger = _ledger(model_calls=3)

    ledger.apply(BudgetEvent(op="reserve", account="a", source="manifest", permitted_by="b", rest=Limits()))
    ledger.apply(BudgetEvent(op="debit", account="a", source="agent", permitted_by="b", rest=Limits()))
    ledger.apply(BudgetEvent(op="warn", account="a", source="agent", permitted_by="b", rest=Limits()))
    ledger.apply(BudgetEvent(op="block", account="a", source="agent", permitted_by="b", rest=Limits()))

    assert ledger.rest("a") == Limits(model_calls=3)
    assert ledger.accounts["a"].warned == set()


_STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "use", "release"]), st.integers(0, 5), st.integers(0, 5), st.integers(1, 9)),
    max_size=40,
)


@given(_STEPS)
def test_no_order_of_things_promises_more_than_there_is(steps: list[tuple[str, int, int, int]]) -> None:
    """What was used and what is promised never exceed the run's limit as long as nobody uses more than its own rest."""
    ledger = Ledger(Limits(model_calls=30, tokens=30))
    told: list[BudgetEvent] = []

    def tell(event: BudgetEvent) -> None:
        told.append(event)
        ledger.apply(event)

    for verb, one, two, amount in steps:
        names = list(ledger.accounts)
        name, parent = f"t{one}", names[two % len(names)]
        if verb == "reserve" and name not in ledger.accounts and ledger.accounts[parent].is_open:
            event = ledger.reserve(name, parent, Limits(model_calls=amount), permitted_by="b")
            if isinstance(event, BudgetEvent):
                tell(event)
        elif verb == "use" and name in ledger.accounts and ledger.accounts[name].is_open:
            wanted = Amounts(model_calls=amount, tokens=amount)
            if ledger.why_not(name, wanted) is None:
                tell(ledger.debit(name, wanted, source="gateway", permitted_by="b"))
        elif verb == "release" and name in ledger.accounts and ledger.accounts[name].is_open:
            tell(ledger.release(name, permitted_by="b"))

    for unit in UNITS:
        for name in ledger.accounts:
            rest = ledger.rest_of(name, unit)
            assert rest is None or rest >= 0
    again = Ledger(Limits(model_calls=30, tokens=30))
    for event in told:
        again.apply(event)
    assert again.accounts == ledger.accounts
