"""One run over its control socket: who may do what, what is answered when, and what a router is told."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.control.client import Client, open_client
from avenor.control.hub import EventHub
from avenor.host.identity import process_id
from avenor.host.unixsock import bind_listener
from avenor.protocol.errors import AvenorError, InvalidParams, NotOwner, Unsupported, from_wire
from avenor.protocol.events import PermissionResponse, PromptQueued
from avenor.protocol.methods import (
    Cancelled,
    Notice,
    Ok,
    Owner,
    OwnerChanged,
    Pong,
    PromptAccepted,
    RouterHello,
    RouterLeft,
    RouterReaped,
)
from avenor.protocol.outcomes import Status
from avenor.protocol.peer import IncomingError, IncomingNotification, IncomingResult, Peer
from avenor.runtimes.backends.base import TurnStop
from avenor.runtimes.serving import make_server
from tests.helpers import eventually
from tests.runtimes.fake_backend import FakeBackend, FakeSession, play_echo, play_until_cancelled
from tests.runtimes.run_rig import RunRig


class Served(RunRig):
    """A run with a control socket."""

    def __init__(self, directory: Path, backend: FakeBackend, **spec: Any) -> None:
        super().__init__(directory, backend, **spec)
        self.path = str(directory / "control.sock")
        self.hub = EventHub("rt_1", self.log_path, self.fold)
        self.published.publish = self.hub.publish  # type: ignore[method-assign]


@asynccontextmanager
async def served(directory: Path, backend: FakeBackend, **spec: Any) -> AsyncGenerator[Served, None]:
    """A run that is served, and closed in order when it has ended."""
    rig = Served(directory, backend, **spec)
    own = process_id(os.getpid())
    assert own is not None
    server = make_server(rig.host, rig.hub, own)
    with bind_listener(rig.path) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listener)

            async def live_and_close() -> None:
                await rig.run()
                await server.close()

            nursery.start_soon(live_and_close)
            try:
                yield rig
            finally:
                rig.host.ending.settle()
                nursery.cancel_scope.cancel()


class LinkSide:
    """The supervisor's end of a link: raw lines, so that their order is seen."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._peer = Peer()
        self._lines: list[bytes] = []
        self._partial = b""
        self.notes: list[tuple[str, Any]] = []

    async def call(self, method: str, params: object, result_type: type[Any]) -> Any:
        """The typed result; notifications that come before it are kept."""
        _, line = self._peer.request(method, params)
        await self._stream.send_all(line)
        while True:
            incoming = self._peer.receive(await self._next())
            match incoming:
                case IncomingResult():
                    return msgspec.json.decode(incoming.result, type=result_type)
                case IncomingError():
                    raise from_wire(incoming.error)
                case IncomingNotification():
                    self.notes.append((incoming.method, msgspec.json.decode(incoming.params)))
                case _:
                    raise AssertionError(incoming)

    async def route(self, client: str, method: str, result_type: type[Any], **params: Any) -> Any:
        """A call in the name of a client."""
        return await self.call("router.call", {"client": client, "method": method, "params": params}, result_type)

    async def note(self) -> tuple[str, Any]:
        """The next notification."""
        if not self.notes:
            incoming = self._peer.receive(await self._next())
            assert isinstance(incoming, IncomingNotification)
            self.notes.append((incoming.method, msgspec.json.decode(incoming.params)))
        return self.notes.pop(0)

    async def _next(self) -> bytes:
        while not self._lines:
            data = await self._stream.receive_some(65536)
            assert data, "the runtime closed the link"
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._lines += lines
        return self._lines.pop(0)


@asynccontextmanager
async def open_link(path: str) -> AsyncGenerator[LinkSide, None]:
    async with await trio.open_unix_socket(path) as stream:
        yield LinkSide(stream)


async def ask_then_echo(session: FakeSession, text: str) -> TurnStop:
    await session.ask()
    return await play_echo(session, text)


async def when_working(rig: Served) -> None:
    await eventually(lambda: rig.fold.state.turn_state in ("running", "permission"))


async def test_ping_and_snapshots_say_which_run_this_is(tmp_path: Path) -> None:
    """Mode run, our pid, the ids; status and list agree."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        pong = await client.ping()
        assert (pong.mode, pong.runtime_id, pong.run_id) == ("run", "rt_1", "run_1")
        await when_working(rig)
        status = await client.status("rt_1")
        assert (status.session_id, status.status) == ("s1", "running")
        assert [snapshot.run_id for snapshot in await client.list()] == ["run_1"]


async def test_spawning_on_a_run_is_unsupported(tmp_path: Path) -> None:
    """Whatever the params are, it is this kind of socket that cannot."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        with pytest.raises(Unsupported):
            await client.call("spawn", {"anything": [1]}, Ok)


@pytest.mark.parametrize("name", ["rt_1", "run_1", "careful"])
async def test_a_run_goes_by_its_run_id_and_its_label_too(name: str, tmp_path: Path) -> None:
    """As on a supervisor's socket: for owner methods as for others."""
    async with served(tmp_path, FakeBackend(play_until_cancelled), label="careful") as rig:
        await when_working(rig)
        async with open_client(rig.path) as client:
            assert (await client.status(name)).run_id == "run_1"
            assert (await client.history(name)).events
            assert (await client.claim(name)).owner is not None
            assert (await client.release(name)).owner is None
            assert (await client.cancel(name)).ok


async def test_another_runtimes_id_is_refused(tmp_path: Path) -> None:
    """For owner methods as for others, with what there is."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        for ask in (client.status, client.cancel, client.claim, client.release):
            with pytest.raises(AvenorError) as refused:
                await ask("rt_7")
            assert refused.value.reason_word == "no_such_runtime"
        assert rig.host.ownership.owner is None


async def test_an_accepted_prompt_is_on_disk_before_the_answer(tmp_path: Path) -> None:
    """prompt.queued is in the file when the client hears of it."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        await when_working(rig)
        accepted = await client.prompt("more")
        assert accepted == PromptAccepted(accepted=True, queued=1)
        assert [event.text for event in rig.only(PromptQueued)] == ["more"]


async def test_an_empty_prompt_is_refused_and_takes_no_ownership(tmp_path: Path) -> None:
    """Blanks are no prompt."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        with pytest.raises(InvalidParams):
            await client.prompt("  \n")
        assert rig.host.ownership.owner is None


async def test_cancel_answers_once_the_run_has_ended_and_the_answer_arrives(tmp_path: Path) -> None:
    """The sentinel is there when the client hears of it, although the server closes right after."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig:
        await when_working(rig)
        async with open_client(rig.path) as client:
            answer = await client.cancel()
            assert answer == Cancelled(ok=True, left=[])
            assert rig.sentinel is not None
            assert rig.sentinel.status is Status.KILLED
            assert rig.names[-1] == "run.end"


@pytest.mark.parametrize("mode", ["graceful", "drain", "kill"])
async def test_shutdown_of_a_run_is_a_cancel_that_needs_no_ownership(tmp_path: Path, mode: Any) -> None:
    """An operator may always."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig:
        await when_working(rig)
        async with open_client(rig.path) as owner, open_client(rig.path) as operator:
            await owner.claim()
            assert (await operator.shutdown(mode)).shutting_down
            assert rig.sentinel is not None
            assert rig.sentinel.status is Status.KILLED
        assert rig.killed == (mode == "kill")


async def test_a_run_cannot_be_detached_from(tmp_path: Path) -> None:
    """It is not a supervisor."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_client(rig.path) as client:
        with pytest.raises(Unsupported):
            await client.shutdown("detach")
        assert not rig.host.ending.is_decided


async def test_one_client_owns_and_loses_it_by_force_or_by_leaving(tmp_path: Path) -> None:
    """The old owner is told; after the new one has left anybody may."""
    told: list[Notice] = []
    async with (
        served(tmp_path, FakeBackend(play_until_cancelled)) as rig,
        open_client(rig.path, on_notice=told.append) as first,
    ):
        async with open_client(rig.path) as second:
            assert (await first.claim()).owner == (await first.claim()).owner
            with pytest.raises(NotOwner) as refused:
                await second.prompt("mine")
            assert refused.value.data["owner"] == (await first.status()).owner
            await second.prompt("mine", force=True)
            await eventually(lambda: told)
            assert told == [OwnerChanged(runtime_id="rt_1", owner=(await second.status()).owner)]
        await eventually(lambda: rig.host.ownership.owner is None)
        await first.claim()
        assert (await first.release()).owner is None


async def test_a_permission_is_answered_over_the_socket_once(tmp_path: Path) -> None:
    """Answering takes ownership; the second answer finds nothing."""
    async with served(tmp_path, FakeBackend(ask_then_echo)) as rig, open_client(rig.path) as client:
        snapshot = await client.wait(until="attention")
        assert snapshot.permission is not None
        with pytest.raises(InvalidParams):
            await client.answer_permission(snapshot.permission.request_id, "maybe")
        await client.answer_permission(snapshot.permission.request_id, "allow")
        assert rig.host.ownership.owner is not None or rig.host.finished.is_set()
        with pytest.raises(AvenorError):
            await client.answer_permission(snapshot.permission.request_id, "allow")
        await rig.host.finished.wait()
        assert [event.option_id for event in rig.only(PermissionResponse)] == ["allow"]


async def test_subscribers_get_the_end_of_the_run_before_the_socket_closes(tmp_path: Path) -> None:
    """The last event is run.end."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig:
        await when_working(rig)
        async with open_client(rig.path) as client, open_client(rig.path) as other:
            names: list[str] = []
            async with client.events("rt_1", replay=True) as events, trio.open_nursery() as nursery:
                nursery.start_soon(other.cancel)
                async for event in events:
                    names.append(str(event.__struct_config__.tag))
                    if names[-1] == "run.end":
                        break
            assert names[0] == "run.start"
            assert names == rig.names


async def test_a_router_names_clients_and_is_told_of_owners(tmp_path: Path) -> None:
    """hello says who and where; owners are the named clients; their leaving frees the run."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_link(rig.path) as link:
        hello = await link.call("router.hello", {}, RouterHello)
        assert (hello.ping.run_id, hello.snapshot.runtime_id) == ("run_1", "rt_1")
        assert await link.route("c5", "claim", Owner) == Owner(owner="c5")
        assert await link.note() == ("router.owner", {"owner": "c5"})
        with pytest.raises(NotOwner) as refused:
            await link.route("c6", "prompt", PromptAccepted, text="x")
        assert refused.value.data["owner"] == "c5"
        await link.route("c6", "claim", Owner, force=True)
        assert await link.note() == ("router.owner", {"owner": "c6"})
        method, notice = await link.note()
        assert (method, notice["client"]) == ("router.notice", "c5")
        assert notice["params"] == {"kind": "owner.changed", "runtime_id": "rt_1", "owner": "c6"}
        await link.call("router.left", RouterLeft(client="c6"), Ok)
        assert await link.note() == ("router.owner", {"owner": None})


async def test_a_router_ends_a_run_only_while_it_is_parked(tmp_path: Path) -> None:
    """Not while it works, and not once it has accepted a prompt; the outcome that it parked with stays."""
    gate = trio.Event()

    async def play(session: FakeSession, text: str) -> TurnStop:
        await gate.wait()
        return await play_echo(session, text)

    async with served(tmp_path, FakeBackend(play), parks=True) as rig, open_link(rig.path) as link:
        assert await link.call("router.reap", {}, RouterReaped) == RouterReaped(reaped=False)
        gate.set()
        await eventually(lambda: rig.fold.state.status == "idle")
        gate = trio.Event()
        await link.route("c5", "prompt", PromptAccepted, text="more")
        assert await link.call("router.reap", {}, RouterReaped) == RouterReaped(reaped=False)
        gate.set()
        await eventually(lambda: rig.fold.state.status == "idle")
        assert rig.host.result.final_output == "you said more"
        assert await link.call("router.reap", {}, RouterReaped) == RouterReaped(reaped=True)
        with pytest.raises(AvenorError):
            await link.route("c5", "prompt", PromptAccepted, text="late")
        await rig.host.finished.wait()
        assert rig.sentinel is not None
        assert rig.sentinel.status is Status.DONE


async def test_a_routed_call_to_ping_and_cancel_is_answered_like_a_direct_one(tmp_path: Path) -> None:
    """The result passes as it is; what may not be routed is refused."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig, open_link(rig.path) as link:
        assert (await link.route("c5", "ping", Pong)).run_id == "run_1"
        for method in ("subscribe", "router.hello"):
            with pytest.raises(Unsupported):
                await link.route("c5", method, Ok)
        with pytest.raises(InvalidParams):
            await link.route("c5", "prompt", PromptAccepted)
        await when_working(rig)
        assert (await link.route("c5", "cancel", Cancelled)).ok
        assert rig.names[-1] == "run.end"


async def test_a_lost_link_frees_what_its_clients_owned(tmp_path: Path) -> None:
    """A supervisor that is killed locks nobody out."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig:
        async with open_link(rig.path) as link:
            await link.call("router.hello", {}, RouterHello)
            await link.route("c5", "claim", Owner)
            assert rig.host.ownership.owner is not None
        await eventually(lambda: rig.host.ownership.owner is None)


async def test_cancel_goes_on_when_its_caller_has_left(tmp_path: Path) -> None:
    """The decision was made; nobody has to wait for it."""
    async with served(tmp_path, FakeBackend(play_until_cancelled)) as rig:
        await when_working(rig)
        async with open_link(rig.path) as link:
            with trio.move_on_after(0):
                await link.route("c5", "cancel", Cancelled)
        async with open_client(rig.path) as client:
            with trio.move_on_after(5):
                await _cancel(client)
        await rig.host.finished.wait()


async def _cancel(client: Client) -> None:
    await client.cancel(force=True)
