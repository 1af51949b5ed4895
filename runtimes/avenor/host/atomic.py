"""Replacing files so that a reader sees the old content or the new, never a part of either."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Room and descriptors: there may be some again in a moment.
_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_TEMPORARY: Final = (".avenor-", ".tmp")
_DEVICES: Final = "/dev"


def write_atomic(
    path: str | Path,
    data: bytes,
    mode: int = 0o600,
    *,
    durable: bool = True,
    before_rename: Callable[[], None] | None = None,
) -> None:
    """Replace a file's content in one step: a temporary file in the same directory, then a rename.

    Args:
        path: The file; a symbolic link there is replaced, not followed, if it leads to a regular file or nowhere.
        data: The whole new content.
        mode: Permission bits of the new file, whatever the umask.
        durable: Also make file and name survive a power failure before returning. Without it the step is still
            atomic for readers; that is enough for facts which a reboot makes meaningless.
        before_rename: Called when the temporary file is complete.

    Raises:
        OSError: It could not be written; the old content stands and no temporary file is left. `EINVAL` when
            something other than a regular file is there (renaming over `/dev/null` would destroy it).
    """
    target = Path(path)
    require_replaceable(target)
    # Not derived from the file's name, which may have no room for a suffix.
    temporary = target.with_name(os.urandom(8).hex().join(_TEMPORARY))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            _fill(fd, data, mode, durable=durable)
        finally:
            os.close(fd)
        if before_rename is not None:
            before_rename()
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_path(target.parent)


def remove_if_exists(path: str | Path) -> bool:
    """Remove a regular file, or a symbolic link to one or to nowhere, and say whether one was there.

    Raises:
        OSError: It could not be removed; `EINVAL` for anything else (a device, a directory).
    """
    require_replaceable(Path(path))
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_unfinished(directory: str | Path) -> None:
    """Remove the temporary files of writers that were killed; only where nobody can be writing. What resists stays."""
    for name in os.listdir(directory):
        if name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1]):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


def is_passing(error: OSError) -> bool:
    """Whether it may go well if it is done again: the system was only short of something."""
    return error.errno in _PASSING


def require_replaceable(path: Path) -> None:
    """Refuse paths at which something lies that is no regular file, nor a link to one or to nowhere.

    Raises:
        OSError: `EINVAL`, naming the path.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _is_replaceable_link(path))):
        raise OSError(errno.EINVAL, "not a regular file, so it is left alone", str(path))


def _is_replaceable_link(path: Path) -> bool:
    if os.path.realpath(path.parent) == _DEVICES:  # /dev/stdout may lead to a regular file, and is no file all the same
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def _fill(fd: int, data: bytes, mode: int, *, durable: bool) -> None:
    os.fchmod(fd, mode)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    if durable:
        os.fsync(fd)


def sync_path(path: Path) -> None:
    """Return when a file, or the names in a directory, are on the disk. Blocks.

    Raises:
        OSError: They could not be brought there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
