"""One suite over all backends, on the real programs that AVENOR_TEST_AGENTS names."""

import pytest

from tests.agents.catalog import wanted
from tests.agents.conformance_runs import ConformanceRuns
from tests.agents.model_checks import ALL_CHECKS
from tests.runtimes.conformance import Check

pytestmark = pytest.mark.agents


@pytest.fixture
def verdict(conformance: ConformanceRuns | None) -> ConformanceRuns:
    """The running suite."""
    assert conformance is not None
    return conformance


@pytest.mark.parametrize("check", ALL_CHECKS, ids=[check.__name__ for check in ALL_CHECKS])
@pytest.mark.parametrize("agent", [agent.name for agent in wanted()])
def test_the_agent_conforms(agent: str, check: Check, verdict: ConformanceRuns) -> None:
    """The check holds for the agent, or is one that it is known not to be able to meet."""
    verdict.verdict(agent, check.__name__)
