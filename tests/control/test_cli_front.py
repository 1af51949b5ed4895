"""The way from the first word to a command, and what the tables must agree with."""

import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from avenor.cli import main
from avenor.cli.commands import ROOT, RUN, STABLE
from avenor.cli.control_table import CONTROL, SPAWN
from avenor.cli.parsing import parse, parse_group
from avenor.cli.reference import reference
from avenor.cli.run_flags import BACKENDS, SPEC_FLAGS
from avenor.cli.table import SWITCH, Command
from avenor.protocol import spec
from avenor.stable.options import Options

REPOSITORY = Path(__file__).parents[2]


def every_command() -> list[Command]:
    return [ROOT, *ROOT.commands, *CONTROL.commands]


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name or "avenor")
def test_every_command_has_help_with_an_example(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    """`--help` exits 0, on stdout, with usage, flags and an example."""
    assert main([*command.name.split(), "--help"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("usage: avenor")
    assert command.examples
    assert all(example in out for example in command.examples)
    assert all(flag.name in out for flag in command.flags)


@pytest.mark.parametrize("example", [example for command in every_command() for example in command.examples])
def test_every_example_is_a_command_line_that_parses(example: str) -> None:
    """Up to a pipe or a redirection."""
    words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
    for stop in ("|", ">"):
        words = words[: words.index(stop)] if stop in words else words
    assert words[0] == "avenor"
    check_parses(words[1:])


@pytest.mark.parametrize(
    "line",
    [
        '--control-socket /tmp/avenor.sock --prompt "List the files in this directory and exit." '
        "--on-event /tmp/events.ndjson --sentinel-file /tmp/done.env",
        "control --socket /tmp/avenor.sock status",
        "control --socket /tmp/avenor.sock tail",
        'control --socket /tmp/avenor.sock prompt "Continue with the next step"',
        "control --socket /tmp/avenor.sock cancel",
        "stable --control-socket /tmp/avenor-stable.sock",
        'control --socket /tmp/avenor-stable.sock spawn --prompt "Review PR #42" --dir /repo/A --label review-42',
        "control --socket /tmp/avenor-stable.sock list",
        'control --socket /tmp/avenor-stable.sock prompt "Continue" rt_1',
        "control --socket /tmp/avenor-stable.sock cancel rt_1",
        "control --socket /tmp/avenor-stable.sock shutdown graceful",
    ],
)
def test_the_command_lines_of_the_announcement_parse(line: str) -> None:
    """As they were typed there."""
    check_parses(shlex.split(line))


def check_parses(words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        parse(RUN, words)
    elif words[0] == "control":
        parse_group(CONTROL, words[1:])
    else:
        command = ROOT.find(words[0])
        assert command is not None
        parse(command, words[1:])


def test_version_is_that_of_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    """`avenor <version>`, and nothing else."""
    assert main(["--version"]) == 0
    assert capfd.readouterr() == (f"avenor {version('avenor')}\n", "")


@pytest.mark.parametrize(
    ("words", "closest"),
    [
        (["stabel"], "stable"),
        (["zebra"], None),
        (["wacth"], "watch"),
        (["controll"], "control"),
        (["control", "lst"], "list"),
        (["runn"], "run"),
    ],
)
def test_an_unknown_word_is_a_usage_error_that_names_the_closest(
    words: list[str], closest: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Status 2, nothing on stdout, and however far the closest is, it is named."""
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert f"no command {words[-1]!r}; the closest is " in err
    if closest:
        assert f"the closest is {closest!r}" in err


def test_without_words_the_usage_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Status 2: a run needs a prompt."""
    assert main([]) == 2
    assert "a command or --prompt is needed" in capfd.readouterr().err


def test_main_reads_the_process_arguments_by_default(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the installed script calls it."""
    monkeypatch.setattr(sys, "argv", ["avenor", "--version"])
    assert main() == 0
    assert capfd.readouterr().out.startswith("avenor ")


def test_the_run_flags_are_the_fields_of_a_run_spec() -> None:
    """No field without a flag, no flag without a field, and the backends are those of the protocol.

    Only `mcp_servers` has none: `--mcp-config` names the file that they are in.
    """
    fields = [name for name in spec.RunSpec.__struct_fields__ if name != "mcp_servers"]
    assert [flag.key for flag in SPEC_FLAGS] == fields
    assert BACKENDS == spec.BACKENDS
    backend = RUN.flag("--backend")
    assert backend is not None
    assert backend.default == spec.DEFAULT_BACKEND


def test_the_spawn_flags_are_the_fields_of_its_params() -> None:
    """In the same order."""
    fields = [name for name in spec.SpawnParams.__struct_fields__ if name != "mcp_servers"]
    assert [flag.key for flag in SPAWN.flags] == fields


def test_the_flags_of_stable_are_the_fields_of_its_options() -> None:
    """In the same order."""
    assert [flag.key for flag in STABLE.flags] == list(Options.__struct_fields__)


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name or "avenor")
def test_flags_with_a_value_say_what_it_is(command: Command) -> None:
    """Help would be unreadable without."""
    for flag in command.flags:
        assert (flag.metavar == "") == (flag.kind == SWITCH)
        assert not flag.help.endswith(".")


def test_the_reference_is_up_to_date() -> None:
    """Run `python -m avenor.cli.reference > docs/reference/cli.md` after a change of the tables."""
    assert (REPOSITORY / "docs/reference/cli.md").read_text(encoding="utf-8") == reference()
