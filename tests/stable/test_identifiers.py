"""Runtime ids: each given once in the life of a state directory."""

from pathlib import Path

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
