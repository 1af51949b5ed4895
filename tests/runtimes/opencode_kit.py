"""The stand-in for `opencode serve` as a backend: started as a program, or reached in the test's own loop."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from avenor.runtimes.backends.base import Backend, OpenParams, Session
from avenor.runtimes.backends.opencode_http import OpencodeHttpBackend
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.agent_kit import RecordingSink, Resolver, make_params, never, opened
from tests.runtimes.fake_opencode import FakeOpencode, running_fake

_PROGRAM = Path(__file__).with_name("fake_opencode.py")


def fake_backend(*argv: str) -> OpencodeHttpBackend:
    """A new backend whose program is the stand-in, or another."""
    line = argv or (sys.executable, str(_PROGRAM))
    return OpencodeHttpBackend(msgspec.structs.replace(builtin("opencode-http"), argv=line), "0")


class FakeKit:
    """The stand-in as a program, for the conformance suite; its home is the session's folder."""

    def __init__(self) -> None:
        self.backend: Backend = fake_backend()
        self.choice = {"model": "fake/small", "agent": "plan"}

    def params(
        self,
        folder: Path,
        *,
        resume: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
    ) -> OpenParams:
        return make_params(folder, resume=resume, agent=agent, model=model, thinking=thinking)

    def say(self, text: str) -> str:
        return f"say {text}"

    def touch(self, path: Path) -> str:
        return f"run touch {path.name}\nsay touched"

    def talk_on(self) -> str:
        return "talk"

    def work_on(self, path: Path) -> str:
        return f"run touch {path.name}; exec sleep 60"

    def recall(self) -> str:
        return "recall"

    def has_recalled(self, word: str, said: str) -> bool:
        return word in said


class Talk:
    """A session on a server in the test's own loop, which can be broken."""

    def __init__(self, fake: FakeOpencode, session: Session, sink: RecordingSink) -> None:
        self.fake = fake
        self.session = session
        self.sink = sink


@asynccontextmanager
async def talking(folder: Path, resolver: Resolver = never, **changes: object) -> AsyncGenerator[Talk, None]:
    """A session on a server that was running before."""
    sink = RecordingSink(resolver)
    async with running_fake() as fake:
        params = make_params(folder, server_url=fake.url, **changes)
        async with opened(fake_backend(), params, sink) as session:
            yield Talk(fake, session, sink)
