"""The link to one runtime: order, gaps, and what happens when it breaks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.host.rundir import RunDir
from avenor.protocol.errors import BrokenError, Refused
from avenor.protocol.events import AgentNoise, Event, EventHead, encode_event, event_name
from avenor.protocol.methods import wrap_event
from avenor.protocol.spec import Record, RunSpec
from avenor.stable import link as link_module
from avenor.stable.link import Link
from avenor.stable.runtime import Runtime, Stage
from tests.helpers import eventually
from tests.stable.kit import FakeRuntime


class Ear:
    """Hears nothing in particular."""

    def runtime_changed(self, runtime: Runtime) -> None:
        pass

    def pass_notice(self, client: str, params: msgspec.Raw) -> None:
        pass


def make(tmp_path: Path) -> Runtime:
    """A runtime directory with a record, and what the supervisor knows of it."""
    directory = RunDir(tmp_path / "rt_1")
    directory.path.mkdir()
    spec = RunSpec(prompt="x", sentinel_file=str(directory.sentinel_path))
    record = Record(runtime_id="rt_1", run_id="r1", spec=spec, prompt="x")
    directory.record_path.write_bytes(msgspec.json.encode(record))
    return Runtime(directory, record, Stage.LIVE)


@asynccontextmanager
async def linked(runtime: Runtime) -> AsyncGenerator[tuple[Link, FakeRuntime], None]:
    """A link to a fake runtime, up."""
    fake = FakeRuntime(runtime.directory.path)
    link = runtime.link = Link(runtime, Ear())
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.live)
        nursery.start_soon(link.run)
        await runtime.started.wait()
        try:
            yield link, fake
        finally:
            link.close()
            fake.die()


def log_only(fake: FakeRuntime, event: Event) -> None:
    """An event that is in the log and never comes over the socket."""
    event.seq, event.ts, event.run_id = fake.hub.latest_seq + 1, 1, "r1"
    with open(fake.directory.log_path, "ab") as log:
        log.write(encode_event(event) + b"\n")
    fake.hub.ring.latest = event.seq


async def test_a_gap_is_filled_from_the_log(tmp_path: Path) -> None:
    """What was too long for a line is in the log; a subscriber of the supervisor misses nothing."""
    runtime = make(tmp_path)
    async with linked(runtime) as (_, fake):
        fake.begin()
        log_only(fake, AgentNoise(text="missed"))
        fake.emit(AgentNoise(text="came"))
        await eventually(lambda: runtime.hub.latest_seq == 5)
        assert runtime.hub.ring.seqs == [1, 2, 3, 4, 5]
        assert b"missed" in runtime.hub.ring.lines[3]


async def test_a_gap_that_the_log_has_too_stays(tmp_path: Path) -> None:
    """After a full disk the events go on; waiting for what is lost would be for ever."""
    runtime = make(tmp_path)
    async with linked(runtime) as (_, fake):
        fake.begin()
        fake.hub.ring.latest = 9
        fake.emit(AgentNoise(text="after"))
        await eventually(lambda: runtime.hub.latest_seq == 10)


async def test_a_broken_link_is_made_anew_and_goes_on_after_the_last_event(tmp_path: Path) -> None:
    """Calls under way fail as broken; nothing comes twice; the spawner's claim is not repeated."""
    runtime = make(tmp_path)
    runtime.spawner = "c1"
    async with linked(runtime) as (link, fake):
        fake.begin()
        await eventually(lambda: runtime.hub.latest_seq == 3)
        fake.behaviour["prompt"] = lambda _call, _params: trio.Event().wait()
        call = link.call("c1", "prompt", msgspec.Raw(b"{}"))
        await eventually(lambda: len(fake.calls) == 2)
        for connection in list(fake.server._connections.values()):  # pyright: ignore[reportPrivateUsage]
            connection.cut()
        with pytest.raises(BrokenError):
            await call.wait()
        fake.emit(AgentNoise(text="later"))
        await eventually(lambda: runtime.hub.latest_seq == 4)
        assert runtime.hub.ring.seqs == [1, 2, 3, 4]
        assert [method for _, method, _ in fake.calls] == ["claim", "prompt"]


async def test_a_call_after_the_death_fails_at_once(tmp_path: Path) -> None:
    """And one that waited for a connection that never came."""
    runtime = make(tmp_path)
    link = Link(runtime, Ear())
    waiting = link.call("c1", "prompt")
    link.close()
    await link.run()
    for call in (waiting, link.call("c1", "prompt")):
        with pytest.raises(BrokenError):
            await call.wait()


async def test_who_leaves_before_there_is_a_connection_owns_nothing(tmp_path: Path) -> None:
    """What it asked for is done, and right after it the runtime hears that it has left."""
    runtime = make(tmp_path)
    fake = FakeRuntime(runtime.directory.path)
    link = runtime.link = Link(runtime, Ear())
    claim = link.call("c3", "claim")
    link.client_left("c3")
    later = link.call("c4", "claim")
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.live)
        nursery.start_soon(link.run)
        assert msgspec.json.decode(await claim.wait()) == {"owner": "c3"}
        assert msgspec.json.decode(await later.wait()) == {"owner": "c4"}
        assert fake.left == ["c3"]
        link.close()
        fake.die()


async def test_calls_that_nobody_reads_are_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that is stuck cannot fill the supervisor's memory."""
    monkeypatch.setattr(link_module, "_WAITING_LIMIT", 2)
    link = Link(make(tmp_path), Ear())
    link.call("c1", "prompt")
    link.call("c1", "prompt")
    with pytest.raises(Refused) as refused:
        link.call("c1", "prompt")
    assert refused.value.retryable


async def test_a_flood_comes_through_in_order(tmp_path: Path) -> None:
    """More than one read's worth, cut anywhere."""
    runtime = make(tmp_path)
    async with linked(runtime) as (_, fake):
        count = 5000
        events = [AgentNoise(text="x" * 200, seq=seq, ts=seq, run_id="r1") for seq in range(1, count + 1)]
        lines = [encode_event(event) for event in events]
        fake.directory.log_path.write_bytes(b"".join(line + b"\n" for line in lines))
        heads = [EventHead(event_name(event), event.seq, event.ts) for event in events]
        fake.hub.publish([wrap_event(line) for line in lines], heads)
        await eventually(lambda: runtime.hub.latest_seq == count)
        assert runtime.state.latest_seq == count
        assert runtime.hub.ring.lines[-1] == wrap_event(lines[-1])
