"""How runs of real opencode end when somebody ends them: cancels, signals and deaths, and that nothing is left."""

import os
import signal

import pytest

from avenor.protocol.events import (
    Event,
    PermissionResponse,
    Retry,
    RunEnd,
    SessionEnd,
    SessionStart,
    TurnEnd,
)
from avenor.protocol.outcomes import Status
from tests.agents.harness import LONG_TOOL, MakeRun, Runtime, is_running, wait_tool
from tests.agents.standin_model import StandInModel

pytestmark = pytest.mark.agents


def assert_cancelled(runtime: Runtime) -> None:
    """The turn, the session and the run tell of the cancel, and of nothing left behind."""
    assert runtime.events(TurnEnd)[-1].stop_reason == "cancelled"
    assert runtime.events(SessionEnd)[-1].stop_reason == "cancelled"
    end = runtime.wait(RunEnd)
    assert (end.status, end.exit_code, end.stop_reason) == ("KILLED", 130, "cancelled")
    assert (runtime.sentinel().status, runtime.sentinel().exit_code) == (Status.KILLED, 130)
    assert runtime.processes() == []
    assert runtime.snapshot().status == "ended"


def test_a_cancel_ends_a_talking_agent(fresh: Runtime) -> None:
    """The answer comes when the run is over and its processes are gone."""
    fresh.prompt("[[slow: 300 x 0.2]]")
    fresh.wait_says("tick2")
    pid = fresh.agent_pid()
    cancelled = fresh.client.cancel(fresh.id)
    assert (cancelled.ok, cancelled.left) == (True, [])
    assert not is_running(pid)
    assert_cancelled(fresh)


def test_a_cancel_settles_the_open_question(fresh: Runtime) -> None:
    """A question that nobody has answered is withdrawn, and what it asked for does not happen."""
    request = fresh.ask("[[shell: echo no > asked.txt]]")
    fresh.client.release(fresh.id)
    cancelled = fresh.stable.control("cancel", fresh.id)
    assert cancelled.returncode == 0, cancelled.stderr
    response = fresh.wait(PermissionResponse)
    assert (response.request_id, response.kind, response.source) == (request.request_id, "cancelled", "cancel")
    assert not (fresh.folder / "asked.txt").exists()
    assert_cancelled(fresh)


def test_a_cancel_ends_the_running_tool(fresh: Runtime) -> None:
    """The tool runs in a session of its own, and is gone all the same."""
    request = fresh.ask(LONG_TOOL)
    fresh.client.answer_permission(request.request_id, "once", fresh.id)
    pid = wait_tool(fresh.folder)
    assert os.getsid(pid) != os.getsid(fresh.agent_pid())
    cancelled = fresh.client.cancel(fresh.id)
    assert (cancelled.ok, cancelled.left) == (True, [])
    assert not is_running(pid)
    assert_cancelled(fresh)


def test_an_agent_that_was_killed_is_started_again_and_remembers(fresh: Runtime, model: StandInModel) -> None:
    """SIGKILL in mid-turn is a crash: the retry resumes the same session, and finishes the turn."""
    fresh.turn("[[text: noted]] the word is cormorant")
    session_id = fresh.snapshot().session_id
    with model.held("say it all") as release:
        fresh.prompt("[[text: all of it]] say it all")
        fresh.wait_says("held")
        first = fresh.agent_pid()
        os.kill(first, signal.SIGKILL)
        crashed = fresh.wait(TurnEnd)
        release.set()
    assert (crashed.stop_reason, crashed.error is not None) == ("agent_exited", True)
    retry = fresh.wait(Retry)
    assert (retry.retry_class, retry.attempt) == ("crash", 2)
    again = fresh.wait(SessionStart)
    assert (again.session_id, again.resumed) == (session_id, True)
    end = fresh.wait(TurnEnd)
    assert (end.stop_reason, end.final_output) == ("end_turn", "all of it")
    assert fresh.agent_pid() != first
    assert fresh.turn("[[text: yes]] and what was the word?").final_output == "yes"
    (request,) = model.asked("and what was the word?")
    assert "the word is cormorant" in request.earlier
    assert "all of it" in request.earlier
    assert fresh.client.cancel(fresh.id).left == []
    assert fresh.processes() == []


def test_the_tool_of_an_agent_that_was_killed_goes_with_the_run(run: MakeRun) -> None:
    """opencode's own death leaves its tool behind; the run's end does not."""
    one = run("--auto-approve", "--prompt", LONG_TOOL)
    pid = wait_tool(one.folder)
    os.kill(one.agent_pid(), signal.SIGKILL)
    assert one.finish() == (1, "")
    outcome = one.sentinel()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 1, "agent_exited")
    assert not is_running(pid)
    assert one.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_agent_and_tool(run: MakeRun, number: signal.Signals) -> None:
    """The sentinel says KILLED, the log ends, and nothing is left."""
    one = run("--auto-approve", "--prompt", LONG_TOOL)
    pid = wait_tool(one.folder)
    one.process.send_signal(number)
    assert one.finish()[0] == 130
    outcome = one.sentinel()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.KILLED, 130, "cancelled")
    assert isinstance(one.events(Event)[-1], RunEnd)
    assert not is_running(pid)
    assert one.processes() == []
