"""Many runs that end in the same moment: every end is told, and as it was."""

import os
import time
from collections.abc import Sequence
from typing import Any

from tests.e2e.harness import Client, read_log
from tests.helpers import kill_each
from tests.load.agents import HANG
from tests.load.rows import Load, Row
from tests.load.supervisors import Loaded, wait_until

_LOST = "runtime_lost"


def measure_endings(load: Load) -> Row:
    """Told at once to end, each with a reason of its own."""
    count = load.times(200)
    row = Row(
        key="endings",
        done=f"{count} runs whose agents wait for one FIFO: it is opened, and each agent answers with a stop reason of "
        "its own",
    )
    with load.place() as place:
        ours = Loaded(place)
        gate = place.path / "gate"
        os.mkfifo(gate, 0o600)
        ids = ours.spawn_many([f"GATE_{number}_" for number in range(count)])
        wait_until(lambda: ours.statuses() == {"running": count}, "not all of them are in their turn")
        subscriber = ours.connect()
        subscriber.call("subscribe")
        with gate.open("w"):
            pass
        for runtime_id in ids:
            ours.client.call("wait", runtime_id=runtime_id, until="done")
        wait_until(lambda: ours.statuses() == {"ended": count}, "not all of them have ended")
        logs = [read_log(ours.stable.log_path(runtime_id)) for runtime_id in ids]
        reasons = [f"reason_{number}" for number in range(count)]
        listed = {each["runtime_id"]: each for each in ours.client.call("list")}
        row.equal("distinct stop reasons, as they were, in `list`", _right(ids, reasons, listed), count)
        wait_until(lambda: len(list(ours.stable.state.glob("rt_*/sentinel.env"))) == count, "a sentinel is missing")
        sentinels = [ours.stable.sentinel(runtime_id).stop_reason for runtime_id in ids]
        row.equal("in the sentinels", sum(a == b for a, b in zip(sentinels, reasons, strict=True)), count)
        ends = [[event for event in log if event["event"] == "run.end"] for log in logs]
        row.equal("logs with exactly one end", sum(len(each) == 1 for each in ends), count)
        row.equal("in the logs", sum(e[-1]["stop_reason"] == r for e, r in zip(ends, reasons, strict=True)), count)
        heard = _heard(subscriber, count)
        row.equal("told to a subscriber", sum(heard.get(i) == r for i, r in zip(ids, reasons, strict=True)), count)
        row.tell("span of the turns' ends, ms", _span([_first(log, "turn.end") for log in logs]))
        row.tell("span of the runs' ends, ms", _span([each[-1] for each in ends]))
        wait_until(lambda: not ours.leftovers(), f"processes are left: {ours.leftovers()[:5]}")
        row.equal("processes left", len(ours.leftovers()), 0)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def measure_killed(load: Load) -> Row:
    """Killed in one moment, with agents that outlive them."""
    count = load.times(200)
    row = Row(key="killed", done=f"{count} runtimes in a turn are killed (SIGKILL) one right after the other")
    with load.place() as place:
        ours = Loaded(place)
        ids = ours.spawn_many([HANG] * count)
        wait_until(lambda: ours.statuses() == {"running": count}, "not all of them are in their turn")
        pids = [ours.stable.runtime_pid(runtime_id) for runtime_id in ids]
        began = time.monotonic()
        kill_each(pids)
        row.tell("span of the kills, ms", 1000 * (time.monotonic() - began))
        wait_until(lambda: ours.statuses() == {"ended": count}, "not all of them are settled")
        row.tell("seconds until all are settled", time.monotonic() - began)
        wait_until(lambda: len(list(ours.stable.state.glob("rt_*/sentinel.env"))) == count, "a sentinel is missing")
        row.equal("runtime_lost in `list`", [e["stop_reason"] for e in ours.client.call("list")].count(_LOST), count)
        row.equal("in the sentinels", [ours.stable.sentinel(i).stop_reason for i in ids].count(_LOST), count)
        logs = [read_log(ours.stable.log_path(runtime_id)) for runtime_id in ids]
        ends = [[event["stop_reason"] for event in log if event["event"] == "run.end"] for log in logs]
        row.equal("logs with exactly this end", ends.count([_LOST]), count)
        row.equal("agents left", len(ours.leftovers()), 0)
        row.equal("exit of the supervisor", ours.stable.shutdown(), 0)
    return row


def _right(ids: Sequence[str], reasons: Sequence[str], listed: dict[str, dict[str, Any]]) -> int:
    return sum(listed[runtime_id]["stop_reason"] == reason for runtime_id, reason in zip(ids, reasons, strict=True))


def _heard(subscriber: Client, count: int) -> dict[str, str]:
    """The stop reasons of the ends that a subscriber was told."""
    heard: dict[str, str] = {}
    while len(heard) < count:
        subscriber.take()
        heard |= {e["runtime_id"]: e["stop_reason"] for e in subscriber.events if e["event"] == "run.end"}
        subscriber.events.clear()
    return heard


def _first(log: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(event for event in log if event["event"] == name)


def _span(events: Sequence[dict[str, Any]]) -> int:
    times = [int(event["ts"]) for event in events]
    return max(times) - min(times)
