"""Where a run was when its process was lost: what a new process needs to go on, read from the log of the old one.

The same log is folded into a snapshot for those who watch. Here it is folded into what was said: which phases have
ended, which were cut short, in which session, and what clients have said that no agent has heard yet.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from avenor.protocol.events import (
    AnyEvent,
    Event,
    LoopEnd,
    LoopStart,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    PhaseStart,
    PromptQueued,
    Retry,
    RunResumed,
    RunStart,
    SessionStart,
    TeamEnd,
    TeamStart,
    TurnEnd,
    TurnStart,
    decode_event,
)
from avenor.protocol.markers import Directive
from avenor.protocol.outcomes import ExitCode, exit_code_for
from avenor.protocol.snapshot import Fold
from avenor.runtimes.phase_marks import Scope
from avenor.runtimes.prompts import CONTINUE, Prompt
from avenor.runtimes.readings import Reading


class Key(NamedTuple):
    """Which conversation of a run: path, phase and iteration as its events carry them, empty for the run's own."""

    path: str
    phase: str
    iteration: int

    @classmethod
    def of(cls, scope: Scope, phase: str, iteration: int) -> "Key":
        """The conversation of a phase."""
        return cls(scope.path, phase, iteration)

    @property
    def inside(self) -> str:
        """The path of what is nested in this phase."""
        return f"{self.path}/{self.phase}" if self.path else self.phase


WHOLE: Final = Key("", "", 0)


class PastTalk:
    """One conversation, up to where the log ends.

    Attributes:
        attempt: The one that ran, or comes next.
        has_started: That attempt has a session.
        session_id: Of that session.
        has_history: A turn of it has ended.
        is_cut: A turn was running.
        was_interrupted: Another prompt was about to cut that turn short, or the waiting for the next attempt at it.
        is_retrying: The prompt that was sent last comes again.
        retry: What was told last of another attempt.
        prompt: What was sent last.
        last: How the last turn ended, None while another runs.
        directives: The markers of the attempt.
        queued: What clients have said, and the agent has not heard.
        sent: What they have said in this attempt.
        end: The end of the phase.
    """

    def __init__(self) -> None:
        self.attempt = 1
        self.has_started = False
        self.session_id = ""
        self.has_history = False
        self.is_cut = False
        self.was_interrupted = False
        self.is_retrying = False
        self.retry: Retry | None = None
        self.prompt: Prompt | None = None
        self.last: TurnEnd | None = None
        self.directives: list[Directive] = []
        self.queued: list[Prompt] = []
        self.sent: list[Prompt] = []
        self.end: PhaseEnd | None = None
        self._reading: Reading | None = None

    def wait_seconds(self, now_ms: int) -> float:
        """What is left of the wait for an attempt that has not begun; all of it at most, whatever the clock has done.

        Args:
            now_ms: Unix milliseconds.
        """
        if self.retry is None:
            return 0.0
        left_ms = self.retry.ts + self.retry.delay_ms - now_ms
        return min(max(left_ms, 0), self.retry.delay_ms) / 1000

    def begin_attempt(self, attempt: int) -> None:
        """Another attempt at a phase: it is told again what clients have said."""
        self.attempt = attempt
        self.has_started = self.has_history = self.is_cut = False
        self.session_id = ""
        self.last = None
        self.forget_said()

    def forget_said(self) -> None:
        """What was said in the attempt is lost with its session."""
        self._reading = None
        self.directives.clear()
        self.queued = [*self.sent, *self.queued]
        self.sent.clear()

    def accept(self, prompt: Prompt, keep_queue: bool | msgspec.UnsetType) -> None:
        """A client has said something."""
        if keep_queue is UNSET:
            self.queued.append(prompt)
            return
        # After a turn that has failed a prompt is taken only while another attempt is to follow.
        self.was_interrupted = self.is_cut or self.is_retrying or self._has_failed
        self.queued = [prompt, *(self.queued if keep_queue else [])]

    @property
    def _has_failed(self) -> bool:
        return self.last is not None and exit_code_for(self.last.stop_reason) == ExitCode.FAILED

    def open(self, session_id: str) -> None:
        """A session was opened."""
        if self.session_id not in ("", session_id):
            self.has_history = False
            self.forget_said()
        self.has_started = True
        self.session_id = session_id

    def send(self, prompt: Prompt) -> None:
        """A turn begins."""
        self.stop_reading()
        self.prompt, self.last = prompt, None
        self.is_cut, self.was_interrupted, self.is_retrying = True, False, False
        self._reading = Reading()
        if prompt in self.queued:
            self.queued.remove(prompt)
            self.sent.append(prompt)

    def finish(self, end: TurnEnd) -> None:
        """The turn has ended."""
        self.stop_reading()
        self.is_cut, self.last = False, end
        self.has_history = self.has_history or end.error is UNSET

    def read(self, event: Event) -> None:
        """Something has happened in the turn."""
        if self._reading is not None:
            self._reading.note(event)

    def stop_reading(self) -> None:
        """What has been read in the turn stays."""
        if self._reading is not None:
            self._reading.end()
            self.directives += self._reading.directives
            self._reading = None


class Past:
    """A run up to where its log ends.

    Args:
        fold: Takes the same events.

    Attributes:
        talks: What was said, by conversation.
        waiting: What clients have said, for whatever comes next.
        begun: The paths of the loops and teams that have begun.
        over: The ends of those that have ended.
        asked: The permission requests that nobody has settled, by id.
        used_ms: How long the run has worked since its time was last set back.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.talks: dict[Key, PastTalk] = {}
        self.waiting: list[Prompt] = []
        self.begun: set[str] = set()
        self.over: dict[str, LoopEnd | TeamEnd] = {}
        self.asked: dict[str, PermissionRequest] = {}
        self.used_ms = 0
        self._is_single = True
        self._is_shared = False
        self._since = 0

    @property
    def whole(self) -> PastTalk:
        """The conversation of a single run."""
        return self.talks.setdefault(WHOLE, PastTalk())

    @property
    def is_parked(self) -> bool:
        """Whether the run waited for a prompt."""
        return self.fold.state.status == "idle"

    @property
    def final_output(self) -> str | None:
        """What a single run has said last, complete."""
        end = self.whole.last
        return None if end is None or end.final_output is UNSET else end.final_output

    def take(self, event: AnyEvent) -> None:
        """Takes the next event."""
        self._count_time(event)
        self.fold.apply(event)
        match event:
            case RunStart():
                self._is_single = event.kind == "single"
            case RunResumed():
                for talk in self.talks.values():
                    talk.stop_reading()
            case PromptQueued():
                self._accept(event)
            case SessionStart():
                self._talk(event).open(_or_empty(event.session_id))
            case TurnStart():
                self._send(event)
            case TurnEnd():
                self._talk(event).finish(event)
            case Retry():
                self._retry(event)
            case PhaseStart():
                self._begin_phase(event)
            case PhaseEnd():
                if event.retried is UNSET:
                    self._talk(event).end = event
            case LoopStart() | TeamStart():
                self.begun.add(_or_empty(event.path))
            case LoopEnd() | TeamEnd():
                self.over[_or_empty(event.path)] = event
            case _:
                self._read(event)

    def finish(self) -> None:
        """There are no more events."""
        for talk in self.talks.values():
            talk.stop_reading()
        self.used_ms += max(0, (self.fold.state.updated_at or 0) - self._since)

    def describe(self) -> tuple[str, str]:
        """What the loss has cut short, and where the run goes on, for people."""
        if self._is_single:
            return self._describe_single()
        unfinished = [key for key, talk in self.talks.items() if talk.end is None and key.inside not in self.begun]
        cut = [key for key in unfinished if self.talks[key].is_cut]
        return _names(cut) or "nothing", _names(unfinished) or "the next phase"

    def _describe_single(self) -> tuple[str, str]:
        talk = self.whole
        cut = "a turn" if talk.is_cut else "nothing"
        if self.is_parked:
            return cut, "parked"
        return cut, f"session {talk.session_id}" if talk.session_id else "from the beginning"

    def _read(self, event: AnyEvent) -> None:
        if isinstance(event, PermissionRequest):
            self.asked[event.request_id] = event
        elif isinstance(event, PermissionResponse):
            self.asked.pop(event.request_id, None)
        if (talk := self.talks.get(_key(event))) is not None:
            talk.read(event)

    def _talk(self, event: Event) -> PastTalk:
        return self.talks.setdefault(_key(event), PastTalk())

    def _accept(self, event: PromptQueued) -> None:
        prompt = Prompt(text=event.text, source=event.source)
        if self._is_single or event.phase is not UNSET:
            self._talk(event).accept(prompt, event.keep_queue)
            return
        if self._is_shared:  # what waited before has gone to every member of a team
            self.waiting, self._is_shared = [], False
        self.waiting = self.waiting if event.keep_queue is UNSET or event.keep_queue else []
        self.waiting.insert(len(self.waiting) if event.keep_queue is UNSET else 0, prompt)

    def _send(self, event: TurnStart) -> None:
        talk = self._talk(event)
        if self._is_single and not talk.is_retrying and event.source != CONTINUE.source:
            talk.attempt = 1  # at a prompt of its own; those of a phase share its attempts
        talk.send(Prompt(text=event.text, source=event.source))

    def _retry(self, event: Retry) -> None:
        talk = self._talk(event)
        talk.retry = event
        attempt = 1 if event.attempt is UNSET else event.attempt
        if self._is_single:
            talk.attempt, talk.is_retrying, talk.is_cut = attempt, True, False
        else:
            talk.begin_attempt(attempt)

    def _begin_phase(self, event: PhaseStart) -> None:
        key = _key(event)
        self._forget(key.inside)
        talk = self._talk(event)
        talk.has_started = talk.has_started or event.session_id is not UNSET
        talk.session_id = talk.session_id or _or_empty(event.session_id)
        if event.session_id is UNSET:
            return  # a nested loop or team, or an attempt that never got a session
        if event.kind == "team":
            talk.queued = [*self.waiting, *talk.queued]
            self._is_shared = True
        else:
            talk.queued = [*(() if self._is_shared else self.waiting), *talk.queued]
            self.waiting, self._is_shared = [], False

    def _forget(self, path: str) -> None:
        """A loop or team at this path begins, again perhaps: what it came to before counts no more."""
        for key in [key for key in self.talks if _is_within(key.path, path)]:
            del self.talks[key]
        self.begun = {each for each in self.begun if not _is_within(each, path)}
        self.over = {each: end for each, end in self.over.items() if not _is_within(each, path)}

    def _count_time(self, event: AnyEvent) -> None:
        if isinstance(event, RunResumed):  # while there was no process nobody worked
            self.used_ms += max(0, (self.fold.state.updated_at or 0) - self._since)
            self._since = event.ts
        elif isinstance(event, RunStart) or (isinstance(event, PromptQueued) and self.is_parked):
            self.used_ms, self._since = 0, event.ts


def read_past(lines: Iterable[bytes], fold: Fold) -> Past | None:
    """The past that a log tells of; None of one without events.

    Args:
        lines: Its lines, in order.
        fold: What is known of the run otherwise; takes all events.
    """
    past = Past(fold)
    has_events = False
    for line in lines:
        try:
            event = decode_event(line)
        except msgspec.DecodeError:  # of another version, or damaged
            continue
        has_events = True
        past.take(event)
    past.finish()
    return past if has_events else None


def _key(event: Event) -> Key:
    phase = event.phase
    if event.iteration is UNSET:  # no event of a phase, though what an agent is at is called its phase too
        return WHOLE
    return Key(_or_empty(event.path), _or_empty(phase), event.iteration)


def _names(phases: Iterable[Key]) -> str:
    return ", ".join(f"phase {key.inside}" for key in phases)


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}/")


def _or_empty(value: str | msgspec.UnsetType) -> str:
    return "" if value is UNSET else value
