"""The real ACP agents that the tests drive: what is installed, and how each is pointed at the stand-in, as data."""

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.backends.profiles import builtin
from avenor.runtimes.backends.registry import get_backend
from tests.agents.install import MACHINE, NODE, Program
from tests.agents.standin_model import StandInModel
from tests.runtimes.agent_kit import make_params

_CODEX_CONFIG: Final = """
model = "gpt-5.5"
model_provider = "standin"
approval_policy = "on-request"
sandbox_mode = "workspace-write"
check_for_update_on_startup = false

[model_providers.standin]
name = "Stand-in"
base_url = "{translated}/v1"
wire_api = "responses"
env_key = "STANDIN_KEY"
request_max_retries = 2
stream_max_retries = 2

[analytics]
enabled = false
"""
_GEMINI_SETTINGS: Final = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    "privacy": {"usageStatisticsEnabled": False},
    "model": {"name": "gemini-2.5-pro"},
}
_QWEN_SETTINGS: Final = {
    "security": {"auth": {"selectedType": "openai"}},
    "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    "privacy": {"usageStatisticsEnabled": False},
}
_PLAN: Final = "https://agentclientprotocol.com/protocol/session-modes#plan"


@dataclass(frozen=True)
class Recipe:
    """One agent. Values may hold `{chat}` and `{translated}`, the models' base addresses, and `{home}`.

    Attributes:
        backend: Under which backend it runs.
        packages: What npm installs, pinned.
        program: The program below `node_modules`; a script is run by a newer node.
        env: What its environment needs besides a home.
        files: Text files below its home.
        beside: Programs below `node_modules` that have to be on the PATH as well.
        choice: A model and an agent that are not its defaults.
        lacks: Checks of the conformance suite that it cannot meet, and why.
    """

    backend: str
    packages: tuple[str, ...]
    program: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: tuple[str, ...] = ()
    choice: Mapping[str, str] = field(default_factory=dict[str, str])
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])


_NO_PRICE: Final = "tells no price"
_TRIES_ON: Final = "tries again for minutes and says nothing; the progress timeout ends such a run"

RECIPES: Final[Mapping[str, Recipe]] = {
    "codex-acp": Recipe(
        backend="codex-acp",
        packages=("@agentclientprotocol/codex-acp@2.6.0",),
        program="@agentclientprotocol/codex-acp/dist/index.js",
        env={"CODEX_HOME": "{home}/.codex", "STANDIN_KEY": "dummy", "OPENAI_API_KEY": "dummy"},
        files={".codex/config.toml": _CODEX_CONFIG},
        choice={"model": "gpt-6-sol", "agent": "read-only"},
        lacks={"tells_what_it_costs": _NO_PRICE},
    ),
    "codex-acp-zed": Recipe(
        backend="codex-acp",
        packages=("@zed-industries/codex-acp@0.16.0", f"@openai/codex@0.171.0-linux-{MACHINE}"),
        program=f"@zed-industries/codex-acp-linux-{MACHINE}/bin/codex-acp",
        env={"CODEX_HOME": "{home}/.codex", "STANDIN_KEY": "dummy", "OPENAI_API_KEY": "dummy"},
        files={".codex/config.toml": _CODEX_CONFIG},
        beside=("@openai/codex/vendor/*/codex-resources/bwrap",),
        choice={"model": "gpt-5.4", "agent": "read-only"},
        lacks={
            "tells_its_usage": "tells how full its context is, and no tokens of a turn",
            "tells_what_it_costs": _NO_PRICE,
        },
    ),
    "claude-acp": Recipe(
        backend="claude-acp",
        packages=("@agentclientprotocol/claude-agent-acp@0.101.0",),
        program="@agentclientprotocol/claude-agent-acp/dist/index.js",
        env={
            "ANTHROPIC_BASE_URL": "{translated}",
            "ANTHROPIC_API_KEY": "sk-ant-dummy",
            "ANTHROPIC_MODEL": "claude-sonnet-4-5",
            "ANTHROPIC_SMALL_FAST_MODEL": "claude-haiku-4-5",
            "CLAUDE_CONFIG_DIR": "{home}/.claude",
            "CLAUDE_CODE_MAX_RETRIES": "3",
        },
        choice={"model": "haiku", "agent": "plan"},
    ),
    "gemini-acp": Recipe(
        backend="gemini-acp",
        packages=("@google/gemini-cli@0.61.0",),
        program="@google/gemini-cli/bundle/gemini.js",
        env={
            "GEMINI_API_KEY": "dummy",
            "GOOGLE_GEMINI_BASE_URL": "{translated}",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        files={".gemini/settings.json": json.dumps(_GEMINI_SETTINGS)},
        choice={"model": "gemini-3-flash-preview", "agent": "plan"},
        lacks={"tells_a_model_that_is_down": _TRIES_ON, "tells_what_it_costs": _NO_PRICE},
    ),
    "qwen-acp": Recipe(
        backend="qwen-acp",
        packages=("@qwen-code/qwen-code@0.24.4",),
        program="@qwen-code/qwen-code/cli.js",
        env={"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": "{chat}", "OPENAI_MODEL": "stand-in"},
        files={".qwen/settings.json": json.dumps(_QWEN_SETTINGS)},
        choice={"agent": "plan"},
        lacks={"tells_a_model_that_is_down": _TRIES_ON, "tells_what_it_costs": _NO_PRICE},
    ),
    "copilot-acp": Recipe(
        backend="copilot-acp",
        packages=("@github/copilot@1.0.102",),
        program=f"@github/copilot-linux-{MACHINE}/copilot",
        env={
            "COPILOT_HOME": "{home}/.copilot",
            "COPILOT_PROVIDER_BASE_URL": "{chat}",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_API_KEY": "dummy",
            "COPILOT_MODEL": "gpt-5",
            "COPILOT_OFFLINE": "true",
        },
        choice={"agent": _PLAN},
        lacks={
            "starts_an_mcp_server": "takes MCP servers on http and sse, no programs",
            "tells_what_it_costs": _NO_PRICE,
        },
    ),
}


def program(name: str) -> Program:
    """What is installed of an agent."""
    return Program(name, RECIPES[name].packages, RECIPES[name].program, needs_node=True)


class AgentHome:
    """A user of this machine who has one agent, and nothing else.

    Args:
        name: Of the recipe.
        root: An empty folder.
        chat_url: Where the stand-in model is.
        translated_url: Where it is for agents with another dialect.
    """

    def __init__(self, name: str, root: Path, chat_url: str, translated_url: str) -> None:
        recipe = RECIPES[name]
        self.path = root / "home"
        programs = root / "bin"
        for folder in (programs, self.path / "tmp"):
            folder.mkdir(parents=True)
        _link(programs / _argv0(recipe.backend), program(name).installed())
        for pattern in recipe.beside:
            (found,) = program(name).folder.glob(f"node_modules/{pattern}")
            (programs / found.name).symlink_to(found)
        places = {"{chat}": chat_url, "{translated}": translated_url, "{home}": str(self.path)}
        for file, text in recipe.files.items():
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            (self.path / file).write_text(_filled(text, places))
        self.env = {
            "HOME": str(self.path),
            "PATH": f"{programs}:{program(name).path_variable()}",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(self.path / "tmp"),
            **{variable: _filled(value, places) for variable, value in recipe.env.items()},
        }


class AcpKit:
    """A real agent under its own backend; files are in the session's folder."""

    def __init__(self, name: str, home: AgentHome, model: StandInModel) -> None:
        self.backend: Backend = get_backend(RECIPES[name].backend)
        self.choice = dict(RECIPES[name].choice)
        self._home = home
        self._model = model
        self._recalled = ""

    def params(
        self,
        folder: Path,
        *,
        resume: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
    ) -> OpenParams:
        return make_params(
            folder,
            env=self._home.env,
            resume=resume,
            agent=agent,
            model=model,
            thinking=thinking,
        )

    def say(self, text: str) -> str:
        return f"[[text: {text}]]"

    def touch(self, path: Path) -> str:
        return f"[[shell: touch {path.name}]][[text: touched]]"

    def talk_on(self) -> str:
        return "[[slow: 300 x 0.2]]"

    def work_on(self, path: Path) -> str:
        return f"[[shell: touch {path.name}; exec python3 -c 'import time; time.sleep(60)']]"

    def recall(self) -> str:
        self._recalled = secrets.token_hex(8)
        return f"[[text: I know]] {self._recalled}"

    def has_recalled(self, word: str, said: str) -> bool:
        return any(word in request.earlier for request in self._model.asked(self._recalled))


def _argv0(backend: str) -> str:
    return builtin(backend).argv[0]


def _link(link: Path, target: Path) -> None:
    """Puts a program on the PATH; a script is started with the node that it needs, in the same process."""
    if target.suffix != ".js":
        link.symlink_to(target)
        return
    link.write_text(f'#!/bin/sh\nexec {shlex.quote(str(NODE.installed()))} {shlex.quote(str(target))} "$@"\n')
    link.chmod(0o755)


def _filled(text: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        text = text.replace(place, value)
    return text
