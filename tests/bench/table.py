"""The table: rows as Markdown, for the terminal and for the page in the documentation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.figures import Figure, Row

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- bench:begin (written by `python -m tests.bench --write`) -->", "<!-- bench:end -->"
# Below this share of idle processors a row says so.
_BUSY = 0.8

_HEAD = ("what", "at least", "avenor", "rounds", "supervisord", "circus", "beside it")


def render(rows: Sequence[Row], facts: Sequence[str]) -> str:
    """The facts, the table, and the notes below it."""
    lines = [f"- {fact}" for fact in facts]
    lines += ["", _line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(_cells(row, number)) for number, row in enumerate(rows, 1)]
    lines += ["", *(f"{number}. {_note(row)}" for number, row in enumerate(rows, 1))]
    return "\n".join(lines) + "\n"


def render_row(row: Row) -> str:
    """One row in one line of text, to be seen while the others are measured."""
    others = {**row.peers, **row.others}
    beside = "".join(f"; {name} {_shown(row, figure.value)}" for name, figure in others.items())
    verdict = "" if row.limit is None else f" [limit {_limit(row)}: {'kept' if row.is_met else 'MISSED'}]"
    busy = f" (machine {row.idle_before:.0%} idle before)" if row.idle_before < _BUSY else ""
    return f"{row.key:11} {_with_spread(row)}{verdict}{beside}{busy}"


def write(text: str, page: Path = PAGE, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Puts the text between the marks of the page.

    Raises:
        ValueError: The page has no marks.
    """
    begin, end = marks
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{page} has no place for the table: it needs the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def _cells(row: Row, number: int) -> Sequence[str]:
    verdict = "" if row.is_met else " **missed**"
    return (
        f"{row.what} [{number}]",
        "–" if row.limit is None else _limit(row),
        f"**{_shown(row, row.ours.value)}**{verdict}",
        _spread(row),
        _beside(row, row.peers, "supervisord"),
        _beside(row, row.peers, "circus"),
        "; ".join(f"{name} {_shown(row, figure.value)}" for name, figure in row.others.items()) or "–",
    )


def _beside(row: Row, figures: Mapping[str, Figure], name: str) -> str:
    if name not in figures:
        return "–"
    theirs = figures[name].value
    ratio = f" (×{_number(theirs / row.ours.value)})" if row.unit != "%" and row.ours.value else ""
    return f"{_shown(row, theirs)}{ratio}"


def _note(row: Row) -> str:
    notes = list(row.notes)
    if row.ours.count > 1:
        notes.append(f"{row.ours.count:,} samples.")
    if row.idle_before < _BUSY:
        notes.append(f"Measured while other work used the machine ({row.idle_before:.0%} idle before).")
    return " ".join(notes)


def _limit(row: Row) -> str:
    assert row.limit is not None
    value = f"{row.limit.shown:.1f}" if row.unit == "%" else _short(row.limit.shown)
    return f"{'≥' if row.limit.is_floor else '≤'} {value}{_unit(row)}"


def _with_spread(row: Row) -> str:
    return f"{_shown(row, row.ours.value)} ({_spread(row)})"


def _spread(row: Row) -> str:
    return f"{_number(row.shown(row.ours.low))}–{_number(row.shown(row.ours.high))}"


def _shown(row: Row, value: float) -> str:
    shown = row.shown(value)
    return f"{shown:.1f} %" if row.unit == "%" else f"{_number(shown)}{_unit(row)}"


def _unit(row: Row) -> str:
    return "/s" if row.unit == "/s" else f" {row.unit}"


def _number(value: float) -> str:
    """Three figures are more than a benchmark knows."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e5:
        return f"{value / 1e3:.0f} k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _short(value: float) -> str:
    """A round number."""
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e4 else f"{value:g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
