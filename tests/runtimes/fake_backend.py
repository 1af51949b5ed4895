"""A backend without processes, for tests in virtual time."""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from avenor.host.ladder import Graces, StopResult
from avenor.protocol.errors import LocalProtocolError
from avenor.protocol.events import MessageChunk, PermissionOption, ToolCall
from avenor.protocol.spec import RunSpec
from avenor.runtimes.backends.base import (
    AgentExit,
    Capabilities,
    OpenParams,
    PermissionAnswer,
    PermissionAsk,
    SessionSink,
    TurnStop,
)

ALLOW = PermissionOption(option_id="allow", kind="allow_once", name="Allow")
REJECT = PermissionOption(option_id="reject", kind="reject_once", name="Reject")


class FakeSession:
    """A session whose turns are played by a function of the test."""

    def __init__(self, backend: "FakeBackend", params: OpenParams, sink: SessionSink, session_id: str) -> None:
        self.backend = backend
        self.params = params
        self.sink = sink
        self.session_id = session_id
        self.agent_pid = 0
        self.agent_version: str | None = "fake 1"
        self.agent: str | None = None
        self.model: str | None = params.model
        self.resumed = params.resume is not None
        self.capabilities = Capabilities(resume="resume")
        self.prompts: list[str] = []
        self.cancelled = trio.Event()
        self.is_lost = False
        self.exited = trio.Event()
        self.graces: Graces | None = None
        self.stopped = StopResult()
        self._is_busy = False

    def say(self, text: str, message_id: str = "m1") -> None:
        """Reports a piece of message."""
        content = msgspec.Raw(msgspec.json.encode({"type": "text", "text": text}))
        self.sink.emit(MessageChunk(content=content, messageId=message_id))

    def call_tool(self, title: str) -> None:
        """Reports a tool call."""
        self.sink.emit(ToolCall(toolCallId="t1", title=title))

    async def ask(self, *, trusted: bool = False) -> PermissionAnswer:
        """Asks for a permission."""
        ask = PermissionAsk(
            tool="shell",
            question="Run it?",
            options=[ALLOW, REJECT],
            payload=msgspec.Raw(b"{}"),
            trusted_options=["allow"] if trusted else [],
        )
        return await self.sink.ask_permission(ask)

    async def prompt(self, text: str) -> TurnStop:
        if self._is_busy or self.graces is not None:
            raise LocalProtocolError("one turn at a time, and none after close")
        self._is_busy = True
        self.cancelled = trio.Event()
        self.prompts.append(text)
        try:
            return await self.backend.play(self, text)
        finally:
            self._is_busy = False

    async def cancel(self) -> None:
        self.cancelled.set()

    async def close(self, graces: Graces) -> StopResult:
        if self.graces is None:
            self.graces = graces
            await self.backend.may_close.wait()
            self.exited.set()
        return self.stopped

    async def wait_exited(self) -> AgentExit:
        await self.exited.wait()
        return AgentExit(returncode=0)


Play = Callable[[FakeSession, str], Awaitable[TurnStop]]


async def play_echo(session: FakeSession, text: str) -> TurnStop:
    """Says the prompt and ends the turn."""
    session.say(f"you said {text}")
    return TurnStop(stop_reason="end_turn")


async def play_until_cancelled(session: FakeSession, _text: str) -> TurnStop:
    """Says something, and works on until it is cancelled."""
    session.say("working")
    await session.cancelled.wait()
    return TurnStop(stop_reason="cancelled")


class FakeBackend:
    """Opens fake sessions.

    Attributes:
        play: What a prompt does.
        sessions: All that were opened.
        specs: What it was looked for with.
        opened: The parameters of every opening, failed ones too.
        open_errors: Raised by the next openings, one each.
        open_seconds: How long an opening takes.
        open_leaves: What an opening that fails leaves behind.
        find_error: Raised when the backend is looked for.
        may_close: Closing a session waits for this; set unless a test replaces it.
    """

    name = "fake"

    def __init__(self, play: Play = play_echo) -> None:
        self.play = play
        self.sessions: list[FakeSession] = []
        self.specs: list[RunSpec] = []
        self.opened: list[OpenParams] = []
        self.open_errors: list[Exception] = []
        self.open_seconds = 0.0
        self.open_leaves: list[StopResult] = []
        self.find_error: Exception | None = None
        self.may_close = trio.Event()
        self.may_close.set()

    def found(self, spec: RunSpec) -> "FakeBackend":
        """Finds this backend by its name, unless the test has said that there is none."""
        self.specs.append(spec)
        if self.find_error is not None:
            raise self.find_error
        return self

    @property
    def last(self) -> FakeSession:
        """The session opened last."""
        return self.sessions[-1]

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> FakeSession:
        self.opened.append(params)
        try:
            await trio.sleep(self.open_seconds)
            if self.open_errors:
                raise self.open_errors.pop(0)
        except BaseException:
            params.aborted.extend(self.open_leaves)
            raise
        session = FakeSession(self, params, sink, params.resume or f"s{len(self.sessions) + 1}")
        self.sessions.append(session)
        return session
