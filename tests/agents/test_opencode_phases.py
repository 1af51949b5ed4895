"""Loops and teams on real opencode: the quick start of the team document, and the examples of docs/examples."""

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from avenor.protocol.events import LoopEnd, PhaseEnd, PhaseStart, SessionStart, TeamEnd, ToolCall, TurnEnd
from avenor.protocol.outcomes import Outcome, Status, parse_sentinel
from tests.agents.harness import LONG_TOOL, WAIT_SECONDS, MakeRun, Run, is_running, wait_tool
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents

ROOT = Path(__file__).parents[2]
_EXAMPLES = ROOT / "docs" / "examples"
_COMMIT = "git add -A && git -c user.name=an -c user.email=an@example commit -qm x"
# Takes the first module that nobody has; says exit when there is none.
_TAKE = (
    "for module in $(cat todo.txt); do mkdir claims/$module 2>/dev/null && echo took $module && exit; done; "
    "echo none; echo '[loop: exit]'"
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "total.py").write_text("def total(prices): ...\n")
    subprocess.run(["sh", "-ec", f"git init -q && {_COMMIT}"], cwd=folder, check=True, timeout=WAIT_SECONDS)
    return folder


def finish(run: Run) -> int:
    """The exit code of a run, which may take long, but not so long for one phase; nothing of it is left."""

    def moved(seen: int) -> bool:
        return run.process.poll() is not None or len(run.events(PhaseEnd)) > seen

    while run.process.poll() is None:
        eventually_sync(partial(moved, len(run.events(PhaseEnd))), WAIT_SECONDS)
    code, _ = run.finish()
    assert run.processes() == []
    return code


def example(run: MakeRun, repo: Path, name: str) -> Run:
    """Starts an example in a repository, with the agent that a user has by default."""
    kind = name.split(".")[1]
    return run(f"--{kind}-file", str(_EXAMPLES / name), "--dir", str(repo), "--auto-approve")


def sentinel(repo: Path) -> Outcome:
    """What the sentinel says, whose path is relative to `--dir`."""
    return parse_sentinel((repo / "run.done").read_text())


def phases(run: Run) -> list[str]:
    """The run's own phases, in the order in which they began."""
    return [str(start.phase) for start in run.events(PhaseStart) if not start.path]


def said(run: Run, phase: str) -> str:
    """What a phase said last."""
    return [str(end.final_output) for end in run.events(TurnEnd) if end.phase == phase][-1]


def test_the_quick_start_of_the_team_document(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """The config as it stands: the plan is written by a tool, three members work in sessions of their own, and the
    review is told nothing but its prompt.
    """
    shutil.copy(ROOT / "tests" / "data" / "team.json", repo / "team.json")
    answers = {
        "Read the codebase": "[[write: plan.md | auth, api, db]][[text: planned]]",
        "Write tests for the auth package": "[[shell: cat plan.md]][[text: auth tested]]",
        "Write tests for the API layer": "[[text: api tested]]",
        "Write tests for the database layer": "[[text: db tested]]",
        "Review the tests": "[[write: review.md | no gaps]][[text: reviewed]]",
    }
    with model.told(answers):
        one = run("--team-file", str(repo / "team.json"), "--auto-approve", "--dir", str(repo))
        assert finish(one) == 0, one.errors()
    outcome = sentinel(repo)
    assert (outcome.status, outcome.stop_reason) == (Status.DONE, "end_turn")
    first, *members, last = phases(one)
    assert (first, set(members), last) == ("plan", {"auth-tests", "api-tests", "db-tests"}, "review")
    assert (repo / "plan.md").read_text() == "auth, api, db\n"
    assert (repo / "review.md").read_text() == "no gaps\n"
    assert len({start.session_id for start in one.events(SessionStart)}) == 5
    assert said(one, "review") == "reviewed"
    (request, *_) = model.asked("Review the tests written by all three agents.")
    assert request.earlier.strip() == ""
    (end,) = one.events(TeamEnd)
    assert (end.exit_reason, end.members_completed) == ("end_turn", 3)


def test_the_example_of_tests_and_fixes(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """Fixes in the first round, finds nothing in the second, and ends by its marker."""
    answers = {
        "Find out how this project": "[[write: test-notes.md | two fail]][[text: two fail]]",
        "Round 1 of": "[[shell: cat test-notes.md]][[text: two fail still]]",
        "Round 2 of": "[[text: All pass.\n[loop: exit]\n]]",
        "Choose the failure": f"[[shell: echo fixed > total.py && {_COMMIT}]][[text: fixed]]",
        "the commits of this run": "[[text: it was the total]]",
    }
    with model.told(answers):
        one = example(run, repo, "test-and-fix.loop.json")
        assert finish(one) == 0, one.errors()
    ends = [(end.phase, end.iteration) for end in one.events(PhaseEnd)]
    assert ends == [("survey", 0), ("test", 1), ("fix", 1), ("test", 2), ("report", 0)]
    (end,) = one.events(LoopEnd)
    assert (end.exit_reason, end.iterations_completed) == ("marker", 2)
    commits = [phase.commit for phase in one.events(PhaseEnd)]
    assert commits[0] == commits[1] != commits[2] == commits[3]
    assert sentinel(repo).status is Status.DONE


def test_the_example_of_a_review(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """The last phase's model is given what the three reviewers found, in the order of the config."""
    answers = {
        "Find out what the current branch changes": "[[write: scope.md | total.py]][[text: scoped]]",
        "whether it does what it is meant to do": "[[text: finding one]]",
        "who means harm": "[[text: finding two]]",
        "whether the tests would notice": "[[text: finding three]]",
        "Three reviewers have looked": "[[write: review.md | change two]][[text: one thing must change]]",
    }
    with model.told(answers):
        one = example(run, repo, "review.team.json")
        assert finish(one) == 0, one.errors()
    (request, *_) = model.asked("Three reviewers have looked")
    assert "## correctness\nfinding one\n\n## security\nfinding two\n\n## tests\nfinding three\n" in request.prompt
    assert said(one, "reconcile") == "one thing must change"
    assert (repo / "review.md").exists()


def test_the_example_of_a_triage(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """The model is told how to skip members, skips two, and their agents are never started."""
    skips = "Only the API.\n<|team: skip | storage-review|>\n<|team: skip | web-review|>\n"
    answers = {
        "Find the last release": f"[[text: {skips}]]",
        "the API, which other programs call": "[[text: one thing to tell]]",
        "Compare the dependencies": "[[text: nothing new]]",
        "Write release-notes.md": "[[text: released]]",
    }
    with model.told(answers):
        one = example(run, repo, "triage.team.json")
        assert finish(one) == 0, one.errors()
    first, *members, last = phases(one)
    assert (first, set(members), last) == ("triage", {"api-review", "dependencies"}, "notes")
    assert len(one.events(SessionStart)) == 4
    prompt = model.asked("Find the last release")[0].prompt
    assert [
        words for words in ("<|team: skip | ", "\n- storage-review\n", "\n- web-review\n") if words not in prompt
    ] == []
    (end,) = one.events(TeamEnd)
    assert (end.members_completed, end.members_skipped) == (2, 2)


def test_the_example_of_loops_in_a_team(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """Three workers share one list: each module is taken once, and its tests are written by who has read it."""
    answers = {
        "List the modules": "[[shell: mkdir claims && printf 'cart\\ntax\\n' > todo.txt]][[text: two modules]]",
        "You are one of several workers": f"[[shell: {_TAKE}]]",
        "Now write those tests": "[[text: written]]",
        "Three workers have written": "[[text: all tested]]",
    }
    with model.told(answers):
        one = example(run, repo, "modules.team.json")
        assert finish(one) == 0, one.errors()
    assert sorted(path.name for path in (repo / "claims").iterdir()) == ["cart", "tax"]
    assert {(end.path, end.exit_reason) for end in one.events(LoopEnd)} == {
        (f"worker-{number}", "marker") for number in (1, 2, 3)
    }
    takes = {start.session_id for start in one.events(PhaseStart) if start.phase == "take"}
    writes = {start.session_id for start in one.events(PhaseStart) if start.phase == "write"}
    assert (len(takes), len(writes)) == (5, 2)
    assert writes < takes
    asked = model.asked("Now write those tests")
    assert all("took " in request.earlier for request in asked)
    assert said(one, "summary") == "all tested"


def test_the_example_of_a_member_that_needs_a_person(run: MakeRun, model: StandInModel, repo: Path) -> None:
    """The second pre phase knows what the first one said, in its session; a member's question ends the other two in the
    middle of a tool and of a sentence, and no process of theirs is left.
    """
    question = "is it the family name?"
    answers = {
        "The column `users.name`": "[[text: twelve files use it]]",
        "Check your plan": "[[text: no gaps]]",
        "Write the migration": f"[[text: Stuck.\n<|workflow: abort | {question}|>\n]]",
        "Change the code": LONG_TOOL,
        "Bring the documentation": "[[slow: 600 x 0.2]]",
    }
    with model.told(answers), model.held("Write the migration") as release:
        one = example(run, repo, "migrate.team.json")
        eventually_sync(lambda: any(call.phase == "callers" for call in one.events(ToolCall)), 2 * WAIT_SECONDS)
        tool = wait_tool(repo)
        eventually_sync(lambda: model.asked("Bring the documentation"), WAIT_SECONDS)
        eventually_sync(lambda: model.asked("Write the migration"), WAIT_SECONDS)
        release.set()
        assert finish(one) == 5, one.errors()
    assert not is_running(tool)
    outcome = sentinel(repo)
    assert (outcome.status, outcome.stop_reason, outcome.reason) == (Status.BLOCKED, "blocked", question)
    sessions = {str(start.phase): start.session_id for start in one.events(PhaseStart)}
    assert sessions["freeze"] == sessions["plan"]
    assert outcome.session_id == sessions["schema"]
    resumed = {str(start.phase): start.resumed for start in one.events(SessionStart)}
    assert resumed["freeze"] is True
    (request, *_) = model.asked("Check your plan")
    assert "The column `users.name`" in request.earlier
    assert "twelve files use it" in request.earlier
    (end,) = one.events(TeamEnd)
    assert (end.exit_reason, end.exit_label) == ("abort", question)
    assert (end.members_aborted, end.members_cancelled, end.members_completed) == (1, 2, 0)
    assert "verify" not in sessions
