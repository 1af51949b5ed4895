"""The running program behind a session: its wire, its stderr, and its end. What is said is the session's."""

from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from avenor.host.ladder import Graces, StopResult
from avenor.runtimes.backends.agent_process import AgentProcess
from avenor.runtimes.backends.base import AgentExit, StderrTail

# What a dead agent wrote is in the pipe already; only a child that inherited the pipe keeps it open for longer.
DRAIN_SECONDS = 1.0
FLUSH_SECONDS = 0.5  # For the last words (a cancel) to get into the pipe before stdin is closed.


class Wire(Protocol):
    """What a link needs of the connection over a program's stdin and stdout."""

    @property
    def closed(self) -> trio.Event:
        """Set when the program has closed its stdout, or does not take what we write."""
        ...

    async def read(self) -> None:
        """Reads and dispatches until the program closes its stdout."""
        ...

    async def write(self) -> None:
        """Writes what is to be written until the program takes no more."""
        ...

    async def wait_flushed(self) -> None:
        """Waits until everything has been handed to the system, or cannot be."""
        ...

    def give_up(self, agent_exit: AgentExit) -> None:
        """Answers every call, and those to come, with the program's end."""
        ...


class AgentLink:
    """A started program and the tasks that serve it. Runs in `run`, ends by `close`.

    Args:
        process: Just started.
        wire: The connection to it.
        tail: Filled from stderr.
        on_stderr: Gets the lines of stderr that are let through.
        on_gone: Called once when the agent has ended or closed its side, and every unanswered call is answered.
        ends_on_stdin_close: Whether closing its stdin is worth waiting for.
    """

    def __init__(
        self,
        process: AgentProcess,
        wire: Wire,
        *,
        tail: StderrTail,
        on_stderr: Callable[[str], None],
        on_gone: Callable[[AgentExit], None],
        ends_on_stdin_close: bool,
    ) -> None:
        self._wire = wire
        self._process = process
        self._tail = tail
        self._on_stderr = on_stderr
        self._on_gone = on_gone
        self._ends_on_stdin_close = ends_on_stdin_close
        self._scope = trio.CancelScope()
        self._exit: AgentExit | None = None
        self._is_gone = trio.Event()
        self._stop_lock = trio.Lock()
        self._stop_result: StopResult | None = None

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """Whether the program has ended, or closed its side; see `base.Session.is_lost`."""
        return self._process.has_ended or self._wire.closed.is_set()

    async def run(self, session_tasks: Callable[[trio.Nursery], None], *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the program's tasks, and those that `session_tasks` starts in the nursery it is given, until `close`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                process_ended, stderr_ended = trio.Event(), trio.Event()
                nursery.start_soon(self._wire.read)
                nursery.start_soon(self._wire.write)
                nursery.start_soon(self._read_stderr, stderr_ended)
                nursery.start_soon(self._watch, process_ended, stderr_ended)
                session_tasks(nursery)
                task_status.started()
        self._note_gone(self._process.returncode)  # closed, and its end was not waited for any longer

    async def wait_exited(self) -> AgentExit:
        """Waits for the agent's end; see `base.Session.wait_exited`."""
        await self._is_gone.wait()
        assert self._exit is not None
        return self._exit

    async def close(self, graces: Graces) -> StopResult:
        """Ends the program and all that it started; see `base.Session.close`."""
        async with self._stop_lock:
            if self._stop_result is None:
                try:
                    with trio.move_on_after(FLUSH_SECONDS):
                        await self._wire.wait_flushed()
                    if not self._ends_on_stdin_close:
                        graces = msgspec.structs.replace(graces, stdin_seconds=0.0)
                    self._stop_result = await self._process.stop(graces)
                    with trio.move_on_after(DRAIN_SECONDS):
                        await self._is_gone.wait()
                finally:
                    self._scope.cancel()  # Cut short, too: nobody waits for an agent that could not be ended in time.
        return self._stop_result

    async def _read_stderr(self, ended: trio.Event) -> None:
        await self._process.read_stderr(self._tail, self._on_stderr)
        ended.set()

    async def _watch(self, process_ended: trio.Event, stderr_ended: trio.Event) -> None:
        """Notices the agent's end: its process is gone, or it has closed its side."""
        returncode: int | None = None
        either = trio.Event()

        async def wait_process() -> None:
            nonlocal returncode
            returncode = await self._process.wait()
            process_ended.set()
            either.set()

        async def wait_closed() -> None:
            await self._wire.closed.wait()
            either.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_process)
            nursery.start_soon(wait_closed)
            await either.wait()
            with trio.move_on_after(DRAIN_SECONDS):
                await process_ended.wait()
                await self._wire.closed.wait()
                await stderr_ended.wait()
            nursery.cancel_scope.cancel()
        self._note_gone(returncode)

    def _note_gone(self, returncode: int | None) -> None:
        if self._exit is not None:
            return
        self._exit = AgentExit(returncode=returncode, stderr_tail=self._tail.text())
        self._is_gone.set()
        self._wire.give_up(self._exit)
        self._on_gone(self._exit)
