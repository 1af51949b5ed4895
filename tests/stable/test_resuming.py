"""Which runs go on in a new process when theirs was lost."""

import time
from pathlib import Path

import pytest

from avenor.host.rundir import RunDir
from avenor.protocol.events import RunEnding, RunResumed
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import Record, RunSpec
from avenor.stable.resuming import Resuming
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.shutdown import Mode


def lost(tmp_path: Path) -> Runtime:
    """A runtime whose process was lost."""
    record = Record(runtime_id="rt_1", run_id="r", spec=RunSpec(prompt="x", dir="/"), prompt="x", on_crash="resume")
    return Runtime(RunDir(tmp_path), record, Stage.LIVE)


def resuming(*, most: int = 2, mode: Mode | None = None) -> Resuming:
    """Two within a minute."""
    return Resuming(most=most, window_seconds=60.0, stopping=lambda: mode)


def resume(runtime: Runtime, *, seconds_ago: float) -> None:
    """It got a new process so long ago."""
    event = RunResumed(cut="nothing", goes_on="parked", ts=int((time.time() - seconds_ago) * 1000))
    runtime.hub.fold.apply(event)


def test_a_run_goes_on(tmp_path: Path) -> None:
    """Nothing is against it."""
    assert resuming().refusal(lost(tmp_path)) is None


def test_one_that_was_being_ended_does_not(tmp_path: Path) -> None:
    """Whoever it was: its own timeout, a client that waits for its cancel, this supervisor."""
    for number in range(3):
        runtime = lost(tmp_path)
        if number == 0:
            runtime.hub.fold.apply(RunEnding(status="TIMEOUT", exit_code=124, stop_reason="timeout"))
        elif number == 1:
            runtime.cancels = 1
        else:
            runtime.end = Outcome.of("cancelled", run_id="r")
        assert resuming().refusal(runtime) == "it was being ended"


def test_so_often_within_the_window_and_no_more(tmp_path: Path) -> None:
    """Those before it do not count."""
    runtime = lost(tmp_path)
    for seconds_ago in (3600.0, 59.0):
        resume(runtime, seconds_ago=seconds_ago)
    assert resuming().refusal(runtime) is None
    resume(runtime, seconds_ago=1.0)
    assert resuming().refusal(runtime) == "it had been resumed 2 times within 1m"
    assert resuming(most=0).refusal(lost(tmp_path)) == "it had been resumed 0 times within 1m"


@pytest.mark.parametrize(("mode", "goes_on"), [("drain", True), ("graceful", False), ("kill", False)])
def test_a_supervisor_that_stops_starts_nothing_again(tmp_path: Path, mode: Mode, goes_on: bool) -> None:
    """But while it drains, what runs is to come to its end."""
    assert (resuming(mode=mode).refusal(lost(tmp_path)) is None) == goes_on
    assert not resuming(mode=mode).leaves_to_next


def test_what_is_lost_while_it_detaches_is_the_next_ones(tmp_path: Path) -> None:
    """It decides nothing about it."""
    assert resuming(mode="detach").leaves_to_next
