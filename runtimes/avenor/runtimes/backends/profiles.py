"""What is known of each agent that speaks ACP, as data.

A profile says how the program is started, what its environment needs, how its settings are named, which permission
options may be taken for the user, and how it ends. Code that is special to one agent belongs nowhere else.
"""

import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from avenor.protocol.errors import InvalidParams
from avenor.runtimes.backends.base import OpenParams

# Words by which an option says no, whatever kind the agent gave it (pi-acp gives its "Reject" the kind allow_once).
REJECT_WORDS: Final = frozenset({"reject", "deny", "decline", "refuse", "no", "cancel", "abort", "stop", "never"})


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """Where one setting is found among an agent's config options: by id first, then by category."""

    ids: Sequence[str]
    categories: Sequence[str]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of agent.

    Attributes:
        name: The name that `--backend` takes.
        argv: The program line, from what the session is opened with.
        install: How to get the program, for the error when it is missing.
        env_secrets: Variables that every agent gets, each made anew for it; a caller's value does not count.
        settings: How model, agent and thinking level are named among its config options.
        trusted_option_ids: Option ids that auto-approve may take; None trusts by kind alone.
        ends_on_stdin_close: Whether the program ends by itself when its stdin is closed.
        replay_quiet_seconds: How long no update may come after `session/load` has been answered before the replay
            counts as over; some agents replay on after their answer, and nothing marks the end.
        silent_when_model_fails: Whether the agent says nothing while its model fails; then a progress timeout is
            the only way to notice.
    """

    name: str
    argv: Callable[[OpenParams], Sequence[str]]
    install: str
    env_secrets: Mapping[str, Callable[[], str]] = {}
    settings: Mapping[str, SettingNames]
    trusted_option_ids: frozenset[str] | None = None
    ends_on_stdin_close: bool = True
    replay_quiet_seconds: float = 0.25
    silent_when_model_fails: bool = False


SETTINGS: Final[Mapping[str, SettingNames]] = {
    "agent": SettingNames(ids=("mode",), categories=("mode",)),
    "model": SettingNames(ids=("model",), categories=("model",)),
    "thinking": SettingNames(
        ids=("thought_level", "thinking", "reasoning_effort"), categories=("thought_level", "thinking")
    ),
}


def _random_password() -> str:
    return secrets.token_urlsafe(32)


def _opencode(_params: OpenParams) -> Sequence[str]:
    return ["opencode", "acp"]


def _given(params: OpenParams) -> Sequence[str]:
    if not params.command:
        raise InvalidParams("backend acp needs agent_command", data={"field": "agent_command"})
    return params.command


def _scripted(params: OpenParams) -> Sequence[str]:
    script = ["--script", params.script] if params.script is not None else []
    return [sys.executable, "-m", "avenor.runtimes.scripted", *script]


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            name="opencode-acp",
            argv=_opencode,
            install="npm install -g opencode-ai",
            # It serves its whole API on a loopback port, open to every local user unless this is set.
            env_secrets={"OPENCODE_SERVER_PASSWORD": _random_password},
            settings=SETTINGS,
            trusted_option_ids=frozenset({"once"}),
            silent_when_model_fails=True,
        ),
        Profile(
            name="acp",
            argv=_given,
            install="check --agent-command and the PATH",
            settings=SETTINGS,
        ),
        Profile(
            name="scripted",
            argv=_scripted,
            install="it is part of avenor: reinstall avenor",
            settings=SETTINGS,
        ),
    )
}


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
