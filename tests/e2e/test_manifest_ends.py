"""Every way in which a manifest can end, and members that try to break out: real processes, a real sandbox."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

from tests.e2e.harness import Place, Run, Stable, read_log, say
from tests.e2e.manifest_kit import (
    BROKEN,
    FIX,
    FIXED,
    Acts,
    Step,
    Team,
    git,
    history,
    model_service,
    result,
    seed,
    started,
    told,
    verdict,
)
from tests.e2e.test_resume import kill_runtime
from tests.helpers import eventually_sync

HANG: Step = {"do": "hang"}
WRONG: Step = {"do": "write", "path": "src/retry.py", "text": BROKEN + "# looked at\n", "ask": True}


def end_of(run: Any) -> dict[str, Any]:
    """The terminal state."""
    (end,) = told(run, "avenor.manifest.end")
    return end


def in_first_attempt(name: str, last: Step) -> list[Step]:
    """Steps of a writer that writes, and then does this in its first attempt, and its work in any other.

    An agent knows its attempt by a variable, which comes back in the refusal of arguments that do not fit.
    """
    asks: dict[str, Any] = {"source_revision": "x", "plan_epoch": "{env:AVENOR_ATTEMPT_ID}", "findings": []}
    follows = [{"match": rf"{name}\.1\b", "steps": [last]}, {"steps": [FIX, result("change", "the bound is mended")]}]
    return [WRONG, {"do": "mcp", "tool": "submit_result", "arguments": asks, "on_reply": follows}]


# ---- the terminal states


def test_a_change_that_git_does_not_take_stays_as_files(place: Place) -> None:
    """The branch is locked by somebody: the run ends, says where the work is, and keeps only that."""
    team = Team(place, flags=("--run-id", "m1"))
    lock = place.work / ".git/refs/heads/avenor/m1/candidate.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    run = team.run()
    assert run.finish() == 5, run.complaints
    (kept,) = re.findall(r"; its files are in (\S+)", end_of(run)["reason"])
    assert (Path(kept) / "src/retry.py").read_text() == FIXED
    assert [each.name for each in Path(kept).parents[1].iterdir()] == ["left"]
    assert len(git(place, "worktree", "list").splitlines()) == 1


def test_a_run_id_whose_branches_are_there_is_refused(place: Place) -> None:
    """What the user has made of a candidate is never lost to another run."""
    team = Team(place, flags=("--run-id", "m1"))
    git(place, "branch", "avenor/m1/candidate")
    run = team.run()
    assert run.finish() == 1
    assert (
        "run_id: the run's branches are avenor/m1/…, and there is a branch avenor/m1/candidate"
        in run.complaints.decode()
    )
    assert told(run, "avenor.task") == []


def test_the_next_run_sweeps_what_a_killed_one_has_left(place: Place) -> None:
    """Its agent, its worktrees and the copies in its sandboxes; the files of its writer stay, and are told."""
    team = Team(place, {"writer": [FIX, HANG]})
    run = team.run()
    run.wait_event("avenor.authority", tool="apply_patch")
    (directory,) = place.path.rglob("run-*")
    eventually_sync(lambda: (directory / "worktrees/writer.1/src/retry.py").read_text() == FIXED)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert (directory / "private").exists()
    following = place.run("--prompt", "x", "--script", place.script({"steps": [say("fine")]}, name="next.json"))
    assert following.finish() == 0, following.complaints
    assert place.in_use() == {}
    assert f"what its writers have left is in {directory}/left" in following.complaints.decode()
    assert [each.name for each in directory.iterdir()] == ["left"]
    assert (directory / "left/writer.1/src/retry.py").read_text() == FIXED
    assert len(git(place, "worktree", "list").splitlines()) == 1
    again = place.run("--prompt", "x", "--script", str(place.path / "next.json"))
    assert again.finish() == 0
    assert b"left" not in again.complaints


def test_a_stale_epoch_needs_a_person_and_the_writer_never_starts(place: Place) -> None:
    """The scheduler trace of the seed: epoch 6 is rejected by the join, and on_missing follows."""
    run = Team(place, {"test_reader": [result("missing case", "it is there", plan_epoch=6)]}).run()
    assert run.finish() == 5, run.complaints
    assert "writer.1" not in started(run)
    (joined,) = told(run, "avenor.join")
    assert joined["rejected"] == [{"task_id": "test_reader", "attempt_id": "test_reader.1", "reason": "stale_epoch"}]
    assert end_of(run)["permitted_by"] == "joins[0].on_missing"
    outcome = run.outcome()
    assert (outcome.status, outcome.stop_reason) == ("BLOCKED", "blocked")


def test_a_failed_receipt_takes_the_one_repair_and_the_new_candidate_is_accepted(place: Place) -> None:
    """The evaluator would have accepted; the receipt is the proof, and the second writer is told which one failed."""
    acts: Acts = {"writer": [WRONG, result("change", "looked at it")]}
    team = Team(place, acts, flags=("--run-id", "m1"))
    played = place.path / "script.json"
    script = json.loads(played.read_text())
    mends = [FIX, result("change", "the bound is mended")]
    script["rules"].insert(0, {"match": "## Repair\n\n.*\nreceipt focused_tests", "steps": mends})
    played.write_text(json.dumps(script))
    run = team.run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    assert [event["passed"] for event in told(run, "avenor.receipt")] == [False, True]
    assert [event["counted_as"] for event in told(run, "avenor.verdict")] == ["repair", "accepted"]
    first, second = told(run, "avenor.candidate")
    assert second["base"] == first["revision"]
    assert git(place, "show", "avenor/m1/candidate:src/retry.py") + "\n" == FIXED


def test_a_second_failed_receipt_is_rejected(place: Place) -> None:
    """One bounded repair, and no other."""
    acts: Acts = {"writer": [WRONG, result("change", "looked at it")]}
    run = Team(place, acts).run()
    assert run.finish() == 1, run.complaints
    assert started(run)[-4:] == ["writer.1", "evaluator.1", "writer.2", "evaluator.2"]
    assert (end_of(run)["state"], run.outcome().stop_reason) == ("rejected", "rejected")


def test_a_conflict_waits_for_the_owner_and_both_sides_are_kept(place: Place) -> None:
    """Asked through the run's own broker, as any permission is; whoever answers decides."""
    repository_acts: Acts = {
        "implementation_reader": [result("timeouts", "they count")],
        "test_reader": [result("timeouts", "they do not count")],
    }
    run = Team(place, repository_acts).run()
    asked = run.wait_event("permission.request")
    assert [option["name"] for option in asked["options"]] == [
        "they count (implementation_reader)",
        "they do not count (test_reader)",
    ]
    assert "writer.1" not in started(run)
    request = Path(f"{str(run.sentinel).removesuffix('.done')}.perm.req")
    eventually_sync(request.exists)
    answer = {"outcome": "selected", "option_id": "side_1", "request_id": asked["request_id"]}
    Path(f"{request}.response").write_text(json.dumps(answer))
    assert run.finish() == 0, run.complaints
    decided = told(run, "avenor.join")[-1]
    assert (decided["state"], decided["decision"]) == ("decided", "timeouts: they count (implementation_reader)")
    prompt = next(e["text"] for e in told(run, "turn.start", phase="writer"))
    assert "they do not count" in prompt


def test_a_cancel_ends_every_member_and_leaves_nothing_running(place: Place) -> None:
    """Partial work of a writer is kept under a ref; no process and no worktree stays."""
    acts: Acts = {"writer": [WRONG, {"do": "run", "command": place.sleeper()}, HANG]}
    run = Team(place, acts, flags=("--run-id", "m1")).run()
    run.wait_event("tool.call_update", phase="writer", status="completed")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 130, run.complaints
    assert history(run, "writer")[-1] == "cancelled"
    assert end_of(run)["state"] == "cancelled"
    assert "looked at" in git(place, "show", "avenor/m1/lost/writer.1:src/retry.py")
    assert place.processes() == {}
    assert git(place, "worktree", "list").count("\n") == 0


def test_a_lost_writer_is_reconciled_and_begins_anew(place: Place) -> None:
    """Its agent dies in the middle of its work: what it has left is kept aside, and the second attempt is clean."""
    acts: Acts = {"writer": in_first_attempt("writer", {"do": "die", "signal": "SIGKILL"})}
    run = Team(place, acts, flags=("--run-id", "m1")).run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    assert history(run, "writer")[:5] == ["created", "started", "effect_unknown", "reconciled", "created"]
    assert "looked at" in git(place, "show", "avenor/m1/lost/writer.1:src/retry.py")
    assert git(place, "show", "avenor/m1/candidate:src/retry.py") + "\n" == FIXED


def test_a_killed_runtime_goes_on_from_its_log(place: Place) -> None:
    """SIGKILL while the writer works: what was finished stands, the writer is reconciled, and the end is accepted."""
    team = Team(place, {"writer": in_first_attempt("writer", HANG)})
    stable = Stable(place, "--on-crash", "resume")
    client = stable.connect()
    spawned = client.call("spawn", manifest=team.files[0], roster=team.files[1], dir=str(place.work), wait="started")
    client.call("subscribe", runtime_id=spawned["runtime_id"], replay=True)
    client.wait_event("tool.call_update", phase="writer", status="failed")
    kill_runtime(stable, spawned["runtime_id"])
    client.wait_event("run.resumed")
    end = client.wait_event("run.end")
    assert (end["status"], end["stop_reason"]) == ("DONE", "accepted")
    events = read_log(stable.log_path(spawned["runtime_id"]))
    tasks = [(e["task_id"], e["state"]) for e in events if e["event"] == "avenor.task"]
    assert tasks.count(("planner", "started")) == 1
    states = [state for name, state in tasks if name == "writer"]
    assert states[:6] == ["created", "started", "effect_unknown", "reconciled", "created", "started"]
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert stable.shutdown() == 0


def test_a_killed_runtime_that_does_not_go_on_leaves_nothing_in_the_repository(place: Place) -> None:
    """The supervisor removes its worktrees and its sandboxes' places; what its writer has changed stays, as files."""
    team = Team(place, {"writer": in_first_attempt("writer", HANG)})
    stable = Stable(place, "--on-crash", "fail")
    client = stable.connect()
    spawned = client.call("spawn", manifest=team.files[0], roster=team.files[1], dir=str(place.work), wait="started")
    client.call("subscribe", runtime_id=spawned["runtime_id"], replay=True)
    client.wait_event("tool.call_update", phase="writer", status="failed")
    directory = stable.state / spawned["runtime_id"]
    assert git(place, "worktree", "list").count("\n") == 1
    kill_runtime(stable, spawned["runtime_id"])
    assert client.wait_event("run.end")["stop_reason"] == "runtime_lost"
    assert git(place, "worktree", "list").count("\n") == 0
    assert not (directory / "private").exists()
    assert "looked at" in (directory / "worktrees" / "writer.1" / "src" / "retry.py").read_text()
    assert not (directory / "worktrees" / "writer.1" / ".git").exists()
    assert stable.shutdown() == 0


# ---- members that try to break what binds them


def test_a_reader_that_writes_without_asking_changes_nothing(place: Place) -> None:
    """The write fails at the moment of writing; the agent did not ask, and is found out."""
    sneaks: list[Step] = [
        {"do": "run", "command": "echo broken > src/retry.py; echo $? > /dev/stdout"},
        result("loop bound", "one too few"),
    ]
    run = Team(place, {"implementation_reader": sneaks}).run()
    assert run.finish() == 5, run.complaints
    (broken,) = [each for each in told(run, "avenor.authority") if each["decision"] == "violation"]
    assert broken["permitted_by"].startswith("members[1].tools")
    assert "implementation_reader" in end_of(run)["reason"]
    update = [e for e in told(run, "tool.call_update", phase="implementation_reader") if e.get("status") == "completed"]
    assert "Read-only file system" in json.dumps(update)
    assert (place.work / "src" / "retry.py").read_text() == BROKEN


def test_a_writer_that_writes_outside_its_paths_fails_at_the_moment_of_writing(place: Place) -> None:
    """Neither a file beside its own, nor the repository itself, nor anything else of this machine."""
    elsewhere = place.path / "elsewhere"
    strays: list[Step] = [
        {"do": "write", "path": "src/other.py", "text": "x", "ask": True},
        {"do": "write", "path": str(elsewhere), "text": "x"},
        {"do": "write", "path": str(place.work / "src" / "retry.py"), "text": "x"},
        FIX,
        result("change", "more than mine"),
    ]
    run = Team(place, {"writer": strays}).run()
    run.finish()
    denied = [each for each in told(run, "avenor.authority") if each["decision"] == "deny"]
    assert [each["permitted_by"] for each in denied] == ["members[3].allowed_writes"]
    assert not elsewhere.exists()
    assert (place.work / "src" / "retry.py").read_text() == BROKEN
    assert all("other.py" not in json.dumps(each["files"]) for each in told(run, "avenor.candidate"))


def test_without_a_sandbox_a_write_outside_is_found_by_the_diff(place: Place) -> None:
    """`--unsandboxed` is told in the trace; the candidate is proven all the same, and a violation never becomes one."""
    sneaks: list[Step] = [{"do": "write", "path": "src/other.py", "text": "x"}, FIX, result("change", "all mine")]
    run = Team(place, {"writer": sneaks}, flags=("--unsandboxed",)).run()
    assert run.finish() == 5, run.complaints
    assert told(run, "avenor.manifest.start")[0]["sandbox"] == "none"
    assert told(run, "avenor.candidate") == []
    violations = [each for each in told(run, "avenor.authority") if each["decision"] == "violation"]
    assert any("src/other.py" in each["detail"] for each in violations)


def test_a_member_that_outlives_its_deadline_is_ended(place: Place) -> None:
    """It ignores the cancel; its processes are gone with its time."""
    manifest = seed()
    manifest["members"][0]["budget"]["seconds"] = 4
    manifest["cancellation"]["grace_seconds"] = 1
    run = Team(place, {"planner": [{"do": "ignore_cancel"}, HANG]}, manifest=manifest).run()
    assert run.finish() == 124, run.complaints
    assert history(run, "planner")[-1] == "timed_out"
    assert end_of(run)["permitted_by"] == "members[0].budget.seconds"
    assert run.outcome().status == "TIMEOUT"
    assert place.processes() == {}


def test_an_undeclared_tool_of_avenor_is_refused(place: Place) -> None:
    """A reader cannot plan, and a writer cannot judge, whatever they are called."""
    tries: list[Step] = [
        {"do": "mcp", "tool": "replan", "arguments": {"reason": "why not"}},
        verdict("accept"),
        result("missing case", "it is there"),
    ]
    run = Team(place, {"test_reader": tries}).run()
    assert run.finish() == 0, run.complaints
    updates = [e for e in told(run, "tool.call_update", phase="test_reader") if e.get("status") == "failed"]
    assert len(updates) == 2
    assert told(run, "avenor.plan") == []
    assert [each["attempt_id"] for each in told(run, "avenor.verdict")] == ["evaluator.1"]


def test_an_evaluator_that_wants_a_second_repair_ends_in_rejected(place: Place) -> None:
    """It asks again; there is only one."""
    run = Team(place, {"evaluator": [verdict("repair", failed_criterion="names")]}).run()
    assert run.finish() == 1, run.complaints
    assert [event["counted_as"] for event in told(run, "avenor.verdict")] == ["repair", "rejected"]
    assert len([each for each in started(run) if each.startswith("writer")]) == 2


def test_a_manifest_without_a_sandbox_is_refused(place: Place) -> None:
    """Nothing starts where nothing would hold a member back, and the message says what to do."""
    team = Team(place)
    without = place.path / "bin"
    without.mkdir()
    for name in ("git", "python3", "env"):
        (without / name).symlink_to(str(shutil.which(name)))
    run = Run(place, team.flags, environ={"PATH": str(without)})
    assert run.finish() == 1
    reason = told(run, "run.end")[0]["reason"]
    assert "authority: sandbox unavailable" in reason
    assert "--unsandboxed" in reason
    assert started(run) == []


# ---- a model behind the gateway


def test_a_nested_child_uses_up_its_parents_budget_and_the_ledger_is_the_models_own_count(place: Place) -> None:
    """Every call of the child is the planner's; the one too many is never made, and the run ends for it."""
    calls: list[Step] = [{"do": "model", "prompt": "think"} for _ in range(5)]
    acts: Acts = {
        "planner": [
            {"do": "model", "prompt": "plan"},
            {
                "do": "mcp",
                "tool": "start_worker",
                "arguments": {"member": "test_reader", "contract": "look", "budget": {"model_calls": 2}},
            },
            {"do": "model", "prompt": "one too many"},
            result("plan", "done"),
        ],
        "test_reader": calls,
    }
    with model_service() as (url, served):
        team = Team(place, acts, flags=("--run-id", "m1"))
        roster = json.loads(Path(team.files[1]).read_text())
        for profile in roster["profiles"].values():
            profile["endpoint"] = {"dialect": "openai", "url": url}
            profile["env"] = {"OPENAI_BASE_URL": "{gateway_url}", "OPENAI_API_KEY": "{gateway_token}"}
        Path(team.files[1]).write_text(json.dumps(roster))
        run = team.run()
        assert run.finish() == 6, (run.complaints, told(run, "avenor.manifest.end"))
    assert len(served) == 3
    debits = [e for e in told(run, "avenor.budget", op="debit") if e["source"] == "gateway"]
    assert sum(e["amounts"].get("model_calls", 0) for e in debits) == 3
    assert sum(e["amounts"].get("tokens", 0) for e in debits) == 3 * 15
    assert {e["account"] for e in debits} == {"planner", "test_reader-2"}
    assert end_of(run)["permitted_by"] == "members[0].budget"
    assert told(run, "avenor.manifest.start")[0]["metering"]["planner"] == "gateway"
