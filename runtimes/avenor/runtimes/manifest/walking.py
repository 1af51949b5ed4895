"""Looks at all that is in a worktree, whatever git would make of it."""

import os
import stat
from typing import Final

import msgspec

# More than any repository has; who makes more than that is up to something else than his task.
MAX_PATHS: Final = 1_000_000
# Of one file that was changed; the largest that common hosts of repositories take.
MAX_FILE_BYTES: Final = 100 << 20
MAX_TOTAL_BYTES: Final = 1 << 30

# What git refuses as a part of a path, since some file systems take it for `.git`.
_LIKE_GIT: Final = frozenset({b".git", b"git~1"})


class Problem(msgspec.Struct, frozen=True, order=True):
    """Something that cannot be part of a candidate, and why."""

    path: str
    reason: str


class Walk(msgspec.Struct):
    """What was found.

    Attributes:
        files: Regular files and links by their path, with what `lstat` says of them.
        problems: What is neither, or cannot be looked at.
    """

    files: dict[bytes, os.stat_result] = {}
    problems: list[Problem] = []


def walk(top: str) -> Walk:
    """All that is below a directory, but for the `.git` at its top. Follows no link. Blocks: use a thread."""
    found = Walk(files={}, problems=[])
    root = os.fsencode(top)
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as error:
            found.problems.append(Problem(shown(folder), f"it cannot be read: {error.strerror}"))
            continue
        for entry in entries:
            _take(found, entry, os.path.join(folder, entry.name), waiting)
        if len(found.files) > MAX_PATHS:
            found.problems.append(Problem("", f"there are more than {MAX_PATHS} files"))
            break
    return found


def shown(path: bytes) -> str:
    """A path as text that can be told and matched: bytes that are no UTF-8 are shown as `\\xNN`."""
    return path.decode("utf-8", "backslashreplace")


def _take(found: Walk, entry: os.DirEntry[bytes], path: bytes, waiting: list[bytes]) -> None:
    if entry.name.lower().rstrip(b" .") in _LIKE_GIT or entry.name == b".git":
        if path != b".git":
            found.problems.append(Problem(shown(path), "there is a repository inside the repository"))
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        found.problems.append(Problem(shown(path), f"it cannot be looked at: {error.strerror}"))
        return
    if stat.S_ISDIR(status.st_mode):
        waiting.append(path)
    elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        found.files[path] = status
    else:
        found.problems.append(Problem(shown(path), "it is neither a file, a link nor a directory"))


def find_obstacle(top: str, path: bytes, status: os.stat_result) -> str | None:
    """Why a changed file cannot be taken into a candidate; None if it can."""
    full = os.path.join(os.fsencode(top), path)
    if stat.S_ISLNK(status.st_mode):
        return _leads_out(path, os.readlink(full))
    if status.st_size > MAX_FILE_BYTES:
        return f"it has {status.st_size} bytes, more than {MAX_FILE_BYTES}"
    if not os.access(full, os.R_OK):
        return "it cannot be read"
    return None


def _leads_out(path: bytes, target: bytes) -> str | None:
    way = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if target.startswith(b"/") or way == b".." or way.startswith(b"../"):
        return f"it is a link that leads out of the repository, to {shown(target)}"
    if b".git" in way.split(b"/"):
        return f"it is a link into the repository's own files, to {shown(target)}"
    return None
