"""Families: the full disk, the descriptor limit, steps of the clock. What is short comes back, and nothing was lost."""

import os
import shutil
import signal
import time
from collections.abc import Generator

import pytest

from tests.e2e.harness import WAIT_SECONDS, Place, Stable, commands, is_alive, read_log, say, steps
from tests.e2e.shortage import SmallDisk, SteppedClock, missing, mounted_small, told_lost, without_descriptors
from tests.helpers import eventually_sync


@pytest.fixture
def small_disk(place: Place) -> Generator[SmallDisk, None, None]:
    """Mounted in the test's place, as `small`."""
    with mounted_small(place) as disk:
        if disk is None:
            pytest.skip("mounting is not allowed here")
        yield disk


def test_an_end_on_a_full_disk_is_written_when_there_is_room(place: Place, small_disk: SmallDisk) -> None:
    """The run ends while nothing can be written: clients are told the truth at once, log and sentinel when it is freed,
    and the next supervisor says the same.
    """
    stable = Stable(place, name="small/s")
    client = stable.connect()
    gate = place.work / "gate"
    # Longer than all other events, so that there is no room for the last one although some of them may have fitted.
    reason = "z" * 2000
    script = place.script(
        steps(
            {"do": "wait_for", "path": str(gate)},
            {"do": "flood", "count": 40, "size": 10},
            {"do": "stop", "reason": reason},
        )
    )
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    sentinel = stable.state / runtime_id / "sentinel.env"
    small_disk.fill()
    gate.touch()
    ended = client.call("wait", runtime_id=runtime_id, until="done")
    assert (ended["status"], ended["outcome"], ended["stop_reason"]) == ("ended", "FAILED", reason)
    eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["pid"] is None, WAIT_SECONDS)
    assert not sentinel.exists()
    assert "run.end" not in {event["event"] for event in read_log(stable.log_path(runtime_id))}
    assert len(client.call("list")) == 1
    small_disk.free()
    eventually_sync(sentinel.exists, WAIT_SECONDS)
    assert (stable.sentinel(runtime_id).status, stable.sentinel(runtime_id).stop_reason) == ("FAILED", reason)
    events = read_log(stable.log_path(runtime_id))
    assert (events[-1]["event"], events[-1]["stop_reason"]) == ("run.end", reason)
    assert missing(events)
    assert told_lost(events) == missing(events)
    assert stable.shutdown() == 0
    again = Stable(place, name="small/s").connect().call("status", runtime_id=runtime_id)
    assert (again["status"], again["outcome"], again["stop_reason"]) == ("ended", "FAILED", reason)


def test_a_turn_that_ends_on_a_full_disk_has_its_sentinel_when_there_is_room(
    place: Place, small_disk: SmallDisk
) -> None:
    """The run is parked, and whoever waits for its sentinel gets it as soon as it can be written."""
    stable = Stable(place, name="small/s")
    client = stable.connect()
    gate = place.work / "gate"
    script = place.script(steps({"do": "wait_for", "path": str(gate)}, say("Done.")))
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    sentinel = stable.state / runtime_id / "sentinel.env"
    small_disk.fill()
    gate.touch()
    assert client.call("wait", runtime_id=runtime_id, until="done")["status"] == "idle"
    assert not sentinel.exists()
    small_disk.free()
    eventually_sync(sentinel.exists, WAIT_SECONDS)
    assert stable.sentinel(runtime_id).status == "DONE"
    assert client.call("status", runtime_id=runtime_id)["status"] == "idle"


def test_an_agent_starts_on_a_full_disk(place: Place, small_disk: SmallDisk) -> None:
    """Its process cannot be noted for a sweep after a crash; that is no reason to fail, nor to leave it behind."""
    stable = Stable(place, name="small/s")
    client = stable.connect()
    gate = place.work / "gate"
    script = place.script(steps({"do": "wait_for", "path": str(gate)}, {"do": "die"}, times=1), steps(say("Done.")))
    runtime_id = client.spawn(place, script=script, max_retries=1)["runtime_id"]
    (stable.state / runtime_id / "procs").unlink()  # so that it would need a block of its own
    small_disk.fill()
    gate.touch()
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    small_disk.free()
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    assert place.processes_like("avenor.runtimes.scripted") == []
    assert stable.sentinel(runtime_id).status == "DONE"


def test_a_full_state_directory_refuses_spawns_and_loses_no_id(place: Place, small_disk: SmallDisk) -> None:
    """A spawn that cannot be recorded is refused, clearly and for now; the next one that can gets the next id."""
    stable = Stable(place, name="small/s")
    client = stable.connect()
    running = client.spawn(place, script=place.script(steps({"do": "hang"})))["runtime_id"]
    small_disk.fill()
    for _ in range(3):
        error = client.refusal("spawn", prompt="x", dir=str(place.work), backend="scripted")
        assert (error["code"], error["data"]["retryable"]) == (-32000, True)
        assert "No space left" in error["message"]
    assert [each["runtime_id"] for each in client.call("list")] == [running]
    assert [path.name for path in stable.state.glob("rt_*")] == [running]
    small_disk.free()
    again = client.spawn(place)["runtime_id"]
    assert (running, again) == ("rt_1", "rt_2")
    assert client.call("wait", runtime_id=again, until="done")["outcome"] == "DONE"
    assert client.call("cancel", runtime_id=running) == {"ok": True, "left": []}


def test_a_loss_at_the_descriptor_limit_is_settled_when_there_are_some(stable: Stable) -> None:
    """A runtime is killed while its supervisor can open nothing: nobody is told otherwise, spawns are refused, who is
    connected is served; afterwards what it started is swept, and log, list and sentinel agree.
    """
    place, client = stable.place, stable.connect()
    sleep = place.sleeper()
    command = {"do": "run", "command": f"setsid {sleep} &", "background": True}
    victim = client.spawn(place, script=place.script(steps(command, {"do": "hang"})))["runtime_id"]
    other = client.spawn(place, script=place.script(steps({"do": "hang"}), name="other.json"))["runtime_id"]
    (tool,) = eventually_sync(lambda: commands(sleep), WAIT_SECONDS)
    pid = stable.runtime_pid(victim)
    with without_descriptors(stable.process.pid):
        os.kill(pid, signal.SIGKILL)
        error = client.refusal("spawn", prompt="x", dir=str(place.work), backend="scripted")
        assert (error["code"], error["data"]["retryable"]) == (-32000, True)
        eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
        assert client.call("status", runtime_id=other)["status"] == "running"
        assert client.call("status", runtime_id=victim)["outcome"] in (None, "FAILED")
    ended = client.call("wait", runtime_id=victim, until="done")
    assert (ended["outcome"], ended["stop_reason"], ended["left_processes"]) == ("FAILED", "runtime_lost", [])
    assert not is_alive(tool)
    eventually_sync((stable.state / victim / "sentinel.env").exists, WAIT_SECONDS)
    assert stable.sentinel(victim).stop_reason == "runtime_lost"
    assert read_log(stable.log_path(victim))[-1]["stop_reason"] == "runtime_lost"
    assert client.call("cancel", runtime_id=other) == {"ok": True, "left": []}


def test_an_end_at_the_descriptor_limit_is_told_as_it_was(stable: Stable) -> None:
    """A run that ends by itself while its supervisor can open nothing keeps its own outcome."""
    place, client = stable.place, stable.connect()
    gate = place.work / "gate"
    script = place.script(steps({"do": "wait_for", "path": str(gate)}, {"do": "stop", "reason": "zz"}))
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    with without_descriptors(stable.process.pid):
        gate.touch()
        assert client.call("wait", runtime_id=runtime_id, until="done")["stop_reason"] == "zz"
    eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["pid"] is None, WAIT_SECONDS)
    assert stable.sentinel(runtime_id).stop_reason == "zz"
    assert client.spawn(place)["runtime_id"] == "rt_2"
    assert stable.shutdown() == 0


@pytest.mark.parametrize("way", ["cancelled", "by itself"])
def test_a_run_that_ends_at_the_descriptor_limit_is_over(stable: Stable, way: str) -> None:
    """While its supervisor can open nothing: whoever waits for its end is answered at once. Afterwards its sentinel is
    there, it can be pruned, and no drain waits for it.
    """
    place, client = stable.place, stable.connect()
    gate = place.work / "gate"
    script = place.script(steps({"do": "wait_for", "path": str(gate)}, {"do": "stop", "reason": "zz"}))
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    with without_descriptors(stable.process.pid):
        if way == "by itself":
            gate.touch()
            eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["pid"] is None, WAIT_SECONDS)
        assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
        assert client.call("status", runtime_id=runtime_id)["status"] == "ended"
    eventually_sync((stable.state / runtime_id / "sentinel.env").exists, WAIT_SECONDS)
    assert stable.sentinel(runtime_id).stop_reason == ("zz" if way == "by itself" else "cancelled")
    eventually_sync(lambda: client.call("prune", keep="0s", dry_run=True) == {"pruned": [runtime_id]}, WAIT_SECONDS)
    assert client.call("prune", keep="0s") == {"pruned": [runtime_id]}
    assert stable.shutdown("drain") == 0


def test_a_run_that_is_lost_at_the_descriptor_limit_goes_on_when_there_are_some(place: Place) -> None:
    """With `--on-crash resume`, its supervisor waits for descriptors; it does not stay running without a process."""
    stable = Stable(place, "--on-crash", "resume")
    client = stable.connect()
    gate = place.work / "gate"
    victim = client.spawn(place, script=place.script(steps({"do": "wait_for", "path": str(gate)})))["runtime_id"]
    other = client.spawn(place)["runtime_id"]
    client.call("subscribe")
    client.call("wait", runtime_id=other, until="done")
    pid = stable.runtime_pid(victim)
    with without_descriptors(stable.process.pid):
        os.kill(pid, signal.SIGKILL)
        eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
        for _ in range(3):  # the loss has long been noticed when these have ended
            client.call("prompt", runtime_id=other, text="more")
            client.call("wait", runtime_id=other, until="done")
    client.wait_event("run.resumed", victim)
    gate.touch()
    assert client.call("wait", runtime_id=victim, until="done")["outcome"] == "DONE"
    assert client.call("status", runtime_id=victim)["pid"] not in (None, pid)
    assert stable.shutdown("drain") == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_steps_of_the_clock_move_no_deadline(place: Place) -> None:
    """The wall clock goes a day ahead, then two days back: timeouts, silences and waits take what they take, and the
    times of events follow the clock.
    """
    clock = SteppedClock(place.path)
    stable = Stable(place, "--parked-timeout", "1s", environ=clock.environ)
    client = stable.connect()
    hang = place.script(steps(say("a"), {"do": "hang"}))
    endless = client.spawn(place, script=hang)["runtime_id"]
    began = time.monotonic()
    # Their time may be over before an agent has started.
    common = {"prompt": "x", "dir": str(place.work), "backend": "scripted", "wait": "started"}
    limited = {
        reason: client.send("spawn", **common, script=hang, **{reason: "1s"})
        for reason in ("timeout", "progress_timeout")
    }
    parked = client.send("spawn", **common)
    ids = {reason: client.answer(each)["result"]["runtime_id"] for reason, each in limited.items()}
    ids["end_turn"] = client.answer(parked)["result"]["runtime_id"]
    clock.set(86_400)
    waited_from = time.monotonic()
    assert client.call("wait", runtime_id=endless, until="done", timeout_ms=500)["status"] == "running"
    assert time.monotonic() - waited_from >= 0.5
    clock.set(-86_400)
    # What went by the clock would have ended at once when it went ahead, or not for days after it went back.
    eventually_sync(
        lambda: [each["runtime_id"] for each in client.call("list") if each["status"] != "ended"] == [endless],
        WAIT_SECONDS,
    )
    assert time.monotonic() - began >= 1
    assert {each: client.call("status", runtime_id=ids[each])["stop_reason"] for each in ids} == {
        each: each for each in ids
    }
    assert client.call("status", runtime_id=endless)["status"] == "running"
    assert client.call("cancel", runtime_id=endless) == {"ok": True, "left": []}
    events = read_log(stable.log_path(endless))
    assert missing(events) == []
    # It was the clock that these processes have: the last event is a day before the first.
    assert events[0]["ts"] - events[-1]["ts"] > 80_000_000
    assert stable.shutdown() == 0
