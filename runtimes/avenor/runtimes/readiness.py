"""Tells whoever started a runtime whether it is ready."""

import contextlib
import os

from avenor.protocol.errors import AvenorError
from avenor.runtimes.detach import tell_error


class Readiness:
    """The writing end of a readiness pipe: takes one line, and is closed with it.

    Args:
        fd: The pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, error: AvenorError | None) -> None:
        """Says `ready`, or why not. Only the first time counts; nobody listening is no error."""
        if self._fd < 0:
            return
        if error is None:
            with contextlib.suppress(OSError):
                os.write(self._fd, b"ready\n")
        else:
            tell_error(self._fd, error)
        os.close(self._fd)
        self._fd = -1
