"""Named places at which the chaos suite kills or halts the process that comes there; nothing at all in production.

They do something only in a process that was started with `AVENOR_FAILPOINTS` naming a directory. In it, `hits` has a
line with name and pid for each time that a place was reached. A file `kill/NAME` asks that the first process there be
killed, which takes the file away and adds a line to `killed`. A file `hold/NAME` halts every process there while it
exists.
"""

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

VARIABLE: Final = "AVENOR_FAILPOINTS"
_HOLD_POLL_SECONDS: Final = 0.01

_directory = os.environ.get(VARIABLE)


def failpoint(name: str) -> None:
    """This place was reached; may not return."""
    if _directory is not None:
        _reach(_directory, name)


@contextmanager
def no_failpoints() -> Generator[None, None, None]:
    """Places that are reached inside count for nothing: what happens there is a rehearsal."""
    global _directory
    directory, _directory = _directory, None
    try:
        yield
    finally:
        _directory = directory


def _reach(directory: str, name: str) -> None:
    _note(directory, "hits", name)
    if _claim(os.path.join(directory, "kill", name)):
        _note(directory, "killed", name)
        os.kill(os.getpid(), signal.SIGKILL)
    held = os.path.join(directory, "hold", name)
    while os.path.exists(held):  # polling: nothing else of this process may go on meanwhile
        time.sleep(_HOLD_POLL_SECONDS)


def _claim(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _note(directory: str, file: str, name: str) -> None:
    # One write of one line: several processes share the file.
    fd = os.open(os.path.join(directory, file), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{name} {os.getpid()}\n".encode())
    finally:
        os.close(fd)
