"""Makes `demo.svg`, the README's moving picture, from a real run of the demonstration: `make picture`.

Each line appears when it did. The file asks no other host for anything. Who wants no motion, or has a viewer that knows
no animation, sees the last picture at once.
"""

import os
import pty
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
_TEMPORARY = re.compile(r"/\S*/avenor-demo-[a-z0-9_]+")
_PAINT = re.compile(r"\x1b\[(\d+)m")
_COLUMNS = 118
_LINE_HEIGHT, _CHARACTER_WIDTH, _MARGIN, _TITLE_HEIGHT = 19.0, 8.4, 18.0, 34.0
# Nobody wants to look at nothing for longer, and nobody can read faster.
_LONGEST_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS = 1.5, 0.06
_COLOURS = {"31": "#f2777a", "32": "#a6cc70", "33": "#e6c15c", "35": "#c594c5", "36": "#6ab8c9"}


class Line(NamedTuple):
    """A line of the terminal: when it came, in seconds from the first, and what is in it, colours included."""

    at: float
    text: str


def record() -> list[Line]:
    """What the demonstration prints on a terminal.

    Raises:
        SystemExit: It failed.
    """
    lines: list[Line] = []
    rest = b""
    first: float | None = None

    def read(descriptor: int) -> bytes:
        nonlocal rest, first
        data = os.read(descriptor, 65536)
        now = time.monotonic()
        first = now if first is None else first
        *whole, rest = (rest + data).split(b"\n")
        lines.extend(Line(now - first, _TEMPORARY.sub("demo", line.decode().rstrip("\r"))) for line in whole)
        return data

    if pty.spawn([sys.executable, str(DOCS / "demo.py")], read) != 0:
        sys.exit("the demonstration failed: no picture was made")
    return lines


def draw(recorded: list[Line], title: str) -> str:
    """The recording as an SVG."""
    lines = [row for line in _paced(recorded) for row in _wrapped(line)]
    width = _COLUMNS * _CHARACTER_WIDTH + 2 * _MARGIN
    height = _TITLE_HEIGHT + len(lines) * _LINE_HEIGHT + _MARGIN
    rows = "\n".join(_row(number, line) for number, line in enumerate(lines) if line.text.strip())
    colours = "".join(f".c{code}{{fill:{colour}}}" for code, colour in _COLOURS.items())
    box = f"0 0 {width:.0f} {height:.0f}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-label="{escape(title)}">
<style>
text{{font:14px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d0d4d9;white-space:pre}}
.title{{fill:#8b929c}}{colours}
g{{animation:come .15s both}}
@keyframes come{{from{{opacity:0}}}}
@media (prefers-reduced-motion:reduce){{g{{animation:none}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="#1d2128"/>
<text class="title" x="50%" y="22" text-anchor="middle">{escape(title)}</text>
{rows}
</svg>
"""


def _paced(lines: list[Line]) -> Iterator[Line]:
    """The same lines, with pauses that one can follow."""
    at = before = 0.0
    for line in lines:
        at += min(max(line.at - before, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        before = line.at
        yield Line(at, line.text)


def _wrapped(line: Line) -> list[Line]:
    plain = _PAINT.sub("", line.text)
    if len(plain) <= _COLUMNS:
        return [line]
    # A painted word is at the beginning, and shorter than a row.
    indent = len(line.text) - len(plain)
    rows = textwrap.wrap(line.text, _COLUMNS + indent, subsequent_indent="    ", drop_whitespace=False)
    return [Line(line.at, row) for row in rows]


def _row(number: int, line: Line) -> str:
    y = _TITLE_HEIGHT + (number + 0.8) * _LINE_HEIGHT
    return f'<g style="animation-delay:{line.at:.2f}s">{_text(line.text, y)}</g>'


def _text(text: str, y: float) -> str:
    """The pieces of a row, each where its column is: fonts differ, and columns must not."""
    pieces: list[str] = []
    column, colour = 0, "0"
    for number, part in enumerate(_PAINT.split(text)):
        if number % 2:
            colour = part
            continue
        if part.strip():
            blank = len(part) - len(part.lstrip())
            x = _MARGIN + (column + blank) * _CHARACTER_WIDTH
            length = len(part.strip()) * _CHARACTER_WIDTH
            name = f' class="c{colour}"' if colour in _COLOURS else ""
            pieces.append(
                f'<text{name} x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" '
                f'lengthAdjust="spacingAndGlyphs">{escape(part.strip())}</text>'
            )
        column += len(part)
    return "".join(pieces)


def main() -> None:
    """Runs the demonstration and draws it."""
    (DOCS / "demo.svg").write_text(draw(record(), "make demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
