"""An MCP server on HTTP that notes what it is asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agents.mcp_probe import answer


class HttpProbe:
    """A running server. Use as a context manager; `url` is its address.

    Attributes:
        asked: The methods that it was asked for, and the `X-Probe` header of each request, in order.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"asked": self.asked})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def __enter__(self) -> "HttpProbe":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """There is no stream of the server's own."""
        self._reply(405, None)

    def do_DELETE(self) -> None:
        """The client ends its session."""
        self._reply(200, None)

    def do_POST(self) -> None:
        """One message."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked += [str(message.get("method")), str(self.headers.get("X-Probe"))]
        if "id" not in message:
            self._reply(202, None)
            return
        result = answer(message["method"], message.get("params") or {})
        self._reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _reply(self, status: int, value: Any) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
