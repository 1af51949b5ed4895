"""Every program that the agent tests drive, under each of its backends: one column of the matrix each.

Run as `python -m tests.agents.catalog opencode,codex` to install some, or `all`.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.agents import acp_agents, claude_code, codex_app_server
from tests.agents.acp_agents import RECIPES, AcpKit, AgentHome
from tests.agents.acp_dialects import DialectModel
from tests.agents.codex_app_server import CodexHome, CodexKit
from tests.agents.harness import Home
from tests.agents.install import OPENCODE
from tests.agents.opencode_agent import OpencodeKit
from tests.agents.pi_agent import LINES, PiHome, PiKit, PiLine
from tests.agents.standin_model import StandInModel

# The variable that says which agents to test, as `chosen` takes them.
WANTED: Final = "AVENOR_TEST_AGENTS"


RealKit = OpencodeKit | CodexKit | PiKit | AcpKit


@dataclass(frozen=True)
class Models:
    """The stand-in model, in its own dialect and translated."""

    chat: StandInModel
    translated: DialectModel


# Makes kits for one home, which is in the given folder's `home`; a kit is for one test at a time.
MakeKits = Callable[[Path, Models], Callable[[], RealKit]]


@dataclass(frozen=True)
class Agent:
    """A program under a backend.

    Attributes:
        name: Of the column, and of its results file.
        backend: Which one.
        program: Words by which a person asks for it, besides its name.
        install: Installs what is missing.
        make_kits: See there.
        module: The file of its own tests, without its ending, or the beginning of several.
        lacks: Checks that it cannot meet, and why.
        at_once: How many checks may run side by side.
    """

    name: str
    backend: str
    install: Callable[[], object]
    make_kits: MakeKits
    module: str
    program: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])
    at_once: int = 1


def _opencode(backend: str) -> MakeKits:
    def make(root: Path, models: Models) -> Callable[[], RealKit]:
        home = Home(root, models.chat.url)
        home.make_database()
        return lambda: OpencodeKit(home, models.chat, backend)

    return make


def _codex(root: Path, models: Models) -> Callable[[], RealKit]:
    home = CodexHome(root, models.translated.url)
    return lambda: CodexKit(home, models.chat)


def _pi(line: PiLine) -> MakeKits:
    def make(root: Path, models: Models) -> Callable[[], RealKit]:
        home = PiHome(line, root, models.chat.url)
        return lambda: PiKit(home, models.chat)

    return make


def _acp(name: str) -> MakeKits:
    def make(root: Path, models: Models) -> Callable[[], RealKit]:
        home = AgentHome(name, root, models.chat.url, models.translated.url)
        return lambda: AcpKit(name, home, models.chat)

    return make


def _installing(name: str) -> Callable[[], object]:
    """What installs an agent; claude's column has tests of its own program as a host besides."""

    def install() -> None:
        acp_agents.program(name).install()
        if name == "claude-acp":
            claude_code.PROGRAM.install()

    return install


_TRIES_ON: Final = "tries again without end and says nothing; the progress timeout ends such a run"
_NO_PRICE: Final = {"tells_what_it_costs": "tells no price"}
_OPENCODE_LACKS: Final = {"tells_a_model_that_is_down": _TRIES_ON, "tells_a_broken_answer": _TRIES_ON}

_OURS: Final = (
    Agent(
        name="opencode-acp",
        backend="opencode-acp",
        program="opencode",
        install=OPENCODE.install,
        make_kits=_opencode("opencode-acp"),
        module="test_opencode_",
        lacks=_OPENCODE_LACKS,
        at_once=2,
    ),
    Agent(
        name="opencode-http",
        backend="opencode-http",
        program="opencode",
        install=OPENCODE.install,
        make_kits=_opencode("opencode-http"),
        module="test_opencode_http",
        lacks=_OPENCODE_LACKS,
        at_once=2,
    ),
    Agent(
        name="codex-app-server",
        backend="codex-app-server",
        program="codex",
        install=codex_app_server.PROGRAM.install,
        make_kits=_codex,
        module="test_codex_app_server",
        lacks=_NO_PRICE,
    ),
)
_PI: Final = tuple(
    Agent(
        name=line.name,
        backend="pi",
        install=line.program.install,
        make_kits=_pi(line),
        module="test_pi",
        lacks=line.lacks,
    )
    for line in LINES
)
_ACP: Final = tuple(
    Agent(
        name=name,
        backend=recipe.backend,
        program=name.split("-")[0] if recipe.backend == name != "codex-acp" else "",
        install=_installing(name),
        make_kits=_acp(name),
        module="test_acp_agents",
        lacks=recipe.lacks,
    )
    for name, recipe in RECIPES.items()
)

AGENTS: Final[Mapping[str, Agent]] = {agent.name: agent for agent in (*_OURS, *_PI, *_ACP)}


def chosen(words: str) -> Sequence[Agent]:
    """The agents that these words name: each is a column's name, a program's name, or `all`; empty names none.

    Args:
        words: Between commas or spaces.

    Raises:
        ValueError: One names nothing; the message lists what there is.
    """
    found: dict[str, Agent] = {}
    for word in words.replace(",", " ").split():
        fitting = {n: a for n, a in AGENTS.items() if word in ("all", n) or (word == a.program and word not in AGENTS)}
        if not fitting:
            programs = sorted({agent.program for agent in AGENTS.values() if agent.program})
            raise ValueError(f"no agent is called {word!r}: choose from all, {', '.join([*programs, *AGENTS])}")
        found.update(fitting)
    return list(found.values())


def wanted() -> Sequence[Agent]:
    """The agents to test, by the environment."""
    return chosen(os.environ.get(WANTED, ""))


def main(words: Sequence[str]) -> None:
    """Installs what is missing of the named agents."""
    try:
        agents = chosen(",".join(words))
    except ValueError as error:
        sys.exit(str(error))
    for agent in agents:
        agent.install()


if __name__ == "__main__":
    main(sys.argv[1:])
