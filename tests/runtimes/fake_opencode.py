"""A stand-in for `opencode serve`: sessions in memory, kept in a file, and a model that does what the prompt says.

Run as a program it serves until it is killed, as the real one does; in a test's own loop it can be looked into and
broken. A prompt is a list of steps, one a line:

    say WORDS             in deltas, a word each
    think WORDS           the same as a thought
    talk                  says `tick` for a minute
    run COMMAND           asks, then runs it by the shell
    choose A B            asks the user
    todo WORD             a plan of one entry
    delegate COMMAND      lets a subagent run it
    fail NAME TEXT        the turn fails as it does in opencode: idle, the message's error, idle again
    fail_early TEXT       it fails before there is any message, and without an idle
    retry N TEXT          the model fails so often, and is to be tried again for ever
    gap WORDS             says them while every stream of events is broken off
    lose                  forgets the turn, as a server does that was started anew
    idle_again            an idle that belongs to no turn any more
    finish WORD           how the model says that it ended
    tell JSON             any event
    die                   the server ends with status 3
    recall                says all earlier prompts of the session
"""

import base64
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio

Json = dict[str, Any]

_AGENTS = [
    {"name": "build", "mode": "primary"},
    {"name": "plan", "mode": "primary", "model": {"providerID": "fake", "modelID": "small"}},
    {"name": "general", "mode": "subagent"},
    {"name": "title", "mode": "primary", "hidden": True},
]
_MODELS: dict[str, Json] = {
    "large": {"id": "large", "name": "Large", "limit": {"context": 1000}, "variants": {"high": {}, "low": {}}},
    "small": {"id": "small", "name": "Small", "limit": {"context": 500}},
}
_REASONS = {200: "OK", 204: "No Content"}


class FakeOpencode:
    """A running server.

    Args:
        password: What it wants; empty for anybody.
        store: Where its sessions are kept between two lives; None forgets them.

    Attributes:
        requests: What was asked: method, path without the server, and body.
        refusals: Statuses with which requests are answered whose path ends so; 0 closes the connection instead.
        mcp: The servers that it was handed.
        streams: The open streams of events.
    """

    def __init__(self, *, password: str = "", store: Path | None = None) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.refusals: dict[str, int] = {}
        self.mcp: dict[str, Any] = {}
        self.streams: set[trio.SocketStream] = set()
        self._telling = trio.Lock()
        self.permissions: dict[str, Json] = {}
        self.questions: dict[str, Json] = {}
        self.sessions: dict[str, Json] = {}
        self.messages: dict[str, list[Json]] = {}
        self.statuses: dict[str, Json] = {}
        self.url = ""
        self._token = base64.b64encode(f"opencode:{password}".encode()).decode() if password else ""
        self._store = store
        self._numbers = itertools.count(1)
        self._replies: dict[str, tuple[trio.Event, list[Any]]] = {}
        self._turns: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        self._load()

    def asked(self, suffix: str) -> list[Any]:
        """The bodies of the requests whose path ends so."""
        return [body for _method, path, body in self.requests if path.endswith(suffix)]

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled."""
        async with trio.open_nursery() as self._nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
            task_status.started()
            await trio.serve_listeners(self._handle, [listener], handler_nursery=self._nursery)

    async def break_streams(self) -> None:
        """Closes every stream of events in the middle."""
        for stream in list(self.streams):
            self.streams.discard(stream)
            await stream.aclose()

    async def emit(self, kind: str, **properties: Any) -> None:
        """Sends an event to whoever listens."""
        event = {"id": self._id("evt"), "type": kind, "properties": properties}
        data = f"data: {json.dumps(event)}\n\n".encode()
        async with self._telling:  # turns of several sessions tell at the same time
            for stream in list(self.streams):
                try:
                    await stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self.streams.discard(stream)

    # HTTP

    async def _handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._answer(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = await stream.receive_some()
            if not more:
                return
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(rest) < int(headers.get("content-length", "0")):
            rest += await stream.receive_some()
        path = urlsplit(target).path
        body = json.loads(rest) if rest else None
        self.requests.append((method, path, body))
        assert "directory" in parse_qs(urlsplit(target).query) or path == "/global/health"
        if self._token and headers.get("authorization") != f"Basic {self._token}":
            await self._send(stream, 401, None)
            return
        refusal = next((status for suffix, status in self.refusals.items() if path.endswith(suffix)), None)
        if refusal == 0:
            return
        if refusal is not None:
            await self._send(stream, refusal, {"name": "Refused", "data": {"message": "the fake says no"}})
        elif path == "/event":
            await self._stream(stream)
        else:
            await self._send(stream, *await self._route(method, path, body))

    async def _send(self, stream: trio.SocketStream, status: int, value: Any) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'No')}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        await stream.send_all(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)

    async def _stream(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await stream.send_all(b'data: {"id":"evt_0","type":"server.connected","properties":{}}\n\n')
        self.streams.add(stream)
        await stream.receive_some()  # its end
        self.streams.discard(stream)

    async def _route(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        match method, path.strip("/").split("/"):
            case "GET", ["global", "health"]:
                return 200, {"healthy": True, "version": "9.9.9"}
            case "GET", ["agent"]:
                return 200, _AGENTS
            case "GET", ["config", "providers"]:
                return 200, {"providers": [{"id": "fake", "models": _MODELS}], "default": {}}
            case "GET", ["config"]:
                return 200, {"model": "fake/large"}
            case "POST", ["mcp"]:
                self.mcp[body["name"]] = body["config"]
                bad = body["config"].get("command") == ["/no/such"]
                return 200, {body["name"]: {"status": "failed", "error": "ENOENT"} if bad else {"status": "connected"}}
            case "POST", ["session"]:
                return 200, await self._new_session(body, None)
            case "GET", ["session", "status"]:
                return 200, self.statuses
            case "GET", ["permission"]:
                return 200, list(self.permissions.values())
            case "GET", ["question"]:
                return 200, list(self.questions.values())
            case "POST", ["permission" | "question", request_id, verb]:
                return await self._reply(request_id, verb, body)
            case _, ["session", session_id, *rest] if session_id in self.sessions:
                return await self._route_session(method, session_id, rest, body)
            case _:
                return 404, {"name": "NotFoundError", "data": {"message": f"not found: {path}"}}

    async def _route_session(self, method: str, session_id: str, rest: list[str], body: Any) -> tuple[int, Any]:
        match method, rest:
            case "GET", []:
                return 200, self.sessions[session_id]
            case "GET", ["message"]:
                return 200, self.messages[session_id]
            case "GET", ["children"]:
                return 200, [each for each in self.sessions.values() if each.get("parentID") == session_id]
            case "POST", ["prompt_async"]:
                self._nursery.start_soon(self._turn, session_id, body)
                return 204, None
            case "POST", ["abort"]:
                await self._abort(session_id)
                return 200, True
            case _:
                return 404, None

    # Sessions

    async def _new_session(self, body: Json, parent: str | None) -> Json:
        info = {"id": self._id("ses"), "title": "New session", **body}
        if parent is not None:
            info["parentID"] = parent
        self.sessions[info["id"]], self.messages[info["id"]] = info, []
        await self.emit("session.created", sessionID=info["id"], info=info)
        return info

    async def _turn(self, session_id: str, body: Json) -> None:
        text = body["parts"][0]["text"]
        agent = body.get("agent", "build")
        provider, model = body.get("model", {"providerID": "fake", "modelID": "large"}).values()
        if text.startswith("fail_early"):
            error = {"name": "UnknownError", "data": {"message": text[11:]}}
            await self.emit("session.error", sessionID=session_id, error=error)
            return
        choice = {"agent": agent, "providerID": provider, "modelID": model}
        await self._message(session_id, "user", choice, [{"type": "text", "text": text}])
        scope, ended = self._turns[session_id] = (trio.CancelScope(), trio.Event())
        await self._status(session_id, "busy")
        answer = await self._message(session_id, "assistant", choice, [])
        with scope:
            answer["info"]["finish"] = await self._steps(session_id, text.split("\n"), answer)
            await self._close(answer)
            await self._status(session_id, "idle")
        if scope.cancelled_caught:
            answer["info"]["error"] = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}
            await self.emit("session.error", sessionID=session_id, error=answer["info"]["error"])
            await self._status(session_id, "idle")
            await self._close(answer)
            await self._status(session_id, "idle")
        ended.set()

    async def _abort(self, session_id: str) -> None:
        scope, ended = self._turns.get(session_id, (None, None))
        if scope is not None and ended is not None:
            scope.cancel()
            await ended.wait()

    async def _message(self, session_id: str, role: str, choice: Json, parts: list[Json]) -> Json:
        tokens = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        info = {"id": self._id("msg"), "sessionID": session_id, "role": role, "time": {"created": 1}, "cost": 0,
                "tokens": tokens, **choice}  # fmt: skip
        message: Json = {"info": info, "parts": []}
        self.messages[session_id].append(message)
        await self.emit("message.updated", sessionID=session_id, info=info)
        for part in parts:
            await self._part(message, **part)
        return message

    async def _close(self, message: Json) -> None:
        info = message["info"]
        info["time"]["completed"] = 2
        info["cost"] = 0.25
        info["tokens"] = {"input": 70, "output": 20, "reasoning": 3, "cache": {"read": 7, "write": 0}}
        for _ in range(2):  # as opencode does
            await self.emit("message.updated", sessionID=info["sessionID"], info=info)
        self._save()

    async def _part(self, message: Json, **members: Any) -> Json:
        """A new part, or a new state of one that has its id among the members."""
        members.setdefault("id", self._id("prt"))
        info = message["info"]
        part = {**members, "sessionID": info["sessionID"], "messageID": info["id"]}
        message["parts"] = [each for each in message["parts"] if each["id"] != part["id"]] + [part]
        await self.emit("message.part.updated", sessionID=info["sessionID"], part=part)
        return part

    async def _status(self, session_id: str, kind: str, **members: Any) -> None:
        self.statuses[session_id] = {"type": kind, **members}
        if kind == "idle":
            del self.statuses[session_id]
            await self.emit("session.status", sessionID=session_id, status={"type": "idle"})
            await self.emit("session.idle", sessionID=session_id)
        else:
            await self.emit("session.status", sessionID=session_id, status=self.statuses[session_id])

    # What a prompt makes it do

    async def _steps(self, session_id: str, lines: list[str], answer: Json) -> str | None:
        """Does the steps; returns how the model says that it ended."""
        finish: str | None = "stop"
        for line in lines:
            verb, _, rest = line.partition(" ")
            match verb:
                case "say" | "think":
                    await self._say(answer, rest.split(), "text" if verb == "say" else "reasoning")
                case "talk":
                    await self._say(answer, ["tick"] * 3000, "text", pause=0.02)
                case "recall":
                    prompts = [each["parts"][0]["text"] for each in self.messages[session_id] if each["parts"]]
                    await self._say(answer, " ".join(prompts[:-1]).split(), "text")
                case "run":
                    if not await self._run(answer, rest):
                        return "tool-calls"
                case "choose":
                    await self._choose(answer, rest.split())
                case "todo":
                    todos = [{"content": rest, "status": "in_progress", "priority": "high"}]
                    await self.emit("todo.updated", sessionID=session_id, todos=todos)
                case "delegate":
                    await self._delegate(session_id, rest)
                case "fail":
                    await self._fail(session_id, answer, *rest.split(" ", 1))
                    finish = None
                case "retry":
                    times, _, message = rest.partition(" ")
                    for attempt in range(1, int(times) + 1):
                        await self._status(session_id, "retry", attempt=attempt, message=message, next=0)
                    await trio.sleep_forever()
                case "gap":
                    await self._say_in_gap(answer, rest.split())
                case "lose":
                    del self.statuses[session_id]
                    await self.break_streams()
                    await trio.sleep_forever()
                case "idle_again":
                    await self.emit("session.status", sessionID=session_id, status={"type": "idle"})
                case "finish":
                    finish = rest
                case "tell":
                    event = json.loads(rest)
                    await self.emit(event["type"], sessionID=session_id, **event["properties"])
                case "die":
                    os._exit(3)
                case _:
                    raise AssertionError(line)
        return finish

    async def _say(self, answer: Json, words: Sequence[str], kind: str, *, pause: float = 0.0) -> None:
        part = await self._part(answer, type=kind, text="", time={"start": 1})
        for number, word in enumerate(words):
            delta = word if number == 0 else f" {word}"
            await self.emit("message.part.delta", sessionID=part["sessionID"], messageID=part["messageID"],
                            partID=part["id"], field="text", delta=delta)  # fmt: skip
            await trio.sleep(pause)
        await self._part(answer, id=part["id"], type=kind, text=" ".join(words), time={"start": 1, "end": 2})

    async def _say_in_gap(self, answer: Json, words: list[str]) -> None:
        """Half of the words before the break, half in it; the end may be on the new stream already."""
        half = len(words) // 2
        part = await self._part(answer, type="text", text="", time={"start": 1})
        place = {"sessionID": part["sessionID"], "messageID": part["messageID"], "partID": part["id"], "field": "text"}
        await self.emit("message.part.delta", **place, delta=" ".join(words[:half]))
        await self.break_streams()
        await self.emit("message.part.delta", **place, delta=f" {words[half]}")
        while not self.streams:  # noqa: ASYNC110  # the client decides when it comes back
            await trio.sleep(0.01)
        await self.emit("message.part.delta", **place, delta=" " + " ".join(words[half + 1 :]))
        await self._part(answer, id=part["id"], type="text", text=" ".join(words), time={"start": 1, "end": 2})

    async def _run(self, answer: Json, command: str) -> bool:
        """A tool call; False if it was rejected."""
        call = self._id("call")
        part = await self._part(answer, type="tool", tool="bash", callID=call, state={"status": "pending", "input": {}})
        keep = {"id": part["id"], "type": "tool", "tool": "bash", "callID": call}
        state: Json = {"input": {"command": command}}
        asked = {"permission": "bash", "patterns": [command], "metadata": {"command": command}}
        try:
            reply = await self._ask(self.permissions, "permission", part["sessionID"], call, asked)
            await self._part(answer, **keep, state={**state, "status": "running"})
            if reply["reply"] == "reject":
                await self._part(answer, **keep, state={**state, "status": "error", "error": "rejected"})
                return "message" in reply
            output = await self._shell(command)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await self._part(answer, **keep, state={**state, "status": "error", "error": "Tool execution aborted"})
            raise
        done = {**state, "status": "completed", "title": command, "output": output, "metadata": {"exit": 0}}
        await self._part(answer, **keep, state=done)
        return True

    async def _shell(self, command: str) -> str:
        """In a session of its own, which is killed when the turn is aborted, and outlives the server's own death."""
        process = await trio.lowlevel.open_process(["sh", "-c", command], stdout=-1, start_new_session=True)
        assert process.stdout is not None
        output = b""
        try:
            async for data in process.stdout:
                output += data
            await process.wait()
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(ProcessLookupError):
                await process.stdout.aclose()
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return output.decode()

    async def _choose(self, answer: Json, labels: list[str]) -> None:
        options = [{"label": label, "description": ""} for label in labels]
        asked = {"questions": [{"question": "Which one?", "header": "Pick", "options": options}]}
        session_id = answer["info"]["sessionID"]
        reply = await self._ask(self.questions, "question", session_id, self._id("call"), asked)
        await self._say(answer, ["got", *(reply["answers"][0] if "answers" in reply else ["nothing"])], "text")

    async def _ask(self, where: dict[str, Json], kind: str, session_id: str, call: str, asked: Json) -> Json:
        request_id = self._id(kind[:3])
        where[request_id] = {"id": request_id, "sessionID": session_id, "tool": {"callID": call}, **asked}
        event, replies = self._replies[request_id] = (trio.Event(), [])
        await self.emit(f"{kind}.asked", **where[request_id])
        await event.wait()
        return dict(replies[0])

    async def _reply(self, request_id: str, verb: str, body: Any) -> tuple[int, Any]:
        where = self.permissions if request_id in self.permissions else self.questions
        if request_id not in where:
            return 404, {"_tag": "NotFound"}
        asked = where.pop(request_id)
        kind = "permission" if where is self.permissions else "question"
        word = "rejected" if verb == "reject" else "replied"
        await self.emit(f"{kind}.{word}", sessionID=asked["sessionID"], requestID=request_id)
        event, replies = self._replies[request_id]
        replies.append(body)
        event.set()
        return 200, True

    async def _delegate(self, session_id: str, command: str) -> None:
        child = await self._new_session({"agent": "general"}, session_id)
        choice = {"agent": "general", "providerID": "fake", "modelID": "large"}
        await self._message(child["id"], "user", choice, [{"type": "text", "text": command}])
        answer = await self._message(child["id"], "assistant", choice, [])
        await self._run(answer, command)
        await self._say(answer, ["from", "below"], "text")
        await self._close(answer)

    async def _fail(self, session_id: str, answer: Json, name: str, text: str = "") -> None:
        """What opencode says before the message that has the error; the rest comes with every turn's end."""
        data: Json = {"message": text}
        if name == "APIError":
            status, _, data["message"] = text.partition(" ")
            data |= {"statusCode": int(status), "responseHeaders": {"retry-after": "7", "server": "fake"}}
        error = {"name": name, "data": data}
        await self.emit("session.error", sessionID=session_id, error=error)
        await self._status(session_id, "idle")
        self.statuses[session_id] = {"type": "busy"}
        answer["info"]["error"] = error

    # Between two lives

    def _id(self, kind: str) -> str:
        return f"{kind}_{os.getpid():07}{next(self._numbers):05}"

    def _save(self) -> None:
        if self._store is not None:
            self._store.write_text(json.dumps([self.sessions, self.messages]), encoding="utf-8")

    def _load(self) -> None:
        if self._store is not None and self._store.exists():
            self.sessions, self.messages = json.loads(self._store.read_text(encoding="utf-8"))


@asynccontextmanager
async def running_fake(password: str = "") -> AsyncGenerator[FakeOpencode, None]:
    """A server in the test's own loop."""
    fake = FakeOpencode(password=password)
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.serve)
        yield fake
        nursery.cancel_scope.cancel()


async def main() -> None:
    """Serves as `opencode serve` does: says where it listens, and ends by a signal only."""
    fake = FakeOpencode(
        password=os.environ.get("OPENCODE_SERVER_PASSWORD", ""), store=Path(os.environ["HOME"]) / "sessions.json"
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.serve)
        print("noise before the address", flush=True)
        print("a word on stderr", file=sys.stderr, flush=True)
        print(f"opencode server listening on {fake.url}", flush=True)


if __name__ == "__main__":
    trio.run(main)
