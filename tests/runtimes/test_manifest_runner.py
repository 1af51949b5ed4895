"""A manifest from its first task to its terminal state, in virtual time."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.events import PermissionRequest
from avenor.protocol.manifest.events import (
    AuthorityEvent,
    CandidateEvent,
    JoinEvent,
    ManifestStart,
    ReceiptEvent,
    ResultEvent,
    VerdictEvent,
)
from avenor.protocol.manifest.model import Evaluation
from avenor.runtimes.manifest.mcp_http import ToolReply
from tests.runtimes.manifest_rig import PINNED, Actor, ManifestRig, hangs, join, manifest, member, seed, writes
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]


async def test_the_manifest_of_the_seed_is_accepted(tmp_path: Path, autojump_clock: MockClock) -> None:
    """From the planner over two readers, their join, one writer and the checks to the verdict."""
    rig = ManifestRig(tmp_path)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("DONE", 0, "accepted")
    assert rig.started() == ["planner.1", "implementation_reader.1", "test_reader.1", "writer.1", "evaluator.1"]
    assert [event.state for event in rig.only(JoinEvent)] == ["joined"]
    assert [event.revision for event in rig.only(CandidateEvent)] == ["r2"]
    assert [(event.name, event.passed, event.revision) for event in rig.only(ReceiptEvent)] == [
        ("focused_tests", True, "r2")
    ]
    assert [event.counted_as for event in rig.only(VerdictEvent)] == ["accepted"]
    assert (rig.end.state, rig.end.revision) == ("accepted", "r2")
    assert len(rig.only(ManifestStart)) == 1


# ---- the worked scheduler trace of the seed


async def test_a_stale_epoch_is_rejected_by_the_join_and_the_writer_never_starts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A reader that returns epoch 6 where 7 is expected: kept for audit, rejected, and on_missing follows."""

    async def returns_epoch_6(actor: Actor) -> None:
        assert "stale_epoch" in (await actor.submit(plan_epoch=6)).text

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=returns_epoch_6)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("BLOCKED", 5, "blocked")
    assert "writer.1" not in rig.started()
    (joined,) = rig.only(JoinEvent)
    assert (joined.state, joined.missing, joined.permitted_by) == ("missing", ["test_reader"], "joins[0].on_missing")
    assert [(each.task_id, each.reason) for each in joined.rejected] == [("test_reader", "stale_epoch")]
    assert [event.status for event in rig.only(ResultEvent, task_id="test_reader")] == ["stale"]
    assert rig.end.permitted_by == "joins[0].on_missing"


async def test_a_stale_revision_is_rejected_by_the_join(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What was found at another revision does not count."""

    async def looks_elsewhere(actor: Actor) -> None:
        await actor.submit(source_revision="git:r0")

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=looks_elsewhere)
    await rig.run()
    assert [each.reason for each in rig.only(JoinEvent)[0].rejected] == ["stale_revision"]
    assert [event.status for event in rig.only(ResultEvent, task_id="test_reader")] == ["stale"]


async def test_the_name_of_the_revision_in_the_manifest_is_as_good_as_the_commit(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """`git:r1` and `r1` name what `git:r1` was resolved to."""

    async def names_it(actor: Actor) -> None:
        await actor.submit(source_revision="git:r1")

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=names_it)
    assert (await rig.run()).exit_code == 0


async def test_on_missing_may_reject(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A join whose manifest says so rejects the run, and cancels the readers that go on."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    declared = seed(joins=[join("reader_join", "implementation_reader", "test_reader", on_missing="rejected")])
    rig = ManifestRig(tmp_path, declared)
    rig.play(test_reader=says_nothing, implementation_reader=hangs)
    outcome = await rig.run()
    assert (outcome.stop_reason, outcome.exit_code) == ("rejected", 1)
    assert rig.history("implementation_reader")[-1] == "cancelled"


async def test_a_failed_receipt_makes_an_accept_a_repair_and_a_new_candidate_can_be_accepted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Without proof nothing is accepted; the writer is told which criterion failed, and r3 is judged anew."""
    rig = ManifestRig(tmp_path)
    rig.workshop.failing["focused_tests"] = lambda revision: revision == "r2"
    outcome = await rig.run()
    assert outcome.exit_code == 0
    verdicts = rig.only(VerdictEvent)
    assert [(each.verdict, each.counted_as, each.revision) for each in verdicts] == [
        ("accept", "repair", "r2"),
        ("accept", "accepted", "r3"),
    ]
    assert verdicts[0].failed_criterion == "receipt focused_tests: it has not passed on r2"
    assert rig.started()[-4:] == ["writer.1", "evaluator.1", "writer.2", "evaluator.2"]
    assert [rig.workshop.opened[each] for each in ("writer.1", "writer.2", "evaluator.2")] == [PINNED, "r2", "r3"]
    first, second = rig.prompts("writer")
    assert "receipt focused_tests" not in first
    assert "receipt focused_tests: it has not passed on r2" in second
    assert rig.workshop.checked == [("focused_tests", "r2"), ("focused_tests", "r3")]


async def test_a_second_failure_ends_in_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    """There is one repair; after it there is only accepted or rejected."""
    rig = ManifestRig(tmp_path)
    rig.workshop.failing["focused_tests"] = lambda _revision: True
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("FAILED", 1, "rejected")
    assert [each.counted_as for each in rig.only(VerdictEvent)] == ["repair", "rejected"]
    assert rig.history("writer").count("started") == 2


async def test_after_a_repair_needs_human_counts_as_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An evaluator that has used its repair cannot put the decision off."""

    async def asks_for_repair(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    async def puts_off(actor: Actor) -> None:
        await actor.judge("needs_human")

    rig = ManifestRig(tmp_path)
    rig.play(evaluator=[asks_for_repair, puts_off])
    await rig.run()
    assert rig.end.state == "rejected"


@pytest.mark.parametrize(
    ("verdict", "otherwise", "state"),
    [
        ("reject", ["one_bounded_repair", "rejected", "needs_human"], "rejected"),
        ("reject", ["needs_human"], "needs_human"),
        ("needs_human", ["one_bounded_repair", "rejected", "needs_human"], "needs_human"),
        ("needs_human", ["rejected"], "rejected"),
        ("repair", ["rejected", "needs_human"], "rejected"),
        ("repair", ["needs_human"], "needs_human"),
    ],
)
async def test_a_verdict_ends_the_run_in_a_way_that_is_declared(
    tmp_path: Path, autojump_clock: MockClock, verdict: str, otherwise: list[str], state: str
) -> None:
    """`otherwise` says which ways there are when a candidate is not accepted."""

    async def judges(actor: Actor) -> None:
        await actor.judge(verdict, failed_criterion="names")

    declared = seed()
    evaluation = msgspec.convert({**msgspec.to_builtins(declared.evaluation), "otherwise": otherwise}, Evaluation)
    rig = ManifestRig(tmp_path, msgspec.structs.replace(declared, evaluation=evaluation))
    rig.play(evaluator=judges)
    await rig.run()
    assert rig.end.state == state


async def test_a_verdict_on_another_revision_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What was judged must be the candidate; the evaluator may look again."""
    replies: list[ToolReply] = []

    async def judges_twice(actor: Actor) -> None:
        replies.append(await actor.judge("accept", revision="r1"))
        replies.append(await actor.judge("accept"))
        replies.append(await actor.judge("reject"))

    rig = ManifestRig(tmp_path)
    rig.play(evaluator=judges_twice)
    assert (await rig.run()).exit_code == 0
    assert [each.is_error for each in replies] == [True, False, True]
    assert "the candidate is r2" in replies[0].text


async def test_what_is_accepted_is_what_was_judged(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A commit that comes before the evaluator's turn ends is not what its verdict means."""

    async def is_slow(actor: Actor) -> None:
        await trio.sleep(5)
        await writes(actor)

    async def judges(actor: Actor) -> None:
        await actor.judge("accept")
        await rig.until(lambda: len(rig.only(CandidateEvent)) == 2)

    declared = manifest(
        member("one", writes=["src/retry.py"]),
        member("other", writes=["src/retry.py"]),
        member("evaluator", needs=["one"], verdict=True),
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(one=writes, other=is_slow, evaluator=judges)
    await rig.run()
    assert [(each.revision, each.counted_as) for each in rig.only(VerdictEvent)] == [("r2", "accepted")]
    assert (rig.end.revision, rig.end.final_output) == ("r2", "accepted: r2 on branch avenor/run_1/candidate")


async def test_only_the_owner_of_the_evaluation_has_a_verdict(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A role name grants nothing: another member's verdict is refused, by what its manifest declares."""
    replies: list[ToolReply] = []

    async def judges(actor: Actor) -> None:
        actor.write("src/retry.py")
        replies.append(await actor.judge("accept"))
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(writer=judges)
    await rig.run()
    assert replies[0].is_error
    assert [(each.tool, each.decision) for each in rig.only(AuthorityEvent)] == [("submit_verdict", "deny")]


async def test_a_repair_is_judged_once_all_that_look_at_it_have_looked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Also behind a join: it holds the old results while the writer mends what they were about."""

    async def is_slow(actor: Actor) -> None:
        await trio.sleep(5)
        await writes(actor)

    async def judges(actor: Actor) -> None:
        await actor.judge("repair" if actor.revision == "r2" else "accept", failed_criterion="names")

    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("reviewer", needs=["writer"]),
        member("evaluator", needs=["reviews"], verdict=True),
        joins=[join("reviews", "reviewer")],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(writer=is_slow, evaluator=judges)
    assert (await rig.run()).exit_code == 0
    assert rig.started()[3:] == ["writer.2", "reviewer.2", "evaluator.2"]
    assert [event.accepted for event in rig.only(JoinEvent)] == [{"reviewer": "reviewer.1"}, {"reviewer": "reviewer.2"}]


async def test_what_was_joined_before_a_later_writer_stays_joined(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A reader between two writers has looked at what the first has made, and is not missing once the second has."""
    declared = manifest(
        member("one", writes=["src/retry.py"]),
        member("reader", needs=["one"]),
        member("other", needs=["between"], writes=["src/retry.py"]),
        member("evaluator", needs=["other"], verdict=True),
        joins=[join("between", "reader")],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(one=writes, other=writes)
    assert (await rig.run()).exit_code == 0
    assert [event.state for event in rig.only(JoinEvent)] == ["joined"]


# ---- missing, late, messages


async def test_a_member_is_reminded_once_and_then_its_result_is_missing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Missing output is never an empty result."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    rig = ManifestRig(tmp_path)
    rig.play(planner=says_nothing)
    outcome = await rig.run()
    assert len(rig.backend.sessions[0].prompts) == 2
    assert "have not handed over your result" in rig.backend.sessions[0].prompts[1]
    assert rig.history("planner")[-1] == "missing"
    assert (outcome.exit_code, rig.end.state) == (5, "needs_human")


async def test_a_result_can_stand_at_the_end_of_a_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An agent without tools of ours says its result in a fenced block, after the reminder if need be."""

    async def says_it(actor: Actor) -> None:
        if "have not handed over" in actor.text:
            record: dict[str, Any] = {"source_revision": actor.revision, "plan_epoch": 7}
            record["findings"] = [{"subject": "s", "claim": "c", "finding": "f"}]
            actor.session.say(f"Here it is.\n```json avenor-result\n{json.dumps(record)}\n```\n")
        else:
            actor.session.say("```json avenor-result\n{}\n```\n")

    async def judges(actor: Actor) -> None:
        record = {"verdict": "accept", "revision": actor.revision}
        actor.session.say(f"```avenor-result\n{json.dumps(record)}\n```\n")

    rig = ManifestRig(tmp_path)
    rig.play(planner=says_it, evaluator=judges)
    assert (await rig.run()).exit_code == 0
    assert "What you have handed over cannot be used" in rig.backend.sessions[0].prompts[1]
    found = [(event.source, event.status) for event in rig.only(ResultEvent, task_id="planner")]
    assert found == [("message", "invalid"), ("message", "accepted")]


async def test_a_second_result_of_an_attempt_is_late(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The first one counts."""

    async def submits_twice(actor: Actor) -> None:
        await actor.submit(claim="one")
        assert (await actor.submit(claim="two")).is_error

    rig = ManifestRig(tmp_path)
    rig.play(planner=submits_twice)
    assert (await rig.run()).exit_code == 0
    assert [event.status for event in rig.only(ResultEvent, task_id="planner")] == ["accepted", "late"]


async def test_what_comes_after_the_end_of_an_attempt_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Credentials are worth nothing after the attempt, whatever they are used for."""
    late: list[Actor] = []

    async def leaves(actor: Actor) -> None:
        late.append(actor)
        await actor.submit()

    async def tries(actor: Actor) -> None:
        reply = await late[0].submit()
        assert reply.is_error
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=leaves, test_reader=tries)
    assert (await rig.run()).exit_code == 0
    assert sorted(rig.desk.admitted) == sorted(rig.started())
    assert set(rig.started()) <= set(rig.desk.revoked)


async def test_a_member_that_says_it_is_blocked_stops_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One branch that cannot go on decides: the sibling is cancelled, and what was found stays attached."""

    async def is_blocked(actor: Actor) -> None:
        await actor.submit(blocked="the account has no access")

    rig = ManifestRig(tmp_path)
    rig.play(test_reader=is_blocked, implementation_reader=hangs)
    await rig.run()
    assert rig.end.state == "needs_human"
    assert "no access" in str(rig.end.reason)
    assert rig.history("implementation_reader")[-1] == "cancelled"
    assert rig.state.tasks["test_reader"].result is not None


# ---- contexts


async def test_a_first_prompt_holds_what_is_declared_and_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """No other member's words, but the typed results that a join has accepted."""

    async def talks(actor: Actor) -> None:
        actor.session.say("SECRET SCRATCH")
        await actor.submit(claim="the counter is off by one", summary="SECRET SUMMARY")

    async def plans(actor: Actor) -> None:
        await actor.tool("create_task", member="test_reader", contract="look for the missing case", paths=["tests"])
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=plans, implementation_reader=talks)
    await rig.run()
    (planner,) = rig.prompts("planner")
    assert "## task_contract\n\nfix retry regression" in planner
    assert "## repository_map\n\nsrc/retry.py" in planner
    (reader,) = rig.prompts("test_reader")
    assert "## Your task\n\nlook for the missing case" in reader
    assert "## test_map\n\ntests/test_retry.py" in reader
    assert "repository_map" not in reader
    (writer,) = rig.prompts("writer")
    assert "the counter is off by one" in writer
    assert "look for the missing case" not in writer
    (evaluator,) = rig.prompts("evaluator")
    assert "## candidate_revision\n\nr2 (branch avenor/run_1/candidate)" in evaluator
    assert "### focused_tests (receipt-1)" in evaluator
    for prompt in (reader, writer, evaluator):
        assert "SECRET" not in prompt
    assert "off by one" not in evaluator


async def test_agents_start_in_their_worktrees_and_sandboxes_with_credentials_of_their_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Each attempt has its own folder, prefix and variables; the supervisor's socket is not among them."""
    rig = ManifestRig(tmp_path)
    await rig.run()
    first = rig.backend.opened[0]
    assert (first.cwd, list(first.prefix)) == ("/bench/planner.1", ["cage", "planner"])
    assert dict(first.env) == {
        "KEPT": "1",
        "CAGED": "1",
        "T": "1",
        "AVENOR_ATTEMPT_ID": "planner.1",
        "AVENOR_REVISION": PINNED,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "internal,127.0.0.1,localhost",
    }
    assert [server.name for server in first.mcp_servers] == ["avenor"]


# ---- conflicts and duplicates


async def test_a_conflict_pauses_until_the_owner_has_chosen_a_side(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both sides are options and both are kept; the writer is told them and the decision."""

    async def one(actor: Actor) -> None:
        await actor.submit(subject="timeouts", claim="they count")

    async def other(actor: Actor) -> None:
        await actor.submit(subject="Timeouts", claim="they do not count")

    rig = ManifestRig(tmp_path)
    rig.play(implementation_reader=one, test_reader=other)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await rig.until(lambda: bool(rig.only(PermissionRequest)))
        (asked,) = rig.only(PermissionRequest)
        assert "writer.1" not in rig.started()
        assert [option.name for option in asked.options] == [
            "they count (implementation_reader)",
            "they do not count (test_reader)",
        ]
        await trio.sleep(10_000)  # no deadline runs while a person decides
        rig.host.broker.answer(asked.request_id, "side_2", None)
    assert [event.state for event in rig.only(JoinEvent)] == ["conflict", "decided"]
    (writer,) = rig.prompts("writer")
    assert "they count" in writer
    assert "timeouts: they do not count (test_reader)" in writer


@pytest.mark.parametrize("word", ["needs_human", "rejected"])
async def test_a_conflict_may_end_the_run(tmp_path: Path, autojump_clock: MockClock, word: str) -> None:
    """`on_conflict` need not pause."""

    async def one(actor: Actor) -> None:
        await actor.submit(subject="timeouts", claim=actor.attempt_id)

    declared = seed(joins=[join("reader_join", "implementation_reader", "test_reader", on_conflict=word)])
    rig = ManifestRig(tmp_path, declared)
    rig.play(implementation_reader=one, test_reader=one)
    await rig.run()
    assert (rig.end.state, rig.end.permitted_by) == (word, "joins[0].on_conflict")


async def test_the_same_claim_of_two_readers_is_a_duplicate_investigation(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is told, and changes nothing."""

    async def same(actor: Actor) -> None:
        await actor.submit(subject="timeouts", claim="they count")

    rig = ManifestRig(tmp_path)
    rig.play(implementation_reader=same, test_reader=same)
    assert (await rig.run()).exit_code == 0
    (joined,) = rig.only(JoinEvent)
    assert [each.tasks for each in joined.duplicates] == [["implementation_reader", "test_reader"]]
