"""One runtime's events as they pass through a process."""

from pathlib import Path

import trio
import trio.testing

from avenor.control.hub import EventHub
from avenor.control.interests import Interest, Interests
from avenor.control.ring import CHUNK_BYTES, CHUNK_EVENTS, LINES, PENDING_BYTES, Ring
from avenor.protocol.events import EventHead, RunEnd, SessionStart, TurnEnd, TurnStart, encode_event
from avenor.protocol.methods import wrap_event
from avenor.protocol.snapshot import Fold, Snapshot
from tests.control.served import Writer, chunk


class Follower:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.marks = 0
        self.hurries = 0
        self.evicted = 0

    def mark(self) -> None:
        """There is more."""
        self.marks += 1

    def more(self) -> None:
        """The same."""
        self.mark()

    def hurry(self) -> None:
        """There is much more."""
        self.hurries += 1

    def evicting(self, count: int) -> None:
        """Lines go."""
        self.evicted += count

    def released(self) -> None:
        """Nothing more comes."""


def test_a_hub_folds_what_passes(tmp_path: Path) -> None:
    """Its snapshot is that of the events so far."""
    writer = Writer(tmp_path, "rt_1")
    writer.emit(
        SessionStart(backend="scripted", dir="/d", session_id="s"),
        TurnStart(text="hi", source="spawn"),
        chunk(),
        TurnEnd(stop_reason="end_turn", final_output="done"),
    )
    snapshot = writer.hub.snapshot()
    assert (snapshot.status, snapshot.latest_seq, snapshot.final_output) == ("idle", 4, "done")
    assert writer.hub.latest_seq == 4


def test_what_was_published_before_is_skipped(tmp_path: Path) -> None:
    """A link that asks again for what it has is harmless."""
    writer = Writer(tmp_path)
    writer.say(5)
    lines, heads = list(writer.hub.ring.lines), [EventHead("agent.message_chunk", seq, 0) for seq in range(1, 6)]
    more = chunk()
    more.seq = 6
    writer.hub.publish([*lines, wrap_event(encode_event(more))], [*heads, EventHead("agent.message_chunk", 6, 0)])
    writer.hub.publish(lines, heads)
    assert writer.hub.ring.seqs == [1, 2, 3, 4, 5, 6]


def test_after_a_gap_the_ring_begins_anew(tmp_path: Path) -> None:
    """Whoever wants what did not pass must look into the log."""
    writer = Writer(tmp_path)
    writer.say(5)
    follower = Follower()
    writer.hub.attach(follower)
    writer.seq = 9
    writer.say(2)
    assert (writer.hub.ring.floor, writer.hub.ring.seqs, follower.evicted) == (9, [10, 11], 5)


def test_a_follower_is_marked_once_until_it_is_in_step_again(tmp_path: Path) -> None:
    """However much comes; and not at all once it has left."""
    writer = Writer(tmp_path)
    follower = Follower()
    writer.hub.attach(follower)
    assert follower.marks == 1
    writer.say(3)
    assert follower.marks == 1
    writer.hub.in_step(follower)
    writer.say()
    writer.say()
    assert follower.marks == 2
    writer.hub.detach(follower)
    writer.say()
    assert follower.marks == 2


def test_followers_are_hurried_before_they_would_be_over_their_bounds(tmp_path: Path) -> None:
    """By every 256 events and every mebibyte."""
    writer = Writer(tmp_path)
    follower = Follower()
    writer.hub.attach(follower)
    writer.say(256)
    assert follower.hurries == 0
    writer.say(1000)
    assert follower.hurries == 4
    writer.say(4, size=600_000)
    assert follower.hurries == 7


def test_the_ring_is_bounded_by_lines_and_bytes(tmp_path: Path) -> None:
    """And keeps what subscribers are promised."""
    writer = Writer(tmp_path)
    for _ in range(300):
        writer.say(100)
    ring = writer.hub.ring
    assert LINES // 2 < len(ring.lines) <= LINES
    assert ring.size_bytes == sum(map(len, ring.lines))
    assert ring.floor + len(ring.lines) == 30_000
    for _ in range(300):
        writer.say(size=100_000)
    assert 3 << 20 < ring.size_bytes <= PENDING_BYTES
    writer.say(size=6_000_000)
    assert len(ring.lines) == 1


def test_whoever_asks_the_ring_for_the_same_gets_the_same_object() -> None:
    """So that a hundred subscribers in step cost one copy."""
    ring = Ring(0)
    lines = [b"%d\n" % seq for seq in range(1, 1000)]
    ring.append(lines, [EventHead("e", seq, 0) for seq in range(1, 1000)], sum(map(len, lines)))
    first = ring.chunk_from(ring.index_after(10))
    assert first is ring.chunk_from(ring.index_after(10))
    assert (first.events, first.last_seq, first.data[:3]) == (CHUNK_EVENTS, 10 + CHUNK_EVENTS, b"11\n")


def test_a_chunk_is_bounded_by_bytes_but_has_at_least_one_line() -> None:
    """A huge line goes alone."""
    ring = Ring(0)
    lines = [b"a" * 100_000, b"b" * 100_000, b"c" * 100_000, b"d" * 900_000]
    ring.append(lines, [EventHead("e", seq, 0) for seq in range(1, 5)], sum(map(len, lines)))
    assert ring.chunk_from(0).data == lines[0] + b"\n" + lines[1] + b"\n"
    assert len(ring.chunk_from(0).data) <= CHUNK_BYTES
    assert ring.chunk_from(3).data == lines[3] + b"\n"


async def test_waiting_ends_with_the_state_that_was_waited_for(tmp_path: Path) -> None:
    """Even if it lasted for one event within a batch."""
    writer = Writer(tmp_path)
    found: list[Snapshot] = []

    async def wait() -> None:
        found.append(await writer.hub.wait_until(lambda state: state.status == "idle"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(writer.hub.changed)
        await trio.testing.wait_all_tasks_blocked()
        writer.emit(
            SessionStart(backend="b", dir="/d"),
            TurnEnd(stop_reason="end_turn"),
            RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"),
        )
    assert (found[0].status, found[0].latest_seq) == ("idle", 2)
    assert writer.hub.snapshot().status == "ended"
    assert (await writer.hub.wait_until(lambda state: state.status == "ended")).latest_seq == 3


async def test_waiting_notices_what_no_event_carries_when_told(tmp_path: Path) -> None:
    """`touch` is for members that others set."""
    hub = Writer(tmp_path).hub

    def is_owned(state: Snapshot) -> bool:
        return state.owner == "c1"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hub.wait_until, is_owned)
        await trio.testing.wait_all_tasks_blocked()
        hub.touch()
        hub.fold.state.owner = "c1"
        hub.touch()


async def test_a_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    """The hub forgets it."""
    hub = Writer(tmp_path).hub
    with trio.move_on_after(0):
        await hub.wait_until(lambda state: state.status == "ended")
    assert not hub._waiters  # pyright: ignore[reportPrivateUsage]


def test_a_hub_for_an_existing_log_begins_after_it(tmp_path: Path) -> None:
    """What is in the log is not in memory."""
    hub = EventHub("rt_1", tmp_path / "log", Fold(Snapshot(latest_seq=70)))
    assert (hub.latest_seq, hub.ring.floor) == (70, 70)


def test_what_one_subscription_lost_another_may_still_want() -> None:
    """Dropped events were not sent, so a later replay brings them; the others it does not repeat."""
    interests = Interests()
    interests.add("a", Interest(None, 0, is_lossless=False))
    for seq in (4, 5, 6):
        interests.lost(seq, seq)
    interests.went_back(10)
    interests.add("b", Interest(None, 0, is_lossless=True))
    assert [seq for seq in range(1, 13) if interests.wants(seq, "x")] == [4, 5, 6, 11, 12]


def test_what_was_lost_is_owed_once() -> None:
    """As far as a replay went; of what it did not reach another brings the rest."""
    interests = Interests()
    interests.add("a", Interest(None, 0, is_lossless=False))
    for seq in (2, 3, 5, 6, 7, 8):
        interests.lost(seq, seq)
    interests.went_back(10)
    interests.caught_up(2, 6)
    interests.add("b", Interest(None, 0, is_lossless=True))
    assert [seq for seq in range(1, 13) if interests.wants(seq, "x")] == [2, 7, 8, 11, 12]


def test_gaps_beyond_a_bound_are_joined() -> None:
    """Rather repeat an old event than keep an endless list, or lose one."""
    interests = Interests()
    interests.add("a", Interest(None, 0, is_lossless=False))
    for seq in range(10, 2000, 10):
        interests.lost(seq, seq)
    interests.went_back(2000)
    interests.add("b", Interest(None, 0, is_lossless=True))
    wanted = [seq for seq in range(1, 2001) if interests.wants(seq, "x")]
    assert set(range(10, 2000, 10)) <= set(wanted)
    assert wanted[-3:] == [1970, 1980, 1990]
    assert 5 not in wanted
