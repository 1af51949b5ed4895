"""Control sockets in the file system: one owner each, found by path, open to one user.

Starting is settled under `<path>.lock`, held only while a socket is put there or taken away. It is not a sign of life:
whoever must prove that it lives keeps a lock of its own.
"""

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar, Final, Protocol

from avenor.host.lock import FileLock, acquired_within
from avenor.host.sockaddr import LIMIT_BYTES, dial, is_too_long, short_address
from avenor.protocol.errors import ConfigError, Refused

__all__ = [
    "NotASocket",
    "SocketInUse",
    "SocketPathTooLong",
    "bind_listener",
    "dial",
    "has_server",
    "peer_uid",
    "remove_if_ours",
    "socket_inode",
]

# What the kernel keeps of connections that were not accepted yet; it caps this at net.core.somaxconn.
_BACKLOG: Final = 4096
_LOCK_SECONDS: Final = 5.0


class SocketInUse(Refused):
    """A live server has this socket."""

    reason: ClassVar[str] = "socket_in_use"


class NotASocket(Refused):
    """Something else is at the path; it is left alone."""

    reason: ClassVar[str] = "not_a_socket"


class SocketPathTooLong(ConfigError):
    """The path does not fit into a socket address."""

    reason: ClassVar[str] = "socket_path_too_long"


class _HasPeer(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def bind_listener(path: str | Path, *, allow_long_path: bool = True, has_directory: bool = False) -> socket.socket:
    """A listening, non-blocking stream socket at a path (0600), which replaces one whose server is dead.

    Of several starts at the same time one wins. A directory that is not there is made (0700).

    Args:
        path: Where clients will find it.
        allow_long_path: Reach a path above the kernel's limit through its directory. Our own programs can dial such a
            socket, others cannot; so a path that a user chose is better refused.
        has_directory: Nobody else starts there, because the caller holds a lock on the directory: no other is needed,
            and a file that is no socket is what was left there as a mark.

    Raises:
        SocketInUse: A live server is there; nothing of it was touched.
        NotASocket: Something that is not a socket is there, and may be somebody's.
        SocketPathTooLong: See `allow_long_path`; also without /proc, or when the name alone is too long.
        OSError: The directory cannot be made or written.
    """
    target = Path(path)
    if is_too_long(target) and not allow_long_path:
        raise _too_long(target)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.nullcontext() if has_directory else _start_lock(target):
        _clear_stale(target, has_directory=has_directory)
        try:
            return _listen(target)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _too_long(target) from error
            if error.errno == errno.EADDRINUSE:
                raise _in_use(target) from error
            raise


def has_server(path: str | Path) -> bool:
    """Whether somebody listens at a path, or may: where it cannot be found out, there is somebody.

    Raises:
        OSError: There is no descriptor left to look with.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with short_address(path) as address:
                probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            # A full backlog, another kind of socket, no permission: alive, or not ours to judge.
            return error.errno != errno.ENAMETOOLONG
        return True


def socket_inode(path: str | Path) -> int:
    """What tells our socket file from a later one at the same path, for `remove_if_ours`.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    return os.lstat(path).st_ino


def remove_if_ours(path: str | Path, inode: int, *, has_directory: bool = False) -> bool:
    """Remove a socket file that is still the one we made, and say whether it was. Its lock file goes too.

    Call it while the listener is open: a closed one's inode number may already belong to another's file.

    Args:
        path, has_directory: As they were given to `bind_listener`.
        inode: What `socket_inode` gave then.
    """
    target = Path(path)
    if not _is_socket_with(target, inode):
        return False
    try:
        with contextlib.nullcontext() if has_directory else _start_lock(target):
            if not _is_socket_with(target, inode):
                return False
            target.unlink()
            return True
    except (FileNotFoundError, SocketInUse):  # removed meanwhile, or somebody is starting there
        return False


def peer_uid(sock: _HasPeer) -> int:
    """The user at the other end of a connected Unix socket, as the kernel noted when it connected.

    Raises:
        OSError: Not a connected Unix socket.
    """
    if sys.platform == "linux":
        _, uid, _ = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iii")))
        return int(uid)
    # struct xucred of <sys/ucred.h>: version, uid, and groups that do not matter here; LOCAL_PEERCRED is 1.
    _, uid = struct.unpack_from("II", sock.getsockopt(0, 1, 76))
    return int(uid)


@contextlib.contextmanager
def _start_lock(target: Path) -> Generator[None, None, None]:
    """Nobody else puts a socket there or takes one away meanwhile. The lock file stays only beside a socket.

    Raises:
        SocketInUse: Somebody has held it for seconds, which takes milliseconds.
    """
    lock = FileLock(f"{target}.lock")
    if not acquired_within(_LOCK_SECONDS, lock.try_acquire):
        raise SocketInUse(f"{target}: another start has held {target}.lock for {_LOCK_SECONDS:g} s")
    try:
        yield
    finally:
        if _is_socket(target):
            lock.release()
        else:
            lock.remove()


def _clear_stale(target: Path, *, has_directory: bool) -> None:
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if has_directory and stat.S_ISREG(mode):
        target.unlink()
        return
    if not stat.S_ISSOCK(mode):
        raise NotASocket(f"{target} is not a socket and is left alone; choose another path", data={"path": str(target)})
    if has_server(target):
        raise _in_use(target)
    target.unlink()


def _listen(target: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if sys.platform == "linux":
            os.fchmod(listener.fileno(), 0o600)  # the file gets these bits as it is made: never open to others
        with short_address(target) as address:
            listener.bind(address)
        try:
            # At once: whoever sees the file may connect, and is refused until then.
            listener.listen(_BACKLOG)
            # A strict umask may have taken our own rights. Elsewhere than on Linux others' are taken only now: servers
            # look at who has connected, too.
            os.chmod(target, 0o600)
            listener.setblocking(False)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except BaseException:
        listener.close()
        raise
    return listener


def _is_socket(target: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(target).st_mode)
    except OSError:
        return False


def _is_socket_with(target: Path, inode: int) -> bool:
    try:
        found = os.lstat(target)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_ino == inode


def _in_use(target: Path) -> SocketInUse:
    return SocketInUse(f"{target} has a live server; stop it or choose another path", data={"path": str(target)})


def _too_long(target: Path) -> SocketPathTooLong:
    size = len(os.fsencode(target))
    return SocketPathTooLong(
        f"{target}: a socket path may have {LIMIT_BYTES} bytes, this one has {size}; choose a shorter one",
        data={"path": str(target), "limit_bytes": LIMIT_BYTES},
    )
