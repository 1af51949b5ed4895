"""A stand-in for a model service on loopback: it says and does what the prompt tells it to, so that a real agent can be
driven through its own configuration without an account.

It speaks the OpenAI chat completions dialect, streaming and not. What it answers is decided by the last user message of
the request, not by state kept here, so an agent that was killed and resumed goes on where its transcript says. A prompt
may hold directives:

    [[text: hello]]               say it, in several deltas
    [[reason: hmm]]               think it
    [[shell: echo hi > f.txt]]    call the shell tool that the agent offers
    [[write: path | content]]     call its write tool
    [[call: ping {"to": "me"}]]   call the tool whose name ends so, with these arguments (JSON, without two brackets ]])
    [[slow: 100 x 0.2]]           100 deltas, 0.2 s apart; ends early when the client goes
    [[error: 500]]                an HTTP error, every time
    [[error: 429 x2 after 1]]     the same for the first two requests, with Retry-After: 1
    [[garbage]]                   an event that is not JSON
    [[drop]]                      two deltas, then the connection closes, every time
    [[drop: 1]]                   the same for the first request only
    [[usage: 1000 50]]            report these token counts

A tool call ends the model's turn; the directives after it make the next one. When they are used up it says OK and the
start of the last tool result; without any it echoes the prompt. For prompts that are not the test's own, the test gives
the directives beside them (`told`). It can also hold what the model says to a prompt (`held`): then it says that it has
begun, and the rest only when the test lets it. GET /requests tells what was asked.
"""

import argparse
import contextlib
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_DIRECTIVE = re.compile(
    r"\[\[(text|reason|shell|write|call|slow|error|garbage|drop|usage)(?::\s*(.*?))?\]\]", re.DOTALL
)
_ERROR = re.compile(r"(\d+)(?:\s*x\s*(\d+))?(?:\s*after\s*([\d.]+))?")
_TOOLS: dict[str, tuple[str, ...]] = {
    "shell": ("bash", "shell", "run_shell_command"),
    "write": ("write", "write_file", "Write"),
    "call": (),
}
HELD = "held "
_TITLE = re.compile(r"title", re.IGNORECASE)


@dataclass(frozen=True)
class Directive:
    """One thing that the model is told to do."""

    kind: str
    argument: str


@dataclass
class Request:
    """What matters of one chat request: the prompt, what was said before it, how many tool results followed it, and the
    tools on offer.
    """

    model: str
    stream: bool
    prompt: str
    earlier: str
    step: int
    last_result: str
    system: str
    tools: dict[str, dict[str, Any]]


@dataclass
class Seen:
    """What the model was asked so far, for the tests to look at."""

    requests: list[Request] = field(default_factory=list[Request])
    failures: Counter[str] = field(default_factory=Counter[str])
    holds: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])
    answers: dict[str, str] = field(default_factory=dict[str, str])
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def script(self, request: Request) -> str:
        """The text whose directives answer a request."""
        found = (told for words, told in list(self.answers.items()) if words in request.prompt)
        return next(found, request.prompt)

    def fails_still(self, request: Request, argument: str, times: int | None) -> bool:
        """Counts one more failure of a directive; False when it has failed so often already."""
        key = f"{request.prompt}|{request.step}|{argument}"
        with self.lock:
            self.failures[key] += 1
            return times is None or self.failures[key] <= times


class StandInModel:
    """A running stand-in. Use as a context manager; `url` is its base address."""

    def __init__(self, port: int = 0) -> None:
        self.seen = Seen()
        handler = type("Handler", (_Handler,), {"seen": self.seen})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "StandInModel":
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seen.stopping.set()
        for release in list(self.seen.holds.values()):
            release.set()
        self._server.shutdown()
        self._server.server_close()

    def serve(self) -> None:
        """Serves in this thread until it is interrupted."""
        self._server.serve_forever()

    def asked(self, words: str) -> list[Request]:
        """The requests whose prompt has these words, title requests left out."""
        with self.seen.lock:
            return [request for request in self.seen.requests if request.tools and words in request.prompt]

    @contextlib.contextmanager
    def told(self, answers: Mapping[str, str]) -> Generator[None, None, None]:
        """While this lasts, a prompt that has the words of a key is answered by the directives of its value."""
        self.seen.answers.update(answers)
        try:
            yield
        finally:
            for words in answers:
                del self.seen.answers[words]

    @contextlib.contextmanager
    def held(self, words: str) -> Generator[threading.Event, None, None]:
        """While this lasts, answers to prompts with these words stop after `HELD`, until the given event is set."""
        release = threading.Event()
        self.seen.holds[words] = release
        try:
            yield release
        finally:
            del self.seen.holds[words]
            release.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: Seen

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the tests look at `seen`."""

    def do_GET(self) -> None:
        if self.path == "/requests":
            with self.seen.lock:
                self._json(200, [request.__dict__ for request in self.seen.requests])
        else:
            self._json(200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        request = _read(body)
        with self.seen.lock:
            self.seen.requests.append(request)
        with contextlib.suppress(ConnectionError):
            self._answer(request)

    def _answer(self, request: Request) -> None:
        directives = _plan(request, self.seen.script(request))
        for directive in directives:
            if directive.kind == "error" and self._fail(request, directive.argument):
                return
        if request.stream:
            self._stream(request, directives)
        else:
            text = " ".join(d.argument for d in directives if d.kind == "text")
            self._json(200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                                          "finish_reason": "stop"}]})  # fmt: skip

    def _fail(self, request: Request, argument: str) -> bool:
        match = _ERROR.match(argument)
        assert match, argument
        status, times, after = match.groups()
        if not self.seen.fails_still(request, argument, int(times) if times else None):
            return False
        headers = {"Retry-After": after} if after else {}
        self._json(int(status), {"error": {"message": f"stand-in error {status}", "code": status}}, headers)
        return True

    def _stream(self, request: Request, directives: list[Directive]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._hold(request)
        usage, called = (len(request.prompt), 20), False
        for directive in directives:
            if directive.kind == "usage":
                first, second = directive.argument.split()
                usage = (int(first), int(second))
            elif directive.kind == "garbage":
                self._raw("data: {this is not json\n\n")
            elif directive.kind == "drop":
                if self.seen.fails_still(request, "drop", int(directive.argument) if directive.argument else None):
                    self._delta({"content": "part one "})
                    self._delta({"content": "part two "})
                    return
            elif directive.kind != "error":  # a spent one
                for delta in self._deltas(directive, request.tools):
                    self._delta(delta)
                    called = called or "tool_calls" in delta
        self._delta({}, "tool_calls" if called else "stop")
        total = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        self._raw(f"data: {json.dumps({'choices': [], 'usage': total})}\n\n")
        self._raw("data: [DONE]\n\n")

    def _hold(self, request: Request) -> None:
        if not request.tools:
            return
        for words, release in list(self.seen.holds.items()):
            if words in request.prompt and not release.is_set():
                self._delta({"content": HELD})
                release.wait()

    def _deltas(self, directive: Directive, tools: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if directive.kind in ("text", "reason"):
            name = "content" if directive.kind == "text" else "reasoning_content"
            for word in re.findall(r"\S+\s*", directive.argument):
                yield {name: word}
        elif directive.kind == "slow":
            count, _, gap = directive.argument.partition("x")
            for number in range(int(count)):
                yield {"content": f"tick{number + 1} "}
                if self.seen.stopping.wait(float(gap or 0.2)):
                    return
        else:
            name, arguments = _call(directive, tools)
            call = {"index": 0, "id": f"call_{next(_numbers)}", "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)}}  # fmt: skip
            yield {"tool_calls": [call]}

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stand-in",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip
        self._raw(f"data: {json.dumps(chunk)}\n\n")

    def _raw(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, content in (headers or {}).items():
            self.send_header(name, content)
        self.end_headers()
        self.wfile.write(data)


_numbers = itertools.count(1)


def _read(body: dict[str, Any]) -> Request:
    offered: list[dict[str, Any]] = body.get("tools") or []
    tools: dict[str, dict[str, Any]] = {
        tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in offered
    }
    prompt, earlier, said, step, last, system = "", "", "", 0, "", ""
    for message in body["messages"]:
        text = _text(message.get("content"))
        if message["role"] == "user":
            earlier, said = f"{earlier}{prompt}\n{said}", ""
            prompt, step, last = text, 0, ""
        elif message["role"] == "assistant":
            said += f"{text}\n"
        elif message["role"] == "tool":
            step, last = step + 1, text
        elif message["role"] == "system":
            system += text
    return Request(body.get("model", ""), bool(body.get("stream")), prompt, earlier, step, last, system, tools)


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        texts = [str(part.get("text", "")) for part in content]
        # An agent merges a failed turn's prompt with the next one: the last block with a directive is the prompt then.
        marked = [text for text in texts if _DIRECTIVE.search(text)]
        return marked[-1] if len(marked) > 1 else "\n".join(texts)
    return content or ""


def _plan(request: Request, script: str) -> list[Directive]:
    if not request.tools and _TITLE.search(request.system):
        return [Directive("text", "A title")]
    turns: list[list[Directive]] = [[]]
    for match in _DIRECTIVE.finditer(script):
        turns[-1].append(Directive(match[1], (match[2] or "").strip()))
        if match[1] in _TOOLS:
            turns.append([])
    turns = [turn for turn in turns if turn]
    if request.step < len(turns):
        return turns[request.step]
    return [Directive("text", f"OK {request.last_result[:200]}" if request.step else f"ECHO {request.prompt[-400:]}")]


def _call(directive: Directive, tools: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    if directive.kind == "call":
        end, _, given = directive.argument.partition(" ")
        # Hosts put the server's name before a tool's; a tool that is not offered is called all the same.
        return next((name for name in tools if name.endswith(end)), end), json.loads(given or "{}")
    name = next((name for name in _TOOLS[directive.kind] if name in tools), _TOOLS[directive.kind][0])
    properties: dict[str, Any] = tools.get(name, {}).get("properties") or {}
    if directive.kind == "shell":
        arguments = {"command": directive.argument}
    else:
        path, _, content = (part.strip() for part in directive.argument.partition("|"))
        key = next((key for key in ("filePath", "file_path", "path") if key in properties), "path")
        arguments = {key: path, "content": content + "\n"}
    required: list[str] = tools.get(name, {}).get("required") or []
    for missing in required:
        arguments.setdefault(missing, f"the {missing}")
    return name, arguments


def main() -> None:
    """Serves until interrupted; prints the base address first."""
    parser = argparse.ArgumentParser(description="A scripted stand-in for a model service, on loopback.")
    parser.add_argument("--port", type=int, default=0)
    model = StandInModel(parser.parse_args().port)
    print(model.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        model.serve()


if __name__ == "__main__":
    main()
