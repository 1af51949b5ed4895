"""Families: crash windows of the supervisor, shutdown modes, signals, tombstones, lost replies."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.e2e.harness import ASK, WAIT_SECONDS, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync

_HANG = steps(say("I am at it."), {"do": "hang"})


def hang(place: Place) -> str:
    """A script whose turns never end."""
    return place.script(_HANG, name="hang.json")


def spawn_hanging(client: Client, place: Place, count: int = 1) -> list[str]:
    """Runs in a turn that never ends."""
    params = {"prompt": "x", "dir": str(place.work), "backend": "scripted", "script": hang(place)}
    asked = [client.send("spawn", **params) for _ in range(count)]
    return [client.answer(each)["result"]["runtime_id"] for each in asked]


def test_runs_outlive_a_killed_supervisor(place: Place) -> None:
    """SIGKILL with a turn under way: the run goes on, logs, parks, writes its sentinel, and ends itself in time.

    The next supervisor neither doubles it nor reuses its id.
    """
    first = Stable(place, "--parked-timeout", "2")
    gate = place.work / "gate"
    script = place.script(steps(say("Before."), {"do": "wait_for", "path": str(gate)}, say("After.")))
    client = first.connect()
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    eventually_sync(lambda: "Before." in first.log_path(runtime_id).read_text(), WAIT_SECONDS)
    pid = first.runtime_pid(runtime_id)
    first.signal(signal.SIGKILL)
    first.wait_exit()
    gate.touch()
    eventually_sync(lambda: (first.state / runtime_id / "sentinel.env").exists(), WAIT_SECONDS)
    assert first.sentinel(runtime_id).status == "DONE"
    eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
    log = read_log(first.log_path(runtime_id))
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert [event["event"] for event in log].count("turn.end") == 1
    assert (log[-1]["event"], log[-1]["stop_reason"]) == ("run.end", "end_turn")
    second = Stable(place)
    client = second.connect()
    assert [(each["runtime_id"], each["outcome"]) for each in client.call("list")] == [("rt_1", "DONE")]
    assert client.spawn(place, script=script)["runtime_id"] == "rt_2"
    assert read_log(first.log_path(runtime_id)) == log
    assert second.shutdown() == 0
    assert place.processes() == {}


def test_a_supervisor_killed_after_its_answers_forgets_nothing(place: Place) -> None:
    """Spawns that were answered are known to the next supervisor, each once, with the processes that they had."""
    first = Stable(place)
    ids = spawn_hanging(first.connect(), place, 4)
    pids = {runtime_id: first.runtime_pid(runtime_id) for runtime_id in ids}
    first.signal(signal.SIGKILL)
    first.wait_exit()
    second = Stable(place)
    client = second.connect()
    listed = {each["runtime_id"]: each for each in client.call("list")}
    assert sorted(listed) == sorted(ids)
    eventually_sync(lambda: {each["runtime_id"]: each["pid"] for each in client.call("list")} == pids, WAIT_SECONDS)
    assert {each["status"] for each in client.call("list")} == {"running"}
    assert second.shutdown() == 0
    assert {second.sentinel(runtime_id).status for runtime_id in ids} == {"KILLED"}
    assert place.processes() == {}


@pytest.mark.parametrize("round_number", range(4))
def test_a_supervisor_killed_in_the_middle_of_spawns_leaves_a_consistent_state(place: Place, round_number: int) -> None:
    """Killed after a varying number of accepted spawns: each directory is a run that lives, or one told to be lost."""
    first = Stable(place, "--max-runtimes", "3")
    client = first.connect()
    params = {"prompt": "x", "dir": str(place.work), "backend": "scripted", "script": hang(place), "wait": "started"}
    for _ in range(6):
        client.send("spawn", **params)
    eventually_sync(lambda: len(list(first.state.glob("rt_*/record.json"))) > round_number, WAIT_SECONDS)
    first.signal(signal.SIGKILL)
    first.wait_exit()
    accepted = {path.parent.name for path in first.state.glob("rt_*/record.json")}
    second = Stable(place)
    client = second.connect()
    assert {each["runtime_id"] for each in client.call("list")} >= accepted
    eventually_sync(
        lambda: all(each["status"] in ("running", "ended", "idle") for each in client.call("list")), WAIT_SECONDS
    )
    for each in client.call("list"):
        assert each["status"] == "running" or each["stop_reason"] in ("launch_lost", "runtime_lost"), each
    assert second.shutdown() == 0
    # The first zygote, if it was still loading when its supervisor was killed, finds out only when it has loaded.
    eventually_sync(lambda: place.processes() == {}, WAIT_SECONDS)
    for runtime_id in accepted:
        events = read_log(second.log_path(runtime_id))
        assert [event["event"] for event in events].count("run.end") == 1
        assert [event["event"] for event in events].count("run.start") <= 1
        assert second.sentinel(runtime_id).run_id == events[-1]["run_id"]


def test_graceful_cancels_everything(stable: Stable) -> None:
    """In a turn, at a permission, parked, and queued: each ends as it should, and nothing is left."""
    place = stable.place
    client = stable.connect()
    (turn,) = spawn_hanging(client, place)
    asking = client.spawn(place, script=place.script(steps(ASK), name="ask.json"))["runtime_id"]
    parked = client.spawn(place)["runtime_id"]
    client.call("wait", runtime_id=parked, until="done")
    client.call("wait", runtime_id=asking, until="attention")
    assert stable.shutdown("graceful") == 0
    statuses = {runtime_id: stable.sentinel(runtime_id).status for runtime_id in (turn, asking, parked)}
    assert statuses == {turn: "KILLED", asking: "KILLED", parked: "DONE"}
    assert place.processes() == {}
    assert not stable.socket.exists()
    assert stable.tombstone.read_text().startswith(f"STOPPED reason=shutdown pid={stable.process.pid} at=")


def test_drain_waits_for_what_runs(stable: Stable) -> None:
    """No new spawn is taken, what runs comes to its own end, and then it stops."""
    place = stable.place
    gate = place.work / "gate"
    script = place.script(steps(say("Wait."), {"do": "wait_for", "path": str(gate)}))
    client = stable.connect()
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    client.call("shutdown", mode="drain")
    error = client.refusal("spawn", prompt="x", dir=str(place.work), backend="scripted")
    assert (error["code"], error["data"]["reason"]) == (-32000, "shutting_down")
    assert client.call("status", runtime_id=runtime_id)["status"] == "running"
    gate.touch()
    assert stable.wait_exit() == 0
    assert stable.sentinel(runtime_id).status == "DONE"
    assert place.processes() == {}


def test_detach_leaves_every_run(stable: Stable) -> None:
    """Running and asking ones go on; the next supervisor has them, and can end them."""
    place = stable.place
    client = stable.connect()
    (turn,) = spawn_hanging(client, place)
    asking = client.spawn(place, script=place.script(steps(ASK, say("Done.")), name="ask.json"))["runtime_id"]
    request = client.call("wait", runtime_id=asking, until="attention")["permission"]
    pids = [stable.runtime_pid(turn), stable.runtime_pid(asking)]
    assert stable.shutdown("detach") == 0
    assert "reason=detached" in stable.tombstone.read_text()
    assert [is_alive(pid) for pid in pids] == [True, True]
    second = Stable(place)
    client = second.connect()
    client.call("answer_permission", runtime_id=asking, request_id=request["request_id"], option_id="once")
    assert client.call("wait", runtime_id=asking, until="done")["outcome"] == "DONE"
    assert client.call("cancel", runtime_id=turn)["left"] == []
    assert second.shutdown() == 0
    assert place.processes() == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_stop_gracefully(stable: Stable, number: signal.Signals) -> None:
    """SIGINT and SIGTERM cancel the runs; the tombstone says that it was a signal."""
    (runtime_id,) = spawn_hanging(stable.connect(), stable.place)
    stable.signal(number)
    assert stable.wait_exit() == 0
    assert stable.sentinel(runtime_id).status == "KILLED"
    assert "reason=signal" in stable.tombstone.read_text()
    assert stable.place.processes() == {}


def test_a_second_signal_kills(stable: Stable) -> None:
    """An agent that reacts to nothing does not hold the second signal up."""
    place = stable.place
    script = place.script(_HANG, ignores=["cancel", "stdin_close", "sigterm"])
    client = stable.connect()
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    client.wait_event("agent.message_chunk")
    stable.signal(signal.SIGTERM)
    eventually_sync(lambda: client.refusal("spawn", prompt="x", dir="/", backend="scripted"), WAIT_SECONDS)
    stable.signal(signal.SIGINT)
    assert stable.wait_exit() == 0
    assert stable.sentinel(runtime_id).status == "KILLED"
    assert place.processes() == {}


def test_sigterm_may_mean_detach(place: Place) -> None:
    """`--on-sigterm detach`: the runs go on."""
    stable = Stable(place, "--on-sigterm", "detach")
    (runtime_id,) = spawn_hanging(stable.connect(), place)
    stable.signal(signal.SIGTERM)
    assert stable.wait_exit() == 0
    assert is_alive(stable.runtime_pid(runtime_id))
    assert "reason=detached" in stable.tombstone.read_text()


def test_a_killed_supervisor_leaves_no_tombstone_that_lies(place: Place) -> None:
    """Nobody could write one; the stale socket and lock do not hinder the next start, which removes an old one."""
    first = Stable(place)
    first.signal(signal.SIGKILL)
    first.wait_exit()
    assert not first.tombstone.exists()
    assert first.socket.exists()
    first.tombstone.write_text("STOPPED reason=old pid=1 at=then\n")
    second = Stable(place)
    assert not second.tombstone.exists()
    assert second.shutdown() == 0


def test_replies_are_not_outrun_by_the_shutdown(stable: Stable) -> None:
    """Every pipelined request before and with a shutdown is answered, the large ones too, before the socket closes."""
    place = stable.place
    client = stable.connect()
    spawn_hanging(client, place, 2)
    waiting = [client.send("wait", runtime_id=runtime_id, until="done") for runtime_id in ("rt_1", "rt_2")]
    asked = [client.send(method) for method in ["ping", "list"] * 20]
    cancelled = client.send("cancel", runtime_id="rt_1")
    last = client.send("shutdown", mode="graceful")
    assert client.answer(last)["result"] == {"shutting_down": True}
    assert all("result" in client.answer(each) for each in asked)
    assert client.answer(cancelled)["result"] == {"ok": True, "left": []}
    assert [client.answer(each)["result"]["outcome"] for each in waiting] == ["KILLED", "KILLED"]
    with pytest.raises(EOFError):
        client.read_line()
    assert stable.wait_exit() == 0


def test_clients_that_do_not_read_do_not_hold_the_shutdown_up(stable: Stable) -> None:
    """Neither a subscriber that reads nothing nor one with unread answers keeps the supervisor alive."""
    place = stable.place
    flood = place.script(steps({"do": "flood", "count": 3000, "size": 1000}, {"do": "hang"}))
    deaf = stable.connect()
    deaf.call("subscribe", on_lag="disk")
    for _ in range(300):
        deaf.send("list")
    client = stable.connect()
    client.spawn(place, script=flood)
    assert stable.shutdown("graceful") == 0
    assert place.processes() == {}


def test_many_shutdowns_at_once_are_one(stable: Stable) -> None:
    """Ten operators say it at the same time: each is answered, or finds nobody there any more."""
    spawn_hanging(stable.connect(), stable.place)
    answers: list[object] = []

    def operate(client: Client) -> None:
        try:
            answers.append(client.call("shutdown", mode="graceful"))
        except (EOFError, OSError):
            answers.append(None)

    threads = [threading.Thread(target=operate, args=[stable.connect()]) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert stable.wait_exit() == 0
    assert {"shutting_down": True} in answers
    assert len(answers) == 10
    assert stable.place.processes() == {}


def test_the_terminals_signals_do_not_reach_runtimes(stable: Stable) -> None:
    """Runtimes have sessions of their own, so that Ctrl-C reaches the supervisor only; it decides."""
    (runtime_id,) = spawn_hanging(stable.connect(), stable.place)
    pid = stable.runtime_pid(runtime_id)
    os.killpg(os.getpgid(stable.process.pid), signal.SIGHUP)
    assert stable.wait_exit() == 0
    assert is_alive(pid)
    record = json.loads(Path(stable.state / runtime_id / "record.json").read_text())
    assert record["runtime_id"] == runtime_id
