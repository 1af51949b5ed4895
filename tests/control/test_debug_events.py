"""Events over HTTP: ids, going on after a break, slow readers, ends."""

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from avenor.control.debug import app, sse
from avenor.control.debug.cursors import Cursors
from avenor.control.debug.inner import Item
from avenor.control.debug.sse import AllStream, OneStream
from avenor.control.hub import SingleHub
from avenor.protocol.events import MessageChunk
from avenor.protocol.methods import LINE_LIMIT_BYTES
from tests.control.debug_kit import HOST, KEY, Event, Fleet, end_run, site
from tests.control.served import Writer


def places(events: list[Event]) -> dict[str, list[int]]:
    """The seqs that came of each runtime, in the order in which they came."""
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.json["runtime_id"], []).append(event.json["seq"])
    return found


async def test_an_event_of_one_runtime_has_its_seq_for_an_id(tmp_path: Path) -> None:
    """And its line in the log for data, without a name of its own."""
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    writer.say(3)
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch("/events?runtime_id=rt_1&after_seq=0")
        assert watcher.exchange.headers["content-type"] == "text/event-stream"
        writer.say(2)
        events = await watcher.events(5)
    assert [event.id for event in events] == ["1", "2", "3", "4", "5"]
    assert [event.kind for event in events] == ["message"] * 5
    assert [event.data for event in events] == writer.path.read_bytes().splitlines()


async def test_a_line_is_one_line_of_the_stream(tmp_path: Path) -> None:
    """A carriage return between tokens, which is a blank in JSON, would end the field."""
    writer = Writer(tmp_path)
    async with site(SingleHub(writer.hub, KeyError), follows_one=True) as opened:
        watcher = await opened.watch()
        writer.emit(MessageChunk(content=Raw(b'{"type":"text",\r"text":"a\\rb"}')))
        (event,) = await watcher.events(1)
    assert event.id == "1"
    assert event.json["content"] == {"type": "text", "text": "a\rb"}


async def test_the_last_id_counts_more_than_the_address(tmp_path: Path) -> None:
    """A browser that connects again sends both."""
    fleet = Fleet(tmp_path)
    fleet.add().say(9)
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch("/events?runtime_id=rt_1&after_seq=2", last_id="7")
        assert [event.id for event in await watcher.events(2)] == ["8", "9"]
        assert [event.id for event in await (await opened.watch("/events?after_seq=8")).events(1)] == ["9"]


async def test_following_all_needs_no_whole_snapshots(tmp_path: Path) -> None:
    """With many runs those fit into no answer."""
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    writer.say(2)
    writer.hub.fold.state.final_output = "x" * LINE_LIMIT_BYTES
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch("/events")
        again = await opened.watch("/events", last_id="1;1:1")
        writer.say()
        assert places(await watcher.events(1)) == {"rt_1": [3]}
        assert places(await again.events(2)) == {"rt_1": [2, 3]}


async def test_a_stream_of_one_ends_with_its_run(tmp_path: Path) -> None:
    """And whoever asks for what follows the end is told that nothing does, which stops a browser's attempts."""
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch("/events?runtime_id=rt_1")
        writer.say(2)
        end_run(writer)
        assert [event.id for event in await watcher.rest()] == ["1", "2", "3"]
        for target in ("/events?runtime_id=rt_1", "/events?runtime_id=rt_1&after_seq=3"):
            answer = await opened.get(target)
            assert (answer.status, answer.body) == (204, b"")
            assert "content-length" not in answer.headers
        again = await opened.watch("/events?runtime_id=rt_1&after_seq=1")
        assert [event.id for event in await again.rest()] == ["2", "3"]


async def test_a_log_that_is_shorter_begins_anew_and_says_so(tmp_path: Path) -> None:
    """For one runtime, and for all."""
    fleet = Fleet(tmp_path)
    fleet.add().say(2)
    async with site(fleet.hubs) as opened:
        for watcher in (
            await opened.watch("/events?runtime_id=rt_1&after_seq=40"),
            await opened.watch(last_id="1;1:40"),
        ):
            notice, *events = await watcher.events(3)
            assert (notice.kind, notice.id) == ("notice", "")
            assert notice.json == {"kind": "reset", "runtime_id": "rt_1"}
            assert [event.json["seq"] for event in events] == [1, 2]


async def test_a_stream_of_all_begins_now_and_has_those_that_come_later(tmp_path: Path) -> None:
    """Its ids say what was had of each that goes on."""
    fleet = Fleet(tmp_path)
    first, second = fleet.add(), fleet.add()
    first.say(4)
    second.say(2)
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        second.say()
        fleet.add().say()
        events = await watcher.events(2)
        end_run(first)
        events += await watcher.events(1)
    assert [event.id for event in events] == ["2;1:4,2:3", "3;1:4,2:3,3:1", "3;2:3,3:1"]


def play(fleet: Fleet, step: int) -> None:
    """The next that happens in a small company: runtimes begin, speak, and end."""
    match step % 6:
        case 0:
            fleet.add()
        case 5 if len(fleet.writers) > 2 and fleet.writers[-3].hub.fold.state.status != "ended":
            end_run(fleet.writers[-3])
        case _:
            live = [each for each in fleet.writers if each.hub.fold.state.status != "ended"]
            live[step % len(live)].say(1 + step % 3)


@pytest.mark.parametrize("cut", range(0, 40, 3))
async def test_going_on_loses_nothing_and_repeats_nothing(tmp_path: Path, cut: int) -> None:
    """Wherever the stream of all breaks, and whatever happens before it is taken up again."""
    fleet = Fleet(tmp_path)
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        for step in range(30):
            play(fleet, step)
        had = await watcher.events(cut)
        watcher.exchange.gone.set()
        for step in range(30, 40):
            play(fleet, step)
        missing = sum(each.seq for each in fleet.writers) - cut
        if had:
            watcher = await opened.watch(last_id=had[-1].id)
            play(fleet, 40)
            said = sum(each.seq for each in fleet.writers) - cut - missing
            had += await watcher.events(missing + said)
            assert places(had) == fleet.events()


async def test_what_begins_while_a_stream_is_taken_up_is_not_missed(tmp_path: Path) -> None:
    """Between the list and the subscription: then it is done again."""
    fleet = Fleet(tmp_path)
    fleet.add().say(3)

    def begin_another() -> None:
        if len(fleet.writers) == 1:
            fleet.add().say(3)

    async with site(fleet.hubs, listed=begin_another) as opened:
        watcher = await opened.watch(last_id="1;1:1")
        events = await watcher.events(5)
        assert len(opened.server.clients) == 1
    assert places(events) == {"rt_1": [2, 3], "rt_2": [1, 2, 3]}


def _headers(*last_ids: str | None) -> dict[str, Any]:
    last = tuple((b"last-event-id", each.encode()) for each in last_ids if each is not None)
    return {"headers": (HOST, KEY, *last)}


async def test_a_slow_reader_slows_nobody_and_gets_everything(tmp_path: Path) -> None:
    """From the log, when it reads at last; meanwhile memory holds what it holds without it."""
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch("/events?runtime_id=rt_1")
        for _ in range(40):
            writer.say(250, size=1000)
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert len(writer.hub.ring.lines) < 5000
        events = await watcher.events(10_000)
    assert [int(event.id) for event in events] == list(range(1, 10_001))


async def test_an_idle_stream_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a comment, which readers ignore."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        assert watcher.hello == b"retry: 1000"
        assert await watcher.exchange.chunk() == b": keep-alive\n\n"
        writer.say()
        assert [event.json["seq"] for event in await watcher.events(1)] == [1]


async def test_a_reader_that_leaves_is_let_go(tmp_path: Path) -> None:
    """With its subscription."""
    fleet = Fleet(tmp_path)
    fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        assert len(opened.server.clients) == 1
        watcher.exchange.gone.set()
        await wait_all_tasks_blocked()
        assert opened.server.clients == []


async def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    """In good order: what was to come has come."""
    fleet = Fleet(tmp_path)
    writer = fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        writer.say(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.server.close)
            assert [event.json["seq"] for event in await watcher.rest()] == [1, 2, 3]


async def test_so_many_streams_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends makes room; looking at a runtime goes on all the same."""
    monkeypatch.setattr(app, "STREAM_LIMIT", 1)
    fleet = Fleet(tmp_path)
    fleet.add()
    async with site(fleet.hubs) as opened:
        watcher = await opened.watch()
        assert (await opened.get("/events")).status == 503
        assert (await opened.get("/status")).status == 200
        watcher.exchange.gone.set()
        await wait_all_tasks_blocked()
        await opened.watch()


@pytest.mark.parametrize(
    ("target", "last_id", "field"),
    [
        ("/events?after_seq=x", None, "after_seq"),
        ("/events?after_seq=-1", None, "after_seq"),
        ("/events?after_seq=1&after_seq=1", None, "after_seq"),
        ("/events?since=1", None, "query"),
        ("/events?runtime_id=rt_1", "1;1:2", "Last-Event-ID"),
        ("/events", "17", "Last-Event-ID"),
    ],
)
async def test_what_makes_no_sense_is_refused(tmp_path: Path, target: str, last_id: str | None, field: str) -> None:
    """Before a stream begins."""
    fleet = Fleet(tmp_path)
    fleet.add()
    async with site(fleet.hubs) as opened:
        answer = await opened.get(target, **_headers(last_id))
    assert (answer.status, answer.error["data"]["field"]) == (400, field)


async def test_only_one_last_id_is_taken(tmp_path: Path) -> None:
    """Two do not say where to go on."""
    fleet = Fleet(tmp_path)
    async with site(fleet.hubs) as opened:
        answer = await opened.get("/events", **_headers("1;", "2;"))
    assert answer.status == 400


async def test_an_unknown_runtime_has_no_stream(tmp_path: Path) -> None:
    """The refusal is that of the control protocol."""
    fleet = Fleet(tmp_path)
    async with site(fleet.hubs) as opened:
        answer = await opened.get("/events?runtime_id=rt_7")
        head = await opened.ask("HEAD", "/events?runtime_id=rt_7")
    assert (answer.status, answer.error["data"]["value"]) == (404, "rt_7")
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")


async def test_too_much_to_catch_up_with_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do instead."""
    monkeypatch.setattr(sse, "_MISSING_LIMIT", 1)
    fleet = Fleet(tmp_path)
    fleet.add()
    fleet.add()
    async with site(fleet.hubs) as opened:
        answer = await opened.get("/events", **_headers("0;"))
    assert (answer.status, answer.error["data"]["retryable"]) == (503, False)
    assert "without Last-Event-ID" in answer.error["message"]


def test_notices_have_a_name_and_no_id() -> None:
    """So that they are no events, and do not move the place from which a reader goes on."""
    for stream in (OneStream(b""), AllStream(b"", Cursors.at_end([]))):
        text, is_over = stream.render([Item(True, b'{"kind":"subscriber.lagged"}')])
        assert text == b'event: notice\ndata: {"kind":"subscriber.lagged"}\n\n'
        assert not is_over
