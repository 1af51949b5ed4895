"""Shows a run to a person: agent text on stdout, everything else on stderr, with a status line while it works.

A loop or team has a board of its phases on stderr instead, if that is a terminal, and no text as it comes: that of
parallel members would be mixed up. Fed with the lines that the event log publishes. A terminal that is stopped (Ctrl-S)
delays nothing but itself.
"""

import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import trio

from avenor.control.manifesttext import is_telling
from avenor.control.safetext import columns_of, safe_text
from avenor.protocol.durations import format_duration
from avenor.protocol.events import (
    AnyEvent,
    Error,
    EventHead,
    LoopEnd,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    Retry,
    RunEnd,
    TeamEnd,
    TurnEnd,
    decode_event,
)
from avenor.protocol.manifest.events import ManifestEvent
from avenor.protocol.methods import unwrap_event
from avenor.runtimes.board import Board
from avenor.runtimes.boardtext import board_lines
from avenor.runtimes.eventlines import Piece, Renderer

# A person can read far less; beyond it a stopped terminal loses the oldest lines.
_WAITING_LINES: Final = 10_000
_DRAIN_SECONDS: Final = 2.0
_TICK_SECONDS: Final = 1.0
# A board that changes more often cannot be read, and costs a slow line more than it has.
_BOARD_SECONDS: Final = 0.1
_SIZE_UNKNOWN: Final = os.terminal_size((80, 24))

_CLEAR_LINE: Final = "\r\x1b[2K"
_CLEAR_BELOW: Final = "\x1b[J"
_CUT_LONG_LINES, _WRAP_LONG_LINES = "\x1b[?7l", "\x1b[?7h"
_COLOR_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")


class Display(Protocol):
    """What a view shows of the events that it takes.

    Attributes:
        tick_seconds: After so long without an event it is to be asked again; infinity for never.
        pause_seconds: Within this time it is asked once only.
    """

    tick_seconds: float
    pause_seconds: float

    def take(self, event: AnyEvent) -> None:
        """Takes the next event of the run."""
        ...

    def pieces(self, *, elapsed_seconds: float, is_over: bool) -> list[Piece]:
        """What is to be written now.

        Args:
            elapsed_seconds: Since the run began to be shown.
            is_over: It is the last time.
        """
        ...


class LineDisplay:
    """Lines as they come, and below them a status line.

    Args:
        renderer: Makes the lines.
        has_status_line: Whether stderr is a terminal, on which a status line can be redrawn.
    """

    pause_seconds = 0.0

    def __init__(self, renderer: Renderer, *, has_status_line: bool) -> None:
        self.tick_seconds = _TICK_SECONDS if has_status_line else float("inf")
        self._renderer = renderer
        self._has_status_line = has_status_line
        self._status_shown = False
        self._pieces: list[Piece] = []

    def take(self, event: AnyEvent) -> None:
        """See `Display.take`."""
        self._pieces += self._renderer.render(event)

    def pieces(self, *, elapsed_seconds: float, is_over: bool) -> list[Piece]:
        """See `Display.pieces`."""
        pieces, self._pieces = self._pieces, []
        if self._status_shown:
            pieces.insert(0, Piece("err", _CLEAR_LINE))
            self._status_shown = False
        if self._has_status_line and self._renderer.is_at_line_start and not is_over:
            pieces.append(Piece("err", f"[{format_duration(float(int(elapsed_seconds)))}]"))
            self._status_shown = True
        return pieces


class BoardDisplay:
    """A board that is redrawn in place, and above it the lines that should not be missed.

    Args:
        uses_color: Whether it may be coloured.
        size: Columns and lines of the terminal, asked each time.
        now: Seconds of the same clock as the events' `ts`.
    """

    tick_seconds = _TICK_SECONDS
    pause_seconds = _BOARD_SECONDS

    def __init__(
        self,
        *,
        uses_color: bool,
        size: Callable[[], os.terminal_size],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._board = Board()
        self._renderer = Renderer(shows_text=False, uses_color=uses_color, has_phases=True)
        self._uses_color = uses_color
        self._size = size
        self._now = now
        self._above: list[str] = []
        self._last = ""
        self._widths: list[int] = []

    def take(self, event: AnyEvent) -> None:
        """See `Display.take`."""
        self._board.apply(event)
        if not _is_worth_keeping(event):
            return
        text = "".join(piece.text for piece in self._renderer.render(event))
        if isinstance(event, RunEnd):
            self._last = text
        else:
            self._above.append(text)

    def pieces(self, *, elapsed_seconds: float, is_over: bool) -> list[Piece]:
        """See `Display.pieces`."""
        columns, height = self._size()
        lines = board_lines(
            self._board,
            now_ms=int(self._now() * 1000),
            columns=columns,
            height=height,
            uses_color=self._uses_color,
        )
        text = self._redrawn(lines, columns=columns, height=height)
        return [Piece("err", f"{text}\n{self._last}" if is_over else text)]

    def _redrawn(self, lines: list[str], *, columns: int, height: int) -> str:
        # Terminals that have become narrower have wrapped what was there.
        used = sum(max(1, -(-width // columns)) for width in self._widths)
        up = min(used, height) - 1
        start = "\r" + (f"\x1b[{up}A" if up > 0 else "")
        if self._above or used != len(self._widths):
            start += _CLEAR_BELOW
        above = "".join(self._above)
        self._above.clear()
        self._widths = [columns_of(_COLOR_CODE.sub("", line)) for line in lines]
        # A line that the terminal thinks wider than we do must not become two. The board itself never gets shorter.
        block = "\n".join(f"\x1b[2K{line}" for line in lines)
        return f"{start}{above}{_CUT_LONG_LINES}{block}{_WRAP_LONG_LINES}"


class View:
    """Takes published lines, and shows them while `run` runs.

    Args:
        display: What is shown of them.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_LINES)
        self._arrived = trio.Event()
        self._over = trio.Event()
        self._has_shown_all = trio.Event()

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        """Takes wrapped lines; see `EventHub.publish`."""
        self._waiting.extend(lines)
        if heads[-1].event == "run.end":
            self._over.set()
        self._arrived.set()

    async def run(self) -> None:
        """Shows what comes until the run has ended, and that is shown."""
        started_at = trio.current_time()
        while not (self._over.is_set() and not self._waiting):
            # A tick: nothing but the clock can tell that the elapsed time has changed.
            with trio.move_on_after(self._display.tick_seconds):
                await self._arrived.wait()
            self._arrived = trio.Event()
            await self._show(started_at)
            with trio.move_on_after(self._display.pause_seconds):
                await self._over.wait()
        self._has_shown_all.set()

    async def wait_shown(self) -> None:
        """Returns when all is shown, or the terminal has taken too long to take it."""
        with trio.move_on_after(_DRAIN_SECONDS):
            await self._has_shown_all.wait()

    async def _show(self, started_at: float) -> None:
        while self._waiting:
            self._display.take(decode_event(unwrap_event(self._waiting.popleft())))
        elapsed_seconds = trio.current_time() - started_at
        await self._write(self._display.pieces(elapsed_seconds=elapsed_seconds, is_over=self._over.is_set()))

    async def _write(self, pieces: list[Piece]) -> None:
        if pieces:
            await trio.to_thread.run_sync(_write_all, pieces, abandon_on_cancel=True)


def make_view(*, quiet: bool, is_board: bool = False) -> View | None:
    """The view for this process's streams; None if nothing is to be shown.

    Args:
        quiet: Show nothing.
        is_board: The run is a loop or team: a terminal gets a board, everything else lines that say their phase.
    """
    if quiet:
        return None
    on_terminal = sys.stderr.isatty()
    uses_color = on_terminal and not os.environ.get("NO_COLOR")
    if is_board and on_terminal and os.environ.get("TERM") != "dumb":
        return View(BoardDisplay(uses_color=uses_color, size=_terminal_size))
    shows_text = sys.stdout.isatty() and not is_board
    renderer = Renderer(shows_text=shows_text, uses_color=uses_color, has_phases=is_board)
    return View(LineDisplay(renderer, has_status_line=on_terminal))


def print_reply(text: str) -> None:
    """Writes the final reply to stdout, as it is where that is no terminal; a reader that has gone is no error.

    Raises:
        OSError: It cannot be written, or not all of it.
    """
    if sys.stdout.isatty():
        text = safe_text(text)
    with suppress(BrokenPipeError):
        _write(Piece("out", text if text.endswith("\n") else text + "\n"))


def complain(text: str) -> None:
    """Writes a line to stderr; where that cannot be written, nobody can be told."""
    _write_all([Piece("err", text + "\n")])


def _write_all(pieces: list[Piece]) -> None:
    for piece in pieces:
        with suppress(OSError):  # nobody reads any more
            _write(piece)


def _write(piece: Piece) -> None:
    fd = 1 if piece.stream == "out" else 2
    rest = memoryview(piece.text.encode("utf-8", errors="replace"))
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another program made the terminal or pipe that we share non-blocking
            select.select([], [fd], [])


def _terminal_size() -> os.terminal_size:
    try:
        columns, lines = os.get_terminal_size(2)
    except OSError:
        return _SIZE_UNKNOWN
    return os.terminal_size((columns or _SIZE_UNKNOWN.columns, lines or _SIZE_UNKNOWN.lines))


def _is_worth_keeping(event: AnyEvent) -> bool:
    match event:
        case PermissionRequest() | Retry() | Error() | PhaseEnd() | RunEnd() | LoopEnd() | TeamEnd():
            return True
        case PermissionResponse():
            return event.source != "avenor"
        case TurnEnd():
            return bool(event.error)
        case _:
            return isinstance(event, ManifestEvent) and is_telling(msgspec.to_builtins(event))
