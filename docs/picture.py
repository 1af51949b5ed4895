"""Makes `demo.svg`, the README's picture, from a real run of the demonstration: `make picture`."""

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
_TEMPORARY = re.compile(r"/\S*/avenor-demo-[a-z0-9_]+")


def record() -> str:
    """What the demonstration prints on a terminal.

    Raises:
        SystemExit: It failed.
    """
    output: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        output.append(data)
        return data

    if pty.spawn([sys.executable, str(DOCS / "demo.py")], read) != 0:
        sys.exit("the demonstration failed: no picture was made")
    return b"".join(output).decode().replace("\r\n", "\n")


def main() -> None:
    """Runs the demonstration and draws it."""
    text = Text.from_ansi(_TEMPORARY.sub("demo", record()))
    console = Console(record=True, width=118, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(text)
    console.save_svg(str(DOCS / "demo.svg"), title="make demo")


if __name__ == "__main__":
    main()
