"""What a manifest run came to, and what of it was waste."""

from typing import Any

import pytest

from avenor.control.figures import figures_of
from avenor.control.reportpage import report_page


def event(at: int, name: str, /, **members: Any) -> dict[str, Any]:
    return {"event": name, "ts": at, **members}


def task(at: int, name: str, state: str, attempt: int = 0, **members: Any) -> dict[str, Any]:
    if attempt:
        members["attempt_id"] = f"{name}.{attempt}"
    return event(at, "avenor.task", task_id=name, member=name, state=state, **members)


def debit(name: str, **amounts: float | str) -> dict[str, Any]:
    return event(1, "avenor.budget", op="debit", account=name, amounts=amounts)


def result(at: int, name: str, subject: str, status: str = "accepted", **finding: Any) -> dict[str, Any]:
    told = {"findings": [{"subject": subject, "claim": "c", "finding": "f", **finding}]}
    return event(at, "avenor.result", task_id=name, attempt_id=f"{name}.1", status=status, result=told)


START = event(
    0,
    "avenor.manifest.start",
    team_id="retry-fix",
    source_revision="git:r1",
    sandbox="bubblewrap",
    limits={"model_calls": 18, "cost_usd": 1.2},
    correlations=[{"members": ["planner", "evaluator"], "shared": "family", "value": "<local>"}],
)


def of(*events: dict[str, Any]) -> dict[str, Any]:
    run = [event(0, "run.start", run_id="run_a", kind="manifest", backend="b", dir="/d"), START, *events]
    manifest: dict[str, Any] = figures_of(run)["manifest"]
    return manifest


def test_a_run_without_a_manifest_has_no_figures_of_one() -> None:
    """The key is always there."""
    assert figures_of([event(0, "run.start", run_id="r")])["manifest"] is None


def test_waiting_for_others_is_told_apart_from_waiting_for_a_place() -> None:
    """What a task waits for has ended at 100, and it begins at 130."""
    figures = of(
        task(0, "planner", "created", waits_for=[]),
        task(0, "reader", "created", waits_for=["planner"]),
        task(0, "writer", "created", waits_for=["reader_join"]),
        task(0, "late", "created", waits_for=["never"]),
        task(10, "planner", "started", 1),
        task(100, "planner", "done", 1),
        task(130, "reader", "started", 1),
        task(200, "reader", "done", 1),
        event(210, "avenor.join", join_id="reader_join", state="joined"),
        task(210, "writer", "started", 1),
        task(300, "writer", "done", 1),
    )

    waits = {each["task_id"]: (each["dependency_wait_ms"], each["queue_ms"]) for each in figures["tasks"]}
    assert waits == {"planner": (0, 10), "reader": (100, 30), "writer": (210, 0), "late": (300, 0)}
    assert (figures["waste"]["dependency_wait_ms"], figures["waste"]["queue_ms"]) == (610, 40)


def test_wall_clock_stands_beside_the_work_of_all() -> None:
    """Two that work at the same time take as long as one."""
    figures = of(
        task(0, "a", "started", 1),
        task(0, "b", "started", 1),
        task(100, "a", "done", 1),
        task(100, "b", "lost", 1),
        task(100, "b", "started", 2),
        event(150, "agent.noise"),
        event(200, "avenor.manifest.end", state="accepted", revision="r2"),
    )

    waste = figures["waste"]
    assert (waste["wall_ms"], waste["work_ms"]) == (200, 300)
    assert (waste["active_workers_most"], waste["active_workers_mean"]) == (2, 1.5)
    assert (waste["lost_attempts"], waste["accepted_tasks"]) == (1, 1)
    assert (figures["state"], figures["revision"], figures["reason"]) == ("accepted", "r2", None)


def test_the_first_end_counts() -> None:
    """As in the run itself."""
    assert (
        of(event(1, "avenor.manifest.end", state="rejected"), event(2, "avenor.manifest.end", state="cancelled"))[
            "state"
        ]
        == "rejected"
    )


def test_cost_is_told_for_all_and_per_accepted_task() -> None:
    """What was spent on the cancelled one counts too."""
    figures = of(
        task(0, "a", "started", 1),
        task(0, "b", "started", 1),
        task(9, "a", "done", 1),
        task(9, "b", "cancelled", 1),
        debit("a", cost_usd=0.18, tokens=1000, model_calls=1),
        debit("a", cost_usd=0.02, tokens="many"),
        debit("b", cost_usd=0.1),
    )

    assert figures["used"] == {"model_calls": 1, "tool_calls": 0, "tokens": 1000, "cost_usd": 0.3, "seconds": 0}
    assert figures["waste"]["cost_per_accepted_task_usd"] == 0.3
    assert (figures["waste"]["cancelled_tasks"], figures["waste"]["cancelled_work_ms"]) == (1, 9)
    assert of()["waste"]["cost_per_accepted_task_usd"] is None


def test_stale_and_late_results_conflicts_and_duplicates_are_counted_once() -> None:
    """A stale result is told when it comes and again by the join."""
    conflict = {"subject": "s", "sides": [{"task_id": "a"}, {"task_id": "b"}]}
    figures = of(
        result(1, "a", "s", "stale"),
        result(2, "z", "s", "late"),
        event(3, "avenor.join", join_id="j", state="conflict", rejected=[{"attempt_id": "a.1"}], conflicts=[conflict]),
        event(4, "avenor.join", join_id="j", state="decided", conflicts=[conflict], duplicates=[{}, 3]),
        event(5, "avenor.verdict", counted_as="repair", verdict="repair"),
        event(6, "avenor.plan", plan_epoch=8),
        event(7, "avenor.handoff", from_task="a", to_task="b", state="accepted"),
    )

    waste = figures["waste"]
    named = ("stale_results", "late_results", "conflicts", "join_disagreements", "duplicate_investigations")
    assert [waste[name] for name in named] == [1, 1, 1, 1, 1]
    assert (waste["repair_depth"], waste["replans"]) == (1, 1)
    assert figures["joins"] == [
        {"join_id": "j", "at": 4, "state": "decided", "conflicts": 1, "duplicates": 1, "rejected": 1}
    ]
    assert figures["handoffs"] == [{"at": 7, "from_task": "a", "to_task": "b", "state": "accepted"}]


@pytest.mark.parametrize(
    ("later", "changed"),
    [
        ([], False),
        ([result(9, "b", " S ")], True),
        ([result(9, "b", "other", evidence=[{"source": "a.1"}])], True),
        ([result(9, "b", "other", evidence=[{"source": "x"}])], False),
        ([result(2, "b", "s")], False),
        ([event(9, "avenor.candidate", files=["src/x.py"])], True),
        ([event(9, "avenor.candidate", files=["src/y.py", 4])], False),
        ([event(9, "avenor.candidate", task_id="a", files=["src/y.py"])], True),
        ([event(9, "avenor.join", join_id="j", conflicts=[{"sides": [{"task_id": "a"}]}])], True),
    ],
)
def test_a_result_without_effect_is_named(later: list[dict[str, Any]], *, changed: bool) -> None:
    """Roles that change nothing can be left out next time."""
    found = result(5, "a", "s", evidence=[{"source": "src/x.py"}])
    figures = of(task(0, "a", "started", 1), task(0, "idle", "created"), found, *later)

    by_task = {each["task_id"]: each["changed_a_decision"] for each in figures["tasks"]}
    assert by_task == {"a": changed, "idle": None}
    assert figures["waste"]["results_without_effect"] == ([] if changed else ["a"])


def test_what_was_denied_and_what_came_near_a_limit_is_listed() -> None:
    """What was allowed is not."""
    figures = of(
        event(1, "avenor.authority", attempt_id="a.1", tool="t", decision="deny", permitted_by="members[0].tools"),
        event(1, "avenor.authority", attempt_id="a.1", tool="t", decision="allow"),
        event(2, "avenor.budget", op="warn", account="a", unit="tokens", reason="80% of tokens is used"),
    )

    assert [each["permitted_by"] for each in figures["authority"]] == ["members[0].tools"]
    assert figures["budget_notes"] == [
        {"op": "warn", "account": "a", "unit": "tokens", "reason": "80% of tokens is used"}
    ]


def test_the_page_shows_all_of_it_as_text() -> None:
    """What agents and manifests wrote is no markup."""
    page = report_page(
        [
            figures_of(
                [
                    event(0, "run.start", run_id="run_a", kind="manifest"),
                    START,
                    task(0, "<writer>", "created", waits_for=[]),
                    task(5, "<writer>", "started", 1, parent_task="planner"),
                    task(6, "<writer>", "lost", 1),
                    task(7, "<writer>", "started", 2),
                    task(9, "<writer>", "done", 2, parent_task="planner"),
                    task(9, "evaluator", "created", waits_for=["<writer>"]),
                    debit("<writer>", tokens=1000, cost_usd=0.003),
                    result(8, "<writer>", "s"),
                    event(9, "avenor.budget", op="block", account="a", unit="tokens", reason="spent"),
                    event(9, "avenor.join", join_id="j", state="joined"),
                    event(9, "avenor.receipt", name="focused", revision="r" * 40, passed=True, output="\n3 passed\n"),
                    event(9, "avenor.receipt", name="slow", passed=False, exit_code=7),
                    event(9, "avenor.receipt", name="hangs", passed=False, output="took too long"),
                    event(9, "avenor.verdict", attempt_id="e.1", verdict="accept", counted_as="accepted", reason="ok"),
                    event(9, "avenor.authority", attempt_id="e.1", tool="<b>", decision="deny"),
                    event(10, "avenor.manifest.end", state="accepted", reason="all proof is there"),
                ]
            )
        ]
    )

    for shown in (
        "&lt;writer&gt;",
        "2 attempts",
        "&lt;local&gt;",
        "&lt;b&gt;",
        "all proof is there",
        "1,000",
        "$0.0030",
        "$1.2000",
        "3 passed",
        "rrrrrrrrrrrr<",
        "(exit code 7)",
        "not started",
        "(ended without an exit code)",
    ):
        assert shown in page
    assert "<writer>" not in page


def test_tokens_and_cost_of_a_run_are_those_of_its_ledger() -> None:
    """What agents say of themselves stands with their turns; it may be the last of their requests only."""
    told = {"input_tokens": 7, "output_tokens": 0, "total_tokens": 7, "cached_read_tokens": 0, "cost_usd": 0.0}
    log = [
        event(0, "run.start", run_id="run_a", kind="manifest"),
        START,
        event(1, "turn.end", stop_reason="end_turn", usage=told),
    ]
    page = report_page([figures_of([*log, debit("a", tokens=2345, cost_usd=0.5)])])

    assert "<dt>tokens</dt><dd>2,345</dd>" in page
    assert "<dt>cost</dt><dd>$0.5000</dd>" in page
    assert "<dt>cost</dt><dd>–</dd>" in report_page([figures_of(log)])
