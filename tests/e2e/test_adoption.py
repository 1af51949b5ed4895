"""Adoption: whatever a run is at when its supervisor dies, the next supervisor has it, and nothing of it is lost."""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from avenor.host.identity import read_stat
from tests.e2e.company import Company
from tests.e2e.harness import ASK, WAIT_SECONDS, Place, Stable, commands, is_alive, read_log, say, steps
from tests.helpers import eventually_sync, kill_each


def kill(stable: Stable) -> None:
    """SIGKILL for the supervisor alone; its zygote ends by itself."""
    stable.signal(signal.SIGKILL)
    stable.wait_exit()


def kill_with_zygote(stable: Stable) -> None:
    """SIGKILL for supervisor and zygote at once."""
    zygote = zygote_of(stable)
    kill_each([stable.process.pid, zygote])
    stable.wait_exit()


def zygote_of(stable: Stable) -> int:
    """The process of its zygote. What it forked has the same command line, and another parent."""
    parents = {pid: read_stat(pid) for pid in stable.place.processes_like("avenor.runtimes.zygote")}
    return next(pid for pid, stat in parents.items() if stat is not None and stat.ppid == stable.process.pid)


def detach(stable: Stable) -> None:
    """As an operator does before an upgrade."""
    assert stable.shutdown("detach") == 0
    assert "reason=detached" in stable.tombstone.read_text()


def hang_up(stable: Stable) -> None:
    """As the end of a terminal does."""
    stable.signal(signal.SIGHUP)
    assert stable.wait_exit() == 0


def terminate(stable: Stable) -> None:
    """As a service manager does, where `--on-sigterm detach` says what is meant."""
    stable.signal(signal.SIGTERM)
    assert stable.wait_exit() == 0


def check_nothing_runs(place: Place) -> None:
    """A zygote whose supervisor was killed while it loaded finds that out only when it has loaded."""
    with contextlib.suppress(AssertionError):
        eventually_sync(lambda: place.processes() == {}, WAIT_SECONDS)
    assert place.processes() == {}


@pytest.mark.parametrize("die", [kill, kill_with_zygote, detach, hang_up, terminate], ids=lambda die: die.__name__)
def test_a_run_in_any_state_outlives_its_supervisor(place: Place, die: Callable[[Stable], None]) -> None:
    """In a turn, asking, parked, retrying, in its handshake, in a team, a loop and a cancel: all go on."""
    first = Stable(place, "--on-sigterm", "detach")
    company = Company(place, first)
    die(first)
    company.watcher.lose()
    second = Stable(place)
    company.watcher.go_on(second)
    client = second.connect()
    company.check_identity(second, client)
    request = client.call("status", runtime_id=company.ids["permission"])["permission"]
    client.call("answer_permission", runtime_id=company.ids["permission"], option_id="once", **_only_id(request))
    company.gate.touch()
    for state in ("turn", "permission", "parked"):
        company.answer_with_knowledge(client, state)
    ended = {
        state: client.call("wait", runtime_id=runtime_id, until="done") for state, runtime_id in company.ids.items()
    }
    outcomes = {state: each["outcome"] for state, each in ended.items()}
    assert outcomes == {**dict.fromkeys(company.ids, "DONE"), "ending": "KILLED"}
    assert ended["team"]["status"] == ended["loop"]["status"] == ended["ending"]["status"] == "ended"
    assert client.call("result", runtime_id=company.ids["loop"])["final_output"] is not None
    history = client.call("history", runtime_id=company.ids["team"], limit=1000)["events"]
    assert history == read_log(second.log_path(company.ids["team"]))
    for state in ("turn", "permission", "parked", "retry", "handshake"):
        assert client.call("cancel", runtime_id=company.ids[state]) == {"ok": True, "left": []}
    company.check_logs(second)
    assert {state: second.sentinel(runtime_id).status for state, runtime_id in company.ids.items()} == outcomes
    eventually_sync(lambda: place.processes_like("--script") == [], WAIT_SECONDS)
    assert second.shutdown() == 0
    check_nothing_runs(place)


def _only_id(request: dict[str, Any]) -> dict[str, Any]:
    return {"request_id": request["request_id"]}


def gated(place: Place, gate: Path) -> str:
    """A script whose turns speak, wait for the gate, and speak again; what is asked again is remembered."""
    return place.script(
        steps({"do": "recall"}, match="^again"),
        steps(say("Before."), {"do": "wait_for", "path": str(gate)}, say("After.")),
        name="gated.json",
    )


def spawn_gated(place: Place, stable: Stable, gate: Path, **params: Any) -> str:
    """A run that is in the middle of its turn."""
    runtime_id = cast("str", stable.connect().spawn(place, script=gated(place, gate), **params)["runtime_id"])
    eventually_sync(lambda: "Before." in stable.log_path(runtime_id).read_text(), WAIT_SECONDS)
    return runtime_id


def identity(stable: Stable, runtime_id: str) -> tuple[int, int]:
    """Pid and kernel start time of a runtime, which must live."""
    found = read_stat(stable.runtime_pid(runtime_id))
    assert found is not None
    assert not found.is_dead
    return found.id.pid, found.id.start_ticks


def test_a_run_outlives_ten_supervisors(place: Place) -> None:
    """One after the other is killed, two of them before they answer; the turn ends in the last one."""
    gate = place.work / "gate"
    stable = Stable(place)
    runtime_id = spawn_gated(place, stable, gate)
    before = identity(stable, runtime_id)
    for number in range(10):
        kill(stable)
        stable = Stable(place, wait=number not in (3, 4))
    client = stable.connect()
    assert [(each["runtime_id"], each["status"]) for each in client.call("list")] == [(runtime_id, "running")]
    assert identity(stable, runtime_id) == before
    gate.touch()
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    log = read_log(stable.log_path(runtime_id))
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert [event["event"] for event in log].count("turn.end") == 1
    assert [each["runtime_id"] for each in client.call("list")] == [runtime_id]
    assert stable.shutdown() == 0
    check_nothing_runs(place)


def test_a_run_that_does_not_answer_is_known_from_its_log(place: Place) -> None:
    """It is halted while the supervisors change: its state is told at once, and no event comes twice afterwards."""
    gate = place.work / "gate"
    first = Stable(place)
    runtime_id = spawn_gated(place, first, gate)
    asking = first.connect().spawn(place, script=place.script(steps(ASK), name="ask.json"))["runtime_id"]
    before = first.connect().call("wait", runtime_id=asking, until="attention")
    pids = [first.runtime_pid(each) for each in (runtime_id, asking)]
    log = read_log(first.log_path(runtime_id))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    kill(first)
    second = Stable(place)
    client = second.connect()
    subscribed = client.call("subscribe", runtime_id=runtime_id, after_seq=log[-1]["seq"])
    assert (subscribed["latest_seq"], subscribed.get("reset")) == (log[-1]["seq"], None)
    status = client.call("status", runtime_id=runtime_id)
    assert (status["status"], status["session_id"]) == ("running", log[-1]["session_id"])
    assert (status["pid"], status["turn_state"]) == (pids[0], "running")
    assert client.call("wait", runtime_id=asking, until="attention")["permission"] == before["permission"]
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    gate.touch()
    client.wait_event("turn.end", runtime_id)
    whole = read_log(second.log_path(runtime_id))
    assert client.events == whole[len(log) : len(log) + len(client.events)]
    assert second.shutdown() == 0


def test_what_ended_meanwhile_has_its_real_outcome(place: Place) -> None:
    """By itself, by its time limit, by a signal, and by SIGKILL: list, log and sentinel agree, and nothing is left."""
    first = Stable(place, "--parked-timeout", "1")
    gate = place.work / "gate"
    script = place.script(
        steps({"do": "wait_for", "path": str(gate)}, say("Done."), match="^parks"),
        steps({"do": "wait_for", "path": str(gate)}, {"do": "die", "exit_code": 7}, match="^fails"),
        steps({"do": "run", "command": place.sleeper(), "background": True}, {"do": "hang"}),
        name="ends.json",
    )
    client = first.connect()
    limits = {"times": {"timeout": "5s"}}
    ids = {
        name: client.spawn(place, prompt=f"{name} out", script=script, **limits.get(name, {}))["runtime_id"]
        for name in ("parks", "fails", "signalled", "killed", "times")  # the limit begins when all the others run
    }
    pids = {name: first.runtime_pid(runtime_id) for name, runtime_id in ids.items()}
    eventually_sync(lambda: len(place.processes_like("sleep")) >= 3, WAIT_SECONDS)
    kill_with_zygote(first)
    gate.touch()
    os.kill(pids["signalled"], signal.SIGTERM)
    os.kill(pids["killed"], signal.SIGKILL)
    eventually_sync(lambda: not any(map(is_alive, pids.values())), WAIT_SECONDS)
    second = Stable(place)
    client = second.connect()
    ended = {name: client.call("wait", runtime_id=runtime_id, until="done") for name, runtime_id in ids.items()}
    assert {name: (each["outcome"], each["stop_reason"]) for name, each in ended.items()} == {
        "parks": ("DONE", "end_turn"),
        "fails": ("FAILED", "agent_exited"),
        "times": ("TIMEOUT", "timeout"),
        "signalled": ("KILLED", "cancelled"),
        "killed": ("FAILED", "runtime_lost"),
    }
    assert [each["runtime_id"] for each in client.call("list")] == list(ids.values())
    for name, runtime_id in ids.items():
        eventually_sync(lambda id=runtime_id: (second.state / id / "sentinel.env").exists(), WAIT_SECONDS)  # type: ignore[misc]
        last = read_log(second.log_path(runtime_id))[-1]
        told = second.sentinel(runtime_id)
        assert (last["event"], last["status"], last["stop_reason"]) == (
            "run.end", ended[name]["outcome"], ended[name]["stop_reason"],
        )  # fmt: skip
        assert (told.status, told.stop_reason) == (last["status"], last["stop_reason"])
    assert client.call("result", runtime_id=ids["parks"])["final_output"] == "Done."
    assert second.shutdown() == 0
    check_nothing_runs(place)


def test_an_end_without_its_sentinel_gets_it_from_the_log(place: Place) -> None:
    """Killed between the two while there was no supervisor; one that its reader took away later stays away."""
    directory = place.path / "failpoints"
    (directory / "hold").mkdir(parents=True)
    (directory / "hold" / "sentinel.before_rename").touch()
    environ = {"AVENOR_FAILPOINTS": str(directory)}
    first = Stable(place, environ=environ)
    client = first.connect()
    runtime_id = client.spawn(place, script=gated(place, place.work / "gate"))["runtime_id"]
    pid, sentinel = first.runtime_pid(runtime_id), first.state / runtime_id / "sentinel.env"
    kill(first)
    os.kill(pid, signal.SIGTERM)
    eventually_sync(lambda: (directory / "hits").read_text().count("sentinel.before_rename"), WAIT_SECONDS)
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
    log = read_log(first.log_path(runtime_id))
    assert log[-1]["event"] == "run.end"
    assert not sentinel.exists()
    second = Stable(place)
    (listed,) = second.connect().call("list")
    assert (listed["status"], listed["outcome"]) == ("ended", "KILLED")
    eventually_sync(sentinel.exists, WAIT_SECONDS)
    assert second.sentinel(runtime_id).status == "KILLED"
    assert read_log(second.log_path(runtime_id)) == log
    eventually_sync(lambda: not (second.state / runtime_id / "control.sock").exists(), WAIT_SECONDS)
    sentinel.unlink()
    kill(second)
    third = Stable(place)
    assert third.shutdown() == 0
    assert not sentinel.exists()


def test_a_key_means_the_same_run_after_a_restart(place: Place) -> None:
    """For one in a turn, one parked and two ended: a repeated spawn is answered as the first was, and starts none."""
    first = Stable(place)
    gate = place.work / "gate"
    script = gated(place, gate)
    client = first.connect()
    spawned = {"turn": client.spawn(place, script=script, key="turn")}
    long = place.script(steps({"do": "flood", "count": 4000, "size": 10}), name="long.json")
    for key, chosen in {"parked": {}, "ended": {}, "long": {"script": long}}.items():
        spawned[key] = client.spawn(place, key=key, **chosen)
        client.call("wait", runtime_id=spawned[key]["runtime_id"], until="done")
    for key in ("ended", "long"):
        client.call("cancel", runtime_id=spawned[key]["runtime_id"])
    assert first.log_path(spawned["long"]["runtime_id"]).stat().st_size > 512 * 1024
    kill(first)
    second = Stable(place)
    client = second.connect()
    asked = {
        key: client.send("spawn", prompt="do it", dir=str(place.work), backend="scripted", key=key) for key in spawned
    }
    assert {key: client.answer(each).get("result") for key, each in asked.items()} == spawned
    assert len(client.call("list")) == len(spawned)
    assert second.shutdown() == 0


def test_the_places_of_adopted_runs_are_taken(place: Place) -> None:
    """Runs that work count against `--max-runtimes`, so a new spawn waits; it starts when one of them has ended."""
    first = Stable(place, "--max-runtimes", "2")
    gates = [place.work / "one", place.work / "two"]
    ids = [spawn_gated(place, first, gate) for gate in gates]
    kill(first)
    second = Stable(place, "--max-runtimes", "2")
    client = second.connect()
    asked = client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", wait="started")
    listed = client.call("list")
    assert [(each["runtime_id"], each["status"]) for each in listed] == [
        (ids[0], "running"), (ids[1], "running"), ("rt_3", "queued"),
    ]  # fmt: skip
    client.call("cancel", runtime_id=ids[0])
    assert client.answer(asked)["result"]["runtime_id"] == "rt_3"
    assert second.shutdown() == 0


@pytest.mark.parametrize("die", [kill_with_zygote, detach], ids=lambda die: die.__name__)
def test_spawns_that_wait_for_a_place_wait_on(place: Place, die: Callable[[Stable], None]) -> None:
    """They have been given no process yet: the next supervisor has them in its queue, in their order, each once."""
    first = Stable(place, "--max-runtimes", "1")
    gate = place.work / "gate"
    running = spawn_gated(place, first, gate)
    client = first.connect()
    params = {"dir": str(place.work), "backend": "scripted", "script": gated(place, gate)}
    for key in ("second", "third", "unwanted"):
        client.send("spawn", prompt=key, key=key, **params)
    client.call("ping")
    die(first)
    second = Stable(place, "--max-runtimes", "1")
    client = second.connect()
    statuses = {each["runtime_id"]: each["status"] for each in client.call("list")}
    assert statuses == {running: "running", "rt_2": "queued", "rt_3": "queued", "rt_4": "queued"}
    asked = [client.send("spawn", prompt=key, key=key, **params) for key in ("third", "second")]
    assert client.call("cancel", runtime_id="rt_4") == {"ok": True, "left": []}
    gate.touch()
    assert [client.answer(each)["result"]["runtime_id"] for each in asked] == ["rt_3", "rt_2"]
    ended = [client.call("wait", runtime_id=each, until="done")["outcome"] for each in (running, "rt_2", "rt_3")]
    assert ended == ["DONE"] * 3
    starts = [read_log(second.log_path(each))[0]["ts"] for each in (running, "rt_2", "rt_3")]
    assert starts == sorted(starts)
    assert len(client.call("list")) == 4
    assert [event["event"] for event in read_log(second.log_path("rt_4"))] == ["run.end"]
    assert second.sentinel("rt_4").status == "KILLED"
    assert second.shutdown() == 0
    check_nothing_runs(place)


def test_the_first_to_park_is_the_first_to_go(place: Place) -> None:
    """The order of parked runs is that of their last turns, and survives: not that of their ids."""
    first = Stable(place)
    client = first.connect()
    ids = [client.spawn(place)["runtime_id"] for _ in range(3)]
    for runtime_id in ids:
        client.call("wait", runtime_id=runtime_id, until="done")
    client.call("prompt", runtime_id=ids[0], text="once more")
    client.call("wait", runtime_id=ids[0], until="done")
    before = {runtime_id: identity(first, runtime_id) for runtime_id in ids}
    kill(first)
    second = Stable(place, "--max-parked", "1")
    client = second.connect()
    for runtime_id in ids[1:]:
        eventually_sync(lambda id=runtime_id: client.call("status", runtime_id=id)["status"] == "ended", WAIT_SECONDS)  # type: ignore[misc]
    assert client.call("status", runtime_id=ids[0])["status"] == "idle"
    assert identity(second, ids[0]) == before[ids[0]]
    assert [second.sentinel(runtime_id).status for runtime_id in ids] == ["DONE"] * 3
    assert second.shutdown() == 0


def test_a_parked_run_that_died_pushes_no_other_out(place: Place) -> None:
    """It is settled as lost and has no place among the parked, though it was the last of them to park."""
    first = Stable(place)
    client = first.connect()
    ids = [client.spawn(place)["runtime_id"] for _ in range(2)]
    for runtime_id in ids:
        client.call("wait", runtime_id=runtime_id, until="done")
    pids = [first.runtime_pid(runtime_id) for runtime_id in ids]
    kill(first)
    os.kill(pids[1], signal.SIGKILL)
    eventually_sync(lambda: not is_alive(pids[1]), WAIT_SECONDS)
    second = Stable(place, "--max-parked", "1")
    client = second.connect()
    eventually_sync(lambda: client.call("status", runtime_id=ids[1])["status"] == "ended", WAIT_SECONDS)
    client.call("prompt", runtime_id=ids[0], text="still here?")
    assert client.call("wait", runtime_id=ids[0], until="done")["status"] == "idle"
    assert second.runtime_pid(ids[0]) == pids[0]
    assert second.sentinel(ids[1]).stop_reason == "runtime_lost"
    assert second.shutdown() == 0


def test_a_killed_zygote_is_noticed_by_nobody(place: Place) -> None:
    """The runs below it go on, are ended like any other, and the next spawn works at once."""
    stable = Stable(place)
    gate = place.work / "gate"
    runtime_id = spawn_gated(place, stable, gate)
    before, zygote = identity(stable, runtime_id), zygote_of(stable)
    os.kill(zygote, signal.SIGKILL)
    client = stable.connect()
    other = client.spawn(place)["runtime_id"]
    assert client.call("wait", runtime_id=other, until="done")["outcome"] == "DONE"
    gate.touch()
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert identity(stable, runtime_id) == before
    for each in (runtime_id, other):
        assert client.call("cancel", runtime_id=each, force=True) == {"ok": True, "left": []}
    assert stable.shutdown() == 0
    check_nothing_runs(place)


def test_a_run_whose_zygote_died_tells_how_it_was_killed(place: Place) -> None:
    """It is the supervisor's child then, which learns its exit status itself."""
    stable = Stable(place)
    runtime_id = spawn_gated(place, stable, place.work / "gate")
    os.kill(zygote_of(stable), signal.SIGKILL)
    pid = stable.runtime_pid(runtime_id)

    def is_ours() -> bool:
        found = read_stat(pid)
        return found is not None and found.ppid == stable.process.pid

    eventually_sync(is_ours, WAIT_SECONDS)
    os.kill(pid, signal.SIGKILL)
    ended = stable.connect().call("wait", runtime_id=runtime_id, until="done")
    assert ended["stop_reason"] == "runtime_lost"
    assert "exit status -9" in ended["reason"]
    assert stable.shutdown() == 0


def test_what_an_adopted_run_leaves_is_swept(place: Place) -> None:
    """SIGKILL of an adopted runtime, whose orphans go to the first process: agent and tools end, a stranger does not.

    What cleared its environment and left the tree is out of reach, and that is told.
    """
    first = Stable(place)
    tool, escaped = place.sleeper(), place.sleeper()
    lines = [f"setsid sh -c \"trap '' TERM; ({tool} &)\" &", f"env -i PATH=$PATH setsid sh -c '({escaped} &)' &"]
    tools = [{"do": "run", "command": each, "background": True} for each in lines]
    runtime_id = first.connect().spawn(place, script=place.script(steps(*tools, {"do": "hang"})))["runtime_id"]
    (pid,) = eventually_sync(lambda: commands(tool), WAIT_SECONDS)
    eventually_sync(lambda: commands(escaped), WAIT_SECONDS)
    (agent,) = place.processes_like("avenor.runtimes.scripted")
    stranger = subprocess.Popen(shlex.split(tool), cwd=place.work, start_new_session=True)
    place.started.append(stranger)
    kill_with_zygote(first)
    second = Stable(place)
    client = second.connect()
    runtime = read_stat(second.runtime_pid(runtime_id))
    assert runtime is not None
    assert os.getsid(runtime.id.pid) == runtime.id.pid
    assert runtime.ppid not in (first.process.pid, second.process.pid)
    os.kill(runtime.id.pid, signal.SIGKILL)
    ended = client.call("wait", runtime_id=runtime_id, until="done")
    assert (ended["outcome"], ended["stop_reason"]) == ("FAILED", "runtime_lost")
    answer = client.call("cancel", runtime_id=runtime_id)
    assert answer["left"] == []
    assert "cannot be found" in answer["unverified"]
    assert [is_alive(each) for each in (agent, pid)] == [False, False]
    assert is_alive(stranger.pid)
    assert second.shutdown() == 0
