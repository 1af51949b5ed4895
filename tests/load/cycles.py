"""Spawned and cancelled again and again: nothing may stay."""

import time

from tests.load.rows import Load, Row
from tests.load.supervisors import CLEAN, Loaded, wait_until
from tests.load.tasks import TaskCount

_WARM_UP = 200
_AT_ONCE = 10
# A heap keeps the room for as many ended runs as it has ever held, so that must be the same before and after.
_UNPRUNED = 100
# What a heap that has breathed a thousand times may keep: 2 KiB for each cycle, where a runtime that is not forgotten
# takes ten.
_TOLERANCE_MIB = 2.0


def measure_cycles(load: Load) -> Row:
    """Descriptors, tasks, threads, children and memory as before."""
    count = load.times(1000)
    row = Row(
        key="cycles",
        done=f"{count} spawns and cancels, {_AT_ONCE} at a time, after {_WARM_UP} to warm up; what has ended is pruned "
        f"after each {_UNPRUNED}",
    )
    with load.place() as place:
        tasks = TaskCount(place.path)
        ours = Loaded(place, environ=tasks.environ)
        _cycle(ours, _WARM_UP)
        footprint, memory = _rest(ours)
        tasks_before = tasks.read()
        began = time.monotonic()
        clean = _cycle(ours, count)
        row.tell("seconds", time.monotonic() - began)
        after, memory_after = _rest(ours)
        row.equal("cancels that left nothing", clean, count)
        row.equal("tasks of the supervisor", tasks.read(), tasks_before)
        for name in footprint:
            for what in footprint[name]:
                row.equal(f"{what} of the {name}", after[name][what], footprint[name][what])
            row.at_most(f"growth of the {name}, PSS", memory_after[name] - memory[name], _TOLERANCE_MIB, " MiB")
            row.tell(f"memory of the {name} before and after, MiB", f"{memory[name]:.1f}, {memory_after[name]:.1f}")
        row.equal("processes left", len(ours.leftovers()), 0)
        row.equal("directories left", len(list(ours.stable.state.glob("rt_*"))), 0)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def _cycle(ours: Loaded, count: int) -> int:
    """How many cancels left nothing."""
    clean = 0
    for start in range(0, count, _AT_ONCE):
        if start % _UNPRUNED == 0:
            _prune(ours)
        ids = ours.spawn_many(["hello"] * min(_AT_ONCE, count - start))
        clean += sum(each.get("result") == CLEAN for each in ours.cancel_many(ids))
    return clean


def _rest(ours: Loaded) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
    """Footprint and memory when nothing moves any more."""
    _prune(ours)
    wait_until(lambda: not ours.leftovers(), f"processes are left: {ours.leftovers()[:5]}")
    time.sleep(11)  # worker threads go away ten seconds after their last work
    return ours.footprint(), ours.memory()


def _prune(ours: Loaded) -> None:
    wait_until(lambda: set(ours.statuses()) <= {"ended"}, "some runtimes have not ended")
    ours.client.call("prune", keep=0)
