"""Real opencode under `--on-crash resume`: the runtime is killed, its sessions go on in new processes."""

import json
import os
import signal
from pathlib import Path

import pytest

from avenor.protocol.events import MessageChunk, PhaseEnd, RunEnd, RunResumed, SessionStart, TurnEnd, TurnStart
from avenor.protocol.outcomes import Status
from tests.agents.harness import LONG_TOOL, WAIT_SECONDS, Home, Runtime, is_running, wait_tool
from tests.agents.standin_model import StandInModel
from tests.agents.test_opencode_adoption import supervisor
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents

_LOST = "Your process was lost"


def kill_runtime(runtime: Runtime) -> None:
    """SIGKILL for the process of a runtime, and nothing else."""
    pid = runtime.snapshot().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def is_cut_short_of(runtime: Runtime) -> bool:
    """Whether the quick member has ended, and the slow one is at work."""
    has_ended = any(event.phase == "quick" for event in runtime.events(PhaseEnd))
    says = [bytes(event.content) for event in runtime.events(MessageChunk) if event.phase == "slow"]
    return has_ended and any(b"held" in text for text in says)


def test_a_session_goes_on_after_its_runtime_was_killed_in_a_turn(
    home: Home, model: StandInModel, tmp_path: Path
) -> None:
    """The tool that ran is ended, and the agent that goes on knows what was said before; so does the one after it."""
    with supervisor(home, tmp_path) as (stable, client), model.told({_LOST: "[[text: went on]]"}):
        work = tmp_path / "work"
        work.mkdir()
        prompt = "[[text: noted]] the word is pelican"
        runtime = Runtime(
            stable, client, stable.spawn(prompt=prompt, dir=str(work), on_crash="resume", auto_approve=True), work
        )
        runtime.wait(TurnEnd)
        session_id = runtime.snapshot().session_id
        runtime.prompt(LONG_TOOL)
        tool = wait_tool(work)
        kill_runtime(runtime)
        runtime.wait(RunResumed)
        assert not is_running(tool)
        assert runtime.wait(TurnEnd, lambda event: event.final_output == "went on")
        (asked, *_) = model.asked(_LOST)
        assert "the word is pelican" in asked.earlier
        kill_runtime(runtime)
        runtime.wait(RunResumed, lambda event: event.goes_on == "parked")
        runtime.prompt("[[text: still here]] what was it?")
        runtime.wait(TurnEnd, lambda event: event.final_output == "still here")
        (asked, *_) = model.asked("what was it?")
        assert "the word is pelican" in asked.earlier
        assert {start.session_id for start in runtime.events(SessionStart)} == {session_id}
        assert client.cancel(runtime.id).left == []
        assert runtime.processes() == []
        assert stable.stop() == 0


def test_a_team_goes_on_after_its_runtime_was_killed(home: Home, model: StandInModel, tmp_path: Path) -> None:
    """The member that had ended is not run again, the one that was cut goes on; the review knows both."""
    told, held = model.told({_LOST: "[[text: slow went on]]"}), model.held("as long as it takes")
    team = {
        "pre": [{"name": "plan", "prompt": "[[text: planned]]"}],
        "team": [
            {"name": "quick", "prompt": "[[text: quick is done]] quick work"},
            {"name": "slow", "prompt": "[[text: slow is done]] as long as it takes"},
        ],
        "post": [{"name": "review", "prompt": "[[text: reviewed]] {{.TeamOutput}}"}],
    }
    (tmp_path / "team.json").write_text(json.dumps(team))
    with supervisor(home, tmp_path) as (stable, client), told, held:
        work = tmp_path / "work"
        work.mkdir()
        runtime = Runtime(
            stable, client, stable.spawn(team_file=str(tmp_path / "team.json"), dir=str(work), on_crash="resume"), work
        )
        eventually_sync(lambda: is_cut_short_of(runtime), WAIT_SECONDS)
        kill_runtime(runtime)
        assert runtime.wait(RunEnd).status == Status.DONE
        begun = sorted(str(event.phase) for event in runtime.events(TurnStart))
        assert begun == ["plan", "quick", "review", "slow", "slow"]
        (review,) = model.asked("## quick")
        assert "quick is done" in review.prompt
        assert "slow went on" in review.prompt
        assert runtime.processes() == []
        assert stable.stop() == 0
