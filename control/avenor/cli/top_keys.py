"""Keys from the bytes that a terminal sends for them. Pure."""

import re
from typing import Final

_NAMES: Final = {
    b"q": "quit",
    b"j": "down",
    b"k": "up",
    b"\r": "open",
    b"\n": "open",
    b"?": "help",
    b"r": "again",
    b"e": "ended",
    b"g": "first",
    b"G": "last",
    b"\x1b": "back",
    b"\x7f": "back",
}
_ARROWS: Final = {b"A": "up", b"B": "down", b"H": "first", b"F": "last", b"D": "back", b"C": "open"}
_TILDES: Final = {b"1": "first", b"4": "last", b"5": "page up", b"6": "page down", b"7": "first", b"8": "last"}
# A whole sequence, one that may still become one, or any other byte.
_TOKEN: Final = re.compile(rb"\x1b[\[O]([0-9;]*)([@-~])|\x1b(?:[\[O][0-9;]*)?$|[\x00-\xff]", re.DOTALL)
_UNFINISHED_LIMIT_BYTES: Final = 16


class Keys:
    """Turns bytes into the names of keys; what is no key of ours is left out."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_waiting(self) -> bool:
        """Whether the last bytes may be the Escape key, or the beginning of another."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete."""
        data = self._rest + data
        self._rest = b""
        names: list[str] = []
        for token in _TOKEN.finditer(data):
            text = token[0]
            if text.startswith(b"\x1b") and token[2] is None and len(text) <= _UNFINISHED_LIMIT_BYTES:
                self._rest = text
                break
            names.append(_name(text, token[1], token[2]))
        return [name for name in names if name]

    def flush(self) -> list[str]:
        """What was meant when nothing more comes: Escape by itself."""
        rest, self._rest = self._rest, b""
        return ["back"] if rest == b"\x1b" else []


def _name(text: bytes, numbers: bytes | None, final: bytes | None) -> str:
    if final is None:
        return _NAMES.get(text, "")
    if final == b"~":
        return _TILDES.get((numbers or b"").partition(b";")[0], "")
    return _ARROWS.get(final, "")
