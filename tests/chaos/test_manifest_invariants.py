"""The invariants of manifest runs: a resumed run in which all is well, and each thing that can be broken in it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.host.rundir import RunDir
from avenor.protocol.spec import Record, RunSpec
from tests.chaos.evidence import Evidence, write_evidence
from tests.chaos.invariants import STATE, check_place
from tests.chaos.manifest_invariants import Worked, check_manifest, check_repository, look_at_checkout
from tests.chaos.rehearsed_manifest import BRANCH, NEW_TEXT, REPOSITORY, WRITTEN, git, write_repository
from tests.runtimes.manifest_rig import seed

Lines = list[dict[str, Any]]


def _task(task: str, state: str, number: int = 1, **members: Any) -> dict[str, Any]:
    return {"event": "avenor.task", "task_id": task, "state": state, "attempt_id": f"{task}.{number}", **members}


def _units(calls: int, tools: int = 8, tokens: int = 100) -> dict[str, int]:
    return {"model_calls": calls, "tool_calls": tools, "tokens": tokens}


def _budget(op: str, account: str, **members: Any) -> dict[str, Any]:
    return {"event": "avenor.budget", "op": op, "account": account, **members}


def _reserved(account: str) -> dict[str, Any]:
    return _budget("reserve", account, parent="run", limits=_units(3))


def _charged(account: str, calls_left: int, number: int = 1) -> dict[str, Any]:
    amounts, attempt = {"model_calls": 1}, f"{account}.{number}"
    return _budget("debit", account, amounts=amounts, rest=_units(calls_left), attempt_id=attempt)


def _turn(task: str, number: int = 1) -> dict[str, Any]:
    return {"event": "turn.start", "phase": task, "text": "go", **({} if number == 1 else {"attempt": number})}


def _log(revision: str = "c0ffee") -> Lines:
    """A writer, and a reader beside it, are lost with their process; both go on, and the candidate is accepted."""
    lines: Lines = [
        {"event": "avenor.manifest.start", "limits": _units(12, 40, 1000)},
        _reserved("finder"),
        _reserved("writer"),
        _task("finder", "started"),
        _task("writer", "started"),
        _charged("finder", 2),
        _turn("finder"),
        _charged("writer", 2),
        _turn("writer"),
        {"event": "run.resumed"},
        _task("finder", "lost"),
        _task("writer", "effect_unknown"),
        _budget("release", "finder", amounts=_units(2)),
        _reserved("finder"),
        _task("finder", "started", 2),
        _charged("finder", 2, 2),
        _turn("finder", 2),
        _task("writer", "reconciled"),
        _budget("release", "writer", amounts=_units(2)),
        _task("finder", "done", 2),
        _reserved("writer"),
        _task("writer", "started", 2),
        _charged("writer", 2, 2),
        _turn("writer", 2),
        {"event": "avenor.candidate", "attempt_id": "writer.2", "revision": revision, "files": [WRITTEN]},
        _task("writer", "done", 2),
        {"event": "avenor.receipt", "revision": revision, "passed": True},
        {"event": "avenor.manifest.end", "state": "accepted", "revision": revision},
        {"event": "run.end", "status": "DONE", "exit_code": 0, "stop_reason": "accepted"},
    ]
    return [{**event, "seq": seq} for seq, event in enumerate(lines, 1)]


def _find(lines: Lines, **members: Any) -> int:
    """Where the first event of these members is."""
    return next(index for index, event in enumerate(lines) if members.items() <= event.items())


def _begin_again(lines: Lines) -> None:
    lines[_find(lines, attempt_id="finder.2", state="started")]["attempt_id"] = "finder.1"


def _begin_beside(lines: Lines) -> None:
    lines.insert(_find(lines, event="run.resumed"), _task("finder", "started", 3))


def _begin_before_looking(lines: Lines) -> None:
    del lines[_find(lines, attempt_id="writer.1", state="effect_unknown")]


def _lose_plainly(lines: Lines) -> None:
    lines[_find(lines, attempt_id="writer.1", state="effect_unknown")]["state"] = "lost"


def _reconcile_nothing(lines: Lines) -> None:
    del lines[_find(lines, state="reconciled")]


def _stop_before_reconciling(lines: Lines) -> None:
    del lines[_find(lines, state="reconciled") :]


def _reconcile_a_reader(lines: Lines) -> None:
    lines[_find(lines, attempt_id="finder.1", state="lost")]["state"] = "effect_unknown"


def _reserve_too_much(lines: Lines) -> None:
    lines[_find(lines, op="reserve", account="writer")]["limits"] = _units(10)


def _reserve_twice(lines: Lines) -> None:
    del lines[_find(lines, op="release", account="finder")]


def _use_too_much(lines: Lines) -> None:
    lines[_find(lines, op="debit", account="writer")]["amounts"] = {"model_calls": 4}


def _forget_what_was_used(lines: Lines) -> None:
    lines[_find(lines, op="debit", attempt_id="writer.2")]["rest"] = _units(3)


def _charge_nothing(lines: Lines) -> None:
    del lines[_find(lines, op="debit", attempt_id="writer.2")]


def _write_outside(lines: Lines) -> None:
    lines[_find(lines, event="avenor.candidate")]["files"] = [WRITTEN, "kept.txt"]


def _accept_unchecked(lines: Lines) -> None:
    lines[_find(lines, event="avenor.receipt")]["passed"] = False


def _end_twice(lines: Lines) -> None:
    lines.insert(-1, lines[-2])


def _end_otherwise(lines: Lines) -> None:
    lines[-1].update(status="FAILED", exit_code=1, stop_reason="rejected")


_BREAKS: dict[str, tuple[Callable[[Lines], None], str]] = {
    "an attempt is begun twice": (_begin_again, "the attempt finder.1 was begun twice"),
    "two attempts are open": (_begin_beside, "finder.3 was begun while finder.1 was open"),
    "nobody looks at what was lost": (_begin_before_looking, "begun before the tasks ['writer'] of the lost process"),
    "a writer is lost as a reader is": (_lose_plainly, "writer.1 was lost, and its effects are not told to be unknown"),
    "a writer begins unreconciled": (_reconcile_nothing, "after the loss of writer.1 comes started"),
    "a writer is never reconciled": (_stop_before_reconciling, "writer.1 was lost, and never reconciled"),
    "a reader is reconciled": (_reconcile_a_reader, "finder only reads, and is told to be effect_unknown"),
    "more is promised than there is": (_reserve_too_much, "10 model_calls were reserved for writer, and run had 9"),
    "a budget is given twice": (_reserve_twice, "the budget of finder was reserved twice"),
    "more is used than there is": (_use_too_much, "writer has used more than it had"),
    "the rest is told wrongly": (_forget_what_was_used, "writer is told to have 3 model_calls"),
    "a turn is for nothing": (_charge_nothing, "writer.2 had 1 turns, and was charged for 0"),
    "a candidate has more than it may": (_write_outside, "the candidate of writer.2 has ['kept.txt']"),
    "an unchecked candidate is accepted": (_accept_unchecked, "c0ffee was accepted, and its check has not passed"),
    "there are two terminal states": (_end_twice, "the manifest has 2 terminal states"),
    "the outcome is another": (_end_otherwise, "the manifest is accepted, and the run ('FAILED', 1, 'rejected')"),
}


def test_a_run_in_which_all_is_well_has_no_problem() -> None:
    """So that what is broken below is what is found. A run that was lost before it could reconcile is well, too."""
    assert list(check_manifest(_log())) == []
    lost = _log()[: _find(_log(), state="reconciled")]
    lost.append({"event": "run.end", "seq": len(lost) + 1, "status": "FAILED", "stop_reason": "runtime_lost"})
    assert list(check_manifest(lost)) == []


@pytest.mark.parametrize("name", _BREAKS)
def test_what_is_broken_in_a_manifest_run_is_named(name: str) -> None:
    """One thing after the other."""
    break_it, told = _BREAKS[name]
    lines = _log()
    break_it(lines)
    found = list(check_manifest(lines))
    assert [problem for problem in found if told in problem], found


class Used:
    """A repository in which a manifest run has made its candidate.

    Attributes:
        run: What it has told.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.top = place / REPOSITORY
        write_repository(place)
        self.before = look_at_checkout(place)
        self.directory = RunDir(place / STATE / "rt_1")
        self.directory.path.mkdir(parents=True)
        revision = self.commit("candidate", WRITTEN, NEW_TEXT)
        self.run = Worked(run_id="run", folder=f"{STATE}/rt_1", lines=_log(revision))

    def commit(self, branch: str, file: str, text: str) -> str:
        """A branch of the run with this file changed, made as runs make it: past checkout and index."""
        name = f"refs/heads/avenor/run/{branch}"
        lines = [f"commit {name}", "committer a <a@example> 0 +0000", "data 4", "made", f"from {BRANCH}^0"]
        told = "\n".join([*lines, f"M 100644 inline {file}", f"data {len(text)}", text])
        subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=self.top, input=told, text=True, check=True)
        return git(self.top, "rev-parse", name).strip()

    def leave(self, path: str) -> None:
        """A file in the run's directory."""
        file = self.directory.path / path
        file.parent.mkdir(parents=True)
        file.touch()

    def tell(self, event: dict[str, Any]) -> None:
        """The run has told one thing more before its end."""
        self.run = msgspec.structs.replace(self.run, lines=[*self.run.lines[:-1], event, self.run.lines[-1]])

    def problems(self) -> list[str]:
        """All that is found."""
        return list(check_repository(self.place, self.before, [self.run]))


@pytest.fixture
def used(tmp_path: Path) -> Used:
    return Used(tmp_path)


def _change_a_file(used: Used) -> None:
    (used.top / "kept.txt").write_text("else\n")


def _remove_a_file(used: Used) -> None:
    (used.top / "untracked.txt").unlink()


def _move_the_branch(used: Used) -> None:
    git(used.top, "update-ref", f"refs/heads/{BRANCH}", "refs/heads/avenor/run/candidate")


def _move_head(used: Used) -> None:
    git(used.top, "symbolic-ref", "HEAD", "refs/heads/avenor/run/candidate")


def _change_the_index(used: Used) -> None:
    git(used.top, "add", "untracked.txt")


def _stray(used: Used) -> None:
    (used.place / "strayed.txt").touch()


def _stray_into_the_candidate(used: Used) -> None:
    used.commit("candidate", "kept.txt", "strayed")


def _stray_into_what_is_kept(used: Used) -> None:
    used.commit("lost/writer.1", "kept.txt", "strayed")


def _lose_the_candidate(used: Used) -> None:
    git(used.top, "update-ref", "-d", "refs/heads/avenor/run/candidate")


def _commit_nothing(used: Used) -> None:
    used.run = msgspec.structs.replace(used.run, lines=_log(used.commit("candidate", WRITTEN, "else\n")))


def _keep_nothing(used: Used) -> None:
    used.tell(_task("writer", "reconciled", partial="refs/heads/avenor/run/lost/writer.1"))


def _leave_an_entry(used: Used) -> None:
    git(used.top, "worktree", "add", "-q", "--detach", str(used.place / "left"))


def _leave_a_lock(used: Used) -> None:
    (used.top / ".git" / "refs" / "heads" / "avenor" / "run" / "candidate.lock").touch()


_MISUSES: dict[str, tuple[Callable[[Used], None], str]] = {
    "a file is changed": (_change_a_file, "the user's checkout was changed: kept.txt"),
    "a file is removed": (_remove_a_file, "the user's checkout was changed: untracked.txt"),
    "the branch is moved": (_move_the_branch, ".git/refs/heads/main"),
    "another branch is checked out": (_move_head, "the user's checkout was changed: .git/HEAD"),
    "something is staged": (_change_the_index, "the user's checkout was changed: .git/index"),
    "a member strays": (_stray, "a member has written where it may not: strayed.txt"),
    "a stray is in the candidate": (_stray_into_the_candidate, "candidate has ['kept.txt']"),
    "a stray is in what is kept": (_stray_into_what_is_kept, "lost/writer.1 has ['kept.txt']"),
    "the candidate is gone": (_lose_the_candidate, "refs/heads/avenor/run/candidate is None"),
    "the candidate lacks what was written": (_commit_nothing, "without what its writer has written"),
    "what was kept is not there": (_keep_nothing, "is told to have left refs/heads/avenor/run/lost/writer.1"),
    "git has an entry of a worktree": (_leave_an_entry, "left behind: repository/.git/worktrees/left"),
    "git's lock is left": (_leave_a_lock, "candidate.lock"),
    "a worktree is left": (lambda used: used.leave("worktrees/finder.1/file"), "worktrees/finder.1"),
    "a login is left": (lambda used: used.leave("private/finder.1/login"), "private/finder.1"),
    "a lost writer's is still git's": (lambda used: used.leave("worktrees/writer.1/.git"), "worktrees/writer.1/.git"),
}


def test_a_repository_that_was_used_well_has_no_problem(used: Used) -> None:
    """Nor has one in which a writer was lost for good: what it has written stays, as files."""
    assert used.problems() == []
    lost = used.run.lines[: _find([dict(event) for event in used.run.lines], state="reconciled")]
    used.run = msgspec.structs.replace(used.run, lines=lost)
    used.leave(f"worktrees/writer.1/{WRITTEN}")
    assert used.problems() == []


@pytest.mark.parametrize("name", _MISUSES)
def test_what_is_wrong_in_the_repository_is_named(used: Used, name: str) -> None:
    """One thing after the other."""
    misuse, told = _MISUSES[name]
    misuse(used)
    found = used.problems()
    assert [problem for problem in found if told in problem], found


def test_manifest_runs_are_judged_with_all_others(used: Used) -> None:
    """By what their records say they are: log and repository."""
    lines = [dict(event) for event in used.run.lines]
    _write_outside(lines)
    _change_a_file(used)
    spec = RunSpec(prompt="", sentinel_file=str(used.directory.sentinel_path))
    record = Record(runtime_id="rt_1", run_id="run", spec=spec, prompt="", config=seed())
    used.directory.write_record(msgspec.json.encode(record))
    used.directory.log_path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    write_evidence(used.place, Evidence(checkout=used.before))
    found = check_place(used.place)
    assert any("rt_1: the candidate of writer.2 has ['kept.txt']" in problem for problem in found), found
    assert "the user's checkout was changed: kept.txt" in found
