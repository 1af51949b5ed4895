"""What the runner makes of a verdict: accept only with all required proof, one bounded repair, then an end. Pure."""

from typing import Final

import msgspec
from msgspec import UNSET

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import CountedAs, EndWord, VerdictEvent
from avenor.protocol.manifest.records import Verdict
from avenor.protocol.manifest.state import Attempt
from avenor.runtimes.manifest.actions import Action, Tell
from avenor.runtimes.manifest.view import NO_PROGRESS, View, names_commit

# The same criterion failed on the same candidate so often: nothing comes of asking again.
REPEATS_LIMIT: Final = 3


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict comes to, by which field, and why where that is not what the evaluator has said."""

    counted_as: CountedAs
    permitted_by: str
    failed_criterion: str = ""
    reason: str = ""


def missing_proof(view: View, revision: str) -> str | None:
    """Which required proof a revision lacks, as a criterion; None if it has all."""
    receipts = view.state.receipts_of(revision)
    for declared in view.plan.manifest.receipts if view.plan.writers_above else []:
        last = [each for each in receipts if each.required and each.name == declared.name][-1:]
        if not last:
            return f"receipt {declared.name}: it was not run on {revision}"
        if not last[0].passed:
            return f"receipt {declared.name}: it has not passed on {revision}"
    for event in view.state.joins.values():
        if event.state == "conflict":
            return f"join {event.join_id}: its conflict is not resolved"
    return None


def has_receipts(view: View, revision: str) -> bool:
    """Whether every required check was run on a revision."""
    ran = {each.name for each in view.state.receipts_of(revision) if each.required}
    return all(declared.name in ran for declared in view.plan.manifest.receipts)


def names_candidate(view: View, name: str) -> bool:
    """Whether an evaluator's name for a revision means the one that is to be judged."""
    revision = view.revision
    if names_commit(name, revision):
        return True
    return view.candidate is None and view.plan.is_source_name(name)


def judge(view: View, verdict: Verdict) -> Judgement:
    """What a verdict comes to."""
    revision = view.revision
    if verdict.verdict == "accept":
        lacking = missing_proof(view, revision)
        if lacking is None:
            return Judgement(counted_as="accepted", permitted_by="evaluation.accepts_when")
        told = _ask_repair(view, lacking)
        return msgspec.structs.replace(told, reason=told.reason or f"accepted without proof: {lacking}")
    if verdict.verdict == "repair":
        return _ask_repair(view, verdict.failed_criterion)
    if verdict.verdict == "needs_human":
        return Judgement(counted_as=_unless_repaired(view, "needs_human"), permitted_by="evaluation.otherwise")
    return Judgement(counted_as=_unless_repaired(view, "rejected"), permitted_by="evaluation.otherwise")


def tell_verdict(view: View, attempt: Attempt, verdict: Verdict) -> VerdictEvent:
    """The event of a verdict that an attempt of the evaluator gives: on the candidate as it is now."""
    judged = judge(view, verdict)
    return VerdictEvent(
        attempt_id=attempt.attempt_id,
        verdict=verdict.verdict,
        revision=view.revision,
        counted_as=judged.counted_as,
        permitted_by=judged.permitted_by,
        failed_criterion=judged.failed_criterion or verdict.failed_criterion or UNSET,
        reason=judged.reason or verdict.reason or UNSET,
    )


def decide_verdict(view: View) -> list[Action]:
    """What follows from the verdict, once the evaluator has ended."""
    task = view.task(view.plan.evaluator)
    if task is None or task.state != "done" or task.latest is None:
        return []
    verdict = view.verdict_of(task.latest)
    if verdict is None:
        return []
    if verdict.counted_as == "repair":
        return [_begin_repair(view, verdict)]
    words: dict[CountedAs, EndWord] = {"accepted": "accepted", "rejected": "rejected", "needs_human": "needs_human"}
    reason = "" if verdict.reason is UNSET else verdict.reason
    if verdict.counted_as != "accepted" and verdict.failed_criterion is not UNSET:
        reason = reason or verdict.failed_criterion
    return [view.end(words[verdict.counted_as], verdict.permitted_by, reason, judged=verdict.revision)]


def _ask_repair(view: View, criterion: str) -> Judgement:
    allowed = view.plan.manifest.evaluation.otherwise
    if _repeats(view, criterion) >= REPEATS_LIMIT:
        return _rejected(criterion, f"{NO_PROGRESS}: {criterion} failed {REPEATS_LIMIT} times on one candidate")
    if view.state.repairs:
        return _rejected(criterion, f"the one repair is used, and it still fails: {criterion}")
    if "one_bounded_repair" in allowed and view.repairer is not None:
        return Judgement(counted_as="repair", permitted_by="evaluation.otherwise", failed_criterion=criterion)
    return Judgement(
        counted_as=_unless_repaired(view, "rejected"), permitted_by="evaluation.otherwise", failed_criterion=criterion
    )


def _rejected(criterion: str, reason: str) -> Judgement:
    return Judgement(
        counted_as="rejected", permitted_by="evaluation.otherwise", failed_criterion=criterion, reason=reason
    )


def _repeats(view: View, criterion: str) -> int:
    """How often the criterion has failed on the candidate as it is, this time included."""
    same = [
        each for each in view.state.verdicts if each.failed_criterion == criterion and each.revision == view.revision
    ]
    return len(same) + 1


def _unless_repaired(view: View, wanted: CountedAs) -> CountedAs:
    """After a repair there is only accepted or rejected; before it, what is declared."""
    if view.state.repairs or wanted in view.plan.manifest.evaluation.otherwise:
        return "rejected" if view.state.repairs else wanted
    return "needs_human" if wanted == "rejected" else "rejected"


def _begin_repair(view: View, verdict: VerdictEvent) -> Tell:
    """Who made the candidate has another go, and then everybody who looks at what it makes.

    The evaluator's task comes last: as long as it is done, what a killed process did not tell is told again.
    """
    writer = view.repairer
    assert writer is not None  # or the verdict had not counted so
    below = view.plan.graph.dependents(writer)
    between = [each for each in view.plan.graph.order() if each in below and each in view.state.tasks]
    again = [writer, *(each for each in between if each != view.plan.evaluator), view.plan.evaluator]
    reason = f"repair: {verdict.failed_criterion}"
    events: list[Event] = [
        view.tell_task(view.state.tasks[each], "created", "evaluation.otherwise", reason=reason)
        for each in again
        if view.state.tasks[each].is_finished
    ]
    return Tell(events=events)
