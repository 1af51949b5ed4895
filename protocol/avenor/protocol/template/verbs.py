"""Formats one value under one verb of `printf`, as Go's fmt does (package fmt, "Printing")."""

import math
import re
from typing import assert_never

import msgspec

from avenor.protocol.template.quoting import can_be_raw, quote_character, quote_string
from avenor.protocol.template.values import Byte, Root, Value, from_runes, runes, type_name

_REPLACEMENT = "\ufffd"
_BASES = {"d": "d", "v": "d", "b": "b", "o": "o", "O": "o", "x": "x", "X": "X"}
# Go prints a float's shortest form with an exponent from here on.
_SHORTEST_PLAIN_DIGITS = 6
_MANTISSA_BITS = 53
_EXPONENT_MINIMUM = -1074


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A verb with its flags; width and precision are None where they are not given.

    Attributes:
        names_fields: What the plus flag means under `%v`.
        is_go_syntax: What the sharp flag means under `%v`.
    """

    verb: str
    plus: bool = False
    minus: bool = False
    sharp: bool = False
    space: bool = False
    zero: bool = False
    names_fields: bool = False
    is_go_syntax: bool = False
    width: int | None = None
    precision: int | None = None


def format_value(value: Value, spec: Spec) -> bytes:
    """The value under a verb; in Go's form for errors (`%!d(string=hi)`) if the verb is none of its kind."""
    if spec.verb == "T" and value is not None:
        return _format_string(type_name(value).encode(), spec)
    formatted = _by_kind(value, spec)
    return _bad_verb(value, spec) if formatted is None else formatted


def _shortest_float(number: float) -> str:
    """The float with as many digits as it needs, as `%v` prints it."""
    sign, digits, point = _shortest_digits(number)
    exponent = point - 1
    if -4 <= exponent < _SHORTEST_PLAIN_DIGITS:
        return sign + _plain(digits, point)
    return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{exponent:+03d}"


def _by_kind(value: Value, spec: Spec) -> bytes | None:
    """None if the kind does not know the verb."""
    match value:
        case None:
            return _pad("<nil>", spec) if spec.verb in "Tv" else None
        case bool():
            return _pad("true" if value else "false", spec) if spec.verb in "tv" else None
        case bytes():
            return _format_text(value, spec)
        case float():
            return _format_float(value, spec)
        case int():
            return _format_integer(value, spec)
        case Root():
            return None if spec.verb in "pw" else _format_root(value, spec)
        case _:
            assert_never(value)


def _bad_verb(value: Value, spec: Spec) -> bytes:
    verb = spec.verb.encode()
    if value is None:
        return b"%!" + verb + b"(<nil>)"
    shown = format_value(value, msgspec.structs.replace(spec, verb="v"))
    return b"%!" + verb + b"(" + type_name(value).encode() + b"=" + shown + b")"


def _format_root(root: Root, spec: Spec) -> bytes:
    is_named = spec.names_fields or spec.is_go_syntax
    shown = [
        (name.encode() + b":" if is_named else b"") + format_value(value, spec) for name, value in root.fields.items()
    ]
    if spec.is_go_syntax:
        return b"struct{" + b", ".join(shown) + b"}"
    return b"{" + b" ".join(shown) + b"}"


# Padding.


def _pad(text: str, spec: Spec, *, zero: bool | None = None) -> bytes:
    missing = (spec.width or 0) - len(text)
    if missing <= 0:
        return from_runes(text)
    if spec.minus:
        return from_runes(text + " " * missing)
    with_zeros = spec.zero if zero is None else zero
    return from_runes(("0" if with_zeros else " ") * missing + text)


# Strings.


def _format_text(string: bytes, spec: Spec) -> bytes | None:
    match spec.verb:
        case "s":
            return _format_string(string, spec)
        case "v":
            return _format_quoted(string, spec) if spec.is_go_syntax else _format_string(string, spec)
        case "q":
            return _format_quoted(string, spec)
        case "x" | "X":
            return _format_hex(string, spec)
        case _:
            return None


def _format_string(string: bytes, spec: Spec) -> bytes:
    if spec.width is None and spec.precision is None:
        return string
    return _pad(runes(string)[: spec.precision], spec)


def _format_quoted(string: bytes, spec: Spec) -> bytes:
    cut = from_runes(runes(string)[: spec.precision])
    if spec.sharp and can_be_raw(cut):
        return _pad(f"`{runes(cut)}`", spec)
    return _pad(runes(quote_string(cut, is_ascii=spec.plus)), spec)


def _format_hex(string: bytes, spec: Spec) -> bytes:
    cut = string[: spec.precision]
    prefix = "0x" if spec.sharp and cut else ""
    digits = prefix + (cut.hex(" ").replace(" ", f" {prefix}") if spec.space else cut.hex())
    return _pad(digits.upper() if spec.verb == "X" else digits, spec)


# Integers.


def _format_integer(number: int, spec: Spec) -> bytes | None:
    match spec.verb:
        case "c":
            return _pad(_character(number), spec)
        case "q":
            return _pad(runes(quote_character(_character(number), is_ascii=spec.plus)), spec)
        case "U":
            return _format_code_point(number, spec)
        case "v" if spec.is_go_syntax and isinstance(number, Byte):
            return _format_digits(number, msgspec.structs.replace(spec, verb="x", sharp=True))
        case verb if verb in _BASES:
            return _format_digits(number, spec)
        case _:
            return None


def _character(number: int) -> str:
    is_character = 0 <= number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number) if is_character else _REPLACEMENT


def _format_code_point(number: int, spec: Spec) -> bytes:
    digits = f"{number % 2**64:0{max(spec.precision or 0, 4)}X}"
    character = chr(number) if spec.sharp and 0 <= number <= 0x10FFFF else ""
    shown = f" '{character}'" if character and character.isprintable() else ""
    return _pad(f"U+{digits}{shown}", spec, zero=False)


def _format_digits(number: int, spec: Spec) -> bytes:
    sign = "-" if number < 0 else "+" if spec.plus else " " if spec.space else ""
    if spec.precision == 0 and number == 0:
        return _pad("", spec, zero=False)
    minimum = spec.precision or 0
    if spec.precision is None and spec.zero and not spec.minus and spec.width:
        minimum = spec.width - len(sign)
    digits = f"{abs(number):{_BASES[spec.verb]}}".rjust(minimum, "0")
    return _pad(sign + _base_prefix(digits, spec) + digits, spec, zero=False)


def _base_prefix(digits: str, spec: Spec) -> str:
    octal = "0" if spec.sharp and spec.verb in "oO" and not digits.startswith("0") else ""
    if spec.verb == "O":
        return f"0o{octal}"
    return f"0{spec.verb}" if spec.sharp and spec.verb in "bxX" else octal


# Floats.


def _format_float(number: float, spec: Spec) -> bytes | None:
    if spec.verb not in "veEfFgGbxX":
        return None
    digits = _float_digits(number, spec)
    if spec.sharp and spec.verb != "b":
        digits = _with_point(digits, spec)
    sign = "-" if digits.startswith("-") else "+" if spec.plus else " " if spec.space else ""
    digits = digits.removeprefix("-")
    if spec.zero and not spec.minus:
        digits = digits.rjust((spec.width or 0) - len(sign), "0")
    return _pad(sign + digits, spec)


def _float_digits(number: float, spec: Spec) -> str:
    """The number with its sign, if that is a minus."""
    verb, precision = spec.verb, spec.precision
    match verb:
        case "x" | "X":
            digits = _hexadecimal(number, precision)
            return digits.upper() if verb == "X" else digits
        case "b":
            return _binary(number)
        case "v" | "g" | "G":
            digits = _shortest_float(number) if precision is None else f"{number:.{precision}g}"
            return digits.upper() if verb == "G" else digits
        case _:
            return f"{number:.{6 if precision is None else precision}{verb}}"


def _shortest_digits(number: float) -> tuple[str, str, int]:
    """Sign, digits, and how many digits stand before the decimal point."""
    mantissa, exponent = f"{abs(number)!r}e0".split("e")[:2]
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    sign = "-" if math.copysign(1, number) < 0 else ""
    return (sign, digits.rstrip("0"), point) if digits else (sign, "0", 1)


def _plain(digits: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + digits
    whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
    return f"{whole}.{fraction}" if fraction else whole


def _binary(number: float) -> str:
    """A mantissa of 53 bits, fewer for numbers near 0, and a power of two."""
    exponent = max(math.frexp(number)[1] - _MANTISSA_BITS, _EXPONENT_MINIMUM) if number else _EXPONENT_MINIMUM
    sign = "-" if math.copysign(1, number) < 0 else ""
    return f"{sign}{int(math.ldexp(abs(number), -exponent))}p{exponent:+d}"


def _hexadecimal(number: float, precision: int | None) -> str:
    """`0x1.8p+01`: one bit before the point, as many digits as needed or asked for, rounded half to even."""
    sign = "-" if math.copysign(1, number) < 0 else ""
    mantissa, exponent = math.frexp(abs(number))
    # 52 bits after the leading one are 13 digits.
    scaled, exponent = int(math.ldexp(mantissa, _MANTISSA_BITS)), exponent - 1 if number else 0
    if precision is not None and precision < 13:
        drop = 4 * (13 - precision)
        kept, rest = divmod(scaled, 1 << drop)
        half = 1 << (drop - 1)
        kept += rest > half or (rest == half and kept % 2 == 1)
        scaled = kept << drop
        if scaled >> _MANTISSA_BITS:
            scaled, exponent = scaled >> 1, exponent + 1
    fraction = f"{scaled & ((1 << 52) - 1):013x}"
    fraction = fraction.rstrip("0") if precision is None else fraction.ljust(precision, "0")[:precision]
    return f"{sign}0x{scaled >> 52}{'.' if fraction else ''}{fraction}p{exponent:+03d}"


def _with_point(digits: str, spec: Spec) -> str:
    """What the sharp flag does: always a decimal point, and with some verbs zeros up to the precision."""
    mark = re.search("[pP]" if spec.verb in "xX" else "[eE]", digits)
    end = mark.start() if mark else len(digits)
    head, tail = digits[:end], digits[end:]
    unsigned = head.removeprefix("-")
    count = len(unsigned.replace(".", "").lstrip("0")) + (unsigned == "0")
    wanted = (6 if spec.precision is None else spec.precision) if spec.verb in "vgGx" else 0
    return head + ("" if "." in head else ".") + "0" * (wanted - count) + tail
