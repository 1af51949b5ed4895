"""One turn: a prompt goes to the agent, and how it ended comes back."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from avenor.host.failpoints import failpoint
from avenor.protocol.events import TurnEnd, TurnStart, Usage
from avenor.protocol.markers import Directive
from avenor.protocol.outcomes import ExitCode, exit_code_for
from avenor.runtimes.backends.base import Session, TurnError, TurnStop
from avenor.runtimes.endings import Cause, Ending
from avenor.runtimes.eventlog import EventLog
from avenor.runtimes.permissions import Broker
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.retries import Failure
from avenor.runtimes.sinks import AgentSink

# How long an agent that was asked to end its turn may take: real ones finish a model request or a tool first, which
# was seen to take a second or two. Cancel as a whole must stay below the 10 s of `--shutdown-timeout`.
CANCEL_GRACE_SECONDS: Final = 3.0
# An agent that does not even read its stdin any more.
_SEND_SECONDS: Final = 1.0


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn, or an attempt that did not get as far as one, ended.

    Attributes:
        stop_reason: The agent's word, or that of what cut the turn short.
        exit_code: What it means for a run that ends with it.
        failure: Why it failed, where it did.
        is_session_usable: Whether the agent takes another prompt.
        was_interrupted: Whether another prompt cut it short.
        directives: Its markers, statuses left out.
    """

    stop_reason: str
    exit_code: int
    final_output: str = ""
    usage: Usage | None = None
    failure: Failure | None = None
    is_session_usable: bool = False
    was_interrupted: bool = False
    directives: list[Directive] = []

    @property
    def is_clean(self) -> bool:
        """Whether the agent did what it was asked."""
        return self.exit_code == ExitCode.OK


class TurnServices(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn needs of its run.

    Attributes:
        ending: Of the run, or of the part of it that the turn belongs to.
        end: Records a cause that ends just that.
        progress_seconds: How long no event may come, 0 for ever.
    """

    log: EventLog
    broker: Broker
    ending: Ending
    end: Callable[[Cause], bool]
    progress_seconds: float


class Turn:
    """One turn of one session.

    Args:
        services: What it needs of the run.
        session: An open session without a running turn.
        sink: That session's.
        prompt: What to send.
        interrupted: Set by whoever wants the turn cut short for another prompt.
    """

    def __init__(
        self, services: TurnServices, session: Session, sink: AgentSink, prompt: Prompt, interrupted: trio.Event
    ) -> None:
        self._services = services
        self._session = session
        self._sink = sink
        self._prompt = prompt
        self._interrupted = interrupted

    async def run(self, *, queued: int, finishing: Callable[[TurnResult], Awaitable[None]]) -> TurnResult:
        """Runs the turn to its end, which is always told.

        Args:
            queued: How many prompts wait behind it.
            finishing: Called with the result before the turn's end is told.
        """
        self._sink.emit(TurnStart(text=self._prompt.text, source=self._prompt.source, queued=queued))
        reading = self._sink.begin_turn()
        failpoint("turn.after_start")
        stop = await self._prompt_agent()
        self._services.broker.cancel(self._sink)  # what it has asked goes with the turn
        # From here to the decision in `finishing` nothing awaits: a cause that comes later is too late.
        self._sink.end_turn()
        result = self._result(stop, reading.final_output, reading.directives)
        await finishing(result)
        self._sink.emit(_turn_end(result))
        return result

    async def _prompt_agent(self) -> TurnStop | None:
        """The agent's answer, None if it gave none in time after it was asked to stop."""
        stop: TurnStop | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_asked, nursery.cancel_scope)
            if self._services.progress_seconds > 0:
                nursery.start_soon(self._watch_progress)
            stop = await self._session.prompt(self._prompt.text)
            nursery.cancel_scope.cancel()
        return stop

    async def _stop_when_asked(self, turn_scope: trio.CancelScope) -> None:
        with self._services.ending.interruptible():
            await self._interrupted.wait()
        # The agent hears of the cancel first: told only that its question was turned down, it would work on.
        with trio.move_on_after(_SEND_SECONDS):
            await self._session.cancel()
        self._services.broker.cancel(self._sink)
        await trio.sleep(CANCEL_GRACE_SECONDS)
        turn_scope.cancel()

    async def _watch_progress(self) -> None:
        limit = self._services.progress_seconds
        while True:
            silent_until = self._sink.last_emit_at + limit
            if self._services.broker.is_waiting(self._sink):
                # The answer is an event too, so the time starts again with it.
                silent_until = trio.current_time() + limit
            if trio.current_time() >= silent_until:
                break
            await trio.sleep_until(silent_until)
        self._services.end(Cause(stop_reason="progress_timeout", reason=f"no event for {limit:g} s"))

    def _result(self, stop: TurnStop | None, output: str, directives: list[Directive]) -> TurnResult:
        cause = self._services.ending.cause
        was_interrupted = self._interrupted.is_set()
        if cause is not None:
            stop_reason, failure = cause.stop_reason, None
        elif was_interrupted or stop is None:
            stop_reason, failure = "cancelled", None
        else:
            stop_reason, failure = stop.stop_reason, failure_of(stop.error)
        return TurnResult(
            stop_reason=stop_reason,
            exit_code=exit_code_for(stop_reason),
            final_output=output,
            usage=None if stop is None else stop.usage,
            failure=failure,
            is_session_usable=stop is not None and stop.error is None,
            was_interrupted=was_interrupted and cause is None,
            directives=directives,
        )


def failure_of(error: TurnError | None) -> Failure | None:
    """A backend's error as the retry policy takes it."""
    if error is None:
        return None
    return Failure(
        message=error.message,
        retry_class=error.failure_class,
        retry_after_seconds=error.retry_after_seconds,
        permanent=error.permanent,
    )


def past_turn(end: TurnEnd) -> TurnResult:
    """The result that an earlier process of the run has told of."""
    failure = past_failure(end)
    return TurnResult(
        stop_reason=end.stop_reason,
        exit_code=exit_code_for(end.stop_reason),
        final_output="" if end.final_output is UNSET else end.final_output,
        failure=failure,
        is_session_usable=failure is None,
    )


def past_failure(end: TurnEnd) -> Failure | None:
    """Why that turn failed, if it did."""
    if end.error is UNSET:
        return None
    return Failure(
        message=end.error,
        retry_class="unknown" if end.retry_class is UNSET else end.retry_class,
        retry_after_seconds=None if end.retry_after_ms is UNSET else end.retry_after_ms / 1000,
        permanent=end.permanent is True,
    )


def _turn_end(result: TurnResult) -> TurnEnd:
    end = TurnEnd(
        stop_reason=result.stop_reason,
        usage=UNSET if result.usage is None else result.usage,
        final_output=result.final_output,
    )
    if (failure := result.failure) is not None:
        end.error = failure.message
        end.retry_class = failure.retry_class
        end.permanent = failure.permanent or UNSET
        if failure.retry_after_seconds is not None:
            end.retry_after_ms = round(failure.retry_after_seconds * 1000)
    return end
