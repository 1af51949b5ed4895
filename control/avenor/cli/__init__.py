"""The `avenor` command.

`main` looks at the first word and imports only what that subcommand needs: `avenor control list` must start in a few
milliseconds, so nothing here, nor in `table`, `parsing`, `control` and what they import, may load trio, msgspec,
structlog, asyncio, argparse or typing.
"""

from __future__ import annotations

import sys

from avenor.cli.output import OutputError, ReaderGone, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit status.

    Args:
        argv: The words after the program's name; the process's own by default.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return 130
    except ReaderGone:
        return 141
    except OutputError as error:
        complain(f"avenor: cannot write the output: {error}")
        return 1


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else ""
    if first == "control":
        from avenor.cli.control import control

        return control(words[1:])
    from avenor.cli.front import front

    return front(words)
