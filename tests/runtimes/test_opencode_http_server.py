"""The server of `opencode-http`: how it starts, who shares it, when it ends, and what is made of one that fails."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from avenor.host import tree
from avenor.protocol import events
from avenor.protocol.errors import AgentExited, SpawnError
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends import opencode_http, opencode_server
from avenor.runtimes.backends.agent_process import AgentProcess, start_agent
from avenor.runtimes.backends.base import BackendRefused, OpenParams, Session, TurnStop, open_within
from avenor.runtimes.backends.opencode_http import OpencodeHttpBackend
from tests.helpers import eventually
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, make_params, opened, picks
from tests.runtimes.fake_opencode import running_fake
from tests.runtimes.opencode_kit import fake_backend, talking


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def member_params(folder: Path, runtime: str, **changes: object) -> OpenParams:
    """Params of one of several sessions of a runtime, which have a tag each and one in common."""
    params = make_params(folder, **changes)
    return make_params(folder, tag=params.tag, env={**params.env, tree.TREE: runtime}, **changes)


async def open_member(
    backend: OpencodeHttpBackend, params: OpenParams, sink: RecordingSink, nursery: trio.Nursery
) -> Session:
    """One more session; the test closes it."""
    return await open_within(OPEN_SECONDS, backend, params, sink, nursery)


async def refusal(params: OpenParams, *argv: str) -> BackendRefused:
    """The refusal of an opening that must fail, with nothing left behind."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, fake_backend(*argv), params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value


async def test_sessions_of_a_runtime_share_a_server(tmp_path: Path) -> None:
    """One process for both; the first to leave ends its turn and its tool, the last one ends the server."""
    backend, runtime = fake_backend(), secrets.token_hex(8)
    first_sink, second_sink = RecordingSink(picks("allow_once")), RecordingSink()
    async with trio.open_nursery() as nursery:
        first = await open_member(backend, member_params(tmp_path, runtime), first_sink, nursery)
        second = await open_member(backend, member_params(tmp_path, runtime), second_sink, nursery)
        assert first.agent_pid == second.agent_pid
        assert first.session_id != second.session_id
        stops: list[TurnStop] = []

        async def work() -> None:
            stops.append(await first.prompt("run echo $$ > tool; exec sleep 60"))

        nursery.start_soon(work)
        await eventually((tmp_path / "tool").exists, seconds=TURN_SECONDS)
        left = await first.close(GRACES)
        assert left.unverified is not None
        assert "share" in left.unverified
        assert stops[0].stop_reason == "cancelled"
        tool = int((tmp_path / "tool").read_text())
        assert all(found.id.pid != tool for found in tree.tagged(tree.TREE, runtime))
        # The tasks of the server ran in the first one's nursery, and go on in another's.
        assert (await second.prompt("say still here")).stop_reason == "end_turn"
        assert second_sink.text() == "still here"
        await second.close(GRACES)
        assert tree.tagged(tree.TREE, runtime) == []
        nursery.cancel_scope.cancel()


async def test_the_server_goes_on_when_the_nursery_of_its_tasks_is_cancelled(tmp_path: Path) -> None:
    """A conversation that is torn down with its tasks leaves the others their events."""
    backend, runtime = fake_backend(), secrets.token_hex(8)
    sink = RecordingSink()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as doomed:
            first = await open_member(backend, member_params(tmp_path, runtime), RecordingSink(), doomed)
            second = await open_member(backend, member_params(tmp_path, runtime), sink, nursery)
            doomed.cancel_scope.cancel()
        await first.close(GRACES)
        assert (await second.prompt("say on we go")).stop_reason == "end_turn"
        assert sink.text() == "on we go"
        await second.close(GRACES)
        nursery.cancel_scope.cancel()


async def test_a_dead_server_is_replaced_and_its_tools_are_ended(tmp_path: Path) -> None:
    """All its sessions crash; the first that is closed ends what it left, and the next opening resumes on a new one."""
    backend, runtime = fake_backend(), secrets.token_hex(8)
    sinks = [RecordingSink(picks("allow_once")), RecordingSink()]
    async with trio.open_nursery() as nursery:
        first, second = [await open_member(backend, member_params(tmp_path, runtime), sink, nursery) for sink in sinks]
        await first.prompt("say the word is owl")
        stops: list[TurnStop] = []

        async def work(session: Session, text: str) -> None:
            stops.append(await session.prompt(text))

        nursery.start_soon(work, first, "run echo $$ > tool; exec sleep 60")
        nursery.start_soon(work, second, "talk")
        await eventually((tmp_path / "tool").exists, seconds=TURN_SECONDS)
        os.kill(first.agent_pid, signal.SIGKILL)
        await eventually(lambda: len(stops) == 2, seconds=TURN_SECONDS)
        assert {stop.stop_reason for stop in stops} == {"agent_exited"}
        assert (await first.close(GRACES)).left == []
        assert tree.tagged(tree.TREE, runtime) == []
        sink = RecordingSink()
        again = await open_member(backend, member_params(tmp_path, runtime, resume=first.session_id), sink, nursery)
        assert again.agent_pid != first.agent_pid
        await again.prompt("recall")
        assert "owl" in sink.text()
        await second.close(GRACES)
        assert (await again.prompt("say here")).stop_reason == "end_turn"
        await again.close(GRACES)
        nursery.cancel_scope.cancel()


async def test_the_sessions_of_a_dead_server_hear_of_it_though_a_close_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked after the server was still reading what it had left when the close let go of it."""
    backend, runtime = fake_backend(), secrets.token_hex(8)
    stops: list[TurnStop] = []

    async def read_on(*_arguments: object) -> None:
        await trio.sleep_forever()

    async def is_cut_short(**_arguments: object) -> None:
        cut.cancel()
        await trio.sleep_forever()

    monkeypatch.setattr(opencode_server, "DRAIN_SECONDS", 3600.0)
    monkeypatch.setattr(AgentProcess, "read_stderr", read_on)
    with trio.fail_after(TURN_SECONDS):
        async with trio.open_nursery() as nursery:
            first, second = [
                await open_member(backend, member_params(tmp_path, runtime), RecordingSink(), nursery) for _ in range(2)
            ]

            async def talk() -> None:
                stops.append(await second.prompt("talk"))

            nursery.start_soon(talk)
            os.kill(first.agent_pid, signal.SIGKILL)
            await eventually(lambda: first.is_lost)
            with monkeypatch.context() as patch, trio.CancelScope() as cut:
                patch.setattr("avenor.runtimes.backends.agent_process.stop_tree", is_cut_short)
                await first.close(GRACES)
            assert cut.cancelled_caught
            assert (await second.wait_exited()).returncode == -signal.SIGKILL
            await second.close(GRACES)
    assert [stop.stop_reason for stop in stops] == ["agent_exited"]
    assert tree.tagged(tree.TREE, runtime) == []


async def test_a_server_that_dies_by_itself_tells_how(tmp_path: Path) -> None:
    """Its status is the crash's, with the end of its stderr; what it says beside the protocol is noise."""
    sink = RecordingSink()
    async with opened(fake_backend(), make_params(tmp_path), sink) as session:
        stop = await session.prompt("die")
        assert stop.error is not None
        assert "exit status 3" in stop.error.message
        assert "a word on stderr" in stop.error.message
        assert [event.text for event in sink.of(events.AgentNoise)] == ["noise before the address"]
        assert [event.text for event in sink.of(events.AgentStderr)] == ["a word on stderr"]


async def test_every_server_has_a_password_of_its_own(tmp_path: Path) -> None:
    """Whatever the caller's environment holds; nothing is answered without it."""
    password = "the caller's"
    params = make_params(tmp_path)
    params.env = {**params.env, "OPENCODE_SERVER_PASSWORD": password}
    async with opened(fake_backend(), params, RecordingSink()) as session:
        given = environment_of(session.agent_pid)["OPENCODE_SERVER_PASSWORD"]
        assert given != password
        assert len(given) > 40


@pytest.mark.parametrize("is_fast", [False, True])
async def test_a_program_that_is_missing_or_ends_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """With how to install it, or how it ended and what it said; also one that is dead before anybody looks after it."""
    if is_fast:

        async def start_and_wait(*args: Any, **kwargs: Any) -> AgentProcess:
            process = await start_agent(*args, **kwargs)
            await eventually(lambda: process.has_ended)
            return process

        monkeypatch.setattr(opencode_http, "start_agent", start_and_wait)
    params = make_params(tmp_path)
    async with trio.open_nursery() as nursery:
        with pytest.raises(SpawnError, match="npm install -g opencode-ai"):
            await fake_backend("no-such-opencode").open(params, RecordingSink(), nursery)
        ends = fake_backend(sys.executable, "-c", "import sys; sys.exit('no port for you')")
        with pytest.raises(AgentExited, match=r"exit status 1.*\n.*no port for you") as caught:
            await ends.open(params, RecordingSink(), nursery)
    assert caught.value.retryable


async def test_something_that_is_no_opencode_is_refused(tmp_path: Path) -> None:
    """It says where it listens, and answers in other words."""
    source = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'<html>')\n"
        "s = h.HTTPServer(('127.0.0.1', 0), H)\n"
        "print('listening on http://127.0.0.1:%d' % s.server_port, flush=True)\n"
        "s.serve_forever()\n"
    )
    refused = await refusal(make_params(tmp_path), sys.executable, "-c", source)
    assert (refused.reason_word, refused.retryable) == ("session_refused", False)


async def test_a_server_that_runs_already_is_used_and_left(tmp_path: Path) -> None:
    """No program is started, the password is the environment's, and after the close it still answers."""
    async with running_fake(password="let me in") as fake:
        params = make_params(tmp_path, server_url=fake.url)
        wrong = await refusal(params)
        assert (wrong.reason_word, wrong.retryable) == ("auth_required", False)
        params.env = {**params.env, "OPENCODE_SERVER_PASSWORD": "let me in"}
        sink = RecordingSink()
        async with opened(fake_backend(), params, sink) as session:
            assert session.agent_pid == 0
            assert (await session.prompt("say hi")).stop_reason == "end_turn"
        stopped = await session.close(GRACES)
        assert stopped.left == []
        assert stopped.unverified is not None
        async with opened(fake_backend(), params, RecordingSink()) as session:
            assert (await session.prompt("say hi")).stop_reason == "end_turn"


async def test_closing_in_mid_turn_aborts_the_turn_of_a_server_that_goes_on(tmp_path: Path) -> None:
    """Its tool would otherwise run on."""
    async with talking(tmp_path, picks("allow_once")) as talk, trio.open_nursery() as nursery:
        begun = tmp_path / "begun"
        nursery.start_soon(talk.session.prompt, f"run touch {begun}; exec sleep 60")
        await eventually(begun.exists, seconds=TURN_SECONDS)
        await talk.session.close(GRACES)
        assert talk.fake.statuses == {}


async def test_a_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It may come back, so another try is worth while."""
    refused = await refusal(make_params(tmp_path, server_url="http://127.0.0.1:1"))
    assert (refused.reason_word, refused.retryable) == ("server_unreachable", True)


async def test_a_server_that_cannot_be_reached_any_more_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bounded time the turn has failed as a crash."""
    monkeypatch.setattr(opencode_server, "GIVE_UP_SECONDS", 0.3)
    async with talking(tmp_path) as talk, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def run() -> None:
            stops.append(await talk.session.prompt("talk"))

        nursery.start_soon(run)
        await talk.sink.wait_text("tick")
        talk.fake.refusals["/event"] = 500
        await talk.fake.break_streams()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "agent_exited"
        assert (await talk.session.wait_exited()).returncode is None
        assert "cannot be reached" in talk.sink.of(events.Error)[-1].message


async def test_mcp_servers_are_handed_over_once(tmp_path: Path) -> None:
    """In opencode's own words; one that does not start is told, and the session goes on."""
    servers = [
        McpServer(name="mine", command="serve", args=["-x"], env={"A": "b"}),
        McpServer(name="far", type="http", url="http://127.0.0.1:9/mcp", headers={"X": "y"}),
        McpServer(name="bad", command="/no/such"),
    ]
    async with talking(tmp_path, mcp_servers=servers) as talk:
        assert talk.fake.mcp == {
            "mine": {"type": "local", "command": ["serve", "-x"], "environment": {"A": "b"}},
            "far": {"type": "remote", "url": "http://127.0.0.1:9/mcp", "headers": {"X": "y"}},
            "bad": {"type": "local", "command": ["/no/such"], "environment": {}},
        }
        (told,) = await talk.sink.wait_for(events.Error)
        assert told.message == "MCP server bad is not connected: ENOENT"


async def test_a_thinking_level_is_a_variant_of_the_model(tmp_path: Path) -> None:
    """It goes with every prompt; one that the model lacks is refused with those that it has."""
    async with talking(tmp_path, thinking="high", agent="build") as talk:
        assert talk.session.capabilities.thinking == ["high", "low"]
        await talk.session.prompt("say hm")
        (sent,) = talk.fake.asked("/prompt_async")
        assert sent["variant"] == "high"
        assert sent["model"] == {"providerID": "fake", "modelID": "large"}
        assert sent["agent"] == "build"
        refused = await refusal(make_params(tmp_path, server_url=talk.fake.url, thinking="deep"))
        assert (refused.reason_word, refused.data["offers"]) == ("unknown_thinking", ["high", "low"])


async def test_a_resumed_session_keeps_its_choice(tmp_path: Path) -> None:
    """Agent, model and thinking level are those of the session, where nothing else was asked for."""
    sink = RecordingSink()
    async with talking(tmp_path, thinking="low", agent="plan", model="fake/large") as talk:
        params = make_params(tmp_path, server_url=talk.fake.url, resume=talk.session.session_id)
        async with opened(fake_backend(), params, sink) as session:
            assert (session.resumed, session.agent, session.model) == (True, "plan", "fake/large")
            await session.prompt("say hm")
            assert talk.fake.asked("/prompt_async")[-1]["variant"] == "low"


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (400, False)])
async def test_an_opening_that_the_server_refuses_says_why(status: int, retryable: bool, tmp_path: Path) -> None:
    """In the server's words; whether another try is worth while goes by the status."""
    async with running_fake() as fake:
        fake.refusals["/agent"] = status
        refused = await refusal(make_params(tmp_path, server_url=fake.url))
        assert (refused.reason_word, refused.retryable) == ("session_refused", retryable)
        assert "the fake says no" in refused.message


async def test_an_agent_brings_its_model_and_hidden_ones_are_not_offered(tmp_path: Path) -> None:
    """What was asked for goes first; a model may be named as people name it."""
    async with talking(tmp_path, agent="plan") as talk:
        assert (talk.session.agent, talk.session.model) == ("plan", "fake/small")
        assert talk.session.capabilities.agents == ["build", "plan"]
    async with talking(tmp_path, agent="plan", model="Large") as talk:
        assert talk.session.model == "fake/large"


def test_a_run_with_another_backend_does_not_import_the_client() -> None:
    """What `avenor run` imports has no HTTP client in it, until somebody asks for this backend."""
    source = (
        "import sys, avenor.runtimes.main\n"
        "from avenor.runtimes.backends.registry import get_backend\n"
        "get_backend('opencode-acp')\n"
        "assert 'httpcore' not in sys.modules\n"
        "get_backend('opencode-http')\n"
        "assert 'httpcore' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
