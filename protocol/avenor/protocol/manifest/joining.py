"""What a join makes of the results that it waits for: it matches versions and keeps disagreement."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from avenor.protocol.manifest.records import Finding, Result, key_of

RejectReason = Literal["wrong_run", "stale_revision", "stale_epoch", "superseded"]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A result as it came in.

    Attributes:
        run_id: The run that the credentials of its attempt belong to.
    """

    task_id: str
    attempt_id: str
    run_id: str
    result: Result


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What counts.

    Attributes:
        requires: The tasks that must all have a result.
        revisions: The names of the one revision that is accepted: as the manifest writes it, and as a commit.
    """

    run_id: str
    requires: Sequence[str]
    revisions: frozenset[str]
    plan_epoch: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is kept for audit and counts for nothing."""

    task_id: str
    attempt_id: str
    reason: RejectReason


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Who claims what."""

    task_id: str
    attempt_id: str
    claim: str
    finding: str


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """One subject, and claims about it that differ, each with the first who made it."""

    subject: str
    sides: list[Side]


class Duplicate(msgspec.Struct, frozen=True, kw_only=True):
    """The same claim about the same subject by tasks of which none depends on another: one of them was for nothing."""

    subject: str
    claim: str
    tasks: list[str]


class JoinOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What has come in.

    Attributes:
        accepted: By task, what counts.
        missing: Required tasks of which nothing counts.
    """

    accepted: dict[str, Submitted]
    rejected: list[Rejected]
    missing: list[str]
    conflicts: list[Conflict]
    duplicates: list[Duplicate]


def why_rejected(submitted: Submitted, expected: Expected) -> RejectReason | None:
    """Why a result does not count; None if it does."""
    if submitted.run_id != expected.run_id:
        return "wrong_run"
    if submitted.result.source_revision not in expected.revisions:
        return "stale_revision"
    if submitted.result.plan_epoch != expected.plan_epoch:
        return "stale_epoch"
    return None


def join(
    expected: Expected,
    results: Sequence[Submitted],
    *,
    depends: Callable[[str, str], bool] = lambda _one, _other: False,
) -> JoinOutcome:
    """Judges results.

    Args:
        expected: What counts.
        results: In the order in which they came. Of one task the first that counts is taken: another attempt at the
            same task is repeated work, and no second finding.
        depends: Whether the first task depends on the second, at any distance.
    """
    accepted: dict[str, Submitted] = {}
    rejected: list[Rejected] = []
    for each in results:
        if each.task_id not in expected.requires:
            continue
        reason = why_rejected(each, expected) or ("superseded" if each.task_id in accepted else None)
        if reason is None:
            accepted[each.task_id] = each
        else:
            rejected.append(Rejected(task_id=each.task_id, attempt_id=each.attempt_id, reason=reason))
    claims = _claims(accepted)
    return JoinOutcome(
        accepted=accepted,
        rejected=rejected,
        missing=[task for task in expected.requires if task not in accepted],
        conflicts=_conflicts(claims),
        duplicates=_duplicates(claims, depends),
    )


# Subject → claim → who made it, both in the words of the first.
_Claims = dict[str, dict[str, list[tuple[Submitted, Finding]]]]


def _claims(accepted: Mapping[str, Submitted]) -> _Claims:
    claims: _Claims = {}
    for submitted in accepted.values():
        for finding in submitted.result.findings:
            by_claim = claims.setdefault(key_of(finding.subject), {})
            by_claim.setdefault(key_of(finding.claim), []).append((submitted, finding))
    return claims


def _conflicts(claims: _Claims) -> list[Conflict]:
    found: list[Conflict] = []
    for by_claim in claims.values():
        firsts = [made[0] for made in by_claim.values()]
        if len({submitted.task_id for made in by_claim.values() for submitted, _ in made}) > 1 and len(firsts) > 1:
            sides = [_side(submitted, finding) for submitted, finding in firsts]
            found.append(Conflict(subject=firsts[0][1].subject, sides=sides))
    return found


def _side(submitted: Submitted, finding: Finding) -> Side:
    return Side(
        task_id=submitted.task_id, attempt_id=submitted.attempt_id, claim=finding.claim, finding=finding.finding
    )


def _duplicates(claims: _Claims, depends: Callable[[str, str], bool]) -> list[Duplicate]:
    found: list[Duplicate] = []
    for by_claim in claims.values():
        for made in by_claim.values():
            apart: list[str] = []
            for submitted, _ in made:
                if not any(_are_related(submitted.task_id, task, depends) for task in apart):
                    apart.append(submitted.task_id)
            if len(apart) > 1:
                first = made[0][1]
                found.append(Duplicate(subject=first.subject, claim=first.claim, tasks=apart))
    return found


def _are_related(one: str, other: str, depends: Callable[[str, str], bool]) -> bool:
    return one == other or depends(one, other) or depends(other, one)
