"""A manifest run at one moment, and what the rules of the scheduler ask of it. Pure."""

from typing import Final

from msgspec import UNSET, UnsetType

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import (
    CandidateEvent,
    EndWord,
    ManifestEnd,
    PlanEvent,
    TaskEvent,
    TaskWord,
    VerdictEvent,
)
from avenor.protocol.manifest.ledger import Account
from avenor.protocol.manifest.state import Attempt, ManifestState, Task
from avenor.runtimes.manifest.actions import Doing, Tell
from avenor.runtimes.manifest.plan import Plan

# The first words of reasons, by which the stop rules tell why something came to nothing.
NO_PROGRESS: Final = "no_progress"
OVER_BUDGET: Final = "budget_exhausted"
VIOLATION: Final = "violation"
WITHDRAWN: Final = "withdrawn"
# As git abbreviates a commit at least.
SHORT_ID: Final = 7


class View:
    """What the rules decide by.

    Args:
        plan: What is declared.
        state: What has happened.
        doing: What this process is doing.
        now_ms: Unix milliseconds, of a clock that never jumps.
        paused_ms: How long the run has waited for a decision of a person, which counts for no deadline.
    """

    def __init__(self, plan: Plan, state: ManifestState, doing: Doing, now_ms: int, paused_ms: int = 0) -> None:
        self.plan = plan
        self.state = state
        self.doing = doing
        self.now_ms = now_ms
        self.paused_ms = paused_ms

    # ---- time

    @property
    def deadline_ms(self) -> int:
        """When everything has to have ended, clean-up included."""
        assert self.state.start is not None
        return self.state.start.deadline_ms + self.paused_ms

    @property
    def grace_ms(self) -> int:
        """How long before a deadline an attempt is asked to end."""
        return round(self.plan.manifest.cancellation.grace_seconds * 1000)

    def seconds_of(self, task: Task) -> float:
        """How long an attempt at a task may take: what its member has, or what whoever has started it lets it have."""
        declared = self.plan.members[task.member].budget.seconds
        return min(self.doing.asked_seconds.get(task.task_id, declared), declared)

    # ---- tasks

    def task(self, member_id: str) -> Task | None:
        """The task of a declared member; None before it was created."""
        return self.state.tasks.get(member_id)

    def required_tasks(self) -> list[Task]:
        """The tasks without which there is no verdict."""
        return [task for task in self.state.tasks.values() if task.task_id in self.plan.required]

    def account(self, task_id: str) -> Account | None:
        """The account of a task."""
        return self.state.ledger.accounts.get(task_id)

    def has_open_account(self, task_id: str) -> bool:
        """Whether something is reserved for a task."""
        account = self.account(task_id)
        return account is not None and account.is_open

    def has_running_child(self, task_id: str) -> bool:
        """Whether something that the task has started goes on."""
        return any(child.is_running for child in self.state.children_of(task_id))

    def base_of(self, task: Task) -> str:
        """The commit that an attempt at a task is cut from now."""
        assert self.state.start is not None
        if task.parent_task is not None:
            parent = self.state.tasks[task.parent_task].latest
            return self.revision if parent is None else parent.revision
        if self.plan.is_writer(task.member) or self.plan.has_writer_above(task.member):
            return self.revision
        return self.state.start.revision

    # ---- candidates

    @property
    def candidate(self) -> CandidateEvent | None:
        """The latest candidate of the plan that counts."""
        return next((each for each in reversed(self.state.candidates) if self._is_valid(each)), None)

    @property
    def revision(self) -> str:
        """What a dependent's worktree is cut from: the latest candidate, else the commit that the manifest names."""
        assert self.state.start is not None
        return self.state.start.revision if self.candidate is None else self.candidate.revision

    @property
    def stale_candidates(self) -> list[CandidateEvent]:
        """Those of older plans."""
        return [each for each in self.state.candidates if not self._is_valid(each)]

    @property
    def repairer(self) -> str | None:
        """The task that mends what was not accepted: whose the candidate is, else of the last writer with a result."""
        if self.candidate is not None:
            return self.candidate.task_id
        tasks = [self.state.tasks[each] for each in self.plan.writers_above]
        return next((task.task_id for task in reversed(tasks) if task.result is not None), None)

    def _is_valid(self, candidate: CandidateEvent) -> bool:
        attempt = self.state.attempt(candidate.attempt_id)
        return attempt is not None and self.counts_now(self.state.tasks[attempt.task_id], attempt)

    # ---- epochs

    def epoch_of(self, attempt: Attempt) -> int:
        """The plan that an attempt works by: the one it was started under, or the one that it has made itself."""
        made = [plan.plan_epoch for plan in self.state.plans if plan.attempt_id == attempt.attempt_id]
        return max([attempt.plan_epoch, *made])

    def _stands_through(self, plan: PlanEvent, task_id: str) -> bool:
        """Whether a plan was made by this task, or upon its result, so that it is not done anew."""
        planner = None if plan.attempt_id is UNSET else self.state.task_of(plan.attempt_id)
        if planner is None:
            return False
        return task_id == planner.task_id or (
            planner.member in self.plan.graph.nodes and self.plan.depends(planner.member, task_id)
        )

    def counts_now(self, task: Task, attempt: Attempt) -> bool:
        """Whether what an attempt has made belongs to the plan that counts."""
        epoch = self.epoch_of(attempt)
        return all(self._stands_through(plan, task.task_id) for plan in self.state.plans if plan.plan_epoch > epoch)

    # ---- verdicts

    def verdict_of(self, attempt: Attempt) -> VerdictEvent | None:
        """What an attempt of the evaluator has judged; None before it has."""
        return next((each for each in self.state.verdicts if each.attempt_id == attempt.attempt_id), None)

    # ---- hand-offs

    def offer_to(self, member_id: str) -> str | None:
        """The task that offers a hand-off to a member and waits for its answer."""
        for (sender, receiver), event in self.state.handoffs.items():
            latest = self.state.tasks[sender].latest
            is_open = event.state == "offered" and latest is not None and not latest.is_over and latest.result is None
            if receiver == member_id and is_open:
                return sender
        return None

    def was_handed_to(self, member_id: str) -> bool:
        """Whether a member has accepted a hand-off, of an attempt that is not followed by another."""
        senders = [self.task(each.sender) for each in self.plan.offers_to(member_id)]
        return any(
            task is not None
            and task.state != "created"
            and task.latest is not None
            and task.latest.handed_to == member_id
            for task in senders
        )

    def awaits_handoff(self, task: Task) -> bool:
        """Whether it is there to receive a hand-off, and has accepted none."""
        is_receiver = task.parent_task is None and bool(self.plan.offers_to(task.member))
        return is_receiver and not self.was_handed_to(task.task_id)

    def is_unoffered(self, task: Task) -> bool:
        """Whether it is there to receive a hand-off that nobody makes now."""
        return self.awaits_handoff(task) and self.offer_to(task.task_id) is None

    def is_not_needed(self, member_id: str) -> bool:
        """Whether it is the receiver of a hand-off that nobody has made, and nobody will."""
        offers = self.plan.offers_to(member_id)
        if not offers or self.was_handed_to(member_id) or self.offer_to(member_id) is not None:
            return False
        return all(self.is_settled(each.sender) for each in offers)

    def is_settled(self, member_id: str) -> bool:
        """Whether nobody has to wait for a member any more: its task is done, or it has none."""
        task = self.task(member_id)
        return task is not None and (task.state == "done" or self.is_not_needed(member_id))

    # ---- telling

    def tell_task(
        self,
        task: Task,
        state: TaskWord,
        permitted_by: str,
        *,
        reason: str | UnsetType = UNSET,
        attempt: Attempt | None = None,
    ) -> TaskEvent:
        """A task, or one of its attempts, comes to a new state."""
        event = TaskEvent(
            task_id=task.task_id,
            member=task.member,
            state=state,
            permitted_by=permitted_by,
            plan_epoch=self.state.plan_epoch if attempt is None else attempt.plan_epoch,
            task_depth=task.depth,
            reason=reason,
        )
        if task.parent_task is not None:
            event.parent_task = task.parent_task
        if attempt is not None:
            event.attempt_id = attempt.attempt_id
        if state == "created" and task.parent_task is None:
            event.waits_for = list(self.plan.direct_needs(task.member))
        return event

    def end(self, state: EndWord, permitted_by: str, reason: str = "", *, judged: str = "") -> Tell:
        """The run comes to its terminal state; with `accepted` goes the commit that was judged."""
        event = ManifestEnd(state=state, permitted_by=permitted_by, reason=reason or UNSET)
        event.final_output = f"{state}: {reason}" if reason else state
        if state == "accepted":
            event.revision = judged
            event.final_output = f"accepted: {judged} on branch {self.plan.branch}"
        events: list[Event] = [event]
        return Tell(events=events)


def names_commit(name: str, commit: str) -> bool:
    """Whether a member's word means a commit: its id, or the beginning of that, as git shortens it."""
    plain = name.removeprefix("git:")
    return plain == commit or (len(plain) >= SHORT_ID and commit.startswith(plain))


def first_word(reason: str) -> str:
    """The word of a reason that rules go by: `no_progress: …`."""
    return reason.partition(":")[0]
