"""No descriptors, no room, and a clock that jumps: what is refused, what goes on, and how it is when it is over."""

import resource
import shutil
import time
from collections.abc import Iterable
from typing import Any

from tests.e2e.harness import Client, read_log, say, steps
from tests.e2e.shortage import SteppedClock, missing, mounted_small, told_lost, without_descriptors
from tests.helpers import kill_each
from tests.load.agents import HANG
from tests.load.rows import Load, Row
from tests.load.supervisors import CLEAN, Loaded, is_idle, wait_until

_ROOM_CODE = -32000
_NO_MOUNT = "a small file system cannot be mounted here; it needs root"


def measure_descriptors(load: Load) -> Row:
    """The limit is reached by runtimes alone, and left when they end."""
    limit = 128
    row = Row(
        key="descriptors",
        done=f"a supervisor with {limit} descriptors is asked for runtimes until it has none left, and twenty times "
        "more; then half of them end",
    )

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with load.place() as place:
        ours = Loaded(place, setup=set_limit)
        ours.spawn_many(["warm up"])
        ids, refusals = _spawn_until_refused(ours, more=20)
        row.tell("runtimes until then", len(ids))
        row.equal("refusals that are -32000 and retryable", sum(map(_is_for_now, refusals)), len(refusals))
        row.equal("of so many", len(refusals), 21)
        answered = [ours.client.ask("status", runtime_id=each) for each in ids]
        row.equal("`status` of the others meanwhile", sum("result" in each for each in answered), len(ids))
        row.holds("processor idle meanwhile", is_idle(ours.pid))
        half = ids[::2]
        row.equal(
            "cancels that left nothing", [e.get("result") for e in ours.cancel_many(half)].count(CLEAN), len(half)
        )
        again = ours.spawn_many(["hello"] * 3)
        row.equal("spawns after that", len(again), 3)
        wait_until(lambda: _has_no_starting(ours), "a refused spawn is starting for ever")
        ours.cancel_many([*ids[1::2], *again])
        wait_until(lambda: set(ours.statuses()) <= {"ended", "idle"}, "some do not end")
        known = {each["runtime_id"] for each in ours.client.call("list")}
        row.equal(
            "directories of runtimes nobody knows", len({p.name for p in ours.stable.state.glob("rt_*")} - known), 0
        )
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
        row.equal("processes left", len(place.processes()), 0)
    return row


def measure_full_log(load: Load) -> Row:
    """Events are written to a disk that fills up and is freed, twice; the last time the run ends on it."""
    row = Row(
        key="disk-log",
        done="the disk of the logs is filled while a run streams, freed, filled again, and freed when the run has "
        "ended",
    )
    with load.place() as place, mounted_small(place) as disk:
        if disk is None:
            row.skipped = _NO_MOUNT
            return row
        ours = Loaded(place, name="small/s")
        gates = [place.work / f"gate-{number}" for number in range(4)]
        flood = {"do": "flood", "count": 200, "size": 100}
        played = [step for gate in gates for step in ({"do": "wait_for", "path": str(gate)}, flood)]
        script = place.script(steps(*played, {"do": "stop", "reason": "z" * 500}))
        runtime_id = ours.client.spawn(place, script=script)["runtime_id"]
        reader = ours.connect()
        reader.call("subscribe", runtime_id=runtime_id, replay=True)
        for number, gate in enumerate(gates):
            if number in (1, 3):
                disk.fill()
            gate.touch()
            _take_chunks(reader, 200 * (number + 1))
            if number == 1:
                disk.free()
        ended = ours.client.call("wait", runtime_id=runtime_id, until="done")
        row.equal("outcome told on the full disk", ended["stop_reason"], "z" * 500)
        wait_until(lambda: ours.client.call("status", runtime_id=runtime_id)["pid"] is None, "its process does not end")
        disk.free()
        sentinel = ours.stable.state / runtime_id / "sentinel.env"
        wait_until(sentinel.exists, "the sentinel is never written")
        events = read_log(ours.stable.log_path(runtime_id))
        row.equal("sentinel after it was freed", ours.stable.sentinel(runtime_id).stop_reason, "z" * 500)
        row.equal("last line of the log", (events[-1]["event"], events[-1]["stop_reason"]), ("run.end", "z" * 500))
        row.equal("events that are missing and not told", len(set(missing(events)) ^ set(told_lost(events))), 0)
        row.tell("events told to be lost", len(told_lost(events)))
        row.holds("some were lost", bool(told_lost(events)))
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
        again = Loaded(place, name="small/s")
        row.equal("the next supervisor's word", _reason(again, runtime_id), "z" * 500)
        again.stable.shutdown()
    return row


def measure_full_state(load: Load) -> Row:
    """Spawns while nothing can be written."""
    count = load.times(50)
    row = Row(
        key="disk-spawn", done=f"{count} spawns while the disk of the state directory is full, and one afterwards"
    )
    with load.place() as place, mounted_small(place) as disk:
        if disk is None:
            row.skipped = _NO_MOUNT
            return row
        ours = Loaded(place, name="small/s")
        (first,) = ours.spawn_many([HANG])
        disk.fill()
        refusals = _refusals(ours, count)
        row.equal("refusals that are -32000 and retryable", sum(map(_is_for_now, refusals)), count)
        row.equal("runtimes in `list`", len(ours.client.call("list")), 1)
        row.equal("the one that runs", ours.client.call("status", runtime_id=first)["status"], "running")
        disk.free()
        row.equal("the next id", ours.spawn_many(["hello"]), ["rt_2"])
        ours.wait_statuses({"idle": 1, "running": 1})
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
        row.equal("processes left", len(place.processes()), 0)
    return row


def measure_lost_at_limit(load: Load) -> Row:
    """Runtimes are killed while their supervisor can open nothing."""
    count = load.times(20)
    row = Row(
        key="limit-loss",
        done=f"{count} runtimes are killed while their supervisor can open no file, no pipe and no pidfd, for two "
        "seconds",
    )
    with load.place() as place:
        ours = Loaded(place)
        ids = ours.spawn_many([HANG] * count)
        pids = {runtime_id: ours.stable.runtime_pid(runtime_id) for runtime_id in ids}
        with without_descriptors(ours.pid):
            _kill(pids.values())
            time.sleep(2)
            row.equal("told otherwise meanwhile", _told_otherwise(ours), 0)
        wait_until(lambda: ours.statuses() == {"ended": count}, "some are never settled")
        reasons = [each["stop_reason"] for each in ours.client.call("list")]
        row.equal("runtime_lost in `list`", reasons.count("runtime_lost"), count)
        wait_until(lambda: len(list(ours.stable.state.glob("rt_*/sentinel.env"))) == count, "a sentinel is missing")
        row.equal("in the sentinels", [ours.stable.sentinel(i).stop_reason for i in ids].count("runtime_lost"), count)
        row.equal("agents left", len(ours.leftovers()), 0)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def measure_clock(load: Load) -> Row:
    """Deadlines while the wall clock jumps."""
    row = Row(
        key="clock",
        done="the wall clock of all processes jumps a day ahead and two days back, again and again, while runs with "
        "limits of 3 s are under way",
    )
    if shutil.which("cc") is None:
        row.skipped = "there is no C compiler to make a clock with"
        return row
    with load.place() as place:
        clock = SteppedClock(place.path)
        ours = Loaded(place, "--parked-timeout", "3s", environ=clock.environ)
        hang = place.script(steps(say("a"), {"do": "hang"}))
        began = time.monotonic()
        limits: dict[str, dict[str, str]] = {
            "timeout": {"timeout": "3s"},
            "progress_timeout": {"progress_timeout": "3s"},
        }
        ids = {
            name: ours.client.spawn(place, script=hang, **more)["runtime_id"]
            for name, more in {**limits, "none": {}}.items()
        }
        (parked,) = ours.spawn_many(["hello"])
        for number in range(10):
            clock.set(86_400 * (1 if number % 2 else -1))
            time.sleep(0.1)
        for name in limits:
            reason = ours.client.call("wait", runtime_id=ids[name], until="done")["stop_reason"]
            row.equal(f"end of the run with a {name}", reason, name)
            row.tell(f"after, s ({name})", took := time.monotonic() - began)
            row.holds("no earlier than that", took >= 3)
        wait_until(lambda: ours.client.call("status", runtime_id=parked)["status"] == "ended", "it stays parked")
        row.tell("end of the parked one after, s", took := time.monotonic() - began)
        row.holds("no earlier than that", took >= 3)
        row.equal(
            "still running without a limit", ours.client.call("status", runtime_id=ids["none"])["status"], "running"
        )
        row.holds("processor idle", is_idle(ours.pid))
        row.equal("cancel of that", ours.client.call("cancel", runtime_id=ids["none"]), CLEAN)
        events = read_log(ours.stable.log_path(ids["none"]))
        row.equal("gaps in its log", len(missing(events)), 0)
        row.holds("times of its events a day apart", abs(events[-1]["ts"] - events[0]["ts"]) > 80_000_000)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def _spawn_until_refused(ours: Loaded, *, more: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Spawns one after the other up to the first refusal, then so many more; the ids, and the refusals."""
    ids: list[str] = []
    refusals: list[dict[str, Any]] = []
    while len(refusals) <= more:
        answer = ours.client.ask("spawn", prompt=HANG, dir=str(ours.place.work), wait="started", **ours.agent)
        if "result" in answer:
            ids.append(answer["result"]["runtime_id"])
        else:
            refusals.append(answer["error"])
    return ids, refusals


def _refusals(ours: Loaded, count: int) -> list[dict[str, Any]]:
    return [
        ours.client.refusal("spawn", prompt="x", dir=str(ours.place.work), wait="started", **ours.agent)
        for _ in range(count)
    ]


def _is_for_now(error: dict[str, Any]) -> bool:
    return error["code"] == _ROOM_CODE and error["data"]["retryable"] is True


def _has_no_starting(ours: Loaded) -> bool:
    return "starting" not in ours.statuses()


def _take_chunks(reader: Client, count: int) -> None:
    """Reads until so many chunks have come in all."""
    while [event["event"] for event in reader.events].count("agent.message_chunk") < count:
        reader.take()


def _reason(ours: Loaded, runtime_id: str) -> str:
    return str(ours.client.call("status", runtime_id=runtime_id)["stop_reason"])


def _kill(pids: Iterable[int]) -> None:
    kill_each(pids)


def _told_otherwise(ours: Loaded) -> int:
    """How many are told to have ended in another way than they have."""
    return sum(each["stop_reason"] not in (None, "runtime_lost") for each in ours.client.call("list"))
