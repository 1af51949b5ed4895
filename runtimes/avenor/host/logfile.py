"""Reading an event log: lines of JSON whose `seq` rises, written by one process that may have been killed.

A line counts when its newline is there and it decodes; a torn last line is not there yet, fused and foreign lines are
skipped. Nothing here keeps more of the file in memory than what it hands out and one line. Everything blocks: call it
in a worker thread when the log may be long.
"""

import contextlib
import errno
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import msgspec

from avenor.host.lock import keep_alone

_CHUNK_BYTES: Final = 256 * 1024
_PROBE_BYTES: Final = 8 * 1024
# Below this it is quicker to read on than to look for a better place to start.
_LINEAR_BYTES: Final = 64 * 1024


class _Head(msgspec.Struct):
    seq: int


class _Name(msgspec.Struct):
    seq: int
    event: str


_HEAD = msgspec.json.Decoder(_Head)
_NAME = msgspec.json.Decoder(_Name)


def seq_of(line: bytes) -> int | None:
    """The `seq` of a line, None when it is no event."""
    try:
        return _HEAD.decode(line).seq
    except (msgspec.DecodeError, RecursionError):
        return None


def repair(path: str | Path) -> int:
    """Cut what a killed writer left after the last newline, durably; only the lock's holder may. Returns bytes cut.

    Raises:
        OSError: The file is there and cannot be changed.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(fd).st_size
        end = _end_of_last_line(fd, size)
        if end < size:
            os.ftruncate(fd, end)
            os.fsync(fd)
        return size - end
    finally:
        os.close(fd)


def append(path: str | Path, lines: bytes) -> None:
    """Add whole lines, durably, all of them or none; what is there must end with a line. A pipe is not waited for.

    Raises:
        OSError: There is no room for them, or the file cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        size = os.fstat(fd).st_size
        if os.write(fd, lines) != len(lines):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(fd)
    finally:
        os.close(fd)


def complete_copy(log: str | Path, copy: str | Path) -> None:
    """Add to a copy of a log what a killed writer has not brought there; nothing where the copy is no regular file.

    Raises:
        OSError: The log cannot be read, or the copy not be written; `EBUSY` where the copy is another run's by now.
    """
    if not os.path.isfile(copy):
        return
    fd = os.open(copy, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        keep_alone(fd, copy)
        _complete(log, copy)
    finally:
        os.close(fd)


def read_after(
    path: str | Path,
    after_seq: int,
    limit_bytes: int = 1024 * 1024,
    offset_hint: int = 0,
) -> tuple[list[bytes], int]:
    """The events after a `seq`, in order and each once, and where to go on.

    Args:
        path: The log; one that is not there is empty.
        after_seq: The last `seq` that the caller has; 0 for all.
        limit_bytes: About how much to return; at least one event comes if there is one.
        offset_hint: What the last call returned. Any number is safe: one that does not fit the file is not used.

    Returns:
        The lines, without newlines, empty when there are no more; and the next hint.

    Raises:
        OSError: The file is there and cannot be read.
    """
    with _opened(path) as (fd, size):
        low = offset_hint if _fits(fd, size, offset_hint, after_seq) else 0
        return _take(fd, size, _bisect(fd, low, size, after_seq), after_seq, limit_bytes)


def last_line(path: str | Path) -> bytes | None:
    """The last event of a log, None when it has none."""
    with _opened(path) as (fd, size):
        return next((line for line in _lines_backwards(fd, size, _CHUNK_BYTES) if seq_of(line) is not None), None)


def last_seq(path: str | Path) -> int:
    """The `seq` of the last event, 0 when there is none."""
    line = last_line(path)
    return 0 if line is None else seq_of(line) or 0


def last_event_named(path: str | Path, *names: str) -> bytes | None:
    """The last event with one of these names, None if there is none. Reads backwards: a recent one is found at once."""
    wanted = [name.encode() for name in names]
    with _opened(path) as (fd, size):
        for line in _lines_backwards(fd, size, _CHUNK_BYTES):
            if any(each in line for each in wanted) and _name_of(line) in names:
                return line
    return None


def iter_lines(path: str | Path) -> Iterator[bytes]:
    """All events that the log has now, without newlines."""
    with _opened(path) as (fd, size):
        for line, _ in _lines(fd, 0, size, _CHUNK_BYTES):
            if seq_of(line) is not None:
                yield line


def _complete(log: str | Path, copy: str | Path) -> None:
    repair(copy)
    after_seq, hint = last_seq(copy), 0
    while True:
        lines, hint = read_after(log, after_seq, offset_hint=hint)
        if not lines:
            return
        append(copy, b"".join(line + b"\n" for line in lines))
        after_seq = seq_of(lines[-1]) or after_seq


def _name_of(line: bytes) -> str | None:
    try:
        return _NAME.decode(line).event
    except (msgspec.DecodeError, RecursionError):
        return None


@contextlib.contextmanager
def _opened(path: str | Path) -> Generator[tuple[int, int], None, None]:
    """A descriptor and the file's size now; a file that is not there is an empty one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def _fits(fd: int, size: int, offset: int, after_seq: int) -> bool:
    """Whether a line starts here and the events before it are all known to the caller."""
    if not 0 < offset <= size or os.pread(fd, 1, offset - 1) != b"\n":
        return False
    before = (seq for line in _lines_backwards(fd, offset, _PROBE_BYTES) if (seq := seq_of(line)) is not None)
    return next(before, after_seq + 1) <= after_seq


def _take(fd: int, size: int, start: int, after_seq: int, limit_bytes: int) -> tuple[list[bytes], int]:
    taken: list[bytes] = []
    taken_bytes, position = 0, start
    for line, end in _lines(fd, start, size, _CHUNK_BYTES):
        seq = seq_of(line)
        if seq is not None and seq > after_seq:
            if taken and taken_bytes + len(line) > limit_bytes:
                break
            taken.append(line)
            taken_bytes += len(line)
            after_seq = seq
        position = end
    return taken, position


def _bisect(fd: int, low: int, size: int, after_seq: int) -> int:
    """A place shortly before the first event after a `seq`, and always a line's start.

    Invariant: every event before `low` is at most `after_seq`. `high` only says how far it is worth looking.
    """
    high = size
    while after_seq > 0 and high - low > _LINEAR_BYTES:
        middle = (low + high) // 2
        seq, end = _probe(fd, middle, high, size)
        if seq is None or seq > after_seq:
            high = middle
        else:
            low = end
    return low


def _probe(fd: int, middle: int, high: int, size: int) -> tuple[int | None, int]:
    """The first event that starts after `middle` and before `high`: its `seq` and where it ends."""
    lines = _lines(fd, middle, size, _PROBE_BYTES)
    next(lines, None)  # we are in the midst of this one, or at its start: both belong to the lower half
    for line, end in lines:
        if end - len(line) > high:
            break
        if (seq := seq_of(line)) is not None:
            return seq, end
    return None, high


def _lines(fd: int, start: int, size: int, chunk_bytes: int) -> Iterator[tuple[bytes, int]]:
    """The complete lines from a line's start on, each with the offset after its newline."""
    read_at = line_start = start
    begun: list[bytes] = []  # pieces of a line longer than a chunk: joined once, so that no byte is copied twice
    while read_at < size:
        chunk = os.pread(fd, min(chunk_bytes, size - read_at), read_at)
        if not chunk:
            return  # cut while we read
        read_at += len(chunk)
        *complete, rest = chunk.split(b"\n")
        if complete and begun:
            complete[0] = b"".join([*begun, complete[0]])
            begun.clear()
        for line in complete:
            line_start += len(line) + 1
            yield line, line_start
        begun.append(rest)


def _lines_backwards(fd: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """The complete lines before an offset, the last one first."""
    position = _end_of_last_line(fd, end)
    if position == 0:
        return
    position -= 1  # its newline
    begun: list[bytes] = []  # pieces of a line, the last one first
    while position > 0:
        start = max(0, position - chunk_bytes)
        first, *complete = os.pread(fd, position - start, start).split(b"\n")
        position = start
        if complete:
            yield b"".join([complete.pop(), *reversed(begun)])
            yield from reversed(complete)
            begun.clear()
        begun.append(first)
    yield b"".join(reversed(begun))


def _end_of_last_line(fd: int, size: int) -> int:
    """The offset after the last newline before `size`, 0 without one."""
    position = size
    while position > 0:
        start = max(0, position - _CHUNK_BYTES if position < size else position - _PROBE_BYTES)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
