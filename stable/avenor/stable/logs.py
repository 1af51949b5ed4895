"""The supervisor's own log: structlog on stderr, configured once.

Prompts, permission texts and environments are never logged; ids, names of methods and times are.
"""

import logging
import sys
from typing import Literal, TextIO, cast

import structlog

from avenor.host.unhurried import UnhurriedFile

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


def _renderers(*, is_console: bool) -> list[structlog.typing.Processor]:
    if is_console:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
