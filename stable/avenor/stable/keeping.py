"""The life of one runtime as its supervisor sees it: launched, followed over its link, and settled when it is dead."""

import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog
import trio
from msgspec import UNSET

from avenor.host.atomic import is_passing
from avenor.host.failpoints import failpoint
from avenor.host.identity import ProcessId, wait_dead
from avenor.host.ladder import StopResult
from avenor.protocol.errors import AvenorError, InternalError, SpawnError
from avenor.protocol.events import RunEnd
from avenor.protocol.outcomes import Outcome, Status
from avenor.stable.launcher import Launcher
from avenor.stable.link import Link, Listener, catch_up
from avenor.stable.resuming import Resuming
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.settle import (
    StillAlive,
    bridge,
    is_unfinished,
    killed_outcome,
    lost_outcome,
    read_end,
    settle,
    told_ending,
    told_outcome,
)

# Its socket ends with it, so that what it wrote is here at once; this is for a busy machine.
_DRAIN_SECONDS: Final = 2.0
_LOCK_POLL_SECONDS: Final = 0.05
_LATE_SECONDS: Final = 0.5
# After so long without what a look needs it counts as failed; of a sweep it is told that nothing is proven.
_SHORTAGE_SECONDS: Final = 30.0
_LAST_RETRY_SECONDS: Final = 60.0

T = TypeVar("T")

_logger: Final = structlog.get_logger()


class Durable(Protocol):
    """What makes an accepted spawn survive a power failure."""

    async def __call__(self, runtime: Runtime) -> None:
        """Return when its record is on the disk.

        Raises:
            OSError: It could not be brought there.
        """
        ...


class Keeper:
    """Keeps runtimes, each in a task of its own.

    Args:
        launcher: Where they run.
        listener: Hears of their changes; also of their end.
        make_durable: Called while a runtime is launched.
        resuming: Says which runtimes get a new process in the place of one that was lost.
    """

    def __init__(self, launcher: Launcher, listener: Listener, make_durable: Durable, resuming: Resuming) -> None:
        self._launcher = launcher
        self._listener = listener
        self._make_durable = make_durable
        self._resuming = resuming

    async def launch(self, runtime: Runtime) -> None:
        """Launch a runtime and keep it until its end is settled.

        Cancellation: it lives on.
        """
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            started_at = trio.current_time()
            try:
                await self._bring_up(runtime)
            except AvenorError as error:
                runtime.failure = error
                _logger.warning("runtime.not_launched", error=error.message)
            except Exception:  # supervision boundary: whatever it was, this runtime must not be starting for ever
                runtime.failure = InternalError(f"cannot launch {runtime.id}: a fault in avenor, see the log")
                _logger.exception("runtime.not_launched")
            else:
                took_ms = round((trio.current_time() - started_at) * 1000, 1)
                _logger.info("runtime.launched", pid=runtime.process and runtime.process.pid, took_ms=took_ms)
                await self._see_through(self._keep, runtime)
                return
            await self._see_through(self._settle, runtime)

    async def adopt(self, runtime: Runtime) -> None:
        """Keep a runtime that lives already until its end is settled.

        Cancellation: it lives on.
        """
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            failpoint("adopt.begun")
            await self._see_through(self._keep, runtime)

    async def end_queued(self, runtime: Runtime) -> None:
        """End a runtime that was never launched."""
        runtime.end = killed_outcome(runtime.record, runtime.state)
        await self.settle(runtime)

    async def settle(self, runtime: Runtime) -> None:
        """Settle a runtime that is dead, or was never alive, unless it goes on; one that turns out to live is kept."""
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            await self._see_through(self._settle_unless_it_goes_on, runtime)

    async def finish(self, runtime: Runtime) -> None:
        """Do what is left for a runtime whose log tells its end, and perhaps its sentinel does not, or its tools live.

        So it is when it was killed right after it told, or when the supervisor was that settled it.
        """
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            runtime.stopped = await self._end_processes(runtime)
            outcome, seen_seq = await self._lost(runtime), runtime.hub.latest_seq
            if not await self._write_end(runtime, outcome, seen_seq, is_told=True):
                await self._write_late(runtime, outcome, seen_seq, is_told=True)

    async def kill(self, runtime: Runtime) -> None:
        """End a runtime and all that it started without asking it. Whoever keeps it settles it as ended by us."""
        if runtime.end is None:
            runtime.end = killed_outcome(runtime.record, runtime.state)
        runtime.stopped = await self._end_processes(runtime)

    async def _see_through(self, step: Callable[[Runtime], Awaitable[None]], runtime: Runtime) -> None:
        """Do what is left for a runtime until its end is settled; what breaks is begun again, for nobody else does."""
        delay = _LATE_SECONDS
        while True:
            try:
                await step(runtime)
                return
            except* Exception:  # supervision boundary: one runtime
                _logger.exception("runtime.keeping_failed")
            if runtime.ended.is_set():
                return
            await trio.sleep(delay)
            delay = min(delay * 2, _LAST_RETRY_SECONDS)
            step = self._settle_unless_it_goes_on if runtime.process is None else self._keep

    async def _settle_unless_it_goes_on(self, runtime: Runtime) -> None:
        if runtime.stage is Stage.LOST and (await self._resume(runtime) or await self._turns_out_alive(runtime)):
            await self._keep(runtime)
        else:
            await self._settle(runtime)

    async def _bring_up(self, runtime: Runtime) -> None:
        problem: OSError | None = None

        async def sync() -> None:
            nonlocal problem
            try:
                await self._make_durable(runtime)
            except OSError as error:
                problem = error

        failure: AvenorError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sync)
            try:
                runtime.process = await self._launcher.launch(runtime.directory.path)
            except AvenorError as error:
                failure = error
        if failure is not None:
            await self._let_leave(runtime)
            raise failure
        if problem is not None:
            raise SpawnError(f"cannot write the record of {runtime.id} to the disk: {problem}") from problem
        runtime.stage = Stage.LIVE
        runtime.state.pid = runtime.process.pid if runtime.process else None
        runtime.revise()

    async def _let_leave(self, runtime: Runtime) -> None:
        """Give a process that has said why it cannot start the time to tell its end itself."""
        process = await self._probe(runtime)
        if process is not None:
            with trio.move_on_after(_DRAIN_SECONDS):
                await wait_dead(process)

    async def _keep(self, runtime: Runtime) -> None:
        """Follow a runtime, through every process that takes the place of one that was lost, and settle it."""
        await self._follow(runtime)
        while await self._resume(runtime):
            await self._follow(runtime)
        await self._settle(runtime)

    async def _resume(self, runtime: Runtime) -> bool:
        """Start a new process for a runtime whose process was lost, if it is to go on."""
        if runtime.record.on_crash != "resume":
            return False
        # Whether it has ended must be known: then no other process goes on.
        if await self._read_rest(runtime, is_patient=True) is not None or runtime.state.status == "ended":
            return False
        if self._resuming.leaves_to_next:
            await trio.sleep_forever()
        runtime.not_resumed = self._resuming.refusal(runtime)
        if runtime.not_resumed is None:
            runtime.not_resumed = await self._start_again(runtime)
        return runtime.not_resumed is None

    async def _start_again(self, runtime: Runtime) -> str | None:
        """Put a new process in the place of one that was lost; returns why there is none."""
        _logger.warning("runtime.resuming")
        failpoint("resume.begun")
        state = runtime.state
        state.owner = state.pid = None
        runtime.stage = Stage.LAUNCHING
        self._renew_link(runtime)  # what clients ask meanwhile waits in it
        runtime.revise()
        if await self._take_late(runtime):
            return None
        # Nothing may work on beside the new process.
        runtime.stopped = await self._end_processes(runtime)
        if runtime.stopped.left:
            return f"this could not be ended: {', '.join(describe_left(runtime.stopped))}"
        runtime.stopped = None
        self._launcher.forget(runtime.directory.path)
        try:
            await self._bridge(runtime)
            await self._bring_up(runtime)
        except OSError as error:
            return f"its log cannot be written: {error}"
        except AvenorError as error:
            runtime.not_resumed = f"no other could be started: {error.message}"
            return None if await self._turns_out_alive(runtime) else runtime.not_resumed
        return None

    async def _bridge(self, runtime: Runtime) -> None:
        """What clients have seen and the log has not, as on a full disk, is told there before anybody goes on."""
        with contextlib.suppress(StillAlive):  # it has come up meanwhile, and writes itself
            await trio.to_thread.run_sync(bridge, runtime.directory, runtime.record, runtime.hub.latest_seq)

    def _renew_link(self, runtime: Runtime) -> Link:
        """A link that connects: the old one, unless it is over."""
        if runtime.link is None or runtime.link.is_over:
            runtime.link = Link(runtime, self._listener)
        return runtime.link

    async def _take_late(self, runtime: Runtime) -> bool:
        """Take a process that was slow to start, and has come up after all."""
        process = await self._probe(runtime)
        if process is not None:
            runtime.process, runtime.stage = process, Stage.LIVE
            runtime.state.pid = process.pid
        return process is not None

    async def _turns_out_alive(self, runtime: Runtime) -> bool:
        process = await self._find_alive(runtime)
        if process is not None:
            runtime.process, runtime.stage = process, Stage.LIVE
        return process is not None

    async def _read_rest(self, runtime: Runtime, *, is_patient: bool = False) -> Outcome | None:
        """Take what the runtime has written, and its link has not brought; returns the end that is told there.

        That is not told on yet: whoever hears of it finds the sentinel.
        """

        async def read() -> Outcome | None:
            await catch_up(runtime, holds_end=True)
            return await trio.to_thread.run_sync(_read_outcome, runtime.directory.log_path)

        try:
            return await (_when_possible(read) if is_patient else read())
        except OSError as error:
            _logger.error("log.unreadable", error=str(error))
            return None

    async def _follow(self, runtime: Runtime) -> None:
        assert runtime.process is not None
        link = self._renew_link(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await wait_dead(runtime.process)
            link.close()
            nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_SECONDS

    async def _settle(self, runtime: Runtime) -> None:
        state = runtime.state
        state.owner = state.pid = None
        runtime.revise()
        if state.status == "ended" and _is_told(runtime):
            self._close(runtime)
            return
        told = _seen_outcome(runtime) or await self._read_rest(runtime)
        # A lost one may have been told its end here, just before, so that it could not come up any more. One that could
        # not start has told its own, and may not have left.
        has_left = told is not None and runtime.process is not None
        if runtime.stage is Stage.LOST or not (has_left or runtime.stage is Stage.QUEUED):
            runtime.stopped = await self._end_processes(runtime)
        seen_seq = runtime.hub.latest_seq
        outcome = told or await self._lost(runtime)
        is_told = _is_in_sentinel(runtime, outcome)
        is_written = await self._write_end(runtime, outcome, seen_seq, is_told=is_told)
        self._close(runtime)
        if not is_written:
            await self._write_late(runtime, outcome, seen_seq, is_told=is_told)

    async def _write_late(self, runtime: Runtime, outcome: Outcome, seen_seq: int, *, is_told: bool) -> None:
        """Write down, as soon as there is room for it, an end that clients know already."""
        is_written = False
        try:
            # Polling: nothing tells that there is room again.
            while not is_written:
                await trio.sleep(_LATE_SECONDS)
                is_written = await self._write_end(runtime, outcome, seen_seq, is_told=is_told)
        finally:
            if not is_written:
                _logger.error("settle.left_undone", outcome=outcome.status.value, stop_reason=outcome.stop_reason)

    def _close(self, runtime: Runtime) -> None:
        """Nothing more comes of it: lets everybody know who waits for it."""
        state = runtime.state
        if runtime.link is not None:
            runtime.link.close()
        self._launcher.forget(runtime.directory.path)
        runtime.stage = Stage.ENDED
        if runtime.stopped is not None:
            state.left_processes = state.left_processes or describe_left(runtime.stopped)
        runtime.revise()
        _logger.info("runtime.ended", outcome=state.outcome, stop_reason=state.stop_reason)
        self._listener.runtime_changed(runtime)
        for event in (runtime.started, runtime.has_session, runtime.ended):
            event.set()

    async def _end_processes(self, runtime: Runtime) -> StopResult:
        try:
            return await _when_possible(partial(self._launcher.end, runtime.directory.path))
        except OSError as error:
            _logger.error("runtime.not_swept", error=str(error))
            return StopResult(unverified=str(error))

    async def _probe(self, runtime: Runtime) -> ProcessId | None:
        """The living process of a runtime; None also where it cannot be looked for."""

        async def probe() -> ProcessId | None:
            return self._launcher.probe(runtime.directory.path)

        try:
            return await _when_possible(probe)
        except OSError as error:
            _logger.error("runtime.not_probed", error=str(error))
            return None

    async def _find_alive(self, runtime: Runtime) -> ProcessId | None:
        """The process of a runtime that came up late; None if its end is written, so that none can come any more."""
        outcome = await self._lost(runtime)
        # Polling, for the moment between its lock and its `process.json`.
        while True:
            try:
                # The end is what keeps a late child from starting, so it comes before the sweep.
                await trio.to_thread.run_sync(
                    partial(settle, runtime.directory, runtime.record, outcome, is_swept=False)
                )
                return None
            except StillAlive:
                if (process := await self._probe(runtime)) is not None:
                    return process
            except OSError as error:
                _logger.error("settle.failed", error=str(error))
                return None
            await trio.sleep(_LOCK_POLL_SECONDS)

    async def _write_end(self, runtime: Runtime, outcome: Outcome, seen_seq: int, *, is_told: bool) -> bool:
        """Tell the end of a runtime; False where there was no room for it, so that it must be done again."""
        is_written = True
        try:
            await self._settle_when_free(runtime, outcome, seen_seq, is_told=is_told)
            await catch_up(runtime)
        except OSError as error:
            is_written = not is_passing(error)
            _logger.error("settle.failed", error=str(error))
        if runtime.state.status != "ended":  # no log could be written: what we know is at least not told otherwise
            runtime.hub.fold.apply(_end_event(runtime, outcome))
        return is_written

    async def _settle_when_free(self, runtime: Runtime, outcome: Outcome, seen_seq: int, *, is_told: bool) -> None:
        # Polling: nothing tells that a lock was freed. It is held on only if the process that we know was not the
        # runtime, and by one that we were told of too late.
        while True:
            try:
                await trio.to_thread.run_sync(
                    partial(settle, runtime.directory, runtime.record, outcome, seen_seq=seen_seq, is_told=is_told)
                )
                return
            except StillAlive:
                await trio.sleep(_LOCK_POLL_SECONDS)

    async def _lost(self, runtime: Runtime) -> Outcome:
        """What a runtime comes to whose log does not tell: what had ended it before, or that it was lost."""
        state, ending = runtime.state, runtime.hub.fold.ending
        if ending is not None:
            return told_ending(runtime.record, ending, state.session_id)
        if runtime.end is not None:
            return runtime.end
        if runtime.cancels:
            return killed_outcome(runtime.record, state)
        if runtime.failure is not None:
            failure = runtime.failure
            return Outcome.of(failure.reason_word, run_id=runtime.record.run_id, reason=failure.message)
        status = await self._launcher.exit_status(runtime.directory.path)
        was_up = runtime.process is not None or runtime.state.latest_seq > 0
        return lost_outcome(
            runtime.record, state.session_id, status=status, was_up=was_up, not_resumed=runtime.not_resumed
        )


async def _when_possible(look: Callable[[], Awaitable[T]]) -> T:
    """What a look comes to that needs descriptors, repeated for a while if there are none.

    Raises:
        OSError: There were none for too long, or it failed for another reason.
    """
    deadline = trio.current_time() + _SHORTAGE_SECONDS
    while True:
        try:
            return await look()
        except OSError as error:
            if trio.current_time() > deadline or not is_passing(error):
                raise
        # Polling: nothing tells that there are descriptors again.
        await trio.sleep(_LATE_SECONDS)


def _is_told(runtime: Runtime) -> bool:
    """Whether its end is in its log, and nothing is left to do. What a client has seen may not be, on a full disk."""
    try:
        return not is_unfinished(runtime.directory) and read_end(runtime.directory.log_path) is not None
    except OSError:
        return False


def _is_in_sentinel(runtime: Runtime, outcome: Outcome) -> bool:
    """Whether the runtime, unless its mark says otherwise, has told this outcome: as its end, or when it parked."""
    state = runtime.state
    return state.status == "ended" or (state.status == "idle" and state.stop_reason == outcome.stop_reason)


def _read_outcome(log_path: Path) -> Outcome | None:
    """The end that a log tells, if it tells one."""
    end = read_end(log_path)
    return None if end is None else told_outcome(end, log_path)


def _seen_outcome(runtime: Runtime) -> Outcome | None:
    """The end that clients were told, if they were."""
    state = runtime.state
    if state.status != "ended" or state.outcome is None or state.exit_code is None:
        return None
    return Outcome(
        status=Status(state.outcome),
        exit_code=state.exit_code,
        stop_reason=state.stop_reason or "",
        session_id=state.session_id or "",
        reason=state.reason,
        run_id=runtime.record.run_id,
    )


def describe_left(stopped: StopResult) -> list[str]:
    """What a stop could not end, a line for each."""
    return [f"{process.name} ({process.pid}): {process.reason}" for process in stopped.left]


def _end_event(runtime: Runtime, outcome: Outcome) -> RunEnd:
    return RunEnd(
        seq=runtime.state.latest_seq,
        ts=time.time_ns() // 1_000_000,
        status=outcome.status.value,
        exit_code=outcome.exit_code,
        stop_reason=outcome.stop_reason,
        reason=outcome.reason or UNSET,
    )
