"""One session of an opencode server: what the server says of it, what a break in that costs, and its end.

Its turns are `opencode_turn`'s, opening it is `opencode_http`'s.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, Raw

from avenor.host.ladder import Graces, StopResult
from avenor.protocol import events
from avenor.protocol.errors import LocalProtocolError
from avenor.protocol.events import Event
from avenor.runtimes.backends.base import (
    AgentExit,
    Capabilities,
    OpenParams,
    SessionSink,
    TurnStop,
)
from avenor.runtimes.backends.http_client import HttpFailed, HttpUnreachable, quoted
from avenor.runtimes.backends.opencode_asking import Asker
from avenor.runtimes.backends.opencode_server import OpencodeServer
from avenor.runtimes.backends.opencode_transcript import Transcript
from avenor.runtimes.backends.opencode_turn import Turn, Turns
from avenor.runtimes.backends.opencode_types import (
    Message,
    MessageInfo,
    ModelRef,
    Problem,
    Properties,
    ServerEvent,
    SessionInfo,
    Status,
    whole,
)
from avenor.runtimes.backends.profiles import Profile

LOOK_UP_SECONDS: Final = 2.0  # Between two tries to look up what was missed.
HELD_LIMIT: Final = 4096  # Events before the session is open; a server that sends more has them told early.


class _Asked(msgspec.Struct, frozen=True):
    """What is looked at of an open question. Tolerant."""

    sessionID: str = ""


class _Diffed(msgspec.Struct, frozen=True):
    """Of a `session.diff`. Tolerant."""

    diff: Raw = Raw(b"[]")


_messages = msgspec.json.Decoder(list[Message])
_raws = msgspec.json.Decoder(list[Raw])
_info = msgspec.json.Decoder(MessageInfo)
_session = msgspec.json.Decoder(SessionInfo)
_sessions = msgspec.json.Decoder(list[SessionInfo])
_event = msgspec.json.Decoder(ServerEvent)
_asked = msgspec.json.Decoder(_Asked)
_diffed = msgspec.json.Decoder(_Diffed)

# Events that only say again what others have said.
_ECHOES: Final = frozenset(
    {"session.created", "session.idle", "permission.replied", "question.replied", "question.rejected"}
)
_NO_DIFF: Final = b"[]"


class OpencodeSession:
    """A session; see `base.Session`.

    Attributes:
        nursery: Its tasks, and the server's while it keeps them; see `opencode_server.Member`.
        tail: See `opencode_server.Member`.
        model_ref: The model to use; None leaves it to the server.
        context_sizes: How many tokens each model takes, by its name.
    """

    def __init__(
        self, profile: Profile, server: OpencodeServer, params: OpenParams, sink: SessionSink, nursery: trio.Nursery
    ) -> None:
        self.nursery = nursery
        self.tail = params.stderr_tail
        self.session_id = ""
        self.resumed = False
        self.capabilities = Capabilities()
        self.agent: str | None = None
        self.model_ref: ModelRef | None = None
        self.context_sizes: dict[str, int] = {}
        self._server = server
        self._sink = sink
        self._scope = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._transcript = Transcript()
        self._asker = Asker(sink, profile, client=lambda: server.client, query=server.query, emit=self._emit)
        self._turns = Turns(server, self._transcript, self._asker, self.tail, start=self._start)
        self._title = ""
        self._cost = 0.0
        self._costs: dict[str, float] = {}
        self._held: list[Event] | None = []
        self._is_open = trio.Event()
        self._exit: AgentExit | None = None
        self._is_gone = trio.Event()
        self._close_lock = trio.Lock()
        self._stop_result: StopResult | None = None

    @property
    def agent_pid(self) -> int:
        """The process id of the server's program; 0 for a server that was running before."""
        return self._server.pid

    @property
    def is_lost(self) -> bool:
        """See `base.Session.is_lost`."""
        return self._server.is_over

    @property
    def agent_version(self) -> str | None:
        """The server's version."""
        return f"opencode {self._server.version}" if self._server.version else None

    @property
    def model(self) -> str | None:
        """The model in use now, as far as that is known."""
        return None if self.model_ref is None else self.model_ref.name

    # Turns

    async def prompt(self, text: str) -> TurnStop:
        """Runs one turn; see `base.Session.prompt`."""
        if self._turns.current is not None:
            raise LocalProtocolError("the session has a turn already: one prompt at a time")
        body: dict[str, object] = {"parts": [{"type": "text", "text": text}]}
        if self.agent is not None:
            body["agent"] = self.agent
        if self.model_ref is not None:
            body["model"] = {"providerID": self.model_ref.providerID, "modelID": self.model_ref.modelID}
        if self.model_ref is not None and self.model_ref.variant is not None:
            body["variant"] = self.model_ref.variant
        return await self._turns.run(body, self._exit)

    async def cancel(self) -> None:
        """Asks the server to abort the turn; see `base.Session.cancel`."""
        self._turns.cancel()
        await trio.lowlevel.checkpoint()

    # What the server says

    def batch(self) -> AbstractContextManager[None]:
        """See `opencode_server.Member`."""
        return self._sink.batch()

    def tell(self, event: Event) -> None:
        """Takes noise, stderr and troubles of the server."""
        if isinstance(event, events.AgentNoise | events.AgentStderr):
            self._sink.emit(event)
        else:
            self._emit(event)

    def take(self, kind: str, properties: Properties, verbatim: bytes) -> None:
        """Takes an event of this session or of a subagent's."""
        is_own = properties.sessionID == self.session_id
        try:
            if not self._take_known(kind, properties, is_own, verbatim):
                self._emit(events.SessionUpdate(update=Raw(verbatim)))
        except msgspec.DecodeError:
            self._emit(events.SessionUpdate(update=Raw(verbatim)))

    def _take_known(self, kind: str, properties: Properties, is_own: bool, verbatim: bytes) -> bool:
        """Takes an event of a kind that we know; False if it is to be told as it came."""
        match kind:
            case "message.updated" if properties.info is not UNSET:
                self._take_message(_info.decode(properties.info), is_own)
            case "message.part.updated" if properties.part is not UNSET and is_own:
                self._emit_all(self._transcript.take_part(properties.part))
            case "message.part.updated" if properties.part is not UNSET:
                return not self._transcript.is_worth_telling(properties.part)
            case "message.part.delta":
                if is_own and properties.field == "text":
                    self._emit_all(self._transcript.take_delta(properties.partID, properties.delta))
            case "session.status" if properties.status is not None:
                return self._take_status(properties.status, is_own)
            case "session.error":
                return self._take_problem(properties.error, is_own)
            case "session.updated" if properties.info is not UNSET:
                self._take_session(_session.decode(properties.info), is_own)
            case "todo.updated" if properties.todos is not UNSET and is_own:
                self._emit(events.SessionPlan(entries=properties.todos.copy()))
            case "permission.asked":
                self._asker.take_permission(_event.decode(verbatim).properties, may_ask=self._turns.may_ask)
            case "question.asked":
                self._asker.take_question(_event.decode(verbatim).properties, may_ask=self._turns.may_ask)
            case "session.diff":
                return bytes(_diffed.decode(_event.decode(verbatim).properties).diff) == _NO_DIFF
            case _:
                return self._take_echo(kind, properties)
        return True

    def _take_echo(self, kind: str, properties: Properties) -> bool:
        if kind in ("permission.replied", "question.replied", "question.rejected"):
            self._asker.settle(properties.requestID)
        return kind in _ECHOES

    def _take_message(self, info: MessageInfo, is_own: bool) -> None:
        was_begun = self._transcript.prompt_id is not None
        if not self._transcript.take_message(info, is_own=is_own) or not is_own:
            return
        if not was_begun and self._transcript.prompt_id is not None:
            self._turns.begun()
        if info.role == "assistant":
            self._take_choice(info)
            if info.is_over and info.error is None:
                self._tell_usage(info)

    def _take_choice(self, info: MessageInfo) -> None:
        """Takes which agent and model the server does use."""
        if info.agent not in self.capabilities.agents:
            return  # the one that compacts, say, with a model of its own
        if info.agent != self.agent:
            self.agent = info.agent
            self._emit(events.SessionMode(currentModeId=str(info.agent)))
        if info.modelID and self.model != f"{info.providerID}/{info.modelID}":
            self.model_ref = ModelRef(providerID=info.providerID, modelID=info.modelID)

    def _tell_usage(self, info: MessageInfo) -> None:
        used = whole(info.tokens.input + info.tokens.cache.read + info.tokens.cache.write)
        self._cost += info.cost - self._costs.get(info.id, 0.0)
        self._costs[info.id] = info.cost
        cost = Raw(msgspec.json.encode({"amount": self._cost, "currency": "USD"}))
        size = self.context_sizes.get(f"{info.providerID}/{info.modelID}", 0)
        self._emit(events.SessionUsage(used=used, size=size, cost=cost))

    def _take_status(self, status: Status, is_own: bool) -> bool:
        """Takes what the session is at; a model that fails is told, and for how long that goes on is bounded."""
        if status.type == "retry":
            self._turns.model_failed(status)
        elif is_own and status.type == "idle":
            self._turns.idle()
        return status.type in ("idle", "busy")

    def _take_problem(self, problem: Problem | None, is_own: bool) -> bool:
        # A subagent's is its parent's to judge.
        return is_own and problem is not None and self._turns.failed(problem)

    def _take_session(self, info: SessionInfo, is_own: bool) -> None:
        if is_own and info.title != self._title:
            self._title = info.title
            self._emit(events.SessionInfo(title=info.title))

    # After a break

    def stream_broke(self) -> None:
        """See `opencode_server.Member`."""
        self._transcript.break_off()

    def stream_is_up(self) -> None:
        """See `opencode_server.Member`."""
        if self._turns.current is not None:
            self._start(self._catch_up, self._turns.current)

    async def _catch_up(self, turn: Turn) -> None:
        """Tells what was missed of the turn, from what the server has of it now."""
        is_told = False
        while not turn.ended.is_set():
            try:
                await self._look_up(turn)
                break
            except (HttpFailed, HttpUnreachable, msgspec.DecodeError) as failure:
                if not is_told:
                    message = f"what was missed cannot be looked up yet: {failure}"
                    self._emit(events.Error(source="events", message=message))
                is_told = True
            await trio.sleep(LOOK_UP_SECONDS)
        if self._transcript.prompt_id is not None:
            await self._turns.settle(turn)

    async def _look_up(self, turn: Turn) -> None:
        history = _messages.decode(await self._get(self._path("/message")))
        for child in _sessions.decode(await self._get(self._path("/children"))):
            self._server.own(child.id, self)
        permissions = _raws.decode(await self._get("/permission"))
        questions = _raws.decode(await self._get("/question"))
        if turn.ended.is_set():
            return
        with self._sink.batch():
            self._emit_all(self._transcript.catch_up(history))
        for raw in permissions:
            if self._server.owner_of(_asked.decode(raw).sessionID) is self:
                self._asker.take_permission(raw, may_ask=self._turns.may_ask)
        for raw in questions:
            if self._server.owner_of(_asked.decode(raw).sessionID) is self:
                self._asker.take_question(raw, may_ask=self._turns.may_ask)

    # Opening, for `opencode_http`

    def begin(self, info: SessionInfo, history: list[Message]) -> None:
        """Takes the session that the server has opened, or restored with what was said in it."""
        self.session_id = self._turns.session_id = info.id
        self._title = info.title
        self._cost = sum(message.info.cost for message in history)
        self._transcript.take_past(history)
        self._server.own(info.id, self)

    def choice_for_session(self) -> dict[str, object]:
        """What to make a new session with."""
        body: dict[str, object] = {} if self.agent is None else {"agent": self.agent}
        if self.model_ref is not None:
            variant = {} if self.model_ref.variant is None else {"variant": self.model_ref.variant}
            body["model"] = {"providerID": self.model_ref.providerID, "id": self.model_ref.modelID, **variant}
        return body

    def finish_opening(self) -> None:
        """The session is open: what was held back is told once the caller has met its next checkpoint."""
        self._is_open.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the session's tasks until `close`."""
        with self._scope:
            async with trio.open_nursery() as self._tasks:
                self._tasks.start_soon(self._release_when_open)
                self._tasks.start_soon(self._asker.run, self._tasks)
                task_status.started()

    # The end

    def server_gone(self, exit_: AgentExit) -> None:
        """See `opencode_server.Member`."""
        self._exit = exit_
        self._is_gone.set()
        self._asker.withdraw_all()
        self._turns.server_gone(exit_)

    async def wait_exited(self) -> AgentExit:
        """Waits for the server's end; see `base.Session.wait_exited`."""
        await self._is_gone.wait()
        assert self._exit is not None
        return self._exit

    async def close(self, graces: Graces) -> StopResult:
        """Ends the session, and the server if it was the last one; see `opencode_server` for what that proves."""
        self._turns.is_closing = True
        self._asker.withdraw_all()
        async with self._close_lock:
            if self._stop_result is None:
                try:
                    turn = self._turns.current
                    if turn is not None and self._server.outlives(self):
                        await self._end_politely(turn, graces)
                    self._stop_result = await self._server.leave(self, graces)
                finally:  # Cut short, too: nobody waits for a server that could not be ended in time.
                    if self._exit is None:
                        self.server_gone(AgentExit(returncode=None))
                    self._scope.cancel()
        return self._stop_result

    async def _end_politely(self, turn: Turn, graces: Graces) -> None:
        await self.cancel()
        with trio.move_on_after(graces.stdin_seconds + graces.term_seconds):
            await turn.ended.wait()

    # Its own

    def _path(self, rest: str) -> str:
        return f"/session/{quoted(self.session_id)}{rest}"

    async def _get(self, path: str) -> bytes:
        return await self._server.client.call("GET", path, query=self._server.query)

    def _start(self, task: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._tasks is not None and not self._scope.cancel_called:
            self._tasks.start_soon(task, *args)

    async def _release_when_open(self) -> None:
        await self._is_open.wait()
        self._release()

    def _emit_all(self, told: list[Event]) -> None:
        for event in told:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        if self._held is None:
            self._sink.emit(event)
            return
        self._held.append(event)
        if len(self._held) > HELD_LIMIT:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        self._emit_all(held)
