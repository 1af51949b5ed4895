"""Decides what a manifest run does next. Pure: declared plan, folded state and time in, actions out.

The rules are asked in their order, and the first that has something to say is heard. What it decides is told, and so
part of the state, before anything is done; then all are asked again. So nothing is decided twice, and a process that
goes on with another's log decides as that one would have.
"""

from collections.abc import Callable
from typing import Final

from msgspec import UNSET

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.amounts import UNITS, Limits, Unit, limits_of
from avenor.protocol.manifest.binding import BoundMember
from avenor.protocol.manifest.ledger import ROOT, Exhausted
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.actions import Action, Cancel, CancelWord, RunReceipts, Start, Tell
from avenor.runtimes.manifest.evaluation import decide_verdict, has_receipts
from avenor.runtimes.manifest.joins import decide_joins, is_joined
from avenor.runtimes.manifest.losses import (
    decide_losses,
    decide_offers,
    decide_orphans,
    decide_reconciling,
    decide_restarts,
)
from avenor.runtimes.manifest.stops import decide_deadline, decide_stops, decide_warnings, warnings_due
from avenor.runtimes.manifest.view import OVER_BUDGET, View

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 10.0


def decide(view: View) -> list[Action]:
    """The next actions; empty when there is nothing to do but wait."""
    if view.state.start is None:
        return []
    rules = _AFTER_END if view.state.end is not None else _RULES
    for rule in rules:
        if actions := rule(view):
            return actions
    return []


def next_look_ms(view: View) -> int | None:
    """When time alone may change what is decided; None if it does not."""
    if view.state.start is None or view.state.end is not None:
        return None
    if view.state.is_paused:
        return None
    leases = [each.lease_until_ms + 1 for each in view.state.running if each.lease_until_ms is not None]
    return min([*leases, *warnings_due(view).values(), view.deadline_ms - view.grace_ms])


# ---- before the first start


def _create(view: View) -> list[Action]:
    """Every declared member has a task, and its budget is reserved, before anything starts."""
    for member in view.plan.scheduled:
        if member.id not in view.state.tasks:
            reserved = view.state.ledger.reserve(
                member.id, ROOT, member.budget.limits(), permitted_by=f"{member.field}.budget"
            )
            if isinstance(reserved, Exhausted):
                return [view.end("budget_exhausted", f"{member.field}.budget", str(reserved))]
            created = view.tell_task(Task(task_id=member.id, member=member.id), "created", f"{member.field}.depends_on")
            return [Tell(events=[created, reserved])]  # in this order nothing is reserved for nobody
    return []


# ---- budgets


def _release(view: View) -> list[Action]:
    """What a task that has ended has not used goes back to where it came from."""
    for task in view.state.tasks.values():
        if task.is_finished and view.has_open_account(task.task_id) and not view.has_running_child(task.task_id):
            field = f"{view.plan.members[task.member].field}.budget"
            return [Tell(events=[view.state.ledger.release(task.task_id, permitted_by=field)])]
    return []


def _reserve_again(view: View) -> list[Action]:
    """Another attempt is paid from what is left: the last in the graph first, for a change needs its judge."""
    waiting = [task for task in view.state.tasks.values() if _waits_for_budget(view, task)]
    order = {node_id: place for place, node_id in enumerate(view.plan.graph.order())}
    for task in sorted(waiting, key=lambda each: order.get(each.task_id, -1), reverse=True):
        member = view.plan.members[task.member]
        field = f"{member.field}.budget"
        parent = task.parent_task or ROOT
        limits = _least(member.budget.limits(), view.state.ledger.rest(parent))
        if (why := unusable(parent, limits)) is not None:
            return [_cannot_pay(view, task, field, why)]
        reserved = view.state.ledger.reserve(task.task_id, parent, limits, permitted_by=field)
        if isinstance(reserved, Exhausted):
            return [_cannot_pay(view, task, field, reserved)]
        return [Tell(events=[reserved])]
    return []


def _waits_for_budget(view: View, task: Task) -> bool:
    if task.state != "created" or view.has_open_account(task.task_id) or view.is_unoffered(task):
        return False
    return task.parent_task is None or view.state.tasks[task.parent_task].is_running


def _cannot_pay(view: View, task: Task, field: str, why: Exhausted) -> Tell:
    blocked: Event = view.state.ledger.block(why)
    if task.task_id in view.plan.required:
        told = f"no other attempt at {task.task_id}: {why}"
        return Tell(events=[blocked, *view.end("budget_exhausted", field, told).events])
    failed = view.tell_task(task, "failed", field, reason=f"{OVER_BUDGET}: {why}")
    return Tell(events=[blocked, failed])


def _least(wanted: Limits, rest: Limits) -> Limits:
    values: dict[Unit, float | None] = {}
    for unit in UNITS:
        given = [each for each in (wanted.of(unit), rest.of(unit)) if each is not None]
        values[unit] = min(given, default=None) if wanted.of(unit) is not None else None
    return limits_of(values)


def unusable(parent: str, limits: Limits) -> Exhausted | None:
    """Why nobody can begin anything with these: there is no model call, or no token for it."""
    for unit in ("model_calls", "tokens"):
        if (rest := limits.of(unit)) is not None and rest < 1:
            return Exhausted(account=parent, unit=unit, rest=0.0, wanted=1.0)
    return None


# ---- replanning


def _supersede(view: View) -> list[Action]:
    """What was begun under an older plan, and is needed, is done anew under the one that counts.

    Whatever it came to, but for a violation: that is not the plan's.
    """
    for task in view.required_tasks():
        latest = task.latest
        if latest is None or not task.is_finished or latest.violations:
            continue
        if not view.counts_now(task, latest):
            told = f"plan epoch {view.state.plan_epoch}: {latest.attempt_id} worked by {view.epoch_of(latest)}"
            return [Tell(events=[view.tell_task(task, "created", view.state.plans[-1].permitted_by, reason=told)])]
    return []


# ---- starting


def _check_candidate(view: View) -> list[Action]:
    """Runs the checks of a candidate once everything but the verdict is there."""
    task = view.task(view.plan.evaluator)
    revision = view.revision
    if task is None or task.state != "created" or not view.plan.writers_above or has_receipts(view, revision):
        return []
    if view.doing.receipts or not _has_all_it_needs(view, view.plan.members[task.member]):
        return []  # one after the other: those of an older candidate may still run
    return [RunReceipts(revision=revision)]


def _start(view: View) -> list[Action]:
    for task in view.state.tasks.values():
        if task.state == "created" and view.has_open_account(task.task_id) and _may_start(view, task):
            return [_begin(view, task)]
    return []


def _may_start(view: View, task: Task) -> bool:
    member = view.plan.members[task.member]
    if member.is_writer and any(_comes_before(view, each, member) for each in view.state.running):
        return False  # they share the candidate's branch
    if task.parent_task is not None:
        return True  # never behind its parent, which waits for it
    at_once = sum(1 for each in view.state.running if view.state.tasks[each.task_id].parent_task is None)
    is_offered = view.offer_to(member.id) is not None
    if view.plan.max_parallel is not None and at_once >= view.plan.max_parallel and not is_offered:
        return False
    if member.id == view.plan.evaluator and view.plan.writers_above and not has_receipts(view, view.revision):
        return False
    return _has_all_it_needs(view, member)


def _comes_before(view: View, running: Attempt, writer: BoundMember) -> bool:
    """Whether a writer has to wait for an attempt, since what that changes may become the candidate.

    It does not once its task has another owner; nor if the writer accepts that task, for which it is to start.
    """
    if running.handed_to is not None or running.task_id == view.offer_to(writer.id):
        return False
    return view.plan.is_writer(_member_of(view, running.task_id))


def _has_all_it_needs(view: View, member: BoundMember) -> bool:
    senders = {offer.sender for offer in view.plan.offers_to(member.id)}
    if senders and view.offer_to(member.id) is None and not view.was_handed_to(member.id):
        return False
    return all(need in senders or _is_satisfied(view, need) for need in view.plan.direct_needs(member.id))


def _is_satisfied(view: View, node_id: str) -> bool:
    if node_id in view.plan.joins:
        return is_joined(view, node_id)
    return view.is_settled(node_id)


def _begin(view: View, task: Task) -> Start:
    member = view.plan.members[task.member]
    attempt_id = f"{task.task_id}.{len(task.attempts) + 1}"
    event = view.tell_task(task, "started", _permits_start(view, task, member))
    event.attempt_id = attempt_id
    event.revision = view.base_of(task)
    event.deadline_ms = _deadline(view, task)
    event.lease_until_ms = view.now_ms + round(LEASE_SECONDS * 1000)
    return Start(task_id=task.task_id, attempt_id=attempt_id, events=[event])


def _permits_start(view: View, task: Task, member: BoundMember) -> str:
    if task.parent_task is not None:
        parent = view.plan.members[view.state.tasks[task.parent_task].member]
        return f"{member.field}.callable_by" if member.callable_by else f"{parent.field}.tools"
    if task.attempts and view.state.repairs:
        return "evaluation.otherwise"
    return f"{member.field}.budget" if task.attempts else f"{member.field}.depends_on"


def _deadline(view: View, task: Task) -> int:
    """Its own seconds, or what whoever has started it, and the run, have left; clean-up included."""
    ends = [view.now_ms + round(view.seconds_of(task) * 1000), view.deadline_ms]
    if task.parent_task is not None and (parent := view.state.tasks[task.parent_task].latest) is not None:
        ends += [] if parent.deadline_ms is None else [parent.deadline_ms]
    return min(ends)


def _member_of(view: View, task_id: str) -> str:
    return view.state.tasks[task_id].member


# ---- the end


def _cancel_all(view: View) -> list[Action]:
    """The run has its terminal state: nothing that goes on can change it."""
    assert view.state.end is not None
    why: CancelWord = "cancelled" if view.state.end.state != "timed_out" else "timed_out"
    reason = "" if view.state.end.reason is UNSET else view.state.end.reason
    told = f"the run is {view.state.end.state}" + (f": {reason}" if reason else "")
    return [
        Cancel(attempt_id=attempt_id, why=why, reason=told)
        for attempt_id in sorted(view.doing.attempts - view.doing.cancelling)
    ]


def _give_up(view: View) -> list[Action]:
    """Nothing goes on, and nothing can: a person has to look."""
    if not view.doing.is_idle:
        return []
    waiting = [task.task_id for task in view.required_tasks() if task.state != "done"]
    return [view.end("needs_human", "run.terminal_states", f"nothing can go on: {', '.join(waiting)} cannot start")]


_RULES: Final[tuple[Callable[[View], list[Action]], ...]] = (
    decide_deadline,
    decide_warnings,
    decide_losses,
    _create,
    decide_orphans,
    decide_offers,
    decide_reconciling,
    decide_restarts,
    _release,
    _supersede,
    decide_stops,
    decide_joins,
    decide_verdict,
    _reserve_again,
    _check_candidate,
    _start,
    _give_up,
)
_AFTER_END: Final[tuple[Callable[[View], list[Action]], ...]] = (_cancel_all,)
