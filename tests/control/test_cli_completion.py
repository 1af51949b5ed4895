"""The completion scripts, in the shells that they are for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avenor.cli import main
from avenor.cli.commands import HOSTS, ROOT, SHELLS
from avenor.cli.completion import SCRIPTS
from avenor.cli.control_table import CONTROL
from avenor.protocol.spec import BACKENDS
from tests.control.scripted_server import ScriptedServer

_RUNTIMES = [{"runtime_id": "rt_1", "run_id": "a"}, {"runtime_id": "rt_12", "run_id": "b"}]
# Asks the completion function as the shell does: with the words of the line, broken where bash breaks them.
_ASK_BASH = """\
eval "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_avenor "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ASK_ZSH = """\
autoload -Uz compinit && compinit -u -d "$ZDOTDIR/dump"
eval "$1"
functions _avenor > /dev/null && functions _avenor_control > /dev/null && print complete
"""
_ASK_FISH = "source $argv[1]; complete -C $argv[2]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the `avenor` command, two files and a folder; the shells start there."""
    command = tmp_path / "bin" / "avenor"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m avenor.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "task.md").write_text("")
    (tmp_path / "tall folder").mkdir()
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("AVENOR_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(*words: str) -> set[str]:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    asked = [shell, "--norc", "-c", _ASK_BASH, "bash", SCRIPTS["bash"](), *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


NOTHING: set[str] = set()


def flags(*names: str) -> set[str]:
    return {f"--{name}" for name in names}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("avenor |", {command.word for command in ROOT.commands}),
        ("avenor st|", {"stable"}),
        ("avenor --vers|", {"--version"}),
        ("avenor --prompt-f|", {"--prompt-file"}),
        ("avenor --prompt x --max|", flags("max-retries", "max-parallel")),
        ("avenor run --prompt|", flags("prompt", "prompt-file")),
        ("avenor run --backend |", set(BACKENDS)),
        ("avenor --backend sc|", {"scripted"}),
        ("avenor run --backend = sc|", {"scripted"}),
        ("avenor run --backend =|", set(BACKENDS)),
        ("avenor run --prompt |", NOTHING),
        ("avenor run --prompt --ba|", NOTHING),
        ("avenor run --prompt-file ta|", {"task.md", "tall folder"}),
        ("avenor run --dir ta|", {"tall folder"}),
        ("avenor stable --on|", {"--on-crash", "--on-sigterm"}),
        ("avenor stable --on-sigterm |", {"graceful", "detach"}),
        ("avenor control log-level |", {"debug", "info", "warning", "error"}),
        ("avenor control |", {command.word for command in CONTROL.commands}),
        ("avenor control --so|", {"--socket"}),
        ("avenor control --socket /x ca|", {"cancel"}),
        ("avenor control shutdown |", {"graceful", "drain", "detach", "kill"}),
        ("avenor control shutdown kill |", NOTHING),
        ("avenor control cancel --f|", {"--force"}),
        ("avenor control cancel rt_1 --so|", {"--socket"}),
        ("avenor control spawn --wait s|", {"session", "started"}),
        ("avenor control cancel |", NOTHING),
        ("avenor watch ta|", {"task.md", "tall folder"}),
        ("avenor watch --format |", {"plain", "json"}),
        ("avenor watch --since-cursor ta|", {"task.md", "tall folder"}),
        ("avenor await --until |", {"attention", "done"}),
        ("avenor report a --output ta|", {"task.md", "tall folder"}),
        ("avenor answer ta|", {"task.md", "tall folder"}),
        ("avenor verify ta|", {"task.md", "tall folder"}),
        ("avenor verify a b --initial ta|", {"task.md", "tall folder"}),
        ("avenor verify a --kind |", {"loop", "team", "manifest"}),
        ("avenor completion |", set(SHELLS)),
        ("avenor docs how-to/for-|", {"how-to/for-agents"}),
        ("avenor init --host |", set(HOSTS)),
        ("avenor init --dir ta|", {"tall folder"}),
        ("avenor nonsense |", NOTHING),
    ],
)
def test_bash_completes(folder: Path, line: str, expected: set[str]) -> None:
    """Commands, flags, their values, files and folders; nothing where only the user can know."""
    words = line.removesuffix("|").split(" ")
    assert bash(*words) == expected


@pytest.mark.parametrize("line", ["control cancel |", "control prompt text |", "control spawn --parent-id |"])
def test_bash_completes_runtimes_from_the_live_socket(folder: Path, line: str) -> None:
    """That of the line, or else of the environment."""
    words = line.removesuffix("|").split(" ")
    with ScriptedServer(str(folder / "s"), {"list": _RUNTIMES}):
        assert bash("avenor", "control", "--socket", str(folder / "s"), *words[1:]) == {"rt_1", "rt_12"}
        assert bash("avenor", "control", "--socket", "=", str(folder / "s"), *words[1:]) == {"rt_1", "rt_12"}
        assert bash("avenor", "await", "--socket", str(folder / "s"), "") == {"rt_1", "rt_12"}
    with ScriptedServer(os.environ["AVENOR_SOCKET"], {"list": _RUNTIMES}):
        assert bash("avenor", *words) == {"rt_1", "rt_12"}
        assert bash("avenor", *words[:-1], "rt_12") == {"rt_12"}


@pytest.mark.parametrize("line", ["run --backend |", "control spawn --backend |", "doctor --backend |"])
def test_bash_completes_the_users_own_backends(folder: Path, line: str) -> None:
    """Those that are there now, not when the script was written."""
    backends = folder / ".config" / "avenor" / "backends"
    backends.mkdir(parents=True)
    (backends / "my-agent.toml").write_text("")
    words = line.removesuffix("|").split(" ")
    assert bash("avenor", *words) == {*BACKENDS, "my-agent"}
    assert bash("avenor", *words[:-1], "my") == {"my-agent"}


def test_bash_registers_the_function(folder: Path) -> None:
    """Sourcing the script is all that is needed, and it needs nothing of its own."""
    asked = ["bash", "--norc", "-u", "-c", f"{SCRIPTS['bash']()}\ncomplete -p avenor"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout == "complete -F _avenor avenor\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_names_every_command_and_flag(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whether or not the shell is here to try it."""
    assert main(["completion", shell]) == 0
    script = capfd.readouterr().out
    assert "@" not in "".join(line for line in script.splitlines() if "$@" not in line and "PR #" not in line)
    for command in (*ROOT.commands, *CONTROL.commands):
        assert command.word in script
        for flag in command.flags:
            assert (f"-l {flag.name[2:]}" if shell == "fish" else flag.name) in script


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It parses, and defines its functions."""
    monkeypatch.setenv("ZDOTDIR", str(folder))
    asked = ["zsh", "-f", "-c", _ASK_ZSH, "zsh", SCRIPTS["zsh"]()]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("complete\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("avenor st", {"stable"}),
        ("avenor control shutdown k", {"kill"}),
        ("avenor control --socket /x canc", {"cancel"}),
        ("avenor run --backend sc", {"scripted"}),
        ("avenor --prompt x --max", flags("max-retries", "max-parallel")),
        ("avenor control cancel --forc", {"--force"}),
        ("avenor verify a b tas", {"task.md"}),
    ],
)
def test_fish_completes(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: set[str]) -> None:
    """The same as the others, with descriptions."""
    monkeypatch.setenv("HOME", str(folder))
    (folder / "avenor.fish").write_text(SCRIPTS["fish"]())
    asked = ["fish", "--no-config", "-c", _ASK_FISH, str(folder / "avenor.fish"), line]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert {found.partition("\t")[0] for found in done.stdout.splitlines()} == expected
