"""Which names there are for backends, found without reading or importing anything."""

import sys
from pathlib import Path

import pytest

from avenor.host.backend_names import BackendNames, backend_names, profile_path, profiles_folder
from avenor.protocol.spec import BACKENDS


def install(folder: Path, *lines: str) -> None:
    """Makes a package that could be installed there, with these entry points."""
    metadata = folder / "extra-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[avenor.backends]", *lines]))


def test_without_anything_of_the_users_the_names_are_ours(tmp_path: Path) -> None:
    """In our order; a folder that is not there is as good as an empty one."""
    names = backend_names({"XDG_CONFIG_HOME": str(tmp_path)})
    assert tuple(names) == BACKENDS
    assert len(names) == len(BACKENDS)
    assert all(names.source(name) == "builtin" for name in BACKENDS)


def test_a_profile_file_is_a_name_whatever_is_in_it(tmp_path: Path) -> None:
    """After ours, in alphabetical order; files that are no profiles are none."""
    for file in ("zed.toml", "mine.toml", "mine.toml~", ".hidden.toml", "with blank.toml", "notes.md"):
        (tmp_path / file).write_text("[[[ no TOML")
    (tmp_path / "folder.toml").mkdir()
    names = BackendNames(str(tmp_path))
    assert tuple(names) == (*BACKENDS, "mine", "zed")
    assert names.source("mine") == "profile"
    assert "folder" not in names


def test_a_profile_file_goes_before_a_backend_of_ours(tmp_path: Path) -> None:
    """And is listed once, in its place."""
    (tmp_path / "pi.toml").write_text("")
    names = BackendNames(str(tmp_path))
    assert tuple(names) == BACKENDS
    assert names.source("pi") == "profile"


def test_a_file_that_was_added_a_moment_ago_counts(tmp_path: Path) -> None:
    """A supervisor runs for weeks."""
    names = BackendNames(str(tmp_path))
    assert "mine" not in names
    (tmp_path / "mine.toml").write_text("")
    assert "mine" in names


@pytest.mark.parametrize("name", ["", "../mine", "a/b", ".x", "a b", "a\0", 7])
def test_what_no_backend_is_called_is_no_name(tmp_path: Path, name: object) -> None:
    """Whatever files there are: a name from a client leads to no path outside of the folder."""
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "sub").mkdir()
    assert name not in BackendNames(str(tmp_path / "sub"))


def test_an_entry_point_is_a_name_and_its_module_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a name of ours changes nothing: what was there before a package stays what it was."""
    install(tmp_path / "site", "extra = extra_module:make", "pi = extra_module:make", "bad name = extra_module:make")
    (tmp_path / "site" / "extra_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    names = BackendNames(str(tmp_path / "none"))
    assert tuple(names) == (*BACKENDS, "extra")
    assert (names.source("extra"), names.source("pi"), names.source("nobody")) == ("entry_point", "builtin", None)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}, "/c/avenor/backends"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/avenor/backends"),
        ({"XDG_CONFIG_HOME": "", "HOME": "/h"}, "/h/.config/avenor/backends"),
        ({"HOME": "/h"}, "/h/.config/avenor/backends"),
    ],
)
def test_the_folder_is_in_the_users_configuration(environ: dict[str, str], folder: str) -> None:
    """Where the XDG specification has it."""
    assert profiles_folder(environ) == folder
    assert profile_path(folder, "mine") == f"{folder}/mine.toml"


def test_without_a_home_the_system_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may be started with next to no environment."""
    monkeypatch.setenv("HOME", "/of/this/process")
    assert profiles_folder({}) == "/of/this/process/.config/avenor/backends"
