"""The manifest of the seed with members that are real agents: a repository, a roster, and what their model says."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tests.agents import acp_agents, codex_app_server
from tests.agents.harness import Home
from tests.agents.install import NODE, OPENCODE
from tests.e2e.manifest_kit import BROKEN, DEFAULTS, TEST

MANIFEST: Final = Path(__file__).parents[1] / "data" / "manifests" / "seed.yaml"
_ROSTER: Final = Path(__file__).parents[1] / "data" / "manifests" / "roster-scripted.yaml"
_HOW_TO: Final = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-roster.md"

# The members of the seed's manifest, and their profiles; both readers have the second.
MEMBERS: Final[tuple[str, ...]] = ("planner", "implementation_reader", "test_reader", "writer", "evaluator")
PROFILES: Final[tuple[str, ...]] = ("reasoning-medium", "analysis-small", "coding-medium", "evaluation-medium")
# What the service of the stand-in model is reached with. No agent may ever have it.
KEY: Final = "the-real-key"
SCRIPT_NAME: Final = "members.script.json"
KEY_NAME: Final = "MODEL_KEY"

_OPENCODE_CONFIG: Final = {
    "enabled_providers": ["gateway"],
    "small_model": "gateway/stand-in",
    "agent": {"title": {"disable": True}},
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{gateway_url}", "apiKey": "{gateway_token}"},
            "models": {"stand-in": {"tool_call": True, "limit": {"context": 128000, "output": 8192}}},
        }
    },
}


@dataclass(frozen=True)
class Agent:
    """How a roster sets up a real agent.

    Attributes:
        column: Its name in the catalog.
        profile: What goes into the roster beside the endpoint.
        speaks: The dialect, `openai` or `anthropic`, and the end of the endpoint's address.
        is_translated: It does not speak the stand-in's own dialect.
        tools: Tools that it needs in the roster, because its own are not those of the manifest.
        prefix: What its model has to put before the names of avenor's tools, because it is offered them only on demand.
        writes: What the write targets have to be, where it cannot do with single files.
    """

    column: str
    profile: Mapping[str, Any]
    speaks: tuple[str, str] = ("openai", "/v1")
    is_translated: bool = True
    tools: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = ""
    writes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


# Plays as it does in the tests without agents; see `script`.
SCRIPTED: Final = Agent(column="", profile={"backend": "scripted"})
OPENCODE_MEMBER: Final = Agent(
    column="opencode-acp",
    profile={
        "backend": "opencode-acp",
        "model": "gateway/stand-in",
        "env": {"OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE_CONFIG)},
    },
    is_translated=False,
)
# It asks before every command in this mode, and has no tool that fetches. It reads with commands.
CODEX_MEMBER: Final = Agent(
    column="codex-app-server",
    tools={"read_file": {"kinds": ["read", "search", "execute"], "commands": ["cat *"]}},
    profile={
        "backend": "codex-gateway",
        "model": "stand-in",
        "agent": "untrusted-full-access",
        "enforces_tools": ["execute", "fetch", "other"],
        "env": {"GATEWAY_URL": "{gateway_url}", "GATEWAY_TOKEN": "{gateway_token}"},
    },
)
# codex offers its tool for patches only to models that it knows.
CODEX_PATCHING: Final = replace(
    CODEX_MEMBER, profile={**CODEX_MEMBER.profile, "model": codex_app_server.MODEL}, prefix="mcp__avenor__"
)
CLAUDE_MEMBER: Final = Agent(
    column="claude-acp",
    profile={
        "backend": "claude-acp",
        "model": "claude-sonnet-4-5",
        "enforces_tools": ["execute", "fetch"],
        "env": {
            "ANTHROPIC_BASE_URL": "{gateway_url}",
            "ANTHROPIC_API_KEY": "{gateway_token}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    },
    speaks=("anthropic", ""),
    prefix="mcp__avenor__",
    # It writes a new file beside the old one.
    writes={"candidate_branch:retry_module": ["src/"], "candidate_branch:retry_tests": ["tests/"]},
)


@dataclass(frozen=True)
class Team:
    """Which agent plays which profile of the manifest.

    Attributes:
        name: Of the tests.
        members: In the order of `PROFILES`.
    """

    name: str
    members: tuple[Agent, Agent, Agent, Agent]

    @property
    def columns(self) -> frozenset[str]:
        """The agents that must be there."""
        return frozenset(member.column for member in self.members if member.column)


def repository(folder: Path) -> None:
    """The folder becomes a repository with a retry bug, tagged `r1`."""
    for name, text in {"src/__init__.py": "", "src/retry.py": BROKEN, "tests/test_retry.py": TEST}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a retry bug")
    git(folder, "tag", "r1")


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=folder, text=True).strip()


def equip(home: Home, columns: frozenset[str]) -> None:
    """Gives a user of opencode the other agents, set up as the documentation says.

    Programs are on the PATH where they really are: a link from there would lead out of what a sandbox shows.
    """
    places = [OPENCODE.installed().parent]
    if "codex-app-server" in columns:
        places.append(codex_app_server.PROGRAM.installed().parent)
        backends = home.path / ".config" / "avenor" / "backends"
        backends.mkdir(parents=True)
        (backends / "codex-gateway.toml").write_text(_documented_profile())
        (home.path / ".codex").mkdir()
        (home.path / ".codex" / "config.toml").write_text(
            'model = "stand-in"\ncheck_for_update_on_startup = false\n[analytics]\nenabled = false\n'
        )
        home.env["CODEX_HOME"] = str(home.path / ".codex")
    if "claude-acp" in columns:
        program = home.path / "bin" / "claude-agent-acp"
        program.parent.mkdir()
        installed = acp_agents.program("claude-acp")
        program.write_text(f'#!/bin/sh\nexec "{NODE.installed()}" "{installed.installed()}" "$@"\n')
        program.chmod(0o755)
        # With `node_modules/.bin` there, a sandbox shows all of `node_modules`.
        places += [program.parent, installed.folder / "node_modules" / ".bin", NODE.installed().parent]
    home.env["PATH"] = ":".join([*map(str, places), home.env["PATH"]])
    home.env[KEY_NAME] = KEY


def _documented_profile() -> str:
    """The backend that the how-to gives to users of codex."""
    (found,) = re.findall(r"^```toml\n(.*?)^```$", _HOW_TO.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def roster(team: Team, *, chat_url: str, translated_url: str) -> str:
    """A roster in which this team plays the profiles, as JSON.

    Args:
        team: Who plays.
        chat_url: The stand-in's address, with `/v1`.
        translated_url: The translator's, without.
    """
    found: dict[str, Any] = yaml.safe_load(_ROSTER.read_text())
    for name, member in zip(PROFILES, team.members, strict=True):
        dialect, ending = member.speaks
        url = f"{translated_url}{ending}" if member.is_translated else chat_url
        endpoint = {"endpoint": {"dialect": dialect, "url": url, "key_env": KEY_NAME}}
        usual = {key: found["profiles"][name][key] for key in ("prices", "family")}
        own = {"script": SCRIPT_NAME} if member is SCRIPTED else endpoint
        found["profiles"][name] = {**usual, **member.profile, **own}
        found["tools"].update(member.tools)
        found["writes"].update(member.writes)
    return json.dumps(found, indent=1)


def script() -> str:
    """What scripted members play; the file lies beside the roster and is called `SCRIPT_NAME`."""
    rules = [{"match": f"^You are `{name}`", "steps": steps} for name, steps in DEFAULTS.items()]
    return json.dumps({"rules": rules})


BUG: Final = "    for number in range(attempts - 1):"
_MENDED: Final = "    for number in range(attempts):"
_EDIT: Final = f"[[edit: src/retry.py | {BUG} | {_MENDED}]]"


def call(tool: str, **arguments: Any) -> str:
    """The directive that calls one of avenor's tools."""
    return f"[[call: {tool} {json.dumps(arguments)}]]"


def together(*directives: str) -> str:
    """Directives whose calls are made at once."""
    return "".join(re.sub(r"^\[\[(\w+)", r"[[\1+", each) for each in directives[:-1]) + directives[-1]


def submit(subject: str, claim: str) -> str:
    """The directive that hands over a result."""
    findings = [{"subject": subject, "claim": claim, "finding": f"{subject}: {claim}"}]
    return call("submit_result", source_revision="{commit}", plan_epoch=7, findings=findings)


def judge(verdict: str) -> str:
    """The directive that hands over a verdict."""
    return call("submit_verdict", verdict=verdict, revision="{commit}")


def plays(team: Team, **changes: Sequence[str]) -> dict[str, str]:
    """What the model says to each member, by words of its prompt; one item for each of its calls.

    Args:
        team: Who plays.
        changes: By member, instead of what it says usually.
    """
    usual: dict[str, Sequence[str]] = {
        "planner": [
            together(
                call("create_task", member="implementation_reader", contract="read the loop", paths=["src"]),
                call("create_task", member="test_reader", contract="find the missing case", paths=["tests"]),
            ),
            submit("plan", "two readers, one writer"),
            "[[text: planned]]",
        ],
        "implementation_reader": [
            "[[read: src/retry.py]]",
            submit("loop bound", "one attempt too few"),
            "[[text: read]]",
        ],
        "test_reader": [
            "[[read: tests/test_retry.py]]",
            submit("missing case", "the last attempt succeeds"),
            "[[text: read]]",
        ],
        "writer": [
            "[[read: src/retry.py]]",
            _EDIT,
            together("[[shell: python -m pytest -q tests/test_retry.py]]", submit("change", "the bound is mended")),
            "[[text: written]]",
        ],
        "evaluator": [together(call("read_diff"), call("read_test_receipt")), judge("accept")],
    }
    played: dict[str, Agent] = dict(zip(MEMBERS, (team.members[place] for place in (0, 1, 1, 2, 3)), strict=True))
    said = {name: prefixed(played[name], "".join(each)) for name, each in {**usual, **changes}.items()}
    return {f"You are `{name}`": text for name, text in said.items()}


def prefixed(agent: Agent, said: str) -> str:
    """What a model says, with avenor's tools called as this agent wants it."""
    return re.sub(r"(\[\[call\+?: )", rf"\1{agent.prefix}", said)
