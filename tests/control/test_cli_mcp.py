"""The command line of `avenor mcp`."""

import subprocess
import sys
from pathlib import Path

import pytest

from avenor.cli.commands import MCP
from avenor.cli.mcp import HttpPlace, http_place, private_socket, server_options
from avenor.cli.parsing import UsageError, parse
from avenor.control.address import listen, parse_address
from avenor.control.mcp.options import Options


def options(*words: str, **environ: str) -> Options:
    """What these words and variables come to."""
    return server_options(parse(MCP, words), environ)


def test_without_flags_a_private_supervisor_is_started_beside_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays for half an hour without anything to do."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    found = options()
    assert (found.socket, found.starts, found.idle_seconds) == ("/run/user/7/avenor/mcp.sock", True, 1800)
    assert private_socket() == found.socket
    assert found.parent_id is None


def test_an_agents_own_server_uses_the_supervisor_of_its_agent() -> None:
    """Its runs are that agent's children, and no supervisor is started."""
    around = {"AVENOR_SOCKET": "/s", "AVENOR_RUNTIME_ID": "rt_3"}
    found = options(**around)
    assert (found.socket, found.starts, found.parent_id) == ("/s", False, "rt_3")
    elsewhere = options("--control-socket", "/own", **around)
    assert (elsewhere.socket, elsewhere.starts, elsewhere.parent_id) == ("/own", True, None)
    assert options("--supervisor-socket", "/other", **around).parent_id is None
    assert options(AVENOR_SOCKET="").starts


def test_the_idle_timeout_can_be_chosen_and_switched_off() -> None:
    """0 is never."""
    assert options("--control-socket", "/own", "--idle-timeout", "5m").idle_seconds == 300
    assert options("--control-socket", "/own", "--idle-timeout", "0").idle_seconds is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--no-autostart"], "needs --supervisor-socket"),
        (["--supervisor-socket", "/a", "--control-socket", "/b"], "give one"),
        (["--supervisor-socket", ""], "empty"),
        (["--control-socket", ""], "empty"),
        (["--transport", "smoke"], "smoke"),
        (["--idle-timeout", "soon"], "--idle-timeout"),
    ],
)
def test_flags_that_make_no_sense_are_refused(words: list[str], complaint: str) -> None:
    """By name."""
    with pytest.raises(UsageError, match=complaint):
        options(*words)


def place(*words: str, **environ: str) -> HttpPlace | None:
    """What these words and variables say about HTTP."""
    return http_place(parse(MCP, words), environ)


def test_http_needs_a_token_from_one_of_three_places(tmp_path: Path) -> None:
    """The address is loopback, and its default."""
    usual = parse_address("127.0.0.1:3748")
    assert place() is None
    assert place("--transport", "http", MCP_AUTH_TOKEN="t") == HttpPlace(usual, "t")
    assert place("--transport", "http", "--auth-token", "u", MCP_AUTH_TOKEN="t") == HttpPlace(usual, "u")
    (tmp_path / "token").write_text("from-file\n")
    of_file = place("--transport", "http", "--addr", ":0", "--auth-token-file", str(tmp_path / "token"))
    assert of_file == HttpPlace(parse_address(":0"), "from-file")
    six = parse_address("[::1]:80")
    assert place("--transport", "http", "--addr", "[::1]:80", "--auth-token", "u") == HttpPlace(six, "u")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "needs MCP_AUTH_TOKEN"),
        (["--auth-token", ""], "it is empty"),
        (["--auth-token", "two words"], "visible"),
        (["--auth-token", "a", "--auth-token-file", "b"], "give one"),
        (["--auth-token-file", "/does/not/exist"], "cannot read"),
        (["--auth-token", "a", "--addr", "0.0.0.0:1"], "no loopback address"),
        (["--auth-token", "a", "--addr", "8.8.8.8:1"], "no loopback address"),
        (["--auth-token", "a", "--addr", "127.0.0.1"], "no HOST:PORT"),
        (["--auth-token", "a", "--addr", "no-such-host.invalid:1"], "cannot be resolved"),
        (["--auth-token", "a", "--addr", "127.0.0.1:99999"], "no HOST:PORT"),
    ],
)
def test_an_address_or_token_that_is_not_safe_is_refused(words: list[str], complaint: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match=complaint):
        place("--transport", "http", *words)


def test_a_port_that_is_taken_is_told_of(tmp_path: Path) -> None:
    """With the address, and exit status 1."""
    (tmp_path / "token").write_text("t")
    with listen(parse_address(":0")) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["mcp", "--transport", "http", "--addr", address, "--auth-token-file", str(tmp_path / "token")]
        done = subprocess.run([sys.executable, "-m", "avenor.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_flags_of_http_are_refused_without_it() -> None:
    """Whoever gives a token thinks that something listens."""
    with pytest.raises(UsageError, match="--auth-token goes with --transport http"):
        place("--auth-token", "a")


_WITHOUT = """\
import sys
sys.modules["mcp"] = None
from avenor.cli import main
sys.exit(main(["mcp"]))
"""


def test_without_the_sdk_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    """It is an extra, because of its size."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "pip install 'avenor[mcp]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_other_command_loads_the_sdk() -> None:
    """It takes seconds."""
    program = "import sys, avenor.cli.mcp, avenor.cli.stable, avenor.control.mcp.calls; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
