"""Families: queue and limits, parking and reaping, idle timeout, idempotent spawns."""

import os
import signal
from typing import Any

import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync


def waiting_script(place: Place) -> str:
    """A script whose turn ends when its prompt's file is there."""
    return place.script(steps(say("ok"), {"do": "wait_for", "path": "{prompt}"}), name="waiting.json")


def params_of(place: Place, **more: Any) -> dict[str, Any]:
    """Spawn params."""
    return {"prompt": "x", "dir": str(place.work), "backend": "scripted", **more}


def statuses(client: Client) -> dict[str, str]:
    """The status of every runtime."""
    return {each["runtime_id"]: each["status"] for each in client.call("list")}


def test_the_queue_is_bounded_and_moves_on(place: Place) -> None:
    """One runs, two wait, the fourth is refused and uses no id; a cancelled one leaves, and the next starts."""
    stable = Stable(place, "--max-runtimes", "1", "--queue", "2")
    client = stable.connect()
    gates = [str(place.work / f"gate{number}") for number in range(3)]
    script = waiting_script(place)
    client.call("spawn", **params_of(place, script=script, prompt=gates[0]))
    second, third = (client.send("spawn", **params_of(place, script=script, prompt=gate)) for gate in gates[1:])
    eventually_sync(lambda: list(statuses(client).values()) == ["running", "queued", "queued"], WAIT_SECONDS)
    error = client.refusal("spawn", **params_of(place))
    assert (error["code"], error["data"]["retryable"]) == (-32000, True)
    assert client.call("cancel", runtime_id="rt_2") == {"ok": True, "left": []}
    assert client.answer(second)["error"]["data"]["runtime_id"] == "rt_2"
    assert stable.sentinel("rt_2").status == "KILLED"
    (place.work / "gate0").touch()
    assert client.answer(third)["result"]["runtime_id"] == "rt_3"
    assert statuses(client) == {"rt_1": "idle", "rt_2": "ended", "rt_3": "running"}
    assert client.send("spawn", **params_of(place, wait="started"))
    assert stable.shutdown() == 0
    assert [stable.sentinel(name).status for name in ("rt_1", "rt_3", "rt_4")] == ["DONE", "KILLED", "KILLED"]
    assert place.processes() == {}


def test_a_client_that_leaves_while_it_waits_in_the_queue(place: Place) -> None:
    """Its spawn was accepted, so it is run; nobody owns it."""
    stable = Stable(place, "--max-runtimes", "1")
    client = stable.connect()
    gate = place.work / "gate"
    client.call("spawn", **params_of(place, script=waiting_script(place), prompt=str(gate)))
    with Client(stable.socket) as other:
        other.send("spawn", **params_of(place))
        eventually_sync(lambda: statuses(client).get("rt_2") == "queued", WAIT_SECONDS)
    gate.touch()
    assert client.call("wait", runtime_id="rt_2", until="done")["outcome"] == "DONE"
    eventually_sync(lambda: client.call("status", runtime_id="rt_2")["owner"] is None, WAIT_SECONDS)
    assert client.call("cancel", runtime_id="rt_2")["ok"] is True


def test_the_oldest_parked_one_is_reaped(place: Place) -> None:
    """Beyond `--max-parked` the one that has been idle longest ends, its sentinel as it was."""
    stable = Stable(place, "--max-parked", "2")
    client = stable.connect()
    for _ in range(3):
        runtime_id = client.spawn(place)["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
    eventually_sync(lambda: statuses(client) == {"rt_1": "ended", "rt_2": "idle", "rt_3": "idle"}, WAIT_SECONDS)
    assert stable.sentinel("rt_1").status == "DONE"
    error = client.refusal("prompt", runtime_id="rt_1", text="again")
    assert error["code"] == -32000
    client.call("prompt", runtime_id="rt_2", text="again")
    client.call("wait", runtime_id="rt_2", until="done")
    client.spawn(place)
    eventually_sync(lambda: statuses(client)["rt_3"] == "ended", WAIT_SECONDS)


def test_a_prompt_that_meets_the_reaping_is_carried_out(place: Place) -> None:
    """The runtime, halted for the moment, has both before it: it accepts the prompt, and so does not end."""
    stable = Stable(place, "--max-parked", "1")
    client, other = stable.connect(), stable.connect()
    first = client.spawn(place)["runtime_id"]
    client.call("wait", runtime_id=first, until="done")
    os.kill(stable.runtime_pid(first), signal.SIGSTOP)
    prompt = client.send("prompt", runtime_id=first, text="more")
    client.call("ping")  # the prompt is on its way
    second = other.spawn(place)["runtime_id"]
    other.call("wait", runtime_id=second, until="done")
    other.call("ping")  # and so is what came of the second's parking
    os.kill(stable.runtime_pid(first), signal.SIGCONT)
    assert client.answer(prompt)["result"]["accepted"] is True
    # When it parks again the second is the one that has parked longest.
    assert client.call("wait", runtime_id=first, until="done")["outcome"] == "DONE"
    eventually_sync(lambda: statuses(client) == {first: "idle", second: "ended"}, WAIT_SECONDS)
    texts = [event["text"] for event in read_log(stable.log_path(first)) if event["event"] == "turn.start"]
    assert texts == ["do it", "more"]
    assert stable.sentinel(first).status == "DONE"


def test_parked_ones_are_reaped_after_their_time(place: Place) -> None:
    """`--parked-timeout`: the agent is gone, the outcome stays."""
    stable = Stable(place, "--parked-timeout", "1")
    client = stable.connect()
    runtime_id = client.spawn(place)["runtime_id"]
    pid = stable.runtime_pid(runtime_id)
    eventually_sync(lambda: statuses(client)[runtime_id] == "ended", WAIT_SECONDS)
    eventually_sync(lambda: not is_alive(pid), WAIT_SECONDS)
    assert client.call("status", runtime_id=runtime_id)["outcome"] == "DONE"
    assert len(place.in_use()) == 2


def test_an_idle_supervisor_stops(place: Place) -> None:
    """`--idle-timeout`: not while somebody is connected or something lives; then it says why it left."""
    stable = Stable(place, "--idle-timeout", "3", "--parked-timeout", "1")
    client = stable.connect()
    client.spawn(place)
    client.close()
    assert stable.wait_exit() == 0
    assert "reason=idle" in stable.tombstone.read_text()
    assert stable.sentinel("rt_1").status == "DONE"
    assert place.processes() == {}


@pytest.mark.parametrize("wait", ["session", "started"])
def test_a_key_makes_a_spawn_happen_once(place: Place, wait: str) -> None:
    """Ten at once, over several connections, and again after the supervisor was killed: one runtime."""
    stable = Stable(place)
    clients = [stable.connect() for _ in range(5)]
    script = place.script(steps({"do": "hang"}))
    params = params_of(place, key="k", wait=wait, script=script)
    asked = [(each, each.send("spawn", **params)) for each in clients for _ in range(2)]
    assert {each.answer(number)["result"]["runtime_id"] for each, number in asked} == {"rt_1"}
    stable.process.kill()
    stable.wait_exit()
    second = Stable(place)
    client = second.connect()
    assert client.call("spawn", **params)["runtime_id"] == "rt_1"
    assert client.call("spawn", **{**params, "key": "l"})["runtime_id"] == "rt_2"
    assert second.shutdown() == 0


def test_a_child_does_not_queue_behind_its_parent(place: Place) -> None:
    """The only place is the parent's: its child starts all the same, and a stranger waits."""
    stable = Stable(place, "--max-runtimes", "1", "--max-tree", "2")
    client = stable.connect()
    script = place.script(steps({"do": "hang"}))
    client.call("spawn", **params_of(place, script=script))
    assert client.call("spawn", **params_of(place, script=script, parent_id="rt_1"))["runtime_id"] == "rt_2"
    error = client.refusal("spawn", **params_of(place, parent_id="rt_2"))
    assert (error["code"], error["data"]["retryable"]) == (-32000, True)
    assert client.call("status", runtime_id="rt_1")["children"] == ["rt_2"]
    assert stable.shutdown() == 0
