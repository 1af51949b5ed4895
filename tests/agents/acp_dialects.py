"""The stand-in model behind the other dialects that agents speak: Anthropic messages, OpenAI responses, and Gemini.

`DialectModel` takes an agent's request, asks the stand-in in its own dialect, and says in the agent's what that says,
piece by piece: errors, broken connections and what is no JSON come through as they are. What an agent calls its shell
is called `shell` toward the stand-in.
"""

import contextlib
import gzip
import http.client
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

_SHELLS = ("Bash", "exec_command", "shell_command", "run_shell_command", "bash", "shell")
# The tool that takes a patch as it is, and no JSON.
_PATCH = "apply_patch"
# What agents put around a prompt for the model's eyes: reminders, the environment, instructions.
_ASIDE = re.compile(r"<([a-zA-Z_ -]+)>.*?</\1>", re.DOTALL)

Json = dict[str, Any]
Send = Callable[[str], None]
_numbers = itertools.count(1)


class Writer(Protocol):
    """Says one answer in a dialect."""

    def text(self, delta: str) -> None:
        """Says a piece of text."""
        ...

    def thought(self, delta: str) -> None:
        """Thinks a piece."""
        ...

    def call(self, name: str, arguments: Json) -> None:
        """Calls a tool."""
        ...

    def end(self, usage: Json) -> None:
        """Ends the answer; `usage` is that of chat completions."""
        ...


class _Responses:
    """OpenAI responses, as codex speaks them."""

    def __init__(self, send: Send, model: str) -> None:
        self._send = send
        self._whole: Json = {"id": f"resp_{next(_numbers)}", "object": "response", "model": model, "output": []}
        self._said = ""
        self._thought = ""
        self._event("response.created", response={**self._whole, "status": "in_progress"})

    def text(self, delta: str) -> None:
        if not self._said:
            self._close()
            self._event("response.output_item.added", output_index=self._index(), item=self._message([]))
        self._said += delta
        item_id = self._message([])["id"]
        self._event(
            "response.output_text.delta", item_id=item_id, output_index=self._index(), content_index=0, delta=delta
        )

    def thought(self, delta: str) -> None:
        place = {"item_id": f"rs_{self._whole['id']}_{self._index()}", "output_index": self._index()}
        if not self._thought:
            item: Json = {"id": place["item_id"], "type": "reasoning", "summary": []}
            self._event("response.output_item.added", output_index=self._index(), item=item)
            part = {"type": "summary_text", "text": ""}
            self._event("response.reasoning_summary_part.added", **place, summary_index=0, part=part)
        self._thought += delta
        self._event("response.reasoning_summary_text.delta", **place, summary_index=0, delta=delta)

    def call(self, name: str, arguments: Json) -> None:
        self._close()
        number = next(_numbers)
        item = {"id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        space, _, short = name.rpartition("__")
        if name == _PATCH:
            self._add({**item, "type": "custom_tool_call", "name": name, "input": arguments["input"]})
        elif space:
            given = {"namespace": space, "name": short, "arguments": json.dumps(arguments)}
            self._add({**item, "type": "function_call", **given})
        else:
            self._add({**item, "type": "function_call", "name": name, "arguments": json.dumps(arguments)})

    def end(self, usage: Json) -> None:
        self._close()
        tokens = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        self._event("response.completed", response={**self._whole, "status": "completed", "usage": tokens})

    def _close(self) -> None:
        if self._thought:
            text, self._thought = self._thought, ""
            name = f"rs_{self._whole['id']}_{self._index()}"
            self._add({"id": name, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]})
        if self._said:
            text, self._said = self._said, ""
            self._add(self._message([{"type": "output_text", "text": text, "annotations": []}]))

    def _add(self, item: Json) -> None:
        self._event("response.output_item.done", output_index=self._index(), item=item)
        self._whole["output"].append(item)

    def _index(self) -> int:
        return len(self._whole["output"])

    def _message(self, content: list[Json]) -> Json:
        name = f"msg_{self._whole['id']}_{self._index()}"
        return {"id": name, "type": "message", "role": "assistant", "status": "completed", "content": content}

    def _event(self, kind: str, **members: Any) -> None:
        self._send(f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n")


class _Messages:
    """Anthropic messages, as claude speaks them."""

    def __init__(self, send: Send, model: str) -> None:
        self._send = send
        self._index = -1
        self._open: str | None = None
        self._has_called = False
        message: Json = {
            "id": f"msg_{next(_numbers)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
        }
        usage = {"input_tokens": 1, "output_tokens": 1}
        self._event("message_start", message={**message, "stop_reason": None, "usage": usage})

    def text(self, delta: str) -> None:
        self._begin("text", {"type": "text", "text": ""})
        self._event("content_block_delta", index=self._index, delta={"type": "text_delta", "text": delta})

    def thought(self, delta: str) -> None:
        self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._event("content_block_delta", index=self._index, delta={"type": "thinking_delta", "thinking": delta})

    def call(self, name: str, arguments: Json) -> None:
        self._close()
        self._begin("tool_use", {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": name, "input": {}})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        self._event("content_block_delta", index=self._index, delta=delta)
        self._has_called = True

    def end(self, usage: Json) -> None:
        self._close()
        tokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        why = "tool_use" if self._has_called else "end_turn"
        self._event("message_delta", delta={"stop_reason": why, "stop_sequence": None}, usage=tokens)
        self._event("message_stop")

    def _begin(self, kind: str, block: Json) -> None:
        if self._open != kind:
            self._close()
            self._open = kind
            self._index += 1
            self._event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> None:
        if self._open is not None:
            self._open = None
            self._event("content_block_stop", index=self._index)

    def _event(self, kind: str, **members: Any) -> None:
        self._send(f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n")


class _Gemini:
    """Gemini's generateContent, streamed."""

    def __init__(self, send: Send, model: str) -> None:
        self._send = send
        self._model = model
        self._thought = ""

    def text(self, delta: str) -> None:
        self._say({"text": delta})

    def thought(self, delta: str) -> None:
        self._thought += delta  # each is one with a subject of its own, so they come whole

    def call(self, name: str, arguments: Json) -> None:
        self._say({"functionCall": {"name": name, "args": arguments}})

    def end(self, usage: Json) -> None:
        tokens = {
            "promptTokenCount": usage["prompt_tokens"],
            "candidatesTokenCount": usage["completion_tokens"],
            "totalTokenCount": usage["total_tokens"],
        }
        self._say({"text": ""}, finishReason="STOP", usageMetadata=tokens)

    def _say(self, part: Json, **more: Any) -> None:
        if self._thought:
            thought, self._thought = self._thought, ""
            self._say({"text": thought, "thought": True})
        usage = more.pop("usageMetadata", None)
        candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, **more}
        event = {"candidates": [candidate], "modelVersion": self._model}
        if usage:
            event["usageMetadata"] = usage
        self._send(f"data: {json.dumps(event)}\n\n")


def _from_responses(body: Json) -> tuple[list[Json], list[Json]]:
    messages = [{"role": "system", "content": _flat(body.get("instructions"))}]
    for item in _list(body.get("input")):
        kind = item.get("type", "message")
        if kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages += _message(role, item.get("content"))
        elif kind.endswith("_output"):
            messages.append({"role": "tool", "content": _flat(item.get("output"))})
    return messages, list(_responses_tools(_list(body.get("tools"))))


def _responses_tools(offered: list[Json]) -> Iterator[Json]:
    """Functions; those of MCP servers, which codex puts into a namespace for each; and the one that takes a patch."""
    for tool in offered:
        match tool.get("type"):
            case "function":
                yield _tool(tool["name"], tool.get("parameters"))
            case "namespace":
                yield from (_tool(f"{tool['name']}__{t['name']}", t.get("parameters")) for t in tool["tools"])
            case "custom" if tool["name"] == _PATCH:
                yield _tool(_PATCH, {"properties": {"input": {"type": "string"}}})
            case _:
                pass


def _from_messages(body: Json) -> tuple[list[Json], list[Json]]:
    messages = [{"role": "system", "content": _flat(body.get("system"))}]
    for message in body["messages"]:
        content = message["content"]
        blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [block for block in blocks if block["type"] == "tool_result"]
        messages += [{"role": "tool", "content": _flat(block.get("content"))} for block in results]
        messages += _message(message["role"], [block for block in blocks if block["type"] == "text"])
    return messages, [_tool(t["name"], t.get("input_schema")) for t in _list(body.get("tools"))]


def _from_gemini(body: Json) -> tuple[list[Json], list[Json]]:
    messages = [{"role": "system", "content": _flat(_parts(body.get("systemInstruction")))}]
    for content in body["contents"]:
        parts = content["parts"]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        messages += [{"role": "tool", "content": _flat(result.get("response"))} for result in results]
        role = "assistant" if content.get("role") == "model" else "user"
        messages += _message(role, [part for part in parts if part.get("text") and not part.get("thought")])
    declared = [d for tool in _list(body.get("tools")) for d in _list(tool.get("functionDeclarations"))]
    return messages, [_tool(d["name"], d.get("parametersJsonSchema") or d.get("parameters")) for d in declared]


_DIALECTS: list[tuple[re.Pattern[str], Callable[[Json], Any], Callable[[Send, str], Writer]]] = [
    (re.compile(r"/responses$"), _from_responses, _Responses),
    (re.compile(r"/messages$"), _from_messages, _Messages),
    (re.compile(r":(stream)?generateContent$", re.IGNORECASE), _from_gemini, _Gemini),
]


def _list(value: Any) -> list[Json]:
    return value or []


def _parts(content: Json | None) -> list[Json]:
    return _list(content["parts"]) if content else []


def _message(role: str, content: Any) -> list[Json]:
    blocks = _list(content) if isinstance(content, list) else [content]
    texts = [text for text in (_ASIDE.sub("", _flat(block)).strip() for block in blocks) if text]
    return [{"role": role, "content": [{"type": "text", "text": text} for text in texts]}] if texts else []


def _flat(content: Any) -> str:
    match content:
        case None:
            return ""
        case list():
            return "\n".join(_flat(item) for item in content)  # pyright: ignore[reportUnknownVariableType]
        case {"text": text} | {"output": text}:
            return _flat(text)
        case _:
            return content if isinstance(content, str) else json.dumps(content)


def _tool(name: str, schema: Json | None) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": schema or {}}}


def _shell_arguments(schema: Json, arguments: Json) -> Json:
    """The arguments of an agent's shell tool; codex is asked to leave its sandbox, so that it has to ask the user."""
    properties: Json = schema.get("properties") or {}
    if "cmd" in properties:
        arguments["cmd"] = arguments.pop("command")
    if "sandbox_permissions" in properties:
        arguments["sandbox_permissions"] = "require_escalated"
        arguments["justification"] = "May it?"
    return arguments


class _Gone(Exception):
    """The stand-in broke off its answer."""


class DialectModel:
    """A running translator. Use as a context manager; `url` is its base address, without `/v1`.

    Args:
        standin_url: The stand-in's base address.
    """

    def __init__(self, standin_url: str) -> None:
        handler = type("Handler", (_Handler,), {"standin": urlsplit(standin_url)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "DialectModel":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    standin: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self._json(200, {})

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [], "models": []})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        path = urlsplit(self.path).path
        for pattern, read, writer in _DIALECTS:
            if pattern.search(path):
                with contextlib.suppress(ConnectionError):
                    self._answer(json.loads(data), path, read, writer)
                return
        self._json(200, {"input_tokens": 10, "totalTokens": 10})  # counting tokens

    def _answer(
        self, body: Json, path: str, read: Callable[[Json], Any], writer: Callable[[Send, str], Writer]
    ) -> None:
        messages, tools = read(body)
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        shell = next((name for name in _SHELLS if name in schemas), "shell")
        for tool in tools:
            if tool["function"]["name"] == shell:
                tool["function"]["name"] = "shell"
        model = body.get("model") or path.rsplit("/", 1)[-1].split(":")[0]
        connection = http.client.HTTPConnection(self.standin.hostname, self.standin.port)
        with contextlib.closing(connection):
            asked = json.dumps({"model": model, "stream": True, "messages": messages, "tools": tools})
            key = self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            connection.request(
                "POST", f"{self.standin.path}/chat/completions", asked, {"Authorization": f"Bearer {key}"}
            )
            reply = connection.getresponse()
            if reply.status != 200:
                self._fail(reply)
                return
            if body.get("stream") is False or path.endswith(":generateContent"):
                self._say_at_once(reply, writer, model)
                return
            self._begin()
            with contextlib.suppress(_Gone):
                self._say(reply, writer(self._send, model), shell, schemas.get(shell) or {})
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

    def _say(self, reply: http.client.HTTPResponse, out: Writer, shell: str, schema: Json) -> None:
        usage: Json = {}
        for line in _events(reply):
            try:
                event = json.loads(line)
            except ValueError:
                self._send(f"data: {line}\n\n")
                continue
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    out.text(delta["content"])
                if delta.get("reasoning_content"):
                    out.thought(delta["reasoning_content"])
                for call in _list(delta.get("tool_calls")):
                    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                    if name == "shell":
                        name, arguments = shell, _shell_arguments(schema, arguments)
                    out.call(name, arguments)
        out.end(usage)

    def _say_at_once(self, reply: http.client.HTTPResponse, writer: Callable[[Send, str], Writer], model: str) -> None:
        """An answer that is not streamed: only gemini and claude ask for some, beside the conversation."""
        said: list[str] = []
        try:
            for line in _events(reply):
                said += [c["delta"].get("content") or "" for c in json.loads(line)["choices"]]
        except (_Gone, ValueError):
            self.close_connection = True  # without an answer
            return
        text = "".join(said)
        usage = {"input_tokens": 1, "output_tokens": 1}
        if writer is _Gemini:
            content = {"role": "model", "parts": [{"text": text}]}
            self._json(200, {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]})
        else:
            block = {"type": "text", "text": text}
            message = {"id": "msg", "type": "message", "role": "assistant", "model": model, "content": [block]}
            self._json(200, {**message, "stop_reason": "end_turn", "usage": usage})

    def _fail(self, reply: http.client.HTTPResponse) -> None:
        error = json.loads(reply.read())["error"]
        headers = {"Retry-After": str(reply.headers["Retry-After"])} if reply.headers["Retry-After"] else {}
        both = {"type": "api_error", "message": error["message"], "code": reply.status, "status": "INTERNAL"}
        self._json(reply.status, {"type": "error", "error": both}, headers)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")  # so that a connection that breaks off can be told
        self.end_headers()

    def _send(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, value: Any, headers: Json | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, content in (headers or {}).items():
            self.send_header(name, content)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _events(reply: http.client.HTTPResponse) -> Iterator[str]:
    """What the stand-in says, line by line.

    Raises:
        _Gone: It broke off.
    """
    for line in reply:
        text = line.decode().strip().removeprefix("data: ")
        if text == "[DONE]":
            return
        if text:
            yield text
    raise _Gone
