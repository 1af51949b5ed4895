"""Real pi for tests: what is installed of each of its two lines, and a home in which it talks to a stand-in model."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.backends.registry import get_backend
from tests.agents.install import Program
from tests.agents.standin_model import StandInModel
from tests.runtimes.agent_kit import make_params

_PRICES = {"input": 1.0, "output": 2.0, "cacheRead": 0, "cacheWrite": 0}  # Dollars for a million tokens.


@dataclass(frozen=True)
class PiLine:
    """One of the two packages that pi is published as.

    Attributes:
        name: For people.
        version: What its `--version` tells.
        program: What is installed.
        lacks: Checks of the conformance suite that it cannot meet, and why.
    """

    name: str
    version: str
    program: Program
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])


_NO_MCP = {"starts_an_mcp_server": "pi takes no MCP servers from its client"}
LINES = (
    PiLine(
        "pi",
        "1.6.0",
        Program("pi", ("@earendil-works/pi-coding-agent@1.6.0",), ".bin/pi", needs_node=True),
        lacks=_NO_MCP,
    ),
    PiLine(
        "pi-mariozechner",
        "0.73.1",
        Program("pi-mariozechner", ("@mariozechner/pi-coding-agent@0.73.1",), ".bin/pi"),
        lacks={**_NO_MCP, "tells_a_broken_answer": "it takes a stream that just ends for a whole answer"},
    ),
)


class PiHome:
    """A user who has pi, and nothing else.

    Args:
        line: Which.
        root: An empty folder.
        model_url: Where the stand-in model is.
    """

    def __init__(self, line: PiLine, root: Path, model_url: str) -> None:
        self.path = root / "home"
        self.settings = self.path / ".pi" / "agent"
        for folder in (self.settings, self.path / "tmp"):
            folder.mkdir(parents=True)
        provider = {
            "baseUrl": model_url,
            "api": "openai-completions",
            "apiKey": "dummy",
            "compat": {"supportsDeveloperRole": False},
            "models": [
                {"id": "large", "contextWindow": 128000, "maxTokens": 8192, "cost": _PRICES},
                {"id": "small", "contextWindow": 64000, "maxTokens": 4096},
                {"id": "thinker", "contextWindow": 64000, "maxTokens": 4096, "reasoning": True},
            ],
        }
        (self.settings / "models.json").write_text(json.dumps({"providers": {"standin": provider}}))
        chosen = {"defaultProvider": "standin", "defaultModel": "large", "defaultThinkingLevel": "off"}
        (self.settings / "settings.json").write_text(json.dumps(chosen))
        self.env = {
            "HOME": str(self.path),
            "PATH": f"{line.program.installed().parent}:{line.program.path_variable()}",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(self.path / "tmp"),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_CODING_AGENT_DIR": str(self.settings),
        }

    def add_extension(self, name: str, source: str) -> None:
        """Gives the user an extension."""
        folder = self.settings / "extensions"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.ts").write_text(source)


class PiKit:
    """pi for the conformance suite; files are in the session's folder, and the home is everybody's."""

    def __init__(self, home: PiHome, model: StandInModel) -> None:
        self.backend: Backend = get_backend("pi")
        self.choice = {"model": "standin/thinker", "thinking": "high"}
        self.home = home
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
        return make_params(folder, env=self.home.env, resume=resume, agent=agent, model=model, thinking=thinking)

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
        (request,) = self._model.asked(self._recalled)
        return word in request.earlier
