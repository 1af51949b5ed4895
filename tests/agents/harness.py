"""What the end-to-end tests drive real agents with: a home of its own, `avenor` as a user starts it, and its events.

Everything goes through the commands and the blocking client; the only look behind them is at the processes that run.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

from avenor.control.blocking import Client, open_client
from avenor.host import tree
from avenor.host.identity import ProcessStat, read_stat
from avenor.protocol.errors import Unavailable
from avenor.protocol.events import AnyEvent, Event, MessageChunk, PermissionRequest, SessionStart, TurnEnd, decode_event
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams
from tests.agents.install import OPENCODE
from tests.helpers import eventually_sync

E = TypeVar("E", bound=Event)

HERE = Path(__file__).parent
# For a hang to fail a test rather than the whole run; a session on a busy machine was seen to take 20 s.
WAIT_SECONDS = 180.0
# A tool that runs for longer than any test, and notes which process it is.
LONG_TOOL = "[[shell: echo $$ > tool.pid; exec python3 -c 'import time; time.sleep(97)']]"
# Backends of a user's own, by the column of the agent that they start.
_COLUMNS = {"codex-gateway": "codex-app-server"}
_SWITCHES = (
    "MODELS_FETCH",
    "AUTOUPDATE",
    "LSP_DOWNLOAD",
    "DEFAULT_PLUGINS",
    "SHARE",
    "CLAUDE_CODE",
    "EXTERNAL_SKILLS",
)


class Home:
    """A user of this machine who has opencode, and nothing else.

    Args:
        root: An empty folder.
        model_url: Where the stand-in model is.
    """

    def __init__(self, root: Path, model_url: str) -> None:
        self.path = root / "home"
        programs = root / "bin"
        for folder in (programs, *(self.path / name for name in (".config", ".cache", ".local", "tmp"))):
            folder.mkdir(parents=True)
        (programs / "opencode").symlink_to(OPENCODE.installed())
        _pretend_plugin(self.path / ".config" / "opencode")
        avenor = Path(sys.executable).parent
        self.env = {
            "HOME": str(self.path),
            "PATH": f"{programs}:{avenor}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(self.path / "tmp"),
            "XDG_CONFIG_HOME": str(self.path / ".config"),
            "XDG_CACHE_HOME": str(self.path / ".cache"),
            "XDG_DATA_HOME": str(self.path / ".local" / "share"),
            "XDG_STATE_HOME": str(self.path / ".local" / "state"),
            "OPENCODE_CONFIG": str(HERE / "opencode.json"),
            "STANDIN_URL": model_url,
            **{f"OPENCODE_DISABLE_{name}": "1" for name in _SWITCHES},
        }

    def command(self, words: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; text in, text out."""
        return subprocess.run(
            list(words), cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=WAIT_SECONDS,
        )  # fmt: skip

    def start(self, words: Sequence[str], cwd: Path, *, stderr: Path) -> "subprocess.Popen[str]":
        """Starts a command whose stdout is read later, with stderr in a file."""
        with stderr.open("wb") as errors:
            return subprocess.Popen(
                list(words), cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                text=True,
            )  # fmt: skip

    def make_database(self) -> None:
        """Starts opencode once, alone: of two very first starts at once, one fails with "database is locked"."""
        first = self.command(["opencode", "session", "list"], self.path)
        assert first.returncode == 0, first.stderr

    def processes(self) -> list[ProcessStat]:
        """All that runs in this home."""
        return tree.tagged("HOME", str(self.path))


def _pretend_plugin(folder: Path) -> None:
    """Makes opencode believe that its plugin package is installed.

    It would fetch it from the npm registry at every start, and all that share the home wait for each other's try.
    """
    (folder / "node_modules").mkdir(parents=True)
    installed = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    (folder / "package-lock.json").write_text(json.dumps(installed))


class Feed:
    """All events of a server, gathered as they come over its socket.

    Args:
        socket: The control socket; it must answer.
    """

    def __init__(self, socket: str) -> None:
        self._events: list[AnyEvent] = []
        self._news = threading.Condition()
        self._client = Client(socket, timeout_seconds=WAIT_SECONDS, on_notice=None)
        self._stream = self._client.events(replay=True, reconnect=False)
        self._stream.__enter__()
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()

    def of(self, runtime_id: str | None) -> list[AnyEvent]:
        """What came of one runtime so far; None for the only run of a socket of its own."""
        with self._news:
            return [event for event in self._events if runtime_id is None or event.runtime_id == runtime_id]

    def wait(self, kind: type[E], matches: Callable[[E], bool], *, runtime_id: str | None, after_seq: int) -> E:
        """The first event of a kind behind `after_seq` that matches; waits for it.

        Raises:
            AssertionError: It did not come in time, or cannot come any more.
        """

        def found() -> E | None:
            events = (event for event in self._events if runtime_id is None or event.runtime_id == runtime_id)
            return next((e for e in events if e.seq > after_seq and isinstance(e, kind) and matches(e)), None)

        with self._news:
            self._news.wait_for(lambda: found() or not self._thread.is_alive(), WAIT_SECONDS)
            event = found()
        assert event is not None, f"no {kind.__name__}; there was {self.of(runtime_id)[-20:]}"
        return event

    def join(self) -> None:
        """Waits for the end of the stream, which the server's end brings."""
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._client.close()

    def _gather(self) -> None:
        # The server's end ends the stream.
        with contextlib.suppress(Unavailable):
            for event in self._stream:
                with self._news:
                    self._events.append(event)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Stable:
    """A running `avenor stable`.

    Args:
        home: Whose it is.
        folder: An empty folder for its socket and what it says.
    """

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.socket = str(folder / "stable.sock")
        words = ["avenor", "stable", "--control-socket", self.socket, "--state-dir", str(folder / "state")]
        self.errors = folder / "stable.err"
        self.process = home.start(words, folder, stderr=self.errors)
        wait_socket(self.socket, self.process)
        self.feed = Feed(self.socket)

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`avenor control` with these words."""
        return self.home.command(["avenor", "control", "--socket", self.socket, *words], self.folder)

    def spawn(self, **params: Any) -> str:
        """Spawns for a client that leaves at once, so that nobody owns the runtime; returns its id."""
        with open_client(self.socket, timeout_seconds=WAIT_SECONDS) as client:
            return client.spawn(SpawnParams(**params)).runtime_id

    def stop(self) -> int:
        """Shuts down gracefully; the exit status."""
        with open_client(self.socket, timeout_seconds=WAIT_SECONDS) as client:
            client.shutdown("graceful")
        status = self.process.wait(WAIT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.feed.join()
        return status

    def kill(self) -> None:
        """Ends it in any case: for when a test broke."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Runtime:
    """One runtime of a supervisor, and how far its events were looked at.

    Args:
        stable: Its supervisor.
        client: The connection that speaks for the test; its first call makes it the owner.
        id: The runtime's.
        folder: The session's working directory.
    """

    def __init__(self, stable: Stable, client: Client, id: str, folder: Path) -> None:
        self.stable = stable
        self.client = client
        self.id = id
        self.folder = folder
        self._seen = 0

    def wait(self, kind: type[E], matches: Callable[[E], bool] = lambda _event: True) -> E:
        """The next event of a kind that matches, behind the last one that was waited for."""
        event = self.stable.feed.wait(kind, matches, runtime_id=self.id, after_seq=self._seen)
        self._seen = event.seq
        return event

    def wait_says(self, text: str) -> None:
        """Waits until the agent says this."""
        self.wait(MessageChunk, lambda event: text.encode() in bytes(event.content))

    def prompt(self, text: str) -> None:
        """Sends a prompt."""
        assert self.client.prompt(text, self.id).accepted

    def turn(self, text: str) -> TurnEnd:
        """Sends a prompt and waits for the end of its turn."""
        self.prompt(text)
        return self.wait(TurnEnd)

    def ask(self, text: str) -> PermissionRequest:
        """Sends a prompt and waits for the question that it leads to."""
        self.prompt(text)
        return self.wait(PermissionRequest)

    def snapshot(self) -> Snapshot:
        """Its status now."""
        return self.client.status(self.id)

    def events(self, kind: type[E]) -> list[E]:
        """All events of a kind so far."""
        return [event for event in self.stable.feed.of(self.id) if isinstance(event, kind)]

    def sentinel(self) -> Outcome:
        """What its sentinel says."""
        return parse_sentinel(Path(cast("str", self.snapshot().sentinel_file)).read_text())

    def processes(self) -> list[ProcessStat]:
        """Its agent, and all that its agent started."""
        return tree.tagged("AVENOR_RUN_ID", self.snapshot().run_id)

    def agent_pid(self) -> int:
        """The process of its agent: the one of opencode's own."""
        return agent_pid("AVENOR_RUN_ID", self.snapshot().run_id)


class Run:
    """One `avenor run`, started in a folder of its own.

    Args:
        home: Whose it is.
        folder: Its working directory; `events.ndjson` comes there.
        words: More of its command line.
        sentinel: Where its sentinel comes, relative to its `--dir`.
    """

    def __init__(self, home: Home, folder: Path, *words: str, sentinel: str = "run.done") -> None:
        self.home = home
        self.folder = folder
        self.log = folder / "events.ndjson"
        self.id = f"run_{folder.name}_{time.monotonic_ns()}"
        self._errors = folder / "run.err"
        works_in = Path(words[words.index("--dir") + 1]) if "--dir" in words else folder
        self._sentinel = works_in / sentinel
        fixed = ["--run-id", self.id, "--on-event", str(self.log), "--sentinel-file", sentinel]
        self.process = home.start(["avenor", "run", *fixed, *words], folder, stderr=self._errors)

    def events(self, kind: type[E]) -> list[E]:
        """All events of a kind in its log so far."""
        data = self.log.read_bytes() if self.log.exists() else b""
        events = [decode_event(line) for line in data.split(b"\n")[:-1]]
        return [event for event in events if isinstance(event, kind)]

    def wait(self, kind: type[E]) -> E:
        """The first event of a kind in its log; waits for it."""
        eventually_sync(lambda: self.events(kind) or self.process.poll() is not None, WAIT_SECONDS)
        assert self.events(kind), self.errors()
        return self.events(kind)[0]

    def finish(self) -> tuple[int, str]:
        """Waits for its end: exit status and stdout."""
        out, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, out

    def errors(self) -> str:
        """What it said on stderr."""
        return self._errors.read_text()

    def sentinel(self) -> Outcome:
        """What its sentinel says."""
        return parse_sentinel(self._sentinel.read_text())

    def processes(self) -> list[ProcessStat]:
        """Its agent, and all that its agent started."""
        return tree.tagged("AVENOR_RUN_ID", self.id)

    def agent_pid(self) -> int:
        """The process of its agent."""
        return agent_pid("AVENOR_RUN_ID", self.id)

    def kill(self) -> None:
        """Ends it in any case: for when a test broke."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate()


# Starts `avenor run` with more words; each in a folder of its own.
MakeRun = Callable[..., Run]


def wait_tool(folder: Path) -> int:
    """The process of a tool that was started by `LONG_TOOL` in this folder, once it runs."""
    file = folder / "tool.pid"
    eventually_sync(lambda: file.exists() and file.read_text().endswith("\n"), WAIT_SECONDS)
    pid = int(file.read_text())
    assert is_running(pid)
    return pid


def is_running(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    found = read_stat(pid)
    return found is not None and not found.is_dead


def agent_pid(name: str, value: str) -> int:
    """The opencode process among those with NAME=VALUE in their environment."""
    found = [
        p.id.pid for p in tree.tagged(name, value) if Path(f"/proc/{p.id.pid}/exe").resolve() == OPENCODE.installed()
    ]
    (pid,) = found
    return pid


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def listening_ports(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    connections = psutil.Process(pid).net_connections("tcp")
    return [connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN]


def wait_socket(path: str, server: "subprocess.Popen[str]") -> None:
    """Waits until a control socket answers; fails at once if its server has ended."""

    def answers() -> bool:
        assert server.poll() is None, f"the server has ended with {server.returncode}"
        try:
            with open_client(path, timeout_seconds=WAIT_SECONDS) as client:
                return client.ping().pid > 0
        except Unavailable:
            return False

    eventually_sync(answers, WAIT_SECONDS)


def count_sessions(root: Path) -> Counter[str]:
    """How many sessions each backend has opened, by the event logs below a folder; most columns are called so."""
    opened: set[tuple[str, int, str, str]] = set()
    for path in root.rglob("*.ndjson"):
        for line in path.read_bytes().splitlines():
            if b'"event":"session.start"' not in line:
                continue
            event = decode_event(line)
            if isinstance(event, SessionStart):
                column = _COLUMNS.get(str(event.backend), str(event.backend))
                opened.add((event.run_id, event.seq, str(event.session_id), column))
    return Counter(column for *_, column in opened)


@contextlib.contextmanager
def ended(thing: "Stable | Run") -> Generator[None, None, None]:
    """What was started is gone afterwards, also when a test breaks."""
    try:
        yield
    finally:
        thing.kill()


@contextlib.contextmanager
def ended_process(process: "subprocess.Popen[str]") -> Generator[None, None, None]:
    """The same for a bare command, whose stdout is closed as well."""
    try:
        yield
    finally:
        process.terminate()
        with process:
            pass


def typed(command: str, places: dict[str, str]) -> list[str]:
    """The words of a command as a shell reads it, with its places replaced by the test's own."""
    text = command.replace("\\\n", " ")
    for place, own in places.items():
        text = re.sub(rf"{re.escape(place)}(?![\w.-])", own, text)
    return shlex.split(text)
