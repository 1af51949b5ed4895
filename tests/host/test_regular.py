"""Reading files that somebody named, whatever they are."""

import os
import socket
from pathlib import Path

import pytest

from avenor.host.regular import read_regular


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    """Bytes as they are, through symbolic links, up to the limit."""
    (tmp_path / "file").write_bytes(b"\xff\r\n" * 1000)
    (tmp_path / "link").symlink_to("file")
    assert read_regular(str(tmp_path / "link"), limit_bytes=3000) == b"\xff\r\n" * 1000


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    """With the limit in the reason."""
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(OSError, match="it has more than 4 bytes") as caught:
        read_regular(str(tmp_path / "file"), limit_bytes=4)
    assert (caught.value.strerror, caught.value.filename) == ("it has more than 4 bytes", str(tmp_path / "file"))


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
def test_anything_else_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    """A FIFO without a writer would wait for ever, a device might never end."""
    path = str(tmp_path / "x")
    listener = socket.socket(socket.AF_UNIX)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "socket":
        listener.bind(path)
    else:
        path = "/dev/zero"
    before = open_descriptors()
    with pytest.raises(OSError, match="it is not a regular file") as caught:
        read_regular(path, limit_bytes=10)
    assert (caught.value.strerror, caught.value.filename) == ("it is not a regular file", path)
    assert open_descriptors() == before
    listener.close()


def test_a_missing_file_is_told_in_the_systems_words(tmp_path: Path) -> None:
    """As the kinds of OSError that callers may tell apart."""
    with pytest.raises(FileNotFoundError) as caught:
        read_regular(str(tmp_path / "none"), limit_bytes=10)
    assert caught.value.strerror == "No such file or directory"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_an_error_of_the_system_too(name: str) -> None:
    """Callers need to expect one kind of error only."""
    with pytest.raises(OSError, match="no file can have that name"):
        read_regular(name, limit_bytes=10)
