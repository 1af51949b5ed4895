"""Waiting for a file to change."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avenor.host import changes
from avenor.host.changes import FileChanges


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: both ends."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")


def rotate(path: Path) -> None:
    path.rename(path.with_suffix(".1"))


def replace(path: Path) -> None:
    path.with_suffix(".new").write_text("x")
    path.with_suffix(".new").rename(path)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
@pytest.mark.parametrize("change", [append, rotate, replace, empty, remove])
def test_what_happens_to_a_file_is_told_by_the_system(
    path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    """Nothing else ends the wait here, and a change before it counts."""
    path.write_text("old")
    monkeypatch.setattr(changes, "_LOOK_WHEN_NOTIFIED_MS", -1)
    watch = FileChanges(str(path))
    change(path)
    assert watch.wait(pipe[1]) is False
    watch.close()
    watch.close()  # harmless twice


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_a_file_that_comes_later_is_told_and_watched_once_it_is_asked_for(
    path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a log whose run has not begun."""
    monkeypatch.setattr(changes, "_LOOK_WHEN_NOTIFIED_MS", -1)
    watch = FileChanges(str(path))
    path.write_text("")
    watch.wait(pipe[1])
    watch.renew()
    append(path)
    watch.wait(pipe[1])
    watch.close()


def test_a_reader_that_has_left_ends_the_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody wants the lines to come."""
    monkeypatch.setattr(changes, "_LOOK_WHEN_NOTIFIED_MS", -1)
    read_end, write_end = os.pipe()
    os.close(read_end)
    watch = FileChanges(str(path))
    assert watch.wait(write_end) is True
    watch.close()
    os.close(write_end)


def test_where_nothing_is_told_it_looks_now_and_then(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """As for a directory that is not there."""
    watch = FileChanges(str(tmp_path / "none" / "log"))
    assert watch.wait(pipe[1]) is False
    watch.renew()
    watch.close()
