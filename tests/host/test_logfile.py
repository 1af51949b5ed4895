"""Reading event logs, whole and damaged."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.host import logfile
from avenor.host.lock import keep_alone
from avenor.host.logfile import (
    append,
    complete_copy,
    iter_lines,
    last_event_named,
    last_line,
    last_seq,
    read_after,
    repair,
    seq_of,
)

GARBAGE = (
    b"",
    b"noise",
    b'{"seq":3,"ev{"seq":4,"event":"x"}',
    b'{"seq":1,"event":"a"}{"seq":2,"event":"b"}',
    b"\0\0\0\0",
    b'{"event":"no.seq"}',
    b'{"seq":"7"}',
    b"[" * 5000,
)


def event(seq: int, size: int = 0, name: str = "agent.message_chunk") -> bytes:
    """A line of a log, without its newline."""
    return b'{"event":"%s","seq":%d,"ts":1,"text":"%s"}' % (name.encode(), seq, b"x" * size)


def write(path: Path, lines: list[bytes], torn: bytes = b"") -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)


def seqs(lines: list[bytes]) -> list[int | None]:
    return [seq_of(line) for line in lines]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a small file as hard to read as a large one."""
    monkeypatch.setattr(logfile, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(logfile, "_PROBE_BYTES", 16)
    monkeypatch.setattr(logfile, "_LINEAR_BYTES", 64)


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """So is one without a complete line."""
    path = tmp_path / "log"
    for _ in range(2):
        assert read_after(path, 0) == ([], 0)
        assert last_line(path) is None
        assert last_seq(path) == 0
        assert last_event_named(path, "run.end") is None
        assert list(iter_lines(path)) == []
        path.write_bytes(b'{"seq":1,"event":"run.start"}')  # no newline: not there yet


@pytest.mark.parametrize("size", [0, 10, 1000, 100_000])
def test_any_place_is_found(tmp_path: Path, size: int) -> None:
    """From every seq on exactly the later events come, whatever the lines' length."""
    path = tmp_path / "log"
    lines = [event(seq, size * (seq % 3)) for seq in range(1, 41)]
    write(path, lines)
    for after in range(42):
        assert read_after(path, after, 10**9)[0] == lines[after:]


def test_a_long_log_is_read_in_parts_that_join(tmp_path: Path) -> None:
    """Each part is about as long as asked for, nothing comes twice, and the end is an empty part."""
    path = tmp_path / "log"
    write(path, [event(seq, 100) for seq in range(1, 5001)])
    after, offset, got, parts = 700, 0, list[int | None](), 0
    while True:
        lines, offset = read_after(path, after, 10_000, offset)
        if not lines:
            break
        assert sum(map(len, lines)) <= 10_000
        got += seqs(lines)
        after = seq_of(lines[-1]) or 0
        parts += 1
    assert got == list(range(701, 5001))
    assert parts > 50
    assert offset == path.stat().st_size


def test_an_event_above_the_limit_comes_alone(tmp_path: Path) -> None:
    """A limit never means standing still."""
    path = tmp_path / "log"
    write(path, [event(1), event(2, 5000), event(3)])
    lines, offset = read_after(path, 1, 100)
    assert seqs(lines) == [2]
    lines, _ = read_after(path, 2, 100, offset)
    assert seqs(lines) == [3]


def test_a_torn_line_is_waited_for(tmp_path: Path) -> None:
    """It comes when its rest has come, once."""
    path = tmp_path / "log"
    write(path, [event(1), event(2)], torn=event(3)[:10])
    lines, offset = read_after(path, 0)
    assert seqs(lines) == [1, 2]
    assert read_after(path, 2, offset_hint=offset) == ([], offset)
    with path.open("ab") as log:
        log.write(event(3)[10:] + b"\n")
    lines, offset = read_after(path, 2, offset_hint=offset)
    assert seqs(lines) == [3]
    assert offset == path.stat().st_size


def test_damaged_lines_are_skipped(tmp_path: Path, small_chunks: None) -> None:
    """Fused, foreign and empty lines cost only themselves, wherever one starts to read."""
    path = tmp_path / "log"
    lines: list[bytes] = []
    for seq in range(10, 200):
        lines += [GARBAGE[seq % len(GARBAGE)], event(seq)]
    write(path, [*lines, *GARBAGE], torn=b'{"seq":300')
    for after in (0, 9, 10, 57, 150, 198, 199, 250):
        assert seqs(read_after(path, after, 10**9)[0]) == [seq for seq in range(10, 200) if seq > after]
    assert last_line(path) == event(199)
    assert last_seq(path) == 199
    assert seqs(list(iter_lines(path))) == list(range(10, 200))


def test_seqs_that_were_lost_are_no_trouble(tmp_path: Path, small_chunks: None) -> None:
    """After a full disk the numbers have gaps."""
    path = tmp_path / "log"
    numbers = [seq for seq in range(1, 400) if not 50 < seq < 300]
    write(path, [event(seq) for seq in numbers])
    for after in (0, 49, 50, 51, 170, 299, 300, 398):
        assert seqs(read_after(path, after, 10**9)[0]) == [seq for seq in numbers if seq > after]


@pytest.mark.parametrize("hint", [-5, 1, 17, 10**12])
def test_a_hint_that_does_not_fit_is_not_used(tmp_path: Path, hint: int) -> None:
    """In the midst of a line, beyond the end, or past events that the caller lacks."""
    path = tmp_path / "log"
    write(path, [event(seq) for seq in range(1, 30)])
    assert seqs(read_after(path, 5, offset_hint=hint)[0]) == list(range(6, 30))
    past = len(event(1)) * 9 + 9
    assert seqs(read_after(path, 5, offset_hint=past)[0]) == list(range(6, 30))


def test_a_log_that_was_cut_is_read_from_where_it_still_fits(tmp_path: Path) -> None:
    """An old hint beyond the new end does no harm."""
    path = tmp_path / "log"
    write(path, [event(seq, 50) for seq in range(1, 30)])
    _, offset = read_after(path, 0)
    write(path, [event(seq, 50) for seq in range(1, 12)])
    assert seqs(read_after(path, 9, offset_hint=offset)[0]) == [10, 11]


def test_the_last_event_of_a_name_is_found(tmp_path: Path, small_chunks: None) -> None:
    """By its name, not by a text that looks like it."""
    path = tmp_path / "log"
    end, fake = event(2, name="run.end"), b'{"event":"x","seq":4,"text":"run.end"}'
    write(path, [event(1, name="run.end"), end, event(3, 500), fake, b'{"event":"run.end"'])
    assert last_event_named(path, "run.end") == end
    assert last_event_named(path, "run.start") is None


@pytest.mark.parametrize("tail", [b"", b'{"seq":3,"ev', b"\0" * 300_000, event(3, 20_000)])
def test_repair_cuts_back_to_the_last_newline(tmp_path: Path, tail: bytes) -> None:
    """What was torn goes, however long; a whole log stays as it is."""
    path = tmp_path / "log"
    write(path, [event(1), event(2)], torn=tail)
    assert repair(path) == len(tail)
    assert path.read_bytes() == event(1) + b"\n" + event(2) + b"\n"
    assert repair(path) == 0


def test_repair_of_a_log_with_nothing_whole_empties_it(tmp_path: Path) -> None:
    """And of none does nothing."""
    path = tmp_path / "log"
    assert repair(path) == 0
    path.write_bytes(b'{"seq":1')
    assert repair(path) == 8
    assert path.read_bytes() == b""


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """Not even when a reader stops half-way."""
    path = tmp_path / "log"
    write(path, [event(seq) for seq in range(1, 100)])
    before = len(os.listdir("/proc/self/fd"))
    for line in iter_lines(path):
        assert line
        break
    read_after(path, 50)
    last_line(path)
    last_event_named(path, "x")
    assert len(os.listdir("/proc/self/fd")) == before


@given(
    sizes=st.lists(st.integers(0, 400), max_size=40),
    garbage=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(GARBAGE)), max_size=10),
    after=st.integers(0, 45),
    limit=st.integers(1, 3000),
    hint=st.integers(-1, 20_000),
    torn=st.sampled_from([b"", b'{"seq":99', b"\xff"]),
)
def test_reading_on_gives_each_later_event_once(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    garbage: list[tuple[int, bytes]],
    after: int,
    limit: int,
    hint: int,
    torn: bytes,
) -> None:
    """Whatever the log looks like, and wherever one is told to begin."""
    path = tmp_path_factory.getbasetemp() / "hypothesis.log"
    lines = [event(seq, size) for seq, size in enumerate(sizes, 1)]
    for place, text in garbage:
        lines.insert(place, text)
    write(path, lines, torn)
    got: list[int | None] = []
    seen, offset = after, hint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "_CHUNK_BYTES", 100)
        patch.setattr(logfile, "_PROBE_BYTES", 30)
        patch.setattr(logfile, "_LINEAR_BYTES", 50)
        while True:
            part, offset = read_after(path, seen, limit, offset)
            if not part:
                break
            got += seqs(part)
            seen = seq_of(part[-1]) or 0
        backwards = last_seq(path)
    assert got == list(range(after + 1, len(sizes) + 1))
    assert backwards == len(sizes)


@pytest.mark.parametrize("had", [0, 1, 3, 5])
def test_a_copy_gets_what_it_lacks(tmp_path: Path, had: int, small_chunks: None) -> None:
    """However much of the log it has already, and without the line that a killed writer has torn."""
    log, copy = tmp_path / "log", tmp_path / "copy"
    lines = [event(seq, size=50) for seq in range(1, 6)]
    write(log, lines)
    write(copy, lines[:had], torn=b'{"event":"x","s')
    complete_copy(log, copy)
    assert copy.read_bytes() == log.read_bytes()


def test_what_is_no_regular_file_gets_nothing(tmp_path: Path) -> None:
    """Nobody can tell what a pipe has had; one that is not there is not made."""
    log, pipe = tmp_path / "log", tmp_path / "pipe"
    write(log, [event(1)])
    os.mkfifo(pipe)
    complete_copy(log, pipe)
    complete_copy(log, tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_copy_that_is_another_runs_by_now_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told so that the copy is not gone on with."""
    monkeypatch.setattr("avenor.host.lock.MOMENT_SECONDS", 0.0)
    log, copy = tmp_path / "log", tmp_path / "copy"
    write(log, [event(1)])
    with open(copy, "wb") as file:
        keep_alone(file.fileno(), copy)
        with pytest.raises(OSError, match="in use by another run"):
            complete_copy(log, copy)
    assert copy.read_bytes() == b""


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half of them is cut back, and the caller is told."""
    log = tmp_path / "log"
    write(log, [event(1)])
    write_all = os.write

    def write_some(fd: int, data: bytes) -> int:
        return write_all(fd, data[:7])

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(OSError, match="No space left"):
        append(log, event(2) + b"\n")
    assert log.read_bytes() == event(1) + b"\n"
    monkeypatch.undo()
    append(log, event(2) + b"\n")
    assert last_seq(log) == 2
