"""Go's ways to write a string inside another language: quoted, in HTML, in JavaScript, in a URL."""

import re
from typing import Final
from urllib.parse import quote_plus

from avenor.protocol.template.values import from_runes, runes

_NAMED = {7: r"\a", 8: r"\b", 9: r"\t", 10: r"\n", 11: r"\v", 12: r"\f", 13: r"\r", 92: r"\\"}
_JS_NAMED = {"\\": r"\\", "'": r"\'", '"': r"\""}
_JS_CODED = "<>&="
_HTML = (
    (b"&", b"&amp;"),
    (b"<", b"&lt;"),
    (b">", b"&gt;"),
    (b'"', b"&#34;"),
    (b"'", b"&#39;"),
    (b"\0", b"\xef\xbf\xbd"),
)
# What a raw string cannot hold: control characters other than tabs, backquotes, a byte order mark, what is no UTF-8.
_NOT_RAW = re.compile("[\x00-\x08\x0a-\x1f\x7f`\ufeff\udc80-\udcff]")
# Where `runes` puts bytes that are no UTF-8.
_STRAY: Final = range(0xDC80, 0xDD00)
_STRAY_OFFSET = 0xDC00


def quote_string(string: bytes, *, is_ascii: bool = False) -> bytes:
    """The string as a Go literal in double quotes."""
    return from_runes('"' + runes(string).translate(_Quoting('"', is_ascii=is_ascii)) + '"')


def quote_character(character: str, *, is_ascii: bool = False) -> bytes:
    """The character as a Go literal in single quotes."""
    return from_runes("'" + character.translate(_Quoting("'", is_ascii=is_ascii)) + "'")


def can_be_raw(string: bytes) -> bool:
    """Whether the string can stand between backquotes as it is."""
    return _NOT_RAW.search(runes(string)) is None


def escape_html(string: bytes) -> bytes:
    """The string for HTML text and for attributes in quotes."""
    for plain, escaped in _HTML:
        string = string.replace(plain, escaped)
    return string


def escape_js(string: bytes) -> bytes:
    """The string for the inside of a JavaScript string, also within HTML."""
    return from_runes(runes(string).translate(_JavaScript()))


def escape_query(string: bytes) -> bytes:
    """The string for a value in the query of a URL."""
    return quote_plus(string).encode()


class _Quoting(dict[int, str]):
    """A table for `str.translate`, filled as characters come: far faster on long strings than a call for each.

    One is made for each string, or any text could fill it for good.
    """

    def __init__(self, quote: str, *, is_ascii: bool) -> None:
        super().__init__(_NAMED | {ord(quote): f"\\{quote}"})
        self._is_ascii = is_ascii

    def __missing__(self, code: int) -> str:
        self[code] = escaped = self._escape(code)
        return escaped

    def _escape(self, code: int) -> str:
        character = chr(code)
        if character.isprintable() and (code < 0x80 or not self._is_ascii):
            return character
        if code in _STRAY:
            return f"\\x{code - _STRAY_OFFSET:02x}"
        if code < 0x20 or code == 0x7F:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _JavaScript(dict[int, str]):
    """The like for JavaScript; bytes that are no UTF-8 go through."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        escaped = _JS_NAMED.get(character)
        if escaped is None:
            is_plain = code in _STRAY or (character.isprintable() and character not in _JS_CODED)
            escaped = character if is_plain else f"\\u{code:04X}"
        self[code] = escaped
        return escaped
