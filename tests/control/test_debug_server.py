"""The HTTP server on a real port: its connections, and its end, whatever its clients do."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from avenor.control.debug import requests as requests_module
from avenor.control.debug import server as server_module
from avenor.control.debug.server import DebugServer, open_debug
from avenor.control.httpconnections import HEAD_LIMIT_BYTES
from avenor.control.reading import add_snapshots
from avenor.control.rpc import Call, MethodTable
from avenor.control.server import ControlServer
from avenor.control.subscriptions import add_subscriptions
from avenor.protocol.errors import SpawnError
from avenor.protocol.methods import Accepted, OwnerTarget
from tests.control.debug_kit import Fleet
from tests.control.served import read_rest
from tests.helpers import eventually

# Far above what anything here takes.
WAIT_SECONDS = 60.0


class Serving:
    """A server that runs, and what its clients need."""

    def __init__(
        self,
        http: DebugServer,
        control: ControlServer,
        table: MethodTable,
        token: str,
        clients: list[trio.SocketStream],
    ) -> None:
        self.http = http
        self.control = control
        self.table = table
        self.token = token
        self.port = int(http.url.rsplit(":", 1)[1].strip("/"))
        self._clients = clients

    async def connect(self) -> trio.SocketStream:
        """A new connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self._clients.append(stream)
        return stream

    def request(self, target: str, *more: str, verb: str = "GET") -> bytes:
        """The head of a request that is let in."""
        lines = [f"{verb} {target} HTTP/1.1", f"host: 127.0.0.1:{self.port}", f"x-avenor-token: {self.token}", *more]
        return "\r\n".join([*lines, "", ""]).encode()

    async def close(self) -> None:
        """The end, in the order in which processes end."""
        await self.control.close()
        await self.http.close()


@asynccontextmanager
async def serving(folder: Path, fleet: Fleet) -> AsyncGenerator[Serving]:
    """A server of these runtimes; within bounds of real time."""
    table = MethodTable()
    add_snapshots(table, fleet.hubs)
    add_subscriptions(table, fleet.hubs)
    control = ControlServer(table)
    path = folder / "token"
    clients: list[trio.SocketStream] = []
    try:
        with trio.fail_after(WAIT_SECONDS), open_debug("127.0.0.1:0", str(path)) as http:
            async with trio.open_nursery() as nursery:
                await nursery.start(http.serve, control)
                yield Serving(http, control, table, path.read_text().strip(), clients)
                nursery.cancel_scope.cancel()
    finally:
        for stream in clients:
            stream.socket.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One runtime."""
    fleet = Fleet(tmp_path)
    fleet.add()
    return fleet


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    """What comes up to a mark, and a little more perhaps."""
    data = b""
    while mark not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    return data


async def test_requests_on_one_connection_are_answered_in_turn(tmp_path: Path, fleet: Fleet) -> None:
    """Also when they come at once."""
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(
            up.request("/status") + up.request("/nope") + up.request("/runtimes", "connection: close")
        )
        answers = (await read_rest(stream)).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"404", b"200"]
    assert not any(b"\r\nserver:" in answer.lower() for answer in answers)


async def test_a_reader_that_stalls_does_not_hold_up_the_end(tmp_path: Path, fleet: Fleet) -> None:
    """It has asked for more than the kernel takes, and reads nothing."""
    writer = fleet.writers[0]
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(up.request("/events"))
        await read_until(stream, b"retry: 1000")
        for _ in range(200):
            writer.say(100, size=1000)
            await trio.lowlevel.checkpoint()
        other = await up.connect()
        await other.send_all(up.request("/status", "connection: close"))
        assert b"200" in await read_rest(other)
        await up.close()


async def test_cancelling_ends_it_too(tmp_path: Path, fleet: Fleet) -> None:
    """As where the process breaks: nothing waits for a reader that stalls."""
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(up.request("/events"))
        await read_until(stream, b"retry: 1000")
        for _ in range(200):
            fleet.writers[0].say(100, size=1000)
            await trio.lowlevel.checkpoint()


async def test_what_is_due_is_sent_at_the_end(tmp_path: Path, fleet: Fleet) -> None:
    """Events, the end of the stream, and the answer to a call that the end of the process has answered."""
    answered = trio.Event()

    async def until_the_end() -> Accepted:
        await answered.wait()
        return Accepted()

    def cancel(_call: Call, _params: OwnerTarget) -> object:
        answered.set()
        return until_the_end()

    async with serving(tmp_path, fleet) as up:
        up.table.add("cancel", OwnerTarget, cancel)
        following, asking = await up.connect(), await up.connect()
        await following.send_all(up.request("/events"))
        await read_until(following, b"retry: 1000")
        await asking.send_all(up.request("/cancel", "content-length: 0", verb="POST"))
        await answered.wait()
        fleet.writers[0].say(3)
        await up.close()
        assert b'{"accepted":true}' in await read_rest(asking)
        events = await read_rest(following)
    assert events.count(b"\ndata: ") == 3
    assert events.endswith(b"0\r\n\r\n")


async def test_connections_on_which_nothing_is_asked_are_closed_at_the_end(tmp_path: Path, fleet: Fleet) -> None:
    """They do not hold it up; nobody is let in afterwards."""
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(up.request("/status"))
        await read_until(stream, b"left_processes")
        await up.close()
        assert await read_rest(stream) == b""


async def test_a_head_that_does_not_come_is_not_waited_for(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly it trickles."""
    monkeypatch.setattr(server_module, "_HEAD_SECONDS", 0.05)
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(up.request("/status")[:-2])
        assert await read_rest(stream) == b""


async def test_a_head_that_is_too_large_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    """Before it is complete."""
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        await stream.send_all(up.request("/status", "x-long: " + "x" * 2 * HEAD_LIMIT_BYTES))
        assert (await read_rest(stream)).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("target", ["/nope", "/prompt"])
async def test_a_huge_body_is_refused_without_being_read(
    tmp_path: Path, fleet: Fleet, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends it still sees the answer, if they send no more than one looks for."""
    monkeypatch.setattr(requests_module, "_DISCARD_SECONDS", 60.0)
    async with serving(tmp_path, fleet) as up:
        stream = await up.connect()
        size = 4 * 1024 * 1024
        await stream.send_all(up.request(target, f"content-length: {size}", verb="POST"))
        await stream.send_all(b"x" * size)
        assert (await read_until(stream, b"body_too_large")).startswith(b"HTTP/1.1 413")


async def test_so_many_connections_and_no_more(tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is told so, and one that goes makes room."""
    monkeypatch.setattr(server_module, "CONNECTION_LIMIT", 2)
    async with serving(tmp_path, fleet) as up:
        held = [await up.connect() for _ in range(2)]
        for stream in held:
            await stream.send_all(up.request("/status"))
            await read_until(stream, b"left_processes")
        turned_away = await up.connect()
        assert (await read_rest(turned_away)).startswith(b"HTTP/1.1 503")
        await held[0].aclose()

        async def is_let_in() -> bool:
            stream = await up.connect()
            await stream.send_all(up.request("/status", "connection: close"))
            return b"200" in (await read_rest(stream))[:15]

        await eventually(is_let_in)


@pytest.mark.parametrize(
    "preface",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /events HTTP/1.1\r\nhost: %b\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"GET /status HTTP/1.1\r\nhost: %b\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
        b"GET http://evil.example/status HTTP/1.1\r\nhost: %b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: %b\r\n\r\n",
        b"GET /%%2e%%2e/address.py HTTP/1.1\r\nhost: %b\r\n\r\n",
    ],
)
async def test_strange_clients_get_no_data_and_harm_nobody(tmp_path: Path, fleet: Fleet, preface: bytes) -> None:
    """Other protocols, foreign targets, ways out of the folder."""
    async with serving(tmp_path, fleet) as up:
        strange = await up.connect()
        host = f"127.0.0.1:{up.port}".encode()
        await strange.send_all(preface.replace(b"%b", host).replace(b"%%", b"%"))
        with trio.move_on_after(0.3):
            assert b"rt_1" not in await read_rest(strange)
        stream = await up.connect()
        await stream.send_all(up.request("/status", "connection: close"))
        assert b"rt_1" in await read_rest(stream)


def test_an_address_that_is_taken_is_refused(tmp_path: Path) -> None:
    """With the flag, and what to do; no token is written."""
    path = str(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem = r"--http-debug: cannot listen on .*in use; choose another port"
        with pytest.raises(SpawnError, match=problem), open_debug(f":{port}", path):
            pass
    with pytest.raises(SpawnError, match=r"--http-debug: .* is no loopback address"), open_debug("192.0.2.1:0", path):
        pass
    assert not (tmp_path / "token").exists()


def test_only_a_terminal_is_told_the_token(tmp_path: Path) -> None:
    """Others are told where it is."""
    path = tmp_path / "token"
    with open_debug("localhost:0", str(path)) as http:
        token = path.read_text().strip()
        assert http.told(is_terminal=True) == f"the board is at {http.url}#token={token}"
        assert http.told(is_terminal=False) == f"HTTP is at {http.url}, its token in {path}"
