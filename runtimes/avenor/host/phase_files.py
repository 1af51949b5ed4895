"""The loop or team that a run is asked for, read from its files. Blocks."""

from collections.abc import Collection
from functools import partial

from avenor.host.regular import read_regular
from avenor.protocol.config_loading import SIZE_LIMIT_BYTES, Finding, load_config
from avenor.protocol.configs import ConfigKind, ResolvedConfig, backends_of, with_initial
from avenor.protocol.errors import ConfigError, InvalidParams
from avenor.protocol.spec import BACKENDS, SERVER_BACKEND, RunSpec


def load_phases(
    spec: RunSpec, prompt: str, *, backends: Collection[str] = BACKENDS
) -> tuple[ResolvedConfig | None, list[Finding]]:
    """The loop or team of a resolved spec, None for a single run, and the warnings about it.

    Args:
        spec: Its `loop_file` or `team_file` is read.
        prompt: The run's own, empty without one: it becomes the phase `(initial)`.
        backends: The names that a member's `backend` may have.

    Raises:
        ConfigError: It cannot be used; `data.field` names the spec's field, `data.errors` lists every mistake.
        InvalidParams: The spec lacks what a member needs.
    """
    kind: ConfigKind = "loop" if spec.loop_file is not None else "team"
    path = spec.loop_file or spec.team_file
    if path is None:
        return None, []
    read = partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES)
    try:
        loaded = load_config(
            path, kind, read=read, has_initial=bool(prompt), backends=backends, servers=spec.mcp_servers
        )
    except ConfigError as error:
        error.data["field"] = f"{kind}_file"
        raise
    _check_backends(spec, loaded.config)
    return with_initial(loaded.config, prompt) if prompt else loaded.config, loaded.warnings


def _check_backends(spec: RunSpec, config: ResolvedConfig) -> None:
    used = {spec.backend, *backends_of(config)}
    for backend, field in (("acp", "agent_command"), ("scripted", "script"), (SERVER_BACKEND, "server_url")):
        if getattr(spec, field) is not None and backend not in used:
            raise InvalidParams(
                f"{field}: only backend {backend} takes it, and no phase uses that", data={"field": field}
            )
    if "acp" in used and spec.agent_command is None:
        raise InvalidParams(
            "a member uses backend acp: give agent_command, the program to start", data={"field": "agent_command"}
        )
