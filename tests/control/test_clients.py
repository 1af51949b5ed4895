"""Both clients against a real server, and what they do when it goes away."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.control import blocking
from avenor.control.client import EventStream, open_client
from avenor.control.rpc import Call
from avenor.control.stream import Place, Session, decoded
from avenor.protocol import methods
from avenor.protocol.errors import (
    AvenorError,
    BrokenError,
    ClosedError,
    LimitReached,
    MethodNotFound,
    NoSuchRuntime,
    NotOwner,
    RemoteProtocolError,
)
from avenor.protocol.events import MessageChunk, RunEnd, TurnEnd
from avenor.protocol.methods import Lagged, NoParams, Notice, OwnerChanged, Subscribed
from avenor.protocol.schemas import METHODS
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams
from tests.control.served import FakeHubs, Served, Writer, serving
from tests.helpers import eventually

ANSWERS: dict[str, tuple[type[Any], Any]] = {
    "spec": (methods.Target, SpawnParams(prompt="hi", dir="/d")),
    "spawn": (
        SpawnParams,
        methods.Spawned(runtime_id="rt_1", session_id="", on_event="/e", sentinel_file="/s"),
    ),
    "prompt": (methods.PromptParams, methods.PromptAccepted(accepted=True, queued=1)),
    "interrupt_and_prompt": (methods.InterruptParams, methods.Accepted()),
    "answer_permission": (methods.AnswerParams, methods.Accepted()),
    "cancel": (methods.OwnerTarget, methods.Cancelled(ok=True, left=[])),
    "claim": (methods.OwnerTarget, methods.Owner(owner="c1")),
    "release": (methods.Target, methods.Owner(owner=None)),
    "prune": (methods.PruneParams, methods.Pruned(pruned=["rt_3"])),
    "log_level": (methods.LogLevelParams, methods.LogLevelSet(level="debug")),
    "shutdown": (methods.ShutdownParams, methods.ShuttingDown()),
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "ping": lambda client: client.ping(),
    "status": lambda client: client.status(),
    "list": lambda client: client.list(["run_id"]),
    "spec": lambda client: client.spec("rt_1"),
    "result": lambda client: client.result("rt_1"),
    "history": lambda client: client.history(after_seq=1, limit=2),
    "wait": lambda client: client.wait(until="attention", timeout_seconds=0),
    "spawn": lambda client: client.spawn(SpawnParams(prompt="hi", dir="/d")),
    "prompt": lambda client: client.prompt("hi", force=True),
    "interrupt_and_prompt": lambda client: client.interrupt_and_prompt("hi", keep_queue=True),
    "answer_permission": lambda client: client.answer_permission("p", "once", message="m"),
    "cancel": lambda client: client.cancel("rt_1"),
    "claim": lambda client: client.claim(force=True),
    "release": lambda client: client.release(),
    "prune": lambda client: client.prune("7d"),
    "log_level": lambda client: client.log_level("debug"),
    "shutdown": lambda client: client.shutdown("drain"),
}


def add_answers(served: Served) -> dict[str, Any]:
    """Registers the methods that only runtimes and supervisors have; the params that came are in the result."""
    seen: dict[str, Any] = {}

    def answering(name: str, result: Any) -> Callable[[Call, Any], Any]:
        def answer(_call: Call, params: Any) -> Any:
            seen[name] = params
            return result

        return answer

    for name, (params_type, result) in ANSWERS.items():
        served.table.add(name, params_type, answering(name, result))
    return seen


def refusing(error: AvenorError) -> Callable[[Call, Any], Any]:
    """A handler that refuses."""

    def refuse(_call: Call, _params: Any) -> None:
        raise error

    return refuse


def test_the_clients_have_every_method_that_the_protocol_lists() -> None:
    """Except those that `events` stands for."""
    assert set(CALLS) == set(METHODS) - {"subscribe", "unsubscribe"}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_a_method_gives_its_typed_result(kind: str, name: str, tmp_path: Path) -> None:
    """The same from both clients, params included."""
    writer = Writer(tmp_path, "rt_1")
    writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        seen = add_answers(served)
        if kind == "trio":
            async with open_client(str(served.path)) as client:
                result = await CALLS[name](client)
        else:
            result = await trio.to_thread.run_sync(call_blocking, str(served.path), CALLS[name])
    expected = METHODS[name][1]
    assert isinstance(result, list if name == "list" else expected)
    if name in ANSWERS:
        assert result == ANSWERS[name][1]
        assert isinstance(seen[name], ANSWERS[name][0])


def call_blocking(path: str, call: Callable[[Any], Any]) -> Any:
    """One call from a thread."""
    with blocking.open_client(path, timeout_seconds=10) as client:
        return call(client)


@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_refusals_come_as_typed_errors(kind: str, tmp_path: Path) -> None:
    """With their facts, and the connection can be used on."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        served.table.add("claim", methods.OwnerTarget, refusing(NotOwner("taken", data={"owner": "c7"})))
        served.table.add("spawn", SpawnParams, refusing(LimitReached("full")))
        calls: list[tuple[Callable[[Any], Any], type[AvenorError]]] = [
            (lambda client: client.claim(), NotOwner),
            (lambda client: client.spawn(SpawnParams()), LimitReached),
            (lambda client: client.status("rt_9"), NoSuchRuntime),
            (lambda client: client.call("nope", NoParams(), int), MethodNotFound),
        ]
        errors: list[AvenorError] = []

        def all_blocking() -> None:
            with blocking.open_client(str(served.path)) as client:
                for call, error_type in calls:
                    with pytest.raises(error_type) as caught:
                        call(client)
                    errors.append(caught.value)
                assert client.ping().version == "1"

        if kind == "blocking":
            await trio.to_thread.run_sync(all_blocking)
        else:
            async with open_client(str(served.path)) as client:
                for call, error_type in calls:
                    with pytest.raises(error_type) as caught:
                        await call(client)
                    errors.append(caught.value)
                assert (await client.ping()).version == "1"
        assert errors[0].data == {"owner": "c7"}
        assert errors[1].retryable


@pytest.mark.parametrize("kind", ["trio", "blocking"])
async def test_where_no_server_is_says_so(kind: str, tmp_path: Path) -> None:
    """With what to do about it."""
    path = str(tmp_path / "nobody.sock")

    async def connect() -> None:
        if kind == "blocking":
            call_blocking(path, lambda client: client.ping())
        async with open_client(path):
            pass

    with pytest.raises(BrokenError, match="avenor stable") as caught:
        await connect()
    assert caught.value.reason_word == "no_server"


async def test_calls_may_be_in_flight_together(tmp_path: Path) -> None:
    """A waiting one does not hold up others, and a cancelled one is forgotten."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, open_client(str(served.path)) as client:
        with trio.move_on_after(0.01):
            await client.wait()
        found: list[Snapshot] = []

        async def wait() -> None:
            found.append(await client.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            assert (await client.status()).status == "running"
            writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        assert found[0].status == "ended"


async def test_calls_in_flight_fail_when_the_server_goes_away(tmp_path: Path) -> None:
    """And so do later ones."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served, open_client(str(served.path)) as client:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ClosedError):
                    await client.wait()

            nursery.start_soon(wait)
            await client.ping()
            await served.server.close()
        await eventually(lambda: client.wire.is_broken)
        with pytest.raises(BrokenError):
            await client.ping()


async def test_a_large_call_that_is_cancelled_half_sent_ends_the_connection(tmp_path: Path) -> None:
    """Else the server would take the next call for the rest of it."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        gate = trio.Event()

        async def wait_gate() -> None:
            await gate.wait()

        answer_type: type[object] = object
        served.table.add("wait_gate", NoParams, lambda _call, _params: wait_gate())
        async with open_client(str(served.path)) as client, trio.open_nursery() as nursery:
            # With so many in flight the server reads no further.
            for _ in range(70):
                nursery.start_soon(expect_closed, client.call, "wait_gate", NoParams(), answer_type)
            await eventually(lambda: len(served.server.clients) == 1)
            for _ in range(70):
                await trio.lowlevel.checkpoint()
            with trio.move_on_after(0.05) as scope:
                await client.call("say", {"text": "x" * (4 << 20)}, answer_type)
            assert scope.cancelled_caught
            assert client.wire.is_broken
            with pytest.raises(ClosedError):
                await client.ping()


async def expect_closed(call: Callable[..., Any], *arguments: Any) -> None:
    """A call that fails because the connection ends."""
    with pytest.raises(ClosedError):
        await call(*arguments)


async def test_notices_reach_who_asked_for_them(tmp_path: Path) -> None:
    """Those of a kind that this version does not know are left out."""
    notices: list[Notice] = []
    async with (
        serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served,
        open_client(str(served.path), on_notice=notices.append) as client,
    ):
        await client.ping()
        served.server.notify("c1", {"kind": "news.from.tomorrow"})
        served.server.notify("c1", OwnerChanged(runtime_id="rt_1", owner="c2"))
        served.server.notify("c1", {}, method="something.else")
        await client.ping()
        assert notices == [OwnerChanged(runtime_id="rt_1", owner="c2")]


async def test_events_are_decoded_or_raw(tmp_path: Path) -> None:
    """As asked for; and the stream ends with the run."""
    writer = Writer(tmp_path, "rt_1")
    writer.say(2)
    writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, open_client(str(served.path)) as client:
        async with client.events("rt_1", replay=True) as events:
            assert [type(event) async for event in events] == [MessageChunk, MessageChunk, RunEnd]
        async with client.events("rt_1", after_seq=1, raw=True) as events:
            assert [line async for line in events] == writer.path.read_bytes().splitlines()[1:]
        async with client.events("rt_1", after_seq=0, events=["run.end"]) as events:
            assert [event.seq async for event in events] == [3]


async def take(events: EventStream, count: int) -> list[int]:
    """The seqs of the next events."""
    return [(await anext(events)).seq for _ in range(count)]


@pytest.mark.parametrize("runtime_id", ["rt_1", None])
async def test_events_go_on_after_the_server_was_replaced(runtime_id: str | None, tmp_path: Path) -> None:
    """No seq twice, none left out, whatever happened while nobody was connected; several times."""
    writer = Writer(tmp_path, "rt_1")
    writer.say(3)
    found: list[int] = []
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, open_client(str(served.path)) as client:
        events = client.events(runtime_id)
        async with events:
            writer.say(2)
            found += await take(events, 2)
            for _ in range(3):
                await served.server.close()
                writer.say(5000)
                async with trio.open_nursery() as nursery:
                    await nursery.start(served.server.serve, served.listener)
                    writer.say()
                    found += await take(events, 5001)
                    await served.server.close()
    assert found == list(range(4, 15009))


async def test_following_all_takes_in_what_began_while_the_server_was_away(tmp_path: Path) -> None:
    """From its first event, while what ended long ago is not repeated."""
    old, one = Writer(tmp_path, "rt_0"), Writer(tmp_path, "rt_1")
    old.say(4)
    old.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    source = FakeHubs(old.hub, one.hub)
    async with (
        serving(tmp_path, source) as served,
        open_client(str(served.path)) as client,
        client.events() as events,
    ):
        one.say()
        assert await take(events, 1) == [1]
        await served.server.close()
        two = Writer(tmp_path, "rt_2")
        two.say(2)
        source.add(two.hub)
        async with trio.open_nursery() as nursery:
            await nursery.start(served.server.serve, served.listener)
            found = [await anext(events) for _ in range(2)]
            assert [(event.runtime_id, event.seq) for event in found] == [("rt_2", 1), ("rt_2", 2)]
            one.say()
            assert (await anext(events)).runtime_id == "rt_1"
            await served.server.close()


async def test_events_wait_for_a_server_that_is_away_for_a_while(tmp_path: Path) -> None:
    """As long as it takes; here until its socket is there again."""
    writer = Writer(tmp_path)
    hubs = FakeHubs(writer.hub)
    found: list[int] = []
    async with serving(tmp_path, hubs) as served, open_client(str(served.path)) as client:
        events = client.events(replay=True)
        writer.say(2)
        found += await take(events, 2)
        await served.server.close()
        served.listener.close()

        async def read_on() -> None:
            found.extend(await take(events, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_on)
            writer.say()
            looks = 0

            def has_failed_for_a_while() -> bool:
                nonlocal looks
                looks += 1
                return looks > 30

            await eventually(has_failed_for_a_while)
            async with serving(tmp_path, hubs):
                await eventually(lambda: found == [1, 2, 3])
                events.close()


async def test_without_reconnect_a_break_is_raised(tmp_path: Path) -> None:
    """After everything that had come."""
    writer = Writer(tmp_path)
    async with (
        serving(tmp_path, FakeHubs(writer.hub)) as served,
        open_client(str(served.path)) as client,
        client.events(replay=True, reconnect=False) as events,
    ):
        writer.say(2)
        await served.server.close()
        assert await take(events, 2) == [1, 2]
        with pytest.raises(BrokenError):
            await anext(events)


async def test_a_stream_that_was_closed_is_over(tmp_path: Path) -> None:
    """With its client too."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        async with open_client(str(served.path)) as client:
            events = client.events()
            await events.__aenter__()
        assert [event async for event in events] == []
        with pytest.raises(ClosedError):
            await events.__aenter__()


async def test_a_subscription_that_is_refused_is_raised(tmp_path: Path) -> None:
    """At once, and not tried again."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served, open_client(str(served.path)) as client:
        with pytest.raises(NoSuchRuntime):
            await anext(client.events("rt_9"))


async def test_a_slow_reader_is_told_what_it_missed(tmp_path: Path) -> None:
    """Where it has asked for that."""
    writer = Writer(tmp_path)
    notices: list[Notice] = []
    async with (
        serving(tmp_path, FakeHubs(writer.hub)) as served,
        open_client(str(served.path)) as client,
        client.events(on_lag="drop", on_notice=notices.append) as events,
    ):
        for _ in range(100):
            writer.say(100, size=1000)
            await trio.lowlevel.checkpoint()
        seqs: list[int] = []
        while not seqs or seqs[-1] != 10_000:
            seqs += await take(events, 1)
        dropped = sum(notice.dropped_count for notice in notices if isinstance(notice, Lagged))
        assert dropped > 0
        assert len(seqs) + dropped == 10_000


async def test_the_blocking_client_follows_events_over_a_break(tmp_path: Path) -> None:
    """As the trio client does."""
    writer = Writer(tmp_path, "rt_1")
    writer.say(3)
    found: list[int] = []

    def follow(path: str) -> None:
        with blocking.open_client(path) as client, client.events("rt_1", replay=True) as events:
            found.extend(event.seq for event in events)

    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, follow, str(served.path))
        await eventually(lambda: found == [1, 2, 3])
        await served.server.close()
        writer.say(4000)
        nursery.start_soon(served.server.serve, served.listener)
        await eventually(lambda: len(found) == 4003)
        writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        await eventually(lambda: len(found) == 4004)
        await served.server.close()
    assert found == list(range(1, 4005))


async def test_the_blocking_client_raises_a_break_and_a_timeout(tmp_path: Path) -> None:
    """And a closed stream is over."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served, trio.open_nursery() as nursery:
        path = str(served.path)
        with pytest.raises(TimeoutError):
            await trio.to_thread.run_sync(wait_with_timeout, path)

        def break_off() -> None:
            with blocking.open_client(path) as client:
                events = client.events(reconnect=False)
                with events:
                    trio.from_thread.run(served.server.close)
                    with pytest.raises(BrokenError):
                        next(events)
                assert list(events) == []
                with pytest.raises(ClosedError):
                    events.__enter__()
                with pytest.raises(BrokenError):
                    client.ping()

        await trio.to_thread.run_sync(break_off)
        nursery.cancel_scope.cancel()


def wait_with_timeout(path: str) -> None:
    """A call that takes longer than it may."""
    with blocking.open_client(path, timeout_seconds=0.02) as client:
        client.wait()


def test_the_blocking_client_imports_no_trio() -> None:
    """Nor anything else that costs a command its start."""
    code = "import avenor.control.blocking, sys; print([m for m in ('trio','structlog') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_event_comes_as_its_members() -> None:
    """From a server that is newer than we are."""
    assert decoded(b'{"event":"new.thing","seq":1}') == {"event": "new.thing", "seq": 1}


def test_a_session_takes_its_own_answer_only() -> None:
    """A late answer to a call that was given up is left out, and what is no protocol is refused."""
    session = Session(None)
    session.request("ping", NoParams())
    session.request("ping", NoParams())
    session.feed(b'{"jsonrpc":"2.0","id":1,"result":"late"}\n{"jsonrpc":"2.0","method":"notice","params":{}}\n')
    assert session.take_answer() is None
    session.feed(b"x" * (17 << 20) + b'\n{"jsonrpc":"2.0","id":2,"result":"mine"}\n')
    answer = session.take_answer()
    assert answer is not None
    assert bytes(answer) == b'"mine"'
    with pytest.raises(RemoteProtocolError):
        session.feed(b"HTTP/1.1 400 Bad Request\r\n")


def test_after_a_reset_a_place_accepts_the_new_log_from_its_start() -> None:
    """The seqs that it knew mean nothing any more."""
    place = Place("rt_1", after_seq=500)
    steps = place.steps()
    _, params, _ = next(steps)
    assert isinstance(params, methods.SubscribeParams)
    assert params.after_seq == 500
    steps.send(Subscribed(subscribed=True, id="s1", latest_seq=3, reset=True))
    line = msgspec.json.encode({"event": "x", "seq": 1, "runtime_id": "rt_1"})
    assert place.accept(line)
    assert not place.accept(line)
