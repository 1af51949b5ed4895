"""What a run is asked to do: `avenor run`'s flags, the params of `spawn` and a runtime's record are one struct.

Paths and durations arrive as people write them; `resolve_spec` turns them into absolute paths and seconds, and refuses
what cannot be used with the name of the field.
"""

import os.path
from collections.abc import Collection
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from avenor.protocol.configs import ResolvedConfig, ResolvedLoop
from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import InvalidParams
from avenor.protocol.events import RunKind
from avenor.protocol.manifest.binding import ResolvedManifest, backends_of_manifest
from avenor.protocol.mcp import McpServer, find_list_mistakes, is_http_url, join_servers

# Those that come with avenor; users add their own (`host/backend_names`).
BACKENDS: Final = (
    "opencode-acp",
    "claude-acp",
    "codex-acp",
    "codex-app-server",
    "copilot-acp",
    "cursor-acp",
    "gemini-acp",
    "opencode-http",
    "pi",
    "qwen-acp",
    "acp",
    "scripted",
)
DEFAULT_BACKEND: Final = "opencode-acp"
# The one that can use a server which runs already.
SERVER_BACKEND: Final = "opencode-http"

SILENCE_LIMIT_SECONDS: Final = 15 * 60.0
# Agents that say nothing while their model fails, some of them for ever; their profiles have it too.
PROGRESS_DEFAULTS: Final = {
    "opencode-acp": SILENCE_LIMIT_SECONDS,
    "gemini-acp": SILENCE_LIMIT_SECONDS,
    "qwen-acp": SILENCE_LIMIT_SECONDS,
}

Duration = float | str
OnCrash = Literal["fail", "resume"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, as a client asks for it.

    Durations are seconds or Go style text (`30s`, `1h30m`, `7d`); None takes the default, 0 switches a timeout off.
    Relative paths are relative to `dir`. With `loop_file` or `team_file` the prompt may be left out; given, it is the
    prompt of a pre phase of its own, before all others. With `manifest`, which needs `roster`, all that its members do
    and use is said there: `max_parallel` is how many of them work at once (None: as many as its graph allows), and
    `unsandboxed` lets them work without a sandbox.

    `mcp_config` is a file of MCP servers; what it lists joins `mcp_servers` before the run is recorded.
    """

    prompt: str | None = None
    prompt_file: str | None = None
    loop_file: str | None = None
    team_file: str | None = None
    manifest: str | None = None
    roster: str | None = None
    max_parallel: int | None = None
    unsandboxed: bool = False
    fail_on_max_iterations: bool = False
    dir: str = "."
    backend: str = DEFAULT_BACKEND
    agent: str | None = None
    model: str | None = None
    thinking: str | None = None
    label: str | None = None
    run_id: str | None = None
    resume: str | None = None
    agent_command: str | None = None
    script: str | None = None
    server_url: str | None = None
    mcp_config: str | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    on_event: str | None = None
    sentinel_file: str | None = None
    permission_handler: str | None = None
    auto_approve: bool = False
    timeout: Duration | None = None
    progress_timeout: Duration | None = None
    handshake_timeout: Duration = 60.0
    max_retries: int = 0
    permission_claim_timeout: Duration | None = None


class SpawnParams(RunSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`spawn`: a run, and how the supervisor takes it.

    Attributes:
        key: Makes the spawn idempotent: the same key gives the same runtime.
        wait: What the answer waits for: the agent's session, or only the started runtime.
        parent_id: The runtime that this one is a child of.
        on_crash: What comes of it when its process is lost: it has failed, or a new process goes on with it. None takes
            what the supervisor does with all.
    """

    key: str | None = None
    wait: Literal["session", "started"] = "session"
    parent_id: str | None = None
    on_crash: OnCrash | None = None

    def run_spec(self) -> RunSpec:
        """The part that the runtime acts on."""
        return RunSpec(**{name: getattr(self, name) for name in RunSpec.__struct_fields__})


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`record.json` of a runtime directory: all that its process needs to know. Tolerant, so that newer ones load.

    Attributes:
        spec: The resolved run.
        prompt: Its prompt, empty where the config has all there is.
        config: The loop, team or manifest, with all that its files held; None for a single run.
        parks: Whether the run stays, idle, for follow-up prompts after a clean turn.
        supervisor_socket: `AVENOR_SOCKET` for its agents; None without a supervisor.
        environ: The environment that the runtime and its agents start from.
        profiles_folder: Where the user's backends are; empty takes what the environment says.
        parked_timeout: Seconds that a parked runtime waits before it ends itself; 0 is for ever.
        created_at: Unix milliseconds.
        on_crash: Whether a new process goes on with the run when its process is lost.
    """

    runtime_id: str
    run_id: str
    spec: RunSpec
    prompt: str
    config: ResolvedConfig | ResolvedManifest | None = None
    parks: bool = False
    supervisor_socket: str | None = None
    environ: dict[str, str] = {}
    profiles_folder: str = ""
    umask: int = 0o077
    parked_timeout: float = 0.0
    created_at: int = 0
    key: str | None = None
    parent_id: str | None = None
    depth: int = 0
    on_crash: OnCrash = "fail"
    version: str = ""

    @property
    def kind(self) -> RunKind:
        """What the run is made of."""
        if self.config is None:
            return "single"
        if isinstance(self.config, ResolvedManifest):
            return "manifest"
        return "loop" if isinstance(self.config, ResolvedLoop) else "team"

    @property
    def spawn_params(self) -> SpawnParams:
        """What a spawn of the same run, as a child of the same parent, would ask for."""
        members = {name: getattr(self.spec, name) for name in RunSpec.__struct_fields__}
        return SpawnParams(**members, parent_id=self.parent_id, on_crash=self.on_crash)

    @property
    def backend(self) -> str:
        """What the run is said to run on: of a manifest, in which nobody has the spec's, those of all members."""
        if isinstance(self.config, ResolvedManifest):
            return ", ".join(sorted(backends_of_manifest(self.config)))
        return self.spec.backend


_PATHS = (
    "prompt_file",
    "loop_file",
    "team_file",
    "manifest",
    "roster",
    "on_event",
    "sentinel_file",
    "script",
    "mcp_config",
)
_DURATIONS = ("timeout", "progress_timeout", "handshake_timeout", "permission_claim_timeout")


def resolve_spec(spec: RunSpec, *, backends: Collection[str] = BACKENDS) -> RunSpec:
    """The spec with absolute paths, durations in seconds and its defaults filled in.

    Args:
        spec: As it was asked for, with an absolute `dir`: whoever asks knows best what another is relative to.
        backends: The names that `backend` may have; iterated over only to tell what there is to choose from.

    Raises:
        InvalidParams: A field cannot be used; `data.field` names it.
    """
    if not os.path.isabs(spec.dir):
        raise _bad("dir", spec.dir, "it must be absolute")
    directory = os.path.normpath(spec.dir)
    _check_text(spec)
    _check_choices(spec, backends)
    _check_servers(spec)
    changes: dict[str, object] = {"dir": directory}
    for name in _PATHS:
        value = getattr(spec, name)
        if value is not None:
            changes[name] = os.path.normpath(os.path.join(directory, _text(name, value)))
    for name in _DURATIONS:
        changes[name] = _seconds(name, getattr(spec, name))
    if changes["progress_timeout"] is None:
        changes["progress_timeout"] = _default_progress(spec.backend)
    if changes["permission_claim_timeout"] is None:
        changes["permission_claim_timeout"] = 30.0
    changes["permission_handler"] = _handler(spec, directory, changes.get("sentinel_file"))
    return replace(spec, **changes)


def phase_spec(spec: RunSpec, agent: str | None, model: str | None, backend: str | None) -> RunSpec:
    """The spec for a team member that overrides some of it; None keeps what the run has."""
    changes: dict[str, object] = {"agent": agent or spec.agent, "model": model or spec.model}
    if backend is not None:
        changes["backend"] = backend
        if spec.progress_timeout == _default_progress(spec.backend):  # which nobody has asked for
            changes["progress_timeout"] = _default_progress(backend)
    return replace(spec, **changes)


def _default_progress(backend: str) -> float | None:
    """None for a backend of the user's, whose profile says it; only the runtime reads that."""
    return PROGRESS_DEFAULTS.get(backend, 0.0) if backend in BACKENDS else None


def with_servers(spec: RunSpec, servers: list[McpServer]) -> RunSpec:
    """The spec with these MCP servers after its own; of two with one name, its own counts."""
    return replace(spec, mcp_servers=join_servers(spec.mcp_servers, servers)) if servers else spec


def permission_base(handler: str | None) -> str | None:
    """The BASE of `file:BASE`; None without a file handler."""
    return handler.removeprefix("file:") if handler else None


def _check_choices(spec: RunSpec, backends: Collection[str]) -> None:
    if spec.backend not in backends:
        raise _bad("backend", spec.backend, f"choose one of {', '.join(backends)}")
    if spec.prompt is not None and spec.prompt_file is not None:
        raise _bad("prompt_file", spec.prompt_file, "give prompt or prompt_file, not both")
    _check_phases(spec)
    _check_manifest(spec)
    if spec.prompt is None and spec.prompt_file is None and not has_phases(spec) and spec.manifest is None:
        raise InvalidParams(
            "a run needs something to do: give prompt, prompt_file, loop_file, team_file or manifest",
            data={"field": "prompt"},
        )
    if spec.prompt is not None and not spec.prompt.strip():
        raise _bad("prompt", spec.prompt, "give it some text")
    if spec.backend == "acp" and spec.agent_command is None:
        raise _bad("agent_command", spec.agent_command, "backend acp needs it")
    if not spec.team_file and not spec.loop_file:  # members may have backends of their own
        if spec.agent_command is not None and spec.backend != "acp":
            raise _bad("agent_command", spec.agent_command, "only backend acp takes it")
        if spec.script is not None and spec.backend != "scripted":
            raise _bad("script", spec.script, "only backend scripted plays a script")
        if spec.server_url is not None and spec.backend != SERVER_BACKEND:
            raise _bad_server_url(f"only backend {SERVER_BACKEND} takes it")
    if spec.max_retries < 0:
        raise _bad("max_retries", spec.max_retries, "it must be 0 or more")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise _bad("env", name, "a name is not empty and holds no '=', and there is no NUL in either")
    for name in ("prompt", "agent", "model", "thinking", "label", "run_id", "resume"):
        _text(name, getattr(spec, name))


def _check_text(spec: RunSpec) -> None:
    """Refuses what came from a command line, or from the name of a directory, and is no text."""
    for name in RunSpec.__struct_fields__:
        try:
            msgspec.json.encode(getattr(spec, name))
        except UnicodeEncodeError:
            raise InvalidParams(f"{name}: it is not UTF-8", data={"field": name}) from None


def check_server_url(url: str) -> str:
    """The address of a server that runs already, if it is one.

    Raises:
        InvalidParams: It is none. The message does not repeat it: it may hold a password.
    """
    if not is_http_url(url):
        raise _bad_server_url("write it as http://HOST:PORT or https://HOST:PORT")
    return url


def _bad_server_url(remedy: str) -> InvalidParams:
    return InvalidParams(f"server_url: {remedy}", data={"field": "server_url"})


def _check_servers(spec: RunSpec) -> None:
    if spec.server_url is not None:
        check_server_url(spec.server_url)
    mistakes = find_list_mistakes(spec.mcp_servers, "$.mcp_servers")
    if mistakes:
        raise InvalidParams(
            "; ".join(f"{found.path.removeprefix('$.')}: {found.message}" for found in mistakes),
            data={"field": "mcp_servers", "errors": msgspec.to_builtins(mistakes)},
        )


def has_phases(spec: RunSpec) -> bool:
    """Whether the run is a loop or team."""
    return spec.loop_file is not None or spec.team_file is not None


# What each member of a manifest gets from its profile, or from nobody.
_SAID_BY_ROSTER: Final = ("agent", "model", "thinking", "agent_command", "script", "server_url")
_NOT_FOR_MEMBERS: Final = {
    "prompt": "the manifest has the contract",
    "prompt_file": "the manifest has the contract",
    "loop_file": "give loop_file or manifest, not both",
    "team_file": "give team_file or manifest, not both",
    "resume": "every member has a session of its own",
    "auto_approve": "the manifest says what each member may do, and pauses for what a person decides",
    "mcp_config": "a member gets only the tools that it declares",
    "mcp_servers": "a member gets only the tools that it declares",
    **dict.fromkeys(_SAID_BY_ROSTER, "the profiles of the roster say it"),
}


def _check_manifest(spec: RunSpec) -> None:
    for name in ("manifest", "roster"):
        _text(name, getattr(spec, name))
    if spec.max_parallel is not None and spec.max_parallel < 1:
        raise _bad("max_parallel", spec.max_parallel, "it must be 1 or more")
    if spec.manifest is None:
        for name in ("roster", "max_parallel", "unsandboxed"):
            if getattr(spec, name) not in (None, False):
                raise _bad(name, getattr(spec, name), "it is for manifests: give a manifest")
        return
    if spec.roster is None:
        raise _bad("roster", None, "a manifest needs one, which says what its names stand for")
    for name, reason in _NOT_FOR_MEMBERS.items():
        if getattr(spec, name) not in (None, False, []):
            raise InvalidParams(f"{name}: with a manifest, {reason}: leave it out", data={"field": name})


def _check_phases(spec: RunSpec) -> None:
    if spec.loop_file is not None and spec.team_file is not None:
        raise _bad("team_file", spec.team_file, "give loop_file or team_file, not both")
    for name in ("loop_file", "team_file"):
        if getattr(spec, name) is not None and spec.resume is not None:
            raise _bad("resume", spec.resume, f"with {name} every phase has a session of its own: leave it out")
        _text(name, getattr(spec, name))
    if spec.fail_on_max_iterations and not has_phases(spec):
        raise _bad("fail_on_max_iterations", True, "only loops have iterations: give a loop_file, or a team_file")


def _text(name: str, value: str | None) -> str:
    if value is not None and (value == "" or "\0" in value):
        raise _bad(name, value, "leave it out, or give it some text without NUL")
    return value or ""


def _seconds(name: str, value: Duration | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidParams(f"{name}: {error}", data={"field": name, "value": value}) from error


def _handler(spec: RunSpec, directory: str, sentinel: object) -> str | None:
    if spec.permission_handler is not None:
        kind, _, path = spec.permission_handler.partition(":")
        if kind != "file" or not path or "\0" in path:
            raise _bad("permission_handler", spec.permission_handler, "write it as file:PATH, without NUL")
        return "file:" + os.path.normpath(os.path.join(directory, path))
    if isinstance(sentinel, str):
        return "file:" + sentinel.removesuffix(".done") + ".perm"
    return None


def _bad(name: str, value: object, remedy: str) -> InvalidParams:
    if value is None:
        return InvalidParams(f"{name}: {remedy}", data={"field": name})
    return InvalidParams(f"{name} {value!r}: {remedy}", data={"field": name, "value": value})
