"""The matrix of what works is that of the kept results, and nothing is missing from it."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.agents.catalog import AGENTS, chosen
from tests.agents.model_checks import ALL_CHECKS
from tests.agents.results import Result, keep, read_columns

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def backends() -> ModuleType:
    """The page's generator."""
    spec = importlib.util.spec_from_file_location("backends", DOCS / "backends.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_up_to_date() -> None:
    """`python docs/generate.py` was run after the last change of code, profiles or results."""
    done = subprocess.run([sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_check_has_a_row(backends: ModuleType) -> None:
    """In plain words, and no row is of a check that there is not."""
    rows = [name for group in backends.ROWS.values() for name in group]
    assert sorted(rows) == sorted(check.__name__ for check in ALL_CHECKS)


def test_every_kept_result_is_of_an_agent_and_a_check_that_there_is() -> None:
    """What was renamed or taken away is not told of any more."""
    for column in read_columns():
        assert AGENTS[column.agent].backend == column.backend
        assert set(column.checks) <= {check.__name__ for check in ALL_CHECKS}


def test_a_cell_tells_result_reason_version_and_day(backends: ModuleType) -> None:
    """What is older than the head of its column says how old; what was never run says so."""
    new, old = {"version": "thing 2", "date": "2026-11-30"}, {"version": "thing 1", "date": "2026-10-01"}
    checks = {"a": {"verdict": "passed", **new}, "b": {"verdict": "failed", "reason": "AssertionError", **old}}
    checks["c"] = {"verdict": "not offered", "reason": "has none", **new}
    column = {"agent": "thing", "backend": "thing-acp", "checks": checks}
    notes: dict[str, int] = {}
    cells = [backends._cell(column, name, notes) for name in ("a", "b", "c", "d")]
    assert cells == ["✓", "✗<br>thing 1<br>2026-10-01", "– <sup>1</sup>", "not run"]
    assert notes == {"has none": 1}
    assert backends._head(column) == "`thing`<br>thing 2<br>2026-11-30"


def test_results_are_kept_beside_those_of_other_checks(tmp_path: Path) -> None:
    """A run of a few checks leaves the others' results, in the suite's order; what is no check any more goes."""
    before = Result(verdict="passed", version="thing 1", date="2026-10-01")
    after = Result(verdict="failed", version="thing 2", date="2026-11-30", reason="AssertionError")
    keep(tmp_path, "thing", "thing-acp", {"a": before, "b": before, "gone": before}, ["a", "b", "gone"])
    keep(tmp_path, "thing", "thing-acp", {"c": after, "b": after}, ["a", "b", "c"])
    (column,) = read_columns(tmp_path)
    assert list(column.checks.items()) == [("a", before), ("b", after), ("c", after)]


def test_agents_are_chosen_by_their_own_names_and_by_their_programs() -> None:
    """`opencode` is both of its backends; a column's name is that column alone; `all` is all."""
    assert [agent.name for agent in chosen("opencode,codex")] == ["opencode-acp", "opencode-http", "codex-app-server"]
    assert [agent.name for agent in chosen("pi codex-acp")] == ["pi", "codex-acp"]
    assert [agent.name for agent in chosen("all")] == list(AGENTS)
    assert chosen("") == []


def test_a_name_that_names_no_agent_is_refused() -> None:
    """With what there is to choose from."""
    with pytest.raises(
        ValueError, match=r"no agent is called 'opencod': choose from all, claude, codex, .*opencode-acp"
    ):
        chosen("opencode-http,opencod")
