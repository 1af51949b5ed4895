"""The conformance suite, run on the scripted agent: through its own backend, and through `acp`."""

import sys
from pathlib import Path

import pytest

from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.backends.registry import get_backend
from tests.runtimes.agent_kit import make_params, write_script
from tests.runtimes.conformance import CHECKS, Check

_RULES: list[dict[str, object]] = [
    {"match": "^RECALL", "steps": [{"do": "recall"}]},
    {
        "match": "^TOUCH made.txt",
        "steps": [
            {
                "do": "run",
                "command": "touch made.txt",
                "ask": {"on_allow": [{"do": "say", "text": "touched"}], "on_reject": [{"do": "say", "text": "Fine."}]},
            }
        ],
    },
    {"match": "^TALK", "steps": [{"do": "say", "text": "tick " * 300, "chunks": 300, "every": "200ms"}]},
    {"match": "^WORK begun", "steps": [{"do": "run", "command": "touch begun; exec sleep 60", "ask": True}]},
    {"match": "^SAY hello there$", "steps": [{"do": "say", "text": "hello there"}, {"do": "usage", "input_tokens": 3}]},
    {"match": "^SAY still here$", "steps": [{"do": "say", "text": "still here"}]},
    {"match": "^SAY on we go$", "steps": [{"do": "say", "text": "on we go"}]},
    {"match": "^SAY whole again$", "steps": [{"do": "say", "text": "whole again"}]},
    {"match": "^SAY", "steps": [{"do": "say", "text": "Said."}]},
]


class ScriptedKit:
    """The scripted agent under a backend; files are in the session's folder."""

    def __init__(self, name: str) -> None:
        self.backend: Backend = get_backend(name)
        self.choice = {"model": "large", "agent": "plan", "thinking": "high"}

    def params(
        self,
        folder: Path,
        *,
        resume: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
    ) -> OpenParams:
        script = write_script(folder, {"rules": _RULES})
        program: dict[str, object] = {"script": script}
        if self.backend.name == "acp":
            program = {"command": [sys.executable, "-m", "avenor.runtimes.scripted", "--script", script]}
        return make_params(folder, resume=resume, agent=agent, model=model, thinking=thinking, **program)

    def say(self, text: str) -> str:
        return f"SAY {text}"

    def touch(self, path: Path) -> str:
        return f"TOUCH {path.name}"

    def talk_on(self) -> str:
        return "TALK"

    def work_on(self, path: Path) -> str:
        return f"WORK {path.name}"

    def recall(self) -> str:
        return "RECALL"

    def has_recalled(self, word: str, said: str) -> bool:
        return word in said


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize("backend", ["scripted"])
async def test_the_scripted_agent_conforms(backend: str, check: Check, tmp_path: Path) -> None:
    """Every check of the suite holds for the embedded agent."""
    await check(ScriptedKit(backend), tmp_path)


async def test_any_program_that_speaks_acp_is_a_backend(tmp_path: Path) -> None:
    """Backend `acp` runs the program line that it is given."""
    await CHECKS[1](ScriptedKit("acp"), tmp_path)
