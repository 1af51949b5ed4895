"""`avenor top` on a real (pseudo) terminal, and piped."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.cli.top_runs import EVENTS_KEPT
from avenor.cli.top_table import HEADINGS
from avenor.protocol.snapshot import Snapshot
from tests.control.scripted_server import Refusal, ScriptedServer, event_line
from tests.helpers import eventually_sync


def snapshot(runtime_id: str | None, **more: Any) -> dict[str, Any]:
    """As `list` answers it."""
    facts: dict[str, Any] = {"run_id": "r", "status": "running", "started_at": 1, **more}
    made: dict[str, Any] = json.loads(msgspec.json.encode(Snapshot(runtime_id=runtime_id, **facts)))
    return made


class Terminal:
    """A terminal that shows what a program writes, as lines of plain text."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.raw = b""
        self._lines: list[str] = []
        self._taken = 0

    def lines(self) -> list[str]:
        """What is on it now, of what has come by now."""
        while True:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:  # nothing there now, or the other side is closed
                break
            if not piece:
                break
            self.raw += piece
        text = self.raw.decode(errors="ignore")
        for found in re.finditer(r"\x1b\[2J|\x1b\[(\d+);1H((?:(?!\x1b\[K).)*)\x1b\[K", text, re.DOTALL):
            if found.end() <= self._taken:
                continue
            self._taken = found.end()
            if found[1] is None:
                self._lines = []
                continue
            number = int(found[1])
            self._lines += [""] * (number - len(self._lines))
            self._lines[number - 1] = re.sub(r"\x1b\[[0-9;]*m", "", found[2])
        return self._lines

    def shows(self, *words: str) -> bool:
        """Whether all of these are on it now."""
        text = "\n".join(self.lines())
        return all(word in text for word in words)

    def wait(self, *words: str) -> None:
        """Until they are."""
        eventually_sync(lambda: self.shows(*words))

    def press(self, keys: bytes) -> None:
        """Types something."""
        os.write(self.fd, keys)

    def resize(self, columns: int, lines: int) -> None:
        """Makes it another size."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def top(path: str, *words: str, **environ: str) -> Generator[tuple["subprocess.Popen[bytes]", Terminal, int]]:
    """Runs it on a terminal of 80 times 12; the program, what is seen, and the terminal's inner side."""
    outer, inner = pty.openpty()
    os.set_blocking(outer, False)
    terminal = Terminal(outer)
    terminal.resize(80, 12)
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "AVENOR_SOCKET")}
    process = subprocess.Popen(
        [sys.executable, "-m", "avenor.cli", "top", "--socket", path, *words],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**inherited, "TERM": "xterm", "TZ": "UTC", **environ},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield process, terminal, inner
    finally:
        process.kill()
        process.wait()
        os.close(outer)
        os.close(inner)


def ended(process: "subprocess.Popen[bytes]", terminal: Terminal) -> int:
    """Its exit status; what it writes to its end is read."""
    eventually_sync(lambda: (terminal.lines(), process.poll())[1] is not None)
    terminal.lines()
    return int(process.returncode)


def replies(*snapshots: dict[str, Any]) -> dict[str, Any]:
    """What a server of these runs answers."""
    known = {each["runtime_id"]: each for each in snapshots}

    def status(params: dict[str, Any]) -> dict[str, Any]:
        return known[params["runtime_id"]]

    return {
        "subscribe": {"id": "s", "subscribed": True},
        "list": list(snapshots),
        "status": status,
        "history": {"events": [], "latest_seq": 0, "complete": True},
    }


ONE = snapshot("rt_1", label="first")
TWO = snapshot("rt_2", label="second", parent_id="rt_1")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def test_piped_it_prints_the_table_once(path: str) -> None:
    """Uncut, and without colours."""
    long = snapshot("rt_1", label="l" * 150)
    with ScriptedServer(path, replies(long)) as server:
        done = subprocess.run(
            [sys.executable, "-m", "avenor.cli", "top", "--socket", path], capture_output=True, text=True, check=True
        )
        assert [method for method, _ in server.requests] == ["list"]
    assert done.stdout.splitlines()[0].split() == list(HEADINGS)
    assert "l" * 150 in done.stdout
    assert done.stdout.endswith("1 run: 1 running\n")


@pytest.mark.parametrize(("words", "environ"), [(("--once",), {}), ((), {"TERM": "dumb"})])
def test_it_prints_once_where_it_is_asked_to_or_cannot_do_more(
    path: str, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    """A terminal keeps what it prints, cut to its width."""
    with (
        ScriptedServer(path, replies({**ONE, "label": "l" * 150})),
        top(path, *words, **environ) as (process, terminal, _),
    ):
        assert ended(process, terminal) == 0
        assert b"\x1b[?1049h" not in terminal.raw
        assert max(map(len, re.sub(rb"\x1b\[[0-9;]*m", b"", terminal.raw).decode().split("\r\n"))) <= 80


def test_it_says_where_there_is_no_server_and_what_a_server_refuses(path: str) -> None:
    """Status 3 and 1, and the terminal is as it was."""
    with top(path) as (process, terminal, _):
        assert ended(process, terminal) == 3
        assert b"no server at" in terminal.raw
        assert b"\x1b[?1049h" not in terminal.raw
    with ScriptedServer(path, {"subscribe": Refusal(-32010, "not for you")}), top(path) as (process, terminal, _):
        assert ended(process, terminal) == 1
        assert terminal.raw.rstrip().endswith(b"avenor top: not for you")
    Path(path).unlink()
    with ScriptedServer(path, {"list": Refusal(-32010, "not for you")}):
        done = subprocess.run([sys.executable, "-m", "avenor.cli", "top", "--socket", path], capture_output=True)
        assert (done.returncode, b"not for you" in done.stderr) == (1, True)


def test_an_event_changes_the_picture(path: str) -> None:
    """With the snapshot that it leads to, and nothing is asked meanwhile."""
    answers = replies(ONE, TWO)
    with ScriptedServer(path, answers) as server, top(path) as (_, terminal, _):
        terminal.wait("> rt_1 first", "  └ rt_2 second", "2 runs: 2 running")
        answers["status"] = {**TWO, "status": "idle"}
        server.send_all(event_line(event="turn.end", seq=2, ts=1, runtime_id="rt_2"))
        terminal.wait("2 runs: 1 running, 1 idle")
        assert [method for method, _ in server.requests] == ["subscribe", "list", "status"]


def test_keys_select_open_and_go_back(path: str) -> None:
    """The events of the selected run, past ones and new ones; `?` tells the keys, `e` leaves the ended out."""
    gone = snapshot("rt_3", status="ended", outcome="DONE", ended_at=2)
    answers = replies(ONE, TWO, gone)
    past = {"event": "turn.start", "seq": 1, "ts": 0, "runtime_id": "rt_2", "text": "look\x1b]0;evil\x07 at it"}
    answers["history"] = {"events": [past], "latest_seq": 1, "complete": True}
    with ScriptedServer(path, answers) as server, top(path) as (process, terminal, _):
        terminal.wait("> rt_1 first", "rt_3", "DONE")
        terminal.press(b"j")
        terminal.wait("> └ rt_2 second")
        terminal.press(b"\x1b[B")
        terminal.wait("> rt_3")
        terminal.press(b"e")
        terminal.wait("> rt_1")
        assert not terminal.shows("rt_3")
        terminal.press(b"jjj\r")
        terminal.wait("prompt look at it")
        assert ("history", {"runtime_id": "rt_2", "after_seq": 0, "limit": EVENTS_KEPT}) in server.requests
        server.send_all(event_line(event="agent.noise", seq=2, ts=0, runtime_id="rt_2", text="beep"))
        terminal.wait("noise beep")
        terminal.press(b"\x1b")
        terminal.wait("> └ rt_2 second")
        terminal.press(b"?")
        terminal.wait("quit; the runs go on")
        terminal.press(b"?")
        terminal.wait("> └ rt_2 second")
        terminal.press(b"q")
        assert ended(process, terminal) == 0
    assert b"evil" not in terminal.raw


def test_it_scrolls_to_the_selected_run(path: str) -> None:
    """More runs than lines, forwards and back."""
    many = [snapshot(f"rt_{n}") for n in range(1, 41)]
    with ScriptedServer(path, replies(*many)), top(path) as (_, terminal, _):
        terminal.wait("> rt_1 ")
        assert not terminal.shows("rt_9 ")
        terminal.press(b"G")
        terminal.wait("> rt_40")
        terminal.press(b"\x1b[5~")
        terminal.wait("> rt_32")
        terminal.press(b"g")
        terminal.wait("> rt_1 ")
        assert len(terminal.lines()) == 12


def test_it_follows_the_size_of_the_terminal(path: str) -> None:
    """At once, and no line is too long for it."""
    with ScriptedServer(path, replies({**ONE, "label": "l" * 100})), top(path) as (_, terminal, _):
        terminal.wait("> rt_1 llll")
        terminal.resize(40, 6)
        eventually_sync(lambda: len(terminal.lines()) == 6)
        assert max(map(len, terminal.lines())) <= 40
        terminal.wait("> rt_1 llll", "1 run: 1 running")


def test_a_lost_server_is_told_and_looked_for(path: str) -> None:
    """The keys go on working, and the next one is asked anew."""
    with top_of(path, replies(ONE)) as (process, terminal, first):
        terminal.wait("> rt_1 first")
        Path(path).unlink()
        first.hang_up()
        terminal.wait("went away; looking for it", "rt_1 first")
        terminal.press(b"?")
        terminal.wait("quit; the runs go on")
        terminal.press(b"?")
        with ScriptedServer(path, replies(TWO)):
            terminal.wait("rt_2 second")
            assert not terminal.shows("went away")
        terminal.wait("went away")
        terminal.press(b"q")
        assert ended(process, terminal) == 0


@contextmanager
def top_of(path: str, answers: dict[str, Any]) -> Generator[tuple["subprocess.Popen[bytes]", Terminal, ScriptedServer]]:
    """The same with a server."""
    with ScriptedServer(path, answers) as server, top(path) as (process, terminal, _):
        yield process, terminal, server


def restored(terminal: Terminal) -> bool:
    """Whether the last things written leave the alternate screen and show the cursor."""
    return terminal.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(
    ("ending", "status"), [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (b"\x1c", 131)]
)
def test_the_terminal_is_given_back_however_it_ends(path: str, ending: bytes | signal.Signals, status: int) -> None:
    """Its modes, its screen and its cursor."""
    with ScriptedServer(path, replies(ONE)), top(path) as (process, terminal, inner):
        terminal.wait("> rt_1 first")
        assert not termios.tcgetattr(inner)[3] & termios.ECHO
        if isinstance(ending, bytes):
            terminal.press(ending)
        else:
            process.send_signal(ending)
        assert ended(process, terminal) == status
        assert restored(terminal)
        assert termios.tcgetattr(inner)[3] & termios.ECHO
        assert termios.tcgetattr(inner)[3] & termios.ICANON


def test_the_terminal_is_given_back_when_the_server_speaks_nonsense(path: str) -> None:
    """The error is told on the restored screen; status 1."""
    with top_of(path, replies(ONE)) as (process, terminal, server):
        terminal.wait("> rt_1 first")
        server.send_all(b"no json\n")
        assert ended(process, terminal) == 1
        before, _, after = terminal.raw.rpartition(b"\x1b[?1049l")
        assert b"\x1b[?1049h" in before
        assert after.startswith(b"avenor top: ")


def test_suspending_gives_the_terminal_back_and_continuing_takes_it_again(path: str) -> None:
    """Ctrl-Z in a shell."""
    with top_of(path, replies(ONE)) as (process, terminal, _):
        terminal.wait("> rt_1 first")
        process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.lines()
        assert restored(terminal)
        process.send_signal(signal.SIGCONT)
        eventually_sync(lambda: terminal.shows("> rt_1 first") and terminal.raw.count(b"\x1b[?1049h") == 2)
        terminal.press(b"q")
        assert ended(process, terminal) == 0


def test_without_colours_the_selection_can_still_be_seen(path: str) -> None:
    """NO_COLOR leaves the mark."""
    with ScriptedServer(path, replies(ONE)), top(path, NO_COLOR="1") as (_, terminal, _):
        terminal.wait("> rt_1 first")
        assert re.search(rb"\x1b\[[0-9;]*m", terminal.raw) is None
