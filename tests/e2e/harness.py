"""Drives the `avenor` command as its users do: real supervisors and runs, raw sockets, and whatever misbehaves.

Everything that a test starts carries a mark in its environment, by which it is found and ended when the test is over.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

from avenor.host.identity import read_stat
from avenor.host.tree import children, tagged
from avenor.protocol.outcomes import Outcome, parse_sentinel
from tests.helpers import command_of, eventually_sync, kill_each, name_of

AVENOR = str(Path(sys.executable).with_name("avenor"))
MARK = "AVENOR_E2E"
# The bound of every wait: far above what a loaded machine needs, far below what a person would wait for.
WAIT_SECONDS = 120.0


def _is_ahead(pid: int) -> bool:
    found = read_stat(pid)
    names = (name_of(pid), "" if found is None else name_of(found.ppid))
    return names[0] == "avenor-spare" or "avenor-fork" in names


class Place:
    """A short directory for one test's files and sockets, and the processes that were started there.

    Attributes:
        work: The runs' working directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"
        self.work.mkdir()
        self.started: list[subprocess.Popen[bytes]] = []
        self.clients: list[Client] = []
        self._sleepers: list[str] = []

    def script(self, *rules: dict[str, Any], name: str = "script.json", **members: Any) -> str:
        """Write a script of these rules; returns its path."""
        path = self.path / name
        path.write_text(json.dumps({"rules": list(rules), **members}))
        return str(path)

    def environ(self, **changes: str) -> dict[str, str]:
        """This process's environment, moved into the place and marked."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AVENOR_", "XDG_"))}
        state = str(self.path / "xdg")
        return {**kept, MARK: str(self.path), "XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": state, **changes}

    def start(
        self, *arguments: str, setup: Callable[[], None] | None = None, environ: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start the `avenor` command, in a session of its own."""
        process = subprocess.Popen(
            [AVENOR, *arguments],
            cwd=self.work,
            env=self.environ(**(environ or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=setup,
        )
        self.started.append(process)
        return process

    def run(self, *flags: str, **options: Any) -> "Run":
        """Start `avenor run` on the scripted agent, with a sentinel and an event log."""
        return Run(self, flags, **options)

    def processes(self) -> dict[int, str]:
        """The command lines of all living processes that were started from here."""
        found = {each.id.pid: read_stat(each.id.pid) for each in tagged(MARK, str(self.path))}
        return {pid: command_of(pid) for pid, stat in found.items() if stat is not None and not stat.is_dead}

    def sleeper(self) -> str:
        """A command that does nothing, and that nobody else on this machine runs."""
        self._sleepers.append(f"sleep {os.getpid()}{len(self._sleepers):03}")
        return self._sleepers[-1]

    def in_use(self) -> dict[int, str]:
        """The same but for forks that zygotes make ahead, and what these start to rehearse."""
        return {pid: command for pid, command in self.processes().items() if not _is_ahead(pid)}

    def processes_like(self, words: str) -> list[int]:
        """The pids of those in use whose command line holds these words."""
        return [pid for pid, command in self.in_use().items() if words in command]

    def clean_up(self) -> None:
        """Leave nothing behind, whatever the test came to."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (pids := self._all_pids()) and time.monotonic() < deadline:
            kill_each(pids)
        for process in self.started:
            process.communicate()
        for client in self.clients:
            client.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _all_pids(self) -> list[int]:
        return [*self.processes(), *(pid for sleeper in self._sleepers for pid in commands(sleeper))]


@contextlib.contextmanager
def open_place() -> Generator[Place, None, None]:
    """A place, cleaned up at the end; below /tmp, because a socket's path must be short."""
    place = Place(Path(tempfile.mkdtemp(prefix="av", dir="/tmp")))
    try:
        yield place
    finally:
        place.clean_up()


class Run:
    """One `avenor run`."""

    def __init__(
        self, place: Place, flags: Sequence[str], *, name: str = "run", backend: str = "scripted", **options: Any
    ) -> None:
        self.place = place
        self.sentinel = place.path / f"{name}.done"
        self.log = place.path / f"{name}.ndjson"
        files = ["--sentinel-file", str(self.sentinel), "--on-event", str(self.log)]
        self.process = place.start("run", "--backend", backend, *files, *flags, **options)

    def finish(self) -> int:
        """The exit code."""
        self.output, self.complaints = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode

    def outcome(self) -> Outcome:
        """What the sentinel says."""
        return parse_sentinel(self.sentinel.read_text())

    def wait_event(self, name: str, **members: Any) -> dict[str, Any]:
        """Wait for an event in the log; returns the first that fits."""
        found = eventually_sync(lambda: first_event(self.log, name, members), WAIT_SECONDS)
        assert found is not None
        return found

    def events(self) -> list[dict[str, Any]]:
        """What the log holds."""
        return read_log(self.log)


class Stable:
    """One supervisor process.

    Args:
        place: Where its socket and state are.
        flags: More flags of `avenor stable`.
        name: The name of socket and state directory; a second start with the same name continues them.
    """

    def __init__(self, place: Place, *flags: str, name: str = "s", wait: bool = True, **options: Any) -> None:
        self.place = place
        self.socket = place.path / f"{name}.sock"
        self.state = place.path / f"{name}.state"
        self.tombstone = place.path / f"{name}.sock.dead"
        paths = ["--control-socket", str(self.socket), "--state-dir", str(self.state)]
        self.process = place.start("stable", *paths, *flags, **options)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Return when it answers."""

        def answers() -> bool:
            assert self.process.poll() is None, self.complaints()
            try:
                with Client(self.socket) as client:
                    return "result" in client.ask("ping")
            except OSError:
                return False

        eventually_sync(answers, WAIT_SECONDS)

    def complaints(self) -> str:
        """What an ended supervisor said on standard error."""
        return self.process.communicate(timeout=WAIT_SECONDS)[1].decode()

    def connect(self) -> "Client":
        """A new client, closed with the place."""
        client = Client(self.socket)
        self.place.clients.append(client)
        return client

    def signal(self, number: signal.Signals) -> None:
        """Signal the supervisor and nothing else."""
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """The exit code."""
        self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode

    def shutdown(self, mode: str = "graceful") -> int:
        """Stop it as an operator does; returns the exit code."""
        with Client(self.socket) as client:
            client.call("shutdown", mode=mode)
        return self.wait_exit()

    def log_path(self, runtime_id: str) -> Path:
        """The journal of a runtime."""
        return self.state / runtime_id / "events.ndjson"

    def sentinel(self, runtime_id: str) -> Outcome:
        """What the sentinel of a runtime says."""
        return parse_sentinel((self.state / runtime_id / "sentinel.env").read_text())

    def runtime_pid(self, runtime_id: str) -> int:
        """The process of a runtime."""
        return cast("int", json.loads((self.state / runtime_id / "process.json").read_text())["pid"])

    def zygote_pid(self) -> int:
        """The process of its zygote."""
        return self.place.processes_like("avenor.runtimes.zygote")[0]

    def wait_spare(self) -> int:
        """Waits until its zygote has made a fork ahead, and returns which process that is."""
        zygote = self.zygote_pid()
        eventually_sync(lambda: "avenor-spare" in map(name_of, children(zygote)), WAIT_SECONDS)
        return next(pid for pid in children(zygote) if name_of(pid) == "avenor-spare")


class Client:
    """A blocking connection that says exactly what it is told to, and keeps whatever comes."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_SECONDS)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self.events: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.strays: list[Any] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._buffer = bytearray()
        self._last_id = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self.sock.close()

    def send(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.sock.sendall(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        return self._last_id

    def answer(self, request_id: int) -> dict[str, Any]:
        """The answer to one request."""
        while request_id not in self._answers:
            self.take()
        return self._answers.pop(request_id)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a new request, whatever it is."""
        return self.answer(self.send(method, **params))

    def call(self, method: str, **params: Any) -> Any:
        """The result of a call that must have one."""
        answer = self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    def refusal(self, method: str, **params: Any) -> dict[str, Any]:
        """The error of a call that must have one."""
        answer = self.ask(method, **params)
        assert "error" in answer, answer
        return cast("dict[str, Any]", answer["error"])

    def spawn(self, place: Place, **params: Any) -> dict[str, Any]:
        """Spawn on the scripted agent."""
        chosen = {"prompt": "do it", "dir": str(place.work), "backend": "scripted", **params}
        return cast("dict[str, Any]", self.call("spawn", **chosen))

    def wait_event(self, name: str, runtime_id: str | None = None, **members: Any) -> dict[str, Any]:
        """The first event, come already or still to come, that fits."""
        wanted = {"event": name, **members} | ({} if runtime_id is None else {"runtime_id": runtime_id})
        looked_at = 0
        while True:
            for event in self.events[looked_at:]:
                if wanted.items() <= event.items():
                    return event
            looked_at = len(self.events)
            self.take()

    def stray(self) -> Any:
        """The next answer that belongs to no request of ours."""
        while not self.strays:
            self.take()
        return self.strays.pop(0)

    def notice(self) -> dict[str, Any]:
        """The next notice."""
        while not self.notices:
            self.take()
        return self.notices.pop(0)

    def read_line(self) -> bytes:
        """The next line as it came.

        Raises:
            EOFError: The server has closed the connection.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def take(self) -> None:
        """Take the next message."""
        message: Any = json.loads(self.read_line())
        if isinstance(message, list) or ("method" not in message and not isinstance(message.get("id"), int)):
            self.strays.append(message)
        elif "method" not in message:
            self._answers[message["id"]] = message
        elif message["method"] == "event":
            self.events.append(message["params"])
        else:
            self.notices.append(message["params"])


def commands(words: str) -> list[int]:
    """All processes of this machine whose command line is these words; also those that cleared their environment."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if command_of(pid).strip() == words and is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and not stat.is_dead


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log that somebody may be writing to."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def first_event(path: Path, name: str, members: dict[str, Any]) -> dict[str, Any] | None:
    """The first event in a log that fits."""
    wanted = {"event": name, **members}
    return next((event for event in read_log(path) if wanted.items() <= event.items()), None)


def say(text: str, **members: Any) -> dict[str, Any]:
    """A step."""
    return {"do": "say", "text": text, **members}


def steps(*each: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A rule that plays these steps."""
    return {"steps": list(each), **members}


ASK: dict[str, Any] = {"do": "tool", "title": "a tool", "ask": True}
