"""Turns on real opencode: what it says and remembers, prompts that wait or cut in, sessions that are taken up again."""

import os
import signal
from pathlib import Path

import pytest

from avenor.protocol.events import MessageChunk, SessionEnd, SessionStart, ThoughtChunk, TurnEnd, TurnStart
from avenor.protocol.outcomes import Status
from tests.agents.harness import MakeRun, Run, Runtime, Stable
from tests.agents.standin_model import StandInModel

pytestmark = pytest.mark.agents


def test_a_turn_has_its_thoughts_its_text_and_its_tokens(shared: Runtime) -> None:
    """What the model thinks and says arrives as events, and sums up in the end of the turn."""
    end = shared.turn("[[reason: let me see]][[text: hello from here]][[usage: 1000 50]]")
    assert (end.stop_reason, end.final_output) == ("end_turn", "hello from here")
    assert end.usage
    assert (end.usage.input_tokens, end.usage.output_tokens) == (1000, 50)
    thoughts = b"".join(bytes(event.content) for event in shared.events(ThoughtChunk))
    assert b"see" in thoughts
    assert len(shared.events(MessageChunk)) > 1
    assert shared.client.result(shared.id).final_output == "hello from here"
    assert shared.sentinel().status is Status.DONE


def test_a_follow_up_remembers_what_was_said_before(shared: Runtime, model: StandInModel) -> None:
    """A parked runtime takes a prompt from the shell, and its agent's model sees the earlier ones."""
    shared.turn("[[text: noted]] the word is pelican")
    shared.client.release(shared.id)
    sent = shared.stable.control("prompt", "[[text: of course]] which word was it?", shared.id)
    assert sent.returncode == 0, sent.stderr
    assert shared.wait(TurnEnd).final_output == "of course"
    (request,) = model.asked("which word was it?")
    assert "the word is pelican" in request.earlier
    assert "noted" in request.earlier
    assert shared.snapshot().status == "idle"


def test_a_prompt_to_a_busy_agent_waits_for_its_turn(shared: Runtime, model: StandInModel) -> None:
    """Prompts that come while a turn runs are queued, and run in their order."""
    with model.held("the first of three") as release:
        shared.prompt("[[text: one]] the first of three")
        shared.wait_says("held")
        assert shared.client.prompt("[[text: two]]", shared.id).queued == 1
        assert shared.client.prompt("[[text: three]]", shared.id).queued == 2
        release.set()
        ends = [shared.wait(TurnEnd).final_output for _ in range(3)]
    assert ends == ["held one", "two", "three"]


def test_an_interrupt_cuts_the_turn_short_and_goes_on(shared: Runtime) -> None:
    """The running turn ends cancelled, the new prompt follows in the same session, and the run goes on."""
    shared.prompt("[[slow: 300 x 0.2]]")
    shared.wait_says("tick2")
    session_id = shared.snapshot().session_id
    assert shared.client.interrupt_and_prompt("[[text: back again]]", shared.id).accepted
    assert shared.wait(TurnEnd).stop_reason == "cancelled"
    end = shared.wait(TurnEnd)
    assert (end.stop_reason, end.final_output, end.session_id) == ("end_turn", "back again", session_id)
    assert shared.snapshot().status == "idle"


def test_a_run_prints_the_reply_and_tells_how_it_ended(run: MakeRun) -> None:
    """Piped, stdout is the final reply alone; exit status, sentinel and log agree."""
    one = run("--prompt", "[[reason: hm]][[text: the whole answer]]")
    assert one.finish() == (0, "the whole answer\n")
    outcome = one.sentinel()
    assert (outcome.status, outcome.stop_reason, outcome.run_id) == (Status.DONE, "end_turn", one.id)
    assert outcome.session_id == one.events(SessionStart)[0].session_id
    assert one.processes() == []


def test_an_earlier_session_is_resumed_by_its_id(run: MakeRun, shared: Runtime, model: StandInModel) -> None:
    """`--resume` continues a session of another run: the model sees its prompts, and nothing of it is told again."""
    shared.turn("[[text: I will]] remember the albatross")
    session_id = str(shared.snapshot().session_id)
    one = run("--resume", session_id, "--dir", str(shared.folder), "--prompt", "[[text: yes]] which bird?")
    assert one.finish() == (0, "yes\n"), one.errors()
    (start,) = one.events(SessionStart)
    assert (start.session_id, start.resumed) == (session_id, True)
    (request,) = model.asked("which bird?")
    assert "remember the albatross" in request.earlier
    assert len(one.events(TurnStart)) == 1
    assert [bytes(event.content) for event in one.events(MessageChunk)] == [b'{"type":"text","text":"yes"}']


def test_a_session_that_nobody_knows_is_not_resumed(run: MakeRun, stable: Stable, tmp_path: Path) -> None:
    """It fails with the session's name, never in a silent fresh start; spawned or run by itself."""
    one = run("--resume", "ses_nobody", "--max-retries", "3", "--prompt", "[[text: never]]")
    words = ("--resume", "ses_nobody", "--dir", str(tmp_path), "--prompt", "[[text: never]]")
    spawned = stable.control("spawn", *words)
    assert one.finish() == (1, "")
    assert (one.sentinel().status, one.sentinel().stop_reason) == (Status.FAILED, "resume_failed")
    assert one.events(SessionStart) == []
    assert (spawned.returncode, spawned.stdout) == (1, "")
    for said in (one.errors(), spawned.stderr):
        assert "ses_nobody" in said
        assert "cannot be resumed" in said


def test_two_runs_share_one_home(run: MakeRun) -> None:
    """Two agents that work at the same moment keep their sessions apart."""
    both: list[Run] = [run("--prompt", f"[[text: I am {name}]]") for name in ("left", "right")]
    assert [one.finish() for one in both] == [(0, "I am left\n"), (0, "I am right\n")]
    assert len({one.sentinel().session_id for one in both}) == 2


def test_an_agent_that_dies_while_it_is_idle_is_started_again_by_the_next_prompt(
    shared: Runtime, model: StandInModel
) -> None:
    """SIGKILL between two turns costs nothing: the session is resumed, and remembers."""
    shared.turn("[[text: noted]] the word is bittern")
    session_id = shared.snapshot().session_id
    os.kill(shared.agent_pid(), signal.SIGKILL)
    shared.wait(SessionEnd)
    assert shared.snapshot().status == "idle"
    shared.prompt("[[text: yes]] the word again?")
    start = shared.wait(SessionStart)
    assert (start.session_id, start.resumed) == (session_id, True)
    assert shared.wait(TurnEnd).final_output == "yes"
    (request,) = model.asked("the word again?")
    assert "the word is bittern" in request.earlier
