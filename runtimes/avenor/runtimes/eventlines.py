"""What each event of a run looks like to a person: pieces of text for stdout and stderr. Pure."""

from typing import Final, Literal

import msgspec

from avenor.control.manifesttext import is_telling, manifest_words
from avenor.control.safetext import clip, safe_text
from avenor.protocol.durations import format_duration
from avenor.protocol.events import (
    AnyEvent,
    Error,
    LoopEnd,
    MessageChunk,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    Retry,
    RunEnd,
    SessionStart,
    TeamEnd,
    ToolCall,
    ToolCallUpdate,
    TurnEnd,
    TurnStart,
)
from avenor.protocol.manifest.events import ManifestEvent, TaskEvent
from avenor.runtimes.board import ending_of, message_text
from avenor.runtimes.boardtext import MARKS, one_line, phase_label

_TITLE_COLUMNS: Final = 100
# What waits for permission does not stop the other members, so that nothing but this says that it is somebody's turn.
_HOW_TO_ANSWER: Final = {
    "control": "avenor control --socket PATH answer-permission {} OPTION",
    "file": "avenor answer BASE --option OPTION",
}
_DIM, _RED, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_TONES: Final = {"good": _DIM, "bad": _RED, "warn": _YELLOW, "plain": _DIM}

Stream = Literal["out", "err"]


class Piece(msgspec.Struct, frozen=True):
    """Some text for one of the two streams."""

    stream: Stream
    text: str


class Renderer:
    """Makes text of events. Pure.

    Args:
        shows_text: Whether the agent's text is shown as it comes.
        uses_color: Whether what goes to stderr may be coloured.
        has_phases: Whether the run is a loop or team, whose lines say which phase they are about.
    """

    def __init__(self, *, shows_text: bool, uses_color: bool, has_phases: bool = False) -> None:
        self._shows_text = shows_text
        self._uses_color = uses_color
        self._has_phases = has_phases
        self._titles: dict[tuple[str, str], str] = {}
        self._exit = ""
        self.is_at_line_start = True

    def render(self, event: AnyEvent) -> list[Piece]:
        """What this event looks like; nothing for most."""
        if isinstance(event, MessageChunk):
            return self._text(event)
        line = self._phase_line(event) if self._has_phases else self._line(event)
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
        text = safe_text(message_text(event))
        if not text:
            return []
        self.is_at_line_start = text.endswith("\n")
        return [Piece("out", text)]

    def _phase_line(self, event: AnyEvent) -> str | None:
        line = self._line_of_phases(event) or self._line(event)
        label = phase_label(event)
        return f"{label}: {line}" if label and line else line

    def _line_of_phases(self, event: AnyEvent) -> str | None:
        match event:
            case LoopEnd() | TeamEnd() if not event.path:
                label = f", {event.exit_label}" if event.exit_label else ""
                self._exit = f"{event.exit_reason}{label}"
                return None
            case PhaseEnd():
                ending = ending_of(event)
                detail = f": {_excerpt(ending.detail)}" if ending.detail else ""
                color = _DIM if ending.state == "clean" else _RED
                return self._paint(color, f"{MARKS[ending.state]} {ending.word}{detail}")
            case PermissionRequest() if event.resolver in _HOW_TO_ANSWER:
                how = _HOW_TO_ANSWER[event.resolver].format(event.request_id)
                return f"{self._line(event)}\n" + self._paint(_DIM, f"  answer it with: {how}")
            case RunEnd():
                return self._run_end(event, self._exit or event.stop_reason)
            case _:
                return None

    def _line(self, event: AnyEvent) -> str | None:
        match event:
            case SessionStart():
                model = f" · {event.model}" if event.model else ""
                return self._paint(_DIM, f"session {event.session_id} · {event.backend}{model}")
            case TurnStart() if event.source != "run":
                return self._paint(_DIM, f"> {_excerpt(event.text)}")
            case ToolCall():
                self._titles[phase_label(event), event.toolCallId] = event.title
                return self._paint(_DIM, f"· {_excerpt(event.title)}")
            case ToolCallUpdate() if event.status in ("completed", "failed"):
                title = _excerpt(self._titles.pop((phase_label(event), event.toolCallId), event.toolCallId))
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
                return self._run_end(event, event.stop_reason)
            case _ if isinstance(event, ManifestEvent):
                return self._manifest_line(event)
            case _:
                return None

    def _manifest_line(self, event: ManifestEvent) -> str | None:
        facts = msgspec.to_builtins(event)
        told = manifest_words(facts) if is_telling(facts) or isinstance(event, TaskEvent) else None
        if told is None:
            return None
        word, tone, detail = told
        return self._paint(_TONES[tone], f"{word} {_excerpt(detail)}")

    def _turn_end(self, event: TurnEnd) -> str | None:
        if event.error is not msgspec.UNSET:
            return self._paint(_RED, f"turn failed: {_excerpt(event.error)}")
        if self.is_at_line_start:
            return None
        return self._paint(_DIM, f"turn ended: {event.stop_reason}")

    def _run_end(self, event: RunEnd, how: str) -> str:
        why = "" if event.reason is msgspec.UNSET else f": {event.reason}"
        return self._paint(_RED if event.exit_code else _DIM, f"{event.status} ({how}){why}")

    def _paint(self, color: str, text: str) -> str:
        line = safe_text(text).replace("\n", " ")
        return f"{color}{line}{_RESET}" if self._uses_color else line


def _excerpt(text: str) -> str:
    return clip(one_line(text), _TITLE_COLUMNS)
