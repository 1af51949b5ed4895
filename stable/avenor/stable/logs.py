"""The supervisor's own log: structlog on stderr, configured once.

Prompts, permission texts and environments are never logged; ids, names of methods and times are.
"""

import logging
import os
import select
import sys
from typing import Final, Literal, TextIO, cast

import structlog

# A pipe that poll calls writable takes this much without waiting (pipe(7), POSIX PIPE_BUF).
_PIECE_BYTES: Final = select.PIPE_BUF

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: Literal["debug", "info", "warning", "error"], log_format: str | None) -> None:
    """Log to stderr from here on.

    Args:
        level: The least important messages to keep.
        log_format: `console` or `json`; None is console on a terminal, else json.
    """
    is_console = log_format == "console" or (log_format is None and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(is_console=is_console),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", UnhurriedFile(sys.stderr.fileno()))),
        cache_logger_on_first_use=False,
    )


class UnhurriedFile:
    """A place for log lines that never holds the supervisor up and never breaks it.

    A line that nobody takes (a pipe that is full, or whose reader is gone; a full disk) is dropped, or cut short.

    Args:
        fd: A descriptor that may be shared with others, so that its own blocking mode is not ours to change.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write as much of the text as can be written now."""
        rest = text.encode(errors="backslashreplace")
        try:
            while rest and self._poller.poll(0):
                rest = rest[os.write(self._fd, rest[:_PIECE_BYTES]) :]
        except OSError:
            return

    def flush(self) -> None:
        """Nothing is ever held back."""


def _renderers(*, is_console: bool) -> list[structlog.typing.Processor]:
    if is_console:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
