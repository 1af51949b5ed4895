"""For which kinds of tools the agent of a backend asks before it uses them: what a manifest is checked by.

The check comes before there is a runtime, so the backend itself is not there to be asked: those of avenor are known
from a table, a user's from its profile file, and of a package's nothing is known.
"""

import tomllib
from collections.abc import Callable
from typing import Final

import msgspec

from avenor.host.backend_names import BackendNames, profile_path
from avenor.host.regular import read_regular
from avenor.protocol.manifest.asking import ASKING, Asking

_LIMIT_BYTES: Final = 1024 * 1024
_NOTHING: Final = Asking()


class _Said(msgspec.Struct, frozen=True):
    """What a profile file says of it. Tolerant: the rest is looked at by whoever uses the backend."""

    asks: list[str] = []
    env_asking: dict[str, str] = {}


def backend_asks(folder: str | None) -> Callable[[str], Asking]:
    """Tells of a backend, by name, before which tools its agent asks.

    Args:
        folder: Where the user's profile files are; None knows only what comes with avenor.
    """
    names = None if folder is None else BackendNames(folder)

    def asks(name: str) -> Asking:
        if names is not None and names.source(name) == "profile":
            return _of_profile(profile_path(names.folder, name))
        return ASKING.get(name, _NOTHING)

    return asks


def _of_profile(path: str) -> Asking:
    """What a profile file says; nothing where it cannot be read: whoever opens the backend is told why."""
    try:
        said = msgspec.convert(tomllib.loads(read_regular(path, limit_bytes=_LIMIT_BYTES).decode()), _Said)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError):
        return _NOTHING
    return Asking(frozenset(said.asks), frozenset(said.env_asking))
