"""A stand-in for a model service on loopback: it says and does what the prompt tells it to, so that a real agent can be
driven through its own configuration without an account.

It speaks the OpenAI chat completions dialect, streaming and not. What it answers is decided by the last user message of
the request, not by state kept here, so an agent that was killed and resumed goes on where its transcript says. A prompt
may hold directives:

    [[text: hello]]               say it, in several deltas
    [[reason: hmm]]               think it
    [[shell: echo hi > f.txt]]    call the shell tool that the agent offers
    [[write: path | content]]     call its write tool
    [[read: path]]                call its read tool; where it has none, `cat` in its shell
    [[edit: path | old | new]]    call its edit tool; where it has none, that for patches
    [[call: name {"a": 1}]]       call the tool whose name is this or ends so, as an MCP server's does; `{commit}` in
                                  the arguments stands for the last commit id of the prompt
    [[slow: 100 x 0.2]]           100 deltas, 0.2 s apart; ends early when the client goes
    [[error: 500]]                an HTTP error, every time
    [[error: 429 x2 after 1]]     the same for the first two requests, with Retry-After: 1
    [[garbage]]                   an event that is not JSON
    [[drop]]                      two deltas, then the connection closes, every time
    [[drop: 1]]                   the same for the first request only
    [[usage: 1000 50]]            report these token counts

A tool call ends the model's turn; the directives after it make the next one. With a `+` behind its first word, as in
`[[read+: a.txt]]`, the next call is made in the same turn. When they are used up it says OK and the
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

_KINDS = "text|reason|shell|write|read|edit|call|slow|error|garbage|drop|usage"
_DIRECTIVE = re.compile(rf"\[\[({_KINDS})(\+?)(?::\s*(.*?))?\]\]", re.DOTALL)
_ERROR = re.compile(r"(\d+)(?:\s*x\s*(\d+))?(?:\s*after\s*([\d.]+))?")
_TOOLS: dict[str, tuple[str, ...]] = {
    "shell": ("bash", "shell", "run_shell_command"),
    "write": ("write", "write_file", "Write"),
    "read": ("read", "Read", "read_file"),
    "edit": ("edit", "Edit", "replace"),
    "call": (),
}
_PATH_KEYS = ("filePath", "file_path", "path")
_COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
HELD = "held "
_TITLE = re.compile(r"title", re.IGNORECASE)


@dataclass(frozen=True)
class Directive:
    """One thing that the model is told to do."""

    kind: str
    argument: str


@dataclass
class Request:
    """What matters of one chat request: the prompt, what was said before it, how many tool results followed it, the
    tools on offer, the key that it came with, and the tokens that were told: none where the answer was not whole.
    """

    model: str
    stream: bool
    prompt: str
    earlier: str
    step: int
    last_result: str
    system: str
    tools: dict[str, dict[str, Any]]
    key: str = ""
    usage: tuple[int, int] | None = None


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
                self.seen.answers.pop(words, None)  # told anew meanwhile, perhaps

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
        request.key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
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
        usage, called = (len(request.prompt), 20), 0
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
                for delta in self._deltas(directive, request, called):
                    self._delta(delta)
                    called += "tool_calls" in delta
        self._delta({}, "tool_calls" if called else "stop")
        total = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        self._raw(f"data: {json.dumps({'choices': [], 'usage': total})}\n\n")
        self._raw("data: [DONE]\n\n")
        request.usage = usage

    def _hold(self, request: Request) -> None:
        if not request.tools:
            return
        for words, release in list(self.seen.holds.items()):
            if words in request.prompt and not release.is_set():
                self._delta({"content": HELD})
                release.wait()

    def _deltas(self, directive: Directive, request: Request, place: int) -> Iterator[dict[str, Any]]:
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
            name, arguments = _call(directive, request)
            call = {"index": place, "id": f"call_{next(_numbers)}", "type": "function",
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
    for calls_before, turn in _turns(script):
        if request.step <= calls_before:
            return turn
    return [Directive("text", f"OK {request.last_result[:200]}" if request.step else f"ECHO {request.prompt[-400:]}")]


def _turns(script: str) -> Iterator[tuple[int, list[Directive]]]:
    """What is said and done between two looks at tool results, each with the number of calls before it."""
    calls, calls_before = 0, 0
    turn: list[Directive] = []
    for match in _DIRECTIVE.finditer(script):
        turn.append(Directive(match[1], (match[3] or "").strip()))
        if match[1] not in _TOOLS:
            continue
        calls += 1
        if not match[2]:
            yield calls_before, turn
            calls_before, turn = calls, []
    if turn:
        yield calls_before, turn


def _call(directive: Directive, request: Request) -> tuple[str, dict[str, Any]]:
    tools = request.tools
    first, *rest = directive.argument.split(" | ")
    if directive.kind == "call":
        return _named_call(directive.argument, request)
    offered = next((name for name in _TOOLS[directive.kind] if name in tools), None)
    if offered is None and directive.kind == "read":
        return _call(Directive("shell", f"cat {first}"), request)
    if offered is None and directive.kind == "edit":
        return "apply_patch", {_patch_key(tools): _patch(first, *rest)}
    name = offered or _TOOLS[directive.kind][0]
    properties: dict[str, Any] = tools.get(name, {}).get("properties") or {}
    path_key = next((key for key in _PATH_KEYS if key in properties), "path")
    match directive.kind:
        case "shell":
            arguments: dict[str, Any] = {"command": directive.argument}
        case "write":
            path, _, content = (part.strip() for part in directive.argument.partition("|"))
            arguments = {path_key: path, "content": content + "\n"}
        case "edit":
            old, new = ("oldString", "newString") if "oldString" in properties else ("old_string", "new_string")
            arguments = {path_key: first, old: rest[0], new: rest[1]}
        case _:
            arguments = {path_key: first}
    required: list[str] = tools.get(name, {}).get("required") or []
    for missing in required:
        arguments.setdefault(missing, f"the {missing}")
    return name, arguments


def _named_call(argument: str, request: Request) -> tuple[str, dict[str, Any]]:
    wanted, _, given = argument.partition(" ")
    commits = _COMMIT.findall(request.prompt)
    arguments = given.replace("{commit}", commits[-1] if commits else "") or "{}"
    fitting = (name for name in request.tools if name.endswith(wanted))  # a host puts the name of the server before it
    return next(fitting, wanted), json.loads(arguments)


def _patch_key(tools: dict[str, dict[str, Any]]) -> str:
    properties: dict[str, Any] = tools.get("apply_patch", {}).get("properties") or {}
    return next(iter(properties), "input")


def _patch(path: str, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


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
