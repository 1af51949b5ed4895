"""What the pages of a report are made of. Pure."""

from __future__ import annotations

from html import escape

from avenor.control.safetext import safe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COLOURS = {
    "done": "done",
    "accepted": "done",
    "joined": "done",
    "passed": "done",
    "failed": "failed",
    "aborted": "failed",
    "lost": "failed",
    "retried": "waits",
}
_MINUTE, _HOUR = 60, 3600


def cell(text: object) -> str:
    """A text as HTML that shows it and does nothing else."""
    return escape(safe_text(str(text)))


def duration_text(milliseconds: int) -> str:
    """A duration for people: `850 ms`, `12.3 s`, `4 min 5 s`, `2 h 10 min`."""
    seconds = milliseconds / 1000
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def outcome_cell(word: str | None) -> str:
    """What something came to, in its colour; None has not ended."""
    word = word or "not ended"
    return f'<b class="{colour_of(word.lower())}">{cell(word)}</b>'


def colour_of(outcome: str) -> str:
    """The class of style that an outcome has."""
    if outcome in ("timeout", "killed", "blocked"):
        return "failed"
    return _COLOURS.get(outcome, "other")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, level: int = 3) -> str:
    """A table of cells that are HTML already; a column whose name begins with # holds numbers. Empty without rows."""
    classes = [' class="number"' if name.startswith("#") else "" for name in columns]
    lines = [
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    ]
    if not lines:
        return ""
    names = zip(classes, columns, strict=True)
    head = "".join(f'<th scope="col"{kind}>{name.removeprefix("#")}</th>' for kind, name in names)
    html = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>"
    region = f'<div class="wide" role="region" aria-label="{title}" tabindex="0">'  # one can scroll it by keyboard
    return f"<h{level}>{title}</h{level}>\n{region}{html}</div>\n"
