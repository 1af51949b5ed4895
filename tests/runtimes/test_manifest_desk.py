"""The desk: who gets in, who does not, and that nobody can hold it open."""

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.roster import Endpoint
from avenor.runtimes.manifest.desk import Credentials, ToolReply
from tests.helpers import eventually
from tests.runtimes.desk_kit import STREAM_HEAD, Scene, answer, chunk, open_scene

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
CHAT = "/chat/completions"


def addresses(given: Credentials) -> list[tuple[str, bytes]]:
    return [(f"{given.gateway_url}{CHAT}", b"{}"), (given.mcp_server.url, PING)]


async def statuses(scene: Scene, given: Credentials, *headers: tuple[str, str]) -> list[int]:
    """What both addresses answer to the same headers."""
    return [(await scene.ask(url, body=body, headers=headers)).status for url, body in addresses(given)]


# --- tokens ---------------------------------------------------------------------------------------------------------


async def test_a_token_is_taken_in_either_header() -> None:
    """Clients of OpenAI and of MCP send a bearer token, Anthropic's a key of their own."""
    async with open_scene() as scene:
        given = scene.admit()
        assert await statuses(scene, given, ("authorization", f"bearer  {given.gateway_token}")) == [200, 200]
        assert await statuses(scene, given, ("X-API-Key", given.gateway_token)) == [200, 200]
        assert given.mcp_server.headers == {"Authorization": f"Bearer {given.gateway_token}"}
        assert (given.mcp_server.name, given.mcp_server.type) == ("avenor", "http")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Bearer"),),
        (("authorization", "Basic TOKEN"),),
        (("authorization", "TOKEN"),),
        (("authorization", "Bearer TOKEN"), ("authorization", "Bearer TOKEN")),
        (("x-api-key", "wrong"), ("authorization", "Bearer TOKEN")),
        (("x-api-key", "TOKENx"),),
        (("cookie", "TOKEN"),),
    ],
)
async def test_without_the_token_of_a_running_attempt_nothing_is_answered(headers: tuple[tuple[str, str], ...]) -> None:
    """Wrong, missing, doubled or in the wrong place: 401, and nothing is done."""
    async with open_scene() as scene:
        given = scene.admit()
        sent = [(name, value.replace("TOKEN", given.gateway_token)) for name, value in headers]
        assert await statuses(scene, given, *sent) == [401, 401]
        assert (scene.service.asked, scene.meter.passed, scene.tools.called) == ([], [], [])


async def test_every_attempt_has_a_token_of_its_own_and_a_new_one_each_time() -> None:
    """Admitted once more, what an attempt had before is worth nothing."""
    async with open_scene() as scene:
        first, other = scene.admit("a.1"), scene.admit("a.2")
        second = scene.admit("a.1")
        assert len({first.gateway_token, other.gateway_token, second.gateway_token}) == 3
        assert await statuses(scene, first, ("x-api-key", first.gateway_token)) == [401, 401]
        assert await statuses(scene, first, ("x-api-key", second.gateway_token)) == [200, 200]
        scene.desk.revoke("a.2")
        scene.desk.revoke("a.2")
        assert await statuses(scene, other, ("x-api-key", other.gateway_token)) == [401, 401]
        scene.desk.revoke_all()
        assert await statuses(scene, second, ("x-api-key", second.gateway_token)) == [401, 401]


async def test_a_refusal_speaks_the_dialect_that_was_asked_in() -> None:
    """Clients show the message only where they find it."""
    async with open_scene() as scene:
        url = scene.admit().gateway_url
        refused = (await scene.ask(f"{url}/v1/messages")).json()
        assert (refused["type"], refused["error"]["type"]) == ("error", "authentication_error")
        refused = await scene.ask(f"{url}/responses")
        assert refused.json()["error"]["code"] == "authentication_error"
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["x-should-retry"] == "false"


# --- who asks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        ("host", "evil.example"),
        ("host", "127.0.0.1:1"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "https://127.0.0.1:1"),
    ],
)
async def test_a_page_in_a_browser_does_not_get_in_even_with_the_token(header: tuple[str, str]) -> None:
    """It can reach loopback, under a name of its own as well."""
    async with open_scene() as scene:
        given = scene.admit()
        assert await statuses(scene, given, ("x-api-key", given.gateway_token), header) == [403, 403]
        assert (scene.service.asked, scene.tools.called) == ([], [])


async def test_localhost_is_a_name_for_the_desk() -> None:
    """Some clients resolve addresses their own way, and some say where they come from."""
    async with open_scene() as scene:
        given = scene.admit()
        port = given.mcp_server.url.split(":")[2].partition("/")[0]
        headers = [("host", f"localhost:{port}"), ("origin", f"http://localhost:{port}")]
        assert await statuses(scene, given, ("x-api-key", given.gateway_token), *headers) == [200, 200]


@pytest.mark.parametrize("path", ["/", "/model", "/modelx/chat/completions", "/mcp/", "/mcp/x", "//mcp"])
async def test_elsewhere_there_is_nothing(path: str) -> None:
    """Only the two addresses that credentials name."""
    async with open_scene() as scene:
        given = scene.admit()
        url = given.mcp_server.url.removesuffix("/mcp") + path
        answered = await scene.ask(url, token=given.gateway_token)
        assert answered.status == 404


async def test_a_web_socket_is_refused() -> None:
    """Some clients try one first, and do without."""
    async with open_scene() as scene:
        given = scene.admit()
        headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
        headers += [("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")]
        url = f"{given.gateway_url}/responses"
        answered = await scene.ask(url, token=given.gateway_token, method="GET", headers=headers)
        assert answered.status == 403


# --- endpoints ------------------------------------------------------------------------------------------------------


async def test_an_attempt_without_an_endpoint_has_tools_and_no_model() -> None:
    """Its agent reaches its model by itself."""
    async with open_scene() as scene:
        given = scene.desk.admit("a.1", None)
        assert given.gateway_url == ""
        assert (await scene.ask(given.mcp_server.url, token=given.gateway_token, body=PING)).status == 200
        url = given.mcp_server.url.removesuffix("/mcp") + "/model" + CHAT
        assert (await scene.ask(url, token=given.gateway_token)).status == 404


@pytest.mark.parametrize("name", ["MISSING_KEY", "EMPTY_KEY"])
async def test_a_key_that_is_not_set_is_named_before_an_agent_starts(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The message says which variable to set."""
    async with open_scene() as scene:
        monkeypatch.setitem(scene.environ, "EMPTY_KEY", "")
        with pytest.raises(ConfigError, match=name):
            scene.desk.admit("a.1", Endpoint(dialect="openai", url="http://127.0.0.1:1", key_env=name))


# --- faults ---------------------------------------------------------------------------------------------------------


async def test_a_fault_in_one_request_is_not_the_end_of_the_others() -> None:
    """It is logged, told as a fault of avenor's, and the desk goes on."""
    async with open_scene() as scene:
        given = scene.admit()
        scene.tools.granted["reader.1"] = ["no_such_tool"]
        listing = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        answered = await scene.ask(given.mcp_server.url, token=given.gateway_token, body=listing)
        assert (answered.status, answered.json()["error"]["type"]) == (500, "internal_error")
        assert await statuses(scene, given, ("x-api-key", given.gateway_token)) == [200, 200]


async def test_a_client_that_leaves_before_its_request_is_whole_is_forgotten() -> None:
    """Nothing is passed on, and the desk goes on."""
    async with open_scene() as scene:
        given = scene.admit()
        stream = await connect(given)
        await stream.send_all(head(given, 1000) + b"{")
        await stream.aclose()
        assert await statuses(scene, given, ("x-api-key", given.gateway_token)) == [200, 200]
        assert len(scene.service.asked) == 1


async def connect(given: Credentials) -> trio.SocketStream:
    port = int(given.mcp_server.url.split(":")[2].partition("/")[0])
    return await trio.open_tcp_stream("127.0.0.1", port)


def head(given: Credentials, size: int, *more: str) -> bytes:
    port = given.mcp_server.url.split(":")[2].partition("/")[0]
    lines = [f"POST /model{CHAT} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"X-Api-Key: {given.gateway_token}", *more]
    return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode()


async def test_a_connection_serves_one_request_after_another_until_it_is_to_be_closed() -> None:
    """The answer's end is not taken for the client's leaving."""
    async with open_scene() as scene:
        scene.service.answers = [[answer(b'{"n":1}')]]
        given = scene.admit()
        stream = await connect(given)
        for _ in range(2):
            await stream.send_all(head(given, 2) + b"{}")
            received = b""
            while not received.endswith(b'{"n":1}'):
                received += await stream.receive_some()
        await stream.send_all(head(given, 2, "Connection: close") + b"{}")
        received = b""
        while data := await stream.receive_some():
            received += data
        assert received.endswith(b'{"n":1}')
        await stream.aclose()
    assert len(scene.service.asked) == 3


async def flood(scene: Scene) -> trio.SocketStream:
    """An agent that has the beginning of an answer, and will not read the rest, which is more than kernels keep."""
    scene.service.answers = [[STREAM_HEAD, chunk(b"x" * 1_000_000) * 100, trio.Event()]]
    given = scene.admit()
    stream = await connect(given)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await stream.send_all(head(given, 2) + b"{}")
    assert await stream.receive_some(1) == b"H"
    await wait_all_tasks_blocked(0.1)  # all buffers on the way are full
    return stream


async def test_an_agent_that_reads_nothing_does_not_hold_up_the_end_of_the_run() -> None:
    """A stopped process leaves its connection full: that is cut, however long it may stall."""
    async with open_scene(stall_seconds=24 * 3600) as scene:
        stream = await flood(scene)
    assert scene.meter.charged == [("reader.1", 0, 0, 0)]
    await stream.aclose()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends such connections")
async def test_an_agent_that_reads_nothing_for_long_loses_its_connection() -> None:
    """While the run goes on: its call is charged, and over at the service too."""
    async with open_scene(stall_seconds=0.2) as scene:
        stream = await flood(scene)
        await eventually(lambda: scene.meter.charged == [("reader.1", 0, 0, 0)])
        await eventually(lambda: scene.service.left == 1)
    await stream.aclose()


async def test_a_connection_that_its_agent_has_closed_is_closed_at_once() -> None:
    """One that is idle is kept for a day."""
    async with open_scene() as scene:
        stream = await connect(scene.admit())
        await stream.send_eof()
        assert await stream.receive_some() == b""
        await stream.aclose()


async def test_the_end_of_the_desk_cuts_what_is_running() -> None:
    """Model calls and tool calls alike; what was attempted is charged."""
    was_cancelled = trio.Event()

    async def hang(arguments: bytes) -> ToolReply:
        try:
            await trio.sleep_forever()
        finally:
            was_cancelled.set()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        async with open_scene() as scene:
            scene.service.answers = [[trio.Event(), answer(b"{}")]]
            scene.tools.does["create_task"] = hang
            given = scene.admit()
            call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_task","arguments":'
            call += b'{"member":"a","contract":"b"}}}'
            ends: list[int] = []

            async def ask(url: str, body: bytes) -> None:
                ends.append((await scene.ask(url, token=given.gateway_token, body=body)).status)

            nursery.start_soon(ask, f"{given.gateway_url}{CHAT}", b"{}")
            nursery.start_soon(ask, given.mcp_server.url, call)
            await eventually(lambda: scene.service.asked and scene.tools.called)
            scene.desk.revoke_all()
            await was_cancelled.wait()
            await eventually(lambda: ends == [401, 401])
        assert scene.meter.charged == [("reader.1", 0, 0, 0)]


async def test_a_run_that_is_cancelled_takes_its_desk_with_it() -> None:
    """Whatever is running there."""
    scenes: list[Scene] = []
    with trio.CancelScope() as scope:
        async with open_scene() as scene, trio.open_nursery() as nursery:
            scene.service.answers = [[trio.Event()]]
            scenes.append(scene)
            given = scene.admit()
            nursery.start_soon(lambda: scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token))
            await eventually(lambda: scene.service.asked)
            scope.cancel()
    assert scenes[0].meter.charged == [("reader.1", 0, 0, 0)]
