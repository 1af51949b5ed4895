"""The supervisor's own log: structlog on stderr, configured once; its level can be changed while it runs.

Prompts, permission texts and environments are never logged; ids, names of methods and times are.
"""

import logging
import sys
from typing import Final, TextIO, cast

import structlog

from avenor.host.unhurried import UnhurriedFile
from avenor.protocol.methods import LogLevel

_LEVELS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Now:
    level: LogLevel = "info"


_now: Final = _Now()

# The class of every logger. Its methods are exchanged when the level changes: one that was bound or cached before has
# them too, and what is not logged costs nothing.
_AdjustableLogger: Final = type("AdjustableLogger", (structlog.make_filtering_bound_logger(logging.DEBUG),), {})


def configure_logs(level: LogLevel, log_format: str | None) -> None:
    """Log to stderr from here on.

    Args:
        level: The least important messages to keep.
        log_format: `console` or `json`; None is console on a terminal, else json.
    """
    is_console = log_format == "console" or (log_format is None and sys.stderr.isatty())
    set_log_level(level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(is_console=is_console),
        ],
        wrapper_class=_AdjustableLogger,
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", UnhurriedFile(sys.stderr.fileno()))),
        cache_logger_on_first_use=False,
    )


def log_level() -> LogLevel:
    """The least important messages that are kept now."""
    return _now.level


def set_log_level(level: LogLevel) -> None:
    """Keep messages from this level on, of every logger that there is, at once."""
    _now.level = level
    filtering = structlog.make_filtering_bound_logger(_LEVELS[level])
    for name in _LEVELS:
        setattr(_AdjustableLogger, name, getattr(filtering, name))


def _renderers(*, is_console: bool) -> list[structlog.typing.Processor]:
    if is_console:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
