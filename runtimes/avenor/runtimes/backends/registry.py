"""Finds a backend by the name that `--backend` takes: a user's profile file, one of ours, or an installed package's."""

import functools
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points, version
from typing import Final

import msgspec
import trio

from avenor.host.backend_names import ENTRY_POINTS, BackendNames, Source, profile_path
from avenor.protocol.errors import AvenorError, ConfigError, InvalidParams
from avenor.protocol.spec import SILENCE_LIMIT_SECONDS
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.base import Backend, OpenParams, Session, SessionSink
from avenor.runtimes.backends.codex import CodexBackend
from avenor.runtimes.backends.pi import PiBackend
from avenor.runtimes.backends.profiles import Adapter, Profile, builtin, builtin_names
from avenor.runtimes.backends.user_profiles import read_user_profile


def _opencode_http(profile: Profile, version: str) -> Backend:
    # Its HTTP client is half as much to import as all else: a run with another backend does without.
    from avenor.runtimes.backends.opencode_http import OpencodeHttpBackend

    return OpencodeHttpBackend(profile, version)


# What speaks to the agents: a profile, and our own version, as the agent is told.
_ADAPTERS: Final[Mapping[Adapter, Callable[[Profile, str], Backend]]] = {
    "acp": AcpBackend,
    "codex": CodexBackend,
    "opencode-http": _opencode_http,
    "pi": PiBackend,
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A backend, and what is known of it without starting anything.

    Attributes:
        profile: None where a package brings an adapter of its own.
    """

    source: Source
    backend: Backend
    profile: Profile | None


class UnusableBackend:
    """Stands for a backend that cannot be used: every opening fails with the reason."""

    def __init__(self, name: str, error: AvenorError) -> None:
        self.name = name
        self._error = error

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> Session:
        """Raises why; see `base.Backend.open`."""
        await trio.lowlevel.checkpoint()
        raise self._error


def backend_names() -> list[str]:
    """The names of the backends that come with avenor, in the order to show them."""
    return builtin_names()


def get_backend(name: str, folder: str | None = None) -> Backend:
    """The backend of that name; as `find_backend`."""
    return find_backend(name, folder).backend


@functools.cache
def find_backend(name: str, folder: str | None = None) -> Found:
    """The backend of that name, looked for once in a process.

    Args:
        name: As `--backend` takes it.
        folder: Where the user's profile files are; None knows only what comes with avenor.

    Raises:
        InvalidParams: There is none; the message lists those that there are.
        ConfigError: It is the user's, or a package's, and cannot be used; the message says where and why.
    """
    names = backend_names() if folder is None else BackendNames(folder)
    source = names.source(name) if isinstance(names, BackendNames) else "builtin" if name in names else None
    if source == "builtin":
        return _found("builtin", builtin(name))
    if source == "profile":
        return _found("profile", read_user_profile(profile_path(folder or "", name)))
    if source == "entry_point":
        return _from_package(name)
    raise InvalidParams(f"backend {name!r}: choose one of {', '.join(names)}", data={"field": "backend", "value": name})


def usable_backend(name: str, folder: str) -> Backend:
    """As `get_backend`, but what is wrong is told when a session is opened: as a start that fails."""
    try:
        return get_backend(name, folder)
    except AvenorError as error:
        return UnusableBackend(name, error)


def silence_limit(name: str, folder: str) -> float:
    """How many seconds without an event mean that the agent's model has failed; 0 if it tells of that itself."""
    try:
        profile = find_backend(name, folder).profile
    except AvenorError:
        return 0.0
    return SILENCE_LIMIT_SECONDS if profile is not None and profile.silent_when_model_fails else 0.0


def _found(source: Source, profile: Profile) -> Found:
    backend = _ADAPTERS[profile.adapter](profile, _own_version())
    return Found(source=source, backend=backend, profile=profile)


def _from_package(name: str) -> Found:
    point = next(iter(entry_points(group=ENTRY_POINTS, name=name)))
    whose = f"backend {name}: the package {point.dist.name}" if point.dist else f"backend {name}: a package"
    try:
        made = point.load()
        if not isinstance(made, Profile):
            made = made(_own_version())
    except Exception as error:  # supervision boundary: it is others' code, and concerns nobody who does not use it
        raise _unusable(name, f"{whose} fails: {type(error).__name__}: {error}; mend or remove it") from error
    if isinstance(made, Profile):
        return _found("entry_point", msgspec.structs.replace(made, name=name))
    if not callable(getattr(made, "open", None)):
        raise _unusable(name, f"{whose} gives neither a backend nor a profile: {point.value}; mend or remove it")
    return Found(source="entry_point", backend=made, profile=None)


def _unusable(name: str, message: str) -> ConfigError:
    return ConfigError(message, data={"field": "backend", "value": name})


@functools.cache
def _own_version() -> str:
    """Looked up once: reading the package's metadata costs a process more than all else that it does at its start."""
    return version("avenor")
