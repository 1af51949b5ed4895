"""The client of a control server that HTTP asks through: what a server of ours never does, and its end."""

import socket
from collections.abc import AsyncGenerator

import pytest
import trio

from avenor.control.debug import inner as inner_module
from avenor.control.debug.inner import Inner, Item
from avenor.protocol.errors import ClosedError, RemoteProtocolError
from avenor.protocol.methods import NoParams, wrap_event

Pair = tuple[Inner, socket.socket]


@pytest.fixture
async def pair() -> AsyncGenerator[Pair]:
    """A client, and the socket that is its server."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, Inner(lambda _letter: ours) as inner:
        yield inner, theirs


async def test_events_and_notices_come_in_their_order(pair: Pair) -> None:
    """As they are, each with what it is."""
    inner, server = pair
    notice = b'{"jsonrpc":"2.0","method":"notice","params":{"kind":"x"}}\n'
    server.sendall(wrap_event(b'{"seq":1}') + b"\n" + notice + wrap_event(b'{"seq":2}') + b"\n")
    assert await inner.items() == [Item(False, b'{"seq":1}'), Item(True, b'{"kind":"x"}'), Item(False, b'{"seq":2}')]


async def test_calls_that_are_refused_together_are_refused(pair: Pair) -> None:
    """A batch that is no batch has one answer, without an id."""
    inner, server = pair
    server.sendall(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}\n')
    with pytest.raises(RemoteProtocolError, match="no"):
        await inner.call("list", NoParams())


async def test_a_server_that_has_gone_refuses(pair: Pair) -> None:
    """Whether that is noticed while it is asked or while it is waited for."""
    inner, server = pair
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(ClosedError):
        await inner.call("list", NoParams())
    server.close()
    with pytest.raises(ClosedError):
        await inner.call("list", NoParams())
    assert await inner.items() == []


async def test_a_line_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by any client: its seq is missing, and what follows comes."""
    monkeypatch.setattr(inner_module, "LINE_LIMIT_BYTES", 100)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, Inner(lambda _letter: ours) as inner, trio.fail_after(60):
        theirs.sendall(wrap_event(b'{"seq":1,"text":"%s"}' % (b"x" * 200)) + b"\n")
        theirs.sendall(wrap_event(b'{"seq":2}') + b"\n")
        assert await inner.items() == [Item(False, b'{"seq":2}')]
