"""The life of one runtime as its supervisor sees it: launched, followed over its link, and settled when it is dead."""

import os
import time
from typing import Final, Protocol

import structlog
import trio
from msgspec import UNSET

from avenor.host.identity import ProcessId, wait_dead
from avenor.host.ladder import StopResult
from avenor.protocol.errors import AvenorError, InternalError, SpawnError
from avenor.protocol.events import RunEnd
from avenor.protocol.outcomes import Outcome
from avenor.stable.launcher import Launcher
from avenor.stable.link import Listener, catch_up
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.settle import StillAlive, killed_outcome, lost_outcome, settle

# Its socket ends with it, so that what it wrote is here at once; this is for a busy machine.
_DRAIN_SECONDS: Final = 2.0
_LOCK_POLL_SECONDS: Final = 0.05

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
    """

    def __init__(self, launcher: Launcher, listener: Listener, make_durable: Durable) -> None:
        self._launcher = launcher
        self._listener = listener
        self._make_durable = make_durable

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
                await self._follow(runtime)
            await self._settle(runtime)

    async def adopt(self, runtime: Runtime) -> None:
        """Keep a runtime that lives already until its end is settled.

        Cancellation: it lives on.
        """
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            await self._follow(runtime)
            await self._settle(runtime)

    async def end_queued(self, runtime: Runtime) -> None:
        """End a runtime that was never launched."""
        runtime.end = killed_outcome(runtime.record, runtime.state)
        await self.settle(runtime)

    async def settle(self, runtime: Runtime) -> None:
        """Settle a runtime that is dead, or was never alive; one that turns out to live is kept until its end."""
        with structlog.contextvars.bound_contextvars(runtime_id=runtime.id):
            if runtime.stage is Stage.LOST and (process := await self._find_alive(runtime)) is not None:
                runtime.process, runtime.stage = process, Stage.LIVE
                await self._follow(runtime)
            await self._settle(runtime)

    async def kill(self, runtime: Runtime) -> None:
        """End a runtime and all that it started without asking it. Whoever keeps it settles it as ended by us."""
        if runtime.end is None:
            runtime.end = killed_outcome(runtime.record, runtime.state)
        runtime.stopped = await self._launcher.end(runtime.directory.path)

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
            raise failure
        if problem is not None:
            raise SpawnError(f"cannot write the record of {runtime.id} to the disk: {problem}") from problem
        runtime.stage = Stage.LIVE
        runtime.state.pid = runtime.process.pid if runtime.process else None
        runtime.revise()

    async def _follow(self, runtime: Runtime) -> None:
        assert runtime.process is not None
        assert runtime.link is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.link.run)
            await wait_dead(runtime.process)
            runtime.link.close()
            nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_SECONDS

    async def _settle(self, runtime: Runtime) -> None:
        state = runtime.state
        state.owner = state.pid = None
        runtime.revise()
        if state.status != "ended" or not _has_sentinel(runtime):
            if state.status != "ended" and runtime.stage is not Stage.QUEUED:
                runtime.stopped = await self._end_processes(runtime)
            await self._write_end(runtime, runtime.end or await self._lost(runtime))
        self._close(runtime)

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
            return await self._launcher.end(runtime.directory.path)
        except OSError as error:  # no descriptor left to look with
            _logger.error("runtime.not_swept", error=str(error))
            return StopResult(unverified=str(error))

    async def _find_alive(self, runtime: Runtime) -> ProcessId | None:
        """The process of a runtime that came up late; None if its end is written, so that none can come any more."""
        outcome = await self._lost(runtime)
        # Polling, for the moment between its lock and its `process.json`.
        while True:
            try:
                await trio.to_thread.run_sync(settle, runtime.directory, runtime.record, outcome)
                return None
            except StillAlive:
                if (process := self._launcher.probe(runtime.directory.path)) is not None:
                    return process
            except OSError as error:
                _logger.error("settle.failed", error=str(error))
                return None
            await trio.sleep(_LOCK_POLL_SECONDS)

    async def _write_end(self, runtime: Runtime, outcome: Outcome) -> None:
        try:
            await self._settle_when_free(runtime, outcome)
            await catch_up(runtime)
        except OSError as error:
            _logger.error("settle.failed", error=str(error))
        if runtime.state.status != "ended":  # no log could be written: what we know is at least not told otherwise
            runtime.hub.fold.apply(_end_event(runtime, outcome))

    async def _settle_when_free(self, runtime: Runtime, outcome: Outcome) -> None:
        # Polling: nothing tells that a lock was freed. It is held on only if the process that we know was not the
        # runtime, and by one that we were told of too late.
        while True:
            try:
                await trio.to_thread.run_sync(settle, runtime.directory, runtime.record, outcome)
                return
            except StillAlive:
                await trio.sleep(_LOCK_POLL_SECONDS)

    async def _lost(self, runtime: Runtime) -> Outcome:
        if runtime.failure is not None:
            return Outcome.of("spawn_failed", run_id=runtime.record.run_id, reason=runtime.failure.message)
        status = await self._launcher.exit_status(runtime.directory.path)
        was_up = runtime.process is not None or runtime.state.latest_seq > 0
        return lost_outcome(runtime.record, runtime.state.session_id, status=status, was_up=was_up)


def _has_sentinel(runtime: Runtime) -> bool:
    return os.path.exists(runtime.sentinel_file)


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
