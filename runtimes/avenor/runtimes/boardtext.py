"""The lines of a board: a header, a row for each phase, never more or wider than the terminal has room for. Pure.

What an agent wrote is made safe here: nothing of it acts on the terminal.
"""

from typing import Final

from avenor.control import safetext
from avenor.control.safetext import clip, columns_of
from avenor.protocol.durations import format_duration
from avenor.protocol.events import AnyEvent
from avenor.runtimes.board import TEXT_LIMIT_CHARS, Board, Group, Row, State, phase_of

MARKS: Final[dict[State, str]] = {
    "running": "▶",
    "asking": "?",
    "retrying": "↻",
    "clean": "✓",
    "failed": "✗",
    "stopped": "⊘",
    "skipped": "–",
}
_BOLD, _DIM, _YELLOW, _GREEN, _RED = "1", "2", "33", "32", "31"
_COLORS: Final[dict[State, str]] = {
    "running": _GREEN,
    "asking": f"{_YELLOW};{_BOLD}",
    "retrying": _YELLOW,
    "clean": _DIM,
    "failed": _RED,
    "stopped": _RED,
    "skipped": _DIM,
}
# Which of the rows that go on are shown where there is no room for all of them: the lowest, and leaves before holders.
_URGENCY: Final[dict[State, int]] = {"asking": 0, "retrying": 1}

_GAP: Final = "  "
# What is left out of a narrow terminal.
_KIND_FROM_COLUMNS: Final = 60
_TOKENS_FROM_COLUMNS: Final = 50
_LEAST_NAME_COLUMNS: Final = 8

# A text and its colour code, empty for none.
_Segment = tuple[str, str]


def board_lines(board: Board, *, now_ms: int, columns: int, height: int, uses_color: bool) -> list[str]:
    """The header and the rows: at least one line, at most `height`, each narrower than `columns`.

    Args:
        board: What is to be shown.
        now_ms: Unix milliseconds, for the elapsed times.
        columns: The width of the terminal.
        height: Its lines.
        uses_color: Whether the lines may hold colour codes.
    """
    # The last column stays free: where a line that fills it leaves the cursor differs between terminals.
    width = max(columns - 1, 1)
    rows, note = _fold(list(board.root.walk()), height - 1, board.dropped)
    lines: list[list[_Segment]] = [[(_header(board.root, now_ms), _BOLD)]]
    if note:
        lines.append([(note, _DIM)])
    if rows:
        lines += _table(rows, now_ms=now_ms, columns=width)
    return [_cut(segments, width, uses_color=uses_color) for segments in lines]


def phase_label(event: AnyEvent) -> str:
    """The phase that an event belongs to, like `review/fix #2`, fit for a terminal; empty if there is none."""
    name = phase_of(event)
    if not name:
        return ""
    path = f"{event.path}/" if event.path else ""
    return one_line(path + name) + (f" #{event.iteration}" if event.iteration else "")


def one_line(text: str) -> str:
    """The beginning of a text as one line with single blanks, without anything that would act on a terminal."""
    return " ".join(safetext.one_line(text[:TEXT_LIMIT_CHARS]).split())


def _header(root: Row, now_ms: int) -> str:
    parts = (one_line(root.name), _progress(root.group), _elapsed(root, now_ms))
    return " · ".join(part for part in parts if part)


def _progress(group: Group) -> str:
    parts = [group.word]
    if group.iteration:
        parts.append(f"iteration {group.iteration} of {group.max_iterations}")
    if group.members:
        skipped = f", {group.members_skipped} skipped" if group.members_skipped else ""
        total = max(group.members - group.members_skipped, group.members_done)
        parts.append(f"{group.members_done}/{total} members done{skipped}")
    return " · ".join(part for part in (*parts, one_line(group.exit_reason)) if part)


def _fold(rows: list[Row], room: int, dropped: int) -> tuple[list[Row], str]:
    """The rows for so many lines, and the line that stands for the others, if there are any."""
    if room <= 0 or (not dropped and len(rows) <= room):
        return rows[: max(room, 0)], ""
    chosen = _most_wanted(rows, room - 1)
    hidden = [row for row in rows if id(row) not in chosen]
    going_on = sum(row.ended_ms is None for row in hidden)
    done = len(hidden) - going_on + dropped
    parts = [f"{done} phase{'' if done == 1 else 's'} done"] if done else []
    parts += [f"{going_on} more going on"] if going_on else []
    return [row for row in rows if id(row) in chosen], "… " + ", ".join(parts)


def _most_wanted(rows: list[Row], room: int) -> set[int]:
    going_on = [row for row in rows if row.ended_ms is None]
    ended = [row for row in rows if row.ended_ms is not None]
    going_on.sort(key=lambda row: _URGENCY.get(row.state, 3 if row.children else 2))
    ended.sort(key=lambda row: row.ended_order, reverse=True)
    return {id(row) for row in (*going_on, *ended)[:room]}


def _table(rows: list[Row], *, now_ms: int, columns: int) -> list[list[_Segment]]:
    names = _names(rows)
    name_columns = min(max(map(columns_of, names)), max(columns // 3, _LEAST_NAME_COLUMNS))
    kinds = [one_line(row.kind) if columns >= _KIND_FROM_COLUMNS else "" for row in rows]
    tokens = [_count_text(row.tokens) if columns >= _TOKENS_FROM_COLUMNS else "" for row in rows]
    table = (
        _column([clip(name, name_columns) for name in names]),
        _column(kinds),
        _column([one_line("asking" if row.state == "asking" else row.word) for row in rows]),
        _column([_elapsed(row, now_ms) for row in rows], to_the_right=True),
        _column(tokens, to_the_right=True),
    )
    return [_segments(row, cells) for row, *cells in zip(rows, *table, strict=True)]


def _segments(row: Row, cells: list[str]) -> list[_Segment]:
    name, kind, word, elapsed, tokens = cells
    color = _COLORS[row.state]
    segments: list[_Segment] = [(f"{MARKS[row.state]} ", color), (name, "")]
    for text, shade in ((kind, _DIM), (word, color), (elapsed, ""), (tokens, _DIM), (_detail(row), _DIM)):
        if text:
            segments += [(_GAP, ""), (text, shade)]
    return segments


def _detail(row: Row) -> str:
    activity = _progress(row.group) if row.group.word else one_line(row.activity)
    detail = "" if row.detail == row.group.exit_reason else one_line(row.detail)
    return " · ".join(part for part in (detail, activity) if part)


def _names(rows: list[Row]) -> list[str]:
    depths: dict[int, int] = {}
    names: list[str] = []
    for row in rows:
        is_top = row.parent is None or row.parent.parent is None
        depth = 0 if is_top else depths.get(id(row.parent), -1) + 1
        depths[id(row)] = depth
        # Where the row that it hangs under is not shown, it says its whole path.
        name = one_line(row.name if is_top or depth else row.full_name)
        names.append(_GAP * depth + name + (f" #{row.iteration}" if row.iteration else ""))
    return names


def _elapsed(row: Row, now_ms: int) -> str:
    if row.own_state == "skipped" or not row.started_ms:
        return ""
    end_ms = now_ms if row.ended_ms is None else row.ended_ms
    return format_duration(float(max(0, end_ms - row.started_ms) // 1000))


def _count_text(count: int) -> str:
    if count < 1000:
        return str(count) if count else ""
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def _column(cells: list[str], *, to_the_right: bool = False) -> list[str]:
    width = max(map(columns_of, cells))
    blanks = [" " * (width - columns_of(cell)) for cell in cells]
    return [gap + cell if to_the_right else cell + gap for cell, gap in zip(cells, blanks, strict=True)]


def _cut(segments: list[_Segment], columns: int, *, uses_color: bool) -> str:
    painted: list[str] = []
    left = columns
    for text, color in segments:
        cut = clip(text, left)
        left -= columns_of(cut)
        painted.append(f"\x1b[{color}m{cut}\x1b[0m" if color and cut and uses_color else cut)
        if cut != text:
            break
    return "".join(painted).rstrip()
