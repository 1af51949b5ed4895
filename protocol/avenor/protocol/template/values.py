"""The values that a template works with, and what Go says of them.

A Go string is `bytes`: lengths and indexes count UTF-8 bytes, and a slice may cut a character in two. Go's nil, and
the missing value of a template that was called without one, are None.
"""

import re
from collections.abc import Mapping
from typing import assert_never

import msgspec

# Go's int is 64 bits on every machine that matters.
INT_MINIMUM = -(2**63)
INT_MAXIMUM = 2**63 - 1

_SURROGATE = re.compile("[\ud800-\udfff]")


class Byte(int):
    """Go's uint8, which is what a string has at an index."""


class Root(msgspec.Struct, frozen=True):
    """The struct that a prompt's dot is at first, with its fields in order."""

    fields: Mapping[str, "Value"]


Present = bytes | int | float | Root
Value = Present | None


def go_string(text: str) -> bytes:
    """The Go string of a text; a lone surrogate, which UTF-8 cannot say, becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", text).encode()


def runes(string: bytes) -> str:
    """The characters of a Go string. Like in Go, each byte that is no UTF-8 is one by itself: as a surrogate."""
    return string.decode("utf-8", "surrogateescape")


def from_runes(text: str) -> bytes:
    """The Go string of characters that `runes` gave."""
    return text.encode("utf-8", "surrogateescape")


def type_name(value: Present) -> str:
    """What Go calls the value's type."""
    match value:
        case bytes():
            return "string"
        case bool():
            return "bool"
        case Byte():
            return "uint8"
        case int():
            return "int"
        case float():
            return "float64"
        case Root():
            return "struct"
        case _:
            assert_never(value)


def is_true(value: Value) -> bool:
    """Whether `if` takes the value for true: what is not zero, empty or nil; the root always."""
    return isinstance(value, Root) or bool(value)
