"""A control server with a hub of its own, and a client that sees every byte, for the tests of this folder."""

import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio

from avenor.control.hub import EventHub, HubSource, SingleHub
from avenor.control.reading import add_reading, add_snapshots
from avenor.control.rpc import MethodTable, add_ping
from avenor.control.server import ControlServer
from avenor.control.subscriptions import add_subscriptions
from avenor.host.unixsock import bind_listener
from avenor.protocol.errors import NoSuchRuntime
from avenor.protocol.events import Event, EventHead, MessageChunk, RunStart, encode_event, event_name
from avenor.protocol.methods import Pong, wrap_event
from avenor.protocol.snapshot import Fold, Snapshot


class FakeHubs:
    """Several runtimes, as a supervisor has them."""

    def __init__(self, *hubs: EventHub) -> None:
        self._hubs = list(hubs)
        self._actions: list[Callable[[EventHub], None]] = []

    def find(self, runtime_id: str | None) -> EventHub:
        """By id; with none, the only one."""
        found = [hub for hub in self._hubs if runtime_id is None or hub.runtime_id == runtime_id]
        if len(found) != 1:
            candidates = [hub.runtime_id for hub in found]
            raise NoSuchRuntime(f"{len(found)} runtimes could be meant", data={"candidates": candidates})
        return found[0]

    def all_hubs(self) -> list[EventHub]:
        """All of them."""
        return self._hubs

    def on_hub_added(self, action: Callable[[EventHub], None]) -> None:
        """Keeps the action."""
        self._actions.append(action)

    def add(self, hub: EventHub) -> None:
        """One more runtime begins."""
        self._hubs.append(hub)
        for action in self._actions:
            action(hub)


class Writer:
    """The one who writes a runtime's log and publishes; `hub` is where."""

    def __init__(self, folder: Path, runtime_id: str | None = None) -> None:
        self.path = folder / f"{runtime_id or 'run'}.ndjson"
        fold = Fold(Snapshot(runtime_id=runtime_id))
        fold.apply(RunStart(kind="single", backend="scripted", dir="/d", version="0", parks=True))
        fold.state.status = "running"
        self.hub = EventHub(runtime_id, self.path, fold)
        self.seq = 0
        self._runtime_id = runtime_id

    def emit(self, *events: Event) -> None:
        """Stamps, writes and publishes events as one batch."""
        lines: list[bytes] = []
        heads: list[EventHead] = []
        for event in events:
            self.seq += 1
            event.seq, event.ts, event.run_id = self.seq, 1_700_000_000_000 + self.seq, "run"
            event.runtime_id = self._runtime_id or msgspec.UNSET
            lines.append(encode_event(event))
            heads.append(EventHead(event_name(event), event.seq, event.ts))
        with self.path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        self.hub.publish([wrap_event(line) for line in lines], heads)

    def say(self, count: int = 1, size: int = 10) -> None:
        """Emits so many message chunks of about this size, as one batch."""
        self.emit(*(chunk(size) for _ in range(count)))


def chunk(size: int = 10) -> MessageChunk:
    """A message chunk with about so many bytes."""
    return MessageChunk(content=msgspec.Raw(b'{"type":"text","text":"%s"}' % (b"x" * size)))


class RawClient:
    """Sends what it is told and reads lines, in order, dropping nothing."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(path))
        self.sock.setblocking(False)
        self._buffer = b""
        self._last_id = 0

    async def send(self, data: bytes) -> None:
        """Sends all of it."""
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)

    async def line(self) -> Any:
        """The next line, decoded."""
        while b"\n" not in self._buffer:
            data = await self._receive()
            assert data, "the server closed the connection"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def lines(self, count: int) -> list[Any]:
        """The next lines, decoded."""
        return [await self.line() for _ in range(count)]

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        while data := await self._receive():
            self._buffer += data
        return self._buffer

    async def ask(self, method: str, params: object = None) -> Any:
        """Sends a request and gives the next line."""
        self._last_id += 1
        await self.send(request(self._last_id, method, params))
        return await self.line()

    async def call(self, method: str, params: object = None) -> Any:
        """The result of a request, whose answer is the next line."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def seqs(self, last: int) -> list[int]:
        """The seqs of the events that come, up to this one; other lines must not come."""
        found: list[int] = []
        while not found or found[-1] != last:
            line = await self.line()
            assert line["method"] == "event", line
            found.append(line["params"]["seq"])
        return found

    def close(self) -> None:
        """Disconnects."""
        self.sock.close()

    async def _receive(self) -> bytes:
        await trio.lowlevel.wait_readable(self.sock)
        return self.sock.recv(1 << 16)


def request(request_id: object, method: str, params: object = None) -> bytes:
    """The line of a request."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return json.dumps(message if params is None else {**message, "params": params}).encode() + b"\n"


class Served:
    """A server that runs."""

    def __init__(self, path: Path, server: ControlServer, table: MethodTable, listener: socket.socket) -> None:
        self.path = path
        self.server = server
        self.table = table
        self.listener = listener
        self.left: list[str] = []
        self._clients: list[RawClient] = []

    def client(self) -> RawClient:
        """One more client."""
        client = RawClient(self.path)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Disconnects all of them."""
        for client in self._clients:
            client.close()


@asynccontextmanager
async def serving(folder: Path, hubs: HubSource, name: str = "control.sock") -> AsyncGenerator[Served]:
    """A server with all the shared methods, for the hubs of this source: a run's own if it is a `SingleHub`."""
    table = MethodTable()
    mode: Literal["run", "stable"] = "run" if isinstance(hubs, SingleHub) else "stable"
    add_ping(table, lambda: Pong(version="1", pid=1, mode=mode, uptime_ms=0, start_time=0, boot_id="b"))
    add_snapshots(table, hubs)
    add_reading(table, hubs)
    add_subscriptions(table, hubs)
    path = folder / name
    listener = bind_listener(path)
    left: list[str] = []
    served = Served(path, ControlServer(table, left.append), table, listener)
    served.left = left
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(served.server.serve, listener)
            yield served
            nursery.cancel_scope.cancel()
    finally:
        served.close_clients()
        listener.close()


async def read_rest(stream: trio.SocketStream) -> bytes:
    """All that comes until the server closes; a reset is an end, too."""
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        pass
    return data
