"""What `avenor doctor` shows: a table of all backends, or all that is known of those that were named."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from avenor.cli.terminal import Style
from avenor.control.safetext import clip, one_line, pad
from avenor.protocol.diagnosis import Diagnosis, Examined

_MARKS = {"works": "✓", "failed": "✗", "not_installed": "·", "skipped": "·"}
_COLOURS = {"works": ("green",), "failed": ("red",), "not_installed": ("dim",), "skipped": ("dim",)}
# With the longest built-in name these are 79 columns.
_HEADINGS = ("version", "took", "resume", "mcp", "modes", "models", "think")
_WIDTHS = (9, 6, 6, 10, 5, 6, 5)
_ALL_KINDS = 3
_LEAST_TEXT = 30
_MOST_COLUMNS = 110
_ERROR_LINES = 3
_LABEL = 11


def overview(diagnosis: Diagnosis, *, style: Style, columns: int) -> str:
    """A line for each backend, with what it can or why not, and one that sums it up.

    Args:
        diagnosis: What was found.
        style: How to paint.
        columns: The width of the terminal.
    """
    name_width = max(len("backend"), *(len(one_line(found.backend)) for found in diagnosis.backends))
    heading = "  ".join([pad("  backend", name_width + 2), *map(_padded, _HEADINGS, _WIDTHS)])
    lines = [style.paint(clip(heading.rstrip(), columns), "bold")]
    for found in diagnosis.backends:
        lines += _rows(found, name_width, style, columns)
    lines += ["", *_left(diagnosis, style), _summary(diagnosis)]
    return "\n".join(lines) + "\n"


def details(diagnosis: Diagnosis, *, style: Style, columns: int) -> str:
    """Everything about each backend; arguments as for `overview`."""
    parts = ["\n".join(_description(found, style, min(columns, _MOST_COLUMNS))) for found in diagnosis.backends]
    return "\n\n".join([*parts, *_left(diagnosis, style)]) + "\n"


# ---- the table


def _rows(found: Examined, name_width: int, style: Style, columns: int) -> list[str]:
    colours = _COLOURS[found.state]
    lead = f"{style.paint(_MARKS[found.state], *colours)} {pad(one_line(found.backend), name_width)}"
    if found.state == "works":
        cells = "  ".join(map(_padded, _cells(found), _WIDTHS)).rstrip()
        return [f"{lead}  {clip(cells, max(0, columns - name_width - 4))}".rstrip()]
    text = _wrapped(_reason(found), max(_LEAST_TEXT, columns - name_width - 4))
    if len(text) > _ERROR_LINES:
        text = [*text[:_ERROR_LINES], f"… `avenor doctor --backend {one_line(found.backend)}` tells all"]
    painted = [style.paint(line, *colours) for line in text]
    indent = " " * (name_width + 4)
    return [f"{lead}  {painted[0]}", *(indent + line for line in painted[1:])]


def _cells(found: Examined) -> tuple[str, ...]:
    return (
        _short_version(found),
        _seconds(found.seconds),
        found.resume or "no",
        "all kinds" if len(found.mcp) == _ALL_KINDS else ",".join(found.mcp) or "no",
        *(str(len(values) or "-") for values in (found.modes, found.models, found.thinking)),
    )


def _reason(found: Examined) -> str:
    if found.state == "not_installed":
        return f"not installed: {found.install}"
    return found.error or ""


def _short_version(found: Examined) -> str:
    """The word that looks like a version, of what the program said, or else the agent."""
    for text in (found.version, found.agent):
        words = [word.strip("(),") for word in (text or "").split() if any(map(str.isdigit, word))]
        if words:
            return one_line(next((word for word in words if "." in word), words[-1]))
    return "?"


def _padded(text: str, width: int) -> str:
    return pad(clip(text, width), width)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _summary(diagnosis: Diagnosis) -> str:
    words = {"works": "work", "failed": "failed", "not_installed": "not installed", "skipped": "not tried"}
    states = [found.state for found in diagnosis.backends]
    counts = [f"{states.count(state)} {word}" for state, word in words.items() if state in states]
    return f"{', '.join(counts)} ({_seconds(diagnosis.seconds)}). `avenor doctor --backend NAME` tells more of one."


def _left(diagnosis: Diagnosis, style: Style) -> list[str]:
    return [style.paint(f"still running: {one_line(text)}", "red") for text in diagnosis.left]


# ---- one backend


def _description(found: Examined, style: Style, columns: int) -> list[str]:
    words = {"works": "works", "failed": "failed", "not_installed": "not installed", "skipped": "not tried"}
    state = style.paint(f"{_MARKS[found.state]} {words[found.state]}", *_COLOURS[found.state])
    name = style.paint(one_line(found.backend), "bold")
    return [f"{name}  {state}  ({_seconds(found.seconds)})", *_entries(found, columns)]


def _entries(found: Examined, columns: int) -> list[str]:
    entries: list[tuple[str, str]] = []
    if found.source != "builtin":
        entries.append(("from", {"profile": "your profile file", "entry_point": "a package"}[found.source]))
    if found.error:
        entries.append(("error", found.error))
    if found.program is not None:
        entries.append(("program", found.program))
    elif found.install:
        entries.append(("install", found.install))
    entries += [(word, text) for word, text in (("version", found.version), ("agent", found.agent)) if text]
    if found.state == "works":
        entries += [
            ("resume", found.resume or "no"),
            ("mcp", ", ".join(found.mcp) or "no"),
            ("modes", _choice(found.modes, found.mode)),
            ("models", _choice(found.models, found.model)),
            ("thinking", _choice(found.thinking, None)),
        ]
    if found.note:
        entries.append(("note", found.note))
    return [line for word, text in entries for line in _entry(word, text, columns)]


def _choice(values: Sequence[str], current: str | None) -> str:
    """What there is to choose from, the one in use marked."""
    if not values:
        return f"{current} (cannot be chosen)" if current else "cannot be chosen"
    return ", ".join(f"{value}*" if value == current else value for value in values)


def _entry(word: str, text: str, columns: int) -> list[str]:
    lines = _wrapped(text, max(_LEAST_TEXT, columns - _LABEL - 2))
    return [f"  {pad(word, _LABEL)}{lines[0]}", *(" " * (_LABEL + 2) + line for line in lines[1:])]


def _wrapped(text: str, width: int) -> list[str]:
    paragraphs = [one_line(line) for line in text.splitlines() if line.strip()]
    lines = [line for each in paragraphs for line in wrap(each, width, break_on_hyphens=False)]
    return lines or [""]
