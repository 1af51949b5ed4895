"""Finds a backend by the name that `--backend` takes."""

import functools
from importlib.metadata import version

from avenor.protocol.errors import InvalidParams
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.base import Backend
from avenor.runtimes.backends.profiles import PROFILES


def backend_names() -> list[str]:
    """The names that `get_backend` knows, in the order to show them."""
    return list(PROFILES)


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        InvalidParams: There is none; the message lists those that there are.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise InvalidParams(
            f"backend {name!r}: choose one of {', '.join(PROFILES)}", data={"field": "backend", "value": name}
        )
    return AcpBackend(profile, _own_version())


@functools.cache
def _own_version() -> str:
    """Looked up once: reading the package's metadata costs a process more than all else that it does at its start."""
    return version("avenor")
