"""Text that an agent writes outside the protocol: cut into lines, cleaned, and kept from flooding the log. Pure."""

import re
from typing import Final

LINE_LIMIT_BYTES = 8192  # A longer line of stderr comes in pieces of this size; log lines are rarely over 2 KiB.

# Control sequences of ECMA-48 (colours, cursor), operating system commands (titles, links) and two-character escapes.
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>78])")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean(raw: bytes, limit_bytes: int = LINE_LIMIT_BYTES) -> str:
    """A line for people: invalid UTF-8 replaced, terminal sequences and control characters gone, the end cut off.

    Empty if nothing is left to read.
    """
    kept = raw[:limit_bytes].decode("utf-8", "replace")
    text = _UNPRINTABLE.sub("", _ESCAPES.sub("", kept)).rstrip()
    if text and len(raw) > limit_bytes:
        text += f" … ({len(raw) - limit_bytes} more bytes)"
    return text if text.strip() else ""


def without_escapes(line: bytes) -> bytes:
    """A line without the terminal sequences and byte order mark that a banner may have left before a message."""
    return (
        _ESCAPES.sub("", line.decode("utf-8", "surrogateescape")).lstrip("\ufeff \t").encode("utf-8", "surrogateescape")
    )


class TextLines:
    """Cuts a stream of text into cleaned lines; blank ones are left out.

    A line over the limit comes in pieces, so that nothing is held back for long and nothing is lost.
    """

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *whole, self._partial = (self._partial + data).split(b"\n")
        pieces = [piece for line in whole for piece in self._cut(line)]
        *full, self._partial = self._cut(self._partial) or [b""]
        return self._cleaned(pieces + full)

    def rest(self) -> list[str]:
        """The unfinished line at the end of the stream, if there is one."""
        partial, self._partial = self._partial, b""
        return self._cleaned([partial])

    def _cut(self, line: bytes) -> list[bytes]:
        return [line[start : start + self._limit] for start in range(0, len(line), self._limit)]

    def _cleaned(self, lines: list[bytes]) -> list[str]:
        return [text for text in map(clean, lines) if text]


class Gate:
    """Lets a burst of lines through, then a steady rate, and counts what it kept back.

    Args:
        burst: Lines that may come at once.
        per_second: The rate after that.
    """

    def __init__(self, burst: int = 500, per_second: float = 50.0) -> None:
        self._burst = float(burst)
        self._rate = per_second
        self._tokens = float(burst)
        self._last = 0.0
        self._kept_back = 0

    def admit(self, lines: list[str], now: float) -> list[str]:
        """Those of the lines that may pass at `now` (seconds, monotonic), with a line that tells what was left out."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._last) * self._rate)
        self._last = now
        passing: list[str] = []
        for line in lines:
            if self._tokens < 1.0:
                self._kept_back += 1
                continue
            self._tokens -= 1.0
            passing += [*self.summary(), line]
        return passing

    def summary(self) -> list[str]:
        """A line that tells how many were kept back since the last one; nothing if none were."""
        count, self._kept_back = self._kept_back, 0
        return [f"({count} lines left out: too many at once)"] if count else []
