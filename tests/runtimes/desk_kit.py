"""What the tests of the desk are made of: a model service that does what a test says, a meter, tools, a client."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpcore
import msgspec
import trio

from avenor.protocol.manifest.roster import Dialect, Endpoint
from avenor.runtimes.manifest.desk import Credentials, Desk, ToolReply, open_desk

KEY = "key-of-the-service"
# A step of an answer: bytes to send, an event to wait for, or something to do.
Step = bytes | trio.Event | Callable[[], Any]


@dataclass
class Asked:
    """One request as the service got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) <= 1, values
        return values[0] if values else None


@dataclass
class Service:
    """A model service: every connection gets the next answer, or the last one again, and is then closed."""

    port: int
    answers: list[Sequence[Step]] = field(default_factory=list[Sequence[Step]])
    asked: list[Asked] = field(default_factory=list[Asked])
    left: int = 0

    def endpoint(self, dialect: Dialect = "openai") -> Endpoint:
        return Endpoint(dialect=dialect, url=f"http://127.0.0.1:{self.port}/base", key_env="MODEL_KEY")

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            request = await _read_request(stream)
            self.asked.append(request)
            steps = self.answers[min(len(self.asked), len(self.answers)) - 1]
            try:
                await self._play(stream, steps)
            except trio.BrokenResourceError:
                self.left += 1

    async def _play(self, stream: trio.SocketStream, steps: Sequence[Step]) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                if await stream.receive_some() == b"":
                    raise trio.BrokenResourceError

            nursery.start_soon(watch)
            for step in steps:
                if isinstance(step, bytes):
                    await stream.send_all(step)
                elif isinstance(step, trio.Event):
                    await step.wait()
                else:
                    step()
            nursery.cancel_scope.cancel()


async def _read_request(stream: trio.SocketStream) -> Asked:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive_some()
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = [(line.partition(": ")[0], line.partition(": ")[2]) for line in lines]
    size = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
    while len(body) < size:
        body += await stream.receive_some()
    method, target, _ = first.split(" ")
    return Asked(method, target, headers, body)


@asynccontextmanager
async def open_service() -> AsyncGenerator[Service, None]:
    """A service on loopback that answers with an empty object."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    service = Service(listeners[0].socket.getsockname()[1], [[answer(b"{}")]])

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await service.serve(stream)
        except* trio.BrokenResourceError:
            service.left += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield service
        nursery.cancel_scope.cancel()


def answer(body: bytes, *, status: str = "200 OK", kind: str = "application/json", headers: str = "") -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """One chunk of an answer that is sent in chunks."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def event(value: object, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


@dataclass
class CountingMeter:
    """Lets so many calls pass, and notes what is charged."""

    limit: int = 1000
    passed: list[str] = field(default_factory=list[str])
    charged: list[tuple[str, int, int, int]] = field(default_factory=list[tuple[str, int, int, int]])

    async def may_call(self, attempt_id: str) -> str | None:
        if len(self.passed) >= self.limit:
            return f"the budget of {attempt_id} is spent: {self.limit} model calls"
        self.passed.append(attempt_id)
        return None

    def called(self, attempt_id: str, *, input_tokens: int, output_tokens: int, cached_read_tokens: int) -> None:
        self.charged.append((attempt_id, input_tokens, output_tokens, cached_read_tokens))


Tool = Callable[[bytes], Awaitable[ToolReply]]


@dataclass
class Tools:
    """Tools that do what a test says; by default they repeat their arguments."""

    granted: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    called: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])
    does: dict[str, Tool] = field(default_factory=dict[str, Tool])

    def tools(self, attempt_id: str) -> Sequence[str]:
        return self.granted.get(attempt_id, ("create_task", "start_worker", "submit_result"))

    async def call(self, attempt_id: str, name: str, arguments: bytes) -> ToolReply:
        self.called.append((attempt_id, name, arguments))
        return await self.does[name](arguments) if name in self.does else ToolReply(f"{name} {arguments.decode()}")


@dataclass
class Scene:
    """A desk with everything around it."""

    desk: Desk
    service: Service
    meter: CountingMeter
    tools: Tools
    environ: dict[str, str]
    pool: httpcore.AsyncConnectionPool

    def admit(self, attempt_id: str = "reader.1", dialect: Dialect = "openai") -> Credentials:
        return self.desk.admit(attempt_id, self.service.endpoint(dialect))

    async def ask(
        self,
        url: str,
        *,
        token: str = "",
        method: str = "POST",
        body: bytes = b"{}",
        headers: Sequence[tuple[str, str]] = (),
    ) -> "Answered":
        """One request, whole."""
        async with self.open(url, token=token, method=method, body=body, headers=headers) as answered:
            pieces = [piece async for piece in answered.aiter_stream()]
        return Answered(
            answered.status, {k.decode().lower(): v.decode() for k, v in answered.headers}, b"".join(pieces)
        )

    @asynccontextmanager
    async def open(
        self,
        url: str,
        *,
        token: str = "",
        method: str = "POST",
        body: bytes = b"{}",
        headers: Sequence[tuple[str, str]] = (),
    ) -> AsyncGenerator[httpcore.Response, None]:
        """One request, whose answer is read as it comes."""
        given = [*headers, *([("authorization", f"Bearer {token}")] if token else [])]
        async with self.pool.stream(method, url, headers=given, content=body if method == "POST" else None) as answered:
            yield answered


@dataclass
class Answered:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@asynccontextmanager
async def open_scene(
    *, limit: int = 1000, log: str | None = None, stall_seconds: float = 30.0
) -> AsyncGenerator[Scene, None]:
    """A desk that knows the service's key, and all that it needs."""
    meter, tools, environ = CountingMeter(limit), Tools(), {"MODEL_KEY": KEY}
    async with (
        open_service() as service,
        open_desk(meter, tools, log=log, environ=environ, stall_seconds=stall_seconds) as desk,
        httpcore.AsyncConnectionPool() as pool,
    ):
        yield Scene(desk, service, meter, tools, environ, pool)
