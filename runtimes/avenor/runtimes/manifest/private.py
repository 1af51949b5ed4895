"""The private places of one attempt: empty ones for temporary files, and copies of what the agent keeps in its home.

A copy has only what its profile names (a login, settings): no sessions of others, and no database that another process
writes while it is copied.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from avenor.runtimes.backends.profiles import StatePlace
from avenor.runtimes.manifest.sandbox import HIDDEN, private_place, state_copy

# Of one file, and of all that is copied for one place: logins and settings are far smaller.
FILE_LIMIT_BYTES: Final = 64 << 20
PLACE_LIMIT_BYTES: Final = 256 << 20

_logger: Final = structlog.get_logger()


def make_private(private: str, places: Sequence[StatePlace]) -> None:
    """Makes an attempt's private directory, its places and the copies of an agent's state. Blocks: use a thread.

    What is there already stays: a second start of the same attempt finds what its agent has left.

    Args:
        private: `Cage.private`.
        places: What the agent's profile says (`Profile.state_places`); `Cage.home_state` is their paths, in this order.

    Raises:
        OSError: It cannot be made. What cannot be read of the agent's state is left out.
    """
    os.makedirs(private, mode=0o700, exist_ok=True)
    for hidden in HIDDEN:
        own = private_place(private, hidden)
        if own is not None:
            os.makedirs(own, mode=0o700, exist_ok=True)
    for number, place in enumerate(places):
        target = state_copy(private, number)
        if not os.path.isdir(target):
            os.makedirs(target, mode=0o700)
            _copy(Path(place.path), Path(target), place.keep)


def _copy(source: Path, target: Path, keep: Sequence[str]) -> None:
    left = PLACE_LIMIT_BYTES
    for path in _kept(source, keep):
        size = _plain_size(path)
        if size is None:
            continue
        if size > min(left, FILE_LIMIT_BYTES):
            _logger.warning("sandbox.state_not_copied", path=str(path), size_bytes=size)
            continue
        left -= size
        copy = target / path.relative_to(source)
        # It may go, or be closed to us, between two looks: then the agent does without.
        with contextlib.suppress(OSError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def _kept(source: Path, keep: Sequence[str]) -> Iterator[Path]:
    """The files that the patterns name; a directory is all that is in it."""
    for pattern in keep:
        with contextlib.suppress(OSError):
            for found in sorted(source.glob(pattern)):
                yield from _files(found)


def _files(path: Path) -> Iterable[Path]:
    if not path.is_dir():
        return [path]
    return [Path(folder) / name for folder, _, names in os.walk(path) for name in sorted(names)]


def _plain_size(path: Path) -> int | None:
    """The size of a regular file, behind links too (people keep their settings elsewhere); None of all else."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
