"""opencode for the conformance suite, under either of its backends."""

import secrets
from pathlib import Path

from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.backends.registry import get_backend
from tests.agents.harness import Home
from tests.agents.standin_model import StandInModel
from tests.runtimes.agent_kit import make_params


class OpencodeKit:
    """opencode under one of its backends; files are in the session's folder, and the home is everybody's."""

    def __init__(self, home: Home, model: StandInModel, backend: str = "opencode-acp") -> None:
        self.backend: Backend = get_backend(backend)
        self.choice = {"model": "standin/small", "agent": "plan"}
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
        return make_params(folder, env=self._home.env, resume=resume, agent=agent, model=model, thinking=thinking)

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
