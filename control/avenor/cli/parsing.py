"""Words to values, by the tables. One parser for every command, and the usage errors that it finds.

`--flag value` and `--flag=value` are the same; a flag takes the next word whatever it looks like, so that a prompt may
begin with a dash. `--` ends the flags, and a word with a blank in it is never taken for one. Given twice, the last
counts. An empty value is refused, and so is what is not UTF-8.
"""

from __future__ import annotations

import os

from avenor.cli.table import CHOICE, COUNT, DURATION, SWITCH, Argument, Command, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class UsageError(Exception):
    """The words make no sense; `command` is the one whose help would."""

    def __init__(self, message: str, command: Command) -> None:
        super().__init__(message)
        self.message = message
        self.command = command


class HelpAsked(Exception):
    """`--help` was among the words."""

    def __init__(self, command: Command) -> None:
        super().__init__(command.name)
        self.command = command


class Values:
    """What was given on the command line, by key. Only what was given: defaults are the business of who acts."""

    __slots__ = ("_given", "_lists")

    def __init__(self) -> None:
        self._given: dict[str, object] = {}
        self._lists: dict[str, list[str]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._given or key in self._lists

    def put(self, key: str, value: object) -> None:
        """Set a value; the last one counts."""
        self._given[key] = value

    def add(self, key: str, value: str) -> None:
        """Append to a value that repeats."""
        self._lists.setdefault(key, []).append(value)

    def raw(self, key: str) -> object:
        """The value as it was parsed: text, True, int or float seconds; None if it was not given."""
        return self._given.get(key)

    def text(self, key: str) -> str | None:
        """A text; None if it was not given."""
        value = self._given.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """A count; None if it was not given."""
        value = self._given.get(key)
        return value if isinstance(value, int) else None

    def switch(self, key: str) -> bool:
        """Whether a switch was given."""
        return self._given.get(key) is True

    def texts(self, key: str) -> list[str]:
        """The values of a flag or an argument that repeats."""
        return list(self._lists.get(key, ()))


def parse(
    command: Command, words: Sequence[str], values: Values | None = None, *, inherited: Sequence[Flag] = ()
) -> Values:
    """The values that the words give to a command.

    Args:
        command: No group.
        words: What came after its name.
        values: Where earlier words (a group's flags) have already put theirs.
        inherited: The flags of its group.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = Values() if values is None else values
    flags = (*inherited, *command.flags)
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            plain.extend(rest)
        elif looks_like_flag(word):
            _take_flag(command, flags, word, rest, values)
        else:
            plain.append(word)
    _take_arguments(command, plain, values)
    for flag in command.flags:
        if flag.required and flag.key not in values:
            raise UsageError(f"{flag.usage} is needed", command)
    return values


def parse_group(group: Command, words: Sequence[str]) -> tuple[Command, Values]:
    """The command of a group that the words name, and its values.

    Raises:
        UsageError: They make no sense, or name no command.
        HelpAsked: They ask for help.
    """
    values = Values()
    rest = iter(words)
    for word in rest:
        if looks_like_flag(word):
            _take_flag(group, group.flags, word, rest, values)
            continue
        command = group.find(word)
        if command is None:
            raise UsageError(unknown_word(word, [known.word for known in group.commands]), group)
        return command, parse(command, list(rest), values, inherited=group.flags)
    raise UsageError("a command is needed: " + ", ".join(known.word for known in group.commands), group)


def looks_like_flag(word: str) -> bool:
    """Whether a word is meant as a flag: `-h`, `--x`, `--x=any text`; not `-`, `-5` or `- a list item`."""
    name = word.partition("=")[0]
    return len(name) > 1 and name[0] == "-" and not name[1].isdecimal() and not any(map(str.isspace, name))


def unknown_word(word: str, known: Sequence[str]) -> str:
    """The message for a word that is no command, with the closest one."""
    from difflib import get_close_matches

    closest = get_close_matches(word, known, n=1, cutoff=0.0)
    hint = f"; the closest is {closest[0]!r}" if closest else ""
    return f"no command {word!r}{hint} (there are: {', '.join(known)})"


def flag_value(command: Command, flag: Flag, text: str) -> object:
    """The value of a flag: seconds for a duration, an int for a count, else the text.

    Raises:
        UsageError: It is no such value; the message has the flag's name.
    """
    if text == "" and not flag.may_be_empty:  # as of a variable that is not set; it must not mean the default
        raise UsageError(f"{flag.name}: it is empty", command)
    if flag.kind == DURATION:
        from avenor.protocol.durations import parse_duration

        try:
            return parse_duration(text)
        except ValueError as error:
            raise UsageError(f"{flag.name}: {error}", command) from None
    if flag.kind == COUNT:
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise UsageError(f"{flag.name}: {text!r} is no whole number, 0 or more", command)
        return int(text)
    if flag.kind == CHOICE and text not in flag.choices:
        raise UsageError(f"{flag.name}: {text!r} is none of {', '.join(flag.choices)}", command)
    return text


def utf8(command: Command, name: str, text: str) -> str:
    """The text, if it is one: neither JSON nor an event log holds other bytes.

    Raises:
        UsageError: It is not UTF-8; the message has this name.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: it is not UTF-8", command) from None
    return text


def absolute(command: Command, name: str, path: str) -> str:
    """The path from the root on.

    Args:
        command: Whose it is.
        name: The flag that it was given with, or could have been.
        path: Relative to the working directory, or absolute already.

    Raises:
        UsageError: There is no working directory any more, or a name in the path is not UTF-8.
    """
    try:
        found = os.path.abspath(path)
    except OSError:
        text = f"{name}: {path} is relative, and the working directory is gone; give an absolute path"
        raise UsageError(text, command) from None
    return utf8(command, f"{name} {found}", found)


def _take_flag(command: Command, flags: Sequence[Flag], word: str, rest: Iterator[str], values: Values) -> None:
    name, equals, text = word.partition("=")
    if name in ("--help", "-h") and not equals:
        raise HelpAsked(command)
    flag = next((known for known in flags if known.name == name), None)
    if flag is None:
        raise UsageError(_unknown_flag(name, flags), command)
    if flag.kind == SWITCH:
        if equals and text not in ("true", "false"):
            raise UsageError(f"{name} is a switch: it takes no value", command)
        values.put(flag.key, text != "false")
        return
    if not equals:
        following = next(rest, None)
        if following is None:
            raise UsageError(f"{flag.usage}: the value is missing", command)
        text = following
    utf8(command, name, text)
    value = flag_value(command, flag, text)
    if flag.repeats:
        values.add(flag.key, text)
    else:
        values.put(flag.key, value)


def _unknown_flag(name: str, flags: Sequence[Flag]) -> str:
    from difflib import get_close_matches

    closest = get_close_matches(name, [flag.name for flag in flags], n=1)
    return f"no flag {name}" + (f"; did you mean {closest[0]}?" if closest else "")


def _take_arguments(command: Command, plain: list[str], values: Values) -> None:
    known = command.arguments
    if known and known[-1].repeats and len(plain) >= len(known):
        repeated, given = known[-1], plain[len(known) - 1 :]
        known, plain = known[:-1], plain[: len(known) - 1]
        for text in given:
            _check_argument(command, repeated, text)
            values.add(repeated.key, text)
    if len(plain) > len(known):
        expected = " ".join(argument.usage for argument in known) or "no arguments"
        surplus = plain[len(known)]
        raise UsageError(f"{surplus!r} is one argument too many (it takes {expected}; quote text with blanks)", command)
    for argument, text in zip(known, plain, strict=False):
        _check_argument(command, argument, text)
        values.put(argument.key, text)
    for argument in known[len(plain) :]:
        if argument.required:
            raise UsageError(f"{argument.usage} is missing: {argument.help}", command)


def _check_argument(command: Command, argument: Argument, text: str) -> None:
    utf8(command, argument.name, text)
    if argument.kind == CHOICE and text not in argument.choices:
        raise UsageError(f"{text!r} is none of {', '.join(argument.choices)}", command)
    if text == "":
        raise UsageError(f"{argument.name} is empty", command)
