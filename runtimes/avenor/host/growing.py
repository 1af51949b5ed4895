"""Reads the lines of a log that grows, that may be cut, written anew or replaced while it is read."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024
# Events are at most 16 MiB long; what is far beyond is no log, and must not fill our memory.
LINE_LIMIT_BYTES: Final = 64 * 1024 * 1024
# The first line of a log holds its run's id and the time: enough of it to see that the file was written anew.
_HEAD_BYTES: Final = 512


class Line:
    """One complete line.

    Attributes:
        number: In the file, from 1.
        start: The offset of its first byte.
        end: The offset after its newline.
        data: Without its newline; None if it was too long to keep.
    """

    __slots__ = ("data", "end", "number", "start")

    def __init__(self, number: int, start: int, end: int, data: bytes | None) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.data = data


class GrowingLog:
    """The lines of one path, each once and in order, as far as they are there.

    Args:
        path: A regular file.
        tell: Takes what happened to the file, for people.
    """

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        self.path = path
        self._tell = tell
        self._fd = -1
        self._forget()

    @property
    def is_open(self) -> bool:
        """Whether there was a file to open."""
        return self._fd >= 0

    @property
    def incomplete_bytes(self) -> int:
        """How much there is of a last line whose newline has not come."""
        return self._read_at - self.offset

    def open(self, offset: int = 0) -> None:
        """Open the file, to go on after this offset if a line ends there, and else from its beginning.

        Raises:
            OSError: It is not there, cannot be read, or is no regular file.
        """
        self._fd = _open_regular(self.path)
        self._head = os.pread(self._fd, _HEAD_BYTES, 0)
        if offset == 0:
            return
        if offset <= os.fstat(self._fd).st_size and os.pread(self._fd, 1, offset - 1) == b"\n":
            self.offset = self._read_at = self._began_at = offset
        else:
            self._tell(f"no line of {self.path} ends at {offset}, it is another log: it is read from its beginning")

    def batches(self) -> Iterator[list[Line]]:
        """The lines that have come since the last call, many at a time; ends when there are no more for now."""
        while True:
            yield from self._rest()
            if not self._is_replaced():
                return
            yield from self._rest()  # what was written before it was replaced, and after we had looked
            self._change_over()

    def line_before(self) -> bytes:
        """The line that ends where we are, as far as a chunk holds it."""
        start = max(0, self.offset - _CHUNK_BYTES)
        return os.pread(self._fd, self.offset - start, start).rstrip(b"\n").rpartition(b"\n")[2]

    def close(self) -> None:
        """Close the file; harmless twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _forget(self) -> None:
        """Begin anew, at the start of whatever is there."""
        self.offset = self._read_at = self._began_at = 0
        self._count = 0
        self._counted_before: int | None = None
        self._begun: list[bytes] = []
        self._head = b""

    def _rest(self) -> Iterator[list[Line]]:
        while True:
            chunk = os.pread(self._fd, _CHUNK_BYTES, self._read_at)
            # Looked at after reading: then what was read is of the file that we know.
            if self._is_rewritten():
                self._tell(f"{self.path} was truncated: it is read from its beginning")
                self._forget()
                continue
            if not chunk:
                return
            lines = self._take(chunk)
            if lines:
                yield lines

    def _is_rewritten(self) -> bool:
        if os.fstat(self._fd).st_size < self._read_at:
            return True
        head = os.pread(self._fd, _HEAD_BYTES, 0)
        if not head.startswith(self._head):
            return True
        self._head = head
        return False

    def _take(self, chunk: bytes) -> list[Line]:
        """The lines that end in this chunk."""
        self._read_at += len(chunk)
        lines: list[Line] = []
        *pieces, rest = chunk.split(b"\n")
        start = self.offset
        end = self._read_at - len(chunk)
        for piece in pieces:
            end += len(piece) + 1
            self._count += 1
            is_long = end - start > LINE_LIMIT_BYTES
            data = None if is_long else b"".join([*self._begun, piece]) if self._begun else piece
            self._begun.clear()
            lines.append(Line(self._lines_before + self._count, start, end, data))
            start = end
        self.offset = start
        if self.incomplete_bytes > LINE_LIMIT_BYTES:
            self._begun.clear()
        elif rest:
            self._begun.append(rest)
        return lines

    @property
    def _lines_before(self) -> int:
        """How many lines there are before where we began."""
        if self._counted_before is None:
            self._counted_before = sum(
                os.pread(self._fd, min(_CHUNK_BYTES, self._began_at - at), at).count(b"\n")
                for at in range(0, self._began_at, _CHUNK_BYTES)
            )
        return self._counted_before

    def _is_replaced(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return False  # it may come back, and the old one be written to until then
        return not os.path.samestat(found, os.fstat(self._fd))

    def _change_over(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = _open_regular(self.path)
            incomplete = f", {self.incomplete_bytes} bytes of an incomplete line are lost" if self._begun else ""
            self._tell(f"{self.path} was replaced{incomplete}: the new file is read from its beginning")
            self.close()
            self._fd = fd
            self._forget()


def _open_regular(path: str) -> int:
    # Opened so that a FIFO without a writer does not wait, and looked at only then: the path may change meanwhile.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd
