"""Which backends there are by name: those that come with avenor, and those that users add.

A user's backend is a profile file `NAME.toml` in a folder of the configuration, or an entry point of an installed
package. Only names are looked at here: no file is read, and no package imported, so that what is broken in one of them
concerns nobody but who uses it. What a name means is found by `runtimes/backends/registry`.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

from avenor.host.xdg import config_home
from avenor.protocol.spec import BACKENDS

ENTRY_POINTS: Final = "avenor.backends"
Source = Literal["builtin", "profile", "entry_point"]

_SUFFIX: Final = ".toml"
# It is shown in lists and becomes part of file names; a dot in front would hide the file.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def profiles_folder(environ: Mapping[str, str]) -> str:
    """The folder of the user's profile files, which need not exist: `avenor/backends` in the configuration folder."""
    return os.path.join(config_home(environ), "avenor", "backends")


def profile_path(folder: str, name: str) -> str:
    """Where the profile file of a backend would be."""
    return os.path.join(folder, name + _SUFFIX)


class BackendNames(Collection[str]):
    """The names, looked up when they are asked for, so that a file that was added a moment ago counts.

    A profile file goes before a built-in backend of its name; an entry point does not, so that installing a package
    changes no backend that was there. Asking for a name that is a file or built in looks at no package.

    Args:
        folder: As `profiles_folder` gives it.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.source(name) is not None

    def __iter__(self) -> Iterator[str]:
        yield from BACKENDS
        yield from sorted({*self._files(), *_entry_points()}.difference(BACKENDS))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def source(self, name: str) -> Source | None:
        """Where the backend of that name comes from; None if there is none."""
        if not _NAME.fullmatch(name):
            return None
        if os.path.isfile(profile_path(self.folder, name)):
            return "profile"
        if name in BACKENDS:
            return "builtin"
        return "entry_point" if name in _entry_points() else None

    def _files(self) -> Iterator[str]:
        try:
            with os.scandir(self.folder) as entries:
                names = [entry.name.removesuffix(_SUFFIX) for entry in entries if _is_profile(entry)]
        except OSError:
            return
        yield from filter(_NAME.fullmatch, names)


def backend_names(environ: Mapping[str, str]) -> BackendNames:
    """The names in an environment."""
    return BackendNames(profiles_folder(environ))


def _is_profile(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIX) and entry.is_file()


def _entry_points() -> set[str]:
    # It costs more than most commands need for all else that they do.
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group=ENTRY_POINTS) if _NAME.fullmatch(point.name)}
