"""Family: the stop ladder. Whatever an agent and its tools do, each way to stop leaves nothing and touches nobody else.

All agents run the same tools at once (see `stubborn.py`); they differ in what they do themselves when asked to end.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from avenor.host.identity import ProcessId, boot_id, is_alive
from avenor.host.tree import TREE, children
from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, commands, say, steps
from tests.e2e.stubborn import TOOLS, tool_command
from tests.helpers import eventually_sync

_HABITS: Final = {
    "polite": (),
    "deaf to cancel": ("deaf-to-cancel",),
    "deaf to signals": ("deaf-to-signals",),
    "deaf to both": ("deaf-to-cancel", "deaf-to-signals"),
}
_EVERYTHING: Final = {"agent", *TOOLS, "daemonised", "leader-child", "storm-child", "walker-step"}


class Stubborn:
    """A run whose agent has started all its tools.

    Args:
        place: Where.
        client: Spawns it, and owns it.
        habits: See `stubborn.agent`.
        params: More spawn params.

    Attributes:
        id: The runtime's.
    """

    def __init__(self, place: Place, client: Client, habits: tuple[str, ...], **params: object) -> None:
        self.births = place.path / f"births-{len(list(place.path.glob('births-*')))}"
        self.births.touch()
        command = shlex.join([*tool_command(str(self.births), "agent"), *habits])
        self._asked = client.send(
            "spawn", prompt="x", dir=str(place.work), backend="acp", agent_command=command, wait="started", **params
        )
        self._client = client
        self._strangers: set[int] = set()

    def wait_up(self) -> "Stubborn":
        """Waits until every kind of tool has been started."""
        answer = self._client.answer(self._asked)
        assert "result" in answer, answer
        self.id = str(answer["result"]["runtime_id"])
        eventually_sync(lambda: {name for name, _ in self.born()} >= _EVERYTHING, WAIT_SECONDS)
        return self

    def born(self) -> list[tuple[str, ProcessId]]:
        """Everything that has run so far: what it is, and which process."""
        lines = [line.split() for line in self.births.read_text().split("\n")[:-1]]
        found = [(name, ProcessId(int(pid), int(ticks), boot_id())) for name, pid, ticks in lines]
        return [(name, process) for name, process in found if process.pid not in self._strangers]

    def alive(self) -> list[tuple[str, int]]:
        """What still runs of it, by kind and pid."""
        return [(name, process.pid) for name, process in self.born() if is_alive(process)]

    def without(self, pid: int) -> None:
        """Counts a process as somebody else's, though it announces itself in the same file."""
        self._strangers.add(pid)

    def one(self, kind: str) -> int:
        """The pid of a tool."""
        return next(process.pid for name, process in self.born() if name == kind)


class Strangers:
    """Processes that look like a run's own, started by somebody else; nobody may touch them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._all: list[subprocess.Popen[bytes]] = []

    def join(self, run: Stubborn) -> None:
        """Start two: one with the command line of a tool, and one that has its environment too, but for the tag."""
        self._start(run, dict(os.environ))
        pairs = [pair.split("=", 1) for pair in _environment(run.one("deaf"))]
        environ = {name: value for name, value in pairs if not name.startswith(TREE)}
        assert len(environ) < len(pairs)
        self._start(run, environ)

    def assert_untouched(self) -> None:
        """They run, were not even stopped, and could be asked to end."""
        assert self._all
        for process in self._all:
            assert process.poll() is None
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state in "RS", state

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()

    def _start(self, run: Stubborn, environ: dict[str, str]) -> None:
        command = tool_command(str(run.births), "deaf")
        process = subprocess.Popen(command, cwd=self._place.work, env=environ, start_new_session=True)
        self._all.append(process)
        run.without(process.pid)


def _environment(pid: int) -> list[str]:
    return [pair for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in pair]


@pytest.fixture
def strangers(place: Place) -> Generator[Strangers, None, None]:
    """Ended after the test."""
    made = Strangers(place)
    yield made
    made.end()


def start_all(place: Place, client: Client, strangers: Strangers) -> dict[str, Stubborn]:
    """One run for each way to be deaf, up and with strangers beside it."""
    runs = {name: Stubborn(place, client, habits) for name, habits in _HABITS.items()}
    for run in runs.values():
        strangers.join(run.wait_up())
    return runs


def assert_over(runs: dict[str, Stubborn], strangers: Strangers) -> None:
    """Nothing of them is alive, nothing new is born, and nobody else was touched."""
    before = {name: len(run.born()) for name, run in runs.items()}
    assert {name: run.alive() for name, run in runs.items()} == {name: [] for name in runs}
    strangers.assert_untouched()
    assert {name: len(run.born()) for name, run in runs.items()} == before


def test_after_a_cancel_nothing_is_left(place: Place, strangers: Strangers) -> None:
    """When it is answered, all is gone, proven: nothing left, nothing unverified; deaf agents are no exception."""
    stable = Stable(place)
    client = stable.connect()
    runs = start_all(place, client, strangers)
    asked = {name: client.send("cancel", runtime_id=run.id) for name, run in runs.items()}
    for name, run in runs.items():
        assert client.answer(asked[name])["result"] == {"ok": True, "left": []}, name
        assert run.alive() == [], name
    assert_over(runs, strangers)
    assert {stable.sentinel(run.id).status for run in runs.values()} == {"KILLED"}


def test_after_a_forced_cancel_by_another_client_nothing_is_left(place: Place, strangers: Strangers) -> None:
    """Twice at once, by two clients: both answers wait for the same end."""
    stable = Stable(place)
    run = Stubborn(place, stable.connect(), _HABITS["deaf to both"]).wait_up()
    strangers.join(run)
    operators = [stable.connect(), stable.connect()]
    asked = [operator.send("cancel", runtime_id=run.id, force=True) for operator in operators]
    for operator, each in zip(operators, asked, strict=True):
        assert operator.answer(each)["result"] == {"ok": True, "left": []}
        assert run.alive() == []
    assert_over({"run": run}, strangers)


def test_after_a_timeout_nothing_is_left(place: Place, strangers: Strangers) -> None:
    """A run is told to have ended by its timeout when all that it started is gone."""
    stable = Stable(place)
    client = stable.connect()
    runs = {name: Stubborn(place, client, _HABITS[name], timeout="20s") for name in ("polite", "deaf to both")}
    for run in runs.values():
        strangers.join(run.wait_up())
    for name, run in runs.items():
        snapshot = client.call("wait", runtime_id=run.id, until="done")
        assert (snapshot["outcome"], snapshot["stop_reason"], snapshot["left_processes"]) == ("TIMEOUT", "timeout", [])
        assert run.alive() == [], name
    assert_over(runs, strangers)


@pytest.mark.parametrize("mode", ["graceful", "kill"])
def test_after_a_shutdown_nothing_is_left(place: Place, strangers: Strangers, mode: str) -> None:
    """When the supervisor has ended, all that its runs started has, and each has its outcome."""
    stable = Stable(place)
    runs = start_all(place, stable.connect(), strangers)
    assert stable.shutdown(mode) == 0
    assert_over(runs, strangers)
    assert {stable.sentinel(run.id).status for run in runs.values()} == {"KILLED"}


def test_after_a_graceful_shutdown_that_takes_too_long_nothing_is_left(place: Place, strangers: Strangers) -> None:
    """When the time for a polite end is over, the rest is killed, with the same care."""
    stable = Stable(place, "--shutdown-timeout", "500ms")
    runs = start_all(place, stable.connect(), strangers)
    assert stable.shutdown("graceful") == 0
    assert_over(runs, strangers)


@pytest.mark.parametrize("kills_zygote", [False, True], ids=["alone", "and the zygote"])
def test_after_the_runtimes_kill_the_supervisor_leaves_nothing(
    place: Place, strangers: Strangers, kills_zygote: bool
) -> None:
    """SIGKILL of every runtime at once: when the loss is told, the sweep has ended what they started."""
    stable = Stable(place)
    client = stable.connect()
    runs = start_all(place, client, strangers)
    if kills_zygote:
        os.kill(stable.zygote_pid(), signal.SIGKILL)
    for run in runs.values():
        os.kill(stable.runtime_pid(run.id), signal.SIGKILL)
    for name, run in runs.items():
        snapshot = client.call("wait", runtime_id=run.id, until="done")
        assert (snapshot["outcome"], snapshot["stop_reason"], snapshot["left_processes"]) == (
            "FAILED",
            "runtime_lost",
            [],
        )
        assert run.alive() == [], name
    assert_over(runs, strangers)
    # What the supervisor has adopted it has also collected: only its zygote is its child.
    eventually_sync(
        lambda: children(stable.process.pid) == place.processes_like("avenor.runtimes.zygote"), WAIT_SECONDS
    )


def test_a_runtime_that_is_killed_in_the_middle_of_its_cancel_leaves_nothing(
    place: Place, strangers: Strangers
) -> None:
    """The ladder is at work in a runtime that dies: the supervisor ends what is left, and the cancel counts."""
    stable = Stable(place)
    client = stable.connect()
    run = Stubborn(place, client, _HABITS["deaf to both"]).wait_up()
    strangers.join(run)
    cancelled = client.send("cancel", runtime_id=run.id)
    client.call("subscribe", runtime_id=run.id, replay=True)
    client.wait_event("run.ending", run.id)
    os.kill(stable.runtime_pid(run.id), signal.SIGKILL)
    assert client.answer(cancelled)["result"] == {"ok": True, "left": []}
    assert run.alive() == []
    snapshot = client.call("wait", runtime_id=run.id, until="done")
    assert (snapshot["outcome"], snapshot["left_processes"]) == ("KILLED", [])
    assert_over({"run": run}, strangers)


def test_after_a_cancel_in_the_handshake_nothing_is_left(place: Place, strangers: Strangers) -> None:
    """An agent that has started its tools and never says a word."""
    stable = Stable(place)
    client = stable.connect()
    run = Stubborn(place, client, ("mute",)).wait_up()
    strangers.join(run)
    assert client.call("cancel", runtime_id=run.id) == {"ok": True, "left": []}
    assert_over({"run": run}, strangers)
    assert stable.sentinel(run.id).status == "KILLED"


def test_an_agent_that_exits_takes_its_tools_with_it(place: Place, strangers: Strangers) -> None:
    """It ends by itself in its turn, while its tools live: they are gone when that is told, and when a cancel is
    answered that comes while they are being ended.
    """
    stable = Stable(place)
    client = stable.connect()
    runs = {name: Stubborn(place, client, ("exits",)) for name in ("told", "cancelled")}
    for run in runs.values():
        run.wait_up()
    cancelled = client.send("cancel", runtime_id=runs["cancelled"].id)
    snapshot = client.call("wait", runtime_id=runs["told"].id, until="done")
    assert (snapshot["outcome"], snapshot["left_processes"]) == ("FAILED", [])
    assert runs["told"].alive() == []
    assert client.answer(cancelled)["result"] == {"ok": True, "left": []}
    assert runs["cancelled"].alive() == []


def test_tools_that_daemonise_themselves_leave_no_zombies(stable: Stable) -> None:
    """What comes to a runtime and ends is collected while the run goes on, and not its agent's exit status."""
    place, client = stable.place, stable.connect()
    gate = place.work / "gate"
    daemons = {"do": "run", "command": "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.01 &' &); done"}
    script = place.script(
        steps(
            {**daemons, "background": True},
            daemons,
            say("up"),
            {"do": "wait_for", "path": str(gate)},
            {"do": "die", "exit_code": 7},
        )
    )
    runtime_id = client.spawn(place, script=script)["runtime_id"]
    pid = stable.runtime_pid(runtime_id)
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    client.wait_event("agent.message_chunk", runtime_id)
    (agent,) = place.processes_like("avenor.runtimes.scripted")
    eventually_sync(lambda: children(pid) == [agent], WAIT_SECONDS)
    gate.touch()
    ended = client.call("wait", runtime_id=runtime_id, until="done")
    assert ended["outcome"] == "FAILED"
    assert "7" in ended["reason"], ended


def test_a_sweep_spares_what_was_there_before_the_supervisor(place: Place) -> None:
    """`sh -c 'other & exec avenor stable'`: the other is its child, and what that leaves behind comes to it, too. The
    loss of a runtime ends what this has started, and neither of them.
    """
    tool, other, orphan = place.sleeper(), place.sleeper(), place.sleeper()
    fifo = place.path / "fifo"
    os.mkfifo(fifo)
    # Its shell ends after the supervisor has come up, and leaves a process behind.
    leaving = f"read word < {fifo}; setsid {orphan} &"

    def start_others() -> None:
        for command in (f"exec {other}", leaving):
            os.posix_spawnp("sh", ["sh", "-c", f"exec > /dev/null 2>&1; {command}"], os.environ)

    stable = Stable(place, setup=start_others)
    client = stable.connect()
    command = {"do": "run", "command": f"setsid {tool} &", "background": True}
    runtime_id = client.spawn(place, script=place.script(steps(command, {"do": "hang"})))["runtime_id"]
    fifo.write_text("leave\n")
    spared = [*eventually_sync(lambda: commands(orphan), WAIT_SECONDS), *commands(other)]
    eventually_sync(lambda: set(spared) <= set(children(stable.process.pid)), WAIT_SECONDS)
    eventually_sync(lambda: commands(tool), WAIT_SECONDS)
    os.kill(stable.runtime_pid(runtime_id), signal.SIGKILL)
    ended = client.call("wait", runtime_id=runtime_id, until="done")
    assert (ended["stop_reason"], ended["left_processes"]) == ("runtime_lost", [])
    assert commands(tool) == []
    assert [*commands(orphan), *commands(other)] == spared
    assert stable.shutdown() == 0
    assert [*commands(orphan), *commands(other)] == spared
