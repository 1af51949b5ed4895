"""An agent's session over its turns: opened when it is needed, opened again after it was lost, closed once."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from msgspec import UNSET

from avenor.host.ladder import Graces, StopResult
from avenor.protocol.errors import AvenorError, HandshakeTimeout
from avenor.protocol.events import Error, Event, SessionEnd, SessionStart, Usage
from avenor.protocol.outcomes import ExitCode, exit_code_for
from avenor.protocol.spec import RunSpec
from avenor.runtimes.backends.base import Backend, BackendRefused, OpenParams, Session, close_in_time, open_within
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.retries import Failure
from avenor.runtimes.sinks import AgentSink
from avenor.runtimes.turns import Turn, TurnResult, TurnServices

_RESUME_FAILED: Final = "resume_failed"


class Conversation:
    """What is said with one agent, whatever number of processes that takes.

    Args:
        spec: What to open.
        backend: The adapter.
        params: Makes the parameters of each opening; `resume` is filled in here.
        sink: Makes the sink of each opening.
        services: What its turns need of the run.
        nursery: Owns the sessions' tasks.
        graces: What the stop ladder may take, asked when a session is closed.
        opened: Told the id of each session that was opened, once its start is told.
        closed: Takes what each closed session left behind.
        anew: What to say instead when the session that the spec resumes is lost and a fresh one is opened; None where
            that must not be.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        backend: Backend,
        params: Callable[[], OpenParams],
        sink: Callable[[], AgentSink],
        services: TurnServices,
        nursery: trio.Nursery,
        graces: Callable[[], Graces],
        opened: Callable[[str], None],
        closed: Callable[[StopResult], None],
        anew: Callable[[], Prompt] | None = None,
    ) -> None:
        self.session_id = spec.resume or ""
        self._spec = spec
        self._backend = backend
        self._params = params
        self._make_sink = sink
        self._services = services
        self._nursery = nursery
        self._graces = graces
        self._opened = opened
        self._closed = closed
        self._session: Session | None = None
        self._sink: AgentSink | None = None
        self._last: TurnResult | None = None
        self._usage: Usage | None = None
        # A session that was never answered in may be replaced by a fresh one; any other holds what must not be lost.
        self._has_history = spec.resume is not None and anew is None
        self._anew = anew
        self._is_anew = False

    async def turn(
        self,
        prompt: Prompt,
        *,
        interrupted: trio.Event,
        queued: Callable[[], int],
        finishing: Callable[[TurnResult], Awaitable[None]],
    ) -> TurnResult:
        """One attempt at a prompt: opens the session if need be, and runs the turn.

        Args:
            prompt: What to send.
            interrupted: Set to cut the attempt short.
            queued: How many prompts wait behind it, asked when the prompt is sent.
            finishing: Called with the result before the turn's end is told.
        """
        try:
            await self._ensure_open()
        except AvenorError as error:
            self._last = _failed_open(error, was_interrupted=interrupted.is_set())
            return self._last
        cause = self._services.ending.cause
        if self._session is None or self._sink is None or cause is not None:
            self._last = _cut_short("cancelled" if cause is None else cause.stop_reason)
            return self._last
        if interrupted.is_set():
            return _interrupted_before_turn()
        if self._is_anew and self._anew is not None:
            prompt, self._is_anew = self._anew(), False
        turn = Turn(self._services, self._session, self._sink, prompt, interrupted)
        self._last = await turn.run(queued=queued(), finishing=finishing)
        self._note(self._last)
        return self._last

    async def close(self, *, error: str | None = None) -> None:
        """Ends the agent and all it started, and tells how the session ended; nothing if it is closed.

        Cancellation: Ignored, within the bounds of the stop ladder.
        """
        session, sink = self._session, self._sink
        if session is None or sink is None:
            return
        self._session = None
        stopped = await close_in_time(session, self._graces())
        self._closed(stopped)
        sink.emit(self._session_end(stopped, error))

    async def wait_lost(self) -> str:
        """Waits until the agent of the open session has gone by itself; returns how, in words."""
        if self._session is None:
            await trio.sleep_forever()
        exit_ = await self._session.wait_exited()
        return exit_.describe()

    async def _ensure_open(self) -> None:
        if self._session is not None and self._session.is_lost:
            await self.close(error=f"the agent ended before the next prompt: {await self.wait_lost()}")
        if self._session is None:
            try:
                await self._open(self.session_id or None)
            except BackendRefused as error:
                if error.reason_word != _RESUME_FAILED or self._has_history:
                    raise
                # Nothing was said in it yet, so a new session loses nothing; but it is told.
                self._make_sink().emit(Error(source="session", message=f"{error.message}; starting a new session"))
                await self._open(None)
                self._is_anew = self._session is not None
            else:
                if self._anew is not None:  # restored, with all that was said in it
                    self._anew, self._has_history = None, self._session is not None

    async def _open(self, resume: str | None) -> None:
        sink = self._make_sink()
        params = self._params()
        params.resume = resume
        with self._services.ending.interruptible():
            try:
                session = await open_within(
                    float(self._spec.handshake_timeout), self._backend, params, sink, self._nursery
                )
            finally:
                for stopped in params.aborted:
                    self._closed(stopped)
            self._session, self._sink = session, sink
            self.session_id = sink.session_id = session.session_id
            sink.emit(_session_start(self._spec, session))
            self._opened(session.session_id)
            await self._services.log.synced()

    def _note(self, result: TurnResult) -> None:
        if result.failure is None:
            self._has_history = True
        if result.usage is not None:
            self._usage = result.usage if self._usage is None else self._usage.plus(result.usage)

    def _session_end(self, stopped: StopResult, error: str | None) -> Event:
        last = self._last
        failure = None if last is None or last.failure is None else last.failure.message
        return SessionEnd(
            stop_reason="cancelled" if last is None else last.stop_reason,
            usage=self._usage or UNSET,
            final_output=UNSET if last is None else last.final_output,
            error=error or failure or UNSET,
            left_processes=describe_left(stopped) or UNSET,
            unverified=stopped.unverified or UNSET,
        )


def _session_start(spec: RunSpec, session: Session) -> Event:
    return SessionStart(
        backend=spec.backend,
        dir=spec.dir,
        model=session.model or spec.model,
        agent=session.agent or spec.agent,
        resumed=True if session.resumed else UNSET,
    )


def _failed_open(error: AvenorError, *, was_interrupted: bool) -> TurnResult:
    is_late = isinstance(error, HandshakeTimeout)
    return TurnResult(
        stop_reason="timeout" if is_late else error.reason_word,
        exit_code=ExitCode.TIMEOUT if is_late else ExitCode.FAILED,
        failure=Failure(
            message=error.message,
            retry_class="crash",
            permanent=not error.retryable,
        ),
        was_interrupted=was_interrupted,
    )


def _cut_short(stop_reason: str) -> TurnResult:
    return TurnResult(stop_reason=stop_reason, exit_code=exit_code_for(stop_reason))


def _interrupted_before_turn() -> TurnResult:
    return TurnResult(
        stop_reason="cancelled", exit_code=ExitCode.CANCELLED, is_session_usable=True, was_interrupted=True
    )


def describe_left(stopped: StopResult) -> list[str]:
    """What a stop could not end, a line for each."""
    return [f"{process.name} ({process.pid}): {process.reason}" for process in stopped.left]
