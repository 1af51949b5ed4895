"""The manifest of the seed on the scripted agent: real processes, real git, a real sandbox."""

from tests.e2e.harness import Place
from tests.e2e.manifest_kit import FIXED, Team, git, history, started, told


def test_the_seed_is_accepted_and_the_candidate_stays_on_its_branch(place: Place) -> None:
    """From load to accepted: the fix is committed by the runner, proven by its receipt, and merged nowhere."""
    run = Team(place, flags=("--run-id", "m1")).run()
    assert run.finish() == 0, (run.complaints, told(run, "avenor.manifest.end"))
    (end,) = told(run, "avenor.manifest.end")
    assert end["state"] == "accepted"
    assert end["revision"] == git(place, "rev-parse", "avenor/m1/candidate")
    assert git(place, "show", "avenor/m1/candidate:src/retry.py") + "\n" == FIXED
    assert git(place, "rev-parse", "main") == git(place, "rev-parse", "r1")
    assert git(place, "status", "--porcelain") == ""
    assert git(place, "worktree", "list").count("\n") == 0
    assert sorted(started(run)[1:3]) == ["implementation_reader.1", "test_reader.1"]
    assert history(run, "writer") == ["created", "started", "submitted", "done"]
    (receipt,) = told(run, "avenor.receipt")
    assert receipt["passed"]
    assert "1 passed" in receipt["output"]
    assert run.output.decode().startswith(f"accepted: {end['revision']} on branch avenor/m1/candidate")
    assert run.output.decode().strip() == end["final_output"]  # what `result` gives under a supervisor
