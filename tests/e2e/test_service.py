"""Under a service manager: what it is told, what it does to a supervisor, and what an operator then has."""

import json
import plistlib
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avenor.cli.commands import STABLE
from avenor.cli.parsing import parse
from avenor.cli.stable import supervisor_options
from avenor.host.lock import is_locked
from avenor.host.unixsock import has_server
from avenor.stable.options import Options
from tests.e2e.harness import AVENOR, WAIT_SECONDS, Client, Place, Stable, say, steps
from tests.helpers import eventually_sync

SERVICE = Path(__file__).parents[2] / "docs/examples/service"
UNIT = SERVICE / "avenor-stable.service"
PLIST = SERVICE / "dev.avenor.stable.plist"


class Manager:
    """The manager's socket, read all the time: a full one would refuse what a test waits for."""

    def __init__(self, place: Place) -> None:
        self.path = place.path / "notify"
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def start(self, place: Place, **environ: str) -> Stable:
        """A supervisor as the unit starts it; returns when it says that it is ready."""
        self.messages.clear()
        told = {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": "200000", **environ}
        stable = Stable(place, "--on-sigterm", "detach", wait=False, environ=told)
        self.wait("READY=1")
        return stable

    def wait(self, message: str, count: int = 1) -> None:
        """Return when this message has come so many times since the last start."""
        with self._news:
            assert self._news.wait_for(lambda: self.messages.count(message) >= count, WAIT_SECONDS), self.messages

    def stop(self, stable: Stable, number: signal.Signals) -> int:
        """Signal the main process alone, as `KillMode=process` does; returns its exit status when all is read."""
        stable.signal(number)
        status = stable.wait_exit()
        self._send("X=over")
        self.wait("X=over")
        self.messages.remove("X=over")
        return status

    def close(self) -> None:
        """Listen no more."""
        self._send("")
        self._thread.join(WAIT_SECONDS)
        self._socket.close()

    def _send(self, message: str) -> None:
        """Come behind all that was sent before."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(message.encode(), str(self.path))

    def _read(self) -> None:
        while message := self._socket.recv(4096).decode():
            with self._news:
                self.messages.append(message)
                self._news.notify_all()


@pytest.fixture
def manager(place: Place) -> Iterator[Manager]:
    """One whose socket is in the place."""
    opened = Manager(place)
    yield opened
    opened.close()


def environ_of(pid: int) -> set[str]:
    """The names of the variables that a process was started with."""
    return {each.partition(b"=")[0].decode() for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}


def started_at(pid: int) -> str:
    """When a process began, in ticks of the kernel: with its pid, this says which one it is."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_a_service_is_told_what_it_needs_to_know(place: Place, manager: Manager) -> None:
    """Ready when the socket answers, alive again and again, what it is at, stopping; and no run speaks in its name."""
    stable = manager.start(place)
    with Client(stable.socket) as client:  # the first try must do
        assert client.call("list") == []
        runtime_id = client.spawn(place, script=place.script(steps({"do": "hang"})))["runtime_id"]
        manager.wait("STATUS=1 running")
        manager.wait("WATCHDOG=1", 5)
    for pid in (stable.runtime_pid(runtime_id), stable.zygote_pid(), *place.processes_like("scripted")):
        assert environ_of(pid).isdisjoint({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
    record = json.loads((stable.state / runtime_id / "record.json").read_text())
    assert record["environ"].keys().isdisjoint({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
    assert manager.stop(stable, signal.SIGTERM) == 0
    assert manager.messages[-1] == "STOPPING=1"


def test_runs_survive_a_restart_of_the_service(place: Place, manager: Manager) -> None:
    """The same process, known to the next supervisor when that says that it is ready, which takes prompts for it."""
    first = manager.start(place)
    script = place.script(steps(say("Hello.")))
    with Client(first.socket) as client:
        runtime_id = client.spawn(place, script=script)["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
    pid = first.runtime_pid(runtime_id)
    began = started_at(pid)
    assert manager.stop(first, signal.SIGTERM) == 0
    assert "reason=detached" in first.tombstone.read_text()
    second = manager.start(place)
    with Client(second.socket) as client:
        (snapshot,) = client.call("list")
        assert (snapshot["runtime_id"], snapshot["pid"], snapshot["status"]) == (runtime_id, pid, "idle")
        turns = snapshot["latest_seq"]
        client.call("prompt", runtime_id=runtime_id, text="again")
        client.call("wait", runtime_id=runtime_id, until="done")
        assert client.call("status", runtime_id=runtime_id)["latest_seq"] > turns
    assert (second.runtime_pid(runtime_id), started_at(pid)) == (pid, began)


def test_a_supervisor_that_the_watchdog_kills_leaves_its_runs(place: Place, manager: Manager) -> None:
    """SIGABRT, as systemd sends it to one that is stuck: no run ends, and the next supervisor has them."""
    first = manager.start(place)
    with Client(first.socket) as client:
        runtime_id = client.spawn(place, script=place.script(steps({"do": "hang"})))["runtime_id"]
    pid = first.runtime_pid(runtime_id)
    began = started_at(pid)
    first.signal(signal.SIGSTOP)  # stuck
    first.signal(signal.SIGABRT)
    first.signal(signal.SIGCONT)
    assert manager.stop(first, signal.SIGABRT) == -signal.SIGABRT
    assert "STOPPING=1" not in manager.messages
    second = manager.start(place)
    with Client(second.socket) as client:
        assert client.call("status", runtime_id=runtime_id)["status"] == "running"
        assert (second.runtime_pid(runtime_id), started_at(pid)) == (pid, began)
        assert client.call("cancel", runtime_id=runtime_id, force=True)["ok"] is True


def test_a_supervisor_that_cannot_start_is_never_ready(place: Place, manager: Manager) -> None:
    """The manager is told of the first one alone, and sees the second one fail."""
    manager.start(place)
    told = {"NOTIFY_SOCKET": str(manager.path)}
    second = Stable(place, "--on-sigterm", "detach", wait=False, environ=told)
    assert second.wait_exit() == 1
    manager.wait("WATCHDOG=1", manager.messages.count("WATCHDOG=1") + 2)
    assert manager.messages.count("READY=1") == 1


def test_a_drain_is_not_told_as_stopping_before_it_is_over(place: Place, manager: Manager) -> None:
    """A manager gives what is stopping a minute or two, and a drain may take hours."""
    gate = place.work / "gate"
    stable = manager.start(place)
    client = stable.connect()
    client.spawn(place, script=place.script(steps(say("x"), {"do": "wait_for", "path": str(gate)})))
    manager.wait("STATUS=1 running")
    client.call("shutdown", mode="drain")
    manager.wait("STATUS=shutting down (drain): 1 running")
    assert "STOPPING=1" not in manager.messages
    gate.touch()
    assert stable.wait_exit() == 0
    manager.wait("STOPPING=1")


def read_unit() -> dict[str, dict[str, str]]:
    """The sections of the unit; a key given twice would be a mistake of ours."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            assert key not in section
            section[key] = value
    return sections


def options_of(words: list[str]) -> Options:
    """What a command line of `avenor stable` asks for."""
    assert Path(words[0]).name == "avenor"
    assert words[1] == "stable"
    return supervisor_options(parse(STABLE, words[2:]))


def test_the_unit_lets_runs_outlive_the_service() -> None:
    """Ready and alive are told, signals go to the supervisor alone, and SIGTERM leaves the runs running."""
    service = read_unit()["Service"]
    assert (service["Type"], service["KillMode"], service["Restart"]) == ("notify", "process", "on-failure")
    assert int(service["WatchdogSec"]) >= 10
    assert service["OOMPolicy"] == "continue"
    options = options_of(shlex.split(service["ExecStart"]))
    assert options.on_sigterm == "detach"
    assert int(service["TimeoutStopSec"]) > options.shutdown_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit_without_a_word(place: Place) -> None:
    """With the program where it is here."""
    copy = place.path / UNIT.name
    copy.write_text(UNIT.read_text().replace("%h/.local/bin/avenor", AVENOR))
    verified = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(copy)],
        env=place.environ(XDG_RUNTIME_DIR=str(place.path)),
        capture_output=True,
        text=True,
    )
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_launchd_job_means_the_same() -> None:
    """The same command line, started again after failures alone, and what is left of it lives on."""
    job: dict[str, Any] = plistlib.loads(PLIST.read_bytes())
    words = shlex.split(read_unit()["Service"]["ExecStart"])
    assert job["ProgramArguments"][1:] == words[1:]
    assert options_of(job["ProgramArguments"]).on_sigterm == "detach"
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["AbandonProcessGroup"] is True


def control(stable: Stable, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `avenor control` on a supervisor."""
    return subprocess.run(
        [AVENOR, "control", "--socket", str(stable.socket), *words],
        env=stable.place.environ(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def test_the_log_level_changes_while_the_supervisor_runs(place: Place) -> None:
    """What was not logged before is logged now, and then no more."""
    stable = Stable(place)
    client = stable.connect()
    runtime_id = client.spawn(place, script=place.script(steps({"do": "hang"})))["runtime_id"]
    client.call("claim", runtime_id=runtime_id)
    assert control(stable, "log-level").stdout == "info\n"
    assert control(stable, "log-level", "debug").stdout == "debug\n"
    client.call("claim", runtime_id=runtime_id)
    assert control(stable, "log-level", "--json", "error").stdout == '{"level":"error"}\n'
    client.call("claim", runtime_id=runtime_id)
    assert control(stable, "log-level", "loud").returncode == 2
    assert client.refusal("log_level", level="loud")["code"] == -32602
    client.call("shutdown", mode="kill")
    logged = [json.loads(line) for line in stable.complaints().splitlines()]
    assert [each["event"] for each in logged].count("request.passed_on") == 1
    assert logged[-1]["event"] == "request.passed_on"  # nothing as unimportant as a shutdown after that


def test_a_shutdown_that_is_waited_for_leaves_room_for_the_next(stable: Stable) -> None:
    """The process has ended: socket and state directory are free. The answer is the same as without."""
    place = stable.place
    for words in (["detach", "--wait"], ["--wait"], ["--wait", "--json"]):
        done = control(stable, "shutdown", *words)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            '{"shutting_down":true}\n' if "--json" in words else "stopped\n",
            "",
        )
        assert stable.process.poll() == 0
        stable = Stable(place)


def test_a_drain_can_be_waited_for(stable: Stable) -> None:
    """For as long as the runs take."""
    wait = drain_and_wait(stable)
    (stable.place.work / "gate").touch()
    assert wait.communicate(timeout=WAIT_SECONDS) == (b"stopped\n", b"")
    assert stable.process.poll() == 0


def test_who_does_not_want_to_wait_any_more_interrupts_the_command(stable: Stable) -> None:
    """The drain goes on, and can be made a harder shutdown."""
    wait = drain_and_wait(stable)
    wait.send_signal(signal.SIGINT)
    assert wait.communicate(timeout=WAIT_SECONDS) == (b"", b"")
    assert wait.returncode == 130
    assert stable.connect().call("status")["status"] == "running"
    assert control(stable, "shutdown", "kill", "--wait").stdout == "stopped\n"


def drain_and_wait(stable: Stable) -> "subprocess.Popen[bytes]":
    """A command that waits for the end of a supervisor, in which a run works until there is a file `gate`."""
    place, client = stable.place, stable.connect()
    gate = {"do": "wait_for", "path": str(place.work / "gate"), "timeout": "300s"}
    client.spawn(place, script=place.script(steps(gate)), wait="session")
    wait = place.start("control", "--socket", str(stable.socket), "shutdown", "drain", "--wait")
    assert stable.process.stderr is not None
    assert any(b"shutdown.requested" in line for line in stable.process.stderr)
    return wait


def test_a_run_has_no_supervisors_methods(place: Place) -> None:
    """They are told apart from names that do not exist."""
    path = place.path / "r.sock"
    place.run("--prompt", "x", "--script", place.script(steps({"do": "hang"})), "--control-socket", str(path))
    eventually_sync(lambda: has_server(path), WAIT_SECONDS)  # its file is there a moment before it can be connected to
    with Client(path) as client:
        for method in ("spawn", "spec", "prune", "log_level"):
            assert client.refusal(method)["code"] == -32020
        assert client.refusal("prunes")["code"] == -32601


def test_prune_from_end_to_end(place: Place) -> None:
    """What it says and its exit status; a pruned id and key are free of their past in the next supervisor too."""
    stable = Stable(place, "--max-parked", "0")
    client = stable.connect()
    mine = place.work / "mine.done"
    script = place.script(steps(say("x")))
    for params in ({"key": "k", "sentinel_file": str(mine)}, {}):
        runtime_id = client.spawn(place, script=script, **params)["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
    # A moment after their ends are told they are settled, too.
    eventually_sync(lambda: len(client.call("prune", keep=0, dry_run=True)["pruned"]) == 2, WAIT_SECONDS)
    assert control(stable, "prune", "--keep", "1h").stdout == "pruned 0\n"
    assert control(stable, "prune", "--keep", "0", "--dry-run").stdout == "would prune 2\n"
    lock = subprocess.Popen(["flock", str(stable.state / "rt_2/lock"), "cat"], stdin=subprocess.PIPE)
    eventually_sync(lambda: is_locked(stable.state / "rt_2/lock"), WAIT_SECONDS)
    refused = control(stable, "prune", "--keep", "0")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "rt_2 stays" in refused.stderr
    assert "pruned: rt_1" in refused.stderr
    lock.communicate()
    assert control(stable, "prune", "--keep", "0", "--json").stdout == '{"pruned":["rt_2"]}\n'
    assert control(stable, "prune").returncode == 2
    assert mine.exists()
    assert stable.shutdown() == 0
    assert control(stable, "prune", "--keep", "0").returncode == 3
    with Client(Stable(place, "--keep", "7d").socket) as again:
        assert again.call("list") == []
        assert again.spawn(place, script=script, key="k")["runtime_id"] == "rt_3"
