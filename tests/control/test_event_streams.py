"""How event streams of both clients end, are closed by others, and go on; against a real server."""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from avenor.control import blocking, stream, subscriptions
from avenor.control.client import EventStream, open_client
from avenor.control.hub import EventHub, HubSource, SingleHub
from avenor.host.unixsock import bind_listener
from avenor.protocol.errors import ClosedError, NoSuchRuntime
from avenor.protocol.events import RunEnd, TurnEnd
from avenor.protocol.methods import LINE_LIMIT_BYTES
from tests.control.served import FakeHubs, Served, Writer, serving
from tests.helpers import eventually

# Far more than a stream that ends needs; one that does not end would wait for ever.
LIMIT_SECONDS = 20

END = RunEnd(status="DONE", exit_code=0, stop_reason="end_turn")
KINDS = pytest.mark.parametrize("kind", ["trio", "blocking"])


class Reader:
    """Reads one event stream, of either client, and keeps what it gave.

    Attributes:
        found: Runtime id and seq of each event.
        has_ended: The stream has ended, without an error.
        close: Closes the stream, once it is subscribed.
    """

    def __init__(self, kind: str, path: Path, **options: Any) -> None:
        self.found: list[tuple[Any, int]] = []
        self.has_ended = False
        self.close: Callable[[], None] | None = None
        self._kind = kind
        self._path = str(path)
        self._options = options

    async def read(self) -> None:
        """Reads to the end.

        Raises:
            trio.TooSlowError: It does not come.
        """
        with trio.fail_after(LIMIT_SECONDS):
            if self._kind == "trio":
                await self._read()
            else:
                await trio.to_thread.run_sync(self._read_blocking, abandon_on_cancel=True)

    async def _read(self) -> None:
        async with open_client(self._path) as client, client.events(**self._options) as events:
            self.close = events.close
            async for event in events:
                self.found.append((event.runtime_id, event.seq))
        self.has_ended = True

    def _read_blocking(self) -> None:
        with blocking.open_client(self._path) as client, client.events(**self._options) as events:
            self.close = events.close
            self.found.extend((event.runtime_id, event.seq) for event in events)
        self.has_ended = True

    @property
    def seqs(self) -> list[int]:
        """Of the events that came."""
        return [seq for _, seq in self.found]


def no_such(name: str) -> Exception:
    """The error for an unknown runtime."""
    return NoSuchRuntime(f"there is no {name}")


def ended_run(folder: Path, runtime_id: str | None = "rt_1") -> Writer:
    """A run with five events, which has ended."""
    writer = Writer(folder, runtime_id)
    writer.say(3)
    writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"), END)
    return writer


@KINDS
@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        ({}, []),
        ({"after_seq": 5}, []),
        ({"after_seq": 4}, [5]),
        ({"after_seq": 10**6}, [1, 2, 3, 4, 5]),
        ({"replay": True}, [1, 2, 3, 4, 5]),
        ({"replay": True, "events": ["turn.end"]}, [4]),
        ({"replay": True, "events": ["run.end"]}, [5]),
        ({"replay": True, "events": []}, []),
    ],
)
async def test_the_stream_of_a_run_that_has_ended_ends(
    kind: str, options: dict[str, Any], seqs: list[int], tmp_path: Path
) -> None:
    """Whatever of it was asked for; also where nothing is left to come."""
    async with serving(tmp_path, FakeHubs(ended_run(tmp_path).hub, Writer(tmp_path, "rt_2").hub)) as served:
        reader = Reader(kind, served.path, runtime_id="rt_1", **options)
        await reader.read()
    assert reader.seqs == seqs


@KINDS
@pytest.mark.parametrize("runtime_id", [None, "rt_1"])
@pytest.mark.parametrize(("replay", "seqs"), [(True, [1, 2, 3, 4, 5]), (False, [])])
async def test_a_stream_of_a_runs_own_socket_ends_with_the_run(
    kind: str, runtime_id: str | None, replay: bool, seqs: list[int], tmp_path: Path
) -> None:
    """Whether a supervisor has given it an id or not."""
    async with serving(tmp_path, SingleHub(ended_run(tmp_path, runtime_id).hub, no_such)) as served:
        reader = Reader(kind, served.path, replay=replay)
        await reader.read()
    assert reader.seqs == seqs


@KINDS
async def test_a_stream_of_some_events_ends_when_its_run_does(kind: str, tmp_path: Path) -> None:
    """Its end is not given out, since it was not asked for."""
    writer = Writer(tmp_path, "rt_1")
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, runtime_id="rt_1", events=["turn.end"])
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.close is not None)
        writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"), END)
        await eventually(lambda: reader.has_ended)
    assert reader.seqs == [1]


@KINDS
async def test_following_all_goes_on_after_one_has_ended(kind: str, tmp_path: Path) -> None:
    """Also when only some events are wanted: the end of one is none of them."""
    one, two = ended_run(tmp_path), Writer(tmp_path, "rt_2")
    async with serving(tmp_path, FakeHubs(one.hub, two.hub)) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, replay=True, events=["turn.end"])
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.found == [("rt_1", 4)])
        two.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
        await eventually(lambda: reader.found == [("rt_1", 4), ("rt_2", 1)])
        assert reader.close is not None
        reader.close()


@KINDS
async def test_following_all_needs_no_whole_snapshots(kind: str, tmp_path: Path) -> None:
    """With many runs those fit into no answer."""
    writer = Writer(tmp_path, "rt_1")
    writer.hub.fold.state.final_output = "x" * LINE_LIMIT_BYTES
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path)
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.close is not None)
        writer.say()
        await eventually(lambda: reader.found == [("rt_1", 1)])
        assert reader.close is not None
        reader.close()


@KINDS
async def test_a_stream_ends_when_it_is_closed_while_it_is_read(kind: str, tmp_path: Path) -> None:
    """From another task or thread, amid a quiet wait; without an error."""
    writer = Writer(tmp_path, "rt_1")
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, runtime_id="rt_1", replay=True)
        nursery.start_soon(reader.read)
        writer.say()
        await eventually(lambda: reader.seqs == [1])
        await trio.testing.wait_all_tasks_blocked()
        assert reader.close is not None
        reader.close()
        await eventually(lambda: reader.has_ended)


@KINDS
async def test_a_stream_ends_when_it_is_closed_while_it_connects_again(kind: str, tmp_path: Path) -> None:
    """It does not try for ever."""
    writer = Writer(tmp_path, "rt_1")
    writer.say()
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, runtime_id="rt_1", replay=True)
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.seqs == [1])
        await go_away(served)
        await trio.testing.wait_all_tasks_blocked()
        assert reader.close is not None
        reader.close()
        await eventually(lambda: reader.has_ended)


async def test_the_end_of_a_blocking_client_ends_what_other_threads_do_with_it(tmp_path: Path) -> None:
    """A reader of its events has had them all, a call in flight fails as closed, and so do later ones."""
    errors: list[Exception] = []
    writer = Writer(tmp_path, "rt_1")

    def wait(client: blocking.Client) -> None:
        try:
            client.wait()
        except ClosedError as error:
            errors.append(error)

    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        client = await blocking_client(served)
        events = await trio.to_thread.run_sync(client.events("rt_1").__enter__)
        with trio.fail_after(LIMIT_SECONDS):
            nursery.start_soon(abandonable, list, events)
            nursery.start_soon(abandonable, wait, client)
            await eventually(lambda: len(served.server.clients) == 2)
            await trio.testing.wait_all_tasks_blocked()
            client.close()
            await eventually(lambda: len(errors) == 1)
    client.close()
    with pytest.raises(ClosedError):
        client.ping()


async def blocking_client(served: Served) -> blocking.Client:
    """One that several threads are given."""
    return await trio.to_thread.run_sync(
        lambda: blocking.Client(str(served.path), timeout_seconds=None, on_notice=None)
    )


async def abandonable(do: Callable[..., Any], *arguments: Any) -> None:
    """Runs it in a thread, which is left behind on cancellation."""
    await trio.to_thread.run_sync(do, *arguments, abandon_on_cancel=True)


async def test_calls_of_a_trio_client_that_was_closed_fail_as_closed(tmp_path: Path) -> None:
    """It has not broken."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        async with open_client(str(served.path)) as client:
            pass
        with pytest.raises(ClosedError):
            await client.ping()


async def go_away(served: Served) -> None:
    """The server ends, and nobody listens any more."""
    served.listener.close()
    await served.server.close()


async def test_a_stream_that_was_cancelled_while_it_connected_again_goes_on(tmp_path: Path) -> None:
    """With the next event, when the server is back."""
    writer = Writer(tmp_path, "rt_1")
    hubs = FakeHubs(writer.hub)
    async with (
        serving(tmp_path, hubs) as served,
        open_client(str(served.path)) as client,
        client.events() as events,
    ):
        await go_away(served)
        with trio.move_on_after(0.2) as scope:
            await anext(events)
        assert scope.cancelled_caught
        writer.say()
        await check_goes_on(lambda: next_seq(events), tmp_path, hubs)


async def test_a_blocking_stream_that_was_interrupted_while_it_connected_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same."""
    writer = Writer(tmp_path, "rt_1")
    hubs = FakeHubs(writer.hub)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    def read_until_interrupt(events: blocking.EventStream) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(blocking, "time", SimpleNamespace(sleep=interrupted))
            with pytest.raises(KeyboardInterrupt):
                next(events)

    async with serving(tmp_path, hubs) as served:
        client = await blocking_client(served)
        events = await trio.to_thread.run_sync(client.events().__enter__)
        await go_away(served)
        await trio.to_thread.run_sync(read_until_interrupt, events)
        writer.say()

        async def next_blocking() -> int:
            event = await trio.to_thread.run_sync(next, events, abandon_on_cancel=True)
            return int(event.seq)

        await check_goes_on(next_blocking, tmp_path, hubs)
        client.close()


async def next_seq(events: EventStream) -> int:
    """The seq of the next event."""
    return int((await anext(events)).seq)


async def check_goes_on(read: Callable[[], Awaitable[int]], folder: Path, hubs: HubSource) -> None:
    """Reading waits for the server, and gives the one event that is missing."""
    found: list[int] = []

    async def read_one() -> None:
        found.append(await read())

    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_one)
            await trio.testing.wait_all_tasks_blocked(0.02)
            async with serving(folder, hubs):
                await eventually(lambda: found == [1])


def test_a_blocking_call_that_is_given_up_half_sent_closes_the_connection(tmp_path: Path) -> None:
    """Else the server would take the next call for the rest of it."""
    path = tmp_path / "deaf.sock"
    with bind_listener(path) as listener, blocking.open_client(str(path), timeout_seconds=0.05) as client:
        listener.setblocking(True)
        with pytest.raises(TimeoutError):
            client.prompt("x" * (4 << 20))
        for _ in range(2):
            with pytest.raises(ClosedError, match="given up while it was being sent"):
                client.ping()
        came = received(listener)
    assert came.count(b'"method"') == 1
    assert b"\n" not in came


def received(listener: socket.socket) -> bytes:
    """All that the next client sends until it goes away."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as file:
        return file.read()


@KINDS
async def test_a_stream_of_the_only_runtime_stays_with_it(kind: str, tmp_path: Path) -> None:
    """Over a break, when it is not the only one any more."""
    one, two = Writer(tmp_path, "rt_1"), Writer(tmp_path, "rt_2")
    one.say(2)
    hubs = FakeHubs(one.hub)
    async with serving(tmp_path, hubs) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, after_seq=1)
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.seqs == [2])
        await served.server.close()
        hubs.add(two.hub)
        two.say(5)
        one.emit(END)
        await nursery.start(served.server.serve, served.listener)
        await eventually(lambda: reader.has_ended)
        await served.server.close()
    assert reader.found == [("rt_1", 2), ("rt_1", 3)]


class LateHubs(FakeHubs):
    """Hubs to which one is added just when another one is looked for, if there is one to add."""

    late: EventHub | None = None

    def find(self, runtime_id: str | None) -> EventHub:
        """By id, after the other was added."""
        late, self.late = self.late, None
        if late is not None:
            self.add(late)
        return super().find(runtime_id)


@KINDS
async def test_following_all_takes_in_what_began_while_it_connected_again(kind: str, tmp_path: Path) -> None:
    """Between the list and the last subscription: from its first event too."""
    one, two = Writer(tmp_path, "rt_1"), Writer(tmp_path, "rt_2")
    one.say()
    two.say(3)
    hubs = LateHubs(one.hub)
    async with serving(tmp_path, hubs) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, replay=True)
        nursery.start_soon(reader.read)
        await eventually(lambda: reader.found == [("rt_1", 1)])
        await served.server.close()
        hubs.late = two.hub
        await nursery.start(served.server.serve, served.listener)
        await eventually(lambda: hubs.late is None)
        two.say()
        one.say()
        await eventually(lambda: ("rt_1", 2) in reader.found and ("rt_2", 4) in reader.found)
        assert sorted(reader.found) == [("rt_1", 1), ("rt_1", 2), ("rt_2", 1), ("rt_2", 2), ("rt_2", 3), ("rt_2", 4)]
        assert reader.close is not None
        reader.close()
        await served.server.close()


@KINDS
async def test_following_some_events_of_all_goes_on_past_any_number_of_ended_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are not asked for again, although their last event was none of them."""
    limit_subscriptions(monkeypatch, 3)
    live = Writer(tmp_path, "rt_9")
    hubs = FakeHubs(*(ended_run(tmp_path, f"rt_{number}").hub for number in range(5)), live.hub)
    async with serving(tmp_path, hubs) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, replay=True, events=["turn.end"])
        nursery.start_soon(reader.read)
        live.emit(TurnEnd(stop_reason="end_turn"))
        await eventually(lambda: len(reader.found) == 6)
        await served.server.close()
        await nursery.start(served.server.serve, served.listener)
        live.emit(TurnEnd(stop_reason="end_turn"))
        await eventually(lambda: reader.found[-1] == ("rt_9", 2))
        assert len(reader.found) == 7
        assert reader.close is not None
        reader.close()
        await served.server.close()


@KINDS
async def test_following_all_goes_on_although_too_many_have_begun_to_name_each(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event comes once all the same."""
    limit_subscriptions(monkeypatch, 3)
    hubs = FakeHubs(ended_run(tmp_path, "rt_0").hub)
    async with serving(tmp_path, hubs) as served, trio.open_nursery() as nursery:
        reader = Reader(kind, served.path, replay=True)
        nursery.start_soon(reader.read)
        await eventually(lambda: len(reader.found) == 5)
        await served.server.close()
        for number in range(1, 5):
            hubs.add(ended_run(tmp_path, f"rt_{number}").hub)
        await nursery.start(served.server.serve, served.listener)
        await eventually(lambda: len(reader.found) == 25)
        late = Writer(tmp_path, "rt_9")
        hubs.add(late.hub)
        late.say()
        await eventually(lambda: reader.found[-1] == ("rt_9", 1))
        assert len(set(reader.found)) == len(reader.found) == 26
        assert reader.close is not None
        reader.close()
        await served.server.close()


def limit_subscriptions(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A connection may have no more than these."""
    monkeypatch.setattr(stream, "SUBSCRIPTION_LIMIT", limit)
    monkeypatch.setattr(subscriptions, "SUBSCRIPTION_LIMIT", limit)
