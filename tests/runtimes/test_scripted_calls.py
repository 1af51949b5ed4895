"""The scripted agent calls tools over MCP and asks models, at the real desk: what a rehearsed manifest is made of."""

import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.runtimes.manifest import mcp_http
from avenor.runtimes.manifest.desk import Credentials, ToolReply
from tests.helpers import eventually
from tests.runtimes.acp_client import Client, Turn, open_client, play
from tests.runtimes.desk_kit import Service, answer, chunk, open_scene, open_service

TASK = {"member": "reader", "contract": "look at {prompt}"}
SAID = {"do": "say", "text": "<{reply}>"}


def handed(given: Credentials) -> dict[str, Any]:
    """The server as ACP hands it over."""
    headers = [{"name": name, "value": value} for name, value in given.mcp_server.headers.items()]
    return {"type": "http", "name": given.mcp_server.name, "url": given.mcp_server.url, "headers": headers}


@asynccontextmanager
async def open_agent(
    folder: Path, script: Any, *servers: dict[str, Any], env: dict[str, str] | None = None
) -> AsyncGenerator[Client, None]:
    """The agent with a session that was handed these servers. Its client blocks, so it is used in threads."""
    with open_client(folder, script, env=env) as client:

        def start() -> None:
            client.initialize()
            params = {"cwd": str(folder), "mcpServers": list(servers)}
            client.session_id = client.call("session/new", params)["result"]["sessionId"]

        await trio.to_thread.run_sync(start)
        yield client


async def in_thread(function: Callable[[], Turn]) -> Turn:
    return await trio.to_thread.run_sync(function)


async def prompt(client: Client, text: str = "x.py") -> Turn:
    return await in_thread(lambda: client.prompt(text))


def tool_updates(turn: Turn) -> tuple[dict[str, Any], dict[str, Any]]:
    """The announcement of the turn's only tool call, and its end."""
    (announced,) = turn.of_kind("tool_call")
    return announced, turn.of_kind("tool_call_update")[-1]


# --- tools ----------------------------------------------------------------------------------------------------------


async def test_a_script_calls_a_tool_of_a_server_that_it_was_handed(tmp_path: Path) -> None:
    """Placeholders are filled in, the reply is the tool's output, and can be said."""
    script = play({"do": "mcp", "server": "avenor", "tool": "create_task", "arguments": TASK}, SAID)
    async with open_scene() as scene, open_agent(tmp_path, script, handed(scene.admit())) as agent:
        turn = await prompt(agent)
        announced, end = tool_updates(turn)
        arguments = {"member": "reader", "contract": "look at x.py"}
        assert (announced["title"], announced["kind"]) == ("avenor_create_task", "other")
        assert announced["rawInput"] == arguments
        reply = f"create_task {msgspec.json.encode(arguments).decode()}"
        assert (end["status"], end["content"][0]["content"]["text"]) == ("completed", reply)
        assert turn.text == f"<{reply}>"
        assert [called[:2] for called in scene.tools.called] == [("reader.1", "create_task")]


async def test_a_refused_call_fails_and_the_turn_goes_on(tmp_path: Path) -> None:
    """Without a server's name the first one over http is meant; what follows depends on the reply."""
    follow = [
        {"match": "granted.*dance", "steps": [{"do": "say", "text": "wrong"}]},
        {"match": "not granted to you", "steps": [{"do": "say", "text": "refused"}]},
        {"steps": [{"do": "say", "text": "wrong too"}]},
    ]
    script = play({"do": "mcp", "tool": "replan", "arguments": {"reason": "x"}, "on_reply": follow})
    program: dict[str, Any] = {"name": "first", "command": "/bin/false", "args": [], "env": []}
    async with open_scene() as scene, open_agent(tmp_path, script, program, handed(scene.admit())) as agent:
        turn = await prompt(agent)
        assert tool_updates(turn)[1]["status"] == "failed"
        assert (turn.text, turn.stop_reason) == ("refused", "end_turn")


async def test_a_long_call_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is a stream of events, the reply the last of them."""
    monkeypatch.setattr(mcp_http, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(mcp_http, "_BEAT_SECONDS", 0.01)

    async def work(arguments: bytes) -> ToolReply:
        await trio.sleep(0.05)
        return ToolReply("worked")

    script = play({"do": "mcp", "tool": "start_worker", "arguments": TASK}, SAID)
    async with open_scene() as scene, open_agent(tmp_path, script, handed(scene.admit())) as agent:
        scene.tools.does["start_worker"] = work
        assert (await prompt(agent)).text == "<worked>"


async def test_a_cancel_ends_a_running_call(tmp_path: Path) -> None:
    """The connection is closed, so that the tool ends as well."""
    has_ended = trio.Event()

    async def work(arguments: bytes) -> ToolReply:
        try:
            await trio.sleep_forever()
        finally:
            has_ended.set()
        raise AssertionError

    script = play({"do": "mcp", "tool": "start_worker", "arguments": TASK})
    async with open_scene() as scene, open_agent(tmp_path, script, handed(scene.admit())) as agent:
        scene.tools.does["start_worker"] = work
        request_id = await trio.to_thread.run_sync(agent.start_prompt, "x")
        await eventually(lambda: scene.tools.called)
        await trio.to_thread.run_sync(agent.cancel)
        turn = await in_thread(lambda: agent.wait_answer(request_id))
        assert (turn.stop_reason, tool_updates(turn)[1]["status"]) == ("cancelled", "failed")
        await has_ended.wait()


async def test_a_call_can_ask_for_permission_first(tmp_path: Path) -> None:
    """Refused, it reaches nobody."""
    script = play({"do": "mcp", "tool": "create_task", "arguments": TASK, "ask": True})
    async with open_scene() as scene, open_agent(tmp_path, script, handed(scene.admit())) as agent:
        agent.on_permission = lambda request: {"result": {"outcome": {"outcome": "selected", "optionId": "reject"}}}
        turn = await prompt(agent)
        assert tool_updates(turn)[1]["status"] == "failed"
        assert scene.tools.called == []


async def test_without_a_server_or_with_a_revoked_token_the_call_fails(tmp_path: Path) -> None:
    """The reply says why."""
    script = play({"do": "mcp", "server": "avenor", "tool": "create_task", "arguments": TASK}, SAID)
    async with open_scene() as scene:
        given = scene.admit()
        scene.desk.revoke("reader.1")
        async with open_agent(tmp_path, script, handed(given)) as agent:
            assert "HTTP status 401" in (await prompt(agent)).text
        async with open_agent(tmp_path, script) as agent:
            assert "handed no such MCP server" in (await prompt(agent)).text


BROKEN: list[tuple[bytes, str]] = [
    (answer(b"not json"), "is no message"),
    (answer(b"", kind="text/event-stream"), "is no message"),
    (answer(b'{"id":1,"error":{"code":-5,"message":"no"}}'), "-5 no"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"{}"), "broke off"),
    (b"nonsense\r\n\r\n", "broke off"),
    (b"", "broke off"),
]


@pytest.mark.parametrize(("bytes_sent", "says"), BROKEN)
async def test_a_broken_server_is_a_failed_call(tmp_path: Path, bytes_sent: bytes, says: str) -> None:
    """And never the end of the agent."""
    script = play({"do": "mcp", "tool": "t"}, SAID)
    async with open_service() as service:
        service.answers = [[answer(b'{"id":1,"result":{}}')], [answer(b"")], [bytes_sent]]
        server: dict[str, Any] = {
            "type": "http",
            "name": "s",
            "url": f"http://127.0.0.1:{service.port}/mcp",
            "headers": [],
        }
        async with open_agent(tmp_path, script, server) as agent:
            turn = await prompt(agent)
            assert says in turn.text
            assert (turn.stop_reason, tool_updates(turn)[1]["status"]) == ("end_turn", "failed")
            assert [asked.method for asked in service.asked] == ["POST", "POST", "POST"]


async def test_a_connection_that_is_reset_is_a_failed_call(tmp_path: Path) -> None:
    """As when the desk's process is killed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    server: dict[str, Any] = {
        "type": "http", "name": "s", "url": f"http://127.0.0.1:{listener.getsockname()[1]}/", "headers": [],
    }  # fmt: skip
    with listener:
        async with (
            open_agent(tmp_path, play({"do": "mcp", "tool": "t"}, SAID), server) as agent,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(trio.to_thread.run_sync, reset)
            turn = await prompt(agent)
        assert "Connection reset" in turn.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/mcp", "https://127.0.0.1/mcp", "nonsense"])
async def test_a_server_that_cannot_be_reached_is_a_failed_call(tmp_path: Path, url: str) -> None:
    """Only http is spoken: it is for servers of this machine."""
    script = play({"do": "mcp", "tool": "t"}, SAID)
    async with open_agent(tmp_path, script, {"type": "http", "name": "s", "url": url, "headers": []}) as agent:
        turn = await prompt(agent)
        assert url in turn.text
        assert turn.stop_reason == "end_turn"


# --- models ---------------------------------------------------------------------------------------------------------

COMPLETION = {
    "choices": [{"message": {"role": "assistant", "content": "as you say"}}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 4},
}


def model_env(given: Credentials) -> dict[str, str]:
    return {"OPENAI_BASE_URL": given.gateway_url, "OPENAI_API_KEY": given.gateway_token}


async def test_a_script_asks_a_real_model_through_the_gateway(tmp_path: Path) -> None:
    """One metered call; its tokens are the turn's, and its reply can be said and looked at."""
    yes = [{"match": "^as you", "steps": [{"do": "say", "text": " yes"}]}]
    script = play({"do": "model", "prompt": "really {prompt}?", "on_reply": yes}, SAID)
    async with open_scene() as scene:
        scene.service.answers = [[answer(msgspec.json.encode(COMPLETION))]]
        async with open_agent(tmp_path, script, env=model_env(scene.admit())) as agent:
            turn = await prompt(agent, "now")
        assert turn.text == " yes<as you say>"
        assert turn.answer["result"]["usage"] == {"inputTokens": 30, "outputTokens": 4, "totalTokens": 34}
        (asked,) = scene.service.asked
        assert msgspec.json.decode(asked.body)["messages"] == [{"role": "user", "content": "really now?"}]
        assert scene.meter.charged == [("reader.1", 30, 4, 0)]


async def test_a_spent_budget_ends_the_turn_as_it_ends_that_of_real_agents(tmp_path: Path) -> None:
    """The second of two calls is refused."""
    async with open_scene(limit=1) as scene:
        scene.service.answers = [[answer(msgspec.json.encode({**COMPLETION, "usage": None}))]]
        script = play({"do": "model"}, {"do": "model"}, {"do": "say", "text": "never"})
        async with open_agent(tmp_path, script, env=model_env(scene.admit())) as agent:
            turn = await prompt(agent)
        error = turn.answer["error"]
        assert (error["message"], error["data"]) == ("the budget of reader.1 is spent: 1 model calls", {"status": 429})
        assert turn.text == ""


@pytest.mark.parametrize(
    ("sent", "says"),
    [(answer(b"oops", status="500 X"), "oops"), (b"", "broke off"), (answer(b"plain"), None)],
)
async def test_a_model_that_fails_ends_the_turn_unless_the_script_goes_on(
    tmp_path: Path, sent: bytes, says: str | None
) -> None:
    """An answer that is no completion is taken as it is, where it is no error."""
    async with open_service() as service:
        service.answers = [[sent]]
        for follows in (False, True):
            step = {
                "do": "model",
                "url": url_of(service),
                "key": "k",
                "on_reply": [{"steps": [SAID]}] if follows else [],
            }
            async with open_agent(tmp_path, play(step)) as agent:
                turn = await prompt(agent)
            if follows or says is None:
                assert turn.stop_reason == "end_turn"
                assert (says or "<plain>") in turn.text or not follows
            else:
                assert says in turn.answer["error"]["message"]


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}/v1?x=1"


async def test_one_script_serves_several_members(tmp_path: Path) -> None:
    """Rules are chosen by prompt; each session speaks to the server that it was handed."""
    rules = [
        {"match": "planner", "steps": [{"do": "mcp", "tool": "create_task", "arguments": TASK}]},
        {"match": "reader", "steps": [{"do": "mcp", "tool": "start_worker", "arguments": TASK}]},
    ]
    async with open_scene() as scene:
        for name in ("planner", "reader"):
            async with open_agent(tmp_path, {"rules": rules}, handed(scene.admit(f"{name}.1"))) as agent:
                await prompt(agent, f"you are the {name}")
        assert [called[:2] for called in scene.tools.called] == [
            ("planner.1", "create_task"),
            ("reader.1", "start_worker"),
        ]
