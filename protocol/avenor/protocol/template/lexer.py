"""Cuts a template into tokens: text, and what stands between `{{` and `}}`. Comments and trimmed blanks are gone."""

import re
from collections.abc import Generator, Iterator
from enum import Enum

import msgspec

from avenor.protocol.template.problems import Fault

# More than any prompt has, and few enough to hold: a token and what becomes of it take about a kilobyte.
TOKEN_LIMIT = 50_000


class Kind(Enum):
    """What a token is."""

    TEXT = "text"
    OPEN = "{{"
    CLOSE = "}}"
    WORD = "word"
    FIELD = "field"
    VARIABLE = "variable"
    DOT = "."
    NUMBER = "number"
    CHARACTER = "character"
    STRING = "string"
    RAW_STRING = "raw string"
    PIPE = "|"
    LEFT = "("
    RIGHT = ")"
    COMMA = ","
    DECLARE = ":="
    ASSIGN = "="
    SYMBOL = "symbol"
    END = "end"


class Token(msgspec.Struct, frozen=True):
    """One token.

    Args:
        kind: What it is.
        at: Its offset.
        source: How it is written.
        is_spaced: Whether blanks stand before it, as they must between two operands.
    """

    kind: Kind
    at: int
    source: str
    is_spaced: bool


_BLANKS = " \t\r\n"
_TRIMMED_OPEN = re.compile(rf"\{{\{{-[{_BLANKS}]")
_COMMENT_CLOSE = re.compile(rf"(?:[{_BLANKS}]-)?\}}\}}")
_TRIMMED_CLOSE = "-}}"
_INSIDE = re.compile(
    rf"""
    (?P<blanks>[{_BLANKS}]*)
    (?:
      (?P<CLOSE>(?:(?<=[{_BLANKS}])-)?\}}\}})
    | (?P<STRING>"(?:\\.|[^"\\\n])*")
    | (?P<RAW_STRING>`[^`]*`)
    | (?P<CHARACTER>'(?:\\.|[^'\\\n])*')
    | (?P<NUMBER>(?=[+-]|\.?[0-9])[+-]?
        (?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?
          |0[oObB][0-9_]*
          |[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?)
    | (?P<FIELD>\.\w+)
    | (?P<VARIABLE>\$\w*)
    | (?P<WORD>\w+)
    | (?P<DECLARE>:=)
    | (?P<DOT>\.)
    | (?P<PIPE>\|)
    | (?P<LEFT>\()
    | (?P<RIGHT>\))
    | (?P<COMMA>,)
    | (?P<ASSIGN>=)
    | (?P<SYMBOL>.)
    )
    """,
    re.VERBOSE,
)
_NAMES = (Kind.FIELD, Kind.VARIABLE, Kind.WORD)
# What may follow a name without a blank, and what may not follow a number.
_AFTER_NAME = re.compile(rf"[{_BLANKS}.,|:()]|\}}\}}|\Z")
_AFTER_NUMBER = re.compile(r"[\w+-]")
_UNTERMINATED = {
    '"': "this string has no closing quote on its line",
    "`": "this raw string has no closing backquote",
    "'": "this character constant has no closing quote on its line",
}


def lex_template(text: str) -> Iterator[Token]:
    """The tokens of a template, one after the other; the last is of kind END.

    Raises:
        Fault: At the first thing that is no token, when the tokens before it are taken.
    """
    for count, token in enumerate(_lex(text)):
        if count == TOKEN_LIMIT:
            raise Fault(token.at, f"the template has more than {TOKEN_LIMIT} parts; make it smaller")
        yield token


def _lex(text: str) -> Iterator[Token]:
    at, is_trimmed = 0, False
    while (opening := text.find("{{", at)) >= 0:
        trims = _TRIMMED_OPEN.match(text, opening) is not None
        yield from _text(text, at, opening, trims_left=is_trimmed, trims_right=trims)
        at = opening + (4 if trims else 2)
        if text.startswith("/*", at):
            at = _skip_comment(text, at)
        else:
            yield Token(Kind.OPEN, opening, "{{", False)
            at = yield from _inside(text, at, opening)
        is_trimmed = text.startswith(_TRIMMED_CLOSE, at - 3) and text[at - 4] in _BLANKS
    yield from _text(text, at, len(text), trims_left=is_trimmed, trims_right=False)
    yield Token(Kind.END, len(text), "", False)


def _text(text: str, start: int, end: int, *, trims_left: bool, trims_right: bool) -> Iterator[Token]:
    source = text[start:end]
    if trims_right:
        source = source.rstrip(_BLANKS)
    if trims_left:
        start += len(source) - len(source.lstrip(_BLANKS))
        source = source.lstrip(_BLANKS)
    if source:
        yield Token(Kind.TEXT, start, source, False)


def _skip_comment(text: str, start: int) -> int:
    """Where the action ends that is the comment at `start`."""
    end = text.find("*/", start + 2)
    if end < 0:
        raise Fault(start, "this comment has no closing */")
    close = _COMMENT_CLOSE.match(text, end + 2)
    if close is None:
        raise Fault(end, "a comment is an action of its own; expected }} or a blank and -}} right after its */")
    return close.end()


def _inside(text: str, at: int, opening: int) -> Generator[Token, None, int]:
    """The tokens of one action, its close included; returns where it ends."""
    while match := _INSIDE.match(text, at):
        kind, source, start, at = Kind[match.lastgroup or ""], match[match.lastgroup or ""], match.end(1), match.end()
        _check_end(text, kind, source, start)
        yield Token(kind, start, source, bool(match["blanks"]))
        if kind is Kind.CLOSE:
            return at
    raise Fault(opening, "this action has no closing }}")


def _check_end(text: str, kind: Kind, source: str, start: int) -> None:
    """Refuses what does not end where it must."""
    end = start + len(source)
    if kind is Kind.SYMBOL and source in _UNTERMINATED:
        raise Fault(start, _UNTERMINATED[source])
    if kind is Kind.NUMBER and _AFTER_NUMBER.match(text, end):
        raise Fault(start, f"{text[start : end + 1]} is no number and no name; expected a blank after {source}")
    if kind in _NAMES and not _AFTER_NAME.match(text, end):
        raise Fault(end, f"{text[end]!r} cannot follow {source}; expected a blank, a dot, a bar, ) or }}}}")
