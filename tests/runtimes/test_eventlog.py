"""The event log: stamps, whole lines always, full disks, group commit."""

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.protocol.events import AgentNoise, AnyEvent, Error, EventHead, decode_event, encode_event
from avenor.protocol.methods import unwrap_event
from avenor.runtimes.eventlog import BATCH_LIMIT_BYTES, EventLog, LineFile, Stamp


class FillingDisk:
    """A write function for a file that may have so many bytes; what is cut off makes room again."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: bytes) -> int:
        part = data[: max(0, self.room - os.fstat(fd).st_size)]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, part)


class Publications:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        for line, head in zip(lines, heads, strict=True):
            event = decode_event(unwrap_event(line))
            assert (head.seq, head.ts) == (event.seq, event.ts)
            self.events.append(event)


def make_log(journal: LineFile, copy: LineFile | None = None, seq: int = 0) -> tuple[EventLog, Publications]:
    published = Publications()
    log = EventLog(
        journal=journal,
        copy=copy,
        stamp=Stamp(run_id="run_1", runtime_id="rt_1", label="mine"),
        publisher=published,
        clock=lambda: 0.0,
        seq=seq,
    )
    return log, published


def read(path: Path) -> list[AnyEvent]:
    """Every line of a log, each of which must be whole."""
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [decode_event(line) for line in data.splitlines()]


def test_events_are_stamped_written_and_published_alike(tmp_path: Path) -> None:
    """The file and the hub get the same events, numbered from one after what was there."""
    path = tmp_path / "log"
    log, published = make_log(LineFile(str(path), truncate=True), seq=7)
    log.emit(AgentNoise(text="a", session_id="s1"))
    log.emit(AgentNoise(text="b"))
    assert read(path) == published.events
    first, second = published.events
    assert (first.seq, second.seq) == (8, 9)
    assert (first.run_id, first.runtime_id, first.run_label, first.session_id) == ("run_1", "rt_1", "mine", "s1")
    assert first.ts > 1_600_000_000_000
    assert second.session_id is msgspec.UNSET


@pytest.mark.parametrize("room", [150, 151, 200, 299, 300, 301, 450])
def test_a_full_disk_leaves_whole_lines_and_later_says_what_was_lost(tmp_path: Path, room: int) -> None:
    """Wherever the disk fills up: no torn line, everything is published, and the gap is told before the next event."""
    path = tmp_path / "log"
    disk = FillingDisk(room)
    log, published = make_log(LineFile(str(path), truncate=True, write=disk.write))
    for number in range(6):
        log.emit(AgentNoise(text=str(number)))
    kept = read(path)
    assert all(isinstance(event, AgentNoise) for event in kept)
    disk.room = 10_000
    log.emit(AgentNoise(text="after"))
    written = read(path)
    assert written[: len(kept)] == kept
    notice, last = written[-2:]
    assert isinstance(notice, Error)
    assert isinstance(last, AgentNoise)
    assert last.text == "after"
    missing = {event.seq for event in published.events} - {event.seq for event in written}
    assert missing == set(range(notice.lost_from, notice.lost_to + 1))  # type: ignore[arg-type,operator]
    assert [event.seq for event in published.events] == list(range(1, log.seq + 1))


def test_what_is_emitted_as_a_batch_is_written_and_published_at_once(tmp_path: Path) -> None:
    """One write and one publication, in order, when the batch ends; an error inside does not lose what was said."""
    path = tmp_path / "log"
    writes: list[int] = []

    def write(descriptor: int, data: bytes) -> int:
        writes.append(len(data))
        return os.write(descriptor, data)

    log, published = make_log(LineFile(str(path), truncate=True, write=write))
    with contextlib.suppress(RuntimeError), log.batch():
        for number in range(5):
            log.emit(AgentNoise(text=str(number)))
        assert read(path) == published.events == []
        raise RuntimeError("stop")
    assert [event.seq for event in read(path)] == [1, 2, 3, 4, 5]
    assert read(path) == published.events
    assert len(writes) == 1


def test_a_batch_that_grows_large_is_not_held_back(tmp_path: Path) -> None:
    """Memory is bounded, however much comes at once."""
    path = tmp_path / "log"
    log, published = make_log(LineFile(str(path), truncate=True))
    with log.batch():
        for _ in range(4):
            log.emit(AgentNoise(text="x" * (BATCH_LIMIT_BYTES // 2)))
        assert len(published.events) == 4
    assert read(path) == published.events


@pytest.mark.parametrize("room", [0, 99, 150, 300, 450, 1000])
def test_a_full_disk_keeps_of_a_batch_what_fits(tmp_path: Path, room: int) -> None:
    """Whole lines only, everything is published, and the gap is told before the next event."""
    path = tmp_path / "log"
    disk = FillingDisk(room)
    log, published = make_log(LineFile(str(path), truncate=True, write=disk.write))
    with log.batch():
        for number in range(8):
            log.emit(AgentNoise(text=str(number)))
    kept = read(path)
    assert len(kept) == min(8, room // len(encode_event(published.events[0]) + b"\n"))
    disk.room = 10_000
    log.emit(AgentNoise(text="after"))
    written = read(path)
    missing = {event.seq for event in published.events} - {event.seq for event in written}
    told = [event for event in written if isinstance(event, Error) and event.lost_from is not msgspec.UNSET]
    assert missing == {seq for event in told for seq in range(event.lost_from, event.lost_to + 1)}  # type: ignore[arg-type,operator]
    assert [event.seq for event in published.events] == list(range(1, log.seq + 1))


def test_two_files_that_fill_up_in_one_batch_both_stay_in_order(tmp_path: Path) -> None:
    """What one of them misses is told in the other after the other's own lines."""
    first, second = tmp_path / "log", tmp_path / "copy"
    log, _ = make_log(
        LineFile(str(first), truncate=True, write=FillingDisk(500).write),
        LineFile(str(second), truncate=True, write=FillingDisk(700).write),
    )
    with log.batch():
        for number in range(8):
            log.emit(AgentNoise(text=str(number)))
    for path in (first, second):
        seqs = [event.seq for event in read(path)]
        assert seqs
        assert seqs == sorted(set(seqs))


def test_a_disk_that_stays_full_never_raises(tmp_path: Path) -> None:
    """The run goes on, and everybody who listens hears everything."""
    disk = FillingDisk(0)
    log, published = make_log(LineFile(str(tmp_path / "log"), truncate=True, write=disk.write))
    for number in range(5):
        log.emit(AgentNoise(text=str(number)))
    assert [event.text for event in published.events if isinstance(event, AgentNoise)] == ["0", "1", "2", "3", "4"]
    assert read(tmp_path / "log") == []


def test_the_copy_has_errors_of_its_own(tmp_path: Path) -> None:
    """A full disk under --on-event is told in the journal, which misses nothing, and in the copy when it goes on."""
    disk = FillingDisk(200)
    copy_path = tmp_path / "copy"
    log, published = make_log(
        LineFile(str(tmp_path / "log"), truncate=True),
        LineFile(str(copy_path), truncate=True, write=disk.write),
    )
    for number in range(4):
        log.emit(AgentNoise(text=str(number)))
    disk.room = 10_000
    log.emit(AgentNoise(text="after"))
    journal = read(tmp_path / "log")
    assert journal == published.events
    errors = [event for event in journal if isinstance(event, Error)]
    assert [event.source for event in errors] == ["on_event", "on_event"]
    copied = read(copy_path)
    assert copied[-2] == errors[-1]
    missing = {event.seq for event in journal} - {event.seq for event in copied}
    assert missing == set(range(errors[-1].lost_from, errors[-1].lost_to + 1))  # type: ignore[arg-type,operator]


def test_a_device_that_takes_nothing_is_no_trouble(tmp_path: Path) -> None:
    """--on-event /dev/full: the journal is complete."""
    log, _ = make_log(LineFile(str(tmp_path / "log"), truncate=True), LineFile("/dev/full", truncate=True))
    for number in range(3):
        log.emit(AgentNoise(text=str(number)))
    noises = [event for event in read(tmp_path / "log") if isinstance(event, AgentNoise)]
    assert [event.text for event in noises] == ["0", "1", "2"]


def test_a_line_that_could_not_be_cut_is_ended_before_the_next(tmp_path: Path) -> None:
    """On a pipe nothing can be taken back, so the next line starts on its own."""
    reader, writer = os.pipe()
    disk = FillingDisk(10)
    file = LineFile(f"/dev/fd/{writer}", truncate=False, write=disk.write)
    assert file.append(b"0123456789abc\n") is not None
    disk.room = 100
    assert file.append(b"next\n") is None
    assert os.read(reader, 100) == b"0123456789\nnext\n"
    file.close()
    os.close(reader)
    os.close(writer)


def test_a_file_in_use_by_another_run_is_refused_before_it_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor does not stay either; once it is free, it begins anew."""
    monkeypatch.setattr("avenor.host.lock.MOMENT_SECONDS", 0.0)
    path = str(tmp_path / "log")
    first = LineFile(path, truncate=True, is_alone=True)
    assert first.append(b"line\n") is None
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="in use by another run"):
        LineFile(path, truncate=True, is_alone=True)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert Path(path).read_bytes() == b"line\n"
    first.close()
    LineFile(path, truncate=True, is_alone=True).close()
    assert Path(path).read_bytes() == b""


def test_a_named_pipe_without_a_reader_does_not_hold_the_run_up(tmp_path: Path) -> None:
    """Opening it is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        LineFile(str(tmp_path / "pipe"), truncate=True)


async def test_one_sync_serves_all_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: those who come while a sync runs share the next one."""
    syncs: list[int] = []
    fdatasync = os.fdatasync

    def count(fd: int) -> None:
        syncs.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", count)
    log, _ = make_log(LineFile(str(tmp_path / "log"), truncate=True))
    async with trio.open_nursery() as nursery:
        for number in range(50):
            log.emit(AgentNoise(text=str(number)))
            nursery.start_soon(log.synced)
    assert 1 <= len(syncs) <= 2
    await log.synced()
    assert len(syncs) <= 2


async def test_a_sync_that_fails_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is logged, and the answer goes out."""

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    log, _ = make_log(LineFile(str(tmp_path / "log"), truncate=True))
    log.emit(AgentNoise(text="x"))
    with trio.fail_after(60):
        await log.synced()
