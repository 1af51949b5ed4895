"""The events of a manifest run. Each names the field of the manifest that permits it (`permitted_by`).

Together they are the run's journal: `state.py` folds them into all that the runner knows, its ledger included.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from avenor.protocol.event_base import KindStamped, OptInt, OptStr, OwnKind
from avenor.protocol.manifest.amounts import Amounts, Bounded, Limits
from avenor.protocol.manifest.joining import Conflict, Duplicate, Rejected
from avenor.protocol.manifest.records import Result, VerdictWord

TaskWord = Literal[
    "created",
    "started",
    "submitted",
    "done",
    "failed",
    "missing",
    "lost",
    "effect_unknown",
    "reconciled",
    "cancelled",
    "timed_out",
]
EndWord = Literal["accepted", "rejected", "needs_human", "cancelled", "timed_out", "budget_exhausted"]
MeterSource = Literal["manifest", "gateway", "agent", "broker", "clock"]
ResultStatus = Literal["accepted", "stale", "late", "invalid"]
CountedAs = Literal["accepted", "repair", "rejected", "needs_human"]


class Correlation(Struct, frozen=True, kw_only=True):
    """Two members whose judgement is not independent.

    Attributes:
        shared: What they have in common: `family`, `instructions`, `context`.
        value: Which one it is.
    """

    members: list[str]
    shared: str
    value: str


class ManifestStart(KindStamped, kw_only=True, tag="avenor.manifest.start"):
    """The manifest was bound to this machine; `revision` is the commit that `source_revision` names.

    Attributes:
        sandbox: `none` only because the caller said `--unsandboxed`.
        metering: By member, who counts its model calls and tokens.
        deadline_ms: When the whole has to have ended, in Unix milliseconds, clean-up included.
    """

    team_id: str
    source_revision: str
    revision: str
    plan_epoch: int
    sandbox: Literal["bubblewrap", "none"]
    metering: dict[str, Literal["gateway", "agent"]]
    limits: Limits
    deadline_ms: int
    correlations: list[Correlation] = field(default_factory=list[Correlation])
    permitted_by: str = "run"


class TaskEvent(KindStamped, kw_only=True, tag="avenor.task"):
    """A task, or an attempt at it, has come to a new state.

    Attributes:
        member: The declared member that does it, or whose contract it has.
        parent_task: Who started it, if that was another task.
        waits_for: Of `created`: the tasks and joins that have to be done first.
        task_depth: 0 for a task that the scheduler starts, 1 for its children.
        contract: What it has to do, where somebody said so (`create_task`, `start_worker`).
        paths: What it was assigned.
        revision: The commit that its worktree is cut from.
        deadline_ms: When the attempt has to have ended, in Unix milliseconds.
        lease_until_ms: Until when it counts as alive without another word.
        partial: Where an attempt that came to nothing has left something: a ref.
    """

    task_id: str
    state: TaskWord
    permitted_by: str
    member: str
    plan_epoch: int
    attempt_id: OptStr = UNSET
    parent_task: OptStr = UNSET
    waits_for: list[str] | UnsetType = UNSET
    task_depth: int = 0
    contract: OptStr = UNSET
    paths: list[str] | UnsetType = UNSET
    revision: OptStr = UNSET
    deadline_ms: OptInt = UNSET
    lease_until_ms: OptInt = UNSET
    reason: OptStr = UNSET
    partial: OptStr = UNSET


class LeaseEvent(KindStamped, kw_only=True, tag="avenor.lease"):
    """An attempt is alive: its agent's process was seen."""

    attempt_id: str
    until_ms: int
    permitted_by: str = "cancellation.worker_timeout"


class BudgetEvent(KindStamped, kw_only=True, tag="avenor.budget"):
    """An entry in the ledger.

    Attributes:
        account: A task's id, or `run`.
        parent: Of `reserve`: whose rest it is taken from.
        limits: Of `reserve`: how much.
        amounts: Of `debit`: what was used. Of `release`: what went back to the parent.
        rest: What the account may still use afterwards.
        unit: Of `warn` and `block`.
        source: Who has counted.
    """

    op: Literal["reserve", "debit", "release", "warn", "block"]
    account: str
    source: MeterSource
    permitted_by: str
    rest: Limits
    parent: OptStr = UNSET
    limits: Limits | UnsetType = UNSET
    amounts: Amounts | UnsetType = UNSET
    unit: Bounded | UnsetType = UNSET
    attempt_id: OptStr = UNSET
    reason: OptStr = UNSET


class AuthorityEvent(KindStamped, kw_only=True, tag="avenor.authority"):
    """A tool, or what it has done, was held against what the member may do.

    Attributes:
        decision: `violation` is what was done already: a tool that did not ask, a write that the diff has shown.
        permitted_by: The field that decided, also where it did not permit.
    """

    attempt_id: str
    tool: str
    tool_kind: str
    decision: Literal["allow", "deny", "violation"]
    permitted_by: str
    detail: str = ""


class ResultEvent(KindStamped, kw_only=True, tag="avenor.result"):
    """A member has handed over its result; what is not `accepted` is kept for audit only."""

    task_id: str
    attempt_id: str
    status: ResultStatus
    permitted_by: str
    result: Result | UnsetType = UNSET
    source: Literal["tool", "message"] = "tool"
    reason: OptStr = UNSET


class JoinEvent(KindStamped, kw_only=True, tag="avenor.join"):
    """A join has come to something.

    Attributes:
        accepted: By task, the attempt whose result counts.
        decision: Of `decided`: which side the owner of the run has taken, in words.
    """

    join_id: str
    state: Literal["joined", "missing", "conflict", "decided"]
    permitted_by: str
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    duplicates: list[Duplicate] = field(default_factory=list[Duplicate])
    decision: OptStr = UNSET


class CandidateEvent(KindStamped, kw_only=True, tag="avenor.candidate"):
    """A writer's change is a candidate: committed by the runner, inside what the writer may write."""

    task_id: str
    attempt_id: str
    revision: str
    base: str
    files: list[str]
    digest: str
    permitted_by: str


class ReceiptEvent(OwnKind, kw_only=True, tag="avenor.receipt"):
    """What a command has come to, run by the runner on a candidate, or by a member's agent.

    Attributes:
        required: Whether a candidate is accepted only if it has passed.
        output: The end of what it has written.
    """

    receipt_id: str
    name: str
    revision: str
    passed: bool
    digest: str
    output: str
    permitted_by: str
    exit_code: OptInt = UNSET
    required: bool = False
    attempt_id: OptStr = UNSET


class VerdictEvent(KindStamped, kw_only=True, tag="avenor.verdict"):
    """The evaluator judges; `counted_as` is what the runner makes of it, with `reason` where that differs.

    It is told when it is given, of the candidate as it is then, and has its effect once the attempt is done.
    """

    attempt_id: str
    verdict: VerdictWord
    revision: str
    counted_as: CountedAs
    permitted_by: str
    failed_criterion: OptStr = UNSET
    reason: OptStr = UNSET


class PlanEvent(KindStamped, kw_only=True, tag="avenor.plan"):
    """The plan was made anew: results of older epochs are stale from here on."""

    plan_epoch: int
    reason: str
    permitted_by: str
    attempt_id: OptStr = UNSET


class HandoffRecord(Struct, frozen=True, kw_only=True):
    """What one owner gives to the next: everything that it takes to go on, and nothing more."""

    contract: str
    summary: str
    reason: str
    source_revision: str
    plan_epoch: int
    receipts: list[str] = []
    pending_effects: list[str] = []
    rest: Limits = Limits()
    authority: list[str] = []


class HandoffEvent(KindStamped, kw_only=True, tag="avenor.handoff"):
    """Ownership is being passed on; the sender keeps its lease until it was accepted."""

    from_task: str
    to_task: str
    state: Literal["offered", "accepted", "rejected"]
    permitted_by: str
    record: HandoffRecord | UnsetType = UNSET
    reason: OptStr = UNSET


class ManifestEnd(KindStamped, kw_only=True, tag="avenor.manifest.end"):
    """The run's terminal state; recorded before anything is cancelled for it.

    Attributes:
        revision: The accepted candidate.
        final_output: What `result` gives: the state, with the revision and its branch, or the reason.
    """

    state: EndWord
    permitted_by: str
    reason: OptStr = UNSET
    revision: OptStr = UNSET
    final_output: OptStr = UNSET


ManifestEvent = (
    ManifestStart
    | TaskEvent
    | LeaseEvent
    | BudgetEvent
    | AuthorityEvent
    | ResultEvent
    | JoinEvent
    | CandidateEvent
    | ReceiptEvent
    | VerdictEvent
    | PlanEvent
    | HandoffEvent
    | ManifestEnd
)
