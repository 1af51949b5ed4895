"""Which paths of a worktree are bound writable for the globs that an attempt may write."""

import contextlib
import os
from collections.abc import Sequence
from typing import Final

from avenor.protocol.manifest.globs import matches_glob, overlap

_WILD: Final = frozenset("*?[")
# A file that was made only so that there is something to bind has this time until somebody writes to it.
PLACEHOLDER_NS: Final = 1_000_000_000

FROZEN_LIMIT: Final = 256


def writable_paths(worktree: str, globs: Sequence[str]) -> list[str]:
    """The absolute paths to bind writable; what is not there yet is made, empty: only what is there can be bound.

    A glob with wildcards becomes the directory before the first of them: new files that appear there beside the glob
    are caught by the diff only; for those that are there see `frozen_paths`. One without is that file or directory; if
    nothing is there, it is a file, or a directory if it ends in a slash.

    Args:
        worktree: Its top, absolute.
        globs: Good ones (`globs.find_glob_mistake`), relative to it.
    """
    found: set[str] = set()
    for glob in globs:
        path, is_folder = _target(glob)
        full = os.path.normpath(os.path.join(worktree, path))
        _make(worktree, full, is_folder=is_folder)
        if os.path.lexists(full):
            found.add(full)
    return sorted(path for path in found if not any(path.startswith(f"{other}{os.sep}") for other in found))


def frozen_paths(worktree: str, globs: Sequence[str]) -> list[str]:
    """What `writable_paths` opens with a directory although no glob means it, to be bound read-only: absolute paths.

    Only the first `FROZEN_LIMIT` of them: each is a mount. The diff catches the rest.
    """
    found: list[str] = []
    waiting = [path for glob in globs if not _WILD.isdisjoint(glob) for path in [_target(glob)[0]]]
    while waiting and len(found) < FROZEN_LIMIT:
        folder = waiting.pop(0)
        for entry in _entries(os.path.join(worktree, folder)):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if any(covers_all(glob, path) for glob in globs):
                    continue
                if any(overlap(glob, f"{path}/**") for glob in globs):
                    waiting.append(path)
                    continue
            elif any(matches_glob(glob, path) for glob in globs):
                continue
            if not entry.is_symlink():  # a link has no contents of its own, and cannot be bound
                found.append(entry.path)
    return found[:FROZEN_LIMIT]


def covers_all(glob: str, folder: str) -> bool:
    """Whether a glob means everything below a folder, as far as its form tells."""
    base = glob.removesuffix("**").rstrip("/")
    return _WILD.isdisjoint(base) and (not base or folder == base or folder.startswith(f"{base}/"))


def is_placeholder(status: os.stat_result) -> bool:
    """Whether a file is one that was made for the bind, and has not been written since."""
    return status.st_size == 0 and status.st_mtime_ns == PLACEHOLDER_NS


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []


def _target(glob: str) -> tuple[str, bool]:
    """The path that stands for a glob, and whether it is a directory if it is not there."""
    parts = glob.split("/")
    wild = next((at for at, part in enumerate(parts) if not _WILD.isdisjoint(part)), None)
    if wild is None:
        return glob.rstrip("/"), glob.endswith("/")
    return "/".join(parts[:wild]), True


def _make(worktree: str, path: str, *, is_folder: bool) -> None:
    """Makes what is not there. A link on the way is left as it is: the sandbox refuses it."""
    folder = path if is_folder else os.path.dirname(path)
    if os.path.lexists(path) or os.path.realpath(folder) != os.path.join(
        os.path.realpath(worktree), os.path.relpath(folder, worktree)
    ).removesuffix("/."):
        return
    with contextlib.suppress(FileExistsError, NotADirectoryError):
        os.makedirs(folder, exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
            os.utime(path, ns=(PLACEHOLDER_NS, PLACEHOLDER_NS))
