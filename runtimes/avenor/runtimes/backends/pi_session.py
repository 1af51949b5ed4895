"""One session of pi: turns, questions, cancelling, and the end.

Opening it is `pi`'s; when a turn is over is `pi_turn`'s to say.
"""

import math
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec
import trio
from msgspec import Raw

from avenor.host.ladder import Graces, StopResult
from avenor.protocol import events
from avenor.protocol.errors import INTERNAL_ERROR, ErrorObject, LocalProtocolError
from avenor.protocol.events import Event
from avenor.runtimes.backends import pi_permissions
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_wire import AgentGone, LineTooLong
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
from avenor.runtimes.backends.pi_events import PiEvents
from avenor.runtimes.backends.pi_turn import PiTurn, Step
from avenor.runtimes.backends.pi_types import Accepted, Record, Response, State, UiRequest, Unread
from avenor.runtimes.backends.pi_wire import Answer, CommandFailed, PiWire
from avenor.runtimes.backends.profiles import Profile

HELD_LIMIT = 4096  # Events before the session is open; a pi that sends more has them told early.
QUESTIONS_LIMIT = 256  # Open at once; further ones are answered as cancelled.
STATE_SECONDS = 0.05  # Until pi is asked again, when it is not idle and has not said why.

# pi refuses a prompt before it asks its model: no key, no model. Trying again does not help.
_UNUSABLE = ("no api key", "no model")

T = TypeVar("T")


class _Question:
    """A question of an extension that has not been answered."""

    def __init__(self, request: UiRequest, ask: PermissionAsk) -> None:
        self.request = request
        self.ask = ask
        # pi answers a question with a time limit by itself when that is over, and does not say so.
        seconds = math.inf if request.timeout is None else request.timeout / 1000
        self.scope = trio.CancelScope(deadline=trio.current_time() + seconds)


class _Turn:
    """A turn that has not ended yet, and how it ended when it has."""

    def __init__(self) -> None:
        self.state = PiTurn()
        self.stop: TurnStop | None = None
        self.ended = trio.Event()


class PiSession:
    """A session with pi; see `base.Session`.

    Attributes:
        session_id: Empty until pi has told it.
        agent: Always None: pi has no modes.
        spoken: The end of what pi wrote to stdout that was no record; it tells of a session in another folder so.
    """

    def __init__(self, profile: Profile, process: AgentProcess, params: OpenParams, sink: SessionSink) -> None:
        self._profile = profile
        self._sink = sink
        self._tail = params.stderr_tail
        self._wire = PiWire(process, self)
        self._link = AgentLink(
            process,
            self._wire,
            tail=params.stderr_tail,
            on_stderr=lambda text: sink.emit(events.AgentStderr(text=text)),
            on_gone=self._take_exit,
            ends_on_stdin_close=profile.ends_on_stdin_close,
        )
        self._events = PiEvents()
        self._turn: _Turn | None = None
        self._questions: dict[str, _Question] = {}
        self._to_ask, self._asked = trio.open_memory_channel[_Question](math.inf)  # bounded by QUESTIONS_LIMIT
        self._to_ask_later, self._asked_later = trio.open_memory_channel[_Turn](1)
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
        self.spoken = ""

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
        self._wire.start_call("prompt", {"message": text}, lambda answer: self._take_accepted(turn, answer))
        await turn.ended.wait()
        assert turn.stop is not None
        return turn.stop

    async def cancel(self) -> None:
        """Asks pi to end its turn; see `base.Session.cancel`."""
        if self._turn is not None:
            self._turn.state.is_cancelling = True
            self._abort(self._turn)
            self._withdraw_questions()
        await trio.lowlevel.checkpoint()

    def _abort(self, turn: _Turn) -> None:
        self._wire.start_call("abort", {}, lambda answer: self._take_aborted(turn, answer))

    def _take_accepted(self, turn: _Turn, answer: Answer) -> None:
        if isinstance(answer, CommandFailed):
            self._end_turn(turn, _refused(answer.message, is_cancelling=turn.state.is_cancelling))
        elif isinstance(answer, Raw):
            self._go_on(turn, turn.state.accept(_disposition(answer)))
        else:
            self._end_turn(turn, self._judge_fault(answer))

    def _take_aborted(self, turn: _Turn, answer: Answer) -> None:
        if isinstance(answer, Raw):
            self._go_on(turn, turn.state.take_aborted())

    def _take_state(self, turn: _Turn, answer: Answer) -> None:
        if not isinstance(answer, Raw):
            return  # the turn has ended with it, or ends with pi
        try:
            state = msgspec.json.decode(answer, type=State)
        except msgspec.ValidationError as problem:
            self._end_turn(turn, _bad_reply(f"pi's answer to get_state is not as documented: {problem}"))
            return
        self._go_on(turn, turn.state.take_state(state))

    def _go_on(self, turn: _Turn, step: Step) -> None:
        if turn is not self._turn:
            return
        match step:
            case Step.WAIT:
                pass
            case Step.ASK_STATE:
                self._ask_state(turn)
            case Step.ASK_STATE_LATER:
                self._to_ask_later.send_nowait(turn)
            case Step.ABORT:
                self._abort(turn)
            case Step.END:
                self._end_turn(turn, turn.state.judge())

    def _ask_state(self, turn: _Turn) -> None:
        self._wire.start_call("get_state", {}, lambda answer: self._take_state(turn, answer))

    async def _ask_states_later(self) -> None:
        """Asks again where pi is busy and has announced nothing: an extension of the user's does something."""
        async for turn in self._asked_later:
            await trio.sleep(STATE_SECONDS)
            if turn is self._turn:
                self._ask_state(turn)

    def _end_turn(self, turn: _Turn, stop: TurnStop) -> None:
        if turn is self._turn:
            self._turn = None
            turn.stop = stop
            turn.ended.set()
            self._withdraw_questions()

    def _judge_fault(self, fault: AgentGone | LineTooLong) -> TurnStop:
        if isinstance(fault, LineTooLong):
            return TurnStop(stop_reason="error", error=TurnError(message=fault.message, reason=fault.reason_word))
        if self._is_closing:
            return TurnStop(stop_reason="cancelled")
        message = f"the agent ended during the turn ({fault.exit.describe()}){self._tail.suffix()}"
        error = TurnError(message=message, failure_class="crash", reason="agent_exited")
        return TurnStop(stop_reason="agent_exited", error=error)

    # What pi says

    def on_record(self, record: Record | Unread, line: bytes) -> None:
        """Takes what happens in the session."""
        if isinstance(record, UiRequest) and record.method in pi_permissions.DIALOGS:
            self._take_question(record, line)
            return
        for event in self._events.read(record, line):
            self._emit(event)
        if self._turn is not None and not isinstance(record, Unread | Response | UiRequest):
            self._go_on(self._turn, self._turn.state.take(record))

    def on_noise(self, line: bytes) -> None:
        """Takes a line of stdout that is no record."""
        text = clean(line)
        if text:
            self.spoken = text
            for admitted in self._noise_gate.admit([text], trio.current_time()):
                self._sink.emit(events.AgentNoise(text=admitted))

    def batch(self) -> AbstractContextManager[None]:
        """See `Handler.batch`."""
        return self._sink.batch()

    def on_oversized(self) -> None:
        """Takes the loss of a line, which may have been the turn's end: it ends here, and pi should end it too."""
        lost = LineTooLong()
        self._emit(events.Error(source="agent", message=lost.message))
        if self._turn is not None:
            turn = self._turn
            self._end_turn(turn, self._judge_fault(lost))
            self._abort(turn)

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

    # Questions

    def _take_question(self, request: UiRequest, line: bytes) -> None:
        ask = pi_permissions.read_ask(request, line, self._profile)
        if ask is None:
            self._emit(events.SessionUpdate(update=Raw(line)))
            message = f"an extension asks for text, which nobody can give here; it is told so: {request.title}"
            self._emit(events.Error(source="agent", message=message))
        is_cancelling = self._turn is not None and self._turn.state.is_cancelling
        is_late = self._is_closing or is_cancelling or len(self._questions) >= QUESTIONS_LIMIT
        if ask is None or is_late or not self._is_open.is_set():
            self._respond(request, pi_permissions.CANCELLED)
            return
        question = self._questions[request.id] = _Question(request, ask)
        self._to_ask.send_nowait(question)

    async def _ask_in_order(self, nursery: trio.Nursery) -> None:
        """Starts asking each question before the next one, in the order in which pi asked."""
        async for question in self._asked:
            await nursery.start(self._ask, question)

    async def _ask(self, question: _Question, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        answer = PermissionAnswer(option_id=None)
        if not question.scope.cancel_called:
            with question.scope:
                answer = await self._sink.ask_permission(question.ask)
        del self._questions[question.request.id]
        self._respond(question.request, pi_permissions.response(question.request, answer))

    def _respond(self, request: UiRequest, answer: dict[str, object]) -> None:
        self._wire.send({"type": "extension_ui_response", "id": request.id, **answer})

    def _withdraw_questions(self) -> None:
        for question in self._questions.values():
            question.scope.cancel()

    # Opening, for `pi`

    async def call(self, command: str, result: type[T]) -> T:
        """The decoded data of a command's answer; raises as `PiWire.call`, and `msgspec.ValidationError`."""
        return msgspec.json.decode(await self._wire.call(command), type=result)

    def take_state(self, state: State) -> None:
        """Takes which session and model this is."""
        self.session_id = state.session_id
        if state.model is not None:
            self.model = state.model.name
            self._events.context_window = state.model.context_window

    def finish_opening(self) -> None:
        """The session is open: what was held back is told once the caller has met its next checkpoint."""
        self._is_open.set()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the session's tasks until `close`."""

        def start_ours(nursery: trio.Nursery) -> None:
            nursery.start_soon(self._release_when_open)
            nursery.start_soon(self._ask_in_order, nursery)
            nursery.start_soon(self._ask_states_later)

        await self._link.run(start_ours, task_status=task_status)

    async def _release_when_open(self) -> None:
        await self._is_open.wait()
        self._release()

    # The end

    def _take_exit(self, agent_exit: AgentExit) -> None:
        self._withdraw_questions()
        if self._turn is not None:
            self._end_turn(self._turn, self._judge_fault(AgentGone(agent_exit)))

    async def wait_exited(self) -> AgentExit:
        """Waits for the agent's end; see `base.Session.wait_exited`."""
        return await self._link.wait_exited()

    async def close(self, graces: Graces) -> StopResult:
        """Ends the agent and all that it started; see `base.Session.close`."""
        self._is_closing = True
        self._withdraw_questions()
        return await self._link.close(graces)


def _disposition(answer: Raw) -> str:
    try:
        told = msgspec.json.decode(answer, type=Accepted | None)
    except msgspec.ValidationError:
        return ""
    return "" if told is None else told.disposition


def _refused(message: str, *, is_cancelling: bool) -> TurnStop:
    """The end of a turn that pi did not begin."""
    error = classify(ErrorObject(code=INTERNAL_ERROR, message=message))
    if any(word in message.lower() for word in _UNUSABLE):
        error = TurnError(message=message, permanent=True, reason="auth")
    return TurnStop(stop_reason="cancelled" if is_cancelling else "error", error=error)


def _bad_reply(message: str) -> TurnStop:
    return TurnStop(stop_reason="error", error=TurnError(message=message, reason="bad_reply"))
