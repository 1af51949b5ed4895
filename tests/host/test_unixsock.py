"""Control sockets: one owner, private, stale ones replaced."""

import concurrent.futures
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from avenor.host import unixsock
from avenor.host.lock import FileLock
from avenor.host.unixsock import (
    NotASocket,
    SocketInUse,
    SocketPathTooLong,
    bind_listener,
    dial,
    peer_uid,
    remove_if_ours,
    socket_inode,
)

START = """
import sys
from avenor.host.unixsock import SocketInUse, bind_listener
sys.stdin.readline()
try:
    listener = bind_listener(sys.argv[1])
except SocketInUse:
    print("lost", flush=True)
else:
    print("won", flush=True)
    sys.stdin.read()
"""


def make_stale(path: Path) -> None:
    """Leaves a socket as a killed server does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()


def exchange(listener: socket.socket, path: Path) -> None:
    """Proves that this listener is the one at the path."""
    with dial(path) as client:
        client.sendall(b"hello")
        while True:
            connection, _ = listener.accept()
            with connection:
                if said := connection.recv(5):  # others came only to see whether we live
                    assert said == b"hello"
                    return


def test_a_socket_is_private_from_the_first_moment(tmp_path: Path) -> None:
    """Directory 0700 if it was made, socket 0600 under any umask, the descriptor not inherited, never blocking."""
    path = tmp_path / "new" / "s.sock"
    old = os.umask(0)
    try:
        listener = bind_listener(path)
    finally:
        os.umask(old)
    with listener:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not listener.get_inheritable()
        assert not listener.getblocking()
        exchange(listener, path)


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """It may be shared with others, and is not ours to change."""
    tmp_path.chmod(0o755)
    with bind_listener(tmp_path / "s.sock"):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_live_socket_is_refused_and_not_touched(tmp_path: Path) -> None:
    """Not even a full backlog makes it look dead."""
    path = tmp_path / "s.sock"
    with bind_listener(path) as listener:
        inode = socket_inode(path)
        listener.listen(0)
        with dial(path):
            for _ in range(2):
                with pytest.raises(SocketInUse, match=re.escape(f"{path} has a live server")):
                    bind_listener(path)
        assert socket_inode(path) == inode


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """The dead server's file goes, the new one answers."""
    path = tmp_path / "s.sock"
    make_stale(path)
    with pytest.raises(ConnectionRefusedError):
        dial(path)
    with bind_listener(path) as listener:
        exchange(listener, path)


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link"])
def test_what_is_not_a_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    """A mistyped path costs nobody a file, and leaves no litter."""
    path = tmp_path / "s.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            path.symlink_to(tmp_path / "elsewhere")
    before = path.lstat().st_ino
    with pytest.raises(NotASocket, match="not a socket"):
        bind_listener(path)
    assert path.lstat().st_ino == before
    assert os.listdir(tmp_path) == ["s.sock"]


def test_a_mark_in_a_directory_of_ours_is_no_obstacle(tmp_path: Path) -> None:
    """A plain file at the place of a socket, which a settlement leaves that was cut; a folder is none of ours."""
    path = tmp_path / "control.sock"
    path.touch()
    with bind_listener(path, has_directory=True) as listener:
        exchange(listener, path)
    path.unlink()
    path.mkdir()
    with pytest.raises(NotASocket):
        bind_listener(path, has_directory=True)


def test_another_kind_of_socket_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    """Somebody's datagram socket lives, although it refuses our call."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        with pytest.raises(SocketInUse):
            bind_listener(path)
        assert path.exists()


@pytest.mark.parametrize("is_stale", [True, False])
def test_ten_processes_that_start_at_once_give_one_winner(tmp_path: Path, is_stale: bool) -> None:
    """Nine are refused, and the winner's socket is the one at the path."""
    path = tmp_path / "s.sock"
    if is_stale:
        make_stale(path)
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(10)
    ]
    try:
        for start in starts:
            assert start.stdin is not None
            start.stdin.write("go\n")
            start.stdin.flush()
        words = [start.stdout.readline().strip() for start in starts if start.stdout is not None]
        assert sorted(words) == ["lost"] * 9 + ["won"]
        dial(path).close()
    finally:
        for start in starts:
            with start:
                start.kill()


def test_a_race_over_a_stale_socket_is_won_once_each_time(tmp_path: Path) -> None:
    """Again and again, with threads, for the window is short."""
    path = tmp_path / "s.sock"
    gate = threading.Barrier(4)

    def start(_: int) -> socket.socket | None:
        gate.wait()
        try:
            return bind_listener(path)
        except SocketInUse:
            return None

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(25):
            won = [each for each in pool.map(start, range(4)) if each is not None]
            assert len(won) == 1
            exchange(won[0], path)
            won[0].close()


def test_a_long_path_is_bound_and_dialled_through_its_directory(tmp_path: Path) -> None:
    """State directories can be deep; the kernel's limit is not ours."""
    path = tmp_path / ("d" * 120) / "control.sock"
    before = len(os.listdir("/proc/self/fd"))
    with bind_listener(path) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        exchange(listener, path)
        with pytest.raises(SocketInUse):
            bind_listener(path)
        assert remove_if_ours(path, socket_inode(path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_long_path_that_is_not_wanted_or_not_possible_is_a_clear_error(tmp_path: Path) -> None:
    """It names the path, its size and the limit, and makes nothing."""
    long = tmp_path / ("d" * 120) / "s.sock"
    with pytest.raises(SocketPathTooLong, match=r"107 bytes, this one has \d+") as caught:
        bind_listener(long, allow_long_path=False)
    assert caught.value.data["limit_bytes"] == 107
    assert os.listdir(tmp_path) == []
    with pytest.raises(SocketPathTooLong):
        bind_listener(tmp_path / ("n" * 120))
    assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="107 is the limit"):
        dial(tmp_path / ("n" * 120))


def test_the_limit_is_exact(tmp_path: Path) -> None:
    """107 bytes are an ordinary path, 108 are not."""
    room = 107 - len(os.fsencode(tmp_path)) - 1
    fitting, above = tmp_path / ("x" * room), tmp_path / ("x" * (room + 1))
    with bind_listener(fitting, allow_long_path=False) as listener:
        exchange(listener, fitting)
    with pytest.raises(SocketPathTooLong):
        bind_listener(above, allow_long_path=False)


def test_a_socket_is_removed_only_while_it_is_ours(tmp_path: Path) -> None:
    """With it goes the lock file; a successor's socket stays, and twice is harmless."""
    path = tmp_path / "s.sock"
    with bind_listener(path):
        inode = socket_inode(path)
        assert remove_if_ours(path, inode)
        assert not remove_if_ours(path, inode)
        assert os.listdir(tmp_path) == []
        with bind_listener(path) as successor:
            assert not remove_if_ours(path, inode)
            exchange(successor, path)
    path.unlink()
    path.write_text("a file by now")
    assert not remove_if_ours(path, path.stat().st_ino)


def test_whoever_has_the_directory_needs_no_other_lock(tmp_path: Path) -> None:
    """One file is made, and taken away; what a dead server has left is replaced all the same."""
    path = tmp_path / "s.sock"
    make_stale(path)
    with bind_listener(path, has_directory=True) as listener:
        exchange(listener, path)
        assert os.listdir(tmp_path) == ["s.sock"]
        with pytest.raises(SocketInUse):
            bind_listener(path, has_directory=True)
        assert remove_if_ours(path, socket_inode(path), has_directory=True)
    assert os.listdir(tmp_path) == []


def test_removing_in_a_directory_that_is_gone_does_nothing(tmp_path: Path) -> None:
    """State directories may be deleted under a running server."""
    assert not remove_if_ours(tmp_path / "no" / "s.sock", 1)


def test_dialling_where_no_server_is_tells_why(tmp_path: Path) -> None:
    """No file and no listener are different errors, and neither leaks a descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        dial(tmp_path / "s.sock")
    make_stale(tmp_path / "s.sock")
    with pytest.raises(ConnectionRefusedError):
        dial(tmp_path / "s.sock")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_peer_is_this_user() -> None:
    """The kernel's word, on both ends."""
    left, right = socket.socketpair()
    with left, right:
        assert peer_uid(left) == peer_uid(right) == os.getuid()


def test_a_start_that_was_halted_does_not_halt_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is waited for a while only, and the holder's files stay as they are."""
    path = tmp_path / "s.sock"
    monkeypatch.setattr(unixsock, "_LOCK_SECONDS", 0)
    with bind_listener(path):
        inode = socket_inode(path)
        lock = FileLock(f"{path}.lock")
        assert lock.try_acquire()
        with pytest.raises(SocketInUse, match="another start"):
            bind_listener(path)
        assert not remove_if_ours(path, inode)
        assert sorted(os.listdir(tmp_path)) == ["s.sock", "s.sock.lock"]
        lock.release()
        assert remove_if_ours(path, inode)


def test_a_listener_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither file nor descriptor, when the last step of making it fails."""

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "not permitted")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(PermissionError):
        bind_listener(tmp_path / "s.sock")
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before
