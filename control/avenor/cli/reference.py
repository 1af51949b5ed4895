"""Writes `docs/reference/cli.md` from the tables: `python -m avenor.cli.reference > docs/reference/cli.md`."""

from collections.abc import Iterator

from avenor.cli.commands import ROOT
from avenor.cli.helptext import flag_help, usage
from avenor.cli.output import write_text
from avenor.cli.run_flags import SPEC_FLAGS
from avenor.cli.table import Argument, Command, Flag

_TOP = """\
# The command line

<!-- Written by `python -m avenor.cli.reference`; edit control/avenor/cli/ and run it again. -->

`--flag value` and `--flag=value` are the same; a flag takes the next word whatever it looks like. `--` ends the flags.
Given twice, the last counts. An empty value is refused, but for that of `--message`. What is not UTF-8 is a usage
error, in the names of directories too, and so is a relative path where the working directory is gone. Times are written
`250ms`, `30s`, `5m`, `1h30m` or `7d`; a bare number is seconds. Colours are used on a terminal only, and not with
`NO_COLOR`. An unknown command is a usage error that names the closest one.
[Completion](../how-to/complete-in-your-shell.md) is there for bash, zsh and fish.

| environment | |
|---|---|
| `AVENOR_SOCKET` | the socket of `avenor control`; every agent under a supervisor gets its supervisor's |
| `AVENOR_RUNTIME_ID` | the runtime that an agent is part of; what it spawns there becomes that runtime's child |
| `AVENOR_OPENCODE_URL` | the server of backend `opencode-http` where `--server-url` names none |
| `XDG_RUNTIME_DIR`, `XDG_STATE_HOME` | where the default socket and the state are; a relative path is ignored |
| `XDG_CONFIG_HOME` | where [backends of your own](../how-to/choose-an-agent.md) are; `~/.config` without it |
| `NO_COLOR` | no colours |
"""


def reference() -> str:
    """The page."""
    return _TOP + "".join(f"\n{section}" for section in _sections())


def _sections() -> Iterator[str]:
    for command in (ROOT, *ROOT.commands):
        yield _section(command, "##")
        if command is not ROOT:
            for inner in command.commands:
                yield _section(inner, "###")


def _section(command: Command, level: str) -> str:
    parts = [f"{level} avenor {command.name}".rstrip(), f"`{usage(command)}`"]
    parts.append(f"{command.summary[0].upper()}{command.summary[1:]}." + (f" {command.about}" if command.about else ""))
    if command.commands:
        parts.append(_table("command", [(f"`{known.word}`", known.summary) for known in command.commands]))
    if command.arguments:
        parts.append(_table("argument", [(_code(argument), argument.help) for argument in command.arguments]))
    flags = command.flags
    if command.name == "control spawn":
        flags = tuple(flag for flag in flags if flag not in SPEC_FLAGS)
        parts.append(
            "Every flag of `run` that says what the run is: " + ", ".join(f"`{f.name}`" for f in SPEC_FLAGS) + "."
        )
    if flags:
        parts.append(_table("flag", [(_code(flag), flag_help(flag)) for flag in flags]))
    if command.prints:
        parts.append(f"On stdout: {command.prints}.")
    if command.exits and not command.name.startswith("control "):
        parts.append(_table("exit status", [(str(code), meaning) for code, meaning in command.exits]))
    parts.append("\n".join(["```sh", *command.examples, "```"]))
    return "\n\n".join(parts) + "\n"


def _code(item: Flag | Argument) -> str:
    return "`" + item.usage.replace("|", "\\|") + "`"


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"| {title} | |", "|---|---|", *(f"| {term} | {_cell(text)} |" for term, text in rows)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    write_text(reference())
