"""What a terminal can show: whether it is one, its colours and its width."""

import os

from avenor.cli.output import is_terminal

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Style:
    """Paints words; a plain one leaves them as they are."""

    def __init__(self, *, coloured: bool) -> None:
        self.coloured = coloured

    def paint(self, text: str, *colours: str) -> str:
        """The text in these colours."""
        if not self.coloured or not colours or not text:
            return text
        return f"\x1b[{';'.join(CODES[colour] for colour in colours)}m{text}\x1b[0m"


def style_for(fd: int) -> Style:
    """Colours for a terminal, unless NO_COLOR is set or it is a dumb one."""
    wanted = not os.environ.get("NO_COLOR") and not is_dumb()
    return Style(coloured=wanted and is_terminal(fd))


def is_dumb() -> bool:
    """Whether the terminal can do no more than show text line by line."""
    return os.environ.get("TERM") == "dumb"


def width_of(fd: int) -> int:
    """The columns of a terminal: 80 where it does not say."""
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80
