"""The turns of one session of an opencode server: sent, aborted, and judged when they end.

A turn begins with the prompt's request, and the server's first word of it is the prompt as a message of the session. It
ends when the server says that the session is idle and the agent's messages are whole: of a turn that failed or was
aborted it says idle twice, and the second time may come when the next turn has begun. Where no whole message comes, the
server is asked.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import trio

from avenor.runtimes.backends.base import AgentExit, StderrTail, TurnError, TurnStop
from avenor.runtimes.backends.http_client import HttpFailed, HttpUnreachable, quoted
from avenor.runtimes.backends.opencode_asking import Asker
from avenor.runtimes.backends.opencode_errors import model_failed, request_error, turn_stop
from avenor.runtimes.backends.opencode_server import OpencodeServer
from avenor.runtimes.backends.opencode_transcript import Transcript
from avenor.runtimes.backends.opencode_types import Problem, Status

SETTLE_SECONDS: Final = 1.0  # From an idle that leaves doubt until the server is asked.
ABORT_AGAIN_SECONDS: Final = 2.0  # An abort that came before the turn had begun in the server was lost.
DEATH_SECONDS: Final = 2.0  # From a request that got no answer until the server's end is known.
# opencode tries a failing model again for ever, 2, 4, 8, 16, 30, 30 … s apart, or when its service says. So many times
# it may have failed, which is half a minute; then the failure is the turn's, and whether it is tried again the run's.
MODEL_TRIES: Final = 5

_statuses = msgspec.json.Decoder(dict[str, Status])


class Start(Protocol):
    """Starts a task of the session; nothing if that is closed."""

    def __call__(self, task: Callable[..., Awaitable[None]], /, *args: Any) -> None: ...


class Turn:
    """One turn, and how it ended when it has."""

    def __init__(self) -> None:
        self.is_cancelling = False
        self.is_aborting = False
        self.is_idle = False
        self.has_given_up = False
        self.problem: Problem | None = None
        self.stop: TurnStop | None = None
        self.ended = trio.Event()


class Turns:
    """The turns of a session, one at a time.

    Args:
        server: Where the session is.
        transcript: What is said in it.
        asker: Its open questions: they go with their turn.
        tail: The end of the server's stderr.
        start: Starts the tasks of a turn.

    Attributes:
        session_id: Empty until it is known.
        current: The turn that the server has not ended yet.
        is_closing: The session is being closed, which is the reason for every end from then on.
    """

    def __init__(
        self, server: OpencodeServer, transcript: Transcript, asker: Asker, tail: StderrTail, *, start: Start
    ) -> None:
        self.session_id = ""
        self.current: Turn | None = None
        self.is_closing = False
        self._server = server
        self._transcript = transcript
        self._asker = asker
        self._tail = tail
        self._start = start

    @property
    def may_ask(self) -> bool:
        """Whether a question that comes now is to be asked."""
        turn = self.current
        return not self.is_closing and turn is not None and not turn.is_cancelling and not turn.has_given_up

    async def run(self, body: dict[str, object], exit_: AgentExit | None) -> TurnStop:
        """Runs a turn to its end.

        Args:
            body: The prompt's request.
            exit_: How the server has ended, if it has.

        Cancellation: The turn goes on.
        """
        turn = self.current = Turn()
        self._transcript.start_turn()
        if exit_ is None:
            self._start(self._send, turn, body)
        else:
            self._end(turn, self._judge_exit(exit_))
        await turn.ended.wait()
        assert turn.stop is not None
        return turn.stop

    def cancel(self) -> None:
        """Asks for the end of the turn, if there is one."""
        turn = self.current
        if turn is not None and not turn.is_cancelling:
            turn.is_cancelling = True
            self._asker.withdraw_all()
            self._start(self._abort, turn)

    # What the server says of it

    def begun(self) -> None:
        """The prompt is a message of the session now: what failed before was the turn before."""
        if self.current is not None:
            self.current.problem = None

    def idle(self) -> None:
        """The session is idle."""
        turn = self.current
        if turn is None or (self._transcript.prompt_id is None and turn.problem is None):
            return  # of the turn before
        turn.is_idle = True
        if not self._end_if_whole(turn):
            self._start(self.settle, turn)

    def failed(self, problem: Problem) -> bool:
        """The turn has failed; False if there is none. Some failures come without an idle."""
        turn = self.current
        if turn is None:
            return False
        turn.problem = turn.problem or problem
        self._start(self.settle, turn)
        return True

    def model_failed(self, status: Status) -> None:
        """The model has failed, and is to be tried again: the turn is given up when that has gone on for long."""
        turn = self.current
        if turn is None or turn.has_given_up or status.attempt < MODEL_TRIES:
            return
        turn.has_given_up = True
        turn.problem = model_failed(status)
        self._asker.withdraw_all()
        self._start(self._abort, turn)

    def server_gone(self, exit_: AgentExit) -> None:
        """The server has ended, and the turn with it."""
        if self.current is not None:
            self._end(self.current, self._judge_exit(exit_))

    # Tasks

    async def _send(self, turn: Turn, body: dict[str, object]) -> None:
        await self._asker.reject_stale()
        stop = await self._try("/prompt_async", body)
        if stop is None:
            return
        if stop.error is not None and stop.error.failure_class == "transport":
            await self._try("/abort", {})  # the server may have got it
        self._end(turn, stop)

    async def _try(self, path: str, body: object) -> TurnStop | None:
        """Posts something of the turn; what its failure means for the turn, None if it did not fail."""
        try:
            await self._server.client.call(
                "POST", f"/session/{quoted(self.session_id)}{path}", query=self._server.query, body=body
            )
        except HttpFailed as failure:
            error = request_error(str(failure).partition(":")[0], failure.status, failure.body)
            return TurnStop(stop_reason="error", error=error)
        except HttpUnreachable as failure:
            exit_ = await self._server.wait_exit(DEATH_SECONDS)
            if exit_ is not None:
                return self._judge_exit(exit_)
            return TurnStop(stop_reason="error", error=TurnError(message=str(failure), failure_class="transport"))
        return None

    async def _abort(self, turn: Turn) -> None:
        """Aborts the turn; again when that had no effect, since the turn had not begun in the server."""
        while not turn.ended.is_set():
            turn.is_aborting = True
            await self._try("/abort", {})
            await self._asker.reject_stale()
            turn.is_aborting = False
            if turn.is_idle and not self._end_if_whole(turn):
                self._start(self.settle, turn)
            with trio.move_on_after(ABORT_AGAIN_SECONDS):
                await turn.ended.wait()

    def _end_if_whole(self, turn: Turn) -> bool:
        """Ends the turn if its answer is whole, and no abort is under way, whose echo would meet the next turn."""
        if turn.is_aborting or not self._transcript.is_answered:
            return False
        self._end(turn, self._judge(turn))
        return True

    async def settle(self, turn: Turn) -> None:
        """Ends a turn that leaves doubt, if the server says that nothing goes on in it."""
        await trio.sleep(SETTLE_SECONDS)  # the last words of a turn that was aborted are on their way
        if turn.ended.is_set() or turn.is_aborting:
            return
        try:
            answer = await self._server.client.call("GET", "/session/status", query=self._server.query)
            statuses = _statuses.decode(answer)
        except (HttpFailed, HttpUnreachable, msgspec.DecodeError):
            return  # the stream will break too, and then everything is looked up
        status = statuses.get(self.session_id)
        if status is None or status.type == "idle":
            self._end(turn, self._judge(turn))

    def _judge(self, turn: Turn) -> TurnStop:
        last = self._transcript.last_answer
        stop = turn_stop(turn.problem, last, is_cancelling=turn.is_cancelling)
        return msgspec.structs.replace(stop, usage=self._transcript.usage())

    def _judge_exit(self, exit_: AgentExit) -> TurnStop:
        usage = self._transcript.usage()
        if self.is_closing:
            return TurnStop(stop_reason="cancelled", usage=usage)
        message = f"the agent ended during the turn ({exit_.describe()}){self._tail.suffix()}"
        error = TurnError(message=message, failure_class="crash", reason="agent_exited")
        return TurnStop(stop_reason="agent_exited", usage=usage, error=error)

    def _end(self, turn: Turn, stop: TurnStop) -> None:
        if turn.ended.is_set():
            return
        self.current = None
        turn.stop = stop
        turn.ended.set()
        self._asker.withdraw_all()
