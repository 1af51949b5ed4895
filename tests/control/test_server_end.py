"""How a control server accepts, tells and ends."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from avenor.control import server as server_module
from avenor.control.rpc import Call
from avenor.host.unixsock import bind_listener
from avenor.protocol.methods import NoParams
from tests.control.served import FakeHubs, Writer, request, serving
from tests.helpers import eventually


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cuts nobody off: on a busy machine, what it gives its clients may be over before they are slow."""
    monkeypatch.setattr(server_module, "FLUSH_SECONDS", 60.0)
    monkeypatch.setattr(server_module, "_PATIENCE_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
async def test_what_is_due_is_sent_before_the_socket_closes(tmp_path: Path) -> None:
    """Answers, events and megabytes that the client has yet to read."""
    writer = Writer(tmp_path)

    def stop(call: Call, _params: NoParams) -> str:
        call.after_answer(lambda: nursery.start_soon(served.server.close))
        return "x" * (4 << 20)

    async with trio.open_nursery() as nursery, serving(tmp_path, FakeHubs(writer.hub)) as served:
        served.table.add("stop", NoParams, stop)
        client = served.client()
        await client.call("subscribe", {"replay": True, "on_lag": "disk"})
        writer.say(9000)
        await client.send(request(2, "stop"))
        lines = (await client.rest()).splitlines()
        answers = [line for line in lines if b'"id":2' in line[-20:]]
        assert len(answers) == 1
        assert len(answers[0]) > 4 << 20
        assert [line for line in lines if b'"event"' in line[:40]][-1].startswith(
            b'{"jsonrpc":"2.0","method":"event","params":{"event":"agent.message_chunk","seq":9000,'
        )


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """It is cut off when its second is over."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"on_lag": "disk"})
        writer.say(5000, size=1000)
        with trio.fail_after(60):
            await served.server.close()
        assert served.server.clients == []


async def test_calls_that_wait_are_told_that_the_server_closes(tmp_path: Path) -> None:
    """Retryable, and not as if they had failed."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        client = served.client()
        await client.send(request(1, "wait", {"until": "done"}) + request(2, "ping"))
        await client.line()
        await served.server.close()
        error = (await client.line())["error"]
        assert (error["data"]["reason"], error["data"]["retryable"]) == ("closed", True)
        assert await client.rest() == b""


@pytest.mark.usefixtures("patient")
async def test_a_detached_call_that_is_about_to_end_is_answered(tmp_path: Path) -> None:
    """The end waits for it, within its bounds."""
    gate = trio.Event()

    async def wait_gate() -> str:
        await gate.wait()
        return "done"

    def detached(call: Call, _params: NoParams) -> Any:
        call.detach()
        return wait_gate()

    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served, trio.open_nursery() as nursery:
        served.table.add("detached", NoParams, detached)
        client = served.client()
        await client.send(request(1, "detached") + request(2, "ping"))
        await client.line()
        nursery.start_soon(served.server.close)
        await trio.lowlevel.checkpoint()
        gate.set()
        assert (await client.line())["result"] == "done"


async def test_a_notice_reaches_one_client(tmp_path: Path) -> None:
    """In order with what else it is sent, and nobody else."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        one, two = served.client(), served.client()
        for client in (one, two):
            assert "result" in await client.ask("ping")
        assert served.server.notify("c2", {"kind": "owner.changed"})
        assert not served.server.notify("c9", {})
        assert await two.line() == {"jsonrpc": "2.0", "method": "notice", "params": {"kind": "owner.changed"}}
        assert "result" in await one.ask("ping")


async def test_a_crowd_that_connects_at_once_is_all_served(tmp_path: Path) -> None:
    """Two hundred clients that were there before the server looked, on two sockets."""
    hubs = FakeHubs(Writer(tmp_path).hub)
    async with serving(tmp_path, hubs) as served, trio.open_nursery() as nursery:
        other = bind_listener(tmp_path / "other.sock")
        await nursery.start(served.server.serve, other)
        clients = [served.client() for _ in range(200)]
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(str(tmp_path / "other.sock"))
            second.setblocking(False)
            second.send(request(1, "ping"))
            await trio.lowlevel.wait_readable(second)
            assert b"version" in second.recv(1000)
        for client in clients:
            await client.send(request(1, "ping"))
        for client in clients:
            assert (await client.line())["result"]
        assert len(served.server.clients) >= 200
        await served.server.close()
        other.close()


async def test_clients_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the uid that the kernel noted."""

    def stranger(_sock: object) -> int:
        return os.geteuid() + 1

    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        monkeypatch.setattr(server_module, "peer_uid", stranger)
        assert await served.client().rest() == b""
        assert served.left == []


async def test_a_client_that_is_gone_before_it_is_accepted_is_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel can say nothing of it."""

    def gone(_sock: object) -> int:
        raise OSError(errno.ENOTCONN, "gone")

    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        monkeypatch.setattr(server_module, "peer_uid", gone)
        assert await served.client().rest() == b""


class FullListener:
    """A listener whose process has no descriptors left, once."""

    def __init__(self, listener: socket.socket) -> None:
        self.refusals = 0
        self._listener = listener

    def fileno(self) -> int:
        """That of the real one."""
        return self._listener.fileno()

    def accept(self) -> Any:
        """Fails the first time."""
        if not self.refusals:
            self.refusals = 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._listener.accept()


async def test_the_server_recovers_when_it_had_no_descriptors(tmp_path: Path) -> None:
    """Who waits in the socket meanwhile is served then."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served, trio.open_nursery() as nursery:
        listener = bind_listener(tmp_path / "full.sock")
        full: Any = FullListener(listener)
        nursery.start_soon(served.server.serve, full)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "full.sock"))
            client.setblocking(False)
            client.send(request(1, "ping"))
            await trio.lowlevel.wait_readable(client)
            assert b"version" in client.recv(1000)
        assert full.refusals == 1
        await served.server.close()
        listener.close()


async def test_a_fault_in_one_connection_ends_only_that(tmp_path: Path) -> None:
    """A hook that raises, for example."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:

        def fail() -> None:
            raise RuntimeError("a hook's fault")

        def spoil(call: Call, _params: NoParams) -> None:
            call.after_answer(fail)

        served.table.add("spoil", NoParams, spoil)
        bad, good = served.client(), served.client()
        await good.ask("ping")
        await bad.send(request(1, "spoil"))
        await bad.rest()
        await eventually(lambda: served.left == ["c1"] or served.left == ["c2"])
        assert (await good.ask("ping"))["result"]


async def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """And so is closing what does not serve."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        await served.server.close()
        await served.server.close()
