"""Writing where nobody may read: for log lines, which are worth less than the work they tell of."""

import os
import select
from typing import Final

# A pipe that poll calls writable takes this much without waiting (pipe(7), POSIX PIPE_BUF).
_PIECE_BYTES: Final = select.PIPE_BUF


class UnhurriedFile:
    """A place for log lines that never holds its writer up and never breaks it.

    A line that nobody takes (a pipe that is full, or whose reader is gone; a full disk) is dropped, or cut short.

    Args:
        fd: A descriptor that may be shared with others, so that its own blocking mode is not ours to change.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write as much of the text as can be written now."""
        rest = text.encode(errors="backslashreplace")
        try:
            while rest and self._poller.poll(0):
                rest = rest[os.write(self._fd, rest[:_PIECE_BYTES]) :]
        except OSError:
            return

    def flush(self) -> None:
        """Nothing is ever held back."""
