"""Attempts that nobody runs any more: lost readers begin anew, lost writers are reconciled first. Pure."""

from typing import Final

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import HandoffEvent, TaskWord
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.actions import Action, Cancel, Reconcile, Tell
from avenor.runtimes.manifest.plan import LOSSES_LIMIT
from avenor.runtimes.manifest.view import WITHDRAWN, View

_LEASE: Final = "cancellation.worker_timeout"
_CAME_TO_NOTHING: Final = ("failed", "missing", "timed_out")


def decide_losses(view: View) -> list[Action]:
    """Marks what was lost: attempts of a process that is gone, and those whose lease has run out."""
    for attempt in view.state.running:
        is_ours = attempt.attempt_id in view.doing.attempts
        if is_ours and (attempt.lease_until_ms is None or attempt.lease_until_ms >= view.now_ms):
            continue
        task = view.state.tasks[attempt.task_id]
        reason = "its lease has run out" if is_ours else "the process that ran it is gone"
        events = [_tell_loss(view, task, attempt, reason)]
        if is_ours:
            return [Cancel(attempt_id=attempt.attempt_id, why="lost", reason=reason, events=events)]
        return [Tell(events=events)]
    return []


def decide_orphans(view: View) -> list[Action]:
    """Ends what was started by a task that has ended itself: nobody waits for its result."""
    for attempt in view.state.running:
        task = view.state.tasks[attempt.task_id]
        if task.parent_task is None or attempt.attempt_id in view.doing.cancelling:
            continue
        if not view.state.tasks[task.parent_task].is_running:
            told = f"{task.parent_task}, which has started it, has ended"
            return [Cancel(attempt_id=attempt.attempt_id, why="cancelled", reason=told)]
    for task in view.state.tasks.values():
        if task.parent_task is None or task.is_finished or task.is_running:
            continue
        if not view.state.tasks[task.parent_task].is_running:
            told = f"{task.parent_task}, which has started it, has ended"
            return [Tell(events=_events(view.tell_task(task, "cancelled", "cancellation.parent_cancel", reason=told)))]
    return []


def decide_offers(view: View) -> list[Action]:
    """Settles what was offered where one of the two is gone: taken back, or rejected by one that came to nothing."""
    for (sender, receiver), event in view.state.handoffs.items():
        if event.state != "offered":
            continue
        task = view.state.tasks[receiver]
        if view.offer_to(receiver) != sender:
            return [_reject(event, event.permitted_by, f"{WITHDRAWN}: {sender} has ended its work, or is gone")]
        if task.state in _CAME_TO_NOTHING:
            why = "" if task.latest is None else task.latest.reason
            return [_reject(event, f"{event.permitted_by}.on_reject", f"{receiver} has {task.state}: {why}")]
    for attempt in view.state.running:
        task = view.state.tasks[attempt.task_id]
        if attempt.attempt_id not in view.doing.cancelling and view.is_unoffered(task):
            return [Cancel(attempt_id=attempt.attempt_id, why="cancelled", reason="nothing is offered to it any more")]
    return []


def _reject(event: HandoffEvent, permitted_by: str, reason: str) -> Tell:
    events: list[Event] = [
        HandoffEvent(
            from_task=event.from_task,
            to_task=event.to_task,
            state="rejected",
            permitted_by=permitted_by,
            record=event.record,
            reason=reason,
        )
    ]
    return Tell(events=events)


def decide_reconciling(view: View) -> list[Action]:
    """Looks after writers of which nobody knows what they have done, before anything else happens to their tasks."""
    for task in view.state.tasks.values():
        if task.state == "effect_unknown" and task.latest is not None:
            attempt_id = task.latest.attempt_id
            if attempt_id not in view.doing.attempts and attempt_id not in view.doing.reconciling:
                return [Reconcile(attempt_id=attempt_id)]
    return []


def decide_restarts(view: View) -> list[Action]:
    """A task whose attempt was lost gets another one, unless it has another owner, or that has happened too often."""
    for task in view.state.tasks.values():
        if task.state == "cancelled" and view.awaits_handoff(task):
            return [_ready_again(view, task)]
        if task.state in _CAME_TO_NOTHING and view.is_unoffered(task):
            return [_ready_again(view, task)]
        if task.state not in ("lost", "reconciled"):
            continue
        if task.latest is not None and task.latest.attempt_id in view.doing.attempts:
            continue  # it is still being cleaned up
        member = view.plan.members[task.member]
        if task.latest is not None and task.latest.handed_to is not None:
            told, field = f"handed over to {task.latest.handed_to}", f"{member.field}.tools"
            return [Tell(events=_events(view.tell_task(task, "done", field, reason=told, attempt=task.latest)))]
        field = f"{member.field}.budget"
        if task.parent_task is not None and not view.state.tasks[task.parent_task].is_running:
            continue  # `decide_orphans` ends it
        lost = sum(1 for attempt in task.attempts if attempt.state in ("lost", "reconciled"))
        if lost >= LOSSES_LIMIT:
            told = f"lost {lost} times, the last time: {task.attempts[-1].reason}"
            return [Tell(events=_events(view.tell_task(task, "failed", field, reason=told, attempt=task.latest)))]
        return [_begin_anew(view, task, field, f"another attempt: {task.attempts[-1].attempt_id} was lost")]
    return []


def _ready_again(view: View, task: Task) -> Tell:
    """Whoever did not take what was handed to it may be handed something again."""
    field = f"{view.plan.members[task.member].field}.tools"
    return _begin_anew(view, task, field, "it may be handed something again")


def _begin_anew(view: View, task: Task, field: str, reason: str) -> Tell:
    """Another attempt is paid from what the run has left, to which the rest of the last one goes back first."""
    events: list[Event] = []
    if view.has_open_account(task.task_id):
        events.append(view.state.ledger.release(task.task_id, permitted_by=field))
    return Tell(events=[*events, view.tell_task(task, "created", field, reason=reason)])


def _tell_loss(view: View, task: Task, attempt: Attempt, reason: str) -> Event:
    told = {*(each.attempt_id for each in view.state.verdicts), *(each.attempt_id for each in view.state.candidates)}
    if attempt.attempt_id in told and not attempt.violations:  # only its end was not
        field = "evaluation.owner" if task.member == view.plan.evaluator else "run.plan_epoch"
        return view.tell_task(task, "done", field, attempt=attempt)
    if task.parent_task is not None and not _runs(view, task.parent_task):
        return view.tell_task(task, "cancelled", "cancellation.parent_cancel", reason=reason, attempt=attempt)
    state: TaskWord = "effect_unknown" if view.plan.is_writer(task.member) else "lost"
    return view.tell_task(task, state, _LEASE, reason=reason, attempt=attempt)


def _runs(view: View, task_id: str) -> bool:
    latest = view.state.tasks[task_id].latest
    return latest is not None and not latest.is_over and latest.attempt_id in view.doing.attempts


def _events(*events: Event) -> list[Event]:
    return [*events]
