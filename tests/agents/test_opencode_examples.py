"""The examples of the control socket, typed as users are shown them, on real opencode; only the places are ours."""

import json
import subprocess
from pathlib import Path

import pytest

from avenor.protocol.events import MessageChunk, TurnEnd, TurnStart, decode_event
from avenor.protocol.outcomes import Status, parse_sentinel
from tests.agents.harness import WAIT_SECONDS, Feed, Home, ended_process, typed, wait_socket
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents

RUN = """
avenor \\
  --control-socket /tmp/avenor.sock \\
  --prompt "List the files in this directory and exit." \\
  --on-event /tmp/events.ndjson \\
  --sentinel-file /tmp/done.env
"""
STABLE = "avenor stable --control-socket /tmp/avenor-stable.sock"
SPAWN = """
avenor control --socket /tmp/avenor-stable.sock spawn \\
  --prompt "Review PR #42" \\
  --dir /repo/A \\
  --label review-42
"""


class Shell:
    """Types commands whose /tmp and /repo are a test's own.

    Args:
        home: Whose shell it is.
        folder: An empty folder.
    """

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.tmp = folder / "tmp"
        self.repo = folder / "repo"
        (self.repo / "A").mkdir(parents=True)
        self.tmp.mkdir()

    def words(self, command: str) -> list[str]:
        return typed(command, {"/tmp": str(self.tmp), "/repo": str(self.repo)})

    def type(self, command: str) -> str:
        """A command's stdout; it must do what it is told."""
        done = self.home.command(self.words(command), self.repo)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, command: str) -> "subprocess.Popen[str]":
        """A command that goes on."""
        return self.home.start(self.words(command), self.repo, stderr=self.tmp / "stderr")


@pytest.fixture
def shell(home: Home, tmp_path: Path) -> Shell:
    """A shell in an empty repository."""
    return Shell(home, tmp_path)


def test_the_example_of_a_run_with_a_control_socket(shell: Shell, model: StandInModel) -> None:
    """Started, looked at, followed, prompted and cancelled from other shells."""
    socket = str(shell.tmp / "avenor.sock")
    with model.held("List the files") as first, model.held("the next step"):
        run = shell.start(RUN)
        with ended_process(run):
            wait_socket(socket, run)
            feed = Feed(socket)
            feed.wait(MessageChunk, lambda event: b"held" in bytes(event.content), runtime_id=None, after_seq=0)
            status = json.loads(shell.type("avenor control --socket /tmp/avenor.sock status"))
            assert (status["status"], status["backend"], status["turn_state"]) == ("running", "opencode-acp", "running")
            tail = shell.start("avenor control --socket /tmp/avenor.sock tail")
            with ended_process(tail):
                shell.type('avenor control --socket /tmp/avenor.sock prompt "Continue with the next step"')
                first.set()
                end = feed.wait(TurnEnd, lambda _: True, runtime_id=None, after_seq=0)
                assert str(end.final_output).startswith("held ECHO List the files in this directory and exit.")
                says = feed.wait(
                    MessageChunk, lambda e: b"held" in bytes(e.content), runtime_id=None, after_seq=end.seq
                )
                shell.type("avenor control --socket /tmp/avenor.sock cancel")
                assert run.wait(WAIT_SECONDS) == 130
                lines, _ = tail.communicate(timeout=WAIT_SECONDS)
            feed.join()
    outcome = parse_sentinel((shell.tmp / "done.env").read_text())
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.KILLED, 130, "cancelled")
    log = [decode_event(line) for line in (shell.tmp / "events.ndjson").read_bytes().splitlines()]
    prompts = [event.text for event in log if isinstance(event, TurnStart)]
    assert prompts == ["List the files in this directory and exit.", "Continue with the next step"]
    followed = [decode_event(line.encode()) for line in lines.splitlines()]
    assert followed == log[-len(followed) :]
    assert says in followed
    assert not Path(socket).exists()


def test_the_example_of_a_supervisor(shell: Shell, model: StandInModel) -> None:
    """Started, given a run, listed, prompted, cancelled and shut down from the shell."""
    supervisor = shell.start(STABLE)
    with ended_process(supervisor):
        wait_socket(str(shell.tmp / "avenor-stable.sock"), supervisor)
        spawned = json.loads(shell.type(SPAWN))
        assert spawned["runtime_id"] == "rt_1"
        control = "avenor control --socket /tmp/avenor-stable.sock"
        (listed,) = json.loads(shell.type(f"{control} list"))
        facts = (listed["runtime_id"], listed["label"], listed["backend"], listed["dir"], listed["session_id"])
        assert facts == ("rt_1", "review-42", "opencode-acp", str(shell.repo / "A"), spawned["session_id"])
        shell.type(f'{control} prompt "Continue" rt_1')
        eventually_sync(lambda: model.asked("Continue") and turns(spawned) == 2, WAIT_SECONDS)
        (request,) = [request for request in model.asked("Continue") if "Review PR #42" in request.earlier]
        assert "ECHO" in request.earlier
        shell.type(f"{control} cancel rt_1")
        assert json.loads(shell.type(f"{control} status rt_1"))["status"] == "ended"
        assert parse_sentinel(Path(spawned["sentinel_file"]).read_text()).status is Status.DONE
        shell.type(f"{control} shutdown graceful")
        assert supervisor.wait(WAIT_SECONDS) == 0
    assert (shell.tmp / "avenor-stable.sock.dead").read_text().startswith("STOPPED reason=shutdown ")


def turns(spawned: dict[str, str]) -> int:
    """How many turns of a spawned run have ended."""
    return Path(spawned["on_event"]).read_bytes().count(b'{"event":"turn.end"')
