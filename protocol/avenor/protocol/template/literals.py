"""Go's constants as templates write them: strings, characters and numbers."""

import re

from avenor.protocol.template.problems import Fault
from avenor.protocol.template.values import INT_MAXIMUM, INT_MINIMUM, go_string

_ESCAPE = re.compile(r"\\(?:([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))", re.DOTALL)
_SIMPLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34}
_ESCAPES = r"\a \b \f \n \r \t \v \\ \ooo \xhh \uhhhh \Uhhhhhhhh"

_DECIMALS = "[0-9](?:_?[0-9])*"
_HEXES = "[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_INTEGER = re.compile(
    rf"[+-]?(?:(?P<hex>0[xX]_?{_HEXES})|(?P<binary>0[bB](?:_?[01])+)|(?P<octal>0[oO]?(?:_?[0-7])+)|0|[1-9](?:_?[0-9])*)"
)
_FLOAT = re.compile(
    rf"[+-]?(?:{_DECIMALS}\.?(?:{_DECIMALS})?|\.{_DECIMALS})(?:[eE][+-]?{_DECIMALS})?"
    rf"|(?P<hex>[+-]?0[xX]_?(?:{_HEXES}\.?(?:{_HEXES})?|\.{_HEXES})[pP][+-]?{_DECIMALS})"
)
_BASES = {"hex": 16, "binary": 2, "octal": 8}


def parse_string(source: str, at: int) -> bytes:
    """The string of an interpreted literal, given with its quotes.

    Raises:
        Fault: An escape is none of Go's.
    """
    body, parts, copied = source[1:-1], list[bytes](), 0
    for match in _ESCAPE.finditer(body):
        code, is_byte = _escaped(match, '"', at + 1)
        parts += [go_string(body[copied : match.start()]), bytes([code]) if is_byte else chr(code).encode()]
        copied = match.end()
    return b"".join([*parts, go_string(body[copied:])])


def parse_raw_string(source: str) -> bytes:
    """The string between backquotes; Go drops carriage returns from it."""
    return go_string(source[1:-1].replace("\r", ""))


def parse_character(source: str, at: int) -> int:
    """The number of a character constant, given with its quotes.

    Raises:
        Fault: It is not one character, or its escape is none of Go's.
    """
    body = source[1:-1]
    if match := _ESCAPE.fullmatch(body):
        return _escaped(match, "'", at + 1)[0]
    if len(body) != 1 or body == "\\":
        raise Fault(at, f"{source} is no character constant; expected one character between single quotes")
    return ord(body)


def parse_number(source: str, at: int) -> int | float:
    """The number that a literal means.

    Raises:
        Fault: It is none, or is out of range.
    """
    if match := _INTEGER.fullmatch(source):
        return _integer(source, match.lastgroup, at)
    match = _FLOAT.fullmatch(source)
    if match is None or source.lstrip("+-").replace("_", "").isdecimal():
        raise Fault(at, _number_message(source))
    digits = source.replace("_", "")
    try:
        number = float.fromhex(digits) if match["hex"] else float(digits)
    except OverflowError:
        number = float("inf")
    if number in (float("inf"), float("-inf")):
        raise Fault(at, f"{source} is too large for a number")
    return number


def _number_message(source: str) -> str:
    if source.endswith("i"):
        return f"{source} is a complex number, which prompts cannot use; expected an integer or a decimal number"
    if source.lstrip("+-").isdecimal():
        return f"{source} is no number: a leading 0 means octal, with the digits 0 to 7"
    return f"{source} is no number; write it like 3, -3, 0x1f, 0b101, 0o17, 1_000, 2.5 or 1e3"


def _integer(source: str, base: str | None, at: int) -> int:
    digits = source.replace("_", "").lstrip("+-")
    if base == "octal":
        digits = digits.lstrip("0oO") or "0"
    # Anything longer is out of range, and Python takes its time to read thousands of digits.
    number = int(digits, _BASES.get(base or "", 10)) if len(digits) <= 100 else INT_MAXIMUM + 2
    number = -number if source.startswith("-") else number
    if not INT_MINIMUM <= number <= INT_MAXIMUM:
        raise Fault(at, f"{source[:100]} is out of range; an integer has 64 bits")
    return number


def _escaped(match: re.Match[str], quote: str, at: int) -> tuple[int, bool]:
    """The number of an escape, and whether it means a byte, not a character."""
    octal, byte, short, long, simple = match.groups()
    other_quote = "'" if quote == '"' else '"'
    if simple is not None:
        code, is_byte = (None if simple == other_quote else _SIMPLE.get(simple)), False
    elif octal or byte:
        code, is_byte = int(octal, 8) if octal else int(byte, 16), True
    else:
        code, is_byte = int(short or long, 16), False
    limit = 0xFF if is_byte else 0x10FFFF
    if code is None or code > limit or (not is_byte and 0xD800 <= code <= 0xDFFF):
        raise Fault(at + match.start(), f"{match[0]} is no escape of a constant; expected {_ESCAPES} or \\{quote}")
    return code, is_byte
