"""The hosts that `avenor init` writes packs for, each as a user has it who followed what init said last."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from avenor.host import tree
from tests.agents import claude_code
from tests.agents.acp_agents import AgentHome
from tests.agents.catalog import Models
from tests.agents.codex_app_server import CodexHome
from tests.agents.harness import WAIT_SECONDS, Home

# How each host names a tool of an MCP server, toward its model.
_CODEX_TOOL: Final = "mcp__avenor__{}"
_CLAUDE_TOOL: Final = "mcp__avenor__{}"
_OPENCODE_TOOL: Final = "avenor_{}"


@dataclass(frozen=True)
class Host:
    """A host and its pack.

    Attributes:
        name: As `--host` takes it.
        tool: What its model calls a tool of avenor's.
        allow: The option by which its workers are allowed something once.
        horse: What the jockey's file says to give `avenor_spawn` for the worker that writes.
        mule: The same for the other one.
        asks_always: Its stand-in asks before everything, so that both workers do.
        make: Makes a user who has it; gets an empty folder and a repository that is set up.
        start: The jockey's command line, without its prompt.
    """

    name: str
    tool: str
    allow: str
    horse: dict[str, Any]
    mule: dict[str, Any]
    make: Callable[[Path, Path, Models], "User"]
    start: Sequence[str]
    asks_always: bool = False


class User:
    """A user with a home of their own.

    Args:
        home: Theirs.
        env: What their programs are started with.
    """

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.home = home
        self.env = {**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}

    def run(self, words: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; text in, text out."""
        return subprocess.run(
            list(words), cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=WAIT_SECONDS,
        )  # fmt: skip

    def stop_supervisor(self) -> None:
        """Ends the supervisor that `avenor mcp` has started, with its runs."""
        socket = self.home / ".avenor" / "mcp.sock"
        self.run(["avenor", "control", "--socket", str(socket), "shutdown", "kill"], self.home)

    def processes(self) -> list[str]:
        """The names of all that runs in this home."""
        return [found.name for found in tree.tagged("HOME", str(self.home))]


def _opencode(root: Path, _repository: Path, models: Models) -> User:
    home = Home(root, models.chat.url)
    home.make_database()
    return User(home.path, home.env)


def _claude(root: Path, repository: Path, models: Models) -> User:
    home = AgentHome("claude-acp", root, models.chat.url, models.translated.url)
    (root / "bin" / "claude").symlink_to(claude_code.PROGRAM.installed())
    # What its question for trust writes down.
    trusted = {"projects": {str(repository): {"hasTrustDialogAccepted": True}}}
    (home.path / ".claude").mkdir()
    (home.path / ".claude" / ".claude.json").write_text(json.dumps(trusted))
    return User(home.path, {**home.env, **claude_code.QUIET})


def _codex(root: Path, repository: Path, models: Models) -> User:
    home = CodexHome(root, models.translated.url)
    # Workers have their keys through the MCP server, which codex gives only what the pack's configuration names.
    config = home.path / ".codex" / "config.toml"
    config.write_text(config.read_text().replace("STANDIN_KEY", "OPENAI_API_KEY"))
    home.env["OPENAI_API_KEY"] = home.env.pop("STANDIN_KEY")
    shutil.copy(repository / ".codex" / "jockey.config.toml", home.path / ".codex")
    return User(home.path, home.env)


HOSTS: Final = {
    "opencode-acp": Host(
        name="opencode",
        tool=_OPENCODE_TOOL,
        allow="once",
        horse={"agent": "horse"},
        mule={"agent": "mule"},
        make=_opencode,
        start=("opencode", "run", "--agent", "jockey"),
    ),
    "claude-acp": Host(
        name="claude",
        tool=_CLAUDE_TOOL,
        allow="allow-once",
        horse={"backend": "claude-acp", "agent": "acceptEdits"},
        mule={"backend": "claude-acp", "agent": "acceptEdits"},
        make=_claude,
        start=("claude", "--agent", "jockey", "-p"),
    ),
    "codex-app-server": Host(
        name="codex",
        tool=_CODEX_TOOL,
        allow="accept",
        horse={"backend": "codex-app-server", "agent": "workspace-write"},
        mule={"backend": "codex-app-server", "agent": "read-only"},
        make=_codex,
        # The trust that its question asks for, on the command line.
        start=("codex", "exec", "--trust", "--profile", "jockey"),
        asks_always=True,
    ),
}
