"""Reads a runtime's log for those who are behind, in pieces ready to be sent.

Many who are behind by about as much read the same pieces: pieces end where others begin, and the last few are kept
while anybody reads, so that a hundred who catch up cost hardly more than one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
import trio

from avenor.control.ring import CHUNK_BYTES
from avenor.host.logfile import read_after, seq_of
from avenor.protocol.events import decode_head
from avenor.protocol.methods import EVENT_PREFIX, EVENT_SUFFIX

_logger: Final = structlog.get_logger()
_BETWEEN: Final = EVENT_SUFFIX + b"\n" + EVENT_PREFIX
# Reading logs must not take every worker thread from those who sync them; and the disk is one.
_LOG_READERS: Final = trio.CapacityLimiter(4)
_KEPT_PIECES: Final = 8
# Where pieces end if they can, as a multiple: readers who began at different places then go on in step.
_ALIGNMENT: Final = 512

Wants = Callable[[int, str], bool]


class Piece(NamedTuple):
    """Notification lines from the log.

    Attributes:
        data: May be empty, if nothing here is wanted.
        events: How many lines.
        last_seq: The last that was looked at; None if the log has none of what was asked for.
        offset: Where in the file to go on.
    """

    data: bytes
    events: int
    last_seq: int | None
    offset: int


class LogPieces:
    """The log of one runtime, as those read it who are behind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: set[object] = set()
        self._kept: dict[int, Piece] = {}
        self._lock = trio.Lock()

    def opened(self, reader: object) -> None:
        """Somebody begins to read; harmless twice."""
        self._readers.add(reader)

    def closed(self, reader: object) -> None:
        """Somebody reads no more; harmless if it never did."""
        self._readers.discard(reader)
        if not self._readers:
            self._kept.clear()

    async def read(self, after_seq: int, last: int, offset: int, wants: Wants | None) -> Piece:
        """Events after `after_seq` and up to `last`, or as many of them as make a piece.

        Args:
            offset: Of the piece before; 0 if there was none.
            wants: Tells by seq and name what is wanted; None is all. Called in a thread.
        """
        if wants is not None:
            return await self._read_file(after_seq, last, offset, wants)
        async with self._lock:  # whoever waits here is likely to want the same
            piece = self._kept.get(after_seq)
            if piece is None:
                piece = await self._read_file(after_seq, last, offset, None)
                if piece.last_seq is not None and self._readers:
                    self._keep(after_seq, piece)
            return piece

    def _keep(self, after_seq: int, piece: Piece) -> None:
        self._kept[after_seq] = piece
        if len(self._kept) > _KEPT_PIECES:
            del self._kept[next(iter(self._kept))]

    async def _read_file(self, after_seq: int, last: int, offset: int, wants: Wants | None) -> Piece:
        return await trio.to_thread.run_sync(
            _read_piece, self._path, after_seq, last, offset, wants, limiter=_LOG_READERS
        )


def _read_piece(path: Path, after_seq: int, last: int, offset: int, wants: Wants | None) -> Piece:
    try:
        lines, offset = read_after(path, after_seq, CHUNK_BYTES, offset)
    except OSError as error:
        _logger.error("log.unreadable", path=str(path), error=str(error))
        lines = []
    last_seq = _cut(lines, last)
    if last_seq is None:
        return Piece(b"", 0, None, offset)
    if wants is not None:
        lines = [line for line in lines if _is_wanted(line, wants)]
    data = EVENT_PREFIX + _BETWEEN.join(lines) + EVENT_SUFFIX + b"\n" if lines else b""
    return Piece(data, len(lines), last_seq, offset)


def _cut(lines: list[bytes], last: int) -> int | None:
    """Removes lines from the end to where this piece ends, and returns its last `seq`.

    What is beyond `last` is in memory and is taken from there, since a full disk may have kept it out of the log.
    """
    if not lines or (seq_of(lines[0]) or 0) > last:
        return None
    end = min(last, seq_of(lines[-1]) or 0)
    aligned = end // _ALIGNMENT * _ALIGNMENT
    if aligned >= (seq_of(lines[0]) or 0):
        end = aligned
    while (seq_of(lines[-1]) or 0) > end:
        lines.pop()
    return seq_of(lines[-1])


def _is_wanted(line: bytes, wants: Wants) -> bool:
    try:
        head = decode_head(line)
    except msgspec.DecodeError:  # an event without a name or time: nobody has asked for it by name
        return False
    return wants(head.seq, head.event)
