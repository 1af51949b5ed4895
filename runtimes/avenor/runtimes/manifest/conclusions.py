"""What an attempt that has ended has come to: the first of the causes that counts. Pure."""

from typing import Final

import msgspec

from avenor.protocol.manifest.events import TaskWord
from avenor.protocol.manifest.state import Attempt
from avenor.protocol.outcomes import ExitCode
from avenor.runtimes.manifest.results import why_stale
from avenor.runtimes.manifest.view import OVER_BUDGET, View
from avenor.runtimes.retries import Failure

# What ends a reader that has handed over already changes nothing about that.
_TOO_LATE: Final = frozenset({"timed_out", "lost", "no_progress", "budget_exhausted"})


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt has ended.

    Attributes:
        stop: What has ended it from outside its work; empty if nothing did.
        reason: Of that.
        failure: Why its agent could not go on.
        refused_handoff: Why it did not take what was handed to it.
        said_blocked: What it says that it cannot go on without.
        blocked: Which budget was refused to it.
    """

    stop: str = ""
    reason: str = ""
    failure: Failure | None = None
    refused_handoff: str | None = None
    said_blocked: str | None = None
    blocked: str | None = None


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The state that an attempt comes to, by which field, and why.

    Attributes:
        partial: A ref that keeps what it has left, where that is no candidate.
    """

    state: TaskWord
    permitted_by: str
    reason: str = ""
    partial: str = ""


def conclude(view: View, attempt: Attempt, ended: Ended) -> Conclusion:
    """What an attempt has come to."""
    task = view.state.tasks[attempt.task_id]
    member = view.plan.members[task.member]
    if attempt.handed_to is not None:  # whatever becomes of it then, another owns the task
        return Conclusion(
            state="done", permitted_by=f"{member.field}.tools", reason=f"handed over to {attempt.handed_to}"
        )
    is_owner = member.id == view.plan.evaluator
    has_handed_over = view.verdict_of(attempt) is not None if is_owner else attempt.result is not None
    permits = "evaluation.owner" if is_owner else f"{member.field}.depends_on"
    if ended.stop in _TOO_LATE and has_handed_over and not member.is_writer:
        return Conclusion(state="done", permitted_by=permits, reason=ended.reason)
    if ended.stop and ended.stop != "handed_over":
        return _stopped(member.field, member.is_writer, ended)
    if ended.refused_handoff is not None:
        return Conclusion(state="cancelled", permitted_by=f"{member.field}.tools", reason=ended.refused_handoff)
    if not view.counts_now(task, attempt):
        return _missing(f"stale: stale_epoch: {view.epoch_of(attempt)}, expected {view.state.plan_epoch}")
    if has_handed_over:
        return Conclusion(state="done", permitted_by=permits)
    if ended.blocked is not None:
        return Conclusion(state="failed", permitted_by=f"{member.field}.budget", reason=ended.blocked)
    if ended.failure is not None:
        return _failed(member.field, member.is_writer, ended.failure)
    if ended.said_blocked is not None:
        told = f"it says that it is blocked: {ended.said_blocked}"
        return Conclusion(state="failed", permitted_by=f"{member.field}.tools", reason=told)
    stale = why_stale(view, attempt)
    return _missing("it has ended and has handed over nothing" if stale is None else f"stale: {stale}")


def exit_of(state: TaskWord, reason: str) -> tuple[str, int]:
    """Stop reason and exit code of an attempt, as a phase."""
    match state:
        case "done":
            return "end_turn", ExitCode.OK
        case "timed_out":
            return "timeout", ExitCode.TIMEOUT
        case "cancelled":
            return "cancelled", ExitCode.CANCELLED
        case _:
            is_spent = reason.startswith(OVER_BUDGET)
            return (OVER_BUDGET, ExitCode.BUDGET_EXHAUSTED) if is_spent else (state, ExitCode.FAILED)


def _missing(reason: str) -> Conclusion:
    return Conclusion(state="missing", permitted_by="cancellation.late_result", reason=reason)


def _stopped(field: str, is_writer: bool, ended: Ended) -> Conclusion:
    match ended.stop:
        case "timed_out":
            return Conclusion(state="timed_out", permitted_by="cancellation.worker_timeout", reason=ended.reason)
        case "cancelled":
            return Conclusion(state="cancelled", permitted_by="cancellation.parent_cancel", reason=ended.reason)
        case "lost":
            return _lost(is_writer, ended.reason)
        case "violation":
            return Conclusion(state="failed", permitted_by=f"{field}.tools", reason=ended.reason)
        case "budget_exhausted":
            return Conclusion(state="failed", permitted_by=f"{field}.budget", reason=ended.reason)
        case _:
            return Conclusion(state="failed", permitted_by="run.terminal_states", reason=ended.reason)


def _failed(field: str, is_writer: bool, failure: Failure) -> Conclusion:
    if failure.permanent:
        return Conclusion(state="failed", permitted_by=f"{field}.model_profile", reason=failure.message)
    return _lost(is_writer, failure.message)


def _lost(is_writer: bool, reason: str) -> Conclusion:
    return Conclusion(
        state="effect_unknown" if is_writer else "lost", permitted_by="cancellation.worker_timeout", reason=reason
    )
