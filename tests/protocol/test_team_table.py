"""The pages about loops and teams keep their word: the tests that they name exist, and their configs can be loaded."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from avenor.protocol.config_loading import check_config, config_kind

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLE = DOCS / "reference" / "team-tests.md"
PAGES = (
    DOCS / "reference" / "loop.md",
    DOCS / "reference" / "team.md",
    DOCS / "how-to" / "run-a-team.md",
    ROOT / "README.md",
)

NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
JSON_BLOCK = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rows() -> list[str]:
    """The rows of all tables, their heads left out."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    return [line for line in lines if line not in ("| statement | tests |", "|---|---|")]


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests that a file below `tests/` has; none if there is no such file."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return frozenset()
    found = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return frozenset(name for name in found if name.startswith("test_"))


def test_every_statement_about_teams_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its row of docs/reference/team-tests.md along."""
    assert len(rows()) > 50
    for row in rows():
        named = NAMED.findall(row)
        assert named, f"no test is named: {row}"
        assert row.count("::") == len(named), f"not every test is written as `file::test`: {row}"
        for file, name in named:
            assert name in names_in(file), f"{file} has no {name}: {row}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_configs_of_the_pages_can_be_loaded(page: Path) -> None:
    """Without a warning; other JSON on the page is left to others."""
    checked = 0
    for block in JSON_BLOCK.findall(page.read_text()):
        if '"name"' not in block:
            continue
        data = json.dumps(json.loads(block)).encode()
        kind = config_kind(data)
        assert kind is not None, block
        found = check_config("config.json", kind, read={"config.json": data}.__getitem__, has_initial=False)
        assert (found.errors, found.warnings, found.notes) == ([], [], []), block
        checked += 1
    assert checked
