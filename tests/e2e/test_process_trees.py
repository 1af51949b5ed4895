"""Families: the leader exits and the group lives, escapes, over-kill, dead runtimes."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, commands, is_alive, steps
from tests.helpers import eventually_sync

_STUBBORN = "trap '' TERM HUP INT"


@pytest.fixture
def stranger(shared: Stable) -> Generator[tuple[str, int], None, None]:
    """A process that runs the very command that an agent will run, in the same directory, started by somebody else."""
    command = shared.place.sleeper()
    process = subprocess.Popen(shlex.split(command), cwd=shared.place.work, start_new_session=True)
    # It has no command line for a moment after it was started.
    eventually_sync(lambda: commands(command) == [process.pid], WAIT_SECONDS)
    yield command, process.pid
    process.kill()
    process.wait()


def start_agent(client: Client, place: Place, command: str, started: str, *, ignores: tuple[str, ...] = ()) -> str:
    """Spawn an agent that has run a shell command, and hangs; returns its id once `started` runs one more time."""
    before = len(commands(started))
    script = place.script(steps({"do": "run", "command": command, "background": True}, {"do": "hang"}), ignores=ignores)
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    eventually_sync(lambda: len(commands(started)) > before, WAIT_SECONDS)
    return str(runtime_id)


def test_cancel_ends_what_tries_to_escape(shared: Stable, client: Client) -> None:
    """Tools that daemonise themselves, and a deaf agent, are gone when their cancels are answered."""
    place = shared.place
    escapes = {
        f"{_STUBBORN}; exec {place.sleeper()}": ("cancel", "stdin_close", "sigterm"),
        f"{_STUBBORN}; setsid sh -c '{place.sleeper()} & wait' &": (),
        f'env -i PATH=$PATH setsid sh -c "{_STUBBORN}; ({place.sleeper()} &)" &': (),
    }
    sleepers = [" ".join(words) for words in re.findall(r"(sleep) (\d+)", " ".join(escapes))]
    ids = [
        start_agent(client, place, command, sleeper, ignores=ignores)
        for (command, ignores), sleeper in zip(escapes.items(), sleepers, strict=True)
    ]
    asked = [client.send("cancel", runtime_id=runtime_id) for runtime_id in ids]
    assert [client.answer(each)["result"] for each in asked] == [{"ok": True, "left": []}] * 3
    assert [commands(sleeper) for sleeper in sleepers] == [[], [], []]
    assert {shared.sentinel(runtime_id).status for runtime_id in ids} == {"KILLED"}


def test_the_leaders_exit_is_not_the_groups_end(shared: Stable, client: Client) -> None:
    """An agent that ends at once, whose child in the same group ignores SIGTERM: cancel ends both."""
    sleep = shared.place.sleeper()
    script = shared.place.script(steps({"do": "hang"}))
    agent = f"{sys.executable} -m avenor.runtimes.scripted --script {script}"
    command = shlex.join(["sh", "-c", f"{_STUBBORN}; {sleep} & trap - TERM; exec {agent}"])
    spawned = client.spawn(shared.place, backend="acp", agent_command=command)
    (child,) = eventually_sync(lambda: commands(sleep), WAIT_SECONDS)
    assert client.call("cancel", runtime_id=spawned["runtime_id"]) == {"ok": True, "left": []}
    assert not is_alive(child)


def test_a_stranger_with_the_same_command_survives(shared: Stable, client: Client, stranger: tuple[str, int]) -> None:
    """Only what a run started is ever signalled, though another process looks exactly like it."""
    command, pid = stranger
    runtime_id = start_agent(client, shared.place, f"{command} & wait", command)
    assert len(commands(command)) == 2
    client.call("cancel", runtime_id=runtime_id)
    assert commands(command) == [pid]


@pytest.mark.parametrize("environment", ["", "env -i PATH=$PATH "], ids=["kept", "cleared"])
def test_a_killed_runtime_is_settled_and_its_tools_are_swept(
    shared: Stable, client: Client, stranger: tuple[str, int], environment: str
) -> None:
    """SIGKILL of a runtime: runtime_lost in list, log and sentinel; its agent and tools end, strangers do not."""
    sleep = shared.place.sleeper()
    escape = f"{environment}setsid sh -c \"trap '' TERM; ({sleep} &) ; ({stranger[0]} &)\" &"
    runtime_id = start_agent(client, shared.place, escape, sleep)
    eventually_sync(lambda: len(commands(stranger[0])) == 2, WAIT_SECONDS)
    agents = shared.place.processes_like("avenor.runtimes.scripted")
    os.kill(shared.runtime_pid(runtime_id), signal.SIGKILL)
    snapshot = client.call("wait", runtime_id=runtime_id, until="done")
    assert (snapshot["status"], snapshot["outcome"], snapshot["stop_reason"]) == ("ended", "FAILED", "runtime_lost")
    eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["pid"] is None, WAIT_SECONDS)
    eventually_sync(lambda: (shared.state / runtime_id / "sentinel.env").exists(), WAIT_SECONDS)
    assert shared.sentinel(runtime_id).stop_reason == "runtime_lost"
    assert commands(sleep) == []
    assert [pid for pid in agents if is_alive(pid)] == []
    assert commands(stranger[0]) == [stranger[1]]


def test_a_sweep_spares_the_neighbours(shared: Stable, client: Client) -> None:
    """A runtime that is killed takes nothing of the others with it: their agents and tools go on."""
    theirs, ours = shared.place.sleeper(), shared.place.sleeper()
    victim = start_agent(client, shared.place, f"setsid {theirs} &", theirs)
    neighbour = start_agent(client, shared.place, f"env -i PATH=$PATH setsid sh -c '({ours} &)' &", ours)
    (tool,) = commands(ours)
    os.kill(shared.runtime_pid(victim), signal.SIGKILL)
    client.call("wait", runtime_id=victim, until="done")
    eventually_sync(lambda: commands(theirs) == [], WAIT_SECONDS)
    assert is_alive(tool)
    assert client.call("status", runtime_id=neighbour)["status"] == "running"


def test_killed_zygote_and_killed_runtime_together(shared: Stable, client: Client) -> None:
    """Without a zygote to report it, a killed runtime is settled all the same, and spawning goes on."""
    sleep = shared.place.sleeper()
    runtime_id = start_agent(client, shared.place, f"{sleep} &", sleep)
    os.kill(shared.zygote_pid(), signal.SIGKILL)
    os.kill(shared.runtime_pid(runtime_id), signal.SIGKILL)
    assert client.call("wait", runtime_id=runtime_id, until="done")["stop_reason"] == "runtime_lost"
    eventually_sync(lambda: commands(sleep) == [], WAIT_SECONDS)
    again = client.spawn(shared.place)["runtime_id"]
    assert client.call("wait", runtime_id=again, until="done")["outcome"] == "DONE"


def test_a_frozen_runtime_does_not_stop_a_shutdown(stable: Stable) -> None:
    """A runtime that is stopped (SIGSTOP) is slow, not dead: it is kept, and a kill shutdown ends it with its agent."""
    client = stable.connect()
    sleep = stable.place.sleeper()
    runtime_id = start_agent(client, stable.place, f"{sleep} &", sleep)
    os.kill(stable.runtime_pid(runtime_id), signal.SIGSTOP)
    assert client.call("status", runtime_id=runtime_id)["status"] == "running"
    assert stable.shutdown("kill") == 0
    assert commands(sleep) == []
    assert stable.place.processes() == {}
    assert stable.sentinel(runtime_id).status == "KILLED"
