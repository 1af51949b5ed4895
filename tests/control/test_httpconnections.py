"""HTTP connections on a real port: one request's fault, one connection's fault, and their end, whatever clients do."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from avenor.control import httpconnections
from avenor.control.address import listen, parse_address
from avenor.control.httpconnections import HttpConnections
from tests.control.served import read_rest
from tests.helpers import eventually

# Far above what anything here takes.
WAIT_SECONDS = 60.0
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Serving:
    """Connections that are served."""

    def __init__(self, connections: HttpConnections, port: int) -> None:
        self.connections = connections
        self.scope = trio.CancelScope()
        self._port = port
        self._clients: list[trio.SocketStream] = []

    async def connect(self) -> trio.SocketStream:
        """A client that has little room for what it does not read."""
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.connect(("127.0.0.1", self._port))
        stream = trio.SocketStream(sock)
        self._clients.append(stream)
        return stream

    def drop_clients(self) -> None:
        """Closes what the test has connected."""
        for stream in self._clients:
            stream.socket.close()


@asynccontextmanager
async def serving(
    app: Callable[[Any, Receive, Send], Awaitable[None]], *, limit: int = 8, idle_seconds: float = WAIT_SECONDS * 60
) -> AsyncGenerator[Serving]:
    """An application at a port; its end is that of `close`, within bounds of real time."""
    with trio.fail_after(WAIT_SECONDS), listen(parse_address("127.0.0.1:0")) as listener:
        connections = HttpConnections(listener, name="test", limit=limit, idle_seconds=idle_seconds)
        up = Serving(connections, listener.getsockname()[1])
        try:
            async with trio.open_nursery() as nursery:
                up.scope = nursery.cancel_scope
                nursery.start_soon(connections.serve, app)
                yield up
                connections.close()
        finally:
            up.drop_clients()


async def ok(_scope: Any, _receive: Receive, send: Send) -> None:
    """Answers."""
    await send(START)
    await send({"type": "http.response.body", "body": b"ok"})


async def pour(_scope: Any, _receive: Receive, send: Send) -> None:
    """Answers without an end, whatever becomes of the client."""
    await send({**START, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def stall(stream: trio.SocketStream) -> None:
    """Has the beginning of an answer of `pour`, and leaves the rest, until all buffers on the way are full."""
    await stream.send_all(REQUEST)
    assert await stream.receive_some(1) == b"H"
    await wait_all_tasks_blocked(0.1)


async def ask(up: Serving) -> trio.SocketStream:
    """A client that has got the answer of `ok`."""
    stream = await up.connect()
    await stream.send_all(REQUEST)
    data = b""
    while not data.endswith(b"\r\n\r\nok"):
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    return stream


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    """What is being sent to it is cut."""
    async with serving(pour) as up:
        await stall(await up.connect())


async def test_a_client_that_does_not_read_does_not_hold_up_a_cancellation() -> None:
    """It is cut at once."""
    async with serving(pour) as up:
        await stall(await up.connect())
        up.scope.cancel()


async def test_what_is_being_answered_at_the_end_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the connection is closed, as those are on which nothing is asked."""
    monkeypatch.setattr(httpconnections, "FLUSH_SECONDS", 60.0)  # a busy machine may take longer than that second
    is_asked, may_answer = trio.Event(), trio.Event()

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        is_asked.set()
        await may_answer.wait()
        await ok(scope, receive, send)

    async with serving(app) as up:
        asking, idle = await up.connect(), await up.connect()
        await asking.send_all(REQUEST)
        await is_asked.wait()
        up.connections.close()
        assert await read_rest(idle) == b""
        may_answer.set()
        assert (await read_rest(asking)).endswith(b"\r\n\r\nok")


async def test_a_connection_that_its_client_has_closed_is_closed_at_once() -> None:
    """However long one may be idle: its descriptor and its tasks are not kept."""
    async with serving(ok) as up:
        stream = await ask(up)
        await wait_all_tasks_blocked()  # it is idle
        await stream.send_eof()
        assert await stream.receive_some() == b""


async def test_a_client_that_has_closed_its_half_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends no more, and reads; then the connection is closed."""
    monkeypatch.setattr(httpconnections, "HALF_CLOSED_SECONDS", 60.0)  # a busy machine may take longer than that second

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1  # nobody is told to have left
            await ok(scope, receive, send)

    async with serving(app) as up:
        stream = await up.connect()
        await stream.send_all(REQUEST)
        await stream.send_eof()
        assert (await read_rest(stream)).endswith(b"\r\n\r\nok")


async def test_so_many_connections_and_no_more() -> None:
    """The next is told to come later, and does when one has gone."""
    async with serving(ok, limit=1) as up:
        first = await ask(up)
        assert (await read_rest(await up.connect())).startswith(b"HTTP/1.1 503")
        await first.aclose()

        async def is_let_in() -> bool:
            stream = await up.connect()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(REQUEST)
                return (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            return False

        await eventually(is_let_in)


async def test_a_client_that_leaves_amid_its_request_is_told_of_and_no_more() -> None:
    """Whether that ends the request is for the application to say."""
    is_asked, has_left, may_go_on, is_over = trio.Event(), trio.Event(), trio.Event(), trio.Event()

    async def app(_scope: Any, receive: Receive, send: Send) -> None:
        is_asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left.set()
        await may_go_on.wait()
        await send(START)  # which nobody gets
        is_over.set()

    async with serving(app) as up:
        stream = await up.connect()
        await stream.send_all(REQUEST)
        await is_asked.wait()
        await stream.aclose()
        await has_left.wait()
        may_go_on.set()
        await is_over.wait()


async def test_a_fault_in_one_request_is_logged_and_ends_that_request_alone() -> None:
    """It is answered 500; one amid an answer leaves that unfinished."""
    paths: list[bytes] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        paths.append(scope["raw_path"])
        if len(paths) == 1:
            raise RuntimeError("at once")
        if len(paths) == 2:
            await send({**START, "headers": [(b"content-length", b"1000")]})
            raise ExceptionGroup("amid", [RuntimeError("amid")])
        await ok(scope, receive, send)

    with capture_logs() as logged:
        async with serving(app) as up:
            failing, cut = await up.connect(), await up.connect()
            await failing.send_all(REQUEST)
            assert (await read_rest(failing)).startswith(b"HTTP/1.1 500")
            await cut.send_all(REQUEST)
            assert (await read_rest(cut)).startswith(b"HTTP/1.1 200")
            await ask(up)
    assert [(each["event"], each["log_level"]) for each in logged] == [("test.request_failed", "error")] * 2


async def test_a_fault_in_one_connection_is_logged_and_ends_that_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong in what speaks HTTP."""

    class Broken:
        def __init__(self, *_args: object) -> None:
            raise RuntimeError("broken")

    with capture_logs() as logged:
        async with serving(ok) as up:
            with monkeypatch.context() as patched:
                patched.setattr(httpconnections, "TCPServer", Broken)
                assert await read_rest(await up.connect()) == b""
            await ask(up)
    assert [each["event"] for each in logged] == ["test.connection_failed"]
