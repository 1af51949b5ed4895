"""What a run is made of beside its prompt: its loop, team or manifest, read from files. Blocks."""

from collections.abc import Collection, Sequence
from functools import partial

from avenor.host.backend_asks import backend_asks
from avenor.host.backend_names import BackendNames
from avenor.host.phase_files import load_phases
from avenor.host.regular import read_regular
from avenor.protocol.config_loading import Finding
from avenor.protocol.configs import ResolvedConfig
from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.spec import BACKENDS, RunSpec


def load_config_of(
    spec: RunSpec, prompt: str, *, backends: Collection[str] = BACKENDS
) -> tuple[ResolvedConfig | ResolvedManifest | None, Sequence[Finding]]:
    """The loop, team or manifest of a resolved spec, None for a single run, and the warnings about it.

    Args:
        spec: Its `loop_file`, `team_file` or `manifest` is read.
        prompt: The run's own, empty without one.
        backends: The names that a backend may have.

    Raises:
        ConfigError: It cannot be used; `data.field` names the spec's field, `data.errors` lists every mistake.
        InvalidParams: The spec lacks what a member needs.
    """
    if spec.manifest is None:
        return load_phases(spec, prompt, backends=backends)
    return _load_manifest(spec, spec.manifest, backends)


def _load_manifest(spec: RunSpec, path: str, backends: Collection[str]) -> tuple[ResolvedManifest, Sequence[Finding]]:
    # It imports PyYAML, which most runs, and every supervisor before its first manifest, can do without.
    from avenor.protocol.manifest.loading import SIZE_LIMIT_BYTES, load_manifest

    folder = backends.folder if isinstance(backends, BackendNames) else None
    try:
        loaded = load_manifest(
            path,
            partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES),
            roster_path=spec.roster,
            backends=backends,
            asks=backend_asks(folder),
            unsandboxed=spec.unsandboxed,
        )
    except ConfigError as error:
        error.data["field"] = "manifest"
        raise
    return loaded.manifest, loaded.warnings
