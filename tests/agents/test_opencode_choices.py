"""What can be chosen of real opencode: model and agent; and what avenor chooses for it, the password of its port."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from avenor.protocol.events import SessionStart
from avenor.protocol.outcomes import Status
from tests.agents.harness import MakeRun, Runtime, Stable, environment_of, listening_ports
from tests.agents.standin_model import StandInModel

pytestmark = pytest.mark.agents


def test_the_chosen_model_and_agent_are_used(run: MakeRun, model: StandInModel) -> None:
    """The session's start names them, and the model service is asked for that model, with that agent's instructions."""
    one = run("--model", "standin/small", "--agent", "plan", "--prompt", "[[text: chosen]] who are you?")
    assert one.finish() == (0, "chosen\n"), one.errors()
    (start,) = one.events(SessionStart)
    assert (start.model, start.agent) == ("standin/small", "plan")
    (request,) = model.asked("who are you?")
    assert request.model == "small"
    assert "Plan mode" in request.prompt + request.system


def test_a_model_that_is_not_offered_is_refused_with_the_list(stable: Stable, tmp_path: Path) -> None:
    """A spawn from the shell fails at once, and says what there is."""
    words = ("--model", "standin/huge", "--max-retries", "3", "--dir", str(tmp_path), "--prompt", "[[text: never]]")
    spawned = stable.control("spawn", *words)
    assert (spawned.returncode, spawned.stdout) == (1, "")
    for word in ("standin/huge", "standin/model", "standin/small"):
        assert word in spawned.stderr


def test_an_agent_that_is_not_offered_is_refused_with_the_list(run: MakeRun) -> None:
    """A run by itself fails without a retry, and says what there is."""
    one = run("--agent", "jockey", "--max-retries", "3", "--prompt", "[[text: never]]")
    assert one.finish() == (1, "")
    assert (one.sentinel().status, one.sentinel().stop_reason) == (Status.FAILED, "unknown_agent")
    assert one.events(SessionStart) == []
    for word in ("jockey", "build", "plan"):
        assert word in one.errors()
    assert one.processes() == []


def test_the_port_of_every_agent_has_a_password_of_its_own(shared: Runtime, fresh: Runtime) -> None:
    """opencode serves its whole API on loopback; without the password it answers 401."""
    passwords: set[str] = set()
    for runtime in (shared, fresh):
        pid = runtime.agent_pid()
        passwords.add(environment_of(pid)["OPENCODE_SERVER_PASSWORD"])
        (port,) = listening_ports(pid)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/session", timeout=30)
        with refused.value as answer:
            assert answer.code == 401
    assert len(passwords) == 2
    assert min(len(password) for password in passwords) >= 32
