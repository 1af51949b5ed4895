"""A model on loopback that gives codex whatever items its prompt holds: for what the common stand-in has no word for.

The last prompt is JSON: a list for each request of the turn, of items in short form:

    {"text": "hello"}                                     says it, in one piece
    {"call": "exec_command", "arguments": {…}}            calls a function; "namespace" beside it for an MCP server's
    {"custom": "apply_patch", "input": "…"}               calls a tool that takes text
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class ItemModel:
    """The running model. Use as a context manager; `url` is its base address, without `/v1`."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        handler = type("Handler", (_Handler,), {"bodies": self.bodies})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "ItemModel":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    bodies: list[Json]

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """codex asks for a list of models, and does without one."""
        self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        turns, step = _plan(body["input"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        output = [_item(short, f"{len(self.bodies)}_{place}") for place, short in enumerate(turns[step])]
        self._event("response.created", response={"id": f"resp_{len(self.bodies)}"})
        for place, item in enumerate(output):
            self._event("response.output_item.done", output_index=place, item=item)
        usage = {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 400}, "output_tokens": 20}
        whole = {"id": f"resp_{len(self.bodies)}", "output": output, "usage": {**usage, "total_tokens": 1020}}
        self._event("response.completed", response=whole)

    def _event(self, kind: str, **members: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode())


def _plan(given: list[Json]) -> tuple[list[list[Json]], int]:
    """The turns of the last prompt, and how many tool results have followed it."""
    place = max(i for i, item in enumerate(given) if item.get("role") == "user" and _text(item).startswith("[["))
    results = [item for item in given[place:] if str(item.get("type")).endswith("_output")]
    return json.loads(_text(given[place])), len(results)


def _text(item: Json) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def _item(short: Json, name: str) -> Json:
    match short:
        case {"text": text}:
            content: list[Json] = [{"type": "output_text", "text": text, "annotations": []}]
            return {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": content}
        case {"custom": tool, "input": text}:
            return {"id": f"ct_{name}", "type": "custom_tool_call", "call_id": name, "name": tool, "input": text}
        case {"call": tool, "arguments": arguments}:
            space = {"namespace": short["namespace"]} if "namespace" in short else {}
            call = {"id": f"fc_{name}", "type": "function_call", "call_id": name, "name": tool, **space}
            return {**call, "arguments": json.dumps(arguments)}
        case _:
            raise AssertionError(short)
