"""Cuts a byte stream into lines. Owns the length limit; what a line means is left to the reader."""

import msgspec

# What the contract allows for a line on the control socket (part 6). Lines of agents may be longer; there the caller
# gives the limit.
DEFAULT_LIMIT_BYTES = 16 * 1024 * 1024


class Oversized(msgspec.Struct, frozen=True):
    """Stands in the place of one line that was over the limit.

    Args:
        size_seen: Bytes of the line that had come when it was given up. How many depends on how the stream was cut, but
            it is always more than the limit.
    """

    size_seen: int


class LineSplitter:
    """An incremental splitter at line feeds; looks at every byte once and keeps at most one unfinished line.

    A line that grows over the limit is reported at once, as one `Oversized`, and skipped up to its line feed.

    Args:
        limit_bytes: The most that a line may have before its line feed, a carriage return included.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._partial = bytearray()
        self._is_skipping = False

    @property
    def pending(self) -> int:
        """Bytes held of a line that is not finished; 0 while an over-long line is being skipped."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """The lines that `data` completes, each without its line feed and without one carriage return before it.

        Empty lines are lines. An over-long line is in the list where it stood in the stream.
        """
        first, *others = data.split(b"\n")
        frames: list[bytes | Oversized] = []
        if not others:
            self._hold(first, frames)
            return frames
        tail = others.pop()
        if self._partial or self._is_skipping:
            self._finish(first, frames)
        else:
            others.insert(0, first)
        self._add_whole(others, frames, data)
        self._hold(tail, frames)
        return frames

    def rest(self) -> bytes:
        """What came after the last line feed, for the end of the stream; empties the splitter."""
        rest = bytes(self._partial)
        self._partial.clear()
        self._is_skipping = False
        return rest

    def _hold(self, piece: bytes, frames: list[bytes | Oversized]) -> None:
        """Keeps a piece whose line feed has not come, or gives its line up."""
        if self._is_skipping:
            return
        size = len(self._partial) + len(piece)
        if size <= self._limit_bytes:
            self._partial += piece
            return
        self._is_skipping = True
        # A new object, since `clear` would keep megabytes allocated.
        self._partial = bytearray()
        frames.append(Oversized(size))

    def _finish(self, piece: bytes, frames: list[bytes | Oversized]) -> None:
        """Ends the line that was unfinished."""
        self._hold(piece, frames)
        if not self._is_skipping:
            frames.append(_without_return(bytes(self._partial)))
        self._partial = bytearray()
        self._is_skipping = False

    def _add_whole(self, lines: list[bytes], frames: list[bytes | Oversized], data: bytes) -> None:
        """Adds lines that lie within `data`, with no work for each line where `data` shows that none is needed."""
        if len(data) > self._limit_bytes:
            for line in lines:
                is_oversized = len(line) > self._limit_bytes
                frames.append(Oversized(len(line)) if is_oversized else _without_return(line))
        elif b"\r" in data:
            frames.extend(map(_without_return, lines))
        else:
            frames.extend(lines)


def _without_return(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line
