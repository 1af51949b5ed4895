"""Shows a run to a person: agent text on stdout, everything else on stderr, with a status line while it works.

Fed with the lines that the event log publishes. A terminal that is stopped (Ctrl-S) delays nothing but itself.
"""

import os
import re
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import trio

from avenor.protocol.durations import format_duration
from avenor.protocol.events import (
    AnyEvent,
    Error,
    EventHead,
    MessageChunk,
    PermissionRequest,
    PermissionResponse,
    Retry,
    RunEnd,
    SessionStart,
    ToolCall,
    ToolCallUpdate,
    TurnEnd,
    TurnStart,
    decode_event,
)
from avenor.protocol.methods import unwrap_event

# A person can read far less; beyond it a stopped terminal loses the oldest lines.
_WAITING_LINES: Final = 10_000
_DRAIN_SECONDS: Final = 2.0
_TICK_SECONDS: Final = 1.0
_TITLE_CHARS: Final = 100

# Agents' text is shown as text: no escape sequence of theirs reaches the terminal.
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CLEAR_LINE: Final = "\r\x1b[2K"
_DIM, _RED, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"

Stream = Literal["out", "err"]


class Piece(msgspec.Struct, frozen=True):
    """Some text for one of the two streams."""

    stream: Stream
    text: str


class _Content(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""


_decode_content: Final = msgspec.json.Decoder(_Content).decode


class Renderer:
    """Makes text of events. Pure.

    Args:
        shows_text: Whether the agent's text is shown as it comes.
        uses_color: Whether what goes to stderr may be coloured.
    """

    def __init__(self, *, shows_text: bool, uses_color: bool) -> None:
        self._shows_text = shows_text
        self._uses_color = uses_color
        self._titles: dict[str, str] = {}
        self.is_at_line_start = True

    def render(self, event: AnyEvent) -> list[Piece]:
        """What this event looks like; nothing for most."""
        if isinstance(event, MessageChunk):
            return self._text(event)
        line = self._line(event)
        if line is None:
            return []
        pieces = [Piece("err", line + "\n")]
        if not self.is_at_line_start:
            self.is_at_line_start = True
            pieces.insert(0, Piece("out", "\n"))
        return pieces

    def _text(self, event: MessageChunk) -> list[Piece]:
        if not self._shows_text:
            return []
        try:
            content = _decode_content(event.content)
        except msgspec.DecodeError:
            return []
        text = _UNSAFE.sub("", content.text)
        if not text:
            return []
        self.is_at_line_start = text.endswith("\n")
        return [Piece("out", text)]

    def _line(self, event: AnyEvent) -> str | None:
        match event:
            case SessionStart():
                model = f" · {event.model}" if event.model else ""
                return self._paint(_DIM, f"session {event.session_id} · {event.backend}{model}")
            case TurnStart() if event.source != "run":
                return self._paint(_DIM, f"> {_excerpt(event.text)}")
            case ToolCall():
                self._titles[event.toolCallId] = event.title
                return self._paint(_DIM, f"· {_excerpt(event.title)}")
            case ToolCallUpdate() if event.status in ("completed", "failed"):
                title = _excerpt(self._titles.pop(event.toolCallId, event.toolCallId))
                if event.status == "failed":
                    return self._paint(_RED, f"✗ {title}")
                return self._paint(_DIM, f"✓ {title}")
            case PermissionRequest() if event.resolver != "automatic":
                options = ", ".join(option.option_id for option in event.options)
                return self._paint(_YELLOW, f"? {event.request_id}: {_excerpt(event.question)} ({options})")
            case PermissionResponse():
                return self._paint(_DIM, f"  {event.request_id}: {event.kind}, by {event.source}")
            case Retry():
                wait = format_duration(event.delay_ms / 1000)
                return self._paint(_YELLOW, f"retry {event.attempt} in {wait} ({event.retry_class})")
            case Error():
                return self._paint(_RED, f"! {event.source}: {_excerpt(event.message)}")
            case TurnEnd():
                return self._turn_end(event)
            case RunEnd() if event.exit_code:
                why = "" if event.reason is msgspec.UNSET else f": {_UNSAFE.sub('', event.reason)}"
                return self._paint(_RED, f"{event.status} ({event.stop_reason}){why}")
            case _:
                return None

    def _turn_end(self, event: TurnEnd) -> str | None:
        if event.error is not msgspec.UNSET:
            return self._paint(_RED, f"turn failed: {_excerpt(event.error)}")
        if self.is_at_line_start:
            return None
        return self._paint(_DIM, f"turn ended: {event.stop_reason}")

    def _paint(self, color: str, text: str) -> str:
        return f"{color}{text}{_RESET}" if self._uses_color else text


class View:
    """Takes published lines, and shows them while `run` runs.

    Args:
        renderer: Makes the text.
        has_status_line: Whether stderr is a terminal, on which a status line can be redrawn.
    """

    def __init__(self, renderer: Renderer, *, has_status_line: bool) -> None:
        self._renderer = renderer
        self._has_status_line = has_status_line
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_LINES)
        self._arrived = trio.Event()
        self._is_over = False
        self._status_shown = False
        self._has_shown_all = trio.Event()

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        """Takes wrapped lines; see `EventHub.publish`."""
        self._waiting.extend(lines)
        self._is_over = self._is_over or heads[-1].event == "run.end"
        self._arrived.set()

    async def run(self) -> None:
        """Shows what comes until the run has ended, and that is shown."""
        started_at = trio.current_time()
        while not (self._is_over and not self._waiting):
            # A tick: nothing but the clock can tell that the elapsed time has changed.
            with trio.move_on_after(_TICK_SECONDS if self._has_status_line else float("inf")):
                await self._arrived.wait()
            self._arrived = trio.Event()
            await self._show(started_at)
        self._has_shown_all.set()

    async def wait_shown(self) -> None:
        """Returns when all is shown, or the terminal has taken too long to take it."""
        with trio.move_on_after(_DRAIN_SECONDS):
            await self._has_shown_all.wait()

    async def _show(self, started_at: float) -> None:
        pieces: list[Piece] = []
        while self._waiting:
            pieces += self._renderer.render(decode_event(unwrap_event(self._waiting.popleft())))
        if self._status_shown:
            pieces.insert(0, Piece("err", _CLEAR_LINE))
            self._status_shown = False
        if self._has_status_line and self._renderer.is_at_line_start and not self._is_over:
            elapsed = format_duration(float(int(trio.current_time() - started_at)))
            pieces.append(Piece("err", f"[{elapsed}]"))
            self._status_shown = True
        await self._write(pieces)

    async def _write(self, pieces: list[Piece]) -> None:
        if pieces:
            await trio.to_thread.run_sync(_write_all, pieces, abandon_on_cancel=True)


def make_view(*, quiet: bool) -> View | None:
    """The view for this process's streams; None if nothing is to be shown."""
    if quiet:
        return None
    on_terminal = sys.stderr.isatty()
    uses_color = on_terminal and not os.environ.get("NO_COLOR")
    return View(Renderer(shows_text=sys.stdout.isatty(), uses_color=uses_color), has_status_line=on_terminal)


def print_reply(text: str) -> None:
    """Writes the final reply to a stdout that is no terminal; a reader that has gone is no error."""
    _write_all([Piece("out", text if text.endswith("\n") else text + "\n")])


def _write_all(pieces: list[Piece]) -> None:
    for piece in pieces:
        fd = 1 if piece.stream == "out" else 2
        rest = memoryview(piece.text.encode("utf-8", errors="replace"))
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:  # nobody reads any more
            continue


def _excerpt(text: str) -> str:
    line = " ".join(_UNSAFE.sub(" ", text).split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"
