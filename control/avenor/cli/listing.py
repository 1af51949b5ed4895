"""The table that `avenor control list` shows on a terminal, and what of it `avenor top` shows as well."""

from __future__ import annotations

from avenor.cli.terminal import Style
from avenor.cli.untyped import object_in
from avenor.control.safetext import clip, columns_of, one_line, pad

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# What of a snapshot the tables are made of. It may have much more: the agent's words, for one.
MEMBERS = (
    "runtime_id",
    "run_id",
    "label",
    "status",
    "phase",
    "phase_label",
    "phases",
    "turn_state",
    "pending_permission",
    "permission",
    "permissions",
    "usage",
    "retry_attempt",
    "max_retries",
    "started_at",
    "updated_at",
    "ended_at",
    "outcome",
    "exit_code",
    "parent_id",
    "latest_seq",
)
HEADINGS = ("ID", "STATUS", "ELAPSED", "LABEL", "PHASE", "PERMISSION", "TOKENS")
# These give way when the terminal is too narrow, the widest first, but not below this.
_ELASTIC = (3, 4, 5)
LEAST_COLUMNS = 8
GAP = 2

_COLOURS = {
    "running": ("green",),
    "starting": ("cyan",),
    "queued": ("dim",),
    "idle": ("blue",),
    "asking": ("yellow", "bold"),
    "retrying": ("yellow",),
    "DONE": ("dim",),
}


def render(snapshots: list[dict[str, Any]], *, style: Style, columns: int, now_ms: int) -> str:
    """The table, one line a runtime.

    Args:
        snapshots: As `list` answers them, with these `MEMBERS` at least.
        style: How to paint.
        columns: The width of the terminal.
        now_ms: Unix milliseconds, for the elapsed times.
    """
    if not snapshots:
        return "no runtimes\n"
    rows = [_cells(snapshot, now_ms) for snapshot in snapshots]
    widths = fitted([HEADINGS, *rows], columns, elastic=_ELASTIC)
    lines = [style.paint(row_text(HEADINGS, widths), "bold")]
    for row in rows:
        cells = [pad(clip(cell, width), width) for cell, width in zip(row, widths, strict=True)]
        cells[1] = style.paint(cells[1], *status_colours(row[1]))
        cells[5] = style.paint(cells[5], "yellow") if row[5] else cells[5]
        lines.append((" " * GAP).join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _cells(snapshot: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    usage = object_in(snapshot["usage"])
    tokens = usage.get("total_tokens") or 0
    cells = (
        snapshot["runtime_id"] or snapshot["run_id"],
        status_text(snapshot),
        age_text(snapshot, now_ms),
        snapshot["label"] or "",
        "" if snapshot["status"] == "ended" else phase_text(snapshot),
        permission_text(snapshot),
        count_text(tokens) if tokens else "",
    )
    return tuple(map(one_line, cells))


def status_text(snapshot: dict[str, Any]) -> str:
    """What a run is at, or what it came to."""
    if snapshot["status"] == "ended":
        outcome = snapshot["outcome"] or "ended"
        return f"{outcome} {snapshot['exit_code']}" if outcome == "FAILED" else str(outcome)
    if snapshot["pending_permission"]:
        return "asking"
    if snapshot["turn_state"] == "retrying":
        return f"retrying {snapshot['retry_attempt']}/{snapshot['max_retries']}"
    return str(snapshot["status"])


def phase_text(snapshot: dict[str, Any]) -> str:
    """The phases that run, and what the agent says that it is at."""
    return ": ".join(part for part in (running_phases(snapshot), agent_text(snapshot)) if part)


def running_phases(snapshot: dict[str, Any]) -> str:
    """The names of the phases of a loop or team that run now."""
    return ", ".join(phase["name"] for phase in snapshot["phases"] if phase["state"] == "running")


def agent_text(snapshot: dict[str, Any]) -> str:
    """What the agent says that it is at, with its label."""
    return ": ".join(part for part in (snapshot["phase"], snapshot["phase_label"]) if part)


def permission_text(snapshot: dict[str, Any]) -> str:
    """The permission that is pending; empty for none."""
    permission = snapshot["permission"]
    if permission is None:
        return ""
    more = len(snapshot["permissions"]) - 1
    text = f"{permission['request_id']} {permission['question'] or permission['tool']}"
    return f"{text} (+{more})" if more > 0 else text


def age_text(snapshot: dict[str, Any], now_ms: int) -> str:
    """How long a run has gone on, or went on."""
    started = snapshot["started_at"]
    if started is None:
        return ""
    return elapsed_text(((snapshot["ended_at"] or now_ms) - started) / 1000)


def elapsed_text(seconds: float) -> str:
    """A time span in at most two units: `8s`, `3m12s`, `2h05m`, `3d04h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def count_text(count: int) -> str:
    """A count in three or four characters: `940`, `12.3k`, `1.2M`."""
    if count < 1000:
        return str(count)
    if count < 999_950:
        return f"{count / 1000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def status_colours(status: str) -> tuple[str, ...]:
    """How `status_text` is painted."""
    return _COLOURS.get(status.partition(" ")[0], ("red",))


def fitted(rows: Sequence[Sequence[str]], columns: int, *, elastic: Sequence[int]) -> list[int]:
    """The widths of the columns of a table.

    Args:
        rows: Their cells, the headings too.
        columns: How wide the table may be.
        elastic: The columns that give way where it would be wider, the widest first, down to `LEAST_COLUMNS`.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    while elastic and sum(widths) + GAP * (len(widths) - 1) > columns:
        widest = max(elastic, key=lambda index: widths[index])
        if widths[widest] <= LEAST_COLUMNS:
            break
        widths[widest] -= 1
    return widths


def row_text(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One row, unpainted."""
    return (" " * GAP).join(pad(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()
