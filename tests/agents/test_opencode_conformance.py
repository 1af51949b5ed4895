"""The conformance suite that every backend passes, on real opencode."""

import pytest

from tests.agents.conformance_runs import ConformanceRuns
from tests.runtimes.conformance import CHECKS, Check

pytestmark = pytest.mark.agents


@pytest.fixture
def verdict(conformance: ConformanceRuns | None) -> ConformanceRuns:
    """The running suite."""
    assert conformance is not None
    return conformance


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_opencode_conforms(check: Check, verdict: ConformanceRuns) -> None:
    """Every check of the suite holds for it."""
    verdict.verdict(check)
