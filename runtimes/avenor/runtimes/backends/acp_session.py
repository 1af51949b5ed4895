"""One session of an ACP agent: turns, questions, cancelling, and the end. Opening it is `acp`'s.

State of a turn: it begins with the prompt's line in the outbox and ends when the reader takes the agent's answer (or
its end), whether or not `prompt` still waits. In between there is at most one.
"""

import re
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
import trio
from msgspec import UNSET, Raw

from avenor.host.ladder import Graces, StopResult
from avenor.protocol import events
from avenor.protocol.errors import METHOD_NOT_FOUND, ErrorObject, LocalProtocolError
from avenor.protocol.events import Event
from avenor.protocol.peer import IncomingNotification, IncomingRequest
from avenor.runtimes.backends import acp_permissions, acp_updates
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_options import Offers
from avenor.runtimes.backends.acp_permissions import KnownTool
from avenor.runtimes.backends.acp_questions import Questions
from avenor.runtimes.backends.acp_turn import Heard, signs_of
from avenor.runtimes.backends.acp_types import ConfigResult, Implementation, PromptResult
from avenor.runtimes.backends.acp_usage import UsageMeter
from avenor.runtimes.backends.acp_wire import AcpWire, AgentGone, Answer, CallFailed, LineTooLong
from avenor.runtimes.backends.agent_link import AgentLink
from avenor.runtimes.backends.agent_process import AgentProcess
from avenor.runtimes.backends.agent_text import Gate, clean
from avenor.runtimes.backends.base import (
    AgentExit,
    Capabilities,
    OpenParams,
    PermissionAnswer,
    PermissionAsk,
    SessionSink,
    TurnError,
    TurnStop,
)
from avenor.runtimes.backends.profiles import FailureSign, Profile

HELD_LIMIT = 4096  # Updates before the session is open; an agent that sends more has them told early.
KNOWN_TOOLS_LIMIT = 1024  # Tool calls of one turn that a question may refer to by id.
REPLAY_LIMIT_SECONDS = 10.0

T = TypeVar("T")


class _Turn:
    """A turn that the agent has not answered yet, and how it ended when it has."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.is_cancelling = False
        self.stop: TurnStop | None = None
        self.ended = trio.Event()


class AcpSession:
    """A session with an ACP agent; see `base.Session`.

    Attributes:
        session_id: Empty until the agent has given it.
        offers: What can be set, as the agent last told.
    """

    def __init__(self, profile: Profile, process: AgentProcess, params: OpenParams, sink: SessionSink) -> None:
        self._profile = profile
        self._sink = sink
        self._tail = params.stderr_tail
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
        self._questions = Questions(self._wire, sink, profile, self._note_answer)
        self._tools: dict[str, KnownTool] = {}
        self._noise_gate = Gate()
        self._held: list[Event] | None = []
        self._is_open = trio.Event()
        self._is_replaying = False
        self._replayed = 0
        self._replayed_at = 0.0
        self._meter = UsageMeter(is_resumed=params.resume is not None)
        self._signs: list[FailureSign] = []
        self._is_closing = False
        self.offers = Offers(profile.setting_names)
        self.session_id = ""
        self.agent_version: str | None = None
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

    @property
    def agent(self) -> str | None:
        """The mode in use now, if the agent tells."""
        return self.offers.current("agent")

    @property
    def model(self) -> str | None:
        """The model in use now, if the agent tells."""
        return self.offers.current("model")

    # Turns

    async def prompt(self, text: str) -> TurnStop:
        """Runs one turn; see `base.Session.prompt`."""
        if self._turn is not None:
            raise LocalProtocolError("the session has a turn already: one prompt at a time")
        turn = self._turn = _Turn(Heard(self._signs))
        self._tools.clear()
        self._meter.start_turn()
        params = {"sessionId": self.session_id, "prompt": [{"type": "text", "text": text}]}
        self._wire.start_call("session/prompt", params, self._end_turn)
        await turn.ended.wait()
        assert turn.stop is not None
        return turn.stop

    async def cancel(self) -> None:
        """Asks the agent to end its turn; see `base.Session.cancel`."""
        if self._turn is not None:
            self._turn.is_cancelling = True
            self._wire.notify("session/cancel", {"sessionId": self.session_id})
            self._questions.withdraw_all()
        await trio.lowlevel.checkpoint()

    def _end_turn(self, answer: Answer) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        turn.stop = self._judge(answer, turn)
        turn.ended.set()
        self._questions.withdraw_all()

    def _judge(self, answer: Answer, turn: _Turn) -> TurnStop:
        match answer:
            case AgentGone():
                return self._judge_exit(answer)
            case LineTooLong():
                return TurnStop(stop_reason="error", error=TurnError(message=answer.message, reason=answer.reason_word))
            case CallFailed():
                told = "cancelled" if turn.is_cancelling else "error"
                usage = self._meter.turn_usage(PromptResult(stop_reason=told))
                return TurnStop(stop_reason=told, usage=usage, error=classify(answer.error))
            case _:
                return self._judge_result(answer, turn)

    def _judge_result(self, raw: Raw, turn: _Turn) -> TurnStop:
        try:
            result = msgspec.json.decode(raw, type=PromptResult)
        except msgspec.DecodeError as problem:
            message = f"the agent's answer to the prompt is not as ACP says: {problem}"
            return TurnStop(stop_reason="error", error=TurnError(message=message, reason="bad_reply"))
        usage = self._meter.turn_usage(result)
        if turn.is_cancelling:
            return TurnStop(stop_reason=result.stop_reason, usage=usage)
        error = turn.heard.failure(result.stop_reason)
        if error is not None:
            told = "error" if result.stop_reason == "end_turn" else result.stop_reason
            return TurnStop(stop_reason=told, usage=usage, error=error)
        return TurnStop(stop_reason=turn.heard.stop_reason(result.stop_reason), usage=usage)

    def _judge_exit(self, gone: AgentGone) -> TurnStop:
        if self._is_closing:
            return TurnStop(stop_reason="cancelled")
        message = f"the agent ended during the turn ({gone.exit.describe()}){self._tail.suffix()}"
        error = TurnError(message=message, failure_class="crash", reason="agent_exited")
        return TurnStop(stop_reason="agent_exited", error=error)

    # What the agent says

    def on_notification(self, notification: IncomingNotification) -> None:
        """Takes an update, the withdrawal of a question, or a notification that ACP does not define."""
        match notification.method:
            case "session/update":
                self._take_update(notification.params)
            case "$/cancel_request":
                self._questions.withdraw(notification.params)
            case method:
                event = acp_updates.foreign_notification(method, notification.params)
                if self._turn is not None:
                    self._turn.heard.take(event, event.update)
                self._emit(event)

    def on_request(self, request: IncomingRequest) -> None:
        """Takes a question; every other request is refused, since we declare no capability for it."""
        if request.method == "session/request_permission":
            self._take_question(request)
            return
        data = Raw(msgspec.json.encode({"method": request.method}))
        message = f"Method not found: {request.method}"
        self._wire.reply_error(request.id, ErrorObject(code=METHOD_NOT_FOUND, message=message, data=data))

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
        """Takes the loss of a line: the turn has just ended with an error, so the agent should end it too."""
        self._emit(events.Error(source="agent", message=LineTooLong().message))
        self._wire.notify("session/cancel", {"sessionId": self.session_id})

    def _take_update(self, params: Raw) -> None:
        update = acp_updates.read_update(params)
        if self.session_id and update.session_id not in ("", self.session_id):
            # A subagent's session, or one that was left behind: kept, but not as words of this one.
            self._emit(events.SessionUpdate(update=params))
            return
        if self._is_replaying and not isinstance(update.event, acp_updates.STATE_EVENTS):
            self._replayed += 1
            self._replayed_at = trio.current_time()
            return
        self._note(update.event, update.kind)
        if self._turn is not None:
            self._turn.heard.take(update.event, update.raw)
        self._emit(update.event)

    def _note(self, event: Event, kind: str) -> None:
        """Keeps what later messages refer to."""
        match event:
            case events.ToolCall() | events.ToolCallUpdate():
                self._note_tool(event)
            case events.SessionMode():
                self.offers.take_mode(event.currentModeId)
            case events.SessionUsage():
                self._meter.take_cost(event.cost)
            case events.MessageChunk() if event.extra is not UNSET and "_meta" in event.extra:
                self._meter.take_call(event.extra["_meta"])
            case events.SessionUpdate() if kind == "config_option_update":
                self._note_config(event.update)
            case _:
                pass

    def _note_tool(self, event: events.ToolCall | events.ToolCallUpdate) -> None:
        known = self._tools.pop(event.toolCallId, KnownTool())
        self._tools[event.toolCallId] = KnownTool(
            title=event.title or known.title,
            kind=event.kind or known.kind,
            raw_input=event.rawInput.copy() if isinstance(event.rawInput, Raw) else known.raw_input,
        )
        if len(self._tools) > KNOWN_TOOLS_LIMIT:
            del self._tools[next(iter(self._tools))]

    def _note_config(self, update: Raw) -> None:
        try:
            self.offers.take_config(msgspec.json.decode(update, type=ConfigResult).config_options)
        except msgspec.ValidationError:
            return  # the event has it; what can be set stays as it was

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

    def _take_question(self, request: IncomingRequest) -> None:
        if self._turn is not None:
            self._turn.heard.end_message()
        is_wanted = not self._is_closing and not (self._turn is not None and self._turn.is_cancelling)
        self._questions.take(request, self._tools, is_wanted=is_wanted)

    def _note_answer(self, ask: PermissionAsk, answer: PermissionAnswer) -> None:
        if self._turn is not None and not acp_permissions.is_allowed(ask, answer):
            self._turn.heard.was_refused = True

    # Opening, for `acp`

    def meet(self, agent: Implementation) -> None:
        """Takes who the agent says that it is."""
        self.agent_version = f"{agent.name} {agent.version}".strip() or None
        self._signs = signs_of(self._profile.failures, agent.name)
        self._meter.is_of_session = any(
            re.search(name, agent.name, re.IGNORECASE) for name in self._profile.usage_of_session
        )

    async def call(self, method: str, params: object, result: type[T]) -> T:
        """The decoded result of a call; raises as `AcpWire.call`, and `msgspec.ValidationError`."""
        return msgspec.json.decode(await self._wire.call(method, params), type=result)

    async def wait_replayed(self) -> int:
        """Waits until the replay of an earlier session is over; how many updates it had.

        Nothing marks its end: some agents replay on after their answer to `session/load`. So it is over when the
        agent has been quiet for as long as its profile says.
        """
        quiet = self._profile.replay_quiet_seconds
        self._replayed_at = trio.current_time()
        with trio.move_on_after(REPLAY_LIMIT_SECONDS):
            while trio.current_time() < self._replayed_at + quiet:  # noqa: ASYNC110  # nothing can notify us of silence
                await trio.sleep_until(self._replayed_at + quiet)
        self._is_replaying = False
        return self._replayed

    def start_replay(self) -> None:
        """From now on, what was said and done is history, and not told again."""
        self._is_replaying = True

    def finish_opening(self) -> None:
        """The session is open: what was held back is told once the caller has met its next checkpoint."""
        self._is_open.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the session's tasks until `close`."""

        def start_ours(nursery: trio.Nursery) -> None:
            nursery.start_soon(self._release_when_open)
            nursery.start_soon(self._questions.ask_in_order, nursery)

        await self._link.run(start_ours, task_status=task_status)

    async def _release_when_open(self) -> None:
        await self._is_open.wait()
        self._release()

    # The end

    def _take_exit(self, _agent_exit: AgentExit) -> None:
        self._questions.withdraw_all()

    async def wait_exited(self) -> AgentExit:
        """Waits for the agent's end; see `base.Session.wait_exited`."""
        return await self._link.wait_exited()

    async def close(self, graces: Graces) -> StopResult:
        """Ends the agent and all that it started; see `base.Session.close`."""
        self._is_closing = True
        self._questions.withdraw_all()
        return await self._link.close(graces)
