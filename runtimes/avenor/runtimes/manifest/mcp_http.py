"""MCP for members: the part of the streamable HTTP transport that a server of tools needs, without sessions.

Every POST is answered by itself. A call that lasts is answered with a stream of events, so that no client takes it for
lost: it carries progress where the client has asked for it, comments where it has not, and then the answer.

Source: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog
import trio
from msgspec import UNSET, UnsetType

from avenor.protocol.errors import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from avenor.runtimes.manifest.gateway_exchange import Exchange
from avenor.runtimes.manifest.membertools import MEMBER_TOOLS, BadArguments, decode_arguments, describe

SERVER_NAME: Final = "avenor"
VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
BODY_LIMIT_BYTES: Final = 4 * 1024 * 1024  # A result of the most findings, each as long as may be, fits twice.
# The Language Server Protocol's code for a request that its client has cancelled; MCP has none.
REQUEST_CANCELLED: Final = -32800
# A call that is over sooner is answered with plain JSON. No client is known to give up before this.
_QUIET_SECONDS: Final = 3.0
# Clients that start their clock anew with each sign of life give up after 30 s at the soonest.
_BEAT_SECONDS: Final = 10.0
_INSTRUCTIONS: Final = (
    "These tools are how you take part in the team that runs you. What a tool refuses, it says why; do not look for a "
    "way around it."
)

_logger = structlog.get_logger()


class ToolReply(msgspec.Struct, frozen=True):
    """What a tool call came to.

    Args:
        text: For the agent.
        is_error: The call was not done, or failed.
    """

    text: str
    is_error: bool = False


class ToolBox(Protocol):
    """What the tools of a run's members do."""

    def tools(self, attempt_id: str) -> Sequence[str]:
        """The names, of `MEMBER_TOOLS`, that an attempt may use now."""
        ...

    async def call(self, attempt_id: str, name: str, arguments: bytes) -> ToolReply:
        """Does a call of a granted tool, whose arguments fit its parameters.

        Cancellation: The agent has cancelled the call or is gone, or its credentials were revoked: it gets no answer.
        What was decided before stays decided.
        """
        ...


class _Meta(msgspec.Struct, frozen=True):
    progress_token: str | int | None = msgspec.field(name="progressToken", default=None)


class _Params(msgspec.Struct, frozen=True):
    """Of all methods that are served. Tolerant, as the protocol wants it."""

    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    protocol_version: str | None = msgspec.field(name="protocolVersion", default=None)
    request_id: str | int | None = msgspec.field(name="requestId", default=None)
    meta: _Meta = msgspec.field(name="_meta", default=_Meta())


class _Message(msgspec.Struct, frozen=True):
    """A JSON-RPC message. Tolerant."""

    method: str | None = None
    id: str | int | UnsetType | None = UNSET
    params: _Params = _Params()


class _Refusal(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_decode: Final = msgspec.json.Decoder(_Message).decode
# By attempt, label of the client, and the request's id.
_CallKey = tuple[str, bytes, str | int]


class McpServerForMembers:
    """Serves tools to all attempts of a run.

    Args:
        toolbox: Does the calls.
    """

    def __init__(self, toolbox: ToolBox) -> None:
        self._toolbox = toolbox
        self._running: dict[_CallKey, trio.CancelScope] = {}

    async def answer(self, exchange: Exchange, body: bytes | None, attempt_id: str) -> None:
        """Answers one HTTP request of an attempt.

        Args:
            exchange: The request.
            body: Its body; None if it was over the limit.
            attempt_id: Whose it is.
        """
        if exchange.method != "POST":  # there are no sessions to end, and no messages of the server's own to wait for
            await exchange.answer(405, b"", (b"allow", b"POST"))
        elif exchange.header(b"mcp-protocol-version") not in (None, *(version.encode() for version in VERSIONS)):
            await _refuse(exchange, INVALID_REQUEST, f"protocol versions here: {', '.join(VERSIONS)}")
        elif body is None:
            await _refuse(exchange, INVALID_REQUEST, f"a message has at most {BODY_LIMIT_BYTES} bytes", status=413)
        else:
            await self._answer_body(exchange, body, attempt_id)

    async def _answer_body(self, exchange: Exchange, body: bytes, attempt_id: str) -> None:
        try:
            message = _decode(body)
        except msgspec.ValidationError as error:
            await _refuse(exchange, INVALID_REQUEST, f"this is no message, or a batch: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            await _refuse(exchange, PARSE_ERROR, f"this is no JSON: {error}")
        else:
            await self._answer_message(exchange, message, attempt_id)

    async def _answer_message(self, exchange: Exchange, message: _Message, attempt_id: str) -> None:
        if message.method is None or message.id is UNSET or message.id is None:
            self._take_notification(exchange, message, attempt_id)
            await exchange.answer(202, b"")
        elif message.method == "tools/call":
            await self._answer_call(exchange, message, message.id, attempt_id)
        else:
            headers = [(b"mcp-session-id", secrets.token_hex(16).encode())] if message.method == "initialize" else []
            await exchange.answer_json(200, _response(message.id, lambda: self._result(message, attempt_id)), *headers)

    def _take_notification(self, exchange: Exchange, message: _Message, attempt_id: str) -> None:
        request_id = message.params.request_id
        if message.method == "notifications/cancelled" and request_id is not None:
            scope = self._running.get((attempt_id, _label(exchange), request_id))
            if scope is not None:
                scope.cancel()

    def _result(self, message: _Message, attempt_id: str) -> dict[str, Any]:
        match message.method:
            case "initialize":
                asked = message.params.protocol_version
                return {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": SERVER_NAME, "version": "1"},
                    "instructions": _INSTRUCTIONS,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [describe(name) for name in self._toolbox.tools(attempt_id)]}
            case _:
                raise _Refusal(METHOD_NOT_FOUND, f"there is no method {message.method!r} here")

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _answer_call(self, exchange: Exchange, message: _Message, request_id: str | int, attempt_id: str) -> None:
        """A call, cancelled by a notification of the client that made it."""
        key = (attempt_id, _label(exchange), request_id)
        if key in self._running:
            await _refuse(exchange, INVALID_REQUEST, f"a request with the id {request_id!r} is running already")
            return
        with trio.CancelScope() as scope:
            self._running[key] = scope
            try:
                await self._run_call(exchange, message, request_id, attempt_id)
            finally:
                del self._running[key]
        if scope.cancelled_caught and exchange.status is None:
            error = {"code": REQUEST_CANCELLED, "message": "the request was cancelled"}
            await exchange.answer_json(200, {"jsonrpc": "2.0", "id": request_id, "error": error})

    async def _run_call(self, exchange: Exchange, message: _Message, request_id: str | int, attempt_id: str) -> None:
        found: list[ToolReply | _Refusal] = []
        is_over = trio.Event()

        async def call() -> None:
            try:
                found.append(await self._call(attempt_id, message.params))
            except _Refusal as refusal:
                found.append(refusal)
            is_over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            with trio.move_on_after(_QUIET_SECONDS if _takes_streams(exchange) else float("inf")):
                await is_over.wait()
            if not is_over.is_set():
                await self._beat(exchange, message.params, is_over)
        response = _response(request_id, lambda: _shown(found[0]))
        if exchange.status is None:
            await exchange.answer_json(200, response)
        else:
            await exchange.send(_event(response))
            await exchange.finish()

    async def _beat(self, exchange: Exchange, params: _Params, is_over: trio.Event) -> None:
        """Begins a stream, and says from time to time that the call goes on."""
        await exchange.start(200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")])
        beats = 0
        while not is_over.is_set():
            beats += 1
            await exchange.send(_beat_event(params, beats))
            with trio.move_on_after(_BEAT_SECONDS):
                await is_over.wait()

    async def _call(self, attempt_id: str, params: _Params) -> ToolReply:
        granted = self._toolbox.tools(attempt_id)
        if params.name is None:
            raise _Refusal(INVALID_PARAMS, "params.name is missing: the tool's name")
        if params.name not in granted:
            return ToolReply(_not_granted(params.name, granted), is_error=True)
        arguments = bytes(params.arguments)
        try:
            decode_arguments(params.name, arguments)
        except BadArguments as error:
            return ToolReply(str(error), is_error=True)
        try:
            return await self._toolbox.call(attempt_id, params.name, arguments)
        except Exception as error:  # one call's fault is not the others' end
            _logger.exception("membertool.failed", attempt_id=attempt_id, tool=params.name)
            raise _Refusal(INTERNAL_ERROR, f"{params.name} failed inside avenor; its log says why") from error


def _not_granted(name: str, granted: Sequence[str]) -> str:
    what = "is not granted to you" if name in MEMBER_TOOLS else "does not exist"
    return f"the tool {name} {what}; you have: {', '.join(granted) or 'none'}. Your team's manifest decides that."


def _shown(found: ToolReply | _Refusal) -> dict[str, Any]:
    if isinstance(found, _Refusal):
        raise found
    return {"content": [{"type": "text", "text": found.text}], "isError": found.is_error}


def _response(request_id: str | int, result: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"jsonrpc": "2.0", "id": request_id, "result": result()}
    except _Refusal as refusal:
        error = {"code": refusal.code, "message": str(refusal)}
        return {"jsonrpc": "2.0", "id": request_id, "error": error}


async def _refuse(exchange: Exchange, code: int, message: str, *, status: int = 400) -> None:
    error = {"code": code, "message": message}
    await exchange.answer_json(status, {"jsonrpc": "2.0", "id": None, "error": error})


def _label(exchange: Exchange) -> bytes:
    """Tells apart the clients of one attempt, whose request ids may be alike. Nothing is kept under it."""
    return exchange.header(b"mcp-session-id") or b""


def _takes_streams(exchange: Exchange) -> bool:
    return any(b"text/event-stream" in value for value in exchange.header_values(b"accept"))


def _beat_event(params: _Params, beats: int) -> bytes:
    if params.meta.progress_token is None:
        return b": the call goes on\n\n"
    progress = {"progressToken": params.meta.progress_token, "progress": beats, "message": f"{params.name} goes on"}
    return _event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})


def _event(value: object) -> bytes:
    return b"event: message\ndata: " + msgspec.json.encode(value) + b"\n\n"
