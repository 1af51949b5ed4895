"""Avenor's own tools over MCP: what a client of the official SDK sees, and what a broken one gets."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import httpx2
import msgspec
import pytest
import trio
from mcp.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from avenor.runtimes.manifest import mcp_http
from avenor.runtimes.manifest.desk import Credentials, ToolReply
from avenor.runtimes.manifest.membertools import MEMBER_TOOLS
from tests.helpers import eventually
from tests.runtimes.desk_kit import Answered, Scene, open_scene

# The SDK's HTTP client leaves its event streams to the garbage collector when it disconnects.
sdk = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

TASK = {"member": "reader", "contract": "look"}


@asynccontextmanager
async def open_client(given: Credentials, mode: Literal["auto", "legacy"] = "auto") -> AsyncGenerator[McpClient, None]:
    """The SDK's client, with the credentials as an agent is handed them."""
    async with (
        httpx2.AsyncClient(headers=given.mcp_server.headers) as http,
        McpClient(streamable_http_client(given.mcp_server.url, http_client=http), mode=mode) as client,
    ):
        yield client


def said(result: Any) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def send(scene: Scene, given: Credentials, message: Any, *headers: tuple[str, str]) -> Answered:
    """One message as it is, valid or not."""
    body = message if isinstance(message, bytes) else msgspec.json.encode(message)
    return await scene.ask(given.mcp_server.url, token=given.gateway_token, body=body, headers=headers)


def call(name: str, arguments: Any, **params: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments, **params}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": given}


STREAMS = ("accept", "application/json, text/event-stream")


def events(body: bytes) -> list[Any]:
    """The messages of a stream, and its comments."""
    parts = [part for part in body.decode().split("\n\n") if part]
    return [part if part.startswith(":") else msgspec.json.decode(part.partition("data: ")[2]) for part in parts]


# --- the SDK --------------------------------------------------------------------------------------------------------


@sdk
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_lists_and_calls_the_granted_tools(mode: Literal["auto", "legacy"]) -> None:
    """Only those; a tool's answer is its text, errors included."""
    async with open_scene() as scene:
        scene.tools.granted["reader.1"] = [*MEMBER_TOOLS]

        async def refuse(arguments: bytes) -> ToolReply:
            return ToolReply("beyond the budget: 3 of 3 calls", is_error=True)

        scene.tools.does["replan"] = refuse
        async with open_client(scene.admit(), mode) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [*MEMBER_TOOLS]
            assert all(tool.description and tool.input_schema["type"] == "object" for tool in listed)
            result = await client.call_tool("create_task", TASK)
            assert (said(result), result.is_error) == (f"create_task {msgspec.json.encode(TASK).decode()}", False)
            refused = await client.call_tool("replan", {"reason": "the schema changed"})
            assert (said(refused), refused.is_error) == ("beyond the budget: 3 of 3 calls", True)
        assert [called[:2] for called in scene.tools.called] == [("reader.1", "create_task"), ("reader.1", "replan")]


@sdk
async def test_the_official_client_is_told_that_a_long_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress comes until the answer does, for those that ask for it."""
    monkeypatch.setattr(mcp_http, "_QUIET_SECONDS", 0.02)
    monkeypatch.setattr(mcp_http, "_BEAT_SECONDS", 0.02)
    told: list[tuple[float, str | None]] = []
    enough = trio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))
        if len(told) == 3:
            enough.set()

    async def work(arguments: bytes) -> ToolReply:
        await enough.wait()
        return ToolReply("done")

    async with open_scene() as scene:
        scene.tools.does["start_worker"] = work
        async with open_client(scene.admit()) as client:
            result = await client.call_tool("start_worker", TASK, progress_callback=note)
            assert said(result) == "done"
    assert told[:3] == [(number, "start_worker goes on") for number in (1, 2, 3)]


@sdk
async def test_a_call_that_the_official_client_cancels_is_cancelled() -> None:
    """The tool is told at once, and the client's next call is answered."""
    ends = trio.Event()

    async def work(arguments: bytes) -> ToolReply:
        try:
            await trio.sleep_forever()
        finally:
            ends.set()
        raise AssertionError

    async with open_scene() as scene:
        scene.tools.does["start_worker"] = work
        async with open_client(scene.admit(), "legacy") as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "start_worker", TASK)
                await eventually(lambda: scene.tools.called)
                group.cancel_scope.cancel()
            await ends.wait()
            assert "create_task" in said(await client.call_tool("create_task", TASK))


# --- what tools refuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("replan", "the tool replan is not granted to you; you have: create_task, start_worker, submit_result."),
        ("rm_rf", "the tool rm_rf does not exist; you have: create_task, start_worker, submit_result."),
    ],
)
async def test_a_tool_that_is_not_granted_is_refused_and_the_agent_told_why(name: str, says: str) -> None:
    """As a result that the model reads, not as an error of the protocol."""
    async with open_scene() as scene:
        answered = await send(scene, scene.admit(), call(name, {"reason": "x"}))
        result = answered.json()["result"]
        assert result["isError"] is True
        assert result["content"][0]["text"].startswith(says)
        assert scene.tools.called == []


async def test_arguments_that_do_not_fit_never_reach_the_tool() -> None:
    """The agent is told field, value and what is expected, for all of them at once."""
    async with open_scene() as scene:
        answered = await send(scene, scene.admit(), call("start_worker", {"member": 5, "contract": "x", "zz": True}))
        result = answered.json()["result"]
        assert result["isError"] is True
        text = result["content"][0]["text"]
        assert "member: Expected `str`, got `int`; given: 5; expected: Whose role" in text
        assert "zz: unknown member; known here: member, contract" in text
        assert scene.tools.called == []


async def test_a_call_without_a_name_is_an_error_of_the_protocol() -> None:
    """No model can have meant it."""
    async with open_scene() as scene:
        answered = await send(scene, scene.admit(), {"jsonrpc": "2.0", "id": 1, "method": "tools/call"})
        assert answered.json()["error"]["code"] == -32602


async def test_a_fault_in_a_tool_is_told_without_its_insides() -> None:
    """The traceback is in avenor's log."""

    async def fail(arguments: bytes) -> ToolReply:
        raise RuntimeError("a secret of ours")

    async with open_scene() as scene:
        scene.tools.does["create_task"] = fail
        given = scene.admit()
        answered = await send(scene, given, call("create_task", TASK))
        assert answered.json()["error"]["code"] == -32603
        assert b"secret" not in answered.body
        assert (await send(scene, given, call("submit_result", {}))).json()["result"]["isError"] is True


# --- the transport --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (b"{not json", 400, -32700),
        (b"\xff\xff", 400, -32700),
        (b'{"x":' * 100_000, 400, -32700),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 3}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 200, -32601),
    ],
)
async def test_what_is_no_message_of_ours_is_refused(message: Any, status: int, code: int) -> None:
    """Each with its own code; the next message is answered."""
    async with open_scene() as scene:
        given = scene.admit()
        answered = await send(scene, given, message)
        assert (answered.status, answered.json()["error"]["code"]) == (status, code)
        assert (await send(scene, given, {"jsonrpc": "2.0", "id": 2, "method": "ping"})).json()["result"] == {}


async def test_a_message_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is decoded."""
    monkeypatch.setattr(mcp_http, "BODY_LIMIT_BYTES", 1000)
    async with open_scene() as scene:
        answered = await send(scene, scene.admit(), b" " * 1_000_000)
        assert (answered.status, answered.json()["error"]["code"]) == (413, -32600)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_there_are_no_sessions_to_watch_or_to_end(method: str) -> None:
    """Clients know this answer, and do without."""
    async with open_scene() as scene:
        given = scene.admit()
        answered = await scene.ask(given.mcp_server.url, token=given.gateway_token, method=method)
        assert (answered.status, answered.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("asked", "given"), [("2025-03-26", "2025-03-26"), ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25")]
)
async def test_the_version_is_the_clients_where_it_is_known(asked: str, given: str) -> None:
    """Else the newest; the client decides whether it can do with that."""
    async with open_scene() as scene:
        message = {"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": {"protocolVersion": asked}}
        answered = await send(scene, scene.admit(), message)
        result = answered.json()["result"]
        assert (result["protocolVersion"], result["serverInfo"]["name"]) == (given, "avenor")
        assert answered.headers["mcp-session-id"]


async def test_a_message_of_an_unknown_version_is_refused() -> None:
    """As the specification wants it."""
    async with open_scene() as scene:
        given = scene.admit()
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await send(scene, given, message, ("mcp-protocol-version", "1999-01-01"))).status == 400
        assert (await send(scene, given, message, ("mcp-protocol-version", "2025-06-18"))).status == 200


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ],
)
async def test_what_wants_no_answer_gets_none(message: Any) -> None:
    """Notifications, and answers to what was never asked."""
    async with open_scene() as scene:
        answered = await send(scene, scene.admit(), message)
        assert (answered.status, answered.body) == (202, b"")


# --- long calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "params", "first"),
    [
        ([STREAMS], {}, ": the call goes on"),
        (
            [STREAMS],
            {"_meta": {"progressToken": 3}},
            {"progressToken": 3, "progress": 1, "message": "start_worker goes on"},
        ),
        ([], {}, None),
    ],
)
async def test_a_long_call_shows_signs_of_life_to_those_that_can_take_them(
    monkeypatch: pytest.MonkeyPatch, headers: Sequence[tuple[str, str]], params: dict[str, Any], first: Any
) -> None:
    """A comment, progress, or nothing but the answer; the answer comes last in any case."""
    monkeypatch.setattr(mcp_http, "_QUIET_SECONDS", 0.02)

    async def work(arguments: bytes) -> ToolReply:
        await go_on.wait()
        return ToolReply("done")

    go_on = trio.Event()
    async with open_scene() as scene:
        scene.tools.does["start_worker"] = work
        given = scene.admit()
        url, body = given.mcp_server.url, msgspec.json.encode(call("start_worker", TASK, **params))
        seen = b""
        async with trio.open_nursery() as nursery:
            if first is None:
                nursery.start_soon(release_when_called, scene, go_on)
            async with scene.open(url, token=given.gateway_token, body=body, headers=headers) as answered:
                async for piece in answered.aiter_stream():
                    seen += piece
                    go_on.set()
        *beats, last = events(seen) if first is not None else [msgspec.json.decode(seen)]
        assert last == {
            "jsonrpc": "2.0",
            "id": 7,
            "result": {"content": [{"type": "text", "text": "done"}], "isError": False},
        }
        assert [beat if isinstance(beat, str) else beat["params"] for beat in beats[:1]] == (
            [] if first is None else [first]
        )


async def release_when_called(scene: Scene, go_on: trio.Event) -> None:
    await eventually(lambda: scene.tools.called)
    go_on.set()


class Hanging:
    """A tool that never answers, and notes its end."""

    def __init__(self) -> None:
        self.has_ended = trio.Event()

    async def __call__(self, arguments: bytes) -> ToolReply:
        try:
            await trio.sleep_forever()
        finally:
            self.has_ended.set()
        raise AssertionError


async def test_a_client_that_leaves_ends_its_call() -> None:
    """Nobody could get the answer any more."""
    hanging = Hanging()
    async with open_scene() as scene:
        scene.tools.does["start_worker"] = hanging
        given = scene.admit()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, scene, given, call("start_worker", TASK))
            await eventually(lambda: scene.tools.called)
            nursery.cancel_scope.cancel()
        await hanging.has_ended.wait()


async def test_a_cancel_ends_the_call_of_that_client_and_id_alone() -> None:
    """Two clients of one attempt may have the same ids; a third message with the id of a running one is refused."""
    hanging = Hanging()
    answers: dict[str, Answered] = {}
    async with open_scene() as scene:
        scene.tools.does["start_worker"] = hanging
        given = scene.admit()
        ours, theirs = ("mcp-session-id", "ours"), ("mcp-session-id", "theirs")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}

        async def start(label: tuple[str, str]) -> None:
            answers[label[1]] = await send(scene, given, call("start_worker", TASK), label)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, ours)
            await eventually(lambda: scene.tools.called)
            again = await send(scene, given, call("create_task", TASK), ours)
            assert (again.status, again.json()["error"]["code"]) == (400, -32600)
            assert (await send(scene, given, call("create_task", TASK), theirs)).status == 200
            await send(scene, given, cancel, theirs)
            assert not hanging.has_ended.is_set()
            await send(scene, given, cancel, ours)
            await hanging.has_ended.wait()
        assert answers["ours"].json()["error"] == {"code": -32800, "message": "the request was cancelled"}


async def test_a_cancel_from_another_attempt_does_nothing() -> None:
    """Whatever id it names."""
    hanging = Hanging()
    async with open_scene() as scene:
        scene.tools.does["start_worker"] = hanging
        given, other = scene.admit(), scene.admit("other.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, scene, given, call("start_worker", TASK))
            await eventually(lambda: scene.tools.called)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            await send(scene, other, cancel)
            assert not hanging.has_ended.is_set()
            scene.desk.revoke("reader.1")
            await hanging.has_ended.wait()
