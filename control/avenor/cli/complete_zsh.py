"""The completion script for zsh, in its own terms, so that commands and flags come with their descriptions."""

from avenor.cli.commands import ROOT
from avenor.cli.complete_bash import commands_flags
from avenor.cli.table import BACKEND, CHOICE, DIRECTORY, FILE, PAGE, RUNTIME, SWITCH, Argument, Command, Flag

_SCRIPT = """\
#compdef avenor
# Completion for avenor in zsh; written by `avenor completion zsh`.

_avenor_runtimes() {
  local -a ids socket
  local i
  for ((i = 1; i <= $#_avenor_line; i++)); do
    [[ $_avenor_line[i] == --socket ]] && socket=(--socket $_avenor_line[i+1])
    [[ $_avenor_line[i] == --socket=* ]] && socket=($_avenor_line[i])
  done
  ids=(${(f)"$(_call_program runtimes $_avenor_line[1] control $socket list --ids 2>/dev/null)"})
  _describe -t runtimes runtime ids
}

_avenor_backends() {
  local -a names
  names=(${(f)"$(_call_program backends $_avenor_line[1] doctor --names 2>/dev/null)"})
  _describe -t backends backend names
}

_avenor_pages() {
  local -a names
  names=(${(f)"$(_call_program pages $_avenor_line[1] docs --names 2>/dev/null)"})
  _describe -t pages page names
}

@FUNCTIONS@

_avenor() {
  local context state state_descr line
  typeset -A opt_args
  local -a _avenor_line=($words)
  if [[ $CURRENT -gt 2 && $words[2] == -* ]]; then
    _avenor_run
    return
  fi
  _arguments -C \\
    @ROOT_FLAGS@ \\
    '1:command:->command' \\
    '*::argument:->arguments'
  case $state in
    command)
      local -a known=(
@COMMANDS@
      )
      _describe -t commands command known ;;
    arguments)
      case $words[1] in
@CASES@
      esac ;;
  esac
}

if [[ $funcstack[1] == _avenor ]]; then
  _avenor "$@"
else
  compdef _avenor avenor
fi
"""
_GROUP = """\
_avenor_@NAME@() {
  local context state state_descr line
  typeset -A opt_args
  _arguments -C \\
    @FLAGS@ \\
    '1:command:->command' \\
    '*::argument:->arguments'
  case $state in
    command)
      local -a known=(
@COMMANDS@
      )
      _describe -t commands command known ;;
    arguments)
      case $words[1] in
@CASES@
      esac ;;
  esac
}"""


def script() -> str:
    """The script."""
    return (
        _SCRIPT.replace("@FUNCTIONS@", "\n\n".join(_functions()))
        .replace("@ROOT_FLAGS@", _joined([*map(_flag, commands_flags(ROOT)), _HELP]))
        .replace("@COMMANDS@", _described(ROOT))
        .replace("@CASES@", _cases(ROOT))
    )


_HELP = "'(- *)'{-h,--help}'[show help]'"


def _functions() -> list[str]:
    functions: list[str] = []
    for command in ROOT.commands:
        functions.extend(_leaf(inner, (*inner.flags, *command.flags)) for inner in command.commands)
        functions.append(_group(command) if command.commands else _leaf(command, command.flags))
    return functions


def _group(group: Command) -> str:
    return (
        _GROUP.replace("@NAME@", _function_name(group))
        .replace("@FLAGS@", _joined([*map(_flag, group.flags), _HELP]))
        .replace("@COMMANDS@", _described(group))
        .replace("@CASES@", _cases(group))
    )


def _leaf(command: Command, flags: tuple[Flag, ...]) -> str:
    arguments = [_argument(position, argument) for position, argument in enumerate(command.arguments, 1)]
    specs = _joined([*map(_flag, flags), _HELP, *arguments])
    return f"_avenor_{_function_name(command)}() {{\n  _arguments \\\n    {specs}\n}}"


def _described(group: Command) -> str:
    return "\n".join(f"        {_quoted(f'{command.word}:{command.summary}')}" for command in group.commands)


def _cases(group: Command) -> str:
    return "\n".join(f"        {command.word}) _avenor_{_function_name(command)} ;;" for command in group.commands)


def _function_name(command: Command) -> str:
    return command.name.replace(" ", "_").replace("-", "_")


def _joined(specs: list[str]) -> str:
    return " \\\n    ".join(specs)


def _flag(flag: Flag) -> str:
    text = f"[{_escaped(flag.help)}]"
    if flag.kind == SWITCH:
        return _quoted(f"{flag.name}{text}")
    repeated = "*" if flag.repeats else ""
    return _quoted(f"{repeated}{flag.name}={text}:{_escaped(flag.metavar)}:{_action(flag)}")


def _argument(position: int, argument: Argument) -> str:
    place = f"{position}:" if argument.required else f"{position}::"
    if argument.repeats:
        place = "*:"
    return _quoted(f"{place}{_escaped(argument.name.lower())}:{_action(argument)}")


def _action(item: Flag | Argument) -> str:
    if item.kind == BACKEND:
        return "_avenor_backends"
    if item.choices or item.kind == CHOICE:
        return f"({' '.join(item.choices)})"
    actions = {FILE: "_files", DIRECTORY: "_files -/", RUNTIME: "_avenor_runtimes", PAGE: "_avenor_pages"}
    return actions.get(item.kind, "( )")


def _escaped(text: str) -> str:
    """Text with what `_arguments` would read as its own punctuation escaped."""
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
