"""The pages about manifests keep their word: the tests that they name exist, and what they show can be loaded."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "manifest-tests.md"
PAGES = (
    TABLE,
    ROOT / "docs" / "reference" / "manifest.md",
    ROOT / "docs" / "how-to" / "run-a-manifest.md",
    ROOT / "docs" / "explanation" / "manifests.md",
    ROOT / "docs" / "examples" / "README.md",
)

NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
# What stands in the place of tests where a sentence says nothing of a runner.
WORDS = frozenset({"advice", "definition", "example"})


def rows() -> list[tuple[str, str]]:
    """Statements and what proves them, of all tables."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    cells = [line.strip("|").rsplit(" | ", 1) for line in lines if line not in ("| statement | tests |", "|---|---|")]
    return [(statement.strip(), proof.strip()) for statement, proof in cells]


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


def test_every_statement_about_manifests_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its row of docs/reference/manifest-tests.md along."""
    assert len(rows()) > 200
    for statement, proof in rows():
        named = NAMED.findall(proof)
        assert named or proof in WORDS, f"no test is named: {statement}"
        assert proof.count("::") == len(named), f"not every test is written as `file::test`: {statement}"
        for file, name in named:
            assert name in names_in(file), f"{file} has no {name}: {statement}"


def test_each_enforcement_is_tried_by_somebody_who_does_not_keep_to_it() -> None:
    """Tools, writes, budgets, epochs, leases, deadlines and repairs have a test that is marked so."""
    proofs = dict(rows())
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
