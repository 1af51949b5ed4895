"""MCP servers that are handed to ACP agents."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from acp import schema

from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.acp_mcp import to_wire
from avenor.runtimes.backends.base import BackendRefused, OpenParams
from avenor.runtimes.backends.profiles import builtin
from avenor.runtimes.backends.registry import get_backend
from tests.runtimes.agent_kit import RecordingSink, make_params, opened, python_agent
from tests.runtimes.mini_agent import PRELUDE

_STDIO = McpServer(name="files", command="/opt/files", args=["--root", "."], env={"TOKEN": "t"})
_HTTP = McpServer(name="web", type="http", url="https://example.org/mcp", headers={"Authorization": "Bearer x"})
_SSE = McpServer(name="old", type="sse", url="https://example.org/sse")
_TAG = ("TAG", "42")
_ALL = [_STDIO, _HTTP, _SSE]


def _params(folder: Path, body: str, **changes: object) -> OpenParams:
    return make_params(folder, command=python_agent(folder, PRELUDE + body), **changes)


async def _refusal(name: str, params: OpenParams) -> BackendRefused:
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await get_backend(name).open(params, RecordingSink(), nursery)
    return caught.value


def test_servers_have_the_shape_of_the_protocol() -> None:
    """All three kinds are what the schema of ACP says; a program is started with what it can be found by."""
    wire: list[dict[str, Any]] = to_wire(_ALL, {}, _TAG)
    request = schema.NewSessionRequest.model_validate({"cwd": "/", "mcpServers": wire})
    assert request.model_dump(mode="json", by_alias=True, exclude_unset=True)["mcpServers"] == wire
    assert wire[0]["env"] == [{"name": "TOKEN", "value": "t"}, {"name": "TAG", "value": "42"}]
    assert wire[1]["headers"] == [{"name": "Authorization", "value": "Bearer x"}]
    assert [server.get("type") for server in wire] == [None, "http", "sse"]


def test_a_programs_whole_path_is_told(tmp_path: Path) -> None:
    """It is looked for on the agent's PATH; what is not there, or has a path already, stays as it is."""
    program = tmp_path / "files"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def told(command: str) -> object:
        return to_wire([McpServer(name="x", command=command)], {"PATH": str(tmp_path)}, _TAG)[0]["command"]

    assert told("files") == str(program)
    assert (told("elsewhere"), told("./files"), told("/x/files")) == ("elsewhere", "./files", "/x/files")


@pytest.mark.parametrize("method", ["session/new", "session/load", "session/resume"])
async def test_they_are_handed_over_however_the_session_is_opened(method: str, tmp_path: Path) -> None:
    """New, loaded and resumed sessions get the same."""
    heard = tmp_path / "heard.json"
    body = f"""
hello(loadSession=True, sessionCapabilities={{"resume": {{}}}}, mcpCapabilities={{"http": True, "sse": True}})
m = expect({method!r})
open({str(heard)!r}, "w").write(json.dumps(m["params"]["mcpServers"]))
heard("old")
reply(m, {{"sessionId": "s1"}})
turns()
"""
    changes = {"resume_by": "load" if method == "session/load" else "resume"}
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), **changes), "0")
    resume = None if method == "session/new" else "s1"
    params = _params(tmp_path, body, mcp_servers=_ALL, resume=resume)
    async with opened(backend, params, RecordingSink()) as session:
        assert session.capabilities.mcp == ["stdio", "http", "sse"]
    assert json.loads(heard.read_text()) == to_wire(_ALL, {}, params.tag)


async def test_a_kind_that_the_agent_does_not_take_is_refused(tmp_path: Path) -> None:
    """By its capabilities; the refusal names the server and what would do, and is permanent."""
    params = _params(tmp_path, 'hello(mcpCapabilities={"http": True, "sse": False})\nrecv()\n', mcp_servers=_ALL)
    refusal = await _refusal("acp", params)
    assert (refusal.reason_word, refusal.retryable) == ("unsupported_mcp", False)
    assert "MCP server 'old' is of type sse" in refusal.message
    assert "only servers of type stdio and http" in refusal.message
    assert refusal.data["server"] == "old"


async def test_an_agent_that_tells_no_capabilities_takes_programs(tmp_path: Path) -> None:
    """Every ACP agent does."""
    async with opened(
        get_backend("acp"), _params(tmp_path, "start()\nturns()\n", mcp_servers=[_STDIO]), RecordingSink()
    ):
        pass
    refusal = await _refusal("acp", _params(tmp_path, "hello()\nrecv()\n", mcp_servers=[_HTTP]))
    assert refusal.reason_word == "unsupported_mcp"


async def test_a_kind_that_the_profile_does_not_name_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Codex takes no servers by SSE, whether or not it is installed."""
    refusal = await _refusal("codex-acp", make_params(tmp_path, env={"PATH": ""}, mcp_servers=[_STDIO, _SSE]))
    assert refusal.reason_word == "unsupported_mcp"
    assert "backend codex-acp takes only servers of type stdio and http" in refusal.message


async def test_a_profile_without_any_kind_refuses_all(tmp_path: Path) -> None:
    """The message says so rather than list nothing."""
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), mcp=()), "0")
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused, match="takes no MCP servers at all"):
            await backend.open(
                make_params(tmp_path, command=[sys.executable], mcp_servers=[_STDIO]), RecordingSink(), nursery
            )
