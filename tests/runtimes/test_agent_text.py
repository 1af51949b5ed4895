"""Text that agents write outside the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.runtimes.backends.agent_text import Gate, TextLines, clean, without_escapes
from avenor.runtimes.backends.base import StderrTail


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"\x1b[31mred\x1b[0m\r", "red"),
        (b"\x1b]0;title\x07\x1b[2Khi", "hi"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"  indented\tkept  ", "  indented\tkept"),
        (b"bad \xff\xfe utf", "bad \ufffd\ufffd utf"),
        (b"bell\x07 and \x00null", "bell and null"),
        (b"\x1b[0m \t", ""),
        (b"", ""),
    ],
)
def test_a_line_is_made_readable(raw: bytes, text: str) -> None:
    """Colours and control characters go, broken UTF-8 is marked, blank lines are nothing."""
    assert clean(raw) == text


def test_a_long_line_is_cut_and_says_so() -> None:
    """The log gets the beginning and the size of the rest."""
    assert clean(b"x" * 30, limit_bytes=10) == "x" * 10 + " … (20 more bytes)"


def test_a_message_behind_a_colour_reset_is_found() -> None:
    """A banner may leave its escape sequence on the line of the first message; other bytes stay as they were."""
    assert without_escapes(b'\x1b[0m\xef\xbb\xbf {"a":"\xff"}') == b'{"a":"\xff"}'


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 16))
def test_any_cut_of_the_stream_gives_the_same_lines(lines: list[bytes], size: int) -> None:
    """However the pipe cuts it, stderr reads the same."""
    stream = b"\n".join(lines)
    whole, cut = TextLines(limit_bytes=16), TextLines(limit_bytes=16)
    expected = [*whole.feed(stream), *whole.rest()]
    got = [text for start in range(0, len(stream), size) for text in cut.feed(stream[start : start + size])]
    assert [*got, *cut.rest()] == expected


def test_a_line_over_the_limit_comes_in_pieces() -> None:
    """Nothing is held back for a newline that may never come, and nothing is lost."""
    lines = TextLines(limit_bytes=4)
    assert lines.feed(b"abcdefgh") + lines.feed(b"ij") + lines.feed(b"\nk") + lines.rest() == [
        "abcd",
        "efgh",
        "ij",
        "k",
    ]


def test_a_flood_is_let_through_at_a_steady_rate_and_counted() -> None:
    """After the burst, one line a tick; what is left out is told with the next line that passes."""
    gate = Gate(burst=2, per_second=1.0)
    assert gate.admit(["a", "b", "c", "d"], now=100.0) == ["a", "b"]
    assert gate.admit(["e"], now=100.5) == []
    assert gate.admit(["f", "g"], now=101.0) == ["(3 lines left out: too many at once)", "f"]
    assert gate.summary() == ["(1 lines left out: too many at once)"]
    assert gate.summary() == []


def test_the_tail_keeps_the_newest_lines_within_its_limit() -> None:
    """A start error shows the end of stderr, never a megabyte of it."""
    tail = StderrTail(limit_chars=10)
    assert (tail.text(), tail.suffix()) == ("", "")
    for line in ["first", "abc", "defg"]:
        tail.add(line)
    assert tail.text() == "abc\ndefg"
    assert tail.suffix() == "; its stderr ends with:\nabc\ndefg"
    tail.add("x" * 50)
    assert tail.text() == "x" * 10
