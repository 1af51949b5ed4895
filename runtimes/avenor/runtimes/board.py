"""What a person is told of the phases of a loop or team, folded from the run's events. Pure; `boardtext` writes it.

Rows hang under the nested phase that they belong to. A phase that comes again in a later iteration has a row for each.
"""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from avenor.protocol.durations import format_duration
from avenor.protocol.events import (
    AgentStatus,
    AnyEvent,
    Error,
    LoopEnd,
    LoopStart,
    MessageChunk,
    OwnKind,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    PhaseStart,
    Retry,
    RunEnd,
    RunStart,
    SessionStart,
    TeamEnd,
    TeamStart,
    ToolCall,
    ToolCallUpdate,
    TurnEnd,
)

# Far more than a terminal has lines. Rows that have not ended are kept beyond it: the config bounds them.
ROW_LIMIT: Final = 400
# More of a text is not shown on any terminal.
TEXT_LIMIT_CHARS: Final = 1000

State = Literal["running", "asking", "retrying", "clean", "failed", "stopped", "skipped"]


class Ending(msgspec.Struct, frozen=True):
    """How a phase ended, in one word, and what else there is to say of it, if anything."""

    state: State
    word: str
    detail: str = ""


class Group(msgspec.Struct, eq=False):
    """How far a loop or team is: the run's own, or that of a nested phase.

    Attributes:
        word: loop or team; empty for a phase that is neither.
        skips: Whom each phase wants skipped, until the members start.
    """

    word: str = ""
    iteration: int = 0
    max_iterations: int = 0
    members: int = 0
    members_done: int = 0
    members_skipped: int = 0
    skips: dict[str, list[str]] = {}
    exit_reason: str = ""


class Row(msgspec.Struct, eq=False, kw_only=True):
    """One execution of a phase, with all its attempts. All texts are as they came: nothing makes them safe to print.

    Attributes:
        started_ms: This and `ended_ms` are Unix milliseconds.
        ended_order: Which row of the board this was to end, from 1.
        word: What it is at: starting, thinking, working, waiting, done; or how it ended.
        detail: The label of that.
        activity: Its last tool or line of text.
        asked: The permissions that wait for an answer.
    """

    path: str = ""
    name: str = ""
    kind: str = ""
    iteration: int = 0
    parent: "Row | None" = None
    children: "list[Row]" = []
    group: Group = msgspec.field(default_factory=Group)
    started_ms: int = 0
    ended_ms: int | None = None
    ended_order: int = 0
    own_state: State = "running"
    word: str = "starting"
    detail: str = ""
    activity: str = ""
    unfinished_line: str = ""
    asked: set[str] = set()
    tokens: int = 0

    @property
    def full_name(self) -> str:
        """The name with the path, which is the path of its children."""
        return f"{self.path}/{self.name}" if self.path else self.name

    @property
    def state(self) -> State:
        """What it is at, a permission that it waits for included."""
        return "asking" if self.asked else self.own_state

    def say(self, text: str) -> None:
        """Takes message text: its last line that is not blank is what the phase is at."""
        *earlier, last = (self.unfinished_line + text).split("\n")
        self.unfinished_line = last[:TEXT_LIMIT_CHARS]
        spoken = next((line for line in (last, *reversed(earlier)) if line.strip()), self.activity)
        self.activity = spoken[:TEXT_LIMIT_CHARS]

    def show(self, text: str) -> None:
        """Takes what the phase is at, which ends a line of message text."""
        self.activity = text[:TEXT_LIMIT_CHARS]
        self.unfinished_line = ""

    def walk(self) -> "Iterator[Row]":
        """Everything below, each row before those below it."""
        for child in self.children:
            yield child
            yield from child.walk()


class Board:
    """Keeps the rows of one run in step with its events.

    Attributes:
        root: The run; its children are the rows.
        dropped: How many rows are gone since there were too many.
    """

    def __init__(self) -> None:
        self.root = Row()
        self.dropped = 0
        # The row of each phase's latest execution, by path and name; and by both joined, for those below it.
        self._latest: dict[tuple[str, str], Row] = {}
        self._holders: dict[str, Row] = {}
        self._count = 0
        self._ended = 0

    def apply(self, event: AnyEvent) -> None:
        """Takes the next event of the run."""
        match event:
            case RunStart():
                self.root.name = event.run_label or event.run_id
                self.root.started_ms = event.ts
                self.root.group.word = event.kind
            case RunEnd():
                self._end_run(event)
            case LoopStart() | LoopEnd() | TeamStart() | TeamEnd():
                self._note_group(event)
            case _:
                row = self._row_of(event)
                if row is not None and (row.ended_ms is None or isinstance(event, Retry)):
                    self._update(row, event)

    def _row_of(self, event: AnyEvent) -> Row | None:
        name = phase_of(event)
        if not name:
            return None
        row = self._latest.get((event.path or "", name))
        if row is None or _begins_anew(row, event):
            return self._open(event, name, before=row)
        return row

    def _open(self, event: AnyEvent, name: str, *, before: Row | None) -> Row:
        if before is not None and before.ended_ms is None:  # its end is among the lines that a stopped terminal lost
            self._end(before, Ending("stopped", "ended"), event.ts)
        parent = self._holders.get(event.path or "", self.root)
        kind = (event.phase_kind if isinstance(event, OwnKind) else event.kind) or ""
        if kind in ("team", "post"):
            self._add_skipped(parent, event)
        row = Row(path=event.path or "", name=name, kind=kind, iteration=event.iteration or 0, started_ms=event.ts)
        if kind == "loop":
            parent.group.iteration = row.iteration
        self._add(parent, row)
        return row

    def _add(self, parent: Row, row: Row) -> None:
        row.parent = parent
        parent.children.append(row)
        self._latest[row.path, row.name] = row
        self._holders[row.full_name] = row
        self._count += 1
        if self._count > ROW_LIMIT:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        ended = [row for row in self.root.walk() if row.ended_ms is not None and not row.children]
        if ended:
            self._remove(min(ended, key=lambda row: row.ended_order))
            self.dropped += 1

    def _remove(self, row: Row) -> None:
        if row.parent is not None:
            row.parent.children.remove(row)
        self._count -= 1
        if self._latest.get((row.path, row.name)) is row:
            del self._latest[row.path, row.name]
        if self._holders.get(row.full_name) is row:
            del self._holders[row.full_name]

    def _update(self, row: Row, event: AnyEvent) -> None:
        match event:
            case SessionStart() | PhaseStart() if row.own_state == "retrying":
                row.own_state, row.word, row.detail = "running", "starting", ""
            case AgentStatus():
                row.word, row.detail = event.phase or "", (event.label or "")[:TEXT_LIMIT_CHARS]
            case MessageChunk():
                row.say(message_text(event))
            case ToolCall() | ToolCallUpdate() if event.title:
                row.show(event.title)
            case PermissionRequest() if event.resolver != "automatic":
                row.asked.add(event.request_id)
                row.show(event.question or event.tool)
            case PermissionResponse():
                row.asked.discard(event.request_id)
            case Error():
                row.show(event.message)
            case TurnEnd():
                _end_turn(row, event)
            case Retry():
                _begin_retry(row, event)
            case PhaseEnd():
                self._end_phase(row, event)
            case _:
                pass

    def _end_phase(self, row: Row, event: PhaseEnd) -> None:
        if row.parent is not None:  # in the place of what an attempt before it said
            row.parent.group.skips[row.name] = (event.skips or [])[:ROW_LIMIT]
        self._end(row, ending_of(event), event.ts)

    def _end(self, row: Row, ending: Ending, ts: int) -> None:
        self._ended += 1
        row.ended_ms, row.ended_order = ts, self._ended
        row.asked.clear()
        row.own_state, row.word, row.detail = ending.state, ending.word, ending.detail
        if row.kind == "team" and row.parent is not None:
            row.parent.group.members_done += ending.state != "skipped"
            row.parent.group.members_skipped += ending.state == "skipped"

    def _add_skipped(self, parent: Row, event: AnyEvent) -> None:
        known = {row.name.casefold() for row in parent.children}
        for name in (name for names in parent.group.skips.values() for name in names):
            if name.casefold() not in known:
                known.add(name.casefold())
                row = Row(path=event.path or "", name=name, kind="team", started_ms=event.ts)
                self._add(parent, row)
                self._end(row, Ending("skipped", "skipped"), event.ts)
        parent.group.skips.clear()

    def _note_group(self, event: LoopStart | LoopEnd | TeamStart | TeamEnd) -> None:
        holder = self._holders.get(event.path or "", self.root)
        match event:
            case LoopStart():
                holder.word = "working"
                holder.group = Group(word="loop", max_iterations=event.max_iterations)
            case TeamStart():
                holder.word = "working"
                holder.group = Group(word="team", members=event.team_member_count)
            case LoopEnd() | TeamEnd():
                self._add_skipped(holder, event)
                holder.group.exit_reason = event.exit_reason

    def _end_run(self, event: RunEnd) -> None:
        for row in [row for row in self.root.walk() if row.ended_ms is None]:
            self._end(row, Ending("stopped", "ended", event.stop_reason), event.ts)
        self.root.ended_ms = event.ts


def phase_of(event: AnyEvent) -> str:
    """The name of the phase that an event belongs to, empty if there is none."""
    return (event.run_phase if isinstance(event, AgentStatus) else event.phase) or ""


def ending_of(event: PhaseEnd) -> Ending:
    """What the end of a phase's attempt is called."""
    if event.abort_marker is True:
        return Ending("stopped", "aborted", event.abort_marker_label or "")
    if event.stop_reason in ("blocked", "cancelled"):
        return Ending("stopped", event.stop_reason)
    if event.exit_code:
        return Ending("failed", "failed", event.stop_reason)
    if event.exit_marker is True:
        return Ending("clean", "done", f"exit: {event.exit_marker_label}" if event.exit_marker_label else "exit")
    return Ending("clean", "done", "" if event.stop_reason == "end_turn" else event.stop_reason)


class _Content(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""


_decode_content: Final = msgspec.json.Decoder(_Content).decode


def message_text(event: MessageChunk) -> str:
    """The text of a message chunk as it came, empty if it is something else."""
    try:
        return _decode_content(event.content).text
    except msgspec.DecodeError:
        return ""


def _begins_anew(row: Row, event: AnyEvent) -> bool:
    is_start = isinstance(event, SessionStart | PhaseStart)
    is_other_iteration = (event.iteration or 0) != row.iteration
    return (is_start and is_other_iteration) if row.ended_ms is None else (is_start or is_other_iteration)


def _begin_retry(row: Row, event: Retry) -> None:
    if row.ended_ms is not None and row.kind == "team" and row.parent is not None:
        row.parent.group.members_done -= 1
    row.ended_ms = None
    row.own_state, row.word = "retrying", "retrying"
    wait = format_duration(event.delay_ms / 1000)
    row.detail = f"attempt {event.attempt or '?'} in {wait} ({event.retry_class})"


def _end_turn(row: Row, event: TurnEnd) -> None:
    row.asked.clear()
    if event.usage is not UNSET:
        row.tokens += event.usage.total_tokens
    if event.error is not UNSET:
        row.show(event.error)
