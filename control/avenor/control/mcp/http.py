"""The MCP server over streamable HTTP: on loopback only, with a bearer token, and deaf to pages of other origins."""

import hmac
import signal
import socket
from typing import Any, Final

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve  # pyright: ignore[reportUnknownVariableType]
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from avenor.control.mcp.options import Options
from avenor.control.mcp.server import open_server

PATH: Final = "/mcp"
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
    async with open_server(options) as server:
        app: Any = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(port))
        config = Config()
        config.loglevel = "WARNING"
        config.graceful_timeout = 1.0  # hosts keep a stream open that never ends by itself
        config.bind = [f"fd://{listener.detach()}"]
        _logger.info("mcp.listening", url=f"http://127.0.0.1:{port}{PATH}")
        guarded: Any = BearerGuard(app, token)  # starlette and hypercorn describe ASGI in types of their own
        await serve(guarded, config, shutdown_trigger=_wait_signal)


async def _wait_signal() -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            return


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
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._has_token(scope)):
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
