"""The pages about loops and teams keep their word: the tests that they name exist, and their configs can be loaded."""

import json
import re
from pathlib import Path

import pytest

from avenor.protocol.config_loading import check_config, config_kind
from tests.protocol.statements import NAMED, check_names, rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLE = DOCS / "reference" / "team-tests.md"
PAGES = (
    DOCS / "reference" / "loop.md",
    DOCS / "reference" / "team.md",
    DOCS / "how-to" / "run-a-team.md",
    ROOT / "README.md",
)

JSON_BLOCK = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_statement_about_teams_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its row of docs/reference/team-tests.md along."""
    assert len(rows(TABLE)) > 50
    for row in rows(TABLE):
        assert NAMED.search(row), f"no test is named: {row}"
        check_names(row, row)


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
