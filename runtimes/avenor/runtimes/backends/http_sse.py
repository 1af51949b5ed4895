"""Server-sent events: cuts a byte stream into the data of its events. Pure.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, but for lines that end with a lone CR, which no
server that we speak to writes.
"""

from typing import Final

LIMIT_BYTES: Final = 64 * 1024 * 1024  # As for a line of an agent on stdio: a tool's whole output comes in one event.


class EventTooLong(Exception):
    """An event is over the limit; the stream cannot be followed any further."""


class EventStream:
    """Gathers lines until a blank one ends the event.

    Args:
        limit_bytes: Of one event's data, and of one line.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []  # of the unfinished line
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes; events without data are left out.

        Raises:
            EventTooLong: An event is over the limit.
        """
        first, *rest = chunk.split(b"\n")
        found: list[bytes] = []
        self._add_piece(first)
        for piece in rest:
            found += self._end_line()
            self._add_piece(piece)
        return found

    def _add_piece(self, piece: bytes) -> None:
        self._line_size += len(piece)
        if self._line_size > self._limit:
            raise EventTooLong(f"an event of the stream is over {self._limit} bytes")
        if piece:
            self._pieces.append(piece)

    def _end_line(self) -> list[bytes]:
        line = b"".join(self._pieces).removesuffix(b"\r")
        self._pieces.clear()
        self._line_size = 0
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._add_data(value.removeprefix(b" "))
        return []

    def _add_data(self, value: bytes) -> None:
        self._data_size += len(value)
        if self._data_size > self._limit:
            raise EventTooLong(f"an event of the stream is over {self._limit} bytes")
        self._data.append(value)

    def _end_event(self) -> list[bytes]:
        if not self._data:
            return []
        data = b"\n".join(self._data)
        self._data.clear()
        self._data_size = 0
        return [data]
