"""Joins: which results count together, what becomes of missing ones, and of disagreement. Pure."""

from msgspec import UNSET
from msgspec.structs import replace

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import JoinEvent
from avenor.protocol.manifest.joining import Expected, JoinOutcome, Submitted, join
from avenor.protocol.manifest.model import Join
from avenor.protocol.manifest.records import Result
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.actions import Action, Ask, Tell
from avenor.runtimes.manifest.view import View, names_commit

# What a result's revision is called once it was found to be the one that its task looked at.
_MATCHED = "@"


def outcome_of(view: View, declared: Join) -> JoinOutcome:
    """What the results that are in come to for a join."""
    expected = Expected(
        run_id=view.plan.run_id,
        requires=declared.requires,
        revisions=frozenset({_MATCHED}),
        plan_epoch=view.state.plan_epoch,
    )
    results = [submitted for each in declared.requires for submitted in _submitted(view, each)]
    return join(expected, results, depends=view.plan.depends)


def is_joined(view: View, join_id: str) -> bool:
    """Whether what waits for a join may go on, with the results that count now, and nobody is at another one."""
    event = view.state.joins.get(join_id)
    if event is None or event.state not in ("joined", "decided") or not _is_current(view, event):
        return False
    return all(view.state.tasks[each].state == "done" for each in view.plan.joins[join_id].requires)


def decide_joins(view: View) -> list[Action]:
    """What joins come to, now that results are in or will not come."""
    for declared in view.plan.joins.values():
        event = view.state.joins.get(declared.id)
        if event is not None and _is_current(view, event):
            actions = _follow_up(view, declared, event)
        else:
            actions = _settle(view, declared)
        if actions:
            return actions
    return []


def _settle(view: View, declared: Join) -> list[Action]:
    tasks = [view.task(each) for each in declared.requires]
    is_hopeless = any(task is not None and _comes_to_nothing(view, task) for task in tasks)
    is_complete = all(task is not None and task.state == "done" for task in tasks)
    if not is_hopeless and not is_complete:
        return []
    found = outcome_of(view, declared)
    permitted_by = view.plan.join_permits(declared.id, "rule")
    event = JoinEvent(
        join_id=declared.id,
        state="joined",
        permitted_by=permitted_by,
        accepted=_attempts(found),
        missing=_missing(view, found),
        rejected=found.rejected,
        conflicts=found.conflicts,
        duplicates=found.duplicates,
    )
    if event.missing:
        event.state, event.permitted_by = "missing", view.plan.join_permits(declared.id, "on_missing")
    elif found.conflicts:
        event.state, event.permitted_by = "conflict", view.plan.join_permits(declared.id, "on_conflict")
    events: list[Event] = [event]
    return [Tell(events=events)]


def _follow_up(view: View, declared: Join, event: JoinEvent) -> list[Action]:
    """What is declared to follow, where a join has not simply joined."""
    if event.state == "missing" and declared.id in view.plan.required:
        missing = ", ".join(event.missing)
        return [view.end(declared.on_missing, event.permitted_by, f"{declared.id}: no result that counts of {missing}")]
    if event.state != "conflict":
        return []
    if declared.on_conflict != "preserve_both_and_pause":
        subjects = ", ".join(each.subject for each in event.conflicts)
        return [view.end(declared.on_conflict, event.permitted_by, f"{declared.id}: conflict about {subjects}")]
    return [] if declared.id in view.doing.asking else [Ask(join_id=declared.id)]


def _is_current(view: View, event: JoinEvent) -> bool:
    """Whether nothing was done anew since a join came to this."""
    found = outcome_of(view, view.plan.joins[event.join_id])
    return _missing(view, found) == event.missing and _attempts(found) == event.accepted


def _missing(view: View, found: JoinOutcome) -> list[str]:
    """The tasks of which nothing counts, and nothing will."""
    tasks = [view.task(each) for each in found.missing]
    return [
        task.task_id for task in tasks if task is not None and (task.state == "done" or _comes_to_nothing(view, task))
    ]


def _comes_to_nothing(view: View, task: Task) -> bool:
    """Whether a task has no result, and none will come."""
    return (task.is_finished and task.state != "done") or view.is_not_needed(task.task_id)


def _attempts(found: JoinOutcome) -> dict[str, str]:
    return {task: submitted.attempt_id for task, submitted in found.accepted.items()}


def _submitted(view: View, task_id: str) -> list[Submitted]:
    """What a task has handed over, of attempts that were not lost; in terms that can be compared."""
    task = view.task(task_id)
    found: list[Submitted] = []
    for event in view.state.results:
        attempt = view.state.attempt(event.attempt_id)
        if task is None or attempt is None or event.task_id != task_id or event.result is UNSET:
            continue
        if event.status == "late":  # the task was not its own, or it had handed over already
            continue
        if attempt is not task.latest and _comes_to_nothing(view, task):
            continue  # it was asked anew, and what it said before stands for nothing
        if attempt.state in ("done", "missing"):
            result = _comparable(view, task, attempt, event.result)
            found.append(
                Submitted(task_id=task_id, attempt_id=event.attempt_id, run_id=view.plan.run_id, result=result)
            )
    return found


def _comparable(view: View, task: Task, attempt: Attempt, result: Result) -> Result:
    """A result with its versions in terms that are the same for all that count.

    The revision that counts is that of the task's latest attempt, whatever candidates come after it.
    """
    is_latest = attempt.revision == task.attempts[-1].revision
    if is_latest and names_revision(view, attempt, result.source_revision):
        result = replace(result, source_revision=_MATCHED)
    epoch = view.epoch_of(attempt)
    if result.plan_epoch == epoch and view.counts_now(task, attempt):
        return replace(result, plan_epoch=view.state.plan_epoch)
    if result.plan_epoch == view.state.plan_epoch:  # a newer number on what was done under an older plan
        return replace(result, plan_epoch=epoch)
    return result


def names_revision(view: View, attempt: Attempt, name: str) -> bool:
    """Whether a member's name for a revision means the one that it was given."""
    assert view.state.start is not None
    is_source = attempt.revision == view.state.start.revision
    return names_commit(name, attempt.revision) or (is_source and view.plan.is_source_name(name))
