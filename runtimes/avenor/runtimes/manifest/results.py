"""What becomes of a result that is handed over: whether it counts, and by which field of the manifest. Pure."""

from typing import Literal

from msgspec import UNSET

from avenor.protocol.manifest.events import ResultEvent
from avenor.protocol.manifest.records import Result
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.joins import names_revision
from avenor.runtimes.manifest.view import View

_LATE = "cancellation.late_result"


def tell_result(
    view: View,
    task: Task,
    attempt: Attempt,
    result: Result,
    source: Literal["tool", "message"],
    *,
    not_its_task: str | None = None,
) -> ResultEvent:
    """The event of a result: accepted, or kept for audit with what is wrong with it."""
    event = ResultEvent(
        task_id=task.task_id,
        attempt_id=attempt.attempt_id,
        status="accepted",
        permitted_by=_accepts(view, task),
        result=result,
        source=source,
    )
    epoch = view.epoch_of(attempt)
    if attempt.is_over:
        event.status, event.permitted_by = "late", _LATE
        event.reason = f"{attempt.attempt_id} is {attempt.state} already"
    elif not_its_task is not None:
        event.status, event.permitted_by = "late", _LATE
        event.reason = not_its_task
    elif has_handed_over(view, attempt):
        event.status, event.permitted_by = "late", _LATE
        event.reason = f"{attempt.attempt_id} has handed over its result already"
    elif not names_revision(view, attempt, result.source_revision):
        event.status = "stale"
        event.reason = f"stale_revision: {result.source_revision}, expected {attempt.revision}"
    elif result.plan_epoch != epoch or not view.counts_now(task, attempt):
        event.status = "stale"
        event.reason = f"stale_epoch: {result.plan_epoch}, expected {view.state.plan_epoch}"
    return event


def tell_invalid(task: Task, attempt: Attempt, reason: str) -> ResultEvent:
    """The event of something that was meant as a result and cannot be read."""
    return ResultEvent(
        task_id=task.task_id,
        attempt_id=attempt.attempt_id,
        status="invalid",
        permitted_by=_LATE,
        source="message",
        reason=reason,
    )


def has_handed_over(view: View, attempt: Attempt) -> bool:
    """Whether an attempt has given a result, one that counts or not."""
    return any(
        event.attempt_id == attempt.attempt_id and event.status in ("accepted", "stale") for event in view.state.results
    )


def why_stale(view: View, attempt: Attempt) -> str | None:
    """Why the result that an attempt has given does not count; None where it has given none, or it counts."""
    for event in view.state.results:
        if event.attempt_id == attempt.attempt_id and event.status == "stale":
            return "" if event.reason is UNSET else event.reason
    return None


def _accepts(view: View, task: Task) -> str:
    joins = view.plan.joins_with(task.task_id)
    return view.plan.join_permits(joins[0].id, "rule") if joins else "run.plan_epoch"
