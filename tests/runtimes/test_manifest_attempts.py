"""One attempt of a manifest's member: how it is started, told, asked, ended and judged, in virtual time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.errors import ConfigError, SpawnError
from avenor.protocol.events import Event, PhaseEnd, PhaseStart, ToolCallUpdate, encode_event
from avenor.protocol.manifest.binding import BoundContext
from avenor.protocol.manifest.events import (
    AuthorityEvent,
    BudgetEvent,
    CandidateEvent,
    JoinEvent,
    ReceiptEvent,
    ResultEvent,
    TaskEvent,
    VerdictEvent,
)
from avenor.protocol.manifest.joining import Conflict
from avenor.protocol.manifest.model import AggregateBudget, Cancellation
from avenor.protocol.manifest.records import Result
from avenor.runtimes.backends.base import BackendRefused, TurnStop
from avenor.runtimes.manifest.actions import Doing
from avenor.runtimes.manifest.contexts import LIMIT_BYTES, bounded
from avenor.runtimes.manifest.evaluation import missing_proof
from avenor.runtimes.manifest.plan import Plan
from avenor.runtimes.manifest.scheduler import decide, next_look_ms
from avenor.runtimes.manifest.toolwatch import ToolWatch
from avenor.runtimes.manifest.view import View
from tests.runtimes.manifest_rig import (
    PLANNER_TOOLS,
    Act,
    Actor,
    ManifestRig,
    hangs,
    join,
    manifest,
    member,
    reads,
    seed,
    writes,
)
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")
__all__ = ["inline_threads"]

JUDGE: dict[str, Any] = {"verdict": True, "contexts": ["task_contract"]}


def pair(**reader: Any) -> Any:
    """A reader, and an evaluator that waits for it."""
    return manifest(member("reader", **reader), member("evaluator", needs=["reader"], **JUDGE), receipts=[])


# ---- starting


async def test_a_worktree_that_cannot_be_made_fails_the_attempt(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It never had a session; its phase is told all the same."""
    rig = ManifestRig(tmp_path, pair())
    rig.workshop.open_errors = [ConfigError("no room")]
    outcome = await rig.run()
    assert (outcome.exit_code, str(outcome.reason)) == (5, "no result: reader: no room")
    assert len(rig.only(PhaseStart)) == len(rig.only(PhaseEnd)) == 1
    assert rig.backend.sessions == []


async def test_what_may_change_is_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A passing fault counts as a loss, and another attempt follows."""
    rig = ManifestRig(tmp_path, pair())
    rig.workshop.open_errors = [SpawnError("busy", retryable=True)]
    assert (await rig.run()).exit_code == 0
    assert rig.history("reader").count("started") == 2


async def test_an_agent_that_takes_no_servers_is_opened_without(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What it hands over, it then says."""
    rig = ManifestRig(tmp_path, pair())
    rig.backend.open_errors = [BackendRefused("it takes none", reason="unsupported_mcp")]
    assert (await rig.run()).exit_code == 0
    assert [len(params.mcp_servers) for params in rig.backend.opened] == [1, 0, 1]
    assert rig.started() == ["reader.1", "evaluator.1"]
    assert rig.state.ledger.accounts["reader"].used.model_calls == 1


async def test_variables_of_a_profile_hold_the_gateway_and_no_agent_gets_the_key(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """`{gateway_url}`, `{gateway_token}` and `{model}` are filled in; the variable of the real key is not there."""
    declared = pair(endpoint=True)
    profile = declared.members[0].profile
    endpoint = msgspec.structs.replace(profile.endpoint, key_env="KEPT")
    env = {"BASE": "{gateway_url}/v1", "KEY": "{gateway_token}", "MODEL": "{model}", "RAW": '{"a": {}}'}
    profile = msgspec.structs.replace(profile, endpoint=endpoint, env=env)
    members = [msgspec.structs.replace(declared.members[0], profile=profile), declared.members[1]]
    rig = ManifestRig(tmp_path, msgspec.structs.replace(declared, members=members))
    assert (await rig.run()).exit_code == 0
    found = rig.backend.opened[0].env
    assert (found["BASE"], found["KEY"], found["MODEL"]) == ("http://127.0.0.1:1/model/v1", "token-reader.1", "m")
    assert found["RAW"] == '{"a": {}}'
    assert all("KEPT" not in params.env for params in rig.backend.opened)


# ---- ending


async def test_a_member_that_says_abort_is_blocked(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By marker, without a result; it is not asked again."""

    async def aborts(actor: Actor) -> None:
        actor.session.say("<|workflow: abort | no access|>")

    rig = ManifestRig(tmp_path, pair())
    rig.play(reader=aborts)
    outcome = await rig.run()
    assert (outcome.exit_code, str(outcome.reason)) == (
        5,
        "no result: reader: it says that it is blocked: no access",
    )
    assert len(rig.backend.sessions[0].prompts) == 1


async def test_a_tool_that_is_not_declared_and_did_not_ask_ends_the_attempt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What was done cannot be undone; a person has to look."""

    async def breaks_out(actor: Actor) -> TurnStop:
        actor.use("shell")
        return await hangs(actor)

    rig = ManifestRig(tmp_path, pair())
    rig.deny = {"shell"}
    rig.play(reader=breaks_out)
    outcome = await rig.run()
    assert (outcome.exit_code, rig.history("reader")[-1]) == (5, "failed")
    assert rig.state.tasks["reader"].attempts[0].reason == "violation: shell"


async def test_an_agent_that_is_silent_for_too_long_is_lost(tmp_path: Path, autojump_clock: MockClock) -> None:
    """As in any run, and another attempt follows."""
    rig = ManifestRig(tmp_path, pair(), progress_timeout=20.0)
    again: list[Act] = [hangs, reads]
    rig.play(reader=again)
    assert (await rig.run()).exit_code == 0
    assert rig.history("reader")[2] == "lost"


async def test_a_result_that_was_handed_over_in_time_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whatever ends the reader afterwards."""

    async def dawdles(actor: Actor) -> TurnStop:
        await actor.submit()
        return await hangs(actor)

    rig = ManifestRig(tmp_path, pair(seconds=30))
    rig.play(reader=dawdles)
    assert (await rig.run()).exit_code == 0


async def test_a_verdict_that_was_given_in_time_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whatever ends the evaluator afterwards."""

    async def dawdles(actor: Actor) -> TurnStop:
        await actor.judge("accept")
        return await hangs(actor)

    rig = ManifestRig(tmp_path, pair())
    rig.play(evaluator=dawdles)
    assert (await rig.run()).exit_code == 0
    assert rig.started() == ["reader.1", "evaluator.1"]


async def test_the_grace_is_the_manifests_own(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After it credentials are revoked and the agent is ended, whatever patience a turn has otherwise."""
    cancellation = Cancellation(
        parent_cancel="propagate_to_all_children",
        worker_timeout="cancel_tools_then_mark_timed_out",
        grace_seconds=1,
        late_result="reject_unless_run_id_revision_and_plan_epoch_match",
    )

    async def ignores(_actor: Actor) -> TurnStop:
        await trio.sleep_forever()
        raise AssertionError

    rig = ManifestRig(tmp_path, msgspec.structs.replace(pair(seconds=30), cancellation=cancellation))
    rig.play(reader=ignores)
    began = trio.current_time()
    outcome = await rig.run()
    assert outcome.exit_code == 124
    assert trio.current_time() - began == 30


async def test_there_is_no_prompt_where_there_is_no_call_left(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Not even the reminder, where the agent's own word is all there is to count by; then that is what it lacked."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    rig = ManifestRig(tmp_path, pair(calls=1))
    rig.play(reader=says_nothing)
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.reason) == (
        6,
        "reader: budget_exhausted: model_calls of reader: 1 wanted, 0 left",
    )
    assert [event.unit for event in rig.only(BudgetEvent, op="block", account="reader")] == ["model_calls"]
    assert len(rig.backend.sessions[0].prompts) == 1


async def test_the_evaluator_that_comes_to_nothing_ends_the_run_as_declared(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Without needs_human among its ways the run is rejected."""

    async def says_nothing(_actor: Actor) -> None:
        pass

    declared = pair()
    evaluation = msgspec.structs.replace(declared.evaluation, otherwise=["rejected"])
    rig = ManifestRig(tmp_path, msgspec.structs.replace(declared, evaluation=evaluation))
    rig.play(evaluator=says_nothing)
    assert (await rig.run()).exit_code == 1
    assert "no verdict" in str(rig.end.reason)


async def test_a_repair_that_comes_to_nothing_is_rejected(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After a repair there is only accepted or rejected."""

    async def asks_for_repair(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    async def writes(actor: Actor) -> None:
        actor.write("src/retry.py")
        await actor.submit()

    async def says_nothing(_actor: Actor) -> None:
        pass

    rig = ManifestRig(tmp_path)
    again: list[Act] = [writes, says_nothing]
    rig.play(writer=again, evaluator=asks_for_repair)
    assert (await rig.run()).exit_code == 1
    assert "the repair came to nothing" in str(rig.end.reason)


async def test_a_join_is_settled_by_what_its_member_has_come_to_last(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Asked anew, a reader hands over nothing: what it said before does not stand in for that."""

    async def asks_for_repair(actor: Actor) -> None:
        await actor.judge("repair", failed_criterion="names")

    async def says_nothing(_actor: Actor) -> TurnStop:
        return TurnStop(stop_reason="end_turn")

    async def changes_nothing(actor: Actor) -> None:
        await actor.submit()

    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("reader", needs=["writer"]),
        member("evaluator", needs=["j"], verdict=True, contexts=["task_contract", "candidate_revision"]),
        joins=[join("j", "reader", on_missing="rejected")],
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(writer=[writes, changes_nothing], reader=[reads, says_nothing], evaluator=asks_for_repair)
    assert (await rig.run()).exit_code == 1
    assert rig.end.permitted_by == "joins[0].on_missing"


async def test_a_verdict_before_a_violation_does_not_count_by_a_loss(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The process was lost while the attempt was being ended for what it had done: then it is begun anew."""

    async def judges_and_hangs(actor: Actor) -> None:
        await actor.judge("accept")
        await hangs(actor)

    async def rejects(actor: Actor) -> None:
        await actor.judge("reject", reason="no")

    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("evaluator", needs=["writer"], verdict=True, contexts=["task_contract", "candidate_revision"]),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(evaluator=[judges_and_hangs, rejects])
    with trio.move_on_after(5):
        await rig.run()
    lines = rig.log_path.read_bytes().splitlines(keepends=True)
    lines = lines[: [type(event).__name__ for event in rig.events].index("VerdictEvent") + 1]
    violation = AuthorityEvent(
        attempt_id="evaluator.1",
        tool="forbidden",
        tool_kind="execute",
        decision="violation",
        permitted_by="members[1].tools",
    )
    violation.seq, violation.ts, violation.run_id = len(lines) + 1, rig.events[-1].ts, "run_1"
    rig.log_path.write_bytes(b"".join(lines) + encode_event(violation) + b"\n")
    rig.again()
    assert (await rig.run()).exit_code == 1
    assert rig.started()[-1] == "evaluator.2"


@pytest.mark.parametrize("step", ["changes", "commit"])
async def test_a_change_that_cannot_be_taken_is_kept_as_files(
    tmp_path: Path, autojump_clock: MockClock, step: str
) -> None:
    """A writer whose diff or commit fails has failed, and the end says where its files are."""
    rig = ManifestRig(tmp_path)

    rig.workshop.faults[step] = ConfigError("git is gone")
    assert (await rig.run()).exit_code == 5
    assert "its change is not taken: git is gone; its files are in /left/writer.1" in str(rig.end.reason)


async def test_files_that_cannot_be_kept_are_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The disk may be gone as well; a reader has changed nothing that could be kept."""
    rig = ManifestRig(tmp_path)

    rig.workshop.is_sandboxed = False
    rig.workshop.faults = {"changes": ConfigError("git is gone"), "leave": ConfigError("so is the disk")}
    assert (await rig.run()).exit_code == 5
    assert rig.state.tasks["planner"].attempts[0].reason == "its change is not taken: git is gone"
    rig = ManifestRig(tmp_path)

    rig.workshop.faults = {"changes": ConfigError("git is gone"), "leave": ConfigError("so is the disk")}
    assert (await rig.run()).exit_code == 5
    assert "nor can its files be kept: so is the disk" in rig.state.tasks["writer"].attempts[0].reason


async def test_a_run_without_room_for_its_branches_does_not_begin(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nothing is paid for a candidate that no branch could hold."""
    rig = ManifestRig(tmp_path)

    rig.workshop.faults["check_branches"] = ConfigError("taken")
    assert (await rig.run()).exit_code == 1
    assert rig.only(TaskEvent) == []


async def test_a_worktree_that_stays_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It changes nothing about the run."""
    rig = ManifestRig(tmp_path)

    rig.workshop.faults["close"] = ConfigError("busy")
    assert (await rig.run()).exit_code == 0


async def test_a_check_that_cannot_be_run_has_not_passed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And there is no exit code to show."""
    rig = ManifestRig(tmp_path)

    rig.workshop.faults["check"] = ConfigError("no such program")
    assert (await rig.run()).exit_code == 1
    first = rig.only(ReceiptEvent)[0]
    assert not first.passed
    assert first.exit_code is msgspec.UNSET
    assert "exit code: none" in next(rig.prompts("evaluator"))


# ---- contexts


async def test_contexts_come_from_files_commands_texts_and_what_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Each under its name; of what does not exist yet it is said that there is none."""
    contexts: list[str | BoundContext] = [
        BoundContext(name="notes", kind="file", value="/notes"),
        BoundContext(name="list", kind="command", command=["ls"]),
        BoundContext(name="rule", kind="text", value="be brief"),
        "candidate_diff",
        "candidate_revision",
        "raw_receipts",
        "handoff_record",
        "assigned_paths",
        "joined_evidence",
    ]
    declared = manifest(
        member("first"),
        member("reader", needs=["first"], contexts=contexts),
        member("evaluator", needs=["reader"], verdict=True, contexts=["candidate_diff"]),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    assert (await rig.run()).exit_code == 0
    (prompt,) = rig.prompts("reader")
    for part in (
        "## notes\n\nnotes from file in /bench/reader.1",
        "## list\n\nlist from command",
        "## rule\n\nbe brief",
        "## candidate_diff\n\nThere is no candidate",
        "## raw_receipts\n\nThere are no receipts.",
        "## handoff_record\n\nNothing was handed over.",
        "No paths are assigned",
        '"subject": "first.1"',
    ):
        assert part in prompt


async def test_the_diff_of_the_candidate_is_against_the_source_revision(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whatever number of commits it took."""
    declared = manifest(
        member("writer", writes=["src/retry.py"]),
        member("evaluator", needs=["writer"], verdict=True, contexts=["candidate_diff"]),
    )
    rig = ManifestRig(tmp_path, declared)
    await rig.run()
    (prompt,) = rig.prompts("evaluator")
    assert "..r2" in prompt


def test_a_context_that_is_too_long_is_cut_between_lines() -> None:
    """And says how much is missing."""
    text = "x" * 99 + "\n"
    cut = bounded(text * (LIMIT_BYTES // 100 + 10))
    assert len(cut.encode()) <= LIMIT_BYTES + 40
    assert cut.splitlines()[-1] == "[cut: 1001 more bytes]"
    assert set(cut.splitlines()[:-1]) == {"x" * 99}


# ---- losing the process


@pytest.mark.parametrize("kind", [VerdictEvent, CandidateEvent, JoinEvent, ResultEvent, ReceiptEvent])
async def test_a_process_lost_right_after_telling_goes_on(
    tmp_path: Path, autojump_clock: MockClock, kind: type[Any]
) -> None:
    """What was told stands, and what would have followed follows."""
    rig = ManifestRig(tmp_path)
    await rig.run()
    _cut_after(rig, lambda event: type(event) is kind)
    rig.workshop.revisions = 1 + len(rig.state.candidates)
    rig.again()
    assert (await rig.run()).exit_code == 0
    if kind is VerdictEvent:
        assert rig.started().count("evaluator.1") == 1
        assert "evaluator.2" not in rig.started()


async def test_a_verdict_is_told_when_it_is_given(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A process that is lost before the evaluator's turn ends has the verdict in its log, and nobody judges again."""

    async def dawdles(actor: Actor) -> TurnStop:
        assert (await actor.judge("accept")).text == "Your verdict is recorded. End your turn."
        return await hangs(actor)

    rig = ManifestRig(tmp_path, pair())
    rig.play(evaluator=dawdles)
    with trio.move_on_after(3):
        await rig.run()
    _cut_after(rig, lambda event: isinstance(event, VerdictEvent))
    rig.again()
    assert (await rig.run()).exit_code == 0
    assert rig.history("evaluator") == ["created", "started", "done"]


async def test_a_line_that_cannot_be_read_is_passed_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A damaged log, or one of another version, still tells all the rest."""
    rig = ManifestRig(tmp_path)
    rig.play(test_reader=[hangs, reads])
    with trio.move_on_after(3):
        await rig.run()
    _cut_after(rig, lambda event: isinstance(event, TaskEvent) and event.attempt_id == "test_reader.1")
    whole = rig.log_path.read_bytes()
    rig.again()
    rig.log_path.write_bytes(b'{"event":"of.tomorrow","seq":1,"ts":1}\n' + whole)
    assert (await rig.run()).exit_code == 0


async def test_a_worker_that_ran_when_the_process_was_lost_is_its_parents_to_start_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It is cancelled with the attempt that has started it, one that had not begun yet as well."""

    async def starts(actor: Actor) -> None:
        for name in ("one", "two"):
            budget = {"model_calls": 1, "tool_calls": 1, "tokens": 100}
            await actor.tool("start_worker", member="helper", contract=name, budget=budget, wait=False)
        await trio.sleep_forever()

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS, calls=8),
        member("helper", callable_by=["manager"]),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    again: list[Act] = [starts, reads]
    rig.play(manager=again)
    rig.play(**{"helper-2": hangs, "helper-3": hangs})
    with trio.move_on_after(3):
        await rig.run()
    _cut_after(rig, lambda event: isinstance(event, TaskEvent) and event.task_id == "helper-3")
    rig.again()
    assert (await rig.run()).exit_code == 0
    assert [rig.state.tasks[each].state for each in ("helper-2", "helper-3")] == ["cancelled", "cancelled"]
    assert rig.history("manager")[:4] == ["created", "started", "lost", "created"]
    assert not any(account.is_open for name, account in rig.state.ledger.accounts.items() if name.startswith("helper"))


def _cut_after(rig: ManifestRig, is_last: Callable[[Event], bool]) -> None:
    """What a killed process has left: nothing after the first event that this holds of."""
    lines = rig.log_path.read_bytes().splitlines(keepends=True)
    cut = next(index for index, event in enumerate(rig.events) if is_last(event))
    rig.log_path.write_bytes(b"".join(lines[: cut + 1]))


# ---- rules by themselves


async def test_a_run_that_was_ended_before_it_began_has_begun_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Not even its manifest is told."""
    from avenor.runtimes.endings import Cause

    rig = ManifestRig(tmp_path)
    rig.host.end(Cause(stop_reason="cancelled", reason="no"))
    assert (await rig.run()).exit_code == 130
    assert rig.started() == []


async def test_an_unknown_revision_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With its name."""
    rig = ManifestRig(tmp_path, msgspec.structs.replace(seed(), source_revision="git:nowhere"))
    outcome = await rig.run()
    assert (outcome.status, str(outcome.reason)) == ("FAILED", "no revision nowhere")


async def test_a_manifest_that_promises_more_than_there_is_starts_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The loader refuses it; a record that says so all the same ends at once."""
    budget = AggregateBudget(model_calls=4, tool_calls=40, input_output_tokens=120000, deadline_seconds=480)
    rig = ManifestRig(tmp_path, msgspec.structs.replace(seed(), budget=budget))
    assert (await rig.run()).exit_code == 6
    assert rig.started() == []


async def test_where_nothing_can_go_on_a_person_is_needed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A run never waits for nothing; the loader refuses members that wait for each other, a record may say so."""
    declared = manifest(
        member("one", needs=["other"]),
        member("other", needs=["one"]),
        member("evaluator", needs=["other"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    outcome = await rig.run()
    assert outcome.exit_code == 5
    assert "nothing can go on" in str(outcome.reason)


async def test_no_prompt_of_a_client_reaches_a_member(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What members are told is declared; a prompt is refused, and never accepted and forgotten."""
    from avenor.protocol.errors import Ended

    async def tries(actor: Actor) -> None:
        with pytest.raises(Ended):
            rig.host.accept_prompt("hello", "client")
        await actor.submit()

    rig = ManifestRig(tmp_path)
    rig.play(planner=tries)
    assert (await rig.run()).exit_code == 0


async def test_nothing_is_decided_before_the_start(autojump_clock: MockClock) -> None:
    """And no time is waited for."""
    from avenor.protocol.manifest.state import ManifestState

    view = View(Plan(seed(), run_id="r"), ManifestState(), Doing(), 0)
    assert decide(view) == []
    assert next_look_ms(view) is None


async def test_proof_is_every_receipt_and_no_open_conflict(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each is named where it is missing."""
    rig = ManifestRig(tmp_path)
    await rig.run()
    state = rig.state
    view = View(Plan(seed(), run_id="run_1"), state, Doing(), 0)
    assert missing_proof(view, "r2") is None
    assert missing_proof(view, "r9") == "receipt focused_tests: it was not run on r9"
    conflict = Conflict(subject="s", sides=[])
    state.joins["reader_join"] = JoinEvent(
        join_id="reader_join", state="conflict", permitted_by="joins[0]", conflicts=[conflict]
    )
    assert missing_proof(view, "r2") == "join reader_join: its conflict is not resolved"


async def test_the_same_criterion_failed_three_times_on_one_candidate_is_no_progress(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whatever repairs there are left."""
    from avenor.protocol.manifest.records import Verdict
    from avenor.runtimes.manifest.evaluation import judge

    rig = ManifestRig(tmp_path)
    await rig.run()
    state = rig.state
    told = VerdictEvent(
        attempt_id="evaluator.1",
        verdict="repair",
        revision="r2",
        counted_as="rejected",
        permitted_by="evaluation.otherwise",
        failed_criterion="names",
    )
    state.verdicts = [told, told]
    view = View(Plan(seed(), run_id="run_1"), state, Doing(), 0)
    judged = judge(view, Verdict(verdict="repair", revision="r2", failed_criterion="names"))
    assert (judged.counted_as, judged.reason.partition(":")[0]) == ("rejected", "no_progress")


def test_an_update_of_a_call_that_nobody_knows_is_passed_over() -> None:
    """A tool watch trusts no agent to tell a call before its updates."""
    assert ToolWatch().note(ToolCallUpdate(toolCallId="t", status="completed")) is None


def test_a_result_says_at_least_one_thing() -> None:
    """An empty one is refused where it is read."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"source_revision": "r", "plan_epoch": 1, "findings": []}, Result)


async def test_a_worker_asked_for_without_a_call_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Nobody can begin anything with nothing."""

    async def starts(actor: Actor) -> None:
        reply = await actor.tool("start_worker", member="helper", contract="x", budget={"model_calls": 0})
        assert reply.is_error
        await actor.submit()

    declared = manifest(
        member("manager", tools=PLANNER_TOOLS),
        member("helper", callable_by=["manager"]),
        member("evaluator", needs=["manager"], **JUDGE),
        receipts=[],
    )
    rig = ManifestRig(tmp_path, declared)
    rig.play(manager=starts)
    assert (await rig.run()).exit_code == 0
    assert [event.unit for event in rig.only(BudgetEvent, op="block")] == ["model_calls"]
