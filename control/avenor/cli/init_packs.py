"""What `avenor init` writes for each host, as data; the texts are in `packs`."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "avenor"
_WORKER_MARK = "@WORKER@\n"
_AGENTS = ("jockey", "horse", "mule")
_TEAM_MARK = "@TEAM@"


class Addition(NamedTuple):
    """What is put into a JSON file that may have been there before.

    Attributes:
        path: The keys of the container that it is put into, from the root; containers that are missing are made.
        key: The member that it becomes in an object; None appends it to an array.
        value: JSON.
    """

    path: tuple[str, ...]
    key: str | None
    value: Any

    @property
    def place(self) -> str:
        """Where it goes, for people."""
        return ".".join([*self.path, *([] if self.key is None else [self.key])])


class Whole(NamedTuple):
    """A file that is ours: its path in the repository, and its text."""

    path: str
    text: str


class Json(NamedTuple):
    """A JSON file that we have a part in: the names under which the host reads it, and what is put into it.

    Attributes:
        start: What a new file has besides.
    """

    paths: tuple[str, ...]
    additions: tuple[Addition, ...]
    start: dict[str, Any]


class Toml(NamedTuple):
    """A TOML file that we have a table in: its path, the keys of the table, and the text of the table."""

    path: str
    table: tuple[str, ...]
    text: str


class Pack(NamedTuple):
    """All that is written for a host.

    Attributes:
        host: Its name, as `--host` takes it.
        marks: Files and folders by which a repository shows that it is used with this host.
        program: The host's.
        next: What to do when the files are there, a line each.
    """

    host: str
    marks: tuple[str, ...]
    program: str
    next: tuple[str, ...]

    def files(self) -> list[Whole | Json | Toml]:
        """The files, in the order in which they are told."""
        return _FILES[self.host]()


def _opencode() -> list[Whole | Json | Toml]:
    server = {"type": "local", "command": ["avenor", "mcp"], "enabled": True, "timeout": 60000}
    return [
        *(Whole(f".opencode/agents/{name}.md", _text("opencode", f"{name}.md")) for name in _AGENTS),
        Whole(".opencode/skills/avenor/SKILL.md", _skill("opencode")),
        _team("opencode"),
        Json(
            ("opencode.json", "opencode.jsonc"),
            (Addition(("mcp",), NAME, server),),
            {"$schema": "https://opencode.ai/config.json"},
        ),
    ]


def _claude() -> list[Whole | Json | Toml]:
    return [
        *(Whole(f".claude/agents/{name}.md", _text("claude", f"{name}.md")) for name in _AGENTS),
        Whole(".claude/skills/avenor/SKILL.md", _skill("claude")),
        _team("claude"),
        Json((".mcp.json",), (Addition(("mcpServers",), NAME, {"command": "avenor", "args": ["mcp"]}),), {}),
        Json(
            (".claude/settings.json",),
            (
                Addition(("enabledMcpjsonServers",), None, NAME),
                Addition(("permissions", "allow"), None, "mcp__avenor"),
                # It ends the runs of everybody.
                Addition(("permissions", "ask"), None, "mcp__avenor__avenor_shutdown"),
            ),
            {},
        ),
    ]


def _codex() -> list[Whole | Json | Toml]:
    return [
        Whole(".codex/jockey.config.toml", _text("codex", "jockey.config.toml")),
        *(Whole(f".codex/agents/{name}.toml", _text("codex", f"{name}.toml")) for name in ("horse", "mule")),
        Whole(".agents/skills/avenor/SKILL.md", _skill("codex")),
        _team("codex"),
        Toml(".codex/config.toml", ("mcp_servers", NAME), _text("codex", "config.toml")),
    ]


def _team(host: str) -> Whole:
    return Whole(_team_path(host), _text(host, "review.team.json"))


def _team_path(host: str) -> str:
    return f".avenor/review.{host}.team.json"


def _skill(host: str) -> str:
    text = _text("common", "SKILL.md").replace(_WORKER_MARK, _text(host, "worker.md"))
    return text.replace(_TEAM_MARK, _team_path(host))


def _text(folder: str, name: str) -> str:
    return (files("avenor.cli") / "packs" / folder / name).read_text(encoding="utf-8")


PACKS = (
    Pack(
        "opencode",
        (".opencode", "opencode.json", "opencode.jsonc"),
        "opencode",
        ("start the jockey: opencode --agent jockey",),
    ),
    Pack(
        "claude",
        (".claude", ".mcp.json", "CLAUDE.md"),
        "claude",
        (
            "workers need the adapter: npm install -g @agentclientprotocol/claude-agent-acp",
            "start the jockey, and trust the folder when it asks: claude --agent jockey",
        ),
    ),
    Pack(
        "codex",
        (".codex",),
        "codex",
        (
            "codex reads profiles from its own folder only: cp .codex/jockey.config.toml ~/.codex/",
            "start the jockey, and trust the folder when it asks: codex --profile jockey",
        ),
    ),
)

_FILES = {"opencode": _opencode, "claude": _claude, "codex": _codex}
