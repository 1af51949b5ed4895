"""Standard streams that are really there, for commands that go on to open files and start programs."""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open the null device in place of each standard stream that our starter has closed.

    Else the next file that is opened would get its number, and be written to by whoever says something.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
