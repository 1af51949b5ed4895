"""Writing to stdout and stderr as the commands do: whole pieces, at once, whatever the locale."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ReaderGone(Exception):
    """Who read our output has left, as `| head` does."""


class OutputError(Exception):
    """The output cannot be written; the message says why."""


def write_out(data: bytes) -> None:
    """Write to stdout.

    Raises:
        ReaderGone: Nobody reads it any more.
        OutputError: It cannot be written.
    """
    try:
        _write(1, data)
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        raise OutputError(error.strerror or str(error)) from error


def write_text(text: str) -> None:
    """Write text to stdout as UTF-8; raises as `write_out`."""
    write_out(text.encode(errors="replace"))


def write_json(data: bytes) -> None:
    """Write JSON to stdout, on a terminal with nothing in it that acts on that; raises as `write_out`."""
    if is_terminal(1):
        from avenor.control.safetext import safe_json

        data = safe_json(data.decode(errors="replace")).encode()
    write_out(data)


def complain(text: str) -> None:
    """Write a line to stderr; where that is gone, nobody can be told."""
    try:
        _write(2, text.encode(errors="replace") + b"\n")
    except OSError:
        return


def is_terminal(fd: int) -> bool:
    """Whether a descriptor is an open terminal."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def pretty(result: bytes) -> bytes:
    """A JSON text with indentation, for people."""
    import json

    return dump(json.loads(result), indent=2)


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """A value as JSON; text stays readable, unless it holds what acts on a terminal or what UTF-8 cannot."""
    import json

    from avenor.control.safetext import safe_json

    separators = (",", ": ") if indent else (",", ":")
    return safe_json(json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)).encode()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another program made the terminal that we share non-blocking
            from select import select

            select([], [fd], [])
