"""Durations as text: `avenor.protocol.durations`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("3ms", 0.003),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("7d", 604800),
        ("1d12h", 129600),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("2.s", 2),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("10μs", 1e-5),
        ("5ns", 5e-9),
        ("1m1h", 3660),
        ("90", 90),
        ("1.5", 1.5),
        ("0", 0),
        ("0s", 0),
        (" 30s\n", 30),
        (45, 45),
        (0.5, 0.5),
        (0, 0),
    ],
)
def test_durations_mean_seconds(text: str | float, seconds: float) -> None:
    """Go's spellings, days, and bare numbers give their seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "soon", "s", "5x", "5 s", "1h30", "1h 30m", "1,5s", "5S", "1e3", "1_000", "0x10", "٣s", "+5s", "--5s",
        "nan", "inf", "1..5s", ".s", "5s,", math.nan, math.inf, -math.inf, True, 10**400, "9" * 400, "9" * 400 + "h",
        ("9" * 308 + "s") * 20,
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused(value: str | float) -> None:
    """Bad text and values that are not finite are refused."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(value)


@pytest.mark.parametrize("value", ["-5s", "-1", "-1h30m", " -5s ", -1, -0.001])
def test_negative_durations_are_refused_as_negative(value: str | float) -> None:
    """The message says what is wrong with a duration that would otherwise do."""
    with pytest.raises(ValueError, match="negative"):
        parse_duration(value)


def test_the_refusal_names_the_value() -> None:
    """The message shows the value, and only the beginning of a huge one."""
    with pytest.raises(ValueError, match="'5 parsecs'"):
        parse_duration("5 parsecs")
    with pytest.raises(ValueError, match="…") as caught:
        parse_duration("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_a_number_too_long_to_print_is_refused_all_the_same() -> None:
    """Python refuses to print an int of many thousand digits; the refusal does without."""
    with pytest.raises(ValueError, match="thousands of digits is not a finite duration"):
        parse_duration(10**5000)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.0001, "0.1ms"),
        (0.0000001, "0s"),
        (0.9999999, "1s"),
        (1.5, "1.5s"),
        (1.05, "1.05s"),
        (59.9999999, "1m"),
        (60, "1m"),
        (90, "1m30s"),
        (3605, "1h5s"),
        (5400, "1h30m"),
        (86400, "1d"),
        (604800, "7d"),
        (90061.001, "1d1h1m1.001s"),
    ],
)
def test_durations_are_written_short(seconds: float, text: str) -> None:
    """Parts that are zero are left out, fractions have no trailing zeros."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf])
def test_what_is_no_duration_is_not_written(seconds: float) -> None:
    """Writing refuses what reading would refuse."""
    with pytest.raises(ValueError, match="duration"):
        format_duration(seconds)


@given(st.integers(0, 10**15).map(lambda micros: micros / 1e6))
def test_reading_undoes_writing(seconds: float) -> None:
    """A written duration is read back to within the resolution."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6, rel=1e-15)


@given(st.floats(min_value=0, max_value=1e300))
def test_every_finite_duration_can_be_written(seconds: float) -> None:
    """Writing is total on what reading returns."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6, rel=1e-12)


@given(st.text(alphabet="0123456789.smhdun -+e", max_size=12))
def test_any_text_is_a_finite_duration_or_refused(text: str) -> None:
    """Nothing but a finite number of seconds or a `ValueError` comes out."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0
