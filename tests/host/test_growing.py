"""The lines of a log that grows, and what may happen to it meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.host import growing
from avenor.host.growing import GrowingLog


class Reader:
    """A log that is read, and what was told of it."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.told: list[str] = []
        self.log = GrowingLog(str(path), self.told.append)
        self.log.open(offset)

    def new(self) -> list[tuple[int, bytes | None]]:
        return [(line.number, line.data) for lines in self.log.batches() for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    """A reader of a log that has one line."""
    path.write_bytes(b"one\n")
    opened = Reader(path)
    assert opened.new() == [(1, b"one")]
    yield opened
    opened.log.close()
    opened.log.close()  # harmless twice


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_once_each_with_their_number(path: Path, reader: Reader) -> None:
    """Empty ones too."""
    add(path, b"two\n\n")
    assert reader.new() == [(2, b"two"), (3, b"")]
    assert reader.new() == []
    assert reader.log.offset == 9


def test_a_torn_line_waits_for_its_rest(path: Path, reader: Reader) -> None:
    """However often it is looked at."""
    add(path, b"tw")
    assert reader.new() == []
    assert reader.log.incomplete_bytes == 2
    add(path, b"")
    assert reader.new() == []
    add(path, b"o\nth")
    assert reader.new() == [(2, b"two")]
    assert (reader.log.offset, reader.log.incomplete_bytes) == (8, 2)


@given(pieces=st.lists(st.binary(max_size=20), max_size=12))
def test_any_growth_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """With the offsets at which they begin and end."""
    path = tmp_path_factory.mktemp("growing") / "log"
    path.write_bytes(b"")
    log = GrowingLog(str(path), pytest.fail)
    log.open()
    found: list[bytes] = []
    for piece in pieces:
        add(path, piece)
        for line in (each for lines in log.batches() for each in lines):
            found.append(path.read_bytes()[line.start : line.end - 1])
            assert line.data == found[-1]
    log.close()
    assert found == b"".join(pieces).split(b"\n")[:-1]


def test_lines_longer_than_a_chunk_are_whole(path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put together of as many chunks as they need."""
    monkeypatch.setattr(growing, "_CHUNK_BYTES", 7)
    add(path, b"x" * 50 + b"\nlast\n")
    assert reader.new() == [(2, b"x" * 50), (3, b"last")]


def test_a_line_that_is_far_too_long_is_passed_over(
    path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted, and not kept."""
    monkeypatch.setattr(growing, "LINE_LIMIT_BYTES", 20)
    monkeypatch.setattr(growing, "_CHUNK_BYTES", 7)
    add(path, b"x" * 19 + b"\n" + b"y" * 40 + b"\nlast\n")
    assert reader.new() == [(2, b"x" * 19), (3, None), (4, b"last")]


@pytest.mark.parametrize("anew", [b"x\n", b"two\n", b"three\n"])
def test_a_log_that_was_truncated_is_read_from_its_beginning(path: Path, reader: Reader, anew: bytes) -> None:
    """Also when it has become as long again, or longer, before it was looked at; and it is told."""
    path.write_bytes(anew)
    assert reader.new() == [(1, anew[:-1])]
    assert reader.told == [f"{path} was truncated: it is read from its beginning"]


def test_a_log_that_is_emptied_is_read_when_it_fills(path: Path, reader: Reader) -> None:
    """A torn line of before is forgotten."""
    add(path, b"tw")
    assert reader.new() == []
    os.truncate(path, 0)
    assert reader.new() == []
    add(path, b"a\n")
    assert reader.new() == [(1, b"a")]
    assert len(reader.told) == 1


def test_a_log_that_was_rotated_is_read_to_its_end_and_then_the_new_one(path: Path, reader: Reader) -> None:
    """Nothing of the old one is lost but what is no line."""
    add(path, b"two\nthr")
    path.rename(path.with_suffix(".1"))
    path.write_bytes(b"a\nb\n")
    assert reader.new() == [(2, b"two"), (1, b"a"), (2, b"b")]
    assert reader.told == [
        f"{path} was replaced, 3 bytes of an incomplete line are lost: the new file is read from its beginning"
    ]


def test_a_log_that_was_moved_away_is_followed_until_there_is_another(path: Path, reader: Reader) -> None:
    """Its writer may still have it open."""
    moved = path.rename(path.with_suffix(".1"))
    assert reader.new() == []
    add(moved, b"two\n")
    assert reader.new() == [(2, b"two")]
    path.write_bytes(b"a\n")
    assert reader.new() == [(1, b"a")]
    assert reader.told == [f"{path} was replaced: the new file is read from its beginning"]


def test_reading_goes_on_after_an_offset(path: Path) -> None:
    """The lines before it are counted, and the one that ends there can be seen."""
    path.write_bytes(b"one\ntwo\nthree\n")
    reader = Reader(path, 8)
    assert reader.log.line_before() == b"two"
    assert reader.new() == [(3, b"three")]
    assert reader.told == []
    reader.log.close()


@pytest.mark.parametrize("offset", [2, 9])
def test_an_offset_at_which_no_line_ends_is_of_another_log(path: Path, offset: int) -> None:
    """It begins anew, and says so."""
    path.write_bytes(b"one\ntwo\n")
    reader = Reader(path, offset)
    assert reader.new() == [(1, b"one"), (2, b"two")]
    assert reader.told == [f"no line of {path} ends at {offset}, it is another log: it is read from its beginning"]
    reader.log.close()


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    """A FIFO is not waited for."""
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(OSError, match="not a regular file"):
            Reader(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "none")
