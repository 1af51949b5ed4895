"""When the run stops without a verdict, and why: hard budget, denied authority, no progress, missing results. Pure."""

import hashlib
from typing import Final

from avenor.protocol.manifest.events import EndWord
from avenor.protocol.manifest.ledger import ROOT, WARN_AT
from avenor.protocol.manifest.state import Task
from avenor.runtimes.manifest.actions import Action, Tell
from avenor.runtimes.manifest.view import NO_PROGRESS, OVER_BUDGET, VIOLATION, WITHDRAWN, View, first_word

REPEATS_LIMIT: Final = 3


class Repeats:
    """Counts tool calls that came to the same: what is done again and again with the same end is no progress.

    Something that was changed in between makes what follows worth another look, so the count begins anew.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def note(self, tool: str, arguments: bytes, result: bytes) -> bool:
        """Takes a tool call that has ended; True if it has come to the same too often."""
        digest = hashlib.sha256(b"\0".join((tool.encode(), arguments, result))).hexdigest()
        self._seen[digest] = self._seen.get(digest, 0) + 1
        return self._seen[digest] >= REPEATS_LIMIT

    def changed(self) -> None:
        """Something was changed."""
        self._seen.clear()


def decide_stops(view: View) -> list[Action]:
    """Ends the run where a task that is required has come to nothing, or says that it cannot go on."""
    for task in view.required_tasks():
        if task.state == "done" and (blocked := _blocked(view, task)):
            return [view.end("needs_human", f"{_field(view, task)}.tools", f"{task.task_id} is blocked: {blocked}")]
        if task.is_finished and task.state != "done" and (stop := _why(view, task)) is not None:
            return [view.end(*stop)]
    for index, handoff in enumerate(view.plan.manifest.handoffs):
        event = view.state.handoffs.get((handoff.sender, handoff.receiver))
        if event is None or event.state != "rejected" or first_word(str(event.reason)) == WITHDRAWN:
            continue
        if handoff.on_reject == "needs_human":
            told = f"{handoff.receiver} has rejected the hand-off of {handoff.sender}"
            return [view.end("needs_human", f"handoffs[{index}].on_reject", told)]
    return []


def decide_deadline(view: View) -> list[Action]:
    """Ends the run so early that all clean-up is over by its deadline; what passed in pauses does not count."""
    if view.now_ms < view.deadline_ms - view.grace_ms:
        return []
    seconds = view.plan.manifest.budget.deadline_seconds
    return [view.end("timed_out", "run.aggregate_budget.deadline_seconds", f"the run has had its {seconds:g} s")]


def decide_warnings(view: View) -> list[Action]:
    """Tells, once, whose time has come near its end."""
    for name, due_ms in warnings_due(view).items():
        if view.now_ms >= due_ms:
            return [Tell(events=[view.state.ledger.warn_of_time(name)])]
    return []


def warnings_due(view: View) -> dict[str, int]:
    """By account, when most of the time is over that there is before somebody is asked to end; but for those told."""
    times = {ROOT: (view.deadline_ms, view.plan.manifest.budget.deadline_seconds)}
    for attempt in view.state.running:
        if attempt.deadline_ms is not None:
            given = (attempt.deadline_ms - attempt.started_ms) / 1000  # less than its own where who started it ends
            own = view.seconds_of(view.state.tasks[attempt.task_id])
            times[attempt.task_id] = attempt.deadline_ms, min(given, own)
    due: dict[str, int] = {}
    for name, (deadline_ms, seconds) in times.items():
        account = view.account(name)
        if account is not None and "seconds" not in account.warned:
            left_ms = round((1 - WARN_AT) * (seconds * 1000 - view.grace_ms))
            due[name] = deadline_ms - view.grace_ms - left_ms
    return due


def _why(view: View, task: Task) -> tuple[EndWord, str, str] | None:
    """What the run comes to without this task; None where a join decides that."""
    field = _field(view, task)
    reason = "" if task.latest is None else task.latest.reason
    told = f"{task.task_id}: {reason or task.state.replace('_', ' ')}"
    if first_word(reason) == NO_PROGRESS:
        return "rejected", "run.terminal_states", f"{NO_PROGRESS}: {task.task_id}: {reason.partition(': ')[2]}"
    if (decided_by := _denied_by(task, field, reason)) is not None:
        return "needs_human", decided_by, f"denied by {decided_by}: {told}"
    if _is_for_joins_only(view, task):
        return None
    if first_word(reason) == OVER_BUDGET:
        return "budget_exhausted", f"{field}.budget", told
    if task.state == "timed_out":
        return "timed_out", f"{field}.budget.seconds", told
    if view.state.repairs:
        return "rejected", "evaluation.otherwise", f"the repair came to nothing: {told}"
    allowed = view.plan.manifest.evaluation.otherwise
    if task.task_id == view.plan.evaluator and "needs_human" not in allowed:
        return "rejected", "evaluation.otherwise", f"no verdict: {told}"
    return "needs_human", "run.terminal_states", f"no result: {told}"


def _denied_by(task: Task, field: str, reason: str) -> str | None:
    """Which field has denied something to a task's last attempt; a budget that is used up is no matter of authority."""
    fields = [] if task.latest is None else [*task.latest.denied, *task.latest.violations]
    found = [each for each in fields if not each.startswith(f"{field}.budget")]
    if not found and first_word(reason) == VIOLATION:
        found = [f"{field}.allowed_writes"]
    return found[0] if found else None


def _blocked(view: View, task: Task) -> str:
    result = task.result
    return "" if result is None else result.blocked


def _is_for_joins_only(view: View, task: Task) -> bool:
    """Whether whoever needs the result gets it through a join, whose manifest says what follows without it."""
    users = [node for node in view.plan.graph.nodes.values() if task.task_id in node.needs]
    return bool(users) and all(node.is_join for node in users if node.id in view.plan.required)


def _field(view: View, task: Task) -> str:
    return view.plan.members[task.member].field
