"""What tests of backends need: a sink that records, and a session that is surely closed again."""

import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from avenor.host.ladder import Graces
from avenor.host.procs import ProcsFile
from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.base import (
    Backend,
    OpenParams,
    PermissionAnswer,
    PermissionAsk,
    Session,
    open_within,
)
from tests.helpers import eventually

E = TypeVar("E", bound=Event)
Resolver = Callable[[PermissionAsk], Awaitable[PermissionAnswer]]

TAG_NAME = "AVENOR_AGENT_TAG"
GRACES = Graces(stdin_seconds=5.0, term_seconds=5.0, kill_seconds=5.0)
QUICK = Graces(stdin_seconds=0.1, term_seconds=0.1, kill_seconds=5.0)  # for agents that will not go by themselves
OPEN_SECONDS = 90.0  # A gemini session is resumed in a later minute than it was made in.
CLOSE_SECONDS = 60.0
TURN_SECONDS = 60.0  # For a hung agent to fail a test rather than the whole run.


def picks(kind: str) -> Resolver:
    """Answers every question with its first option of a kind."""

    async def answer(ask: PermissionAsk) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=next(o.option_id for o in ask.options if o.kind == kind))

    return answer


async def never(_ask: PermissionAsk) -> PermissionAnswer:
    """Leaves every question open."""
    await trio.sleep_forever()
    raise AssertionError("unreachable")


class RecordingSink:
    """Keeps everything that a session reports.

    Args:
        resolver: Answers the questions.
    """

    def __init__(self, resolver: Resolver = never) -> None:
        self.events: list[Event] = []
        self.asks: list[PermissionAsk] = []
        self.withdrawn: list[PermissionAsk] = []
        self.resolver = resolver

    def emit(self, event: Event) -> None:
        """Keeps an event, encoded once as the real log does, so that what cannot be encoded fails here."""
        events.encode_event(event)
        self.events.append(event)

    def batch(self) -> AbstractContextManager[None]:
        """Keeps them one by one all the same."""
        return nullcontext()

    async def ask_permission(self, request: PermissionAsk) -> PermissionAnswer:
        """Answers as the resolver does, and keeps what was withdrawn."""
        self.asks.append(request)
        try:
            return await self.resolver(request)
        except trio.Cancelled:
            self.withdrawn.append(request)
            raise

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def text(self) -> str:
        """All message text so far."""
        return "".join(msgspec.json.decode(event.content)["text"] for event in self.of(events.MessageChunk))

    async def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        """Waits for so many events of a kind."""
        await eventually(lambda: len(self.of(kind)) >= count, seconds=TURN_SECONDS)
        return self.of(kind)

    async def wait_text(self, text: str) -> None:
        """Waits until the agent has said this."""
        await eventually(lambda: text in self.text(), seconds=TURN_SECONDS)

    async def wait_asked(self, count: int = 1) -> None:
        """Waits for so many questions."""
        await eventually(lambda: len(self.asks) >= count, seconds=TURN_SECONDS)


def make_params(folder: Path, **changes: object) -> OpenParams:
    """Params for an agent in a folder of its own, with an environment of its own and a tag that nothing else has."""
    params = OpenParams(
        cwd=str(folder),
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "AVENOR_SCRIPTED_STATE": str(folder / "state")},
        tag=(TAG_NAME, secrets.token_hex(8)),
        procs=ProcsFile(folder / "procs"),
    )
    return msgspec.structs.replace(params, **changes)


def python_agent(folder: Path, source: str, *arguments: str) -> Sequence[str]:
    """The program line of an agent that is a few lines of Python, as backend `acp` takes it."""
    path = folder / f"agent-{secrets.token_hex(4)}.py"
    path.write_text(source, encoding="utf-8")
    return [sys.executable, str(path), *arguments]


def write_script(folder: Path, script: dict[str, object]) -> str:
    """A script file for the scripted agent."""
    path = folder / f"script-{secrets.token_hex(4)}.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    return str(path)


@asynccontextmanager
async def opened(
    backend: Backend, params: OpenParams, sink: RecordingSink, graces: Graces = GRACES
) -> AsyncGenerator[Session, None]:
    """An open session, closed at the end whatever happens."""
    async with trio.open_nursery() as nursery:
        session = await open_within(OPEN_SECONDS, backend, params, sink, nursery)
        try:
            with trio.fail_after(TURN_SECONDS):
                yield session
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS) as closing:
                await session.close(graces)
            if closing.cancelled_caught:  # its tasks go on, and would be waited for without an end
                raise AssertionError(f"closing took longer than {CLOSE_SECONDS:g} s")
