"""The table of `avenor top`: runs as a tree, a line each, and a line for all of them together. Pure."""

from __future__ import annotations

from math import isfinite

from avenor.cli.listing import (
    GAP,
    LEAST_COLUMNS,
    age_text,
    agent_text,
    count_text,
    elapsed_text,
    fitted,
    permission_text,
    row_text,
    running_phases,
    status_colours,
    status_text,
)
from avenor.cli.untyped import object_in
from avenor.control.safetext import clip, columns_of, one_line, pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from avenor.cli.terminal import Style

    Snapshot = dict[str, Any]

RUN, STATUS, PHASE, AGENT, SILENT, TOKENS, COST, RETRY, PERMISSION, ELAPSED = (
    "RUN",
    "STATUS",
    "PHASE",
    "AGENT",
    "SILENT",
    "TOKENS",
    "COST",
    "RETRY",
    "PERMISSION",
    "ELAPSED",
)
HEADINGS = (RUN, STATUS, PHASE, AGENT, SILENT, TOKENS, COST, RETRY, PERMISSION, ELAPSED)
_ELASTIC = frozenset({RUN, PHASE, AGENT, PERMISSION})
# Where a terminal is too narrow for all of them, these are left out, in this order; those with nothing in them first.
_DISPENSABLE = (COST, RETRY, AGENT, TOKENS, SILENT, PHASE, ELAPSED, PERMISSION)
# A deep tree must not push its labels out of the picture.
_INDENT_AT_MOST = 8


def tree_order(snapshots: Iterable[Snapshot]) -> list[tuple[int, Snapshot]]:
    """The runs with their depth, each below the one that has started it, and those with something alive first.

    A run whose parent is not there, or that is its own ancestor, stands at the root.
    """
    known = {_key(snapshot): snapshot for snapshot in snapshots}
    below: dict[str | None, list[Snapshot]] = {}
    for snapshot in known.values():
        below.setdefault(_parent(snapshot, known), []).append(snapshot)
    rows: list[tuple[int, Snapshot]] = []
    for root in below.get(None, []):
        rows.extend(_subtree(root, below))
    groups: list[list[tuple[int, Snapshot]]] = []
    for row in rows:
        if row[0] == 0:
            groups.append([])
        groups[-1].append(row)
    groups.sort(key=lambda group: all(snapshot["status"] == "ended" for _, snapshot in group))
    return [row for group in groups for row in group]


def table_lines(
    rows: Sequence[tuple[int, Snapshot]], *, style: Style, columns: int, now_ms: int, selected: int | None = None
) -> list[str]:
    """The heading and a line for each row.

    Args:
        rows: As `tree_order` gives them.
        style: How to paint.
        columns: The width of the terminal.
        now_ms: Unix milliseconds, for the times.
        selected: The row that is marked; None leaves out the place for the mark.
    """
    cells = [_cells(depth, snapshot, now_ms) for depth, snapshot in rows]
    mark = 0 if selected is None else 2
    kept = _columns_that_fit([dict(zip(HEADINGS, HEADINGS, strict=True)), *cells], columns - mark)
    shown = [kept, *([row[name] for name in kept] for row in cells)]
    elastic = [index for index, name in enumerate(kept) if name in _ELASTIC]
    widths = fitted(shown, columns - mark, elastic=elastic)
    lines = [" " * mark + style.paint(row_text(kept, widths), "bold")]
    for index, (row, (_, snapshot)) in enumerate(zip(shown[1:], rows, strict=True)):
        painted = _painted(dict(zip(kept, row, strict=True)), widths, snapshot, style)
        lines.append(("> " if index == selected else "  ")[:mark] + painted)
    return lines


def total_line(snapshots: Sequence[Snapshot]) -> str:
    """How many runs there are, at what, and what they have used together."""
    words = [status_text(snapshot).partition(" ")[0] for snapshot in snapshots]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    usages = [object_in(snapshot["usage"]) for snapshot in snapshots]
    tokens = sum(usage.get("total_tokens") or 0 for usage in usages)
    costs = [cost for usage in usages if (cost := _cost(usage)) is not None]
    parts = [f"{len(snapshots)} run{'' if len(snapshots) == 1 else 's'}" + (f": {counts}" if counts else "")]
    if tokens:
        parts.append(f"{count_text(tokens)} tokens")
    if costs:
        parts.append(f"${sum(costs):.2f}")
    return one_line(" · ".join(parts))


def silent_text(snapshot: Snapshot, now_ms: int) -> str:
    """How long a run that is at work has said nothing; empty while a person decides, and for one that is not."""
    if snapshot["status"] not in ("starting", "running") or snapshot["pending_permission"]:
        return ""
    updated = snapshot["updated_at"]
    return "" if updated is None else elapsed_text((now_ms - updated) / 1000)


def name_of(snapshot: Snapshot) -> str:
    """What a run is called: its id and its label."""
    return one_line(" ".join(part for part in (_key(snapshot), snapshot["label"]) if part))


def _key(snapshot: Snapshot) -> str:
    return str(snapshot["runtime_id"] or snapshot["run_id"])


def _parent(snapshot: Snapshot, known: dict[str, Snapshot]) -> str | None:
    """The parent to stand below, None where there is none, or going up from there never ends."""
    seen = {_key(snapshot)}
    at = snapshot["parent_id"]
    while at in known:
        if at in seen:
            return None
        seen.add(at)
        at = known[at]["parent_id"]
    parent = snapshot["parent_id"]
    return parent if parent in known else None


def _subtree(root: Snapshot, below: dict[str | None, list[Snapshot]]) -> list[tuple[int, Snapshot]]:
    rows: list[tuple[int, Snapshot]] = []
    waiting = [(0, root)]  # not by recursion: how deep agents start agents is theirs to say
    while waiting:
        depth, snapshot = waiting.pop()
        rows.append((depth, snapshot))
        waiting.extend((depth + 1, child) for child in reversed(below.get(_key(snapshot), [])))
    return rows


def _cells(depth: int, snapshot: Snapshot, now_ms: int) -> dict[str, str]:
    usage = object_in(snapshot["usage"])
    tokens, cost = usage.get("total_tokens") or 0, _cost(usage)
    goes_on = snapshot["status"] != "ended"
    indent = " " * (2 * min(depth, _INDENT_AT_MOST) - 2) + "└ " if depth else ""
    cells = {
        STATUS: status_text(snapshot),
        PHASE: running_phases(snapshot) if goes_on else "",
        AGENT: agent_text(snapshot) if goes_on else "",
        SILENT: silent_text(snapshot, now_ms),
        TOKENS: count_text(tokens) if tokens else "",
        COST: "" if cost is None else f"${cost:.2f}",
        RETRY: f"{snapshot['retry_attempt']}/{snapshot['max_retries']}" if snapshot["retry_attempt"] else "",
        PERMISSION: permission_text(snapshot),
        ELAPSED: age_text(snapshot, now_ms),
    }
    return {RUN: indent + name_of(snapshot), **{name: one_line(text) for name, text in cells.items()}}


def _cost(usage: dict[str, Any]) -> float | None:
    cost = usage.get("cost_usd")
    return cost if isinstance(cost, (int, float)) and isfinite(cost) else None


def _columns_that_fit(rows: Sequence[dict[str, str]], columns: int) -> list[str]:
    """The headings of the columns that are shown.

    Before anything is cut, columns with nothing in them go; when all that can give way is as narrow as can be, others.
    """
    whole = {name: max(columns_of(row[name]) for row in rows) for name in HEADINGS}
    least = {name: min(width, LEAST_COLUMNS) if name in _ELASTIC else width for name, width in whole.items()}
    empty = [name for name in _DISPENSABLE if not any(row[name] for row in rows[1:])]
    kept: list[str] = list(HEADINGS)
    for widths, dispensable in ((whole, empty), (least, _DISPENSABLE)):
        for name in dispensable:
            if sum(widths[each] for each in kept) + GAP * (len(kept) - 1) <= columns:
                break
            if name in kept:
                kept.remove(name)
    return kept


def _painted(cells: dict[str, str], widths: Sequence[int], snapshot: Snapshot, style: Style) -> str:
    colours = {STATUS: status_colours(cells[STATUS]), PERMISSION: ("yellow",), RETRY: ("yellow",)}
    whole = ("dim",) if snapshot["status"] == "ended" else ()
    painted: list[str] = []
    for (name, text), width in zip(cells.items(), widths, strict=True):
        padded = pad(clip(text, width), width)
        painted.append(style.paint(padded, *colours.get(name, whole)) if text else padded)
    return (" " * GAP).join(painted).rstrip()
