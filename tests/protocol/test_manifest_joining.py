"""Joins match run, revision and epoch, and preserve disagreement."""

import msgspec
import pytest

from avenor.protocol.manifest.joining import Duplicate, Expected, Rejected, Submitted, join
from avenor.protocol.manifest.records import Finding, Result

EXPECTED = Expected(run_id="run_1", requires=["a", "b"], revisions=frozenset({"git:r1", "9f1c"}), plan_epoch=7)


def _from(task: str, claim: str = "counts", *, attempt: int = 1, subject: str = "retry limit") -> Submitted:
    finding = Finding(subject=subject, claim=claim, finding=f"{task} says {claim}")
    result = Result(source_revision="git:r1", plan_epoch=7, findings=[finding])
    return Submitted(task_id=task, attempt_id=f"{task}.{attempt}", run_id="run_1", result=result)


def _with(submitted: Submitted, **changes: object) -> Submitted:
    return msgspec.structs.replace(submitted, result=msgspec.structs.replace(submitted.result, **changes))


def test_matching_results_of_all_required_tasks_join() -> None:
    """By either name of the revision."""
    outcome = join(
        EXPECTED, [_from("a"), _with(_from("b", subject="tests"), source_revision="9f1c"), _from("stranger")]
    )

    assert {task: each.attempt_id for task, each in outcome.accepted.items()} == {"a": "a.1", "b": "b.1"}
    assert (outcome.rejected, outcome.missing, outcome.conflicts, outcome.duplicates) == ([], [], [], [])


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (_with(_from("b"), plan_epoch=6), "stale_epoch"),
        (_with(_from("b"), source_revision="git:r0"), "stale_revision"),
        (msgspec.structs.replace(_from("b"), run_id="run_0"), "wrong_run"),
    ],
)
def test_a_result_of_another_version_is_rejected_and_its_task_is_missing(late: Submitted, reason: str) -> None:
    """It is kept for audit, and not what arrived last decides."""
    outcome = join(EXPECTED, [_from("a"), late])

    assert [(each.task_id, each.reason) for each in outcome.rejected] == [("b", reason)]
    assert outcome.missing == ["b"]


def test_of_two_attempts_at_one_task_the_first_that_counts_is_taken() -> None:
    """Repeated work is no second finding, and no conflict."""
    outcome = join(
        EXPECTED, [_with(_from("a"), plan_epoch=6), _from("a", attempt=2), _from("a", "does not", attempt=3)]
    )

    assert outcome.accepted["a"].attempt_id == "a.2"
    assert outcome.rejected == [
        Rejected(task_id="a", attempt_id="a.1", reason="stale_epoch"),
        Rejected(task_id="a", attempt_id="a.3", reason="superseded"),
    ]
    assert outcome.conflicts == []


def test_different_claims_about_one_subject_are_a_conflict_with_both_sides() -> None:
    """Nothing is averaged."""
    outcome = join(EXPECTED, [_from("a", "counts"), _from("b", "Does not count", subject="Retry  limit")])

    assert [conflict.subject for conflict in outcome.conflicts] == ["retry limit"]
    assert [(side.task_id, side.claim, side.finding) for side in outcome.conflicts[0].sides] == [
        ("a", "counts", "a says counts"),
        ("b", "Does not count", "b says Does not count"),
    ]


def test_one_member_that_says_two_things_is_in_no_conflict_with_itself() -> None:
    """A conflict is between members."""
    both = [Finding(subject="s", claim=claim, finding=claim) for claim in ("one", "two")]

    outcome = join(EXPECTED, [_with(_from("a"), findings=both), _from("b")])

    assert outcome.conflicts == []


def test_the_same_claim_of_two_that_do_not_depend_on_each_other_is_a_duplicate() -> None:
    """One of the two investigations was for nothing."""
    outcome = join(EXPECTED, [_from("a"), _from("b", "COUNTS")])

    assert outcome.duplicates == [Duplicate(subject="retry limit", claim="counts", tasks=["a", "b"])]


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a")])
def test_a_claim_that_a_dependent_repeats_is_no_duplicate(pair: tuple[str, str]) -> None:
    """It was told, and built on it."""
    outcome = join(EXPECTED, [_from("a"), _from("b")], depends=lambda one, other: (one, other) == pair)

    assert outcome.duplicates == []
