"""Files that are replaced in one step."""

import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from avenor.host import atomic
from avenor.host.atomic import remove_if_exists, remove_unfinished, write_atomic


@pytest.fixture
def loose_umask() -> Generator[None, None, None]:
    """A umask that hides nothing, and one test later the old one."""
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.mark.parametrize("durable", [True, False])
def test_the_content_is_replaced_and_nothing_else_is_left(tmp_path: Path, durable: bool) -> None:
    """Old content goes, the mode is the one asked for, no temporary file stays."""
    target = tmp_path / "file"
    target.write_text("a longer old content")
    target.chmod(0o644)
    write_atomic(target, b"new", durable=durable)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, loose_umask: None) -> None:
    """It is exact under any umask."""
    write_atomic(tmp_path / "private", b"")
    write_atomic(tmp_path / "shared", b"", mode=0o644)
    os.umask(0o077)
    write_atomic(tmp_path / "open", b"", mode=0o666)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"private": 0o600, "shared": 0o644, "open": 0o666}


def test_a_name_as_long_as_the_file_system_allows_works(tmp_path: Path) -> None:
    """The temporary name needs no room in the file's own."""
    target = tmp_path / ("x" * 255)
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"


def test_a_reader_that_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    """The old file is never written into."""
    target = tmp_path / "file"
    target.write_text("old")
    with target.open() as reader:
        write_atomic(target, b"new")
        assert reader.read() == "old"


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """A link that somebody put there does not lead the write elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / "link").symlink_to(elsewhere)
    write_atomic(tmp_path / "link", b"new")
    assert elsewhere.read_text() == "untouched"
    assert not (tmp_path / "link").is_symlink()


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    """Devices, directories, sockets and pipes are neither replaced nor removed, nor are links to them."""
    fifo, folder, sock, link = tmp_path / "fifo", tmp_path / "folder", tmp_path / "sock", tmp_path / "link"
    os.mkfifo(fifo)
    folder.mkdir()
    link.symlink_to(fifo)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(sock))
    for path in (fifo, folder, sock, link, Path("/dev/null")):
        before = path.lstat()
        with pytest.raises(OSError, match="not a regular file"):
            write_atomic(path, b"new")
        with pytest.raises(OSError, match="not a regular file"):
            remove_if_exists(path)
        assert path.lstat().st_ino == before.st_ino
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder", "link", "sock"]


def test_the_links_among_the_devices_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/dev/stdout`, also where standard output is a regular file."""
    monkeypatch.setattr(atomic, "_DEVICES", str(tmp_path / "dev"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "dev")
    (tmp_path / "output").write_text("so far")
    (tmp_path / "dev/stdout").symlink_to(tmp_path / "output")
    for path in (tmp_path / "dev/stdout", tmp_path / "other/stdout"):
        with pytest.raises(OSError, match="not a regular file"):
            write_atomic(path, b"new")
        with pytest.raises(OSError, match="not a regular file"):
            remove_if_exists(path)
    assert (tmp_path / "dev/stdout").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is told, and is no loss."""
    target = tmp_path / "file"
    target.write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(target, b"new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """It is not made: a mistyped path must not go unnoticed."""
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "no" / "file", b"")


def test_removing_says_whether_something_was_there(tmp_path: Path) -> None:
    """Twice is harmless; of a link the link goes, also where it leads nowhere."""
    target = tmp_path / "file"
    target.write_text("x")
    (tmp_path / "link").symlink_to(target)
    assert remove_if_exists(tmp_path / "link")
    assert target.exists()
    (tmp_path / "link").symlink_to("nowhere")
    assert remove_if_exists(tmp_path / "link")
    assert remove_if_exists(target)
    assert not remove_if_exists(target)


def test_what_a_killed_writer_left_can_be_found_and_removed(tmp_path: Path) -> None:
    """Just before the rename the new content is complete beside the old; then the writer dies."""
    target = tmp_path / "file"
    target.write_text("old")
    found: list[list[str]] = []
    write_atomic(target, b"new", before_rename=lambda: found.append([path.read_text() for path in tmp_path.iterdir()]))
    assert sorted(found[0]) == ["new", "old"]
    (tmp_path / ".avenor-0123456789abcdef.tmp").touch()
    remove_unfinished(tmp_path)
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
