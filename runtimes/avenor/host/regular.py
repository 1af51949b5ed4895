"""Reading a file that somebody named: whole, bounded, and without ever waiting for one that is no regular file."""

import errno
import os
import stat
from typing import Final

_NOT_REGULAR: Final = "it is not a regular file"


def read_regular(path: str, *, limit_bytes: int) -> bytes:
    """What is in a regular file. Anything else (a FIFO, a device) could make the caller wait.

    Raises:
        OSError: It cannot be read, is no regular file, or has more than `limit_bytes`; `strerror` says so in words.
    """
    descriptor = open_regular(path)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", path)
    return data


def open_regular(path: str) -> int:
    """A descriptor that reads a regular file, for one that is not to be held in memory.

    Raises:
        OSError: It cannot be read, or is no regular file; `strerror` says so in words.
    """
    try:
        # Opened so that a FIFO without a writer does not wait, and looked at only then: the path may change meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket; which of the two depends on the system
            raise OSError(errno.EINVAL, _NOT_REGULAR, path) from error
        raise
    except ValueError as error:
        raise OSError(errno.EINVAL, "no file can have that name", path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_REGULAR, path)
    return descriptor
