"""All that is known of a manifest run, as a fold over its events.

The runner decides by this state and changes it only by telling events; so a run whose process was killed goes on from
its log, and anybody who reads the log sees what the runner saw.
"""

from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.amounts import Limits
from avenor.protocol.manifest.events import (
    AuthorityEvent,
    BudgetEvent,
    CandidateEvent,
    EndWord,
    HandoffEvent,
    JoinEvent,
    LeaseEvent,
    ManifestEnd,
    ManifestStart,
    PlanEvent,
    ReceiptEvent,
    ResultEvent,
    TaskEvent,
    TaskWord,
    VerdictEvent,
)
from avenor.protocol.manifest.ledger import Ledger
from avenor.protocol.manifest.records import Result

T = TypeVar("T")

# Nothing more comes of an attempt in one of these.
OVER: Final[frozenset[TaskWord]] = frozenset(
    {"done", "failed", "missing", "lost", "effect_unknown", "reconciled", "cancelled", "timed_out"}
)
# A task in one of these is finished; after the others that are over, another attempt may follow.
FINISHED: Final[frozenset[TaskWord]] = frozenset({"done", "failed", "missing", "cancelled", "timed_out"})


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt at a task.

    Attributes:
        number: From 1.
        revision: The commit that its worktree was cut from.
        result: What counts of what it handed over.
        denied: Fields of the manifest by which something was denied to it, in order.
        violations: The same of what it did without asking.
        handed_to: The task that has accepted a hand-off of it.
        partial: A ref with what it has left though nothing came of it.
    """

    attempt_id: str
    task_id: str
    number: int
    state: TaskWord
    plan_epoch: int
    revision: str = ""
    started_ms: int = 0
    ended_ms: int | None = None
    deadline_ms: int | None = None
    lease_until_ms: int | None = None
    result: Result | None = None
    denied: list[str] = []
    violations: list[str] = []
    handed_to: str | None = None
    reason: str = ""
    partial: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in OVER


class Task(msgspec.Struct, kw_only=True):
    """One task: what a declared member does, or an extra one that a member has started.

    Attributes:
        contract: What it was told to do by another member; empty if nobody has said more than the manifest does.
        depth: How many tasks are above it.
    """

    task_id: str
    member: str
    state: TaskWord = "created"
    parent_task: str | None = None
    depth: int = 0
    contract: str = ""
    paths: list[str] = []
    attempts: list[Attempt] = []
    created_ms: int = 0

    @property
    def latest(self) -> Attempt | None:
        """Its last attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_running(self) -> bool:
        """Whether an attempt goes on."""
        return self.latest is not None and not self.latest.is_over

    @property
    def is_finished(self) -> bool:
        """Whether no other attempt follows by itself; a repair still may."""
        return self.state in FINISHED

    @property
    def result(self) -> Result | None:
        """What counts of its latest attempt that handed something over."""
        results = [attempt.result for attempt in self.attempts if attempt.result is not None]
        return results[-1] if results else None


class ManifestState:
    """What has happened so far.

    Attributes:
        start: How the manifest was bound; None before it was.
        plan_epoch: The one that counts now.
        tasks: By id, in the order in which they came up.
        ledger: Who may still use how much; of no limits before the start.
        joins: The last event of each, by id.
        candidates: Of the writers, in order, those of older plans included.
        receipts: By id, in order.
        verdicts: In order.
        handoffs: The last event of each, by sender and receiver.
        results: Everything that was handed over, counted or not, in order.
        authority: What was held against the members' rights, in order.
        plans: Each new plan, in order.
        end: The terminal state, once there is one.
    """

    def __init__(self) -> None:
        self.start: ManifestStart | None = None
        self.plan_epoch = 0
        self.tasks: dict[str, Task] = {}
        self.ledger = Ledger(Limits())
        self.joins: dict[str, JoinEvent] = {}
        self.candidates: list[CandidateEvent] = []
        self.receipts: dict[str, ReceiptEvent] = {}
        self.verdicts: list[VerdictEvent] = []
        self.handoffs: dict[tuple[str, str], HandoffEvent] = {}
        self.results: list[ResultEvent] = []
        self.authority: list[AuthorityEvent] = []
        self.plans: list[PlanEvent] = []
        self.end: ManifestEnd | None = None
        self._attempts: dict[str, Attempt] = {}

    # ---- reading

    @property
    def terminal(self) -> EndWord | None:
        """The terminal state; None while the run goes on."""
        return None if self.end is None else self.end.state

    @property
    def repairs(self) -> int:
        """How many repairs were granted: each when the attempt that has asked for it is done."""
        asked = [self.attempt(verdict.attempt_id) for verdict in self.verdicts if verdict.counted_as == "repair"]
        return sum(1 for attempt in asked if attempt is not None and attempt.state == "done")

    @property
    def running(self) -> list[Attempt]:
        """The attempts that go on."""
        return [task.attempts[-1] for task in self.tasks.values() if task.is_running]

    @property
    def is_paused(self) -> bool:
        """Whether a conflict waits for a decision of a person, and nobody works meanwhile."""
        return not self.running and any(join.state == "conflict" for join in self.joins.values())

    def attempt(self, attempt_id: str) -> Attempt | None:
        """An attempt by its id."""
        return self._attempts.get(attempt_id)

    def task_of(self, attempt_id: str) -> Task | None:
        """The task of an attempt."""
        attempt = self._attempts.get(attempt_id)
        return None if attempt is None else self.tasks[attempt.task_id]

    def children_of(self, task_id: str) -> list[Task]:
        """The tasks that this one has started."""
        return [task for task in self.tasks.values() if task.parent_task == task_id]

    def receipts_of(self, revision: str) -> list[ReceiptEvent]:
        """What commands have come to on a revision."""
        return [receipt for receipt in self.receipts.values() if receipt.revision == revision]

    # ---- the fold

    def apply(self, event: Event) -> None:
        """Takes the next event; one that is none of a manifest changes nothing."""
        match event:
            case ManifestStart():
                self._begin(event)
            case TaskEvent():
                self._apply_task(event)
            case LeaseEvent():
                if (attempt := self.attempt(event.attempt_id)) is not None:
                    attempt.lease_until_ms = event.until_ms
            case BudgetEvent():
                self.ledger.apply(event)
            case AuthorityEvent():
                self._apply_authority(event)
            case ResultEvent():
                self._apply_result(event)
            case PlanEvent():
                self.plan_epoch = event.plan_epoch
                self.plans.append(event)
            case _:
                self._apply_outcome(event)

    def _begin(self, event: ManifestStart) -> None:
        self.start = event
        self.plan_epoch = event.plan_epoch
        self.ledger = Ledger(event.limits)

    def _apply_outcome(self, event: Event) -> None:
        match event:
            case JoinEvent():
                self.joins[event.join_id] = event
            case CandidateEvent():
                self.candidates.append(event)
            case ReceiptEvent():
                self.receipts[event.receipt_id] = event
            case VerdictEvent():
                self.verdicts.append(event)
            case HandoffEvent():
                self._apply_handoff(event)
            case ManifestEnd():
                self.end = self.end or event
            case _:
                pass

    def _apply_task(self, event: TaskEvent) -> None:
        task = self.tasks.get(event.task_id)
        if task is None:
            task = self.tasks[event.task_id] = Task(
                task_id=event.task_id,
                member=event.member,
                parent_task=_or_none(event.parent_task),
                depth=event.task_depth,
                created_ms=event.ts,
            )
        if event.contract is not UNSET:
            task.contract = event.contract
        if event.paths is not UNSET:
            task.paths = event.paths
        task.state = event.state
        if event.attempt_id is not UNSET:
            self._apply_attempt(task, event, event.attempt_id)

    def _apply_attempt(self, task: Task, event: TaskEvent, attempt_id: str) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            attempt = self._attempts[attempt_id] = Attempt(
                attempt_id=attempt_id,
                task_id=task.task_id,
                number=len(task.attempts) + 1,
                state=event.state,
                plan_epoch=event.plan_epoch,
                started_ms=event.ts,
            )
            task.attempts.append(attempt)
        attempt.state = event.state
        attempt.revision = _or(event.revision, attempt.revision)
        attempt.deadline_ms = _or(event.deadline_ms, attempt.deadline_ms)
        attempt.lease_until_ms = _or(event.lease_until_ms, attempt.lease_until_ms)
        attempt.reason = _or(event.reason, attempt.reason)
        attempt.partial = _or(event.partial, attempt.partial)
        if attempt.is_over and attempt.ended_ms is None:
            attempt.ended_ms = event.ts

    def _apply_result(self, event: ResultEvent) -> None:
        self.results.append(event)
        attempt = self.attempt(event.attempt_id)
        if attempt is not None and event.status == "accepted" and event.result is not UNSET:
            attempt.result = event.result

    def _apply_handoff(self, event: HandoffEvent) -> None:
        self.handoffs[event.from_task, event.to_task] = event
        sender = self.tasks.get(event.from_task)
        if event.state == "accepted" and sender is not None and sender.latest is not None:
            sender.latest.handed_to = event.to_task

    def _apply_authority(self, event: AuthorityEvent) -> None:
        self.authority.append(event)
        attempt = self.attempt(event.attempt_id)
        if attempt is None or event.decision == "allow":
            return
        (attempt.denied if event.decision == "deny" else attempt.violations).append(event.permitted_by)


def _or_none(value: str | UnsetType) -> str | None:
    return None if value is UNSET else value


def _or(value: T | UnsetType, other: T) -> T:
    return other if value is UNSET else value
