"""What the tools answer with: snapshots in the words of a jockey, bounded, with nothing in them that is not known."""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from avenor.protocol.snapshot import PendingPermission, Snapshot

View = Literal["lifecycle", "full"]
Status = Literal["running", "waiting", "done", "failed", "timeout", "killed", "blocked"]

_OUTCOMES: Final[dict[str, Status]] = {
    "DONE": "done",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "KILLED": "killed",
    "BLOCKED": "blocked",
}

# What of a snapshot the view `lifecycle` and the resources are made of.
LIFECYCLE: Final[tuple[str, ...]] = (
    "run_id",
    "runtime_id",
    "label",
    "kind",
    "dir",
    "status",
    "outcome",
    "stop_reason",
    "reason",
    "started_at",
    "ended_at",
    "pending_permission",
    "permission",
)

OptText = str | UnsetType
OptNumber = int | UnsetType


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a permission request."""

    option_id: str
    kind: str
    name: str


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A permission that an agent asks for and nobody has settled."""

    request_id: str
    tool: str
    question: str
    options: list[Choice]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as `avenor_status` and `avenor_list` show it; from `agent` on only in the view `full`.

    Attributes:
        status: running; waiting (for a permission, or for a place to run); done, failed, timeout, killed, blocked.
        state: queued, starting, running, idle (done, its agent is kept for a follow-up) or ended.
        started_at: This and `ended_at` are Unix milliseconds.
        silent_for_ms: Since the last sign of life of a run that is at work.
        output_excerpt: The beginning of the last turn's output; `avenor_result` has all of it.
    """

    run_id: str
    runtime_id: OptText = UNSET
    label: OptText = UNSET
    kind: str
    status: Status
    state: Literal["queued", "starting", "running", "idle", "ended"]
    stop_reason: OptText = UNSET
    reason: OptText = UNSET
    started_at: OptNumber = UNSET
    ended_at: OptNumber = UNSET
    pending_permission: Pending | UnsetType = UNSET
    agent: OptText = UNSET
    model: OptText = UNSET
    backend: OptText = UNSET
    repo_dir: OptText = UNSET
    session_id: OptText = UNSET
    agent_phase: OptText = UNSET
    agent_phase_label: OptText = UNSET
    phases: list[dict[str, Any]] | UnsetType = UNSET
    permissions: list[Pending] | UnsetType = UNSET
    queued_prompts: OptNumber = UNSET
    silent_for_ms: OptNumber = UNSET
    retry_attempt: OptNumber = UNSET
    exit_code: OptNumber = UNSET
    usage: dict[str, Any] | UnsetType = UNSET
    output_excerpt: OptText = UNSET
    owner: OptText = UNSET
    log_file: OptText = UNSET
    sentinel_file: OptText = UNSET
    parent_id: OptText = UNSET
    children: list[str] | UnsetType = UNSET
    left_processes: list[str] | UnsetType = UNSET


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_list`: the newest last."""

    runs: list[Run]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_spawn`."""

    run_id: str
    runtime_id: str
    label: str | None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_result`: with `ready` false the run goes on, and `output` is null."""

    ready: bool
    status: Status
    output: str | None
    stop_reason: OptText = UNSET
    reason: OptText = UNSET
    timed_out: bool | UnsetType = UNSET
    pending_permission: Pending | UnsetType = UNSET


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_answer_permission`: `request_id` is settled; a `pending_permission` is the next one."""

    accepted: bool
    request_id: str
    pending_permission: Pending | UnsetType = UNSET


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_prompt`, `avenor_interrupt`: `queued` prompts go to the agent before this one."""

    accepted: bool
    queued: OptNumber = UNSET


class FollowedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_follow_up`: with `resumed` the session goes on in a new run, which these ids name."""

    run_id: str
    runtime_id: str
    label: str | None
    resumed: bool


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_events`: give `next_after_seq` as `after_seq` for what comes next; `complete`: nothing more is there."""

    events: list[dict[str, Any]]
    latest_seq: int
    next_after_seq: int
    complete: bool


class ToolUse(msgspec.Struct, kw_only=True):
    """One tool call of an agent; `status` is pending, in_progress, completed or failed."""

    title: str
    kind: str
    status: str


class Speaker(msgspec.Struct, kw_only=True):
    """One session of a run: its last prompt, and what has come since. `text` and `prompt` are cut at their beginning.

    Attributes:
        phase: The phase of a loop or team.
        plan: The agent's plan, as it gave it.
        tools: The last ones.
    """

    session_id: OptText = UNSET
    phase: OptText = UNSET
    prompt: OptText = UNSET
    text: str = ""
    tools: list[ToolUse] = []
    plan: list[dict[str, Any]] | UnsetType = UNSET


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_inspect`; `looked_at_seqs`: the first and the last event that it was made from."""

    run_id: str
    label: OptText = UNSET
    status: Status
    agent_phase: OptText = UNSET
    agent_phase_label: OptText = UNSET
    sessions: list[Speaker]
    permissions: list[Pending]
    looked_at_seqs: list[int]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_cancel`: `left` names processes that could not be ended, `unverified` why nothing could be proven."""

    ok: bool
    left: list[str]
    status: Status
    unverified: OptText = UNSET


class ShuttingDown(msgspec.Struct, frozen=True, kw_only=True):
    """`avenor_shutdown`."""

    shutting_down: bool


def status_of(snapshot: Snapshot) -> Status:
    """The one word for how a run is.

    A parked run is done: its turn ended clean, and that it would take another prompt is no business that is left.
    """
    if snapshot.status == "ended":
        return _OUTCOMES.get(snapshot.outcome or "", "failed")
    if snapshot.status == "idle":
        return "done"
    if snapshot.pending_permission or snapshot.status == "queued":
        return "waiting"
    return "running"


def pending_of(permission: PendingPermission | None) -> Pending | UnsetType:
    """A permission request in the words of the tools."""
    if permission is None:
        return UNSET
    options = [Choice(option_id=o.option_id, kind=o.kind, name=o.name) for o in permission.options]
    return Pending(
        request_id=permission.request_id, tool=permission.tool, question=permission.question, options=options
    )


def run_of(snapshot: Snapshot, view: View) -> Run:
    """A run in one of the two views."""
    run = Run(
        run_id=snapshot.run_id,
        runtime_id=_known(snapshot.runtime_id),
        label=_known(snapshot.label),
        kind=snapshot.kind,
        status=status_of(snapshot),
        state=snapshot.status,
        stop_reason=_known(snapshot.stop_reason),
        reason=_known(snapshot.reason),
        started_at=_known(snapshot.started_at),
        ended_at=_known(snapshot.ended_at),
        pending_permission=pending_of(snapshot.permission),
    )
    return run if view == "lifecycle" else msgspec.structs.replace(run, **_details(snapshot))


def _details(snapshot: Snapshot) -> dict[str, Any]:
    details: dict[str, Any] = {
        "agent": snapshot.agent,
        "model": snapshot.model,
        "backend": snapshot.backend,
        "repo_dir": snapshot.dir,
        "session_id": snapshot.session_id,
        "agent_phase": snapshot.phase,
        "agent_phase_label": snapshot.phase_label,
        "phases": [msgspec.to_builtins(phase) for phase in snapshot.phases],
        "permissions": [pending_of(permission) for permission in snapshot.permissions],
        "queued_prompts": snapshot.queued_prompts,
        "silent_for_ms": snapshot.silent_for_ms,
        "retry_attempt": snapshot.retry_attempt,
        "exit_code": snapshot.exit_code,
        "usage": msgspec.to_builtins(snapshot.usage),
        "output_excerpt": snapshot.final_output,
        "owner": snapshot.owner,
        "log_file": snapshot.on_event,
        "sentinel_file": snapshot.sentinel_file,
        "parent_id": snapshot.parent_id,
        "children": snapshot.children,
        "left_processes": snapshot.left_processes,
    }
    return {name: value for name, value in details.items() if value not in (None, [])}


def _known(value: Any) -> Any:
    return UNSET if value is None else value
