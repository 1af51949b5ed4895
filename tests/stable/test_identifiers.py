"""Runtime ids: each given once in the life of a state directory."""

import os
from pathlib import Path

import pytest

from avenor.stable.identifiers import Identifiers, list_runtimes


def test_ids_go_on_above_every_directory(tmp_path: Path) -> None:
    """By number and not by name; other entries do not matter."""
    for name in ("rt_2", "rt_10", "rt_x", "rt_011", "zygote.log"):
        (tmp_path / name).mkdir()
    assert list_runtimes(tmp_path) == ["rt_2", "rt_10"]
    assert Identifiers(tmp_path).allocate()[0] == "rt_11"


def test_an_id_does_not_come_back_when_its_directory_is_gone(tmp_path: Path) -> None:
    """The high-water mark remembers it."""
    identifiers = Identifiers(tmp_path)
    _, path = identifiers.allocate()
    identifiers.write_mark()
    path.rmdir()
    assert Identifiers(tmp_path).allocate()[0] == "rt_2"


def test_the_mark_is_written_in_its_place(tmp_path: Path) -> None:
    """The same file for every spawn, of which nothing stays of what was there before."""
    mark = tmp_path / "high-water"
    mark.write_text("12 of somebody else\n")
    inode = mark.stat().st_ino
    identifiers = Identifiers(tmp_path)
    for number in (1, 2):
        identifiers.allocate()
        identifiers.write_mark(durable=number == 2)
        assert mark.read_text() == f"{number}\n"
    assert mark.stat().st_ino == inode


def test_a_mark_without_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a number would be another number."""

    def write_nothing(_fd: int, _data: bytes) -> int:
        return 0

    identifiers = Identifiers(tmp_path)
    monkeypatch.setattr(os, "write", write_nothing)
    with pytest.raises(OSError, match="No space left"):
        identifiers.write_mark()


def test_a_directory_that_appears_is_stepped_over(tmp_path: Path) -> None:
    """Making the directory is what allocates the id."""
    identifiers = Identifiers(tmp_path)
    (tmp_path / "rt_1").mkdir()
    assert identifiers.allocate()[0] == "rt_2"


def test_a_damaged_mark_counts_for_nothing(tmp_path: Path) -> None:
    """The directories are still there."""
    (tmp_path / "high-water").write_text("what")
    (tmp_path / "rt_4").mkdir()
    assert Identifiers(tmp_path).allocate()[0] == "rt_5"
