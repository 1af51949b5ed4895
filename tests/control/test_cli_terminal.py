"""The commands on a real (pseudo) terminal."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.protocol.snapshot import Snapshot
from tests.control.scripted_server import Refusal, ScriptedServer, Then, event_line
from tests.helpers import eventually_sync

SNAPSHOT: dict[str, Any] = json.loads(
    msgspec.json.encode(Snapshot(runtime_id="rt_1", run_id="r", label="review-42", status="running", latest_seq=1))
)


class Screen:
    """What a command wrote to its terminal, read as it comes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seen = b""

    def read(self) -> str:
        """All that is there by now; the lines as the program wrote them."""
        while True:
            try:
                piece = os.read(self._fd, 65536)
            except OSError:  # nothing there now (EAGAIN), or the terminal's other side is closed (EIO)
                return self._seen.decode().replace("\r\n", "\n")
            if not piece:
                return self._seen.decode().replace("\r\n", "\n")
            self._seen += piece


@contextmanager
def on_terminal(*words: str, columns: int = 80, **environ: str) -> Generator[tuple["subprocess.Popen[bytes]", Screen]]:
    """Runs a command with a terminal as stdin, stdout and stderr."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(outer, False)
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "AVENOR_SOCKET")}
    process = subprocess.Popen(
        [sys.executable, "-m", "avenor.cli", *words],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**inherited, "TERM": "xterm", "TZ": "UTC", **environ},
    )
    os.close(inner)
    try:
        yield process, Screen(outer)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def output_of(*words: str, **how: Any) -> tuple[int, str]:
    """What a command shows, once it has ended."""
    with on_terminal(*words, **how) as (process, screen):
        # Read while it runs: a terminal takes only so much that nobody reads.
        eventually_sync(lambda: (screen.read(), process.poll())[1] is not None)
        return process.returncode, screen.read()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def test_list_is_a_coloured_table(path: str) -> None:
    """Which fits the terminal."""
    with ScriptedServer(path, {"list": [{**SNAPSHOT, "label": "l" * 200}]}):
        code, text = output_of("control", "--socket", path, "list", columns=70)
    assert code == 0
    assert text.startswith("\x1b[1mID")
    assert "\x1b[32mrunning" in text
    assert "…" in text
    assert len(text.splitlines()[0].replace("\x1b[1m", "").replace("\x1b[0m", "")) <= 70


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(path: str, environ: dict[str, str]) -> None:
    """By NO_COLOR, or by a terminal that has none."""
    with ScriptedServer(path, {"list": [SNAPSHOT]}):
        code, text = output_of("control", "--socket", path, "list", **environ)
    assert code == 0
    assert "\x1b" not in text
    assert text.split()[:2] == ["ID", "STATUS"]


def test_json_is_json_on_a_terminal_too(path: str) -> None:
    """Indented, and without colours."""
    with ScriptedServer(path, {"list": [SNAPSHOT], "status": SNAPSHOT}):
        _, listed = output_of("control", "--socket", path, "list", "--json")
        _, status = output_of("control", "--socket", path, "status")
    assert json.loads(listed) == [SNAPSHOT]
    assert json.loads(status) == SNAPSHOT
    assert '\n  "label": "review-42"' in status


def test_what_an_agent_said_cannot_act_on_the_terminal_as_json(path: str, tmp_path: Path) -> None:
    """It is the same JSON, with escapes."""
    said = "\x1b]0;evil\x07 \x9b31m \x7f \u202ereversed ä😀"
    snapshot = {**SNAPSHOT, "status": "ended", "outcome": "DONE", "final_output": said}
    content = {"type": "text", "text": said}
    event = event_line(event="agent.message_chunk", seq=1, ts=0, content=content)
    end = event_line(event="run.end", seq=2, ts=0)
    refusal = Refusal(-32000, said)
    subscribed = Then({"subscribed": True, "id": "s"}, event, end)
    replies = {"status": snapshot, "wait": snapshot, "subscribe": subscribed, "cancel": refusal}
    prefix = len(b'{"jsonrpc":"2.0","method":"event","params":')
    (tmp_path / "log").write_bytes(b"".join(line[prefix:-2] + b"\n" for line in (event, end)))
    with ScriptedServer(path, replies):
        shown = {
            words: output_of(*words.split())[1]
            for words in (
                f"control --socket {path} status",
                f"await --socket {path} --json rt_1",
                f"control --socket {path} tail --json",
                f"watch --format json {tmp_path / 'log'}",
                f"control --socket {path} cancel --json",
            )
        }
    for words, text in shown.items():
        assert [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"] == [], words
    status, awaited, tailed, watched, refused = shown.values()
    assert json.loads(status) == json.loads(awaited) == snapshot
    for lines in (tailed, watched):
        assert json.loads(lines.splitlines()[0])["content"] == content
    assert json.loads(refused) == refusal.error


def test_a_reply_cannot_act_on_the_terminal_that_it_is_printed_on(path: str) -> None:
    """Elsewhere it comes as it is."""
    snapshot = {**SNAPSHOT, "status": "ended", "outcome": "DONE", "final_output": "\x1b]0;evil\x07red\x9b31m ä"}
    with ScriptedServer(path, {"status": snapshot, "wait": snapshot}):
        code, text = output_of("await", "--socket", path, "rt_1", "--print-output")
    assert (code, text) == (0, "red31m ä\ndone\n")


def test_a_tail_is_running_text_and_coloured_lines(path: str) -> None:
    """What an agent says cannot act on the terminal."""
    events = [
        event_line(event="turn.start", seq=1, ts=0, text="say hello", source="cli"),
        event_line(event="agent.message_chunk", seq=2, ts=0, content={"type": "text", "text": "Hel\x1b]0;evil\x07"}),
        event_line(event="agent.message_chunk", seq=3, ts=0, content={"type": "text", "text": "lo"}),
        event_line(event="run.end", seq=4, ts=0, status="DONE", stop_reason="end_turn"),
    ]
    with ScriptedServer(path, {"status": SNAPSHOT, "subscribe": Then({"id": "s", "latest_seq": 0}, *events)}):
        code, text = output_of("control", "--socket", path, "tail", "rt_1")
    assert code == 0
    assert text == (
        "\x1b[2m00:00:00\x1b[0m \x1b[36;1mprompt\x1b[0m say hello\n"
        "Hello\n"
        "\x1b[2m00:00:00\x1b[0m \x1b[32;1mrun ended\x1b[0m DONE end_turn\n"
    )


def test_an_interrupted_tail_leaves_the_cursor_at_the_start_of_a_line(path: str) -> None:
    """In the middle of a text, too; status 130 and nothing else."""
    chunk = event_line(event="agent.message_chunk", seq=2, ts=0, content={"type": "text", "text": "Hel"})
    with (
        ScriptedServer(path, {"status": SNAPSHOT, "subscribe": Then({"id": "s", "latest_seq": 1}, chunk)}),
        on_terminal("control", "--socket", path, "tail", "rt_1") as (process, screen),
    ):
        eventually_sync(lambda: screen.read() == "Hel")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert screen.read() == "Hel\n"


def test_an_interrupted_claim_is_quiet(path: str) -> None:
    """Holding ends with Ctrl-C; status 130."""
    with (
        ScriptedServer(path, {"claim": {"owner": "c1"}}) as server,
        on_terminal("control", "--socket", path, "claim", "--hold") as (process, screen),
    ):
        eventually_sync(lambda: screen.read() == "claimed\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert screen.read() == "claimed\n"
        assert server.gone.wait(60)  # the connection, and so the ownership, went with it


def test_a_refusal_cannot_act_on_the_terminal(path: str) -> None:
    """A label may hold anything, and a message may quote it."""
    with ScriptedServer(path, {"cancel": Refusal(-32000, "no \x1b[2J\x07", label="\x1b[H")}):
        code, text = output_of("control", "--socket", path, "cancel")
    assert (code, text) == (1, "avenor control cancel: no\n  label: \n")


def test_help_has_bold_headings_on_a_terminal() -> None:
    """And only there."""
    code, text = output_of("control", "--help")
    assert code == 0
    assert text.startswith("\x1b[1musage:\x1b[0m avenor control")
