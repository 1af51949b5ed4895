"""The MCP server over streamable HTTP: on loopback only, with a bearer token, and deaf to pages of other origins."""

import hmac
import signal
import socket
from typing import Final

import structlog
import trio
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from avenor.control.httpconnections import HttpConnections
from avenor.control.mcp.options import Options
from avenor.control.mcp.server import open_server

PATH: Final = "/mcp"
# A host has one for each call under way, and waiting for a run is a call.
CONNECTION_LIMIT: Final = 512
_IDLE_SECONDS: Final = 5.0
_logger = structlog.get_logger()


def serve_http(options: Options, listener: socket.socket, token: str) -> None:
    """Be an MCP server at this socket until SIGTERM or SIGINT.

    Args:
        options: As for any transport.
        listener: Listening on loopback. It is ours from here on.
        token: What clients must have.
    """
    trio.run(_serve_http, options, listener, token, strict_exception_groups=True)


async def _serve_http(options: Options, listener: socket.socket, token: str) -> None:
    port = listener.getsockname()[1]
    connections = HttpConnections(listener, name="mcp", limit=CONNECTION_LIMIT, idle_seconds=_IDLE_SECONDS)
    with listener:
        async with open_server(options) as server:
            app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(port))
            async with server.session_manager.run(), trio.open_nursery() as nursery:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    nursery.start_soon(connections.serve, BearerGuard(app, token))
                    _logger.info("mcp.listening", url=f"http://127.0.0.1:{port}{PATH}")
                    async for _ in signals:
                        break
                connections.close()


def _security(port: int) -> TransportSecuritySettings:
    """A page in a browser can reach loopback, also under a name of its own (DNS rebinding): both headers tell."""
    hosts = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])


class BearerGuard:
    """Lets requests through that have the token.

    Args:
        app: What answers them.
        token: The one that counts.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = b"bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "http" and self._has_token(scope):
            await self._app(scope, receive, send)
            return
        refusal = PlainTextResponse(
            "this MCP server needs its bearer token", status_code=401, headers={"www-authenticate": "Bearer"}
        )
        await refusal(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)
