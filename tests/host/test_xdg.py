"""Where a user's files are."""

from collections.abc import Callable, Mapping

import pytest

from avenor.host.xdg import config_home, state_home

HOME = {"HOME": "/home/me"}


@pytest.mark.parametrize(
    ("folder", "variable", "default"),
    [(state_home, "XDG_STATE_HOME", "/home/me/.local/state"), (config_home, "XDG_CONFIG_HOME", "/home/me/.config")],
)
def test_a_variable_names_the_folder_if_its_path_is_absolute(
    folder: Callable[[Mapping[str, str]], str], variable: str, default: str
) -> None:
    """A relative one would mean another folder in each working directory."""
    assert folder({**HOME, variable: "/x"}) == "/x"
    for environ in (HOME, {**HOME, variable: ""}, {**HOME, variable: "x"}):
        assert folder(environ) == default


def test_without_a_home_it_is_the_one_that_the_system_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a service."""
    monkeypatch.setenv("HOME", "/known")
    assert state_home({}) == "/known/.local/state"
