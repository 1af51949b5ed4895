"""One thread of codex app-server: turns, questions, interrupting, and the end. Opening it is `codex`'s.

A turn begins with the line of `turn/start` in the outbox. codex answers that at once with the turn's id; the turn ends
with the notification `turn/completed`, or with the answer if that is an error, whether or not `prompt` still waits.
There is at most one of ours, since codex would take a second prompt as more input to the first.

An interrupt counts only between `turn/started` and `turn/completed`: codex refuses an earlier one with "no active turn"
and goes on. So one that is asked for sooner is kept until `turn/started` comes.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Raw

from avenor.host.ladder import Graces, StopResult
from avenor.protocol import events
from avenor.protocol.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, LocalProtocolError
from avenor.protocol.events import Event
from avenor.protocol.peer import IncomingNotification, IncomingRequest
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_wire import AcpWire, AgentGone, Answer, CallFailed, LineTooLong
from avenor.runtimes.backends.agent_link import AgentLink
from avenor.runtimes.backends.agent_process import AgentProcess
from avenor.runtimes.backends.agent_text import Gate, clean
from avenor.runtimes.backends.base import (
    AgentExit,
    Capabilities,
    OpenParams,
    PermissionAnswer,
    SessionSink,
    TurnError,
    TurnStop,
)
from avenor.runtimes.backends.codex_asking import OpenQuestions
from avenor.runtimes.backends.codex_errors import turn_error
from avenor.runtimes.backends.codex_items import ItemReader, verbatim
from avenor.runtimes.backends.codex_modes import mode_name
from avenor.runtimes.backends.codex_questions import ENDS_TURN, KnownItem, read_question
from avenor.runtimes.backends.codex_types import (
    ReroutedParams,
    ResolvedParams,
    ServerStatusParams,
    SettingsParams,
    ThreadHead,
    ThreadResult,
    Turn,
    TurnParams,
    UsageParams,
)
from avenor.runtimes.backends.codex_usage import TokenMeter
from avenor.runtimes.backends.profiles import Profile

HELD_LIMIT: Final = 4096  # Events before the session is open; an agent that sends more has them told early.
KNOWN_ITEMS_LIMIT: Final = 1024  # Tools of one turn that a question may refer to by id.

T = TypeVar("T")


class _Turn:
    """A turn of ours that codex has not ended yet, and how it ended when it has.

    Attributes:
        id: codex's; None until it has answered.
        early_ends: Turns that have ended before that, by their ids: one of them may be this one.
        is_cancelling: We want it to end.
        is_refused: Somebody has chosen an answer that ends the turn.
        fault: Why it has failed already, whatever codex says at its end.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.early_ends: dict[str, Turn] = {}
        self.is_cancelling = False
        self.is_refused = False
        self.fault: TurnError | None = None
        self.stop: TurnStop | None = None
        self.ended = trio.Event()


class CodexSession:
    """A session with codex; see `base.Session`.

    Attributes:
        session_id: The thread's id; empty until codex has given it.
        agent: The mode in use, by our name; None if codex reports a pair that we have no name for.
        model: The model in use.
    """

    def __init__(self, profile: Profile, process: AgentProcess, params: OpenParams, sink: SessionSink) -> None:
        self._profile = profile
        self._sink = sink
        self._tail = params.stderr_tail
        # codex takes our lines with the `jsonrpc` member that it leaves out itself.
        self._wire = AcpWire(process, self)
        self._link = AgentLink(
            process,
            self._wire,
            tail=params.stderr_tail,
            on_stderr=lambda text: sink.emit(events.AgentStderr(text=text)),
            on_gone=self._take_exit,
            ends_on_stdin_close=profile.ends_on_stdin_close,
        )
        self._turn: _Turn | None = None
        self._active_turn: str | None = None  # what runs in the thread, by codex's notifications
        self._questions = OpenQuestions(sink, self._take_answer)
        self._items: dict[str, KnownItem] = {}
        self._reader = ItemReader()
        self._meter = TokenMeter()
        self._noise_gate = Gate()
        self._held: list[Event] | None = []
        self._is_open = trio.Event()
        self._is_closing = False
        self.session_id = ""
        self.agent_version: str | None = None
        self.agent: str | None = None
        self.model: str | None = None
        self.resumed = False
        self.capabilities = Capabilities()

    @property
    def agent_pid(self) -> int:
        """The process id of the agent's program."""
        return self._link.pid

    @property
    def is_lost(self) -> bool:
        """See `base.Session.is_lost`."""
        return self._link.is_lost

    # Turns

    async def prompt(self, text: str) -> TurnStop:
        """Runs one turn; see `base.Session.prompt`."""
        if self._turn is not None:
            raise LocalProtocolError("the session has a turn already: one prompt at a time")
        turn = self._turn = _Turn()
        self._items.clear()
        self._reader.start_turn()
        self._meter.start_turn()
        params = {"threadId": self.session_id, "input": [{"type": "text", "text": text}]}
        self._wire.start_call("turn/start", params, partial(self._take_start, turn))
        await turn.ended.wait()
        assert turn.stop is not None
        return turn.stop

    async def cancel(self) -> None:
        """Asks codex to end its turn; see `base.Session.cancel`."""
        if self._turn is not None:
            self._turn.is_cancelling = True
            self._interrupt()
            self._questions.withdraw_all()
        await trio.lowlevel.checkpoint()

    def _interrupt(self) -> None:
        if self._active_turn is not None:
            params = {"threadId": self.session_id, "turnId": self._active_turn}
            self._wire.start_call("turn/interrupt", params, self._take_interrupted)

    def _take_interrupted(self, answer: Answer) -> None:
        """An interrupt that is refused found nothing to interrupt: the end of a broken turn was in the lost line."""
        if isinstance(answer, CallFailed) and self._turn is not None and self._turn.fault is not None:
            self._active_turn = None
            self._end_turn(TurnStop(stop_reason="error", error=self._turn.fault))

    def _take_start(self, turn: _Turn, answer: Answer) -> None:
        if turn is not self._turn:  # it has ended already
            return
        match answer:
            case AgentGone():
                self._end_turn(self._judge_exit(answer))
            case LineTooLong():
                self._end_turn(TurnStop(stop_reason="error", error=_line_error(answer)))
            case CallFailed():
                stop_reason = "cancelled" if turn.is_cancelling else "error"
                self._end_turn(TurnStop(stop_reason=stop_reason, error=classify(answer.error)))
            case _:
                self._take_turn_id(turn, answer)

    def _take_turn_id(self, turn: _Turn, raw: Raw) -> None:
        try:
            turn.id = msgspec.json.decode(raw, type=TurnParams).turn.id
        except msgspec.DecodeError as problem:
            message = f"codex's answer to turn/start is not as its schema says: {problem}"
            self._end_turn(TurnStop(stop_reason="error", error=TurnError(message=message, reason="bad_reply")))
            return
        if turn.id in turn.early_ends:
            self._end_turn(self._judge(turn.early_ends[turn.id], turn))

    def _take_turn_started(self, turn_id: str) -> None:
        self._active_turn = turn_id
        if self._turn is not None and (self._turn.is_cancelling or self._turn.fault is not None):
            self._interrupt()

    def _take_turn_completed(self, done: Turn) -> None:
        if self._active_turn == done.id:
            self._active_turn = None
        if self._turn is not None and self._turn.id is None:
            self._turn.early_ends[done.id] = done
        elif self._turn is not None and self._turn.id == done.id:
            self._end_turn(self._judge(done, self._turn))

    def _judge(self, done: Turn, turn: _Turn) -> TurnStop:
        usage = self._meter.turn_usage()
        if turn.fault is not None:
            return TurnStop(stop_reason="error", usage=usage, error=turn.fault)
        match done.status:
            case "completed":
                return TurnStop(stop_reason="end_turn", usage=usage)
            case "interrupted" if turn.is_cancelling or self._is_closing:
                return TurnStop(stop_reason="cancelled", usage=usage)
            case "interrupted" if turn.is_refused:
                # A refused tool is no cancelled turn: codex was told to stop there and wait.
                return TurnStop(stop_reason="end_turn", usage=usage)
            case "interrupted":
                error = TurnError(message="codex broke the turn off by itself")
                return TurnStop(stop_reason="interrupted", usage=usage, error=error)
            case _:
                stop_reason = "cancelled" if turn.is_cancelling else "error"
                return TurnStop(stop_reason=stop_reason, usage=usage, error=turn_error(done.error))

    def _judge_exit(self, gone: AgentGone) -> TurnStop:
        if self._is_closing:
            return TurnStop(stop_reason="cancelled")
        message = f"the agent ended during the turn ({gone.exit.describe()}){self._tail.suffix()}"
        error = TurnError(message=message, failure_class="crash", reason="agent_exited")
        return TurnStop(stop_reason="agent_exited", error=error)

    def _end_turn(self, stop: TurnStop) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        turn.stop = stop
        turn.ended.set()
        self._questions.withdraw_all()

    # What codex says

    def on_notification(self, notification: IncomingNotification) -> None:
        """Takes what codex tells; a broken one is an event like any other."""
        method, params = notification.method, notification.params
        if self._is_foreign(params):
            # A subagent's thread, or another client's: kept, but not as words of this one.
            self._emit(verbatim(method, params))
            return
        event = self._reader.read(method, params)
        self._note_item(event)
        self._emit(event)
        try:
            self._note(method, params)
        except msgspec.ValidationError as problem:
            self._emit(events.Error(source="agent", message=f"{method} is not as codex's schema says: {problem}"))

    def _is_foreign(self, params: Raw) -> bool:
        try:
            thread_id = msgspec.json.decode(params, type=ThreadHead).thread_id
        except msgspec.ValidationError:
            return False
        return bool(self.session_id) and thread_id not in (None, self.session_id)

    def _note(self, method: str, params: Raw) -> None:
        """Keeps what later messages refer to, and what the session tells of itself."""
        match method:
            case "turn/started":
                self._take_turn_started(msgspec.json.decode(params, type=TurnParams).turn.id)
            case "turn/completed":
                self._take_turn_completed(msgspec.json.decode(params, type=TurnParams).turn)
            case "serverRequest/resolved":
                self._questions.forget(msgspec.json.decode(params, type=ResolvedParams).request_id)
            case "thread/tokenUsage/updated":
                told = msgspec.json.decode(params, type=UsageParams)
                is_ours = self._turn is not None and self._turn.id is not None and told.turn_id == self._turn.id
                self._meter.take(told.token_usage, is_of_turn=is_ours)
            case "thread/settings/updated":
                settings = msgspec.json.decode(params, type=SettingsParams).thread_settings
                self.model = settings.model or self.model
                self.agent = mode_name(settings.approval_policy, settings.sandbox_policy.type)
            case "mcpServer/startupStatus/updated":
                self._note_server(msgspec.json.decode(params, type=ServerStatusParams))
            case "model/rerouted":
                self.model = msgspec.json.decode(params, type=ReroutedParams).to_model
            case _:
                pass

    def _note_server(self, server: ServerStatusParams) -> None:
        """codex goes on without a server that does not start; whoever handed it over should hear of that."""
        if server.status == "failed":
            message = f"MCP server {server.name!r} did not start: {server.error or 'codex does not say why'}"
            self._emit(events.Error(source="agent", message=message))

    def _note_item(self, event: Event) -> None:
        if isinstance(event, events.ToolCall):
            raw_input = event.rawInput.copy() if isinstance(event.rawInput, Raw) else event.rawInput
            self._items[event.toolCallId] = KnownItem(title=event.title, raw_input=raw_input)
            if len(self._items) > KNOWN_ITEMS_LIMIT:
                del self._items[next(iter(self._items))]

    def on_request(self, request: IncomingRequest) -> None:
        """Takes a question; every other request is refused, since we declare nothing that would answer it."""
        try:
            question = read_question(request, self._items, self._profile)
        except msgspec.ValidationError as problem:
            self._wire.reply_error(request.id, ErrorObject(code=INVALID_PARAMS, message=str(problem)))
            return
        if question is None:
            data = Raw(msgspec.json.encode({"method": request.method}))
            message = f"Method not found: {request.method}"
            self._wire.reply_error(request.id, ErrorObject(code=METHOD_NOT_FOUND, message=message, data=data))
        elif self._is_cancelling():
            self._wire.reply(request.id, question.cancelled)
        else:
            self._questions.take(request.id, question, self._wire)

    def on_noise(self, line: bytes) -> None:
        """Takes a line of stdout that is no message."""
        text = clean(line)
        if text:
            for admitted in self._noise_gate.admit([text], trio.current_time()):
                self._sink.emit(events.AgentNoise(text=admitted))

    def batch(self) -> AbstractContextManager[None]:
        """See `Handler.batch`."""
        return self._sink.batch()

    def on_oversized(self) -> None:
        """Takes the loss of a line: the turn has failed, and codex should end it too."""
        lost = LineTooLong()
        self._emit(events.Error(source="agent", message=lost.message))
        if self._turn is not None:
            self._turn.fault = _line_error(lost)
            self._interrupt()
            self._questions.withdraw_all()

    def _emit(self, event: Event) -> None:
        if self._held is None:
            self._sink.emit(event)
            return
        self._held.append(event)
        if len(self._held) > HELD_LIMIT:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for event in held:
            self._sink.emit(event)

    def _is_cancelling(self) -> bool:
        return self._is_closing or (self._turn is not None and self._turn.is_cancelling)

    def _take_answer(self, answer: PermissionAnswer) -> None:
        if self._turn is not None and answer.option_id in ENDS_TURN:
            self._turn.is_refused = True

    # Opening, for `codex`

    async def call(self, method: str, params: object, result: type[T]) -> T:
        """The decoded result of a call; raises as `AcpWire.call`, and `msgspec.ValidationError`."""
        return msgspec.json.decode(await self._wire.call(method, params), type=result)

    def notify(self, method: str, params: object) -> None:
        """Sends a notification."""
        self._wire.notify(method, params)

    def take_thread(self, result: ThreadResult) -> None:
        """Takes what codex answered to the opening of the thread."""
        self.session_id = result.thread.id
        self.model = result.model
        self.agent = mode_name(result.approval_policy, result.sandbox.type)

    def finish_opening(self) -> None:
        """The session is open: what was held back is told once the caller has met its next checkpoint."""
        self._is_open.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the session's tasks until `close`."""

        def start_ours(nursery: trio.Nursery) -> None:
            nursery.start_soon(self._release_when_open)
            nursery.start_soon(self._questions.ask_in_order, self._wire, nursery)

        await self._link.run(start_ours, task_status=task_status)

    async def _release_when_open(self) -> None:
        await self._is_open.wait()
        self._release()

    # The end

    def _take_exit(self, agent_exit: AgentExit) -> None:
        self._active_turn = None
        self._questions.withdraw_all()
        if self._turn is not None:
            self._end_turn(self._judge_exit(AgentGone(agent_exit)))

    async def wait_exited(self) -> AgentExit:
        """Waits for codex's end; see `base.Session.wait_exited`."""
        return await self._link.wait_exited()

    async def close(self, graces: Graces) -> StopResult:
        """Ends codex and all that it started; see `base.Session.close`."""
        self._is_closing = True
        self._questions.withdraw_all()
        return await self._link.close(graces)


def _line_error(lost: LineTooLong) -> TurnError:
    return TurnError(message=lost.message, reason=lost.reason_word)
