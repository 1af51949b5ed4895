"""Events to subscribers: in order, each once, and never at the expense of the run or of other clients."""

import random
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from avenor.control.feed import Feed, Need
from avenor.control.interests import Interest
from avenor.control.outbox import Outbox
from avenor.control.ring import CHUNK_BYTES, PENDING_BYTES, PENDING_EVENTS
from avenor.control.rpc import Call
from avenor.protocol.events import Event, TurnEnd
from avenor.protocol.methods import NoParams
from tests.control.served import FakeHubs, RawClient, Writer, chunk, request, serving
from tests.helpers import eventually

EVERYTHING = 20_000


def seqs(lines: list[Any]) -> list[int]:
    """Of event lines."""
    return [line["params"]["seq"] for line in lines]


def turn_end() -> Event:
    """An event that filters ask for."""
    return TurnEnd(stop_reason="end_turn")


async def read_until(client: RawClient, last: int) -> tuple[list[int], int]:
    """The seqs that come up to this one, and how many were said to be dropped on the way."""
    found: list[int] = []
    dropped = 0
    while not found or found[-1] != last:
        line = await client.line()
        if line["method"] == "notice":
            assert line["params"]["kind"] == "subscriber.lagged"
            dropped += line["params"]["dropped_count"]
            # In the right place: what was dropped lies between the event before the notice and the one after.
            before = found[-1] if found else 0
            found.append((await client.line())["params"]["seq"])
            assert found[-1] - before - 1 == line["params"]["dropped_count"]
        else:
            found.append(line["params"]["seq"])
    return found, dropped


async def test_live_events_follow_the_answer_to_subscribe(tmp_path: Path) -> None:
    """From now on, not from before."""
    writer = Writer(tmp_path)
    writer.say(3)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        answer = await client.call("subscribe")
        assert answer == {"subscribed": True, "id": "s1", "latest_seq": 3}
        writer.say()
        event = await client.line()
        assert event["method"] == "event"
        assert (event["params"]["event"], event["params"]["seq"]) == ("agent.message_chunk", 4)


async def test_an_event_arrives_byte_for_byte_as_it_is_in_the_log(tmp_path: Path) -> None:
    """Live from memory and replayed from the disk alike."""
    writer = Writer(tmp_path)
    writer.say(5000)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.send(request(1, "subscribe", {"replay": True}))
        await client.line()
        wanted = b"".join(
            b'{"jsonrpc":"2.0","method":"event","params":' + line + b"}\n"
            for line in writer.path.read_bytes().splitlines()
        )
        got = client._buffer  # pyright: ignore[reportPrivateUsage]
        while len(got) < len(wanted):
            await trio.lowlevel.wait_readable(client.sock)
            got += client.sock.recv(1 << 16)
        assert got == wanted


async def test_events_caused_by_a_call_come_before_its_answer(tmp_path: Path) -> None:
    """Whether the handler emits at once or after waiting, in pipelined calls and in batches."""
    writer = Writer(tmp_path)

    def emit(_call: Call, _params: NoParams) -> int:
        writer.say(2)
        return writer.seq

    async def emit_later() -> int:
        await trio.lowlevel.checkpoint()
        writer.say()
        return writer.seq

    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        served.table.add("emit", NoParams, emit)
        served.table.add("emit_later", NoParams, lambda _call, _params: emit_later())
        client = served.client()
        await client.call("subscribe")
        await client.send(request(1, "emit") + request(2, "emit"))
        lines = await client.lines(6)
        assert [line.get("result") for line in lines] == [None, None, 2, None, None, 4]
        await client.send(request(3, "emit_later"))
        lines = await client.lines(2)
        assert (lines[0]["params"]["seq"], lines[1]["result"]) == (5, 5)


async def test_a_subscription_in_a_batch_begins_after_the_batch_is_answered(tmp_path: Path) -> None:
    """And nothing that came meanwhile is missed."""
    writer = Writer(tmp_path)
    gate = trio.Event()

    async def wait_gate() -> None:
        await gate.wait()

    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        served.table.add("wait_gate", NoParams, lambda _call, _params: wait_gate())
        client = served.client()
        await client.send(b"[" + request(1, "subscribe").strip() + b"," + request(2, "wait_gate").strip() + b"]\n")
        assert (await served.client().ask("ping"))["result"]
        writer.say(2)
        gate.set()
        assert isinstance(await client.line(), list)
        assert seqs(await client.lines(2)) == [1, 2]


@pytest.mark.parametrize("on_lag", ["drop", "disk"])
async def test_replay_joins_live_events_without_gap_or_repeat(on_lag: str, tmp_path: Path) -> None:
    """While a writer goes on, from far behind the ring up to the end, several at once."""
    writer = Writer(tmp_path)
    writer.say(EVERYTHING // 2)

    async def write() -> None:
        while writer.seq < EVERYTHING:
            writer.say(25)
            await trio.lowlevel.checkpoint()

    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:
        clients = [served.client() for _ in range(3)]
        starts = (0, 4711, writer.seq)
        for client, start in zip(clients, starts, strict=True):
            await client.send(request(1, "subscribe", {"after_seq": start, "on_lag": on_lag}))
        nursery.start_soon(write)
        for client, start in zip(clients, starts, strict=True):
            assert (await client.line())["result"]["subscribed"]
            found, dropped = await read_until(client, EVERYTHING)
            # Reading one client after the other stalls the others, who may drop only once they have caught up.
            assert len(found) + dropped == EVERYTHING - start
            assert on_lag == "drop" or found == list(range(start + 1, EVERYTHING + 1))


@pytest.mark.parametrize(("params", "first"), [({"replay": True, "limit": 10}, 5991), ({"limit": 3}, 5998)])
async def test_a_limited_replay_begins_so_many_before_the_end(params: Any, first: int, tmp_path: Path) -> None:
    """The last events of the log, and then the live ones."""
    writer = Writer(tmp_path)
    writer.say(6000)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        assert (await client.call("subscribe", params))["latest_seq"] == 6000
        writer.say()
        assert await client.seqs(6001) == list(range(first, 6002))


async def test_after_seq_beyond_the_end_says_reset_and_begins_anew(tmp_path: Path) -> None:
    """The log is not the one that the client knew."""
    writer = Writer(tmp_path)
    writer.say(3)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        answer = await client.call("subscribe", {"after_seq": 500})
        assert (answer["reset"], answer["latest_seq"]) == (True, 3)
        assert await client.seqs(3) == [1, 2, 3]
        assert "reset" not in await client.call("subscribe", {"after_seq": 3})


async def test_a_filter_lets_only_named_events_through(tmp_path: Path) -> None:
    """From the log, from memory, and live."""
    writer = Writer(tmp_path)
    for _ in range(6):
        writer.say(999)
        writer.emit(turn_end())
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"replay": True, "events": ["turn.end"]})
        assert await client.seqs(6000) == [1000, 2000, 3000, 4000, 5000, 6000]
        writer.emit(chunk(), turn_end(), chunk())
        writer.emit(turn_end())
        assert await client.seqs(6004) == [6002, 6004]


async def test_a_connection_gets_each_event_once_however_many_subscriptions_match(tmp_path: Path) -> None:
    """The union of a filtered, an unfiltered and a replaying one, begun one after the other."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        writer.emit(chunk(), turn_end(), chunk())
        await client.call("subscribe", {"events": ["turn.end"]})
        writer.emit(chunk(), turn_end(), chunk())
        assert await client.seqs(5) == [5]
        await client.call("subscribe", {})
        writer.emit(chunk(), turn_end())
        assert await client.seqs(8) == [7, 8]
        await client.call("subscribe", {"replay": True})
        writer.emit(turn_end())
        assert await client.seqs(9) == [1, 2, 3, 4, 6, 9]


async def test_two_interleaved_subscriptions_to_different_runtimes_do_not_mix(tmp_path: Path) -> None:
    """Each runtime's events are in its order, each once."""
    one, two = Writer(tmp_path, "rt_1"), Writer(tmp_path, "rt_2")
    one.say(5)
    async with serving(tmp_path, FakeHubs(one.hub, two.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"runtime_id": "rt_2"})
        await client.call("subscribe", {"runtime_id": "rt_1", "after_seq": 2})
        await client.send(request(7, "subscribe", {}))
        for _ in range(50):
            one.say()
            two.say()
        lines = await client.lines(3 + 1 + 100)
        events = [line["params"] for line in lines if "params" in line]
        assert [event["seq"] for event in events if event["runtime_id"] == "rt_1"] == list(range(3, 56))
        assert [event["seq"] for event in events if event["runtime_id"] == "rt_2"] == list(range(1, 51))


async def test_a_subscription_to_all_takes_in_runtimes_that_come_later(tmp_path: Path) -> None:
    """From their first event."""
    one = Writer(tmp_path, "rt_1")
    source = FakeHubs(one.hub)
    async with serving(tmp_path, source) as served:
        client = served.client()
        assert (await client.call("subscribe"))["latest_seq"] == 0
        later = Writer(tmp_path, "rt_2")
        source.add(later.hub)
        later.say(2)
        one.say()
        events = [line["params"] for line in await client.lines(3)]
        assert [(event["runtime_id"], event["seq"]) for event in events] in (
            [("rt_2", 1), ("rt_2", 2), ("rt_1", 1)],
            [("rt_1", 1), ("rt_2", 1), ("rt_2", 2)],
        )
        assert "latest_seq" not in await client.call("subscribe")


async def test_after_unsubscribe_nothing_more_comes(tmp_path: Path) -> None:
    """And who subscribes again may replay what was had before."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        name = (await client.call("subscribe"))["id"]
        writer.say(2)
        assert await client.seqs(2) == [1, 2]
        assert await client.call("unsubscribe", {"id": name}) == {"ok": True}
        writer.say()
        assert (await client.ask("ping"))["result"]
        assert (await client.ask("unsubscribe", {"id": name}))["error"]["data"]["reason"] == "no_such_subscription"
        await client.call("subscribe", {"replay": True})
        assert await client.seqs(3) == [1, 2, 3]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"after_seq": -1}, -32602),
        ({"limit": -1}, -32602),
        ({"on_lag": "block"}, -32602),
        ({"runtime_id": "rt_9"}, -32000),
        ({"after_seq": 1}, -32000),
    ],
)
async def test_a_subscription_that_cannot_be_is_refused(params: Any, code: int, tmp_path: Path) -> None:
    """Bad values, unknown runtimes, and `after_seq` where several runtimes could be meant."""
    source = FakeHubs(Writer(tmp_path, "rt_1").hub, Writer(tmp_path, "rt_2").hub)
    async with serving(tmp_path, source) as served:
        assert (await served.client().ask("subscribe", params))["error"]["code"] == code


async def test_a_subscriber_that_stalls_loses_the_oldest_and_is_told_how_many(tmp_path: Path) -> None:
    """Whoever reads meanwhile gets everything."""
    writer = Writer(tmp_path)
    total = 20_000
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        slow, good = served.client(), served.client()
        await slow.call("subscribe", {"on_lag": "drop"})
        await good.call("subscribe", {"on_lag": "drop"})
        for last in range(100, total + 1, 100):
            writer.say(100, size=100)
            assert await good.seqs(last) == list(range(last - 99, last + 1))
        found, dropped = await read_until(slow, total)
        assert found == sorted(set(found))
        assert len(found) + dropped == total
        assert dropped > total // 2
        assert found[-PENDING_EVENTS:] == list(range(total - PENDING_EVENTS + 1, total + 1))
        writer.say()
        assert await slow.seqs(total + 1) == [total + 1]


async def test_what_a_stalled_subscriber_lost_comes_once_however_often_it_replays(tmp_path: Path) -> None:
    """Also when one replay begins amid another, and when it stalls again afterwards."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe")
        found: list[int] = []
        for start in (0, 6001):
            for _ in range(60):
                writer.say(100, size=500)
                await trio.lowlevel.checkpoint()
            live, dropped = await read_until(client, start + 6000)
            assert dropped > 1000
            found += live
            await client.send(b"".join(request(number, "subscribe", {"replay": True}) for number in range(3)))
            answers = 0
            while found[-1] != start + 6001:
                line = await client.line()
                if "method" in line:
                    found.append(line["params"]["seq"])
                    continue
                answers += 1
                if answers == 3:
                    writer.say()
        assert sorted(found) == list(range(1, 12_003))


async def test_a_few_huge_events_count_by_their_bytes(tmp_path: Path) -> None:
    """Fewer than 256 events, but more than 4 MiB."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe")
        for _ in range(40):
            writer.say(size=500_000)
            await trio.lowlevel.checkpoint()
        found, dropped = await read_until(client, 40)
        assert len(found) + dropped == 40
        assert dropped > 25


async def test_up_to_4_mebibytes_are_not_dropped_although_the_ring_is_smaller(tmp_path: Path) -> None:
    """What is promised to a subscriber holds for events of any size."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe")
        for _ in range(30):
            writer.say(size=100_000)
        assert await client.seqs(30) == list(range(1, 31))


async def test_a_filtering_subscriber_that_stalls_loses_only_what_it_asked_for(tmp_path: Path) -> None:
    """Events that it does not want take no room, and are not counted."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"events": ["turn.end"]})
        rounds = 6000
        big = "x" * 2000
        for _ in range(rounds):
            writer.emit(chunk(300), TurnEnd(stop_reason="end_turn", final_output=big), chunk(300))
            await trio.lowlevel.checkpoint()
        found: list[int] = []
        dropped = 0
        while not found or found[-1] != rounds * 3 - 1:
            line = await client.line()
            if line["method"] == "notice":
                dropped += line["params"]["dropped_count"]
            else:
                found.append(line["params"]["seq"])
        assert dropped > 0
        assert len(found) + dropped == rounds
        assert found[-PENDING_EVENTS:] == [3 * i + 2 for i in range(rounds - PENDING_EVENTS, rounds)]


async def test_a_filtering_subscriber_that_stalls_keeps_256_events_however_many_others_pass(tmp_path: Path) -> None:
    """What it wants is kept although the ring has forgotten it."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"events": ["turn.end"]})
        # Fills the socket's buffer.
        writer.emit(*(TurnEnd(stop_reason="x" * 20_000) for _ in range(20)))
        for _ in range(100):
            writer.emit(turn_end())
            writer.say(100)
        wanted = [*range(1, 21), *(20 + 101 * i + 1 for i in range(100))]
        assert await client.seqs(wanted[-1]) == wanted


async def test_a_stalled_subscriber_with_disk_gets_every_event_in_flat_memory(tmp_path: Path) -> None:
    """However far it falls behind: here by 60 MB, of which hardly any is held."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"on_lag": "disk"})
        writer.say(1000, size=1000)
        tracemalloc.start()
        try:
            for _ in range(60):
                writer.say(1000, size=1000)
                await trio.lowlevel.checkpoint()
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < PENDING_BYTES + CHUNK_BYTES
        assert peak < 4 * PENDING_BYTES
        assert writer.hub.ring.size_bytes <= PENDING_BYTES
        assert await client.seqs(61_000) == list(range(1, 61_001))
        writer.say()
        assert await client.seqs(61_001) == [61_001]


async def test_many_who_catch_up_from_the_log_each_get_every_event(tmp_path: Path) -> None:
    """From different places, through the pieces that they share."""
    writer = Writer(tmp_path)
    writer.say(12_000, size=50)
    starts = [0, 0, 1, 300, 512, 777, 5000]
    async with serving(tmp_path, FakeHubs(writer.hub)) as served, trio.open_nursery() as nursery:

        async def follow(start: int) -> None:
            client = served.client()
            await client.send(request(1, "subscribe", {"after_seq": start, "on_lag": "disk"}))
            await client.line()
            assert await client.seqs(12_500) == list(range(start + 1, 12_501))

        for start in starts:
            nursery.start_soon(follow, start)
        await trio.lowlevel.checkpoint()
        for _ in range(50):
            writer.say(10)
            await trio.lowlevel.checkpoint()


async def test_a_stalled_subscriber_does_not_hold_up_answers_on_its_own_connection(tmp_path: Path) -> None:
    """An answer overtakes events that are further behind than the bounds."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"on_lag": "disk"})
        for _ in range(100):
            writer.say(100, size=1000)
            await trio.lowlevel.checkpoint()
        await client.send(request(5, "ping"))
        await served.client().ask("ping")
        before = 0
        while "id" not in await client.line():
            before += 1
        assert before < 5000
        assert (await client.seqs(10_000))[-1] == 10_000


async def test_what_the_log_has_lost_is_said_and_passed_over(tmp_path: Path) -> None:
    """A log that is not there must not stop what follows."""
    writer = Writer(tmp_path)
    writer.say(6000)
    writer.path.unlink()
    floor = writer.hub.ring.floor
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"replay": True, "on_lag": "disk"})
        notice = await client.line()
        assert notice["params"] == {"kind": "subscriber.lagged", "dropped_count": floor, "runtime_id": None}
        assert await client.seqs(6000) == list(range(floor + 1, 6001))


async def test_lines_that_a_full_disk_kept_out_of_the_log_are_taken_from_memory(tmp_path: Path) -> None:
    """As long as memory has them."""
    writer = Writer(tmp_path)
    writer.say(6000)
    kept = writer.path.read_bytes().splitlines(keepends=True)
    writer.path.write_bytes(b"".join(kept[:1500] + kept[5990:]))
    floor = writer.hub.ring.floor
    assert floor > 1500
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"replay": True, "on_lag": "disk"})
        found, dropped = await read_until(client, 6000)
        assert found == [*range(1, 1501), *range(floor + 1, 6001)]
        assert dropped == floor - 1500


async def test_a_log_that_cannot_be_read_is_passed_over_like_one_that_is_not_there(tmp_path: Path) -> None:
    """A directory in its place, for example."""
    writer = Writer(tmp_path)
    writer.say(6000)
    writer.path.unlink()
    writer.path.mkdir()
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.call("subscribe", {"replay": True})
        assert (await client.line())["params"]["kind"] == "subscriber.lagged"
        assert (await client.seqs(6000))[-1] == 6000


async def test_a_client_that_leaves_amid_its_events_leaves_nothing_behind(tmp_path: Path) -> None:
    """The hub forgets it, live or catching up."""
    writer = Writer(tmp_path)
    writer.say(8000, size=200)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        for params in ({}, {"replay": True}):
            client = served.client()
            await client.call("subscribe", params)
            client.close()
        await eventually(lambda: len(served.left) == 2)
        writer.say(8000)
        hub = writer.hub
        assert not hub._in_step  # pyright: ignore[reportPrivateUsage]
        assert not hub._behind  # pyright: ignore[reportPrivateUsage]


class FakeOutbox:
    """An outbox whose client reads when the test says so."""

    def __init__(self) -> None:
        self.is_marked = False
        self.seqs: list[int] = []

    def mark(self, feed: Feed) -> None:
        """Remembers it."""
        self.is_marked = True

    def pass_on(self, feed: Feed) -> None:
        """Its socket is never free by itself."""
        self.mark(feed)

    def pump(self) -> None:
        """Its socket is never free by itself."""

    async def take(self, feed: Feed) -> None:
        """One chunk, if there is any."""
        if not self.is_marked:
            return
        taken = feed.take()
        if taken is Need.LOG:
            piece = await feed.read_log()
            if piece is None:
                return
            taken = piece
        if isinstance(taken, Need):
            self.is_marked = False
            return
        lines = taken.data.splitlines()
        assert not any(b'"notice"' in line for line in lines)
        found = [int(line.split(b'"seq":')[1].split(b",")[0]) for line in lines]
        assert len(found) == taken.events
        self.seqs += found


@pytest.mark.parametrize("seed", range(12))
async def test_the_union_of_any_subscriptions_is_complete_and_has_no_event_twice(seed: int, tmp_path: Path) -> None:
    """Publishing, reading, subscribing further back and forgetting by the ring, in any order."""
    rng = random.Random(seed)
    writer = Writer(tmp_path)
    outbox = FakeOutbox()
    writer.say(rng.randrange(1, 3000))
    wanted: set[int] = set()
    names: dict[int, str] = dict.fromkeys(range(1, writer.seq + 1), "agent.message_chunk")
    subscriptions: list[tuple[int, frozenset[str] | None]] = []
    feed = Feed(writer.hub, outbox, writer.seq)
    for step in range(150):
        match rng.choice(["publish", "publish", "take", "take", "take", "subscribe"]):
            case "publish":
                events = [rng.choice([chunk(), turn_end()]) for _ in range(rng.choice([1, 5, 700]))]
                first = writer.seq + 1
                writer.emit(*events)
                for seq, event in enumerate(events, first):
                    names[seq] = "turn.end" if isinstance(event, TurnEnd) else "agent.message_chunk"
            case "take":
                await outbox.take(feed)
            case _ if len(subscriptions) < 6:
                start = rng.choice([0, writer.seq, rng.randrange(writer.seq + 1)])
                only = rng.choice([None, frozenset({"turn.end"})])
                subscriptions.append((start, only))
                feed.add(f"s{step}", Interest(only, start, is_lossless=True))
            case _:
                pass
    while outbox.is_marked:
        await outbox.take(feed)
    for start, only in subscriptions:
        wanted |= {seq for seq, name in names.items() if seq > start and (only is None or name in only)}
    assert len(outbox.seqs) == len(set(outbox.seqs))
    assert set(outbox.seqs) == wanted


async def test_the_first_event_after_a_quiet_moment_is_sent_at_once_and_the_next_together(tmp_path: Path) -> None:
    """One event is not late for a turn of the scheduler; a flood is not sent piece by piece."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        writer = Writer(tmp_path, "rt_1")
        outbox = Outbox(ours, lambda: None)
        Feed(writer.hub, outbox, 0).add("s", Interest(None, 0, is_lossless=True))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            await wait_all_tasks_blocked()
            for _ in range(2):
                writer.say()
                assert len(theirs.recv(1 << 16).splitlines()) == 1
                writer.say()
                writer.say()
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)
                await wait_all_tasks_blocked()
                assert len(theirs.recv(1 << 16).splitlines()) == 2
            nursery.cancel_scope.cancel()
