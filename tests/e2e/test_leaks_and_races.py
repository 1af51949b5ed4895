"""Families: leaks, exit races, restart storms, busy loops, the descriptor limit."""

import contextlib
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync

_MISSING = {"backend": "acp", "agent_command": "/nonexistent/agent"}


def open_descriptors(pid: int) -> list[str]:
    """What a process has open, by kind or path."""
    found: list[str] = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed while we look: not open
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0])
    return sorted(found)


def footprint(stable: Stable) -> dict[str, Any]:
    """What must be equal before and after: descriptors, threads, children and zombies of supervisor and zygote."""
    found: dict[str, Any] = {}
    stable.wait_spare()
    for name, pid in (("supervisor", stable.process.pid), ("zygote", stable.zygote_pid())):
        process = psutil.Process(pid)
        found[name] = {
            "descriptors": open_descriptors(pid),
            "children": len(process.children(recursive=True)),
        }
    return found


def children(stable: Stable) -> dict[str, int]:
    """How many children supervisor and zygote have, zombies too; the zygote is the supervisor's."""
    return {name: part["children"] for name, part in footprint(stable).items()}


def cycle(client: Client, place: Place, count: int, **params: Any) -> list[str]:
    """Spawn so many at once, and cancel each; returns the ids."""
    chosen = {"prompt": "x", "dir": str(place.work), "backend": "scripted", "wait": "started", **params}
    asked = [client.send("spawn", **chosen) for _ in range(count)]
    ids = [answer["result"]["runtime_id"] for answer in map(client.answer, asked) if "result" in answer]
    for answer in [client.send("cancel", runtime_id=runtime_id) for runtime_id in ids]:
        client.answer(answer)
    return ids


def test_sixty_spawns_and_cancels_leave_nothing(place: Place) -> None:
    """Cancelled while they start, cancelled parked, and never started: descriptors, children and files as before."""
    stable = Stable(place, "--max-runtimes", "100", "--max-parked", "100")
    client = stable.connect()
    cycle(client, place, 5)
    # Zombies too must be gone, or the first count would hold what the second rightly does not.
    eventually_sync(lambda: children(stable) == {"supervisor": 2, "zygote": 1}, WAIT_SECONDS)
    before = footprint(stable)
    memory = psutil.Process(stable.process.pid).memory_info().rss
    for _ in range(4):
        cycle(client, place, 10)
        cycle(client, place, 5, **_MISSING)
    assert len(client.call("list")) == 65
    eventually_sync(lambda: len(place.in_use()) == 2, WAIT_SECONDS)
    eventually_sync(lambda: footprint(stable) == before, WAIT_SECONDS)
    # Ended runtimes stay listed; each may cost what its snapshot and its last events need, and no more.
    assert psutil.Process(stable.process.pid).memory_info().rss < memory + 60 * 256 * 1024
    assert {path.name for path in stable.state.glob("rt_*/*")} <= {
        "record.json",
        "lock",
        "process.json",
        "events.ndjson",
        "sentinel.env",
        "stderr.log",
        "procs",
        "control.sock",
    }
    assert client.call("prune", keep=0)["pruned"]
    assert list(stable.state.glob("rt_*")) == []
    assert client.spawn(place)["runtime_id"] == "rt_66"


def test_clients_that_come_and_go_leave_nothing(stable: Stable) -> None:
    """Connections, subscriptions, waits, and calls that are still open when their client leaves."""
    runtime_id = stable.connect().spawn(stable.place, script=stable.place.script(steps({"do": "hang"})))["runtime_id"]
    stable.connect().call("ping")
    before = footprint(stable)
    for number in range(100):
        with Client(stable.socket) as client:
            client.call("subscribe", runtime_id=runtime_id, replay=True)
            client.send("wait", runtime_id=runtime_id, until="done")
            client.send(
                ["list", "history", "claim", "status"][number % 4],
                **({} if number % 4 == 0 else {"runtime_id": runtime_id}),
            )
    eventually_sync(lambda: footprint(stable) == before, WAIT_SECONDS)


def test_fifty_runs_that_end_together_have_fifty_outcomes(place: Place) -> None:
    """They all end within the same moment, each differently; every one is told truly, in list, log and sentinel."""
    stable = Stable(place, "--max-runtimes", "60", "--max-parked", "0")
    client = stable.connect()
    agent = place.path / "agent.py"
    agent.write_text(_TINY_AGENT)
    gate = place.work / "gate"
    count = 50
    asked = [
        client.send(
            "spawn",
            prompt=f"reason_{number}",
            dir=str(place.work),
            backend="acp",
            agent_command=f"{_PYTHON} -S -E {agent} {gate}",
            label=f"label {number}",
        )
        for number in range(count)
    ]
    ids = {client.answer(each)["result"]["runtime_id"]: number for number, each in enumerate(asked)}
    assert len(ids) == count
    gate.touch()
    for runtime_id in ids:
        client.call("wait", runtime_id=runtime_id, until="done")
    eventually_sync(lambda: all(each["status"] == "ended" for each in client.call("list")), WAIT_SECONDS)
    listed = {each["runtime_id"]: each for each in client.call("list")}
    for runtime_id, number in ids.items():
        reason = f"reason_{number}"
        assert listed[runtime_id]["stop_reason"] == reason
        assert stable.sentinel(runtime_id).stop_reason == reason
        ends = [event for event in read_log(stable.log_path(runtime_id)) if event["event"] == "run.end"]
        assert [(end["stop_reason"], end["run_label"]) for end in ends] == [(reason, f"label {number}")]
    eventually_sync(lambda: len(place.in_use()) == 2, WAIT_SECONDS)


def test_a_cancel_at_the_natural_end_keeps_the_real_reason(place: Place) -> None:
    """Twenty runs are cancelled while they end by themselves: each has one end, the same everywhere, and a true one."""
    stable = Stable(place, "--max-runtimes", "60")
    client = stable.connect()
    agent = place.path / "agent.py"
    agent.write_text(_TINY_AGENT)
    gate = place.work / "gate"
    command = f"{_PYTHON} -S -E {agent} {gate}"
    ids = [client.spawn(place, prompt="zz", backend="acp", agent_command=command)["runtime_id"] for _ in range(20)]
    gate.touch()
    cancels = [client.send("cancel", runtime_id=runtime_id) for runtime_id in ids]
    answers = [client.answer(each) for each in cancels]
    for runtime_id, answer in zip(ids, answers, strict=True):
        assert answer.get("result", {}).get("left", []) == []
        log = read_log(stable.log_path(runtime_id))
        (end,) = [event for event in log if event["event"] == "run.end"]
        told = stable.sentinel(runtime_id)
        turn = [event["stop_reason"] for event in log if event["event"] == "turn.end"]
        assert (told.status, told.stop_reason) == (end["status"], end["stop_reason"])
        assert end["stop_reason"] in ("zz", "cancelled")
        assert turn in ([], [end["stop_reason"]])
        assert client.call("status", runtime_id=runtime_id)["stop_reason"] == end["stop_reason"]


def test_a_missing_program_with_retries_does_not_make_it_deaf(shared: Stable, client: Client) -> None:
    """A program that is not there is permanent: no retry storm; the others are served meanwhile."""
    chosen = {"prompt": "x", "dir": str(shared.place.work), "max_retries": 1_000_000, **_MISSING}
    asked = [client.send("spawn", **chosen) for _ in range(20)]
    with Client(shared.socket) as other:
        for _ in range(50):
            other.call("list")
    errors = [client.answer(each)["error"] for each in asked]
    assert {error["code"] for error in errors} == {-32000}
    assert all("/nonexistent/agent" in error["message"] for error in errors), errors[0]
    for error in errors:
        log = read_log(shared.log_path(error["data"]["runtime_id"]))
        assert [event["event"] for event in log].count("avenor.retry") == 0
        assert shared.sentinel(error["data"]["runtime_id"]).status == "FAILED"


def test_retries_are_spaced_and_can_be_cancelled(shared: Stable, client: Client) -> None:
    """An agent that crashes each time is not started again within the second, and cancel ends the waiting."""
    script = shared.place.script(steps({"do": "die", "exit_code": 3}))
    runtime_id = client.spawn(shared.place, script=script, max_retries=5)["runtime_id"]
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    retry = client.wait_event("avenor.retry", runtime_id)
    assert 2000 <= retry["delay_ms"] <= 30_000
    assert retry["class"] == "crash"
    assert client.call("status", runtime_id=runtime_id)["retry_attempt"] >= retry["attempt"] > 0
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    assert shared.sentinel(runtime_id).status == "KILLED"


def test_an_idle_supervisor_does_not_burn_the_processor(shared: Stable, client: Client) -> None:
    """Closed clients, dead runtimes and parked ones cost no processor time."""
    parked = client.spawn(shared.place)["runtime_id"]
    client.call("wait", runtime_id=parked, until="done")
    killed = client.spawn(shared.place)["runtime_id"]
    os.kill(shared.runtime_pid(killed), signal.SIGKILL)
    client.call("wait", runtime_id=killed, until="done")
    for _ in range(10):
        Client(shared.socket).close()
    pids = [shared.process.pid, shared.zygote_pid(), shared.runtime_pid(parked)]

    def spent() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)

    before = spent()
    client.call("wait", runtime_id=parked, until="done", timeout_ms=0)
    # A wait that nothing ends: a second in which only we wait.
    running = client.spawn(shared.place, script=shared.place.script(steps({"do": "hang"}), name="h.json"))["runtime_id"]
    before = spent()
    client.call("wait", runtime_id=running, until="done", timeout_ms=1000)
    assert spent() - before < 0.2


def test_at_the_descriptor_limit_it_recovers(place: Place) -> None:
    """With no descriptor left, clients and spawns are refused or wait; as soon as there are some, it works again."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    stable = Stable(place, setup=limit)
    crowd: list[Client] = []
    for _ in range(80):
        crowd.append(stable.connect())
    # Until nobody waits to be let in, there are some left.
    eventually_sync(lambda: len(os.listdir(f"/proc/{stable.process.pid}/fd")) == 64, WAIT_SECONDS)
    client = crowd[0]
    first = client.send("spawn", prompt="x", dir=str(place.work), backend="scripted")
    client.call("ping")  # answered when the spawn has been begun
    assert is_alive(stable.process.pid)
    for each in crowd[1:]:
        each.close()
    answer = client.answer(first)  # refused, or it has waited: how far it came depends on what was starting meanwhile
    assert "result" in answer or answer["error"]["code"] == -32000, answer
    spawned = eventually_sync(
        lambda: client.ask("spawn", prompt="x", dir=str(place.work), backend="scripted").get("result"), WAIT_SECONDS
    )
    assert spawned is not None
    assert client.call("wait", runtime_id=spawned["runtime_id"], until="done")["outcome"] == "DONE"
    # The refused one has ended too, or never had an id: nothing is left over as starting for ever, nor on the disk.
    eventually_sync(lambda: {each["status"] for each in client.call("list")} <= {"ended", "idle"}, WAIT_SECONDS)
    listed = {each["runtime_id"] for each in client.call("list")}
    assert {path.name for path in stable.log_path(spawned["runtime_id"]).parents[1].glob("rt_*")} == listed
    assert stable.shutdown() == 0


def test_parallel_clients_get_their_own_answers(shared: Stable) -> None:
    """Eight clients at once, each with its own runs: nobody gets another's answer, id or event."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with Client(shared.socket) as client:
                script = shared.place.script(steps(say(f"client {number}")), name=f"c{number}.json")
                runtime_id = client.spawn(shared.place, script=script, label=f"l{number}")["runtime_id"]
                client.call("subscribe", runtime_id=runtime_id, replay=True)
                client.wait_event("turn.end", runtime_id)
                assert {event["run_label"] for event in client.events} == {f"l{number}"}
                assert client.call("result", runtime_id=runtime_id)["final_output"] == f"client {number}"
                assert client.call("cancel", runtime_id=runtime_id)["ok"] is True
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert failures == []


@pytest.mark.parametrize("what", ["zygote.log", "stderr.log"])
def test_logs_of_processes_stay_small(shared: Stable, client: Client, what: str) -> None:
    """Nothing in ordinary work is a traceback on somebody's stderr."""
    client.call("ping")
    for path in shared.state.rglob(what):
        assert "Traceback" not in Path(path).read_text(), path


_PYTHON = sys.executable
# As small as an agent can be: it waits for a file, and its stop reason is the prompt.
_TINY_AGENT = """
import json, os, sys, time
def answer(result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        answer({"protocolVersion": 1, "agentCapabilities": {}})
    elif asked["method"] == "session/new":
        answer({"sessionId": "tiny"})
    elif asked["method"] == "session/prompt":
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        answer({"stopReason": asked["params"]["prompt"][0]["text"]})
"""
