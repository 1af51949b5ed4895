"""Whether a command line is one that a pattern allows.

The line is parsed as a shell would, and a line that would do anything beside running one program with plain words is
refused: another command, a pipe, a redirection, a substitution, an expansion. A pattern is words in which `*`, `?` and
`[…]` stand for characters of that word; a lone `*` at its end stands for any further words. A pattern that has shell
syntax of its own allows exactly the line that it is.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final

_SHELLS: Final = frozenset(
    f"{folder}{name}" for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "dash", "zsh")
)
_SHELL_OPTIONS: Final = frozenset({"-c", "-lc"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_BLANK: Final = " \t"
# Outside of quotes. Some of them mean something in some places only, which nobody needs.
_SYNTAX: Final = frozenset(";&|<>()$`\n\r\0*?[]{}!#~")
_IN_DOUBLE_QUOTES: Final = frozenset("$`\n\r\0!")
_WILDCARDS: Final = frozenset("*?[]")
# Shells in shells: codex wraps once.
_MAX_WRAPS: Final = 2


class _ShellSyntax(ValueError):
    """The line is more than one program with plain words."""


class _Unfinished(_ShellSyntax):
    """The line has no end: a shell would refuse it, or wait for more."""


def why_not_allowed(command: str | Sequence[str], pattern: str) -> str | None:
    """Why a pattern does not allow a command; None if it does.

    Args:
        command: A line for a shell, or the words of a program line, which no shell looks at.
        pattern: As in a roster.
    """
    return _why_not(command, pattern, wraps=0)


def find_pattern_mistake(pattern: str) -> str | None:
    """What makes a pattern useless; None if it is a good one."""
    try:
        words = _pattern_words(pattern)
    except _Unfinished as error:
        return str(error)
    except _ShellSyntax:
        return None  # it stands for itself
    if len(_assignments(words)) == len(words):
        return "it names no program"
    if words[0] == "*":
        return "it begins with *, which would allow any program: name the program"
    return None


def _why_not(command: str | Sequence[str], pattern: str, wraps: int) -> str | None:
    if isinstance(command, str) and command.strip(_BLANK) == pattern.strip(_BLANK) and _is_literal(pattern):
        return None
    try:
        words = split_line(command) if isinstance(command, str) else list(command)
    except _ShellSyntax as error:
        return str(error)
    if _is_wrapped(words) and wraps < _MAX_WRAPS:
        inner = _why_not(words[2], pattern, wraps + 1)
        if inner is None:
            return None
        return None if _fits(words, pattern) else inner
    return None if _fits(words, pattern) else f"it is not {pattern!r}"


def _is_wrapped(words: Sequence[str]) -> bool:
    return len(words) == 3 and words[0] in _SHELLS and words[1] in _SHELL_OPTIONS


def _fits(words: Sequence[str], pattern: str) -> bool:
    if _is_literal(pattern):
        return False
    patterns = _pattern_words(pattern)
    is_open = len(patterns) > 1 and patterns[-1] == "*"
    if is_open:
        patterns = patterns[:-1]
    if len(words) < len(patterns) or (len(words) > len(patterns) and not is_open):
        return False
    if not all(map(_word_fits, words, patterns)):
        return False
    return _assignments(words) == _assignments(patterns)


def _assignments(words: Sequence[str]) -> list[str]:
    """The names of the variables that are set before the program."""
    names: list[str] = []
    for word in words:
        found = _ASSIGNMENT.match(word)
        if found is None:
            break
        names.append(found[1])
    return names


def _word_fits(word: str, pattern: str) -> bool:
    if word == pattern:
        return True
    # `tests/*` is about what is below there, not about what can be reached from there.
    if ".." in word.split("/") and ".." not in pattern.split("/"):
        return False
    return _compiled(pattern).match(word) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _is_literal(pattern: str) -> bool:
    """Whether a pattern has shell syntax of its own, so that it stands for itself alone."""
    try:
        _pattern_words(pattern)
    except _ShellSyntax:
        return True
    return False


@lru_cache(maxsize=1024)
def _pattern_words(pattern: str) -> tuple[str, ...]:
    return tuple(_split(pattern, _SYNTAX - _WILDCARDS))


def split_line(line: str) -> list[str]:
    """The words of a line that runs one program.

    Raises:
        ValueError: A shell would do more with it than that; the message says what.
    """
    return _split(line, _SYNTAX)


def _split(line: str, syntax: frozenset[str]) -> list[str]:
    return _Splitter(line, syntax).words()


class _Splitter:
    """Splits one line. `_word` is None between words, so that an empty quoted word is a word."""

    def __init__(self, line: str, syntax: frozenset[str]) -> None:
        self._line = line
        self._syntax = syntax
        self._word: str | None = None
        self._words: list[str] = []

    def words(self) -> list[str]:
        """All of them.

        Raises:
            _ShellSyntax: The line is more than words.
        """
        at = 0
        while at < len(self._line):
            at = self._take(at)
        self._end_word()
        return self._words

    def _take(self, at: int) -> int:
        """Takes what begins at a position; returns where it ends."""
        char = self._line[at]
        if char in _BLANK:
            self._end_word()
        elif char == "'":
            return self._take_single(at + 1)
        elif char == '"':
            return self._take_double(at + 1)
        elif char == "\\":
            return self._take_escaped(at + 1)
        else:
            _refuse_syntax(char, self._syntax)
            self._add(char)
        return at + 1

    def _take_single(self, begin: int) -> int:
        end = self._line.find("'", begin)
        if end < 0:
            raise _Unfinished("a quote is not closed")
        text = self._line[begin:end]
        for char in text:
            _refuse_syntax(char, frozenset("\n\r\0"))
        self._add(text)
        return end + 1

    def _take_double(self, at: int) -> int:
        self._add("")
        while at < len(self._line) and self._line[at] != '"':
            char = self._line[at]
            if char == "\\" and self._line[at + 1 : at + 2] in ('"', "\\"):
                at += 1
                char = self._line[at]
            else:
                _refuse_syntax(char, _IN_DOUBLE_QUOTES)
            self._add(char)
            at += 1
        if at >= len(self._line):
            raise _Unfinished("a quote is not closed")
        return at + 1

    def _take_escaped(self, at: int) -> int:
        if at >= len(self._line):
            raise _Unfinished("it ends with a backslash")
        _refuse_syntax(self._line[at], frozenset("\n\r\0"))
        self._add(self._line[at])
        return at + 1

    def _add(self, text: str) -> None:
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
        self._word = None


def _refuse_syntax(char: str, syntax: frozenset[str]) -> None:
    if char in syntax or (char < " " and char != "\t") or char == "\x7f":
        raise _ShellSyntax(f"{char!r} is shell syntax: run one program, with plain words")
