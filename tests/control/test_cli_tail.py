"""`avenor control tail` when its output is piped: every event a line, and an end at the right moment."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import main
from tests.control.scripted_server import Refusal, ScriptedServer, Then, event_line, in_turn
from tests.helpers import eventually_sync

LIVE = {"runtime_id": "rt_1", "status": "running", "latest_seq": 2, "outcome": None}
ENDED = {**LIVE, "status": "ended", "latest_seq": 3, "outcome": "DONE"}
EVENTS = [
    event_line(event="run.start", seq=1, ts=0),
    event_line(event="agent.message_chunk", seq=2, ts=0, content={"type": "text", "text": "ä\n"}),
    event_line(event="run.end", seq=3, ts=0, status="DONE"),
]
PRINTED = "".join(line[len(b'{"jsonrpc":"2.0","method":"event","params":') : -2].decode() + "\n" for line in EVENTS)


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "s.sock")
    monkeypatch.setenv("AVENOR_SOCKET", path)
    return path


def subscribed(latest_seq: int = 2, **more: Any) -> dict[str, Any]:
    return {"subscribed": True, "id": "s1", "latest_seq": latest_seq, **more}


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ([], {}),
        (["--replay"], {"replay": True}),
        (["--after-seq", "0"], {"after_seq": 0}),
        (["--limit", "5"], {"limit": 5, "replay": True}),
        (["rt_1", "--json"], {}),
    ],
)
def test_events_are_printed_as_they_are_until_the_run_ends(
    socket_path: str, capfd: pytest.CaptureFixture[str], words: list[str], params: dict[str, Any]
) -> None:
    """The subscription loses nothing to lag, and names the runtime that the server meant."""
    with ScriptedServer(socket_path, {"status": LIVE, "subscribe": Then(subscribed(), *EVENTS)}) as server:
        assert main(["control", "tail", *words]) == 0
    assert capfd.readouterr() == (PRINTED, "")
    target = {"runtime_id": "rt_1"} if "rt_1" in words else {}
    assert server.requests[:2] == [
        ("status", target),
        ("subscribe", {**params, "on_lag": "disk", "runtime_id": "rt_1"}),
    ]


def test_a_run_without_a_runtime_id_is_followed_by_its_socket(
    socket_path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run's own socket has only the one."""
    alone = {**LIVE, "runtime_id": None}
    with ScriptedServer(socket_path, {"status": alone, "subscribe": Then(subscribed(), *EVENTS)}) as server:
        assert main(["control", "tail"]) == 0
    assert server.requests[1] == ("subscribe", {"on_lag": "disk"})
    assert capfd.readouterr().out == PRINTED


@pytest.mark.parametrize("words", [[], ["--after-seq", "3"]])
def test_a_run_that_had_ended_is_not_waited_for(
    socket_path: str, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Nothing can come after its last event; how to see the others is told."""
    with ScriptedServer(socket_path, {"status": ENDED, "subscribe": subscribed(3)}):
        assert main(["control", "tail", "rt_1", *words]) == 0
    assert capfd.readouterr() == ("", "avenor control tail: it has ended (DONE); --replay shows its events\n")


def test_an_end_between_the_calls_is_still_seen(socket_path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The status may say ended before the last events have come: they are waited for."""
    states = in_turn(LIVE, Then(ENDED, *EVENTS[2:]))
    with ScriptedServer(socket_path, {"status": states, "subscribe": subscribed(2)}):
        assert main(["control", "tail", "rt_1"]) == 0
    assert json.loads(capfd.readouterr().out)["event"] == "run.end"


def test_a_log_that_ends_before_after_seq_is_told(socket_path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The events then begin anew, and are waited for although the run has ended."""
    states = in_turn(ENDED, Then(ENDED, *EVENTS))
    with ScriptedServer(socket_path, {"status": states, "subscribe": subscribed(3, reset=True)}):
        assert main(["control", "tail", "rt_1", "--after-seq", "99"]) == 0
    out, err = capfd.readouterr()
    assert out == PRINTED
    assert err == "avenor control tail: the log ends before --after-seq 99: it begins anew\n"


def test_all_follows_every_runtime_until_the_server_stops(socket_path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The end of one run is not the end, and the closed connection is."""
    with ScriptedServer(socket_path, {"subscribe": Then(subscribed(), *EVENTS, *EVENTS, close=True)}) as server:
        assert main(["control", "tail", "--all", "--replay"]) == 0
    assert server.requests == [("subscribe", {"replay": True, "on_lag": "disk"})]
    assert capfd.readouterr() == (PRINTED * 2, "")


def test_a_server_that_goes_before_the_run_has_ended_is_status_3(
    socket_path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What had come is printed."""
    with ScriptedServer(socket_path, {"status": LIVE, "subscribe": Then(subscribed(), EVENTS[0], close=True)}):
        assert main(["control", "tail"]) == 3
    out, err = capfd.readouterr()
    assert out == PRINTED.splitlines(keepends=True)[0]
    assert "the server went away before the run had ended" in err


def test_several_runtimes_are_a_refusal_that_lists_them(socket_path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Without an id the server decides."""
    refusal = Refusal(-32000, "several runtimes are live", reason="no_such_runtime", candidates=["rt_1", "rt_2"])
    with ScriptedServer(socket_path, {"status": refusal}):
        assert main(["control", "tail"]) == 1
    assert "candidates: rt_1, rt_2" in capfd.readouterr().err


def test_events_that_were_left_out_are_told(socket_path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """On stderr, so that stdout stays events."""
    notice = b'{"jsonrpc":"2.0","method":"notice","params":{"kind":"subscriber.lagged","dropped_count":7}}\n'
    with ScriptedServer(socket_path, {"status": LIVE, "subscribe": Then(subscribed(), notice, *EVENTS)}):
        assert main(["control", "tail"]) == 0
    assert capfd.readouterr() == (PRINTED, "avenor control tail: 7 events were left out\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rt_1", "--all"], "give an id or --all, not both"),
        (["--all", "--after-seq", "1"], "--after-seq counts within one runtime"),
        (["--limit", "0"], "--limit: it must be 1 or more"),
    ],
)
def test_flags_that_contradict_each_other_are_usage(
    capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Status 2, before any server is asked."""
    assert main(["control", "--socket", "/nobody", "tail", *words]) == 2
    assert message in capfd.readouterr().err


@pytest.fixture
def following(socket_path: str) -> Iterator[tuple[ScriptedServer, "subprocess.Popen[bytes]"]]:
    """A tail in a process of its own that has printed the first event and waits for more."""
    replies = {"status": LIVE, "subscribe": Then(subscribed(), EVENTS[0])}
    with ScriptedServer(socket_path, replies) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "avenor.cli", "control", "tail"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            # Flushed line by line: this returns although nothing more comes.
            assert json.loads(process.stdout.readline())["event"] == "run.start"
            eventually_sync(lambda: len(server.requests) == 3)
            yield server, process
        finally:
            process.kill()
            process.communicate()


def test_an_interrupt_ends_it_quietly(following: tuple[ScriptedServer, "subprocess.Popen[bytes]"]) -> None:
    """Status 130, and no traceback."""
    _, process = following
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def test_a_reader_that_leaves_ends_it_quietly(following: tuple[ScriptedServer, "subprocess.Popen[bytes]"]) -> None:
    """As in `tail | head -1`: status 141, and no traceback."""
    server, process = following
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    server.send_all(EVENTS[1])
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


@pytest.mark.parametrize("words", [["rt_1"], ["--all"]])
def test_a_reader_that_leaves_is_noticed_while_nothing_happens(socket_path: str, words: list[str]) -> None:
    """The run may be idle for hours: its next event is not waited for."""
    command = [sys.executable, "-m", "avenor.cli", "control", "tail", *words]
    with (
        ScriptedServer(socket_path, {"status": LIVE, "subscribe": Then(subscribed(), EVENTS[0])}),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 141
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_output_that_cannot_be_written_is_told(socket_path: str) -> None:
    """A full disk is no reason for a traceback."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with ScriptedServer(socket_path, {"list": []}), open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "avenor.cli", "control", "list"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("avenor: cannot write the output: ")
