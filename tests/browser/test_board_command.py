"""`avenor board` without a browser: what it prints, what it leaves, and how it ends."""

import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.boards import BoardProcess, ended
from tests.e2e.harness import Client, Place, Stable, steps
from tests.helpers import eventually_sync


def _fetch(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"X-Avenor-Token": token})
    with urllib.request.urlopen(request, timeout=30) as response:
        data: bytes = response.read()
        return data


def test_it_prints_where_the_board_is_and_leaves_nothing_behind(place: Place, stable: Stable) -> None:
    """The token is in the address and in a file that only its user can read, for as long as it serves."""
    board = BoardProcess(place, "--socket", str(stable.socket))
    token_file = Path(f"{stable.socket}.board-token")
    assert token_file.read_text().strip() == board.token
    assert token_file.stat().st_mode & 0o777 == 0o600
    base = board.url.partition("#")[0]
    assert b"<title>avenor board</title>" in _fetch(base, "")
    assert _fetch(f"{base}runtimes", board.token) == b"[]"
    assert board.stop() == 0
    assert not token_file.exists()


def test_ctrl_c_ends_it_while_a_stream_is_open(place: Place, stable: Stable) -> None:
    """Nobody waits for a page that stays open."""
    board = BoardProcess(place, "--socket", str(stable.socket))
    with urllib.request.urlopen(f"{board.url.partition('#')[0]}events?token={board.token}", timeout=30) as stream:
        assert stream.readline() == b"retry: 1000\n"
        board.process.send_signal(signal.SIGINT)
        assert ended(board.process) == (0, "")


def test_without_a_server_it_says_so_with_status_3(place: Place) -> None:
    """As every command that needs one."""
    status, complaints = ended(place.start("board", "--socket", str(place.path / "none.sock")))
    assert status == 3
    assert str(place.path / "none.sock") in complaints


def test_an_address_that_others_could_reach_is_refused(place: Place, stable: Stable) -> None:
    """Usage, before anything listens."""
    status, complaints = ended(place.start("board", "--socket", str(stable.socket), "--addr", "0.0.0.0:0"))
    assert status == 2
    assert "--addr" in complaints
    assert "loopback" in complaints


def test_an_address_that_is_taken_is_told(place: Place, stable: Stable) -> None:
    """The second board on a port does not start."""
    first = BoardProcess(place, "--socket", str(stable.socket))
    address = first.url.partition("//")[2].partition("/")[0]
    other = str(place.path / "other-token")
    flags = ("--socket", str(stable.socket), "--addr", address, "--token-file", other)
    status, complaints = ended(place.start("board", *flags))
    assert status == 1
    assert "--addr: cannot listen" in complaints
    assert not Path(other).exists()


def test_the_default_browser_is_opened_and_no_command_line_has_the_token(place: Place, stable: Stable) -> None:
    """Other users see command lines: the browser gets a file that only this user can read."""
    seen = place.path / "seen"
    browser = place.path / "browser"
    browser.write_text(f'#!/bin/sh\ncp "${{1#file://}}" {seen}.html; echo "$1" > {seen}.tmp; mv {seen}.tmp {seen}\n')
    browser.chmod(0o700)
    flags = ("--socket", str(stable.socket), "--open")
    process = place.start("board", *flags, environ={"BROWSER": str(browser), "DISPLAY": ""})
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    eventually_sync(seen.exists)
    assert url.partition("#token=")[2] not in seen.read_text()
    assert f"url={url}" in Path(f"{seen}.html").read_text()
    page = Path(seen.read_text().strip().removeprefix("file://"))
    assert page.stat().st_mode & 0o777 == 0o600
    process.terminate()
    assert ended(process) == (0, "")
    assert not page.exists()


def test_a_run_of_its_own_can_be_looked_at_too(place: Place) -> None:
    """The socket of a run has one runtime, which has no id of a supervisor."""
    socket = str(place.path / "run.sock")
    script = place.script(steps({"do": "hang"}))
    run = place.run("--prompt", "go", "--script", script, "--control-socket", socket)
    run.wait_event("turn.start")
    with Client(Path(socket)) as client:
        board = BoardProcess(place, "--socket", socket)
        base = board.url.partition("#")[0]
        assert b'"status":"running"' in _fetch(f"{base}runtimes", board.token)
        assert board.stop() == 0
        client.call("cancel")


def test_while_the_supervisor_is_away_it_says_503_and_then_goes_on(place: Place, stable: Stable) -> None:
    """Nothing is connected between requests, so that the next supervisor is found."""
    board = BoardProcess(place, "--socket", str(stable.socket))
    base = board.url.partition("#")[0]
    stable.shutdown()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        _fetch(f"{base}runtimes", board.token)
    assert refusal.value.code == 503
    refusal.value.close()
    Stable(place)
    assert _fetch(f"{base}runtimes", board.token) == b"[]"
