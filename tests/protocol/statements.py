"""The tables that say which test proves a statement: do the tests exist that they name?"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[1]
# A test as the tables write it: `file::test`.
NAMED: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
_HEAD: Final = ("| statement | tests |", "|---|---|")


def rows(table: Path) -> list[str]:
    """The rows of all tables of a page, their heads left out."""
    return [line for line in table.read_text().splitlines() if line.startswith("|") and line not in _HEAD]


def check_names(proof: str, statement: str) -> None:
    """Fails where what proves a statement is written otherwise, or names a test that is not there."""
    named = NAMED.findall(proof)
    assert proof.count("::") == len(named), f"not every test is written as `file::test`: {statement}"
    for file, name in named:
        assert name in _names_in(file), f"{file} has no {name}: {statement}"


@cache
def _names_in(file: str) -> frozenset[str]:
    """The tests that a file below `tests/` has; none if there is no such file."""
    path = _TESTS / file
    if not path.is_file():
        return frozenset()
    found = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return frozenset(name for name in found if name.startswith("test_"))
