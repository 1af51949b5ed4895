"""After an attempt's agent is gone: the proof by diff, the candidate, what is kept, and the telling of it all.

And after all of them: of candidates of older plans only what counts stays on the candidate's branch.
"""

from typing import Final

import msgspec
import structlog
import trio
from msgspec import UNSET

from avenor.host.failpoints import failpoint
from avenor.protocol.errors import AvenorError
from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import AuthorityEvent, CandidateEvent, LeaseEvent
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.host import RunHost
from avenor.runtimes.manifest.attempts import LiveAttempt, Setting
from avenor.runtimes.manifest.conclusions import Conclusion, Ended, conclude, exit_of
from avenor.runtimes.manifest.scheduler import LEASE_SECONDS
from avenor.runtimes.manifest.services import Workshop
from avenor.runtimes.manifest.view import VIOLATION, View
from avenor.runtimes.phases import PhaseResult, tell_end

# Git on a large repository and a slow disk; only a git that hangs takes longer.
GIT_SECONDS: Final = 120.0

_logger: Final = structlog.get_logger()


async def finish(setting: Setting, task: Task, attempt: Attempt, live: LiveAttempt, seconds: float) -> None:
    """Tells what an attempt has come to, once that is proven.

    Args:
        setting: What it worked with.
        task: What it was at.
        attempt: It.
        live: What has happened in it; its agent is gone.
        seconds: How long it has lasted.
    """
    until = setting.journal.clock.now_ms() + round((GIT_SECONDS + LEASE_SECONDS) * 1000)
    if not attempt.is_over:
        setting.journal.tell([LeaseEvent(attempt_id=attempt.attempt_id, until_ms=until)])
    events: list[Event] = []
    concluded = conclude(setting.look(), attempt, _ended(setting, live))
    try:
        with trio.fail_after(GIT_SECONDS):
            concluded, events = await _prove(setting, task, attempt, concluded)
    except (AvenorError, trio.TooSlowError) as error:
        told = await _leave(setting, task, attempt, error)
        concluded = Conclusion(state="failed", permitted_by=f"{live.member.field}.allowed_writes", reason=told)
    setting.metering.spent(attempt.attempt_id, seconds)
    if not attempt.is_over:
        events.append(_tell_end(setting, task, attempt, concluded))
    failpoint("manifest.before_end")
    setting.journal.tell(events)
    await _tell_phase(setting, live, concluded)
    if concluded.state != "effect_unknown" and attempt.state != "effect_unknown":
        await close_worktree(setting, attempt.attempt_id)


async def reconcile(setting: Setting, task: Task, attempt: Attempt) -> None:
    """Looks what a lost writer has left, and keeps it aside where it is inside its rights."""
    member = setting.look().plan.members[task.member]
    partial, reason = "", "its worktree is as it was"
    try:
        with trio.fail_after(GIT_SECONDS):
            change = await setting.workshop.changes(attempt.attempt_id, member.writes)
            if change.outside:
                reason = f"it has written outside what it may write: {', '.join(change.outside)}"
            elif change.files:
                partial = await _keep(setting, attempt)
                reason = f"kept aside: {', '.join(change.files)}"
    except (AvenorError, trio.TooSlowError) as error:
        reason = await _leave(setting, task, attempt, error)
    event = setting.look().tell_task(
        task, "reconciled", f"{member.field}.allowed_writes", reason=reason, attempt=attempt
    )
    event.partial = partial or UNSET
    setting.journal.tell([event])
    await close_worktree(setting, attempt.attempt_id)


async def close_worktree(setting: Setting, attempt_id: str) -> None:
    """Removes a worktree; what cannot be removed is told, and stays until the run's directory goes."""
    try:
        with trio.fail_after(GIT_SECONDS):
            await setting.workshop.close(attempt_id)
    except (AvenorError, OSError, trio.TooSlowError) as error:
        setting.host.report("worktree", f"the worktree of {attempt_id} cannot be removed: {error}")


async def set_aside(host: RunHost, workshop: Workshop, view: View) -> None:
    """Parts candidates of older plans from what counts: they are kept as what was lost, and are on no other branch."""
    stale = view.stale_candidates
    try:
        for each in stale:
            await workshop.move(_lost_branch(view, each.attempt_id), "", each.revision)
        if stale and stale[-1] is view.state.candidates[-1]:
            await workshop.move(view.plan.branch, stale[-1].revision, view.revision)
    except AvenorError as error:
        host.report("branches", f"what belongs to an older plan is not set aside: {error}")


def _ended(setting: Setting, live: LiveAttempt) -> Ended:
    return Ended(
        stop="" if live.stopped is None else live.stopped.word,
        reason="" if live.stopped is None else live.stopped.reason,
        failure=live.failure,
        refused_handoff=live.refused_handoff,
        said_blocked=live.said_blocked,
        blocked=setting.metering.blocked.get(live.attempt_id),
    )


async def _prove(
    setting: Setting, task: Task, attempt: Attempt, concluded: Conclusion
) -> tuple[Conclusion, list[Event]]:
    """What a writer has changed becomes the candidate, if all of it is inside its rights and it has done its task."""
    member = setting.look().plan.members[task.member]
    if concluded.state == "effect_unknown" or attempt.is_over:
        return concluded, []
    if not member.is_writer and setting.workshop.is_sandboxed:
        return concluded, []  # nothing was writable
    change = await setting.workshop.changes(attempt.attempt_id, member.writes)
    if change.outside:
        return _violation(setting, attempt, member.field, change.outside, concluded)
    if not change.files or not member.is_writer:
        return concluded, []
    if concluded.state != "done" or attempt.handed_to is not None:
        return msgspec.structs.replace(concluded, partial=await _keep(setting, attempt)), []
    plan = setting.look().plan
    # The run is in it, for another one may make the very same change in the same second.
    message = f"{member.id}: candidate of {plan.manifest.team_id}\n\nAvenor-Run: {plan.run_id}"
    revision = await setting.workshop.commit(attempt.attempt_id, plan.branch, message)
    candidate = CandidateEvent(
        task_id=task.task_id,
        attempt_id=attempt.attempt_id,
        revision=revision,
        base=attempt.revision,
        files=change.files,
        digest=change.digest,
        permitted_by=f"{member.field}.allowed_writes",
    )
    return concluded, [candidate]


def _violation(
    setting: Setting, attempt: Attempt, field: str, outside: list[str], concluded: Conclusion
) -> tuple[Conclusion, list[Event]]:
    files = ", ".join(outside)
    event = AuthorityEvent(
        attempt_id=attempt.attempt_id,
        tool="write",
        tool_kind="edit",
        decision="violation",
        permitted_by=f"{field}.allowed_writes",
        detail=files,
    )
    if concluded.state != "done":
        return concluded, [event]
    told = f"{VIOLATION}: it has changed what it may not change: {files}"
    return Conclusion(state="failed", permitted_by=f"{field}.allowed_writes", reason=told), [event]


async def _keep(setting: Setting, attempt: Attempt) -> str:
    return await setting.workshop.keep(attempt.attempt_id, _lost_branch(setting.look(), attempt.attempt_id))


def _lost_branch(view: View, attempt_id: str) -> str:
    return f"{view.plan.branches}/lost/{attempt_id}"


async def _leave(setting: Setting, task: Task, attempt: Attempt, error: Exception) -> str:
    """Keeps the files of a writer whose change git did not take; returns what to say of it."""
    told = f"its change is not taken: {error}"
    if not setting.look().plan.is_writer(task.member):
        return told
    try:
        with trio.fail_after(GIT_SECONDS):
            place = await setting.workshop.leave(attempt.attempt_id)
    except (AvenorError, trio.TooSlowError) as problem:
        return f"{told}; nor can its files be kept: {problem}"
    return f"{told}; its files are in {place}" if place else told


def _tell_end(setting: Setting, task: Task, attempt: Attempt, concluded: Conclusion) -> Event:
    event = setting.look().tell_task(
        task, concluded.state, concluded.permitted_by, reason=concluded.reason or UNSET, attempt=attempt
    )
    event.partial = concluded.partial or UNSET
    return event


async def _tell_phase(setting: Setting, live: LiveAttempt, concluded: Conclusion) -> None:
    stop_reason, exit_code = exit_of(concluded.state, concluded.reason)
    if not live.session_id:
        live.tell_unopened()
    result = PhaseResult(stop_reason=stop_reason, exit_code=exit_code, session_id=live.session_id)
    await tell_end(setting.host, result, live.mark)
