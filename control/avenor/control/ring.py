"""The last events of a runtime, kept in memory as the notification lines that subscribers get."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from avenor.protocol.events import EventHead

LINES: Final = 4096
BYTES: Final = 1024 * 1024
# What is promised to a subscriber that falls behind (contract, part 6): so many of the newest are always here.
PENDING_EVENTS: Final = 256
PENDING_BYTES: Final = 4 * 1024 * 1024

# One piece to send: near to what a socket's buffer takes (208 KiB on Linux), and no more events than may be pending.
CHUNK_EVENTS: Final = 256
CHUNK_BYTES: Final = 256 * 1024


class Chunk(NamedTuple):
    """Notification lines to send at once, newlines included."""

    data: bytes
    events: int
    last_seq: int


class Ring:
    """Lines in `seq` order, newest last.

    Attributes:
        floor: Every event after this `seq` that there has been is here.
        latest: The last `seq` that came, here or not.
    """

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.latest = floor
        self.lines: list[bytes] = []
        self.seqs: list[int] = []
        self.names: list[str] = []
        self.size_bytes = 0
        self._joined: dict[int, Chunk] = {}

    def append(self, lines: Sequence[bytes], heads: Sequence[EventHead], size_bytes: int) -> None:
        """Adds lines, which follow what is here."""
        self.lines += lines
        self.seqs += [head.seq for head in heads]
        self.names += [head.event for head in heads]
        self.size_bytes += size_bytes
        self.latest = heads[-1].seq
        self._joined.clear()

    def excess(self) -> int:
        """How many of the oldest are more than should be kept; a good many at a time, since removing has a price."""
        count = len(self.lines)
        size = self.size_bytes
        over = 0
        if count > LINES or (size > BYTES and count > PENDING_EVENTS) or size > PENDING_BYTES:
            while over < count - 1 and (
                count - over > LINES * 7 // 8
                or (size > BYTES * 7 // 8 and count - over > PENDING_EVENTS)
                or size > PENDING_BYTES
            ):
                size -= len(self.lines[over])
                over += 1
        return over

    def drop(self, count: int) -> None:
        """Removes the oldest."""
        if count:
            self.floor = self.seqs[count - 1]
            self.size_bytes -= sum(map(len, self.lines[:count]))
            del self.lines[:count], self.seqs[:count], self.names[:count]
            self._joined.clear()

    def skip_to(self, seq: int) -> None:
        """Empties the ring, since events up to this `seq` did not pass: whoever wants them must look into the log."""
        self.drop(len(self.lines))
        self.floor = self.latest = seq

    def index_after(self, seq: int) -> int:
        """Where the first event after a `seq` stands."""
        return len(self.seqs) if seq >= self.latest else bisect_right(self.seqs, seq)

    def chunk_from(self, index: int) -> Chunk:
        """A chunk that starts here. All that ask for the same get the same object, until more comes."""
        chunk = self._joined.get(index)
        if chunk is None:
            chunk = self._joined[index] = self._join(index)
        return chunk

    def _join(self, index: int) -> Chunk:
        lines = self.lines[index : index + CHUNK_EVENTS]
        data = join_lines(lines)
        if len(data) > CHUNK_BYTES and len(lines) > 1:
            lines = list(within_bytes(lines, CHUNK_BYTES))
            data = join_lines(lines)
        return Chunk(data, len(lines), self.seqs[index + len(lines) - 1])


def join_lines(lines: Sequence[bytes]) -> bytes:
    """Lines as they are sent, each with its newline."""
    return b"\n".join([*lines, b""])


def within_bytes(lines: Sequence[bytes], limit_bytes: int) -> Sequence[bytes]:
    """As many of the first lines as stay within the limit, but at least one."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line)
        if size > limit_bytes and index:
            return lines[:index]
    return lines
