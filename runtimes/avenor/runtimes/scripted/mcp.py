"""Calls of tools of MCP servers, over http.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
"""

from collections.abc import Generator
from typing import Any

import msgspec

from avenor.runtimes.scripted.acp import McpServer
from avenor.runtimes.scripted.agent_info import AGENT_INFO
from avenor.runtimes.scripted.http import Answer, HttpFailed, post
from avenor.runtimes.scripted.loop import Wait
from avenor.runtimes.scripted.turn import Turn

VERSION = "2025-11-25"
SESSION_HEADER = "mcp-session-id"


class ToolReply(msgspec.Struct, frozen=True):
    """What a call came to."""

    text: str
    is_error: bool


class _Content(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class _Result(msgspec.Struct, frozen=True):
    content: list[_Content] = []
    is_error: bool = msgspec.field(name="isError", default=False)


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str


class _Message(msgspec.Struct, frozen=True):
    """A JSON-RPC message. Tolerant."""

    id: int | str | None = None
    method: str | None = None
    result: _Result | None = None
    error: _Error | None = None


def find_server(turn: Turn, name: str | None) -> McpServer | None:
    """The server with this name, or the first, of those that are reached over http; None if there is none."""
    servers = [server for server in turn.session.mcp_servers if server.type == "http"]
    return next((server for server in servers if name in (None, server.name)), None)


def call_tool(
    turn: Turn, server: McpServer | None, tool: str, arguments: dict[str, Any]
) -> Generator[Wait, bool, ToolReply]:
    """The reply to a call. Whatever goes wrong is a reply too: a model would read it."""
    if server is None:
        return ToolReply("the session was handed no such MCP server over http", is_error=True)
    try:
        if server.name not in turn.session.mcp_labels:
            yield from _greet(turn, server)
        answer = yield from _send(turn, server, "tools/call", {"name": tool, "arguments": arguments}, request_id=2)
        return _read_reply(answer)
    except HttpFailed as failed:
        return ToolReply(str(failed), is_error=True)


def _greet(turn: Turn, server: McpServer) -> Generator[Wait, bool, None]:
    params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": AGENT_INFO}
    answer = yield from _send(turn, server, "initialize", params, request_id=1)
    _read_reply(answer)
    turn.session.mcp_labels[server.name] = answer.headers.get(SESSION_HEADER, "")
    yield from _send(turn, server, "notifications/initialized", {}, request_id=None)


def _send(
    turn: Turn, server: McpServer, method: str, params: dict[str, Any], *, request_id: int | None
) -> Generator[Wait, bool, Answer]:
    label = turn.session.mcp_labels.get(server.name)
    headers = {"Accept": "application/json, text/event-stream", **({SESSION_HEADER: label} if label else {})}
    headers |= {header.name: header.value for header in server.headers}
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    numbered = message if request_id is None else {**message, "id": request_id}
    return (yield from post(turn.loop, server.url, headers, numbered))


def _read_reply(answer: Answer) -> ToolReply:
    """The last message of an answer, which is the reply.

    Raises:
        HttpFailed: There is none.
    """
    if answer.status >= 400:
        text = answer.body.decode("utf-8", "replace")
        raise HttpFailed(f"the MCP server answered with HTTP status {answer.status}: {text}")
    body = answer.body
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line for line in answer.body.splitlines() if line.startswith(b"data:")]
        body = lines[-1].removeprefix(b"data:") if lines else b""
    try:
        message = msgspec.json.decode(body, type=_Message)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HttpFailed(f"the MCP server's answer is no message: {error}") from error
    if message.error is not None:
        return ToolReply(f"{message.error.code} {message.error.message}", is_error=True)
    result = message.result or _Result()
    return ToolReply("\n".join(part.text for part in result.content if part.type == "text"), is_error=result.is_error)
