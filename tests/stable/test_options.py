"""Where a supervisor's state lies when nobody says."""

from pathlib import Path

import pytest

from avenor.stable.options import Options


def test_each_socket_has_a_state_directory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one for every start, below XDG_STATE_HOME, and with room for a socket's path."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    one, same, other = (Options(control_socket=path).state_path for path in ("/a.sock", "/x/../a.sock", "/b.sock"))
    assert one == same
    assert one != other
    assert one.parent == Path("/state/avenor/stable")
    assert len(one.name) == 12


def test_a_state_directory_that_was_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where XDG_STATE_HOME is not there, or relative, the default is below the home."""
    assert Options(control_socket="/a.sock", state_dir="/mine").state_path == Path("/mine")
    monkeypatch.setenv("HOME", "/home/me")
    for relative in ("", "rel"):
        monkeypatch.setenv("XDG_STATE_HOME", relative)
        assert Path("/home/me/.local/state/avenor/stable") in Options(control_socket="/a.sock").state_path.parents
