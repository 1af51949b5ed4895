"""What a restart costs those who use a supervisor: a reconnect. And a spawn that a supervisor's death cuts in two."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avenor.control.blocking import EventStream, open_client
from tests.e2e.harness import WAIT_SECONDS, Place, Stable, commands, is_alive, read_log, say, steps
from tests.helpers import eventually_sync


def kill(stable: Stable) -> None:
    """SIGKILL for the supervisor."""
    stable.signal(signal.SIGKILL)
    stable.wait_exit()


def detach(stable: Stable) -> None:
    """As before an upgrade."""
    assert stable.shutdown("detach") == 0


def check_nothing_runs(place: Place) -> None:
    """A zygote whose supervisor was killed while it loaded finds that out only when it has loaded."""
    with contextlib.suppress(AssertionError):
        eventually_sync(lambda: place.processes() == {}, WAIT_SECONDS)
    assert place.processes() == {}


WAYS = pytest.mark.parametrize("die", [kill, detach], ids=lambda die: die.__name__)


def gated(place: Place) -> str:
    """A script whose turns speak, wait for the gate in the working directory, and repeat their prompt."""
    return place.script(
        steps(say("Before."), {"do": "wait_for", "path": str(place.work / "gate")}, {"do": "echo"}), name="gated.json"
    )


def spawn_gated(stable: Stable) -> str:
    """A run in the middle of its turn, which nobody owns."""
    with contextlib.closing(stable.connect()) as client:
        runtime_id = str(client.spawn(stable.place, script=gated(stable.place))["runtime_id"])
    eventually_sync(lambda: "Before." in stable.log_path(runtime_id).read_text(), WAIT_SECONDS)
    with contextlib.closing(stable.connect()) as other:
        eventually_sync(lambda: other.call("status", runtime_id=runtime_id)["owner"] is None, WAIT_SECONDS)
    return runtime_id


@WAYS
def test_a_client_that_tails_connects_once_more_and_misses_nothing(
    place: Place, die: Callable[[Stable], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's stream of events is the log, byte for byte, though the supervisor changed in the middle."""
    connections = 0
    connect = EventStream._connect  # pyright: ignore[reportPrivateUsage]

    def counted(stream: EventStream) -> Any:
        nonlocal connections
        connection = connect(stream)
        connections += 1
        return connection

    monkeypatch.setattr(EventStream, "_connect", counted)
    first = Stable(place)
    runtime_id = spawn_gated(first)
    lines: list[bytes] = []
    with open_client(str(first.socket)) as client, client.events(runtime_id, replay=True, raw=True) as stream:
        thread = threading.Thread(target=lambda: lines.extend(stream))
        thread.start()
        die(first)
        second = Stable(place)
        (place.work / "gate").touch()
        other = second.connect()
        other.call("wait", runtime_id=runtime_id, until="done")
        other.call("cancel", runtime_id=runtime_id)
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert lines == second.log_path(runtime_id).read_bytes().splitlines()
    assert connections == 2
    assert second.shutdown() == 0


@WAYS
def test_the_command_that_tails_says_that_the_server_went_away(place: Place, die: Callable[[Stable], None]) -> None:
    """Called again with the last `seq` that it showed, it goes on with the next."""
    first = Stable(place)
    runtime_id = spawn_gated(first)
    words = ["control", "--socket", str(first.socket), "tail", runtime_id]
    tail = place.start(*words, "--replay")
    last = len(read_log(first.log_path(runtime_id)))
    assert tail.stdout is not None
    shown = [json.loads(tail.stdout.readline()) for _ in range(last)]
    die(first)
    rest, complaints = tail.communicate(timeout=WAIT_SECONDS)
    assert (tail.returncode, rest) == (3, b"")
    assert bytes(first.socket) in complaints
    second = Stable(place)
    again = place.start(*words, "--after-seq", str(shown[-1]["seq"]))
    (place.work / "gate").touch()
    client = second.connect()
    client.call("wait", runtime_id=runtime_id, until="done")
    client.call("cancel", runtime_id=runtime_id)
    output, complaints = again.communicate(timeout=WAIT_SECONDS)
    assert (again.returncode, complaints) == (0, b"")
    assert [*shown, *map(json.loads, output.splitlines())] == read_log(second.log_path(runtime_id))
    assert second.shutdown() == 0


@WAYS
def test_a_wait_is_asked_again_and_answered(place: Place, die: Callable[[Stable], None]) -> None:
    """Whoever waits loses the connection, and gets from the next supervisor what he waited for."""
    first = Stable(place)
    runtime_id = spawn_gated(first)
    waiting = first.connect()
    asked = waiting.send("wait", runtime_id=runtime_id, until="done")
    waiting.call("ping")
    die(first)
    with contextlib.suppress(EOFError, ConnectionError):
        assert waiting.answer(asked)["error"]["data"]["retryable"] is True
    second = Stable(place)
    client = second.connect()
    again = client.send("wait", runtime_id=runtime_id, until="done")
    (place.work / "gate").touch()
    assert client.answer(again)["result"]["outcome"] == "DONE"
    assert client.call("result", runtime_id=runtime_id)["final_output"].endswith("do it")
    assert second.shutdown() == 0


@WAYS
def test_prompts_that_were_accepted_come_in_their_order(place: Place, die: Callable[[Stable], None]) -> None:
    """They wait in the runtime, not in the supervisor; each is answered once, in the session that has the others."""
    first = Stable(place)
    runtime_id = spawn_gated(first)
    client = first.connect()
    for text in ("second", "third"):
        assert client.call("prompt", runtime_id=runtime_id, text=text)["accepted"]
    die(first)
    second = Stable(place)
    client = second.connect()
    assert client.call("status", runtime_id=runtime_id)["queued_prompts"] == 2
    client.call("prompt", runtime_id=runtime_id, text="fourth")
    (place.work / "gate").touch()
    client.call("wait", runtime_id=runtime_id, until="done")
    log = read_log(second.log_path(runtime_id))
    turns = [event["final_output"] for event in log if event["event"] == "turn.end"]
    assert [turn.removeprefix("Before.").strip() for turn in turns] == ["do it", "second", "third", "fourth"]
    assert second.shutdown() == 0


def test_a_command_on_a_socket_without_a_server_says_so(place: Place) -> None:
    """Between the two supervisors, what is asked fails at once with the code for it; nothing hangs."""
    first = Stable(place)
    runtime_id = spawn_gated(first)
    kill(first)
    asked = place.start("control", "--socket", str(first.socket), "status", runtime_id)
    assert asked.communicate(timeout=WAIT_SECONDS)[0] == b""
    assert asked.returncode == 3
    second = Stable(place)
    assert second.shutdown() == 0


def test_what_was_queued_outlives_a_supervisor_that_leaves_as_soon_as_it_has_begun_to_start_it(place: Place) -> None:
    """Its zygote still loads, and ends with it: what it was asked for comes up before, and the next one has it."""
    first = Stable(place, "--max-runtimes", "1")
    spawn_gated(first)
    first.connect().send("spawn", prompt="x", dir=str(place.work), backend="scripted")
    eventually_sync(lambda: (first.state / "rt_2" / "record.json").exists(), WAIT_SECONDS)
    detach(first)
    detach(Stable(place, "--max-runtimes", "2"))
    third = Stable(place)
    assert third.connect().call("wait", runtime_id="rt_2", until="done")["outcome"] == "DONE"
    assert third.shutdown() == 0
    check_nothing_runs(place)


# Those that detach wait no longer for a child that cannot come up.
IN_VAIN = ("--shutdown-timeout", "100ms")


class Held:
    """Places in the product at which processes are halted, and the lines about those that came there."""

    def __init__(self, place: Place, *names: str) -> None:
        self._directory = place.path / "failpoints"
        for folder in ("hold", "kill"):
            (self._directory / folder).mkdir(parents=True)
        for name in names:
            (self._directory / "hold" / name).touch()
        self.environ = {"AVENOR_FAILPOINTS": str(self._directory)}

    def wait_reached(self, name: str) -> int:
        """The first process that has come there."""
        return eventually_sync(lambda: self._reached(name), WAIT_SECONDS)

    def let_go(self, name: str) -> None:
        """Nobody is halted there any more."""
        (self._directory / "hold" / name).unlink()

    def kill_next(self, name: str) -> None:
        """The next process that comes there dies."""
        (self._directory / "kill" / name).touch()

    def _reached(self, name: str) -> int:
        path = self._directory / "hits"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return next((int(pid) for found, pid in words if found == name), 0)


@WAYS
def test_a_child_that_is_late_for_its_own_end_does_not_run(place: Place, die: Callable[[Stable], None]) -> None:
    """It was forked before its supervisor went, and takes its lock only after the next one has told it to be lost."""
    held = Held(place, "runtime.before_lock")
    first = Stable(place, *IN_VAIN, environ=held.environ)
    first.connect().send("spawn", prompt="x", dir=str(place.work), backend="scripted")
    late = held.wait_reached("runtime.before_lock")
    die(first)
    second = Stable(place)
    client = second.connect()
    ended = client.call("wait", runtime_id="rt_1", until="done")
    assert (ended["status"], ended["outcome"], ended["stop_reason"]) == ("ended", "FAILED", "launch_lost")
    assert is_alive(late)
    held.let_go("runtime.before_lock")
    eventually_sync(lambda: not is_alive(late), WAIT_SECONDS)
    assert [event["event"] for event in read_log(second.log_path("rt_1"))] == ["run.end"]
    assert second.sentinel("rt_1").stop_reason == "launch_lost"
    assert place.processes_like("avenor.runtimes.scripted") == []
    assert second.shutdown() == 0
    check_nothing_runs(place)


@WAYS
def test_a_child_that_is_late_gives_way_to_the_one_that_was_started_for_it(
    place: Place, die: Callable[[Stable], None]
) -> None:
    """With `--on-crash resume` the next supervisor starts another; of the two, one runs."""
    held = Held(place, "runtime.before_lock")
    first = Stable(place, *IN_VAIN, "--on-crash", "resume", environ=held.environ)
    first.connect().send("spawn", prompt="x", dir=str(place.work), backend="scripted")
    late = held.wait_reached("runtime.before_lock")
    die(first)
    second = Stable(place)
    client = second.connect()
    settled = client.call("wait", runtime_id="rt_1", until="done")
    assert (settled["status"], settled["outcome"]) == ("idle", "DONE")
    assert settled["pid"] not in (None, late)
    log = read_log(second.log_path("rt_1"))
    assert is_alive(late)
    held.let_go("runtime.before_lock")
    eventually_sync(lambda: not is_alive(late), WAIT_SECONDS)
    assert read_log(second.log_path("rt_1")) == log
    assert [event["event"] for event in log].count("run.start") == 1
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert second.shutdown() == 0
    check_nothing_runs(place)


@WAYS
@pytest.mark.parametrize("on_crash", ["fail", "resume"])
def test_a_child_that_has_its_lock_is_waited_for(place: Place, die: Callable[[Stable], None], on_crash: str) -> None:
    """It lives, though it has not said yet which process it is: it is neither lost nor started again, and runs."""
    held = Held(place, "runtime.after_lock")
    first = Stable(place, *IN_VAIN, "--on-crash", on_crash, environ=held.environ)
    first.connect().send("spawn", prompt="x", dir=str(place.work), backend="scripted", key="k")
    child = held.wait_reached("runtime.after_lock")
    die(first)
    second = Stable(place)
    client = second.connect()
    (listed,) = client.call("list")
    assert (listed["runtime_id"], listed["status"], listed["outcome"]) == ("rt_1", "starting", None)
    again = client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", key="k")
    held.let_go("runtime.after_lock")
    assert client.answer(again)["result"]["runtime_id"] == "rt_1"
    settled = client.call("wait", runtime_id="rt_1", until="done")
    assert (settled["outcome"], settled["pid"]) == ("DONE", child)
    log = read_log(second.log_path("rt_1"))
    assert [event["event"] for event in log].count("run.start") == 1
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert second.shutdown() == 0
    check_nothing_runs(place)


def test_a_zygote_that_outlives_its_supervisor_forks_nothing_that_runs(place: Place) -> None:
    """It was halted with the request in its socket; what it forks when it goes on finds its end told, and it ends."""
    first = Stable(place)
    (zygote,) = eventually_sync(lambda: place.processes_like("avenor.runtimes.zygote"), WAIT_SECONDS)
    first.connect().spawn(place)  # so that it is known to be up
    os.kill(zygote, signal.SIGSTOP)
    client = first.connect()
    client.send("spawn", prompt="x", dir=str(place.work), backend="scripted")
    eventually_sync(lambda: (first.state / "rt_2" / "record.json").exists(), WAIT_SECONDS)
    client.call("ping")
    kill(first)
    second = Stable(place)
    client = second.connect()
    assert client.call("wait", runtime_id="rt_2", until="done")["stop_reason"] == "launch_lost"
    os.kill(zygote, signal.SIGCONT)
    eventually_sync(lambda: not is_alive(zygote), WAIT_SECONDS)
    eventually_sync(lambda: _children_of(place, first.state / "rt_2") == [], WAIT_SECONDS)
    assert [event["event"] for event in read_log(second.log_path("rt_2"))] == ["run.end"]
    assert client.call("wait", runtime_id="rt_1", until="done")["outcome"] == "DONE"
    assert second.shutdown() == 0
    check_nothing_runs(place)


def test_a_supervisor_that_dies_while_it_settles_leaves_the_rest_to_the_next(place: Place) -> None:
    """Killed between the end in the log and the sweep: the third one ends the tools, and writes the sentinel."""
    held = Held(place)
    first = Stable(place)
    tool = place.sleeper()
    script = place.script(steps({"do": "run", "command": f"setsid {tool} &", "background": True}, {"do": "hang"}))
    runtime_id = str(first.connect().spawn(place, script=script)["runtime_id"])
    eventually_sync(lambda: commands(tool), WAIT_SECONDS)
    kill(first)
    os.kill(first.runtime_pid(runtime_id), signal.SIGKILL)
    eventually_sync(lambda: not is_alive(first.runtime_pid(runtime_id)), WAIT_SECONDS)
    held.kill_next("settle.after_log")
    second = Stable(place, wait=False, environ=held.environ)
    assert second.wait_exit() == -signal.SIGKILL
    log = read_log(first.log_path(runtime_id))
    assert (log[-1]["event"], log[-1]["stop_reason"]) == ("run.end", "runtime_lost")
    third = Stable(place)
    (listed,) = third.connect().call("list")
    assert (listed["status"], listed["stop_reason"]) == ("ended", "runtime_lost")
    eventually_sync(lambda: commands(tool) == [], WAIT_SECONDS)
    eventually_sync(lambda: (third.state / runtime_id / "sentinel.env").exists(), WAIT_SECONDS)
    assert third.sentinel(runtime_id).stop_reason == "runtime_lost"
    assert read_log(third.log_path(runtime_id)) == log
    assert third.shutdown() == 0
    check_nothing_runs(place)


def _children_of(place: Place, directory: Path) -> list[int]:
    """The processes that run in a runtime's directory."""
    return [pid for pid in place.processes() if _stderr_of(pid) == str(directory / "stderr.log")]


def _stderr_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/2")
    return ""
