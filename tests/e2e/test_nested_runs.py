"""Agents that run `avenor` themselves: whose children those runs are, what they may take, and how they end."""

import json
import os
import shlex
import signal
import sys
from typing import Any

import pytest

from tests.e2e.harness import AVENOR, WAIT_SECONDS, Client, Place, Stable, first_event, read_log, say, steps
from tests.helpers import eventually_sync

HANG = {"do": "hang"}
_RUNTIME_ID = "import json, sys; print(json.load(sys.stdin)['runtime_id'])"
# An MCP host of an agent's: it starts a server as hosts do, and spawns one run through it.
_HOST = """
import os, sys
import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def main():
    program = StdioServerParameters(command=sys.argv[1], args=["mcp"], env=dict(os.environ), cwd=".")
    async with Client(stdio_client(program)) as client:
        task = {"prompt": "hang", "repo_dir": os.getcwd(), "backend": "scripted", "script": sys.argv[2]}
        spawned = await client.call_tool("avenor_spawn", {**task, "label": "through-mcp"})
        assert not spawned.is_error, spawned.content
        print(spawned.structured_content["runtime_id"])

trio.run(main)
"""


def run(command: str) -> dict[str, Any]:
    """A step: the agent runs a command."""
    return {"do": "run", "command": command}


def spawns(script: str, *flags: str, prompt: str = "hang") -> str:
    """The command by which an agent starts another; no flag says where, or whose child it is."""
    flags = ("--backend", "scripted", "--script", script, "--prompt", prompt, *flags)
    return shlex.join([AVENOR, "control", "spawn", *flags])


def family_script(place: Place) -> str:
    """Agents that start one more below them until three are there; the last one hangs, and so do those above it."""
    path = str(place.path / "family.json")
    return place.script(
        steps(run(spawns(path, "--label", "two", prompt="second")), HANG, match="first"),
        steps(run(spawns(path, "--label", "three", prompt="third")), HANG, match="second"),
        steps(run(f"{place.sleeper()} & {place.sleeper()}"), match="third"),
        name="family.json",
    )


def family(stable: Stable) -> Client:
    """A root, its child and its grandchild, which has a tool at work: rt_1, rt_2 and rt_3."""
    client = stable.connect()
    client.spawn(stable.place, prompt="first", label="one", script=family_script(stable.place))
    eventually_sync(lambda: first_event(stable.log_path("rt_3"), "tool.call", {}), WAIT_SECONDS)
    return client


def tool_output(stable: Stable, runtime_id: str) -> str:
    """What the first tool of a run has printed."""

    def ended() -> dict[str, Any] | None:
        return first_event(stable.log_path(runtime_id), "tool.call_update", {"status": "completed"})

    return json.dumps(eventually_sync(ended, WAIT_SECONDS))


def listed(client: Client) -> dict[str, tuple[Any, ...]]:
    """Of each runtime its parent, depth and children."""
    return {each["runtime_id"]: (each["parent_id"], each["depth"], each["children"]) for each in client.call("list")}


def all_outcomes(client: Client) -> list[str | None]:
    """What each has come to."""
    return [each["outcome"] for each in client.call("list")]


def test_what_an_agent_spawns_is_the_child_of_its_run(stable: Stable) -> None:
    """At any depth, with nothing but the environment to tell."""
    client = family(stable)
    assert listed(client) == {
        "rt_1": (None, 0, ["rt_2"]),
        "rt_2": ("rt_1", 1, ["rt_3"]),
        "rt_3": ("rt_2", 2, []),
    }


def test_what_an_agent_spawns_through_its_mcp_server_is_the_child_of_its_run(place: Place, stable: Stable) -> None:
    """The host starts the server in the agent's environment; its configuration names no socket."""
    host = place.path / "host.py"
    host.write_text(_HOST)
    script = place.script(steps(HANG), name="child.json")
    parent = place.script(steps(run(shlex.join([sys.executable, str(host), AVENOR, script])), HANG))
    client = stable.connect()
    client.spawn(place, script=parent)
    assert "rt_2" in tool_output(stable, "rt_1")
    assert listed(client)["rt_2"] == ("rt_1", 1, [])


def test_a_cancel_ends_the_whole_tree(stable: Stable) -> None:
    """It is answered when the tools of the deepest are gone; nothing of the tree is left but the log."""
    client = family(stable)
    pids = [stable.runtime_pid(runtime_id) for runtime_id in ("rt_1", "rt_2", "rt_3")]
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert all_outcomes(client) == ["KILLED"] * 3
    assert stable.place.processes_like("sleep") == []
    assert [pid for pid in pids if pid in stable.place.processes()] == []
    assert [stable.sentinel(each).status for each in ("rt_1", "rt_2", "rt_3")] == ["KILLED"] * 3


def test_one_that_is_spawned_while_the_tree_is_cancelled_is_refused(place: Place, stable: Stable) -> None:
    """By an agent that does not hear that it is cancelled, and goes on spawning until it is killed."""
    script = place.script(steps(HANG), name="child.json")
    again = f"while :; do {spawns(script, '--wait', 'started')} 2>> said; done"
    deaf = steps({"do": "ignore_cancel"}, run(f"trap '' TERM; {again}"), HANG)
    client = stable.connect()
    parent = place.script(deaf, name="deaf.json", ignores=["cancel", "stdin_close", "sigterm"])
    client.spawn(place, script=parent)
    eventually_sync(lambda: len(client.call("list")) > 2, WAIT_SECONDS)
    assert client.call("cancel", runtime_id="rt_1")["left"] == []
    assert set(all_outcomes(client)) == {"KILLED"}
    assert "rt_1 was ordered to end" in (place.work / "said").read_text()
    refusal = client.refusal("spawn", prompt="x", dir=str(place.work), backend="scripted", parent_id="rt_1")
    assert refusal["data"]["reason"] == "run_ending"


def test_a_parked_parent_and_its_parked_child_are_cancelled_together(place: Place, stable: Stable) -> None:
    """Their sentinels stay as their turns left them."""
    child = place.script(steps(say("Done.")), name="child.json")
    client = stable.connect()
    client.spawn(place, script=place.script(steps(run(spawns(child)), say("Delegated."))))
    for runtime_id in ("rt_1", "rt_2"):
        client.call("wait", runtime_id=runtime_id, until="done")
    assert [each["status"] for each in client.call("list")] == ["idle", "idle"]
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert [each["status"] for each in client.call("list")] == ["ended", "ended"]
    assert [stable.sentinel(each).status for each in ("rt_1", "rt_2")] == ["DONE", "DONE"]


@pytest.mark.parametrize("how", ["signal", "cancel"])
def test_a_parked_parent_that_is_ended_directly_takes_its_child_along(place: Place, stable: Stable, how: str) -> None:
    """By whoever has its pid or its socket, as by its supervisor; its outcome stays that of its turn."""
    child = place.script(steps(HANG), name="child.json")
    client = stable.connect()
    client.spawn(place, script=place.script(steps(run(spawns(child)), say("Delegated."))))
    client.call("wait", runtime_id="rt_1", until="done")
    if how == "signal":
        os.kill(stable.runtime_pid("rt_1"), signal.SIGTERM)
    else:
        with Client(stable.state / "rt_1" / "control.sock") as alone:
            alone.call("cancel", force=True)
    client.call("wait", runtime_id="rt_2", until="done")
    assert all_outcomes(client) == ["DONE", "KILLED"]


def test_the_timeout_of_a_run_is_one_for_all_below_it(place: Place, stable: Stable) -> None:
    """A child cannot outlive the deadline of the run that it was started for."""
    hangs = place.script(steps(HANG))
    client = stable.connect()
    client.spawn(place, script=hangs, timeout="10s", wait="started")
    client.spawn(place, script=hangs, parent_id="rt_1", wait="started")
    client.spawn(place, script=hangs, parent_id="rt_2", timeout="1h", wait="started")
    for runtime_id in ("rt_1", "rt_2", "rt_3"):
        client.call("wait", runtime_id=runtime_id, until="done")
    assert all_outcomes(client) == ["TIMEOUT", "KILLED", "KILLED"]


@pytest.mark.parametrize("how", ["ended", "lost"])
def test_a_run_that_ends_by_itself_leaves_its_children(place: Place, stable: Stable, how: str) -> None:
    """Their work counts. They stay listed below it, and a cancel of what has ended ends them."""
    child = place.script(steps(HANG), name="child.json")
    last = {"do": "stop", "reason": "refusal"} if how == "ended" else HANG
    client = stable.connect()
    client.spawn(place, script=place.script(steps(run(spawns(child)), last)))
    tool_output(stable, "rt_1")
    if how == "lost":
        os.kill(stable.runtime_pid("rt_1"), signal.SIGKILL)
    client.call("wait", runtime_id="rt_1", until="done")
    assert all_outcomes(client) == ["FAILED", None]
    assert listed(client)["rt_1"] == (None, 0, ["rt_2"])
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert all_outcomes(client) == ["FAILED", "KILLED"]


def test_a_plain_run_within_an_agent_is_a_tool_of_that_agent(place: Place, stable: Stable) -> None:
    """It is nobody's child and is not listed; it ends with the run, and so does all that it has started."""
    sleeper = place.sleeper()
    inner = place.script(steps(run(sleeper)), name="inner.json")
    command = shlex.join([AVENOR, "run", "--backend", "scripted", "--script", inner, "--prompt", "x"])
    client = stable.connect()
    client.spawn(place, script=place.script(steps(run(command), HANG)))
    eventually_sync(lambda: place.processes_like(sleeper), WAIT_SECONDS)
    assert list(listed(client)) == ["rt_1"]
    client.call("cancel", runtime_id="rt_1")
    assert place.processes_like(sleeper) == []
    assert place.processes_like("avenor.runtimes.scripted") == []


def test_a_tree_that_is_full_refuses_at_once_and_takes_the_next_when_one_has_ended(place: Place) -> None:
    """The agent is told by exit status and message; nothing waits behind its own parent."""
    stable = Stable(place, "--max-tree", "2", "--max-runtimes", "1")
    child = place.script(steps(HANG), name="child.json")
    one_more = f"{spawns(child)} 2>&1; echo status $?"
    client = stable.connect()
    client.spawn(place, script=place.script(steps(run(f"{spawns(child)}; {one_more}"), HANG)))
    said = tool_output(stable, "rt_1")
    assert "--max-tree 2" in said
    assert "status 1" in said
    assert list(listed(client)) == ["rt_1", "rt_2"]
    client.call("cancel", runtime_id="rt_2")
    assert client.spawn(place, script=child, parent_id="rt_1")["runtime_id"] == "rt_3"


def test_as_many_jockeys_as_there_are_places_wait_for_their_children_and_all_end(place: Place) -> None:
    """Every place is taken by one that waits for a child, and every child gets in."""
    number = 16
    stable = Stable(place, "--max-runtimes", str(number), "--max-parked", "64")
    child = place.script(steps(say("Worked.")), name="child.json")
    meet = {"do": "barrier", "directory": str(place.path / "met"), "count": number}
    waits = f"id=$({spawns(child)} | {shlex.quote(sys.executable)} -c {shlex.quote(_RUNTIME_ID)})"
    jockey = steps(meet, run(f"{waits}; {AVENOR} await $id --until done"), say("Collected."))
    script = place.script(jockey)
    client = stable.connect()
    asked = [
        client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", script=script, wait="started")
        for _ in range(number)
    ]
    ids = [client.answer(each)["result"]["runtime_id"] for each in asked]
    for runtime_id in ids:
        client.call("wait", runtime_id=runtime_id, until="done")
        assert client.call("result", runtime_id=runtime_id)["final_output"] == "Collected."
    parents = [each["parent_id"] for each in client.call("list") if each["depth"] == 1]
    assert sorted(parents) == sorted(ids)
    waited = [first_event(stable.log_path(each), "tool.call_update", {"status": "completed"}) for each in ids]
    assert None not in waited


def test_the_next_supervisor_knows_the_tree_and_cancels_all_of_it(place: Place, stable: Stable) -> None:
    """Who is whose child is in the records, and not in the memory of the one that was killed."""
    before = listed(family(stable))
    stable.signal(signal.SIGKILL)
    stable.wait_exit()
    client = Stable(place).connect()
    assert listed(client) == before
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert all_outcomes(client) == ["KILLED"] * 3


def test_a_cancel_that_no_supervisor_was_there_to_pass_on_goes_down_later(place: Place, stable: Stable) -> None:
    """The parent has ended while there was none; the next finds in its log that it was ordered to."""
    client = family(stable)
    stable.signal(signal.SIGKILL)
    stable.wait_exit()
    with Client(stable.state / "rt_1" / "control.sock") as alone:
        alone.call("cancel", force=True)  # it may not have noticed yet that its spawner has gone
    eventually_sync(lambda: read_log(stable.log_path("rt_1"))[-1]["event"] == "run.end", WAIT_SECONDS)
    client = Stable(place).connect()
    for runtime_id in ("rt_2", "rt_3"):
        client.call("wait", runtime_id=runtime_id, until="done")
    assert all_outcomes(client) == ["KILLED"] * 3


@pytest.mark.parametrize("mode", ["graceful", "kill"])
def test_a_shutdown_ends_the_whole_tree(stable: Stable, mode: str) -> None:
    """Each is asked, or killed, whoever is whose child."""
    family(stable)
    assert stable.shutdown(mode) == 0
    assert stable.place.processes_like("sleep") == []
    assert [stable.sentinel(each).status for each in ("rt_1", "rt_2", "rt_3")] == ["KILLED"] * 3
