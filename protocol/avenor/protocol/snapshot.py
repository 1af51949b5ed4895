"""The state of a run as a fold over its events, and the snapshot that `status` and `list` show.

`Fold` is the one reducer: runtime, supervisor, readers of a log and clients all use it. It is fed lines in `seq` order
and decodes only those that change more than the counters, so that a supervisor can fold what it passes on.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from avenor.protocol.events import (
    AgentStatus,
    AnyEvent,
    EventHead,
    LoopEnd,
    LoopStart,
    PermissionOption,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    PhaseStart,
    PromptQueued,
    Retry,
    RunEnd,
    RunEnding,
    RunKind,
    RunResumed,
    RunStart,
    SessionEnd,
    SessionStart,
    TeamEnd,
    TeamStart,
    TurnEnd,
    TurnStart,
    Usage,
    decode_event,
)
from avenor.protocol.manifest.events import ManifestEnd, ManifestStart

RunStatus = Literal["queued", "starting", "running", "idle", "ended"]
PhaseProgress = Literal["running", "done", "failed", "aborted"]
TurnState = Literal["none", "running", "permission", "retrying", "ended"]

# A snapshot is for looking; `result` has the whole text. Long enough for a paragraph of every runtime in a list of 100.
OUTPUT_LIMIT_CHARS: Final = 2000


class PendingPermission(msgspec.Struct, frozen=True, kw_only=True):
    """A permission request that nobody has settled yet."""

    request_id: str
    tool: str
    question: str
    options: list[PermissionOption]
    resolver: str
    session_id: str | None = None
    requested_at: int = 0


class PhaseState(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a loop or team, or one task of a manifest."""

    path: str | None
    name: str
    kind: str | None
    iteration: int
    state: PhaseProgress
    session_id: str | None


class Snapshot(msgspec.Struct, kw_only=True):
    """A run at one moment (contract, part 6). Every key is always there.

    Attributes:
        status: queued, starting, running, idle (parked, takes prompts) or ended.
        phase: What the agent is at: thinking, working, waiting, done.
        outcome: DONE, BLOCKED, TIMEOUT, KILLED or FAILED; None until there is one.
        silent_for_ms: Since the last event of a running turn; 0 while a human decides.
        started_at: This and the other times are Unix milliseconds.
    """

    runtime_id: str | None = None
    run_id: str = ""
    label: str | None = None
    kind: RunKind = "single"
    session_id: str | None = None
    agent: str | None = None
    model: str | None = None
    backend: str = ""
    dir: str = ""
    status: RunStatus = "starting"
    phase: str | None = None
    phase_label: str | None = None
    phases: list[PhaseState] = []
    turn_state: TurnState = "none"
    pending_permission: bool = False
    permission: PendingPermission | None = None
    permissions: list[PendingPermission] = []
    latest_seq: int = 0
    usage: Usage | None = None
    retry_attempt: int = 0
    max_retries: int = 0
    queued_prompts: int = 0
    silent_for_ms: int = 0
    started_at: int | None = None
    updated_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    stop_reason: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    pid: int | None = None
    owner: str | None = None
    on_event: str | None = None
    sentinel_file: str | None = None
    final_output: str | None = None
    final_output_truncated: bool = False
    parent_id: str | None = None
    children: list[str] = []
    depth: int = 0
    left_processes: list[str] = []

    @property
    def is_settled(self) -> bool:
        """Whether nothing goes on: ended, or parked with nothing queued."""
        return self.status == "ended" or self.status == "idle"

    @property
    def wants_attention(self) -> bool:
        """Whether somebody should look: settled, or asking for a permission."""
        return self.is_settled or self.pending_permission


# Decoding these for the fold would change nothing but the counters.
COUNTED_ONLY: Final = frozenset(
    {
        "agent.message_chunk",
        "agent.thought_chunk",
        "user.message_chunk",
        "tool.call",
        "tool.call_update",
        "session.plan",
        "session.mode",
        "session.commands",
        "session.usage",
        "session.info",
        "session.update",
        "agent.stderr",
        "agent.noise",
        "avenor.error",
        "avenor.task",
        "avenor.lease",
        "avenor.budget",
        "avenor.authority",
        "avenor.result",
        "avenor.join",
        "avenor.candidate",
        "avenor.receipt",
        "avenor.verdict",
        "avenor.plan",
        "avenor.handoff",
    }
)


class Fold:
    """Keeps a snapshot in step with a run's events.

    Args:
        base: What is known before the first event (ids, paths, pid). The fold owns it from here on; others may set the
            members that no event carries (`pid`, `owner`, `children`).

    Attributes:
        ending: What the run will come to, once something ends it from outside its work.
        resumed_at: When processes of it were replaced by new ones (Unix milliseconds).
    """

    def __init__(self, base: Snapshot) -> None:
        self.state = base
        self.ending: RunEnding | None = None
        self.resumed_at: list[int] = []
        self._parks = False
        # The turns that run now, by what tells parallel sessions apart.
        self._turns: set[tuple[object, object, object]] = set()

    def apply_line(self, head: EventHead, line: bytes) -> None:
        """Takes one event line, whose head the caller has peeked at."""
        if head.event in COUNTED_ONLY:
            self.count(head.seq, head.ts)
            return
        try:
            event = decode_event(line)
        except msgspec.DecodeError:  # from a newer version: counted, and passed on by the caller all the same
            self.count(head.seq, head.ts)
            return
        self.apply(event)

    def count(self, seq: int, ts: int) -> None:
        """Takes an event that changes nothing but the counters."""
        self.state.latest_seq = seq
        self.state.updated_at = ts

    def apply(self, event: AnyEvent) -> None:
        """Takes one decoded event."""
        self.count(event.seq, event.ts)
        if isinstance(event, TurnStart):
            self._turns.add(_session_of(event))
        elif isinstance(event, TurnEnd):
            self._turns.discard(_session_of(event))
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self.state, event)
        if isinstance(event, RunStart):
            self._parks = event.parks
        elif isinstance(event, TurnEnd):
            self._note_turn_end(event)
        elif isinstance(event, RunResumed):
            self._turns.clear()
            self.resumed_at.append(event.ts)
        elif isinstance(event, RunEnding):
            self.ending = event

    def snapshot(self, now_ms: int) -> Snapshot:
        """The state at `now_ms` (Unix milliseconds); valid until the next event, encode it at once."""
        state = self.state
        state.silent_for_ms = 0
        if state.status in ("starting", "running") and not state.permissions and state.updated_at is not None:
            state.silent_for_ms = max(0, now_ms - state.updated_at)
        return state

    def _note_turn_end(self, event: TurnEnd) -> None:
        if self._turns:
            self.state.turn_state = "permission" if self.state.permissions else "running"
        # Any other run goes on to its end by itself, so that a clean turn says nothing about it yet.
        if self._parks and event.stop_reason == "end_turn" and self.state.queued_prompts == 0:
            self.state.status = "idle"
            self.state.outcome, self.state.exit_code = "DONE", 0


def _run_start(state: Snapshot, event: RunStart) -> None:
    state.run_id = event.run_id
    state.label = _or_none(event.run_label)
    state.kind = event.kind
    state.backend = event.backend
    state.dir = event.dir
    state.status = "starting"
    state.started_at = event.ts


def _run_resumed(state: Snapshot, _event: RunResumed) -> None:
    _set_permissions(state, [])  # whoever asked is gone
    if state.status != "idle":
        state.status = "starting"
        state.turn_state = "none"


def _session_start(state: Snapshot, event: SessionStart) -> None:
    state.session_id = _or_none(event.session_id)
    state.model = event.model
    state.agent = event.agent
    state.status = "running"


def _prompt_queued(state: Snapshot, event: PromptQueued) -> None:
    state.queued_prompts = event.queued
    if state.status == "idle":  # an accepted prompt ends the parking, even before it has gone to the agent
        state.status = "running"
        state.outcome = state.stop_reason = state.reason = state.exit_code = None


def _turn_start(state: Snapshot, event: TurnStart) -> None:
    state.status = "running"
    state.turn_state = "running"
    state.queued_prompts = event.queued
    state.outcome = state.stop_reason = state.reason = state.exit_code = None


def _agent_status(state: Snapshot, event: AgentStatus) -> None:
    state.phase = _or_none(event.phase)
    state.phase_label = _or_none(event.label)


def _permission_request(state: Snapshot, event: PermissionRequest) -> None:
    if event.resolver == "automatic":  # settled in the same moment: nobody is waited for
        return
    pending = PendingPermission(
        request_id=event.request_id,
        tool=event.tool,
        question=event.question,
        options=event.options,
        resolver=event.resolver,
        session_id=_or_none(event.session_id),
        requested_at=event.ts,
    )
    # The same request again means that another resolver has it now.
    kept = [p for p in state.permissions if p.request_id != event.request_id]
    _set_permissions(state, [*kept, pending])


def _permission_response(state: Snapshot, event: PermissionResponse) -> None:
    _set_permissions(state, [p for p in state.permissions if p.request_id != event.request_id])


def _set_permissions(state: Snapshot, pending: list[PendingPermission]) -> None:
    state.permissions = pending
    state.permission = pending[0] if pending else None
    state.pending_permission = bool(pending)
    if state.turn_state in ("running", "permission"):
        state.turn_state = "permission" if pending else "running"


def _turn_end(state: Snapshot, event: TurnEnd) -> None:
    state.turn_state = "ended"
    state.stop_reason = event.stop_reason
    if event.usage is not UNSET:
        state.usage = event.usage if state.usage is None else state.usage.plus(event.usage)
    if state.kind != "manifest":  # a member may go on after the end of all was decided, and what it says is its own
        _set_output(state, event.final_output)


def _session_end(state: Snapshot, event: SessionEnd) -> None:
    if event.left_processes is not UNSET:
        state.left_processes = event.left_processes


def _set_output(state: Snapshot, output: Any) -> None:
    if output is not UNSET:
        state.final_output = output[:OUTPUT_LIMIT_CHARS]
        state.final_output_truncated = len(output) > OUTPUT_LIMIT_CHARS


def _session_of(event: AnyEvent) -> tuple[object, object, object]:
    return _or_none(event.path), _or_none(event.phase), _or_none(event.session_id)


def _course_start(state: Snapshot, _event: LoopStart | TeamStart | ManifestStart) -> None:
    state.status = "running"


def _course_end(state: Snapshot, event: LoopEnd | TeamEnd | ManifestEnd) -> None:
    _set_output(state, event.final_output)


def _phase_start(state: Snapshot, event: PhaseStart) -> None:
    entry = PhaseState(
        path=_or_none(event.path),
        name=_or_none(event.phase) or "",
        kind=_or_none(event.kind),
        iteration=0 if event.iteration is UNSET else event.iteration,
        state="running",
        session_id=_or_none(event.session_id),
    )
    state.phases = [*(p for p in state.phases if not _is_same(p, entry)), entry]


def _phase_end(state: Snapshot, event: PhaseEnd) -> None:
    entry = PhaseState(
        path=_or_none(event.path),
        name=_or_none(event.phase) or "",
        kind=_or_none(event.kind),
        iteration=0 if event.iteration is UNSET else event.iteration,
        state=_progress(event),
        session_id=_or_none(event.session_id),
    )
    state.phases = [entry if _is_same(p, entry) else p for p in state.phases]


def _progress(event: PhaseEnd) -> PhaseProgress:
    if event.abort_marker is True:
        return "aborted"
    return "done" if event.exit_code == 0 else "failed"


def _is_same(one: PhaseState, other: PhaseState) -> bool:
    return (one.path, one.name) == (other.path, other.name)


def _retry(state: Snapshot, event: Retry) -> None:
    state.status = "running"
    state.turn_state = "retrying"
    state.retry_attempt = 0 if event.attempt is UNSET else event.attempt
    state.max_retries = event.max_retries


def _run_end(state: Snapshot, event: RunEnd) -> None:
    _set_permissions(state, [])
    # Of a runtime that was lost nobody has told how its phases ended; they do not run on.
    state.phases = [replace(p, state="failed") if p.state == "running" else p for p in state.phases]
    state.status = "ended"
    state.turn_state = "ended" if state.turn_state != "none" else "none"
    state.queued_prompts = 0
    state.ended_at = event.ts
    state.outcome = event.status
    state.exit_code = event.exit_code
    state.stop_reason = event.stop_reason
    state.reason = _or_none(event.reason)


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


_HANDLERS: dict[type, Any] = {
    RunStart: _run_start,
    RunResumed: _run_resumed,
    SessionStart: _session_start,
    PromptQueued: _prompt_queued,
    TurnStart: _turn_start,
    LoopStart: _course_start,
    TeamStart: _course_start,
    ManifestStart: _course_start,
    LoopEnd: _course_end,
    TeamEnd: _course_end,
    ManifestEnd: _course_end,
    AgentStatus: _agent_status,
    PermissionRequest: _permission_request,
    PermissionResponse: _permission_response,
    TurnEnd: _turn_end,
    SessionEnd: _session_end,
    PhaseStart: _phase_start,
    PhaseEnd: _phase_end,
    Retry: _retry,
    RunEnd: _run_end,
}
