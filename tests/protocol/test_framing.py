"""Lines out of a byte stream: `avenor.protocol.framing`."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.framing import DEFAULT_LIMIT_BYTES, LineSplitter, Oversized

LIMIT = 8
STREAMS = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bcd", b"12345678", "é".encode(), b"\xff"])).map(
    b"".join
)


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream in pieces; cuts beyond its end give empty pieces."""
    edges = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def frames_of(pieces: list[bytes], limit_bytes: int = LIMIT) -> tuple[list[bytes | None], bytes]:
    """All frames and the rest, with None for each over-long line, since its size seen depends on the cuts."""
    splitter = LineSplitter(limit_bytes)
    frames = [frame for piece in pieces for frame in splitter.feed(piece)]
    return [frame if isinstance(frame, bytes) else None for frame in frames], splitter.rest()


def expected(stream: bytes) -> tuple[list[bytes | None], bytes]:
    """The same by the plainest means."""
    *lines, tail = stream.split(b"\n")
    frames: list[bytes | None] = [None if len(line) > LIMIT else line.removesuffix(b"\r") for line in lines]
    return ([*frames, None], b"") if len(tail) > LIMIT else (frames, tail)


@given(stream=STREAMS, cuts=st.lists(st.integers(0, 60)))
def test_any_cut_gives_the_same_frames(stream: bytes, cuts: list[int]) -> None:
    """However the stream arrives, the frames are those of the whole stream."""
    assert frames_of(pieces_of(stream, cuts)) == expected(stream)


@given(stream=STREAMS)
def test_single_bytes_give_the_same_frames(stream: bytes) -> None:
    """A stream that comes byte by byte gives the frames of the whole stream."""
    assert frames_of([stream[i : i + 1] for i in range(len(stream))]) == expected(stream)


@given(lines=st.lists(st.binary(max_size=LIMIT).filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))))
def test_joined_lines_come_out_again(lines: list[bytes]) -> None:
    """Splitting undoes joining."""
    assert frames_of([b"".join(line + b"\n" for line in lines)]) == (lines, b"")


def test_one_carriage_return_is_cut_off_and_no_more() -> None:
    """Only the return of a CR LF pair belongs to the line end."""
    assert frames_of([b"a\r\r\nb\rc\n\r\n"]) == ([b"a\r", b"b\rc", b""], b"")


def test_a_line_of_exactly_the_limit_passes() -> None:
    """The limit itself is allowed, one byte more is not."""
    assert frames_of([b"12345678\n"]) == ([b"12345678"], b"")
    assert frames_of([b"123456789\n"]) == ([None], b"")


def test_an_over_long_line_is_reported_before_its_end_and_once() -> None:
    """The report comes with the byte that breaks the limit; what follows is skipped, then lines are read again."""
    splitter = LineSplitter(4)
    assert splitter.feed(b"123") == []
    assert splitter.feed(b"45") == [Oversized(5)]
    assert splitter.feed(b"6" * 1000) == []
    assert splitter.feed(b"7\nok\n") == [b"ok"]


def test_a_skipped_line_holds_no_memory() -> None:
    """While an over-long line is skipped nothing of it is kept."""
    splitter = LineSplitter(4)
    splitter.feed(b"12345")
    splitter.feed(b"6")
    assert splitter.pending == 0


def test_pending_counts_the_unfinished_line() -> None:
    """`pending` is the size of the unfinished line only."""
    splitter = LineSplitter()
    splitter.feed(b"whole\npar")
    splitter.feed(b"t")
    assert splitter.pending == 4


def test_the_rest_empties_the_splitter() -> None:
    """At the end of the stream the torn line comes out as it is, once."""
    splitter = LineSplitter()
    splitter.feed(b"a\ntorn\r")
    assert splitter.rest() == b"torn\r"
    assert (splitter.rest(), splitter.pending) == (b"", 0)


def test_after_the_rest_of_a_skipped_line_reading_starts_anew() -> None:
    """`rest` also ends the skipping of an over-long line."""
    splitter = LineSplitter(2)
    splitter.feed(b"123")
    assert splitter.rest() == b""
    assert splitter.feed(b"ab\n") == [b"ab"]


@pytest.mark.parametrize("size", [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 3 * 1024 * 1024, DEFAULT_LIMIT_BYTES])
def test_long_lines_pass_whole_through_chunks_of_64_kib(size: int) -> None:
    """Lines around the usual read size, and up to the default limit, come out complete."""
    stream = b"x" * size + b"\nnext\n"
    chunks = [stream[i : i + 65536] for i in range(0, len(stream), 65536)]
    assert frames_of(chunks, DEFAULT_LIMIT_BYTES) == ([b"x" * size, b"next"], b"")
