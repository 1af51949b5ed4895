"""`avenor mcp` as a host uses it: the SDK's own client on its standard streams, real supervisors, scripted agents."""

import json
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, cast

import httpx2
import psutil
import pytest
import trio
from mcp.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent, TextResourceContents

from tests.e2e.harness import ASK, AVENOR, WAIT_SECONDS, Client, Place, Stable, first_event, say, steps
from tests.helpers import eventually

RECALL = {"do": "recall"}


class Jockey:
    """What an agent does with the tools."""

    def __init__(self, place: Place, client: McpClient) -> None:
        self.place = place
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call that must have one."""
        result = await self.client.call_tool(f"avenor_{tool}", arguments)
        assert not result.is_error, result.content
        return cast("dict[str, Any]", result.structured_content)

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """What a call that must be refused says."""
        result = await self.client.call_tool(f"avenor_{tool}", arguments)
        assert result.is_error, result.structured_content
        content = result.content[0]
        assert isinstance(content, TextContent)
        return content.text

    async def spawn(self, *rules: dict[str, Any], **arguments: Any) -> str:
        """Spawn on a script of these rules; returns the run id."""
        script = self.place.script(*rules, name=f"{arguments.get('label', 'script')}.json")
        task = {"prompt": "do it", "repo_dir": str(self.place.work), "backend": "scripted", "script": script}
        return str((await self.call("spawn", **{**task, **arguments}))["run_id"])


@asynccontextmanager
async def jockey(
    place: Place, *flags: str, mode: Literal["auto", "legacy"] = "auto", **environ: str
) -> AsyncGenerator[Jockey]:
    """An MCP server with these flags and variables, and its host."""
    program = StdioServerParameters(command=AVENOR, args=["mcp", *flags], env=place.environ(**environ), cwd=place.work)
    # pytest's own standard error has no file descriptor to give to a process.
    with (place.path / "mcp.err").open("a") as errors:
        async with McpClient(stdio_client(program, errlog=errors), mode=mode) as client:
            yield Jockey(place, client)


def private(place: Place) -> tuple[str, ...]:
    """The flags for a supervisor of the server's own."""
    return ("--control-socket", str(place.path / "own.sock"))


def on(stable: Stable) -> tuple[str, ...]:
    """The flags for a supervisor that is there."""
    return ("--supervisor-socket", str(stable.socket), "--no-autostart")


async def test_an_agent_is_spawned_waited_for_and_followed_up_in_the_same_session(place: Place) -> None:
    """Parked it is woken; ended it is resumed in a new run, and remembers."""
    async with jockey(place, *private(place)) as host:
        run_id = await host.spawn(steps(RECALL), label="one", prompt="first task")
        first = await host.call("result", run_id="one")
        assert first | {"output": ""} == {"ready": True, "status": "done", "output": "", "stop_reason": "end_turn"}
        listed = (await host.call("list"))["runs"]
        assert [(run["run_id"], run["status"], run["state"]) for run in listed] == [(run_id, "done", "idle")]

        woken = await host.call("follow_up", run_id="one", prompt="second task")
        assert woken == {"run_id": run_id, "runtime_id": "rt_1", "label": "one", "resumed": False}
        assert "first task" in (await host.call("result", run_id="one"))["output"]

        assert await host.call("cancel", run_id="one") == {"ok": True, "left": [], "status": "done"}
        resumed = await host.call("follow_up", run_id="one", prompt="third task")
        assert (resumed["runtime_id"], resumed["label"], resumed["resumed"]) == ("rt_2", "one", True)
        assert resumed["run_id"] != run_id
        assert "second task" in (await host.call("result", run_id="one"))["output"]
        await host.call("shutdown")


async def test_a_run_of_another_client_is_followed_up_with_its_settings(place: Place, stable: Stable) -> None:
    """Although its log is elsewhere."""
    log = place.work / "events.ndjson"
    with stable.connect() as client:
        script = place.script(steps(ASK, RECALL))
        asked = {"label": "theirs", "prompt": "first task", "script": script, "auto_approve": True}
        runtime_id = client.spawn(place, **asked, on_event=str(log))["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
        client.call("cancel", runtime_id=runtime_id)
    logged = log.read_bytes()
    async with jockey(place, *on(stable)) as host:
        assert (await host.call("follow_up", run_id="theirs", prompt="second task"))["resumed"] is True
        result = await host.call("result", run_id="theirs")
    assert result["status"] == "done"
    assert "first task" in result["output"]
    assert log.read_bytes() == logged


async def test_a_pending_permission_comes_back_at_once_and_is_answered(place: Place, stable: Stable) -> None:
    """So that a jockey can wait without watching; a host of the older protocol gets the same."""
    async with jockey(place, *on(stable), mode="legacy") as host:
        await host.spawn(steps(ASK, ASK, say("Done.")), label="asks")
        asked = await host.call("result", run_id="asks")
        assert (asked["ready"], asked["status"], asked["output"]) == (False, "waiting", None)
        offered = [option["option_id"] for option in asked["pending_permission"]["options"]]
        assert offered == ["once", "always", "reject"]
        assert "timed_out" not in asked

        wrong = await host.refusal("answer_permission", run_id="asks", option_id="perhaps")
        assert "once" in wrong
        answered = await host.call("answer_permission", run_id="asks", option_id="once", message="go on")
        assert answered["request_id"] == asked["pending_permission"]["request_id"]
        second = (await host.call("result", run_id="asks"))["pending_permission"]
        await host.call("answer_permission", run_id="asks", option_id="reject", request_id=second["request_id"])
        assert (await host.call("result", run_id="asks"))["status"] == "done"
        gone = await host.refusal("answer_permission", run_id="asks", option_id="once")
        assert "asks for no permission" in gone


async def test_a_prompt_queues_and_an_interrupt_cuts_the_turn_short(place: Place, stable: Stable) -> None:
    """What a busy agent can be told, and what it cannot."""
    async with jockey(place, *on(stable)) as host:
        busy = [steps({"do": "hang"}, match="do it"), steps(say("Next."), match="next"), steps(say("Now."))]
        run_id = await host.spawn(*busy, label="busy")
        timed_out = await host.call("result", run_id="busy", timeout="10ms")
        assert timed_out == {"ready": False, "status": "running", "output": None, "timed_out": True}
        assert not (await host.call("result", run_id="busy", wait=False))["ready"]
        assert await host.call("prompt", run_id="busy", prompt="next") == {"accepted": True, "queued": 1}
        at_work = await host.refusal("follow_up", run_id="busy", prompt="x")
        assert "avenor_prompt" in at_work
        assert "avenor_interrupt" in at_work
        await host.call("interrupt", run_id="busy", prompt="now", keep_queue=True)
        assert (await host.call("result", run_id="busy"))["output"] == "Next."
        log = stable.log_path("rt_1")
        assert first_event(log, "turn.start", {"text": "now"}) is not None
        starts = await host.call("events", run_id=run_id, events=["turn.start"])
        assert [event["text"] for event in starts["events"]] == ["do it", "now", "next"]


async def test_a_restarted_server_finds_its_runs_and_steers_them(place: Place) -> None:
    """The private supervisor and its runs outlive the server that started it."""
    go = place.path / "go"
    async with jockey(place, *private(place)) as host:
        run_id = await host.spawn(steps({"do": "wait_for", "path": str(go), "timeout": 60}, say("Here.")), label="long")
        (server,) = place.processes_like("avenor mcp")
        # opencode ends a server with all its descendants.
        assert not psutil.Process(server).children(recursive=True)
    async with jockey(place, *private(place)) as host:
        assert [run["run_id"] for run in (await host.call("list"))["runs"]] == [run_id]
        status = await host.call("status", view="full")
        assert (status["run_id"], status["status"], status["backend"]) == (run_id, "running", "scripted")
        assert await host.call("prompt", run_id="long", prompt="and more") == {"accepted": True, "queued": 1}
        go.touch()
        assert (await host.call("result", run_id="long"))["status"] == "done"
        await host.call("shutdown")


async def test_the_private_supervisor_is_started_again_when_it_is_needed(place: Place) -> None:
    """It may have stopped since, by itself or on request; its ended runs are still there."""
    async with jockey(place, *private(place)) as host:
        run_id = await host.spawn(steps(say("Done.")), label="one")
        await host.call("result", run_id=run_id)
        assert await host.call("shutdown", mode="kill") == {"shutting_down": True}
        assert await eventually(lambda: (place.path / "own.sock.dead").exists(), WAIT_SECONDS)
        again = await host.call("result", run_id="one")
        assert (again["ready"], again["output"]) == (True, "Done.")
        await host.call("shutdown")


async def test_giving_up_a_wait_leaves_the_run_alone(place: Place, stable: Stable) -> None:
    """A host's timeout or a person's escape ends the call and nothing else."""
    go = place.path / "go"
    async with jockey(place, *on(stable)) as host:
        await host.spawn(steps({"do": "wait_for", "path": str(go), "timeout": 60}, say("Here.")), label="long")
        waits = trio.Event()

        async def show(progress: float, total: float | None, message: str | None) -> None:
            assert progress > 0
            assert total is None
            assert message is not None
            assert message.startswith("long running")
            waits.set()
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(host.client.call_tool, progress_callback=show), "avenor_result", {"run_id": "long"}
            )
            await waits.wait()
            nursery.cancel_scope.cancel()
        assert (await host.call("status", run_id="long"))["status"] == "running"
        go.touch()
        assert (await host.call("result", run_id="long"))["output"] == "Here."


async def test_what_an_agent_does_can_be_inspected_while_it_works(place: Place, stable: Stable) -> None:
    """Its prompt, text, tools and plan, and what it asks for."""
    tool = {"do": "tool", "title": "Read the notes", "kind": "read"}
    plan = {"do": "plan", "entries": ["Look", "Write"]}
    async with jockey(place, *on(stable)) as host:
        await host.spawn(steps(plan, tool, say("Half way."), ASK), label="seen", prompt="look")
        await host.call("result", run_id="seen")
        seen = await host.call("inspect", run_id="seen")
        (session,) = seen["sessions"]
        assert (session["prompt"], session["text"]) == ("look", "Half way.")
        assert session["tools"][0] == {"title": "Read the notes", "kind": "read", "status": "completed"}
        assert [entry["content"] for entry in session["plan"]] == ["Look", "Write"]
        assert [permission["question"] for permission in seen["permissions"]] == ["a tool"]


async def test_refusals_say_what_to_do_next(place: Place, stable: Stable) -> None:
    """As results that the model reads, never as a broken connection."""
    async with jockey(place, *on(stable)) as host:
        assert "avenor_list" in await host.refusal("result", run_id="nobody")
        assert "`repo_dir`" in await host.refusal("spawn", prompt="x")
        assert "`unknown`" in await host.refusal("spawn", prompt="x", repo_dir="/tmp", unknown=1)
        assert "prompt_file" in await host.refusal("spawn", repo_dir="/tmp")
        assert "no such directory" in await host.refusal("spawn", repo_dir="/does/not/exist", prompt="x")
        assert "scripted" in await host.refusal("spawn", repo_dir="/tmp", prompt="x", backend="none")
        assert "timeout" in await host.refusal("spawn", repo_dir="/tmp", prompt="x", timeout="soon")
        config = place.path / "team.json"
        config.write_text('{"team": [], "posts": 1}')
        broken = await host.refusal("spawn", repo_dir=str(place.work), team_file=str(config))
        assert "team.json" in broken
        assert "posts" in broken
        failing = place.script(steps({"do": "say", "text": 1}), name="bad.json")
        cannot = await host.refusal("spawn", repo_dir="/tmp", prompt="x", backend="scripted", script=failing)
        assert "bad.json" in cannot
        with pytest.raises(MCPError, match="no tool"):
            await host.client.call_tool("avenor_dance", {})


async def test_a_run_that_another_client_steers_can_be_watched_only(place: Place, stable: Stable) -> None:
    """The connection that spawned it owns it."""
    with Client(stable.socket) as operator:
        operator.spawn(place, label="theirs")
        async with jockey(place, *on(stable)) as host:
            assert (await host.call("result", run_id="theirs"))["status"] == "done"
            refused = await host.refusal("follow_up", run_id="theirs", prompt="mine now")
            assert "owns this run" in refused
            assert "force" not in refused  # no tool has it
            mine = await host.spawn(steps(say("x")), label="mine")
            owner = operator.call("status", runtime_id=mine)["owner"]
            assert owner is not None
            assert owner != operator.call("status", runtime_id="theirs")["owner"]


async def test_two_servers_that_start_at_once_share_one_private_supervisor(place: Place) -> None:
    """Whichever wins the race for the socket."""
    async with jockey(place, *private(place)) as one, jockey(place, *private(place)) as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.call, "list")
            nursery.start_soon(two.call, "list")
        run_id = await one.spawn(steps(say("x")), label="one")
        assert (await two.call("result", run_id="one"))["ready"]
        assert [run["run_id"] for run in (await two.call("list"))["runs"]] == [run_id]
        await one.call("shutdown")


async def test_what_an_agent_spawns_with_its_own_server_is_its_child(place: Place, stable: Stable) -> None:
    """No flag is needed: the supervisor tells its agents where it is, and who they are."""
    with Client(stable.socket) as operator:
        parent = operator.spawn(place, label="parent")["runtime_id"]
        async with jockey(place, AVENOR_SOCKET=str(stable.socket), AVENOR_RUNTIME_ID=parent) as host:
            await host.spawn(steps(say("x")), label="child")
            shown = await host.call("status", run_id="child", view="full")
            assert shown["parent_id"] == parent


async def test_runs_and_their_logs_are_resources(place: Place, stable: Stable) -> None:
    """For a person who picks what the model is to see."""
    async with jockey(place, *on(stable)) as host:
        run_id = await host.spawn(steps(say("Done.")), label="one")
        await host.call("result", run_id="one")
        listed = (await host.client.list_resources()).resources
        assert [(each.name, str(each.uri)) for each in listed] == [
            ("one", f"avenor://runs/{run_id}"),
            ("one log", f"avenor://runs/{run_id}/log"),
        ]
        templates = (await host.client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["avenor://runs/{run_id}", "avenor://runs/{run_id}/log"]
        run = json.loads(await text_of(host.client, f"avenor://runs/{run_id}"))
        assert (run["label"], run["status"], run["output_excerpt"]) == ("one", "done", "Done.")
        log = await text_of(host.client, f"avenor://runs/{run_id}/log")
        assert log == stable.log_path("rt_1").read_text()
        for unknown in ("avenor://runs/nobody", "avenor://other"):
            with pytest.raises(MCPError):
                await host.client.read_resource(unknown)


async def text_of(client: McpClient, uri: str) -> str:
    """What a resource holds."""
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return content.text


async def test_how_a_run_failed_is_in_its_result(place: Place, stable: Stable) -> None:
    """A cancelled one is killed, one whose agent dies has failed, and both say why."""
    async with jockey(place, *on(stable)) as host:
        await host.spawn(steps({"do": "die", "exit_code": 3}), label="dies")
        failed = await host.call("result", run_id="dies")
        assert (failed["ready"], failed["status"]) == (True, "failed")
        await host.spawn(steps({"do": "hang"}), label="hangs")
        assert (await host.call("cancel", run_id="hangs"))["status"] == "killed"
        assert (await host.call("result", run_id="hangs"))["status"] == "killed"
        assert (await host.call("cancel", run_id="hangs"))["ok"]


def talking_server(place: Place, *flags: str) -> "subprocess.Popen[bytes]":
    """An MCP server without a client: the test has its standard input and output, and closes them."""
    command = [AVENOR, "mcp", *flags]
    return subprocess.Popen(command, env=place.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_host_that_goes_away_during_a_wait_ends_the_server_and_not_the_run(
    place: Place, stable: Stable
) -> None:
    """Hosts close the standard input, with or without calls in flight."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}}
    wait = {"name": "avenor_result", "arguments": {"run_id": "hangs"}}
    said: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": wait},
    ]
    with Client(stable.socket) as operator, talking_server(place, *on(stable)) as server:
        operator.spawn(place, label="hangs", script=place.script(steps({"do": "hang"})))
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.writelines(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in said)
        server.stdin.flush()
        assert b"serverInfo" in await trio.to_thread.run_sync(server.stdout.readline)
        server.stdin.close()
        await eventually(lambda: server.poll() is not None, WAIT_SECONDS)
        assert server.returncode == 0
        assert operator.call("status", runtime_id="hangs")["status"] == "running"


async def test_every_call_on_standard_input_is_answered_whatever_its_text(place: Place, stable: Stable) -> None:
    """Half of an emoji is mended, and what is no JSON is refused."""
    params = {"name": "avenor_status", "arguments": {"run_id": "\ud83d"}}
    said = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}), "{", ""]
    with talking_server(place, *on(stable)) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("\n".join(said).encode())
        server.stdin.flush()
        lines = [await trio.to_thread.run_sync(server.stdout.readline) for _ in range(2)]
        server.stdin.close()
    answers = {answer["id"]: answer for answer in map(json.loads, lines)}
    assert answers.keys() == {1, None}
    assert answers[None]["error"]["code"] == -32700


async def test_a_server_without_a_supervisor_says_so(place: Place) -> None:
    """With --no-autostart nothing is started, and the tools are there all the same."""
    async with jockey(place, "--supervisor-socket", str(place.path / "none.sock"), "--no-autostart") as host:
        assert len((await host.client.list_tools()).tools) == 12
        assert "no server answers" in await host.refusal("list")
    assert not (place.path / "none.sock").exists()


async def test_a_supervisor_that_cannot_start_is_told_of_with_its_complaint(place: Place) -> None:
    """A socket path that is too long is refused by the supervisor; the agent reads why."""
    too_long = str(place.path / ("x" * 120))
    async with jockey(place, "--control-socket", too_long) as host:
        assert "did not start" in await host.refusal("list")
    assert sys.platform != "linux" or not place.processes_like("avenor.cli stable")


TOKEN = "a-token-of-this-test"


@asynccontextmanager
async def http_server(place: Place, stable: Stable) -> AsyncGenerator[str]:
    """An MCP server over HTTP; gives its URL."""
    flags = ["mcp", "--transport", "http", "--addr", "127.0.0.1:0", *on(stable)]
    process = place.start(*flags, environ={"MCP_AUTH_TOKEN": TOKEN})
    assert process.stderr is not None
    line = await trio.to_thread.run_sync(process.stderr.readline)
    yield json.loads(line)["url"]
    process.terminate()
    await eventually(lambda: process.poll() is not None, WAIT_SECONDS)
    assert process.returncode == 0


# The SDK's HTTP client leaves its event streams to the garbage collector when it disconnects.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tools_work_over_http_too(place: Place, stable: Stable, mode: Literal["auto", "legacy"]) -> None:
    """For several hosts at once, which share one connection to the supervisor."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with http_server(place, stable) as url, httpx2.AsyncClient(headers=headers) as http:
        async with McpClient(streamable_http_client(url, http_client=http), mode=mode) as client:
            host = Jockey(place, client)
            await host.spawn(steps(say("Done.")), label="one")
            assert (await host.call("result", run_id="one"))["output"] == "Done."
        async with McpClient(streamable_http_client(url, http_client=http), mode=mode) as client:
            assert (await Jockey(place, client).call("follow_up", run_id="one", prompt="more"))["resumed"] is False


async def test_a_server_that_says_that_it_listens_ends_in_good_order(place: Place, stable: Stable) -> None:
    """Even if it is told to at that moment."""
    async with http_server(place, stable) as url:
        assert url.endswith("/mcp")


async def test_a_host_that_stops_reading_does_not_hold_up_the_end_of_the_server(place: Place, stable: Stable) -> None:
    """It has the beginning of an answer, and leaves the rest, which is more than a kernel keeps."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}}
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
    with Client(stable.socket) as operator, trio.socket.socket() as stopped:
        operator.spawn(place, label="big", script=place.script(steps(*[say("x" * 3_000_000)] * 3)))
        async with http_server(place, stable) as url, httpx2.AsyncClient(headers=headers) as http:
            greeted = await http.post(url, json=_message("initialize", hello))
            http.headers["mcp-session-id"] = greeted.headers["mcp-session-id"]
            call = _message("tools/call", {"name": "avenor_result", "arguments": {"run_id": "big"}})
            asked = http.build_request("POST", url, json=call)
            lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in asked.headers.items())]
            stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await stopped.connect(("127.0.0.1", asked.url.port))
            await trio.SocketStream(stopped).send_all("\r\n".join([*lines, "", ""]).encode() + asked.content)
            begun = b""
            while b"xxx" not in begun:
                begun += await stopped.recv(100)
            assert begun.startswith(b"HTTP/1.1 200")


def _message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_over_http_only_who_has_the_token_and_no_page_of_another_origin_gets_in(
    place: Place, stable: Stable
) -> None:
    """Each of the three is refused for its own reason."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    good = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
    async with http_server(place, stable) as url, httpx2.AsyncClient() as http:

        async def status(**changes: str) -> int:
            return (await http.post(url, json=message, headers={**good, **changes})).status_code

        assert await status(Authorization="") == 401
        assert await status(Authorization="Bearer other") == 401
        assert await status(Authorization=f"Basic {TOKEN}") == 401
        assert await status(Host="evil.example") == 421
        assert await status(Origin="http://evil.example") == 403
        assert await status(Origin=url.removesuffix("/mcp")) not in (401, 403, 421)
