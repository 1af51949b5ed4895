"""The desk of a manifest's run: one listener on loopback at which its agents reach their model and avenor's own tools.

Each attempt has a token of its own, and what is at the desk is told to nobody else. A token that is revoked opens
nothing any more, and what it has begun is cut.
"""

import hmac
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
import trio

from avenor.control.address import Address, listen
from avenor.control.httpconnections import HttpConnections
from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.model import MAX_MEMBERS
from avenor.protocol.manifest.roster import Dialect, Endpoint
from avenor.protocol.mcp import McpServer
from avenor.runtimes.manifest import gateway, mcp_http
from avenor.runtimes.manifest.dialects import NO_RETRY, error_body
from avenor.runtimes.manifest.gateway import Gateway, Meter, Upstream, read_key
from avenor.runtimes.manifest.gateway_exchange import ClientGone, Exchange, Message, Receive, Send
from avenor.runtimes.manifest.gateway_log import GatewayLog
from avenor.runtimes.manifest.mcp_http import McpServerForMembers, ToolBox, ToolReply

__all__ = ["Credentials", "Desk", "Meter", "ToolBox", "ToolReply", "open_desk"]

MODEL_PATH: Final = "/model"
MCP_PATH: Final = "/mcp"
# An agent that reads nothing for so long while something is sent to it loses that connection: hypercorn sends on,
# whatever is cancelled, so that the model call of a stopped agent would stay open, and uncharged, until the run ends.
STALL_SECONDS: Final = 30.0
# Agents have one for each request under way, and few of those.
CONNECTION_LIMIT: Final = 16 * MAX_MEMBERS
# Long enough for no client to send a request on a connection that is just being closed for idleness.
_KEEP_ALIVE_SECONDS: Final = 24 * 3600.0
_GRACE_SECONDS: Final = 1.0
_ADDRESS: Final = Address(name="127.0.0.1", ip="127.0.0.1", port=0)

_logger = structlog.get_logger()


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt is given for its agent.

    Attributes:
        gateway_url: The base address of its model; empty if it has no endpoint.
        gateway_token: Its key there.
        mcp_server: Where avenor's own tools are, with the key in its headers.
    """

    gateway_url: str
    gateway_token: str
    mcp_server: McpServer


class _Admitted:
    """An attempt whose token counts.

    Args:
        attempt_id: Its id.
        token: Its token.
        upstream: Where its model is; None if it has none here.
    """

    def __init__(self, attempt_id: str, token: str, upstream: Upstream | None) -> None:
        self.attempt_id = attempt_id
        self.token = token.encode()
        self.upstream = upstream
        self.scopes: set[trio.CancelScope] = set()


class Desk:
    """The open desk. `open_desk` makes it.

    Args:
        port: Where it listens, on 127.0.0.1.
        model: Answers what is asked of models.
        tools: Answers calls of avenor's own tools.
        environ: Where the keys of model services are.
    """

    def __init__(self, port: int, model: Gateway, tools: McpServerForMembers, environ: Mapping[str, str]) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._hosts = (f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode())
        self._model = model
        self._tools = tools
        self._environ = environ
        self._admitted: dict[str, _Admitted] = {}

    def admit(self, attempt_id: str, endpoint: Endpoint | None) -> Credentials:
        """Gives an attempt its credentials; those that it had before count no more.

        Args:
            attempt_id: Unique within the run.
            endpoint: Where its model is; None if its agent reaches that by itself.

        Raises:
            ConfigError: The endpoint's key is not in the environment.
        """
        upstream = None if endpoint is None else Upstream(endpoint, self._key(endpoint))
        self.revoke(attempt_id)
        token = secrets.token_urlsafe(32)
        self._admitted[attempt_id] = _Admitted(attempt_id, token, upstream)
        server = McpServer(
            name=mcp_http.SERVER_NAME,
            type="http",
            url=f"{self._address}{MCP_PATH}",
            headers={"Authorization": f"Bearer {token}"},
        )
        url = "" if upstream is None else f"{self._address}{MODEL_PATH}"
        return Credentials(gateway_url=url, gateway_token=token, mcp_server=server)

    def revoke(self, attempt_id: str) -> None:
        """Makes an attempt's credentials worth nothing, and cuts what it has running. Twice is harmless."""
        admitted = self._admitted.pop(attempt_id, None)
        for scope in [] if admitted is None else list(admitted.scopes):
            scope.cancel()

    def revoke_all(self) -> None:
        """Revokes every attempt's credentials."""
        for attempt_id in list(self._admitted):
            self.revoke(attempt_id)

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "http":
            await self._serve_http(Exchange(scope, receive, send))
        else:  # a web socket
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _serve_http(self, exchange: Exchange) -> None:
        try:
            await self._serve_checked(exchange)
        except ClientGone:
            return
        except Exception:  # one request's fault is not the others' end
            _logger.exception("desk.request_failed", method=exchange.method, path=exchange.path)
            if exchange.status is None:
                await exchange.answer(500, error_body("openai", "internal_error", "avenor failed; its log says why"))

    async def _serve_checked(self, exchange: Exchange) -> None:
        """Only those pass whose request comes from this machine's own programs, with a token that counts."""
        admitted = self._find(exchange)
        is_tools = exchange.path == MCP_PATH
        limit = 0 if admitted is None else mcp_http.BODY_LIMIT_BYTES if is_tools else gateway.BODY_LIMIT_BYTES
        with trio.CancelScope() as scope:
            # A client is given its answer in any case, so its body is read in any case.
            if admitted is not None:
                admitted.scopes.add(scope)
            try:
                body = await exchange.read_body(limit)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cut_when_gone, exchange, nursery.cancel_scope)
                    await self._answer(exchange, body, admitted)
                    nursery.cancel_scope.cancel()
            finally:
                if admitted is not None:
                    admitted.scopes.discard(scope)
        if scope.cancelled_caught and exchange.status is None:
            await _answer_stranger(exchange)

    async def _answer(self, exchange: Exchange, body: bytes | None, admitted: _Admitted | None) -> None:
        if not self._is_local(exchange):
            await exchange.answer(
                403, _refusal(exchange, "permission_error", "requests from other origins are refused")
            )
        elif admitted is None:
            await _answer_stranger(exchange)
        elif exchange.path == MCP_PATH:
            await self._tools.answer(exchange, body, admitted.attempt_id)
        elif admitted.upstream is not None and exchange.path.startswith(MODEL_PATH + "/"):
            path = exchange.path.removeprefix(MODEL_PATH)
            await self._model.answer(exchange, body, admitted.attempt_id, admitted.upstream, path)
        else:
            await exchange.answer(404, _refusal(exchange, "not_found_error", f"there is nothing at {exchange.path}"))

    def _find(self, exchange: Exchange) -> _Admitted | None:
        """Whose token a request has. All tokens are compared, so that the time taken says nothing."""
        given = _token(exchange)
        found: _Admitted | None = None
        for admitted in self._admitted.values():
            if hmac.compare_digest(admitted.token, given):
                found = admitted
        return found

    def _is_local(self, exchange: Exchange) -> bool:
        """A page in a browser reaches loopback as well, even under a name of its own; both headers tell."""
        origins = exchange.header_values(b"origin")
        return exchange.header(b"host") in self._hosts and all(
            origin.removeprefix(b"http://") in self._hosts for origin in origins
        )

    def _key(self, endpoint: Endpoint) -> str | None:
        try:
            return read_key(endpoint, self._environ)
        except KeyError as error:
            message = f"the environment variable {endpoint.key_env}, the key of {endpoint.url}, is not set: set it"
            raise ConfigError(message, data={"variable": endpoint.key_env}) from error


@asynccontextmanager
async def open_desk(
    meter: Meter,
    toolbox: ToolBox,
    *,
    log: str | None = None,
    environ: Mapping[str, str] = os.environ,
    stall_seconds: float = STALL_SECONDS,
) -> AsyncGenerator[Desk, None]:
    """The desk of a run, listening; at its end every credential is revoked.

    Args:
        meter: Counts model calls.
        toolbox: Does the calls of avenor's own tools.
        log: The file that gets a line for each model request; None keeps none.
        environ: Where the keys of model services are.
        stall_seconds: For how long an agent may leave unread what it is sent.

    Raises:
        OSError: It cannot listen, or the log cannot be opened.
    """
    with GatewayLog(log) as gateway_log, listen(_ADDRESS) as listener:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from their listener
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_seconds * 1000))
        model = Gateway(meter, gateway_log)
        desk = Desk(listener.getsockname()[1], model, McpServerForMembers(toolbox), environ)
        connections = HttpConnections(listener, name="desk", limit=CONNECTION_LIMIT, idle_seconds=_KEEP_ALIVE_SECONDS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connections.serve, desk.serve)
            try:
                yield desk
            finally:
                desk.revoke_all()
                connections.close()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GRACE_SECONDS):
            await model.aclose()


async def _cut_when_gone(exchange: Exchange, scope: trio.CancelScope) -> None:
    await exchange.wait_gone()
    scope.cancel()


def _token(exchange: Exchange) -> bytes:
    """The token of a request, in whichever header clients of models and of MCP put it; empty if there is none."""
    key = exchange.header(b"x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, token = (exchange.header(b"authorization") or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


async def _answer_stranger(exchange: Exchange) -> None:
    refusal = _refusal(exchange, "authentication_error", "this address needs the token of a running attempt")
    await exchange.answer(401, refusal, (b"www-authenticate", b"Bearer"), NO_RETRY)


def _refusal(exchange: Exchange, kind: str, message: str) -> bytes:
    """An error as the client can read it, judged by what it has asked for, since nothing else is known of it."""
    dialect: Dialect = "anthropic" if "/messages" in exchange.path else "openai"
    return error_body(dialect, kind, message)
