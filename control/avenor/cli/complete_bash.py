"""The completion script for bash, from version 3.2 on (macOS): no associative arrays, no bash-completion package."""

from collections.abc import Iterator

from avenor.cli.commands import ROOT
from avenor.cli.table import BACKEND, DIRECTORY, FILE, PAGE, RUNTIME, SWITCH, Argument, Command, Flag

_SCRIPT = """\
# Completion for avenor in bash; written by `avenor completion bash`.

# The words that may follow a command, by its name: its commands and flags.
_avenor_words() {
  case $1 in
@WORDS@
  esac
}

# What the value of a flag is ("COMMAND FLAG"), or an argument ("COMMAND POSITION"): files, directories, runtimes,
# backends, pages, any, or "words" and the words themselves. Nothing for a flag without a value.
_avenor_value() {
  case $1 in
@VALUES@
  esac
}

# Reply with what compgen finds; a line is one answer, so that names may hold blanks.
_avenor_offer() {
  local found
  while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen "$@")
}

_avenor_reply() {
  case $1 in
    files) compopt -o filenames 2>/dev/null; _avenor_offer -f -- "$2" ;;
    directories) compopt -o filenames 2>/dev/null; _avenor_offer -d -- "$2" ;;
    runtimes) _avenor_offer -W "$("$4" control ${3:+--socket "$3"} list --ids 2>/dev/null)" -- "$2" ;;
    backends) _avenor_offer -W "$("$4" doctor --names 2>/dev/null)" -- "$2" ;;
    pages) _avenor_offer -W "$("$4" docs --names 2>/dev/null)" -- "$2" ;;
    words\\ *) _avenor_offer -W "${1#words }" -- "$2" ;;
  esac
}

_avenor() {
  local IFS=$' \\t\\n' word command="" socket="" position=0 i=1 kind
  local current=${COMP_WORDS[COMP_CWORD]}
  COMPREPLY=()
  while ((i < COMP_CWORD)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -* && $word != - ]]; then
      [[ -z $command && $word != --help && $word != -h && $word != --version ]] && command=run
      kind=$(_avenor_value "$command $word")
      if [[ -n $kind ]]; then
        ((i += 1))
        [[ ${COMP_WORDS[i]} == "=" ]] && ((i += 1))
        if ((i >= COMP_CWORD)); then
          # At `--flag=` the word to complete is still the equals sign.
          [[ $current == "=" && $i -gt $COMP_CWORD ]] && current=""
          _avenor_reply "$kind" "$current" "$socket" "$1"
          return
        fi
        [[ $word == --socket ]] && socket=${COMP_WORDS[i]}
      fi
    elif [[ -z $command ]]; then
      command=$word
    elif [[ $command == control ]]; then
      command="control $word"
    else
      ((position += 1))
    fi
    ((i += 1))
  done
  if [[ $current == -* ]]; then
    _avenor_offer -W "$(_avenor_words "$command" | tr ' ' '\\n' | grep '^-')" -- "$current"
    return
  fi
  kind=$(_avenor_value "$command $position")
  if [[ -n $kind ]]; then
    _avenor_reply "$kind" "$current" "$socket" "$1"
  elif ((position == 0)); then
    _avenor_offer -W "$(_avenor_words "$command" | tr ' ' '\\n' | grep -v '^-')" -- "$current"
  fi
}

complete -F _avenor avenor
"""


def script() -> str:
    """The script."""
    words = "\n".join(
        f'    {_quoted(command.name)}) echo "{_words(command, inherited)}" ;;' for command, inherited in _all()
    )
    values = "\n".join(f"    {key}) echo {_quoted(kind)} ;;" for key, kind in _values())
    return _SCRIPT.replace("@WORDS@", words).replace("@VALUES@", values)


def _all() -> Iterator[tuple[Command, tuple[Flag, ...]]]:
    yield ROOT, commands_flags(ROOT)
    for command in ROOT.commands:
        yield command, command.flags
        for inner in command.commands:
            yield inner, (*inner.flags, *command.flags)


def commands_flags(root: Command) -> tuple[Flag, ...]:
    """The flags that may stand directly after `avenor`: its own, and those of the command that needs no name."""
    return (*root.flags, *(flag for command in root.commands if command.hidden_name for flag in command.flags))


def _words(command: Command, flags: tuple[Flag, ...]) -> str:
    return " ".join([*(inner.word for inner in command.commands), *(flag.name for flag in flags), "--help"])


def _values() -> Iterator[tuple[str, str]]:
    """Patterns for `COMMAND FLAG` and `COMMAND POSITION`, and what the value there is."""
    for command, flags in _all():
        for flag in flags:
            if flag.kind != SWITCH:
                yield _quoted(f"{command.name} {flag.name}"), _kind(flag)
        for position, argument in enumerate(command.arguments):
            exact = _quoted(f"{command.name} {position}")
            yield _quoted(f"{command.name} ") + "[0-9]*" if argument.repeats else exact, _kind(argument)


def _kind(item: Flag | Argument) -> str:
    if item.kind == BACKEND:
        return "backends"
    if item.choices:
        return "words " + " ".join(item.choices)
    return {FILE: "files", DIRECTORY: "directories", RUNTIME: "runtimes", PAGE: "pages"}.get(item.kind, "any")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
