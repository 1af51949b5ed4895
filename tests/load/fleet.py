"""Many runtimes at once, and what they cost while nothing happens."""

import os
import statistics
import time

from tests.bench import machine
from tests.load.agents import HANG
from tests.load.rows import Load, Row
from tests.load.supervisors import CLEAN, MIB, Loaded, wait_until


def measure_fleet(load: Load) -> Row:
    """All there at once, asked for, cancelled, gone."""
    count = load.times(500)
    row = Row(
        key="fleet",
        done=f"{count} runtimes at once: half of them parked after a turn, half in a turn that does not end; all "
        "cancelled together",
    )
    with load.place() as place:
        ours = Loaded(place)
        ours.spawn_many(["warm up"])
        before = ours.footprint()
        began = time.monotonic()
        parked = ours.spawn_many(["hello"] * (count // 2))
        busy = ours.spawn_many([HANG] * (count - count // 2))
        row.tell("seconds to start them", time.monotonic() - began)
        ours.wait_statuses({"idle": len(parked) + 1, "running": len(busy)})
        row.equal("runtimes in `list`", sum(ours.statuses().values()), count + 1)
        row.equal("own processes of runtimes", len(set(_pids(ours))), count + 1)
        answered = [ours.client.ask("status", runtime_id=runtime_id) for runtime_id in (*parked, *busy)]
        row.equal("`status` answered", sum("result" in each for each in answered), count)
        row.tell("`status`, p50 ms", 1000 * statistics.median(_timed(ours, "status", runtime_id=busy[0])))
        row.tell("`list`, p50 ms", 1000 * statistics.median(_timed(ours, "list")))
        sizes = [machine.pss_bytes(pid) / MIB for pid in _pids(ours)[:: max(1, count // 50)]]
        row.tell("memory of a runtime without its agent, PSS MiB", statistics.median(sizes))
        row.tell("memory of the supervisor, PSS MiB", ours.memory()["supervisor"])
        row.tell("descriptors of the supervisor", len(os.listdir(f"/proc/{ours.pid}/fd")))
        began = time.monotonic()
        answers = ours.cancel_many([*parked, *busy, "rt_1"])
        row.tell("seconds to cancel them", time.monotonic() - began)
        row.equal("cancels that left nothing", sum(each.get("result") == CLEAN for each in answers), count + 1)
        wait_until(lambda: not ours.leftovers(), f"processes are left: {ours.leftovers()[:5]}")
        row.equal("processes left", len(ours.leftovers()), 0)
        wait_until(lambda: _settled(ours, before), f"{ours.footprint()} instead of {before}")
        row.holds("descriptors and children of supervisor and zygote as before", _settled(ours, before))
        row.equal("sentinels", len(list(ours.stable.state.glob("rt_*/sentinel.env"))), count + 1)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def measure_idle(load: Load) -> Row:
    """Parked runtimes use no processor."""
    count, seconds = load.times(200), 5.0
    row = Row(key="idle", done=f"{count} parked runtimes, and nobody who asks, for {seconds:g} seconds")
    with load.place() as place:
        ours = Loaded(place)
        ours.spawn_many(["hello"] * count)
        ours.wait_statuses({"idle": count})
        pids = [*ours.keepers().values(), *_pids(ours)]
        row.equal("processes looked at: runtimes, supervisor, zygote", len(pids), count + 2)
        time.sleep(11)  # worker threads go away ten seconds after their last work
        before = machine.cpu_seconds(pids)
        time.sleep(seconds)
        used = (machine.cpu_seconds(pids) - before) / seconds
        row.at_most("of one core, all of them together", round(100 * used, 3), 0.5, " %")
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def _pids(ours: Loaded) -> list[int]:
    return [each["pid"] for each in ours.client.call("list") if each["pid"] is not None]


def _timed(ours: Loaded, method: str, **params: str) -> list[float]:
    taken: list[float] = []
    for _ in range(30):
        began = time.perf_counter()
        ours.client.call(method, **params)
        taken.append(time.perf_counter() - began)
    return taken


def _settled(ours: Loaded, before: dict[str, dict[str, int]]) -> bool:
    """Whether nothing is open or running that was not there with one parked runtime, and nothing of that either."""
    after = ours.footprint()
    return all(after[name][what] <= before[name][what] for name in before for what in ("descriptors", "children"))
