"""The rows as Markdown, for the page in the documentation, and in plain lines for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from tests.load.rows import Fact, Row

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "load.md"
MARKS = ("<!-- load:begin (written by `python -m tests.load --write`) -->", "<!-- load:end -->")

_HEAD = ("row", "what was done", "verdict", "counted", "figures")


def render(rows: Sequence[Row], facts: Sequence[str]) -> str:
    """The facts about the machine, and the table."""
    lines = [f"- {fact}" for fact in facts]
    lines += ["", _line(_HEAD), _line(["---"] * len(_HEAD)), *(_line(_cells(row)) for row in rows)]
    return "\n".join(lines) + "\n"


def render_row(row: Row) -> str:
    """One row in lines of text, to be seen while the others are measured."""
    lines = [f"{row.key}: {row.verdict}", f"  {row.done}"]
    lines += [f"  not done: {row.skipped}"] if row.skipped else []
    lines += [f"  {'ok ' if fact.is_met else 'BAD'} {fact.what}: {_counted(fact)}" for fact in row.facts]
    lines += [f"      {name}: {value}" for name, value in row.figures]
    return "\n".join(lines)


def _cells(row: Row) -> Sequence[str]:
    counted = [f"{fact.what}: {_counted(fact)}" for fact in row.facts]
    figures = [f"{name}: {value}" for name, value in row.figures]
    return (row.key, row.done, f"**{row.verdict}**", row.skipped or "; ".join(counted), "; ".join(figures) or "–")


def _counted(fact: Fact) -> str:
    """What was found, and what was wanted where that is not the same."""
    found = _short(fact.found)
    return found if fact.found == fact.wanted else f"{found} ({_short(fact.wanted)})"


def _short(text: str) -> str:
    """A line is to be read; the whole of a long text is in its run's log."""
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
