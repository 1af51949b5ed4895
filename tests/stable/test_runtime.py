"""The snapshot that the supervisor keeps encoded."""

import copy
from pathlib import Path

import msgspec

from avenor.host.rundir import RunDir
from avenor.protocol.events import (
    Event,
    EventHead,
    PermissionOption,
    PermissionRequest,
    RunStart,
    SessionStart,
    encode_event,
    event_name,
)
from avenor.protocol.methods import wrap_event
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import Record, RunSpec
from avenor.stable.runtime import Runtime, Stage


def make(tmp_path: Path, label: str = "L") -> Runtime:
    """A runtime that no event has come from."""
    record = Record(runtime_id="rt_1", run_id="r1", spec=RunSpec(prompt="x", label=label), prompt="x")
    return Runtime(RunDir(tmp_path), record, Stage.LIVE)


def publish(runtime: Runtime, event: Event) -> None:
    """Have an event pass."""
    event.seq = runtime.hub.latest_seq + 1
    event.ts = 1000 * event.seq
    runtime.hub.publish([wrap_event(encode_event(event))], [EventHead(event_name(event), event.seq, event.ts)])


def fresh(runtime: Runtime, now_ms: int) -> Snapshot:
    """The snapshot without the cache."""
    return copy.copy(runtime.hub.fold.snapshot(now_ms))


def test_the_cached_snapshot_is_always_the_fresh_one(tmp_path: Path) -> None:
    """After every event, at every time, and after changes that no event carries; a quote in a label fools nobody."""
    runtime = make(tmp_path, label='","silent_for_ms":1,"x":"')

    def check() -> None:
        for now_ms in (0, 1000, 5001, 7777):
            assert msgspec.json.decode(runtime.encoded_snapshot(now_ms), type=Snapshot) == fresh(runtime, now_ms)

    check()
    publish(runtime, RunStart(kind="single", backend="acp", dir="/", version="0"))
    check()
    publish(runtime, SessionStart(backend="acp", dir="/", session_id="s1"))
    check()
    runtime.state.owner = "c1"
    runtime.revise()
    check()
    options = [PermissionOption(option_id="o", kind="allow_once")]
    publish(
        runtime, PermissionRequest(request_id="p", tool="t", question="silent?", options=options, resolver="control")
    )
    check()


def test_silence_grows_without_an_event(tmp_path: Path) -> None:
    """While a run works, and not while it waits for a person."""
    runtime = make(tmp_path)
    publish(runtime, RunStart(kind="single", backend="acp", dir="/", version="0"))
    seen = [msgspec.json.decode(runtime.encoded_snapshot(now_ms))["silent_for_ms"] for now_ms in (900, 1000, 3500)]
    assert seen == [0, 0, 2500]
