"""What is special to real opencode over HTTP, beside the conformance suite: one server for several sessions, its death,
a server that runs already, what its model's failures come to, and whole runs.
"""

import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from avenor.host import tree
from avenor.protocol import events
from avenor.protocol.events import Event, PhaseStart, RunEnd, SessionStart, ToolCallUpdate
from avenor.protocol.outcomes import Status
from avenor.runtimes.backends.base import Session, TurnStop, open_within
from tests.agents.harness import LONG_TOOL, Home, MakeRun, is_running, wait_tool
from tests.agents.opencode_agent import OpencodeKit
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually
from tests.runtimes.agent_kit import CLOSE_SECONDS, GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, opened, picks

pytestmark = pytest.mark.agents

_PASSWORD = "let me in"


@pytest.fixture
def kit(home: Home, model: StandInModel) -> OpencodeKit:
    """opencode over HTTP."""
    return OpencodeKit(home, model, "opencode-http")


class Members:
    """Sessions of one runtime, which share a server.

    Args:
        kit: Opens them.
        folder: Where they work.
        nursery: Owns their tasks.
    """

    def __init__(self, kit: OpencodeKit, folder: Path, nursery: trio.Nursery) -> None:
        self.runtime = secrets.token_hex(8)
        self.opened: list[Session] = []
        self._kit = kit
        self._folder = folder
        self._nursery = nursery

    async def open(self, sink: RecordingSink, *, resume: str | None = None) -> Session:
        """One more."""
        params = self._kit.params(self._folder, resume=resume)
        params.env = {**params.env, tree.TREE: self.runtime}
        self.opened.append(await open_within(OPEN_SECONDS, self._kit.backend, params, sink, self._nursery))
        return self.opened[-1]

    def processes(self) -> list[int]:
        """What runs of them."""
        return [found.id.pid for found in tree.tagged(tree.TREE, self.runtime)]


@asynccontextmanager
async def sharing(kit: OpencodeKit, folder: Path) -> AsyncGenerator[Members, None]:
    """Sessions of one runtime; they are closed at the end whatever happens, and then nothing is left."""
    async with trio.open_nursery() as nursery:
        members = Members(kit, folder, nursery)
        try:
            yield members
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                for session in members.opened:
                    await session.close(GRACES)
        assert members.processes() == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_shared_server_that_dies_is_replaced(number: signal.Signals, kit: OpencodeKit, tmp_path: Path) -> None:
    """Both sessions crash, the tool that it leaves goes with the first close, and the session is taken up again."""
    begun = tmp_path / "begun"
    stops: list[TurnStop] = []
    async with sharing(kit, tmp_path) as members, trio.open_nursery() as nursery:
        first = await members.open(RecordingSink(picks("allow_once")))
        second = await members.open(RecordingSink())
        assert first.agent_pid == second.agent_pid
        await first.prompt("[[text: noted]] the word is dunlin")

        async def work() -> None:
            stops.append(await first.prompt(kit.work_on(begun)))

        nursery.start_soon(work)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        os.kill(first.agent_pid, number)
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "agent_exited"
        assert stops[0].error is not None
        assert f"signal {int(number)}" in stops[0].error.message
        assert (await second.wait_exited()).returncode == -number
        assert (await first.close(GRACES)).left == []
        assert members.processes() == []
        again = await members.open(RecordingSink(), resume=first.session_id)
        assert (await again.prompt(kit.recall())).stop_reason == "end_turn"
        assert kit.has_recalled("the word is dunlin", "")


async def test_the_first_to_leave_ends_its_tool_and_not_the_server(kit: OpencodeKit, tmp_path: Path) -> None:
    """Whose tool it is, only the server knows: it ends it with the aborted turn, and the other session goes on."""
    begun, sink = tmp_path / "begun", RecordingSink()
    async with sharing(kit, tmp_path) as members, trio.open_nursery() as nursery:
        first = await members.open(RecordingSink(picks("allow_once")))
        second = await members.open(sink)
        nursery.start_soon(first.prompt, kit.work_on(begun))
        await eventually(begun.exists, seconds=TURN_SECONDS)
        assert len(members.processes()) >= 2
        assert (await first.close(GRACES)).unverified is not None
        await eventually(lambda: members.processes() == [second.agent_pid])
        assert (await second.prompt("[[text: still here]]")).stop_reason == "end_turn"
        assert sink.text() == "still here"


async def test_a_model_that_stays_down_fails_the_turn(kit: OpencodeKit, tmp_path: Path) -> None:
    """opencode tells of each try, which ACP does not; after five the turn has failed, and the session goes on."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt("[[error: 500]] a lasting fault over http")
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent) == ("overloaded", False)
        assert "stand-in error 500" in stop.error.message
        assert len(sink.of(events.SessionUpdate)) >= 5
        assert (await session.prompt("[[text: back again]]")).stop_reason == "end_turn"


@pytest.fixture
def server(home: Home, tmp_path: Path) -> Generator[str, None, None]:
    """The address of a server that somebody else has started."""
    env = {**home.env, "OPENCODE_SERVER_PASSWORD": _PASSWORD}
    words = ["opencode", "serve", "--hostname", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        found = next(match for line in process.stdout if (match := re.search(rb"http://\S+", line)))
        yield found[0].decode()
        assert process.poll() is None
        process.terminate()


def test_a_run_uses_a_server_that_runs_already(run: MakeRun, server: str) -> None:
    """By its address in the environment, with its password; it is left running, and the run says what that means."""
    words = ("--env", f"AVENOR_OPENCODE_URL={server}", "--env", f"OPENCODE_SERVER_PASSWORD={_PASSWORD}")
    one = run("--backend", "opencode-http", *words, "--prompt", "[[text: from over there]]")
    assert one.finish() == (0, "from over there\n"), one.errors()
    assert one.processes() == []


def test_a_run_over_http_prints_its_reply_and_leaves_nothing(run: MakeRun) -> None:
    """A tool, thoughts and tokens, as with any other backend."""
    prompt = "[[reason: hm]][[shell: echo hi > hi.txt]][[text: the whole answer]][[usage: 1000 50]]"
    one = run("--backend", "opencode-http", "--auto-approve", "--model", "standin/small", "--prompt", prompt)
    assert one.finish() == (0, "the whole answer\n"), one.errors()
    assert (one.folder / "hi.txt").read_text() == "hi\n"
    (start,) = one.events(SessionStart)
    assert (start.model, start.agent) == ("standin/small", "build")
    assert one.events(ToolCallUpdate)[-1].status == "completed"
    assert one.processes() == []


def test_a_signal_ends_a_run_over_http_with_server_and_tool(run: MakeRun) -> None:
    """The tool runs in a session of its own below the server, and is gone with it."""
    one = run("--backend", "opencode-http", "--auto-approve", "--prompt", LONG_TOOL)
    pid = wait_tool(one.folder)
    one.process.send_signal(signal.SIGTERM)
    assert one.finish()[0] == 130
    assert (one.sentinel().status, one.sentinel().stop_reason) == (Status.KILLED, "cancelled")
    assert isinstance(one.events(Event)[-1], RunEnd)
    assert not is_running(pid)
    assert one.processes() == []


def test_the_members_of_a_team_share_a_server(run: MakeRun, tmp_path: Path) -> None:
    """Two sessions, one program; at the end it is proven that nothing is left."""
    members = [{"name": name, "prompt": f"[[shell: echo $PPID > {name}.ppid]][[text: I am {name}]]"} for name in "ab"]
    team = tmp_path / "team.json"
    team.write_text(json.dumps({"team": members}))
    one = run("--backend", "opencode-http", "--auto-approve", "--team-file", str(team))
    assert one.finish()[0] == 0, one.errors()
    assert len({start.session_id for start in one.events(PhaseStart)}) == 2
    parents = {(one.folder / f"{name}.ppid").read_text() for name in "ab"}
    assert len(parents) == 1
    assert one.processes() == []
