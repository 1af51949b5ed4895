"""What a member is told first: a fixed frame, and exactly the context sources that its manifest declares.

Nothing here comes from another member but its typed result, or the contract that it has written for this one.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from avenor.protocol.manifest.binding import BoundContext, BoundMember
from avenor.protocol.manifest.events import HandoffRecord, ReceiptEvent
from avenor.protocol.manifest.records import FENCE, Result, unresolved_questions
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.joins import outcome_of
from avenor.runtimes.manifest.services import Workshop
from avenor.runtimes.manifest.view import View

LIMIT_BYTES: Final = 64 * 1024
_TEST_WORDS: Final = ("test", "spec")


async def first_prompt(view: View, workshop: Workshop, task: Task, attempt: Attempt, directory: str) -> str:
    """The first prompt of an attempt.

    Args:
        view: The run.
        workshop: Reads files, commands and git.
        task: What the attempt is at.
        attempt: It.
        directory: Where it works.
    """
    member = view.plan.members[task.member]
    parts = [_frame(view, task, attempt, member)]
    for context in member.contexts:
        text = await _context(view, workshop, task, attempt, context, directory)
        parts.append(f"## {context.name}\n\n{bounded(text).rstrip()}")
    parts.append(_handing_over(view, member, attempt))
    return "\n\n".join(parts) + "\n"


def reminder(view: View, member: BoundMember) -> str:
    """What a member is told once that has ended its turn without handing anything over."""
    what, tool = _what_is_due(view, member)
    return (
        f"Your turn has ended and you have not handed over {what}. Without it your work counts as missing. Hand it "
        f"over now: with the tool {tool}, or as the fenced block `{FENCE}` at the end of your message, as you were "
        "told. Do nothing else."
    )


def bounded(text: str) -> str:
    """A text, cut between two lines where it is too long for a prompt; then it says so."""
    data = text.encode()
    if len(data) <= LIMIT_BYTES:
        return text
    kept = data[:LIMIT_BYTES].decode(errors="ignore").rpartition("\n")[0]
    return f"{kept}\n[cut: {len(data) - len(kept.encode())} more bytes]"


# ---- the frame


def _frame(view: View, task: Task, attempt: Attempt, member: BoundMember) -> str:
    lines = [
        f"You are `{member.id}`, one member of the team `{view.plan.manifest.team_id}`.",
        f"Your role: {member.role}.",
        _authority(member),
    ]
    if task.contract:
        lines += ["", "## Your task", "", task.contract]
    if (criterion := _repair(view, task, attempt)) is not None:
        lines += [
            "",
            "## Repair",
            "",
            "The candidate that you find in your working folder was not accepted. Mend this, and nothing else:",
            criterion,
        ]
    return "\n".join(lines)


def _authority(member: BoundMember) -> str:
    tools = ", ".join(grant.tool for grant in member.capabilities.grants) or "none"
    own = ", ".join(member.own_tools)
    writes = ", ".join(member.writes) or "nothing"
    return (
        f"You may use: {tools}. The server `avenor` offers you: {own}. You may change: {writes}. All else is refused."
    )


def _repair(view: View, task: Task, attempt: Attempt) -> str | None:
    """The criterion that failed of what the attempt begins with, for the writer that mends it."""
    verdicts = [
        each for each in view.state.verdicts if each.counted_as == "repair" and each.revision == attempt.revision
    ]
    if not verdicts or task.task_id != view.repairer:
        return None
    last = verdicts[-1]
    criterion = "" if last.failed_criterion is UNSET else last.failed_criterion
    return criterion if last.reason in (UNSET, criterion) else f"{criterion}\n{last.reason}"


def _handing_over(view: View, member: BoundMember, attempt: Attempt) -> str:
    revision, epoch = attempt.revision, view.epoch_of(attempt)
    what, tool = _what_is_due(view, member)
    lines = ["## Handing over", ""]
    if member.id == view.plan.evaluator:
        lines += [
            f"End with {what}, with the tool {tool}. Without that tool, end your last message with this block:",
            "",
            f"```json {FENCE}",
            f'{{"verdict": "accept|repair|reject|needs_human", "revision": "{view.revision}", '
            '"failed_criterion": "for repair: which one", "reason": "…"}',
            "```",
        ]
        return "\n".join(lines)
    lines += [
        f"End with {what}, with the tool {tool}. Without that tool, end your last message with this block:",
        "",
        f"```json {FENCE}",
        f'{{"source_revision": "{revision}", "plan_epoch": {epoch}, "findings": [{{"subject": "what it is about", '
        '"claim": "what holds of it, in a few words", "finding": "the whole of it", '
        '"evidence": [{"source": "path", "location": "lines", "quote": "…"}], "uncertainty": "low|medium|high", '
        '"unresolved_question": "what somebody else has to decide, if anything"}]}',
        "```",
        "",
        f"Your source revision is {revision} and your plan epoch is {epoch}. If you cannot go on, add a member "
        '"blocked" that says without what.',
    ]
    return "\n".join(lines)


def _what_is_due(view: View, member: BoundMember) -> tuple[str, str]:
    if member.id == view.plan.evaluator:
        return "your verdict", "submit_verdict"
    return "your result", "submit_result"


# ---- the declared sources


async def _context(
    view: View, workshop: Workshop, task: Task, attempt: Attempt, context: BoundContext, directory: str
) -> str:
    if context.kind in ("file", "command"):
        return await workshop.source(context, directory)
    if context.kind == "text":
        return context.value
    match context.value:
        case "task_contract":
            return view.plan.manifest.contract
        case "source_revision":
            return f"{view.plan.manifest.source_revision}, which is commit {attempt.revision}"
        case "assigned_paths":
            return "\n".join(task.paths) or "No paths are assigned: the whole repository is yours to look at."
        case "repository_map":
            return await workshop.files_at(attempt.revision)
        case "test_map":
            return _tests(await workshop.files_at(attempt.revision))
        case "joined_reader_evidence" | "joined_evidence":
            return evidence(view, task.member)
        case "candidate_branch":
            writes = "\n".join(view.plan.members[task.member].writes) or "nothing"
            return f"Branch {view.plan.branch}, now at {attempt.revision}. You may change in it:\n{writes}"
        case "candidate_revision":
            return _candidate(view)
        case "candidate_diff":
            return await candidate_diff(view, workshop)
        case "raw_receipts":
            return receipts(view.state.receipts_of(view.revision))
        case "handoff_record":
            return _handoff(view, task)
        case _:
            raise AssertionError(context.value)


def evidence(view: View, member_id: str) -> str:
    """What was handed over by those that a member waits for, with every disagreement kept, as JSON."""
    results: dict[str, Result] = {}
    conflicts: list[object] = []
    for need in view.plan.direct_needs(member_id):
        if need in view.plan.joins:
            found = outcome_of(view, view.plan.joins[need])
            for name, submitted in found.accepted.items():
                attempt = view.state.attempt(submitted.attempt_id)
                results[name] = submitted.result if attempt is None or attempt.result is None else attempt.result
            event = view.state.joins[need]
            decision = None if event.decision is UNSET else event.decision
            conflicts += [{"join": need, "decision": decision, "conflict": each} for each in event.conflicts]
        elif (task := view.task(need)) is not None and task.result is not None:
            results[need] = task.result
    shown = {
        "results": {name: _shown(result) for name, result in results.items()},
        "conflicts": conflicts,
        "unresolved_questions": unresolved_questions(list(results.values())),
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode()


def receipts(found: Sequence[ReceiptEvent]) -> str:
    """Receipts as they were taken, raw."""
    if not found:
        return "There are no receipts."
    parts: list[str] = []
    for each in found:
        exit_code = "none: it was ended" if each.exit_code is UNSET else each.exit_code
        parts.append(
            f"### {each.name} ({each.receipt_id})\nrevision: {each.revision}\nexit code: {exit_code}\n"
            f"passed: {'yes' if each.passed else 'no'}\ndigest: {each.digest}\noutput:\n{each.output}"
        )
    return "\n\n".join(parts)


async def candidate_diff(view: View, workshop: Workshop, path: str = "") -> str:
    """What the candidate changes of the source revision."""
    assert view.state.start is not None
    if view.candidate is None:
        return "There is no candidate: nothing was changed."
    return await workshop.diff(view.state.start.revision, view.candidate.revision, path)


def _shown(result: Result) -> object:
    """What counts of a result: not the words in which its member has summed it up."""
    return {"plan_epoch": result.plan_epoch, "revision": result.source_revision, "findings": result.findings}


def _candidate(view: View) -> str:
    candidate = view.candidate
    if candidate is None:
        return f"There is no candidate: nothing was changed. What is to be judged is commit {view.revision}."
    files = "\n".join(candidate.files)
    return f"{candidate.revision} (branch {view.plan.branch})\ndigest: {candidate.digest}\nchanged files:\n{files}"


def _tests(files: str) -> str:
    found = [line for line in files.splitlines() if any(word in line.lower() for word in _TEST_WORDS)]
    return "\n".join(found) or "There are no files with tests in their names."


def _handoff(view: View, task: Task) -> str:
    record: HandoffRecord | None = None
    for (_, receiver), event in view.state.handoffs.items():
        if receiver == task.task_id and event.record is not UNSET:
            record = event.record
    if record is None:
        return "Nothing was handed over."
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
