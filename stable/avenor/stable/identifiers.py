"""Runtime ids: `rt_1`, `rt_2` …, each given once in the life of a state directory.

Making the directory allocates the id. The high-water mark keeps ids of directories that were pruned from coming back.
"""

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from avenor.host.atomic import sync_path

_NAME: Final = re.compile(r"rt_([1-9][0-9]*)")
_MARK: Final = "high-water"


def runtime_number(name: str) -> int | None:
    """The number in a runtime's id, None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def list_runtimes(state_dir: Path) -> list[str]:
    """The ids that have a directory, in order of their numbers."""
    numbers = [number for entry in os.scandir(state_dir) if (number := runtime_number(entry.name)) is not None]
    return [f"rt_{number}" for number in sorted(numbers)]


class Identifiers:
    """Gives out ids. Only the holder of the state directory's lock has one.

    Args:
        state_dir: The directory of the runtimes' directories.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._marking = threading.Lock()
        self._last = max([_read_mark(state_dir), *_numbers(list_runtimes(state_dir))])

    def allocate(self) -> tuple[str, Path]:
        """A new id and its new, empty directory (0700).

        Raises:
            OSError: The directory cannot be made; no id was used.
        """
        while True:
            number = self._last + 1
            path = self._state_dir / f"rt_{number}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                self._last = number
                continue
            self._last = number
            return path.name, path

    def give_back(self, path: Path) -> None:
        """Take back an id that nobody has heard of, with its directory, if nothing is in that."""
        with contextlib.suppress(OSError):
            path.rmdir()
            if runtime_number(path.name) == self._last:
                self._last -= 1

    def write_mark(self, *, durable: bool = False) -> None:
        """Write down the highest number given, for when its directory is gone. From any thread.

        Args:
            durable: Return when it is on the disk.

        Raises:
            OSError: It could not be written.
        """
        with self._marking:  # so that an older number never replaces a newer one
            # In its place: a new file for each spawn would leave the file system as many to forget. No number is
            # shorter than the one before it, so the text is whole at any moment.
            fd = os.open(self._state_dir / _MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                text = f"{self._last}\n".encode()
                if os.write(fd, text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(fd, len(text))  # of what somebody else may have put there
            finally:
                os.close(fd)
            if durable:
                sync_path(self._state_dir / _MARK)
                sync_path(self._state_dir)


def _numbers(names: Iterable[str]) -> list[int]:
    return [number for name in names if (number := runtime_number(name)) is not None]


def _read_mark(state_dir: Path) -> int:
    try:
        return int((state_dir / _MARK).read_text())
    except (FileNotFoundError, ValueError):  # a damaged mark counts for nothing; the directories are still there
        return 0
