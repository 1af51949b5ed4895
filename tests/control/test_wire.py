"""A client's connection, against a server that misbehaves."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from avenor.control.rpc import Call, MethodTable
from avenor.control.wire import Wire, dial_trio
from avenor.protocol.errors import BrokenError, ClosedError, MethodNotFound, RemoteProtocolError
from avenor.protocol.methods import NoParams


class Pair:
    """A wire, and the server's end of its connection."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, self.server):
            end.setblocking(False)
        self.ours = ours
        self.notifications: list[str] = []
        self.wire = Wire(ours, lambda method, _params: self.notifications.append(method))

    async def request(self) -> Any:
        """The next request that came."""
        await trio.lowlevel.wait_readable(self.server)
        return json.loads(self.server.recv(1 << 16))

    def close(self) -> None:
        """Both ends."""
        self.ours.close()
        self.server.close()


@pytest.fixture
async def pair() -> Any:
    """Two ends."""
    pair = Pair()
    yield pair
    pair.close()


async def call_and(pair: Pair, do: Callable[[Any], object]) -> Any:
    """The result of a call, for which the server does something when it has come."""
    results: list[Any] = []

    async def call() -> None:
        results.append(await pair.wire.call("ping", NoParams()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.wire.run)
        nursery.start_soon(call)
        do(await pair.request())
        while not results:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return results[0]


async def test_what_is_not_for_us_is_left_out(pair: Pair) -> None:
    """Requests, answers to nothing, endless lines, blank ones; notifications are handed on."""

    def answer(request: Any) -> None:
        lines = [
            b'{"jsonrpc":"2.0","id":5,"method":"who_are_you"}',
            b'{"jsonrpc":"2.0","id":77,"result":1}',
            b'{"jsonrpc":"2.0","method":"notice","params":{}}',
            json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": 5}).encode(),
        ]
        pair.server.send(b"\n".join(lines) + b"\n")

    assert bytes(await call_and(pair, answer)) == b"5"
    assert pair.notifications == ["notice"]


@pytest.mark.parametrize(
    ("line", "error"),
    [(b"HTTP/1.1 400 Bad Request\n", RemoteProtocolError), (None, BrokenError)],
)
async def test_a_call_fails_when_the_other_side_is_no_server_or_closes(
    line: bytes | None, error: type[Exception], pair: Pair
) -> None:
    """With the error that says which."""

    def answer(_request: Any) -> None:
        if line is None:
            pair.server.close()
        else:
            pair.server.send(line)

    with pytest.RaisesGroup(error):
        await call_and(pair, answer)


async def test_a_reset_connection_is_a_broken_one(pair: Pair) -> None:
    """The server ended with requests unread."""
    failures: list[BrokenError] = []

    async def call() -> None:
        with pytest.raises(BrokenError) as caught:
            await pair.wire.call("ping", NoParams())
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.lowlevel.wait_readable(pair.server)
        pair.server.close()
        await pair.wire.run()
    assert "broke" in failures[0].message
    assert pair.wire.is_broken


async def test_sending_into_a_broken_connection_says_so(pair: Pair) -> None:
    """The first call finds out, the next one knows."""
    pair.server.close()
    for _ in range(2):
        with pytest.raises(BrokenError):
            await pair.wire.call("ping", NoParams())


async def test_a_call_that_is_cancelled_before_any_of_it_was_sent_harms_nothing(pair: Pair) -> None:
    """The connection can be used on."""
    sent = 0
    while True:
        try:
            sent += pair.ours.send(b" " * 4096)
        except BlockingIOError:
            break
    with trio.move_on_after(0):
        await pair.wire.call("ping", NoParams())
    assert not pair.wire.is_broken


async def test_a_wire_that_runs_no_more_takes_no_calls(pair: Pair) -> None:
    """Instead of waiting for ever."""
    with trio.move_on_after(0):
        await pair.wire.run()
    with pytest.raises(ClosedError):
        await pair.wire.call("ping", NoParams())


async def test_dialling_waits_for_a_server_whose_queue_is_full(tmp_path: Path) -> None:
    """Instead of failing, or taking half a connection for one."""
    path = str(tmp_path / "full.sock")
    others: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(0)
        while True:
            other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            others.append(other)
            other.setblocking(False)
            try:
                other.connect(path)
            except BlockingIOError:
                break
        dialled: list[socket.socket] = []

        async def dial() -> None:
            dialled.append(await dial_trio(path))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            for _ in others:
                await trio.lowlevel.wait_readable(listener)
                others.append(listener.accept()[0])
                if dialled:
                    break
    for sock in [*others, *dialled]:
        sock.close()
    assert len(dialled) == 1


async def test_dialling_that_is_cancelled_leaves_no_socket(tmp_path: Path) -> None:
    """Nor is anything connected."""
    with trio.move_on_after(0) as scope:
        await dial_trio(str(tmp_path / "nobody"))
    assert scope.cancelled_caught


def test_a_method_may_be_called_in_anothers_name() -> None:
    """What a router asks for runs as if the client had asked here."""
    table = MethodTable()
    seen: list[str] = []

    @table.method("who", NoParams)
    def who(call: Call, _params: NoParams) -> str:  # pyright: ignore[reportUnusedFunction]
        seen.append(call.client_id)
        return "done"

    connection: Any = None
    assert table.invoke(Call(connection, "c7"), "who") == "done"
    assert seen == ["c7"]
    with pytest.raises(MethodNotFound, match="'nope'"):
        table.invoke(Call(connection, "c7"), "nope")


async def test_calls_that_are_being_sent_fail_as_closed_when_the_connection_is_closed(pair: Pair) -> None:
    """The one whose line is half out, and the one that waits for its turn."""
    failed: list[type[Exception]] = []

    async def call() -> None:
        with pytest.raises(ClosedError) as caught:
            await pair.wire.call("say", {"text": "x" * (4 << 20)})
        failed.append(caught.type)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.notify_closing(pair.ours)
        pair.ours.close()
    assert failed == [ClosedError, ClosedError]
