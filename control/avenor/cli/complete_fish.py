"""The completion script for fish."""

from collections.abc import Iterator

from avenor.cli.commands import ROOT
from avenor.cli.complete_bash import commands_flags
from avenor.cli.table import BACKEND, DIRECTORY, FILE, PAGE, RUNTIME, SWITCH, Argument, Command, Flag

_SCRIPT = """\
# Completion for avenor in fish; written by `avenor completion fish`.

# The command that the line is at, and how many arguments it has so far: `control cancel 1`.
function __avenor_at
    set -l words (commandline -opc)
    set -l command
    set -l position 0
    set -e words[1]
    while set -q words[1]
        set -l word $words[1]
        set -e words[1]
        switch $word
            case @FLAGS_WITH_VALUE@
                set -e words[1]
                test -z "$command"; and set command run
            case '--help' '-h' '--version'
            case '-*'
                test -z "$command"; and set command run
            case '*'
                if test -z "$command"
                    set command $word
                else if test "$command" = control
                    set command control $word
                else
                    set position (math $position + 1)
                end
        end
    end
    echo $command $position
end

function __avenor_is
    string match -q -- "$argv *" (__avenor_at)
end

function __avenor_is_at
    test "$argv" = (__avenor_at)
end

function __avenor_runtimes
    set -l words (commandline -opc)
    set -l socket
    for i in (seq (count $words))
        switch $words[$i]
            case '--socket'
                set socket --socket $words[(math $i + 1)]
            case '--socket=*'
                set socket $words[$i]
        end
    end
    $words[1] control $socket list --ids 2>/dev/null
end

function __avenor_backends
    set -l words (commandline -opc)
    $words[1] doctor --names 2>/dev/null
end

function __avenor_pages
    set -l words (commandline -opc)
    $words[1] docs --names 2>/dev/null
end

complete -c avenor -f
@LINES@
"""


def script() -> str:
    """The script."""
    return _SCRIPT.replace("@FLAGS_WITH_VALUE@", _flags_with_value()).replace("@LINES@", "\n".join(_lines()))


def _flags_with_value() -> str:
    flags = [flag for command in ROOT.commands for flag in command.flags]
    flags.extend(flag for command in ROOT.commands for inner in command.commands for flag in inner.flags)
    return " ".join(sorted({_quoted(flag.name) for flag in flags if flag.kind != SWITCH}))


def _lines() -> Iterator[str]:
    yield from _level("__avenor_is_at 0", "__avenor_is_at 0", ROOT, commands_flags(ROOT))
    for command in ROOT.commands:
        yield from _level(f"__avenor_is_at {command.name} 0", f"__avenor_is {command.name}", command, command.flags)
        for inner in command.commands:
            yield from _level("", f"__avenor_is {inner.name}", inner, (*inner.flags, *command.flags))


def _level(at: str, within: str, command: Command, flags: tuple[Flag, ...]) -> Iterator[str]:
    for inner in command.commands:
        yield f"complete -c avenor -n {_quoted(at)} -a {_quoted(inner.word)} -d {_quoted(inner.summary)}"
    for flag in flags:
        yield f"complete -c avenor -n {_quoted(within)} -l {flag.name[2:]}{_value(flag)} -d {_quoted(flag.help)}"
    yield f"complete -c avenor -n {_quoted(within)} -s h -l help -d {_quoted('show help')}"
    for position, argument in enumerate(command.arguments):
        place = f"__avenor_is {command.name}" if argument.repeats else f"__avenor_is_at {command.name} {position}"
        yield f"complete -c avenor -n {_quoted(place)}{_argument(argument)} -d {_quoted(argument.name.lower())}"


def _value(flag: Flag) -> str:
    if flag.kind == SWITCH:
        return ""
    if flag.kind == FILE:
        return " -r -F"
    return " -x" + _argument(flag)


def _argument(item: Flag | Argument) -> str:
    if item.choices and item.kind != BACKEND:
        return f" -a {_quoted(' '.join(item.choices))}"
    if item.kind == FILE:
        return " -F"
    actions = {
        DIRECTORY: "(__fish_complete_directories)",
        RUNTIME: "(__avenor_runtimes)",
        BACKEND: "(__avenor_backends)",
        PAGE: "(__avenor_pages)",
    }
    action = actions.get(item.kind)
    return f" -a {_quoted(action)}" if action else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
