"""What is known, before there is a runtime, of the tools that a backend's agent asks before."""

from pathlib import Path

import pytest

from avenor.host.backend_asks import backend_asks
from avenor.protocol.manifest.asking import Asking
from avenor.protocol.spec import BACKENDS
from avenor.runtimes.backends.profiles import builtin


@pytest.mark.parametrize("name", BACKENDS)
def test_of_avenor_s_own_backends_it_is_what_their_profiles_say(name: str) -> None:
    """The table is for those who may not read the profiles."""
    profile = builtin(name)
    assert backend_asks(None)(name) == Asking(frozenset(profile.asks), frozenset(profile.env_asking))


def test_of_a_user_s_backend_it_is_what_the_profile_file_says(tmp_path: Path) -> None:
    """One of the name of ours counts instead of it."""
    (tmp_path / "pi.toml").write_text('argv = ["x"]\nasks = ["execute"]\nenv_asking = {ASK = "1"}\n')
    assert backend_asks(str(tmp_path))("pi") == Asking(frozenset({"execute"}), frozenset({"ASK"}))
    assert backend_asks(str(tmp_path))("scripted") == backend_asks(None)("scripted")


@pytest.mark.parametrize("content", [b"asks = [", b"asks = 7", b"\xff", b"asks = [1]", b"argv = ['x']"])
def test_what_is_not_said_in_so_many_words_is_not_known(tmp_path: Path, content: bytes) -> None:
    """A broken file is told of by whoever opens the backend."""
    (tmp_path / "mine.toml").write_bytes(content)
    assert backend_asks(str(tmp_path))("mine") == Asking()
    assert backend_asks(str(tmp_path))("nobody") == Asking()
