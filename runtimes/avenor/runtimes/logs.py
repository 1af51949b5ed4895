"""The runtime's own log on stderr: JSON lines, or short lines for a person at a terminal."""

import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import msgspec
import structlog

from avenor.host.unhurried import UnhurriedFile

_encode = msgspec.json.Encoder(enc_hook=str).encode


def configure_logs(*, level: str, is_terminal: bool) -> None:
    """Sets structlog up for this process.

    Args:
        level: debug, info, warning or error; what is below is dropped.
        is_terminal: Whether a person reads along.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render_line if is_terminal else _render_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", UnhurriedFile(sys.stderr.fileno()))),
        cache_logger_on_first_use=False,
    )


def _render_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    return _encode(event).decode()


def _render_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    shown = " ".join(
        f"{key}={value}" for key, value in event.items() if key not in ("event", "level", "timestamp", "exception")
    )
    trace = f"\n{event['exception']}" if "exception" in event else ""
    return f"avenor: {event['event']} {shown}{trace}"
