"""The HTTP application on a control server of a test's own, asked without a network."""

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from avenor.control.address import parse_address
from avenor.control.debug.app import DebugApp
from avenor.control.debug.asgi import Message, Response
from avenor.control.debug.guard import Guard
from avenor.control.hub import HubSource
from avenor.control.reading import narrowed
from avenor.control.rpc import Call, MethodTable
from avenor.control.server import ControlServer
from avenor.control.subscriptions import add_subscriptions
from avenor.protocol.events import RunEnd
from avenor.protocol.methods import ListParams, Target
from avenor.protocol.snapshot import Snapshot
from tests.control.served import FakeHubs, Writer

TOKEN = "the-token"
HOST = (b"host", b"127.0.0.1:8080")
KEY = (b"x-avenor-token", TOKEN.encode())
PAGE = {"/": Response(200, b"<p>board</p>", "text/html"), "/board.js": Response(200, b"1", "text/javascript")}
_FIELDS = re.compile(rb"(?:id: (?P<id>.*)\n)?(?:event: (?P<kind>.*)\n)?data: (?P<data>.*)")


class Exchange:
    """One request, and what has come of its response. What is sent is taken only when the test takes it."""

    def __init__(self, verb: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, version: str) -> None:
        path, _, query = target.partition("?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "http_version": version,
            "method": verb,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        self.gone = trio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self._requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._sending, self._receiving = trio.open_memory_channel[Message](0)

    async def receive(self) -> Message:
        """As ASGI has it."""
        await trio.lowlevel.checkpoint()
        if self._requests:
            return self._requests.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """As ASGI has it."""
        await self._sending.send(message)

    async def start(self) -> None:
        """Takes status and headers."""
        message = await self._receiving.receive()
        assert message["type"] == "http.response.start"
        self.status = message["status"]
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}

    async def chunk(self) -> bytes | None:
        """The next piece of the body; None after its end."""
        message = await self._receiving.receive()
        if not message.get("more_body", False):
            return None
        body: bytes = message["body"]
        return body

    async def whole(self) -> bytes:
        """The body of a response that comes in one piece."""
        message = await self._receiving.receive()
        assert not message.get("more_body", False)
        body: bytes = message["body"]
        return body


class Answer:
    """A response that has come."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error that it tells of."""
        error: dict[str, Any] = self.json["error"]
        return error


class Event:
    """One event of a stream."""

    def __init__(self, text: bytes) -> None:
        found = _FIELDS.fullmatch(text)
        assert found is not None, text
        self.id = (found["id"] or b"").decode()
        self.kind = (found["kind"] or b"message").decode()
        self.data = found["data"]
        self.json: Any = json.loads(self.data)


class Watcher:
    """A reader of a stream of events."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.hello = b""
        self._events: list[Event] = []
        self.is_over = False

    async def events(self, count: int) -> list[Event]:
        """The next so many events, notices too."""
        while len(self._events) < count:
            await self._take()
        events, self._events = self._events[:count], self._events[count:]
        return events

    async def rest(self) -> list[Event]:
        """All events up to the end of the stream."""
        while not self.is_over:
            await self._take()
        events, self._events = self._events, []
        return events

    async def open(self) -> "Watcher":
        """Waits until it is open."""
        await self.exchange.start()
        assert self.exchange.status == 200, await self.exchange.whole()
        chunk = await self.exchange.chunk()
        assert chunk is not None
        self.hello, _, rest = chunk.partition(b"\n\n")
        self._add(rest)
        return self

    async def _take(self) -> None:
        assert not self.is_over
        chunk = await self.exchange.chunk()
        self.is_over = chunk is None
        self._add(chunk or b"")

    def _add(self, text: bytes) -> None:
        blocks = [block for block in text.split(b"\n\n") if block]
        self._events += [Event(block) for block in blocks if not block.startswith(b":")]


class Site:
    """An application that can be asked."""

    def __init__(self, app: DebugApp, nursery: trio.Nursery, table: MethodTable, server: ControlServer) -> None:
        self.app = app
        self.table = table
        self.server = server
        self.left: list[str] = []
        self._nursery = nursery

    def begin(
        self,
        verb: str,
        target: str,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (HOST, KEY),
        body: bytes = b"",
        version: str = "1.1",
    ) -> Exchange:
        """A request under way."""
        exchange = Exchange(verb, target, list(headers), body, version)
        self._nursery.start_soon(self.app, exchange.scope, exchange.receive, exchange.send)
        return exchange

    async def ask(self, verb: str, target: str, **options: Any) -> Answer:
        """The response to a request."""
        exchange = self.begin(verb, target, **options)
        await exchange.start()
        return Answer(exchange.status, exchange.headers, await exchange.whole())

    async def get(self, target: str, **options: Any) -> Answer:
        """The response to GET."""
        return await self.ask("GET", target, **options)

    async def post(self, target: str, **members: object) -> Answer:
        """The response to POST with a JSON body."""
        return await self.ask("POST", target, body=json.dumps(members).encode() if members else b"")

    async def watch(self, target: str = "/events", *, last_id: str | None = None) -> Watcher:
        """A stream that is open."""
        last = () if last_id is None else ((b"last-event-id", last_id.encode()),)
        return await Watcher(self.begin("GET", target, headers=(HOST, KEY, *last))).open()


@asynccontextmanager
async def site(
    hubs: HubSource, *, follows_one: bool = False, listed: Callable[[], None] | None = None
) -> AsyncGenerator[Site]:
    """An application on a control server that has what all have.

    Args:
        listed: Called each time that the runtimes have been listed.
    """
    table = MethodTable()

    def list_all(call: Call, params: ListParams) -> list[Snapshot] | list[dict[str, Any]]:
        if listed is not None:
            call.after_answer(listed)
        snapshots = [hub.snapshot() for hub in hubs.all_hubs()]
        return snapshots if params.fields is None else narrowed(snapshots, params.fields)

    table.add("status", Target, lambda _call, params: hubs.find(params.runtime_id).snapshot())
    table.add("list", ListParams, list_all)
    add_subscriptions(table, hubs)
    left: list[str] = []
    server = ControlServer(table, left.append)
    guard = Guard(parse_address(":8080"), 8080, TOKEN)
    async with trio.open_nursery() as nursery:
        connect = await nursery.start(server.serve_within)
        opened = Site(DebugApp(connect, guard, dict(PAGE), follows_one=follows_one), nursery, table, server)
        opened.left = left
        yield opened
        nursery.cancel_scope.cancel()


class Fleet:
    """Runtimes `rt_1`, `rt_2` … that come, speak and end."""

    def __init__(self, folder: Path) -> None:
        self.hubs = FakeHubs()
        self.writers: list[Writer] = []
        self._folder = folder

    def add(self) -> Writer:
        """One more runtime."""
        writer = Writer(self._folder, f"rt_{len(self.writers) + 1}")
        self.writers.append(writer)
        self.hubs.add(writer.hub)
        return writer

    def events(self) -> dict[str, list[int]]:
        """The seqs of everything that was ever said."""
        return {f"rt_{number}": list(range(1, each.seq + 1)) for number, each in enumerate(self.writers, 1) if each.seq}


def end_run(writer: Writer) -> None:
    """Ends a runtime's run."""
    writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
