"""Addresses of Unix sockets, too long paths included. Imports next to nothing, for commands start here."""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Generator
from typing import Final

# The kernel's sun_path holds 108 bytes on Linux and 104 elsewhere, with the zero at the end.
LIMIT_BYTES: Final = 107 if sys.platform == "linux" else 103


def is_too_long(path: str | os.PathLike[str]) -> bool:
    """Whether a path does not fit into a socket address as it is."""
    return len(os.fsencode(path)) > LIMIT_BYTES


@contextlib.contextmanager
def short_address(path: str | os.PathLike[str]) -> Generator[str, None, None]:
    """An address that means this path while the context lasts.

    A path that is too long goes through the opened directory, `/proc/self/fd/N/name`.

    Raises:
        OSError: `ENAMETOOLONG` when there is no way; or the directory of a long path cannot be opened.
    """
    text = os.fspath(path)
    if not is_too_long(text):
        yield text
        return
    directory, name = os.path.split(text)
    if not os.path.isdir("/proc/self/fd") or len(os.fsencode(name)) > LIMIT_BYTES - len("/proc/self/fd/1234567/"):
        size = len(os.fsencode(text))
        raise OSError(errno.ENAMETOOLONG, f"a socket path of {size} bytes, {LIMIT_BYTES} is the limit", text)
    fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def dial(path: str | os.PathLike[str]) -> socket.socket:
    """A connected, blocking stream socket; whoever called closes it.

    Raises:
        OSError: `FileNotFoundError` and `ConnectionRefusedError` say that no server is there; see `short_address`.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
