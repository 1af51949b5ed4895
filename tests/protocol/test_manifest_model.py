"""What a loaded manifest tells of its budgets, prices and backends, and what of it does not judge independently."""

import pytest

from avenor.protocol.manifest.amounts import Limits
from avenor.protocol.manifest.asking import ASKING
from avenor.protocol.manifest.binding import backends_of_manifest, correlations
from avenor.protocol.manifest.events import Correlation
from avenor.protocol.manifest.roster import Prices
from avenor.protocol.spec import BACKENDS
from tests.protocol.manifest_changes import PLANNER, check, member, roster


def test_budgets_are_the_limits_of_the_ledger() -> None:
    """Seconds are the scheduler's."""
    manifest = check().manifest
    assert manifest is not None
    assert manifest.budget.limits() == Limits(model_calls=18, tool_calls=40, tokens=120000, cost_usd=1.2)
    assert manifest.members[PLANNER].budget.limits() == Limits(model_calls=3, tool_calls=8, tokens=18000)


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        (Prices(input_per_million=3, output_per_million=15, cached_read_per_million=0.3), 0.0171),
        (Prices(input_per_million=3, output_per_million=15), 0.0225),
    ],
)
def test_tokens_have_their_price(prices: Prices, cost: float) -> None:
    """Cached ones are among the input, and have their own where it is said."""
    found = prices.cost(input_tokens=2500, output_tokens=1000, cached_read_tokens=2000)
    assert found == pytest.approx(cost)
    assert prices.most(1_000_000) == 15


def test_the_backends_of_all_members_are_known() -> None:
    """They are looked for before anything starts."""
    names = roster()
    names["profiles"]["analysis-small"] = {"backend": "pi", "enforces_tools": ["execute", "fetch"]}
    manifest = check(names=names).manifest
    assert manifest is not None
    assert backends_of_manifest(manifest) == {"scripted", "pi"}


def test_a_planner_is_known_by_what_it_may_do() -> None:
    """A role, and an id, say nothing; without a model there is nothing to compare."""
    names = roster()
    for each in names["profiles"].values():
        each["family"] = None
        each["model"] = "same"
    quiet = check(member(PLANNER, tools=["read_file"], id="planner"), names).manifest
    assert quiet is not None
    assert correlations(quiet) == [Correlation(members=["evaluator", "writer"], shared="family", value="same")]
    for each in names["profiles"].values():
        del each["model"]
    nameless = check(names=names).manifest
    assert nameless is not None
    assert correlations(nameless) == []


def test_what_is_known_of_asking_is_about_avenor_s_own_backends() -> None:
    """A name that is none of them would never be looked up."""
    assert set(ASKING) <= set(BACKENDS)
