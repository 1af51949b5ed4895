"""What is known of each kind of agent, as data: one TOML file each, in `builtin/` and wherever users keep their own.

A profile says how the program is started, what its environment needs, how its settings are named, which permission
options may be taken for the user, how it fails and how it ends. Code that is special to one agent belongs nowhere else.
"""

import secrets
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from avenor.host.start import START_PATH
from avenor.protocol.errors import ConfigError, InvalidParams
from avenor.protocol.events import RetryClass
from avenor.runtimes.backends.base import OpenParams

# Words by which an option says no, whatever kind the agent gave it (pi-acp gives its "Reject" the kind allow_once).
REJECT_WORDS: Final = frozenset({"reject", "deny", "decline", "refuse", "no", "cancel", "abort", "stop", "never"})

_BUILTIN: Final = Path(__file__).with_name("builtin")

Adapter = Literal["acp", "codex", "opencode-http", "pi"]
SettingKind = Literal["agent", "model", "thinking"]


class SettingNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one setting is found among an agent's config options: by id first, then by category."""

    ids: Sequence[str] = ()
    categories: Sequence[str] = ()


# How most agents name them.
SETTINGS: Final[Mapping[SettingKind, SettingNames]] = {
    "agent": SettingNames(ids=("mode",), categories=("mode",)),
    "model": SettingNames(ids=("model",), categories=("model",)),
    "thinking": SettingNames(
        ids=("thought_level", "thinking", "reasoning_effort"), categories=("thought_level", "thinking")
    ),
}


class FailureSign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what a turn is known to have failed, though the agent says that it ended well.

    Attributes:
        where: What is looked at: the turn's last `message`, as far as it goes together; its last `chunk` of text as the
            agent sent it; an `update` (or a notification of the agent's own) as JSON, without the members that name the
            session; or `nothing`, which is true of a turn that had no text, no thought and no tool.
        pattern: A regular expression that is searched for there; empty fits all.
        agent: One that must fit the agent's name in its handshake; empty fits all. For profiles of several agents.
        stop_reasons: The agent's words for the end of a turn that may hide the failure.
        failure_class: What the retry policy goes by; None takes it from the text that was found.
        permanent: The same prompt would fail again; only with a class.
    """

    where: Literal["message", "chunk", "update", "nothing"] = "message"
    pattern: str = ""
    agent: str = ""
    stop_reasons: Sequence[str] = ("end_turn",)
    failure_class: RetryClass | None = msgspec.field(name="class", default=None)
    permanent: bool = False


class StatePlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory where an agent keeps what is its own: sessions, logins, caches.

    Attributes:
        path: Where: `~/…`, or `$XDG_DATA_HOME/…`, `$XDG_CONFIG_HOME/…`, `$XDG_STATE_HOME/…`, `$XDG_CACHE_HOME/…`.
        variable: The variable of the agent's environment that names another place instead.
        keep: What a fresh copy has of it, as globs: what the agent needs to log in and to be set up as the user wants.
    """

    path: str
    variable: str = ""
    keep: Sequence[str] = ()


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of agent.

    Words of program lines and values of variables may hold `{python}`, `{start}` (`avenor.host.start`), `{script}`,
    `{agent}`, `{model}`, `{thinking}`.

    Attributes:
        name: The name that `--backend` takes: that of the file.
        adapter: What speaks to it.
        argv: The program line; empty where `--agent-command` gives it.
        argv_agent: Words that follow when an agent was asked for, of agents that take it at their start only. The same
            for the next three.
        version_argv: Tells the program's version and ends; empty where nothing does.
        install: How to get the program, for the error when it is missing.
        note: What a user should know before choosing it.
        env: Variables that the agent gets where the caller has not set them.
        env_model: Variables that it gets when a model was asked for, of agents that take it at their start only.
        secrets: Variables that every agent gets, each made anew for it; a caller's value does not count.
        settings: How `agent`, `model` and `thinking` are named among its config options, where not as in `SETTINGS`.
        asking_agent: The agent (mode) in which it asks before it acts; it is set where neither an agent was asked for
            nor auto-approve. Several where versions name it differently: the first that is offered. None where it asks
            as it comes, or cannot be made to.
        trusted_options: Option ids that auto-approve may take; None trusts by kind alone.
        ends_on_stdin_close: Whether the program ends by itself when its stdin is closed.
        busy_prompt: What becomes of a second prompt while a turn runs. avenor never sends one; for the reference.
        mcp: Which kinds of MCP servers can be handed to it.
        failures: Signs of a turn that failed, of agents that call it an end.
        authenticate: The authentication method to call when the agent wants a login although it may have one.
        usage_of_session: Names of agents (regular expressions) that tell what their session has used so far, where
            others tell what the turn has.
        resume_by: Which call restores a session of an agent that has both: `resume` is quick, `load` tells the past of
            the session, which proves that there is one.
        resume_not_while: A file below the home, as a glob: where it is there, the session is loaded in the next minute
            only, since now that would destroy it. `{minute}` is the time as 2026-11-30T00-22 (UTC), `{session8}` the
            first eight characters of the session's id. Of agents that write over a session which is loaded in the
            minute in which it was made.
        replay_quiet_seconds: How long no update may come after `session/load` has been answered before the replay
            counts as over; some agents replay on after their answer, and nothing marks the end.
        asks: The kinds of tools (ACP's words) before which it asks, in its asking mode and with `env_asking`. An agent
            fills a member of a manifest only if all others are held back in another way.
        env_asking: Variables that make it ask for more than it would; for members of manifests, where the caller has
            not set them.
        state: Where it keeps what is its own; each attempt of a manifest's member gets a copy.
        silent_when_model_fails: Whether the agent says nothing while its model fails; then a progress timeout is
            the only way to notice.
    """

    name: str = ""
    adapter: Adapter = "acp"
    argv: Sequence[str] = ()
    argv_agent: Sequence[str] = ()
    argv_model: Sequence[str] = ()
    argv_thinking: Sequence[str] = ()
    argv_script: Sequence[str] = ()
    version_argv: Sequence[str] = ()
    install: str
    note: str = ""
    env: Mapping[str, str] = {}
    env_model: Mapping[str, str] = {}
    secrets: Sequence[str] = ()
    settings: Mapping[SettingKind, SettingNames] = {}
    asking_agent: str | Sequence[str] | None = None
    trusted_options: frozenset[str] | None = None
    ends_on_stdin_close: bool = True
    busy_prompt: Literal["queued", "cancels", "refused", "steers", "lost", "unknown"] = "unknown"
    mcp: Sequence[Literal["stdio", "http", "sse"]] = ()
    failures: Sequence[FailureSign] = ()
    authenticate: str = ""
    usage_of_session: Sequence[str] = ()
    resume_by: Literal["resume", "load"] = "resume"
    resume_not_while: str = ""
    replay_quiet_seconds: float = 0.25
    asks: Sequence[str] = ()
    env_asking: Mapping[str, str] = {}
    state: Sequence[StatePlace] = ()
    silent_when_model_fails: bool = False

    @property
    def setting_names(self) -> Mapping[str, SettingNames]:
        """How all settings are named."""
        return {kind: self.settings.get(kind, usual) for kind, usual in SETTINGS.items()}

    @property
    def asking_agents(self) -> Sequence[str]:
        """The agents (modes) in which it asks, the best first."""
        if self.asking_agent is None:
            return ()
        return (self.asking_agent,) if isinstance(self.asking_agent, str) else self.asking_agent

    def command(self, params: OpenParams) -> list[str]:
        """The program line of a session.

        Raises:
            InvalidParams: It has to be given, and was not.
        """
        if not self.argv:
            if not params.command:
                raise InvalidParams(f"backend {self.name} needs agent_command", data={"field": "agent_command"})
            return list(params.command)
        values = _values(params)
        words = [*self.argv]
        for kind, more in (
            ("agent", self.argv_agent),
            ("model", self.argv_model),
            ("thinking", self.argv_thinking),
            ("script", self.argv_script),
        ):
            if values[kind]:
                words += more
        return [_filled(word, values) for word in words]

    def state_places(self, env: Mapping[str, str]) -> list[StatePlace]:
        """Where an agent with this environment keeps its state, as absolute paths; none without a home."""
        places = [msgspec.structs.replace(place, path=_state_path(place, env)) for place in self.state]
        return [place for place in places if place.path.startswith("/")]

    def environment(self, params: OpenParams) -> dict[str, str]:
        """The whole environment of an agent."""
        values = _values(params)
        ours = {name: _filled(value, values) for name, value in self.env.items()}
        if params.model is not None:
            chosen = {name: _filled(value, values) for name, value in self.env_model.items()}
        else:
            chosen = {}
        fresh = {name: secrets.token_urlsafe(32) for name in self.secrets}
        return {**ours, **params.env, **chosen, **fresh}


# Where the base directory specification puts what a variable does not move.
_XDG: Final[Mapping[str, str]] = {
    "$XDG_DATA_HOME": ".local/share",
    "$XDG_CONFIG_HOME": ".config",
    "$XDG_STATE_HOME": ".local/state",
    "$XDG_CACHE_HOME": ".cache",
}


def _state_path(place: StatePlace, env: Mapping[str, str]) -> str:
    if place.variable and env.get(place.variable):
        return env[place.variable]
    home = env.get("HOME", "")
    base, _, rest = place.path.partition("/")
    if base == "~":
        return f"{home}/{rest}"
    return f"{env.get(base[1:]) or f'{home}/{_XDG.get(base, base)}'}/{rest}"


def builtin_names() -> list[str]:
    """The names of the profiles that come with avenor, the default first, `acp` and `scripted` last."""
    names = sorted(path.stem for path in _BUILTIN.glob("*.toml"))
    return sorted(names, key=lambda name: (name in ("acp", "scripted"), name != "opencode-acp"))


def builtin(name: str) -> Profile:
    """One of the profiles that come with avenor."""
    return load_profile(_BUILTIN / f"{name}.toml")


def load_profile(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        ConfigError: It cannot be read, or is no profile; the message says where and why.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        profile = msgspec.convert({**data, "name": path.stem}, Profile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"backend profile {path}: {error}", data={"field": "backend", "path": str(path)}) from error
    return profile


def split_command(text: str) -> list[str]:
    """The program line that `--agent-command` gives, split as a shell would, without expanding anything.

    Raises:
        InvalidParams: It is empty, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidParams(f"agent_command {text!r}: {error}", data={"field": "agent_command"}) from error
    if not words:
        raise InvalidParams("agent_command is empty: name a program", data={"field": "agent_command"})
    return words


def _values(params: OpenParams) -> dict[str, str]:
    return {
        "python": sys.executable,
        "start": START_PATH,
        "agent": params.agent or "",
        "model": params.model or "",
        "thinking": params.thinking or "",
        "script": params.script or "",
    }


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
