"""Durations as people write them: Go style (`250ms`, `1h30m`), with days, and bare numbers as seconds."""

import math
import re

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")

# Small units divide, since 3 / 1000 is the float nearest to the value and 3 * 0.001 need not be. Like Go, we take
# the micro sign and the Greek letter alike.
_PER_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "ms": 1e3}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: str | int | float) -> float:
    """The seconds that a duration means.

    Args:
        value: Text such as `250ms`, `30s`, `1h30m`, `1.5h`, `7d` or `90`; a number, alone or as text, is
            seconds. Blanks around the text are ignored.

    Raises:
        ValueError: It is no duration, is negative, or is not finite. The message names the value.
    """
    seconds = _parse_text(value) if isinstance(value, str) else _parse_number(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{_shown(value)} is not a finite duration")
    if seconds < 0:
        raise ValueError(f"{_shown(value)} is negative; a duration is 0 or more")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest such text for a duration: `1h30m`, `1.5s`, `250ms`, `0s`.

    `parse_duration` reads it back to within half a microsecond, which is the resolution.

    Raises:
        ValueError: It is negative or not finite.
    """
    whole_seconds = int(parse_duration(seconds))
    micros = round((seconds - whole_seconds) * 1_000_000)
    if micros == 1_000_000:
        whole_seconds, micros = whole_seconds + 1, 0
    if not whole_seconds and micros:
        return f"{_decimal(micros, 1000)}ms"
    minutes, last = divmod(whole_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if count]
    if last or micros or not parts:
        parts.append(f"{_decimal(last * 1_000_000 + micros, 1_000_000)}s")
    return "".join(parts)


def _parse_text(value: str) -> float:
    text = value.strip()
    if text.startswith("-") and _is_duration(text[1:]):
        raise ValueError(f"{_shown(value)} is negative; a duration is 0 or more")
    if not _is_duration(text):
        raise ValueError(f"{_shown(value)} is no duration; write it like 250ms, 30s, 5m, 1h30m or 7d")
    if _NUMBER.fullmatch(text):
        return float(text)
    return sum(_part_seconds(float(count), unit) for count, unit in _PART.findall(text))


def _is_duration(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text) or _WHOLE.fullmatch(text))


def _part_seconds(count: float, unit: str) -> float:
    return count / _PER_SECOND[unit] if unit in _PER_SECOND else count * _SECONDS[unit]


def _parse_number(value: int | float) -> float:
    # `True` is an int to Python, and a mistake in a config.
    if isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is no duration; give seconds, or text like 30s")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _decimal(count: int, divisor: int) -> str:
    """`count / divisor` exactly, for a divisor that is a power of ten, without trailing zeros."""
    whole, rest = divmod(count, divisor)
    digits = str(divisor + rest)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def _shown(value: str | int | float) -> str:
    """The value for an error message; cut, since a config may hold anything."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python agrees to print
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:80]}…"
