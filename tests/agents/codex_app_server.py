"""Real codex for tests of its app-server: what is installed, and a home in which it talks to a stand-in model."""

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.backends.registry import get_backend
from tests.agents.install import MACHINE, Program
from tests.agents.standin_model import StandInModel
from tests.runtimes.agent_kit import make_params

VERSION: Final = "0.171.0"
MODEL: Final = "gpt-5.5"  # One that codex knows: it offers its patch tool to those only.
OTHER_MODEL: Final = "gpt-6-sol"

PROGRAM: Final = Program(
    "codex-app-server",
    (f"@openai/codex@{VERSION}-{sys.platform}-{MACHINE}",),
    "@openai/codex/vendor/*/bin/codex",
)
# Without the features, codex asks a public host for plugins when it starts.
_CONFIG: Final = """
model = "{model}"
model_provider = "standin"
check_for_update_on_startup = false
{more}
[model_providers.standin]
name = "Stand-in"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "STANDIN_KEY"
request_max_retries = 1
stream_max_retries = 1

[features]
plugins = false
apps = false
remote_plugin = false
{features}
[analytics]
enabled = false
"""


class CodexHome:
    """A user who has codex, and nothing else.

    Args:
        root: An empty folder.
        model_url: Where a model is that speaks the responses dialect.
        config: More lines for the head of codex's configuration.
        features: Switched on besides.
    """

    def __init__(self, root: Path, model_url: str, config: str = "", features: Sequence[str] = ()) -> None:
        self.path = root / "home"
        programs = root / "bin"
        for folder in (programs, self.path / "tmp", self.path / ".codex"):
            folder.mkdir(parents=True)
        (programs / "codex").symlink_to(PROGRAM.installed())
        switches = "".join(f"{feature} = true\n" for feature in features)
        text = _CONFIG.format(model=MODEL, url=model_url, more=config, features=switches)
        (self.path / ".codex" / "config.toml").write_text(text)
        self.env = {
            "HOME": str(self.path),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": str(self.path / "tmp"),
            "CODEX_HOME": str(self.path / ".codex"),
            "STANDIN_KEY": "dummy",
        }


class CodexKit:
    """codex for the conformance suite; files are in the session's folder, and the home is everybody's."""

    def __init__(self, home: CodexHome, model: StandInModel) -> None:
        self.backend: Backend = get_backend("codex-app-server")
        self.choice = {"model": OTHER_MODEL, "agent": "read-only", "thinking": "high"}
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
        mcp_servers: Sequence[McpServer] | None = None,
    ) -> OpenParams:
        return make_params(
            folder,
            env=self._home.env,
            resume=resume,
            agent=agent,
            model=model,
            thinking=thinking,
            mcp_servers=mcp_servers or [],
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
        (request,) = self._model.asked(self._recalled)
        return word in request.earlier


def steps(*turns: Sequence[Mapping[str, object]]) -> str:
    """A prompt for `codex_model.ItemModel`: what the model gives, request by request."""
    return json.dumps(turns)
