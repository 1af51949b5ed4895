"""The pages about manifests keep their word: the tests that they name exist, and what they show can be loaded."""

import re
from pathlib import Path

import pytest

from tests.protocol.statements import NAMED, check_names, rows

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "manifest-tests.md"
PAGES = (
    TABLE,
    ROOT / "docs" / "reference" / "manifest.md",
    ROOT / "docs" / "how-to" / "run-a-manifest.md",
    ROOT / "docs" / "explanation" / "manifests.md",
    ROOT / "docs" / "examples" / "README.md",
)

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
# What stands in the place of tests where a sentence says nothing of a runner.
WORDS = frozenset({"advice", "definition", "example"})


def cells() -> list[tuple[str, str]]:
    """Statements and what proves them, of all tables."""
    found = [row.strip("|").rsplit(" | ", 1) for row in rows(TABLE)]
    return [(statement.strip(), proof.strip()) for statement, proof in found]


def test_every_statement_about_manifests_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its row of docs/reference/manifest-tests.md along."""
    assert len(cells()) > 200
    for statement, proof in cells():
        assert NAMED.search(proof) or proof in WORDS, f"no test is named: {statement}"
        check_names(proof, statement)


def test_each_enforcement_is_tried_by_somebody_who_does_not_keep_to_it() -> None:
    """Tools, writes, budgets, epochs, leases, deadlines and repairs have a test that is marked so."""
    proofs = dict(cells())
    for word in ("a member that tries: a tool", "a write", "a budget", "an epoch", "a lease", "a deadline", "a repair"):
        assert "⚔" in proofs[word], word


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.replace(" ◊", " ").lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_the_pages_lead_somewhere(page: Path) -> None:
    """To files that are there, and to headings of theirs."""
    for target, anchor in LINK.findall(page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} → {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} → {target}#{anchor}"
