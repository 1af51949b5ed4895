"""How a supervisor stops: the four modes, the signals that mean them, and how one gives way to a harder one."""

import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal, Protocol

import structlog
import trio

from avenor.stable.tombstone import Reason

Mode = Literal["drain", "graceful", "detach", "kill"]

# A later request is followed if it is harder; else the one under way is what was asked for, or more.
_HARDNESS: Final[dict[Mode, int]] = {"drain": 0, "graceful": 1, "detach": 2, "kill": 3}
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_logger: Final = structlog.get_logger()


class Actions(Protocol):
    """What a shutdown does to the runtimes."""

    def ask_all(self) -> None:
        """Ask every runtime to end: queued ones at once, the others through their links."""
        ...

    async def drain(self) -> None:
        """Return when no runtime is left; parked ones are asked to end."""
        ...

    async def wait_none_live(self) -> None:
        """Return when every runtime's end is settled."""
        ...

    async def wait_launched(self) -> None:
        """Return when every runtime whose start has begun is up, or has failed."""
        ...

    async def kill_all(self) -> None:
        """End everything without asking, within a bound."""
        ...


class Shutdown:
    """The decision to stop.

    Args:
        timeout_seconds: How long a graceful shutdown waits before it kills, and a detach for runtimes that just start.
        sigterm: What SIGTERM means.

    Attributes:
        mode: None until there is a decision; never goes back to a softer one.
        reason: For the tombstone.
    """

    def __init__(self, *, timeout_seconds: float, sigterm: Literal["graceful", "detach"]) -> None:
        self.mode: Mode | None = None
        self.reason: Reason = "shutdown"
        self._timeout_seconds = timeout_seconds
        self._sigterm: Mode = sigterm
        self._is_interrupted = False
        self._decided = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._on_decided: list[Callable[[], object]] = []

    def on_decided(self, action: Callable[[], object]) -> None:
        """Do this at each decision: the first one, and each for a harder mode."""
        self._on_decided.append(action)

    def request(self, mode: Mode, reason: Reason) -> None:
        """Stop in this way, or go on stopping in a harder one."""
        if self.mode is not None and _HARDNESS[mode] <= _HARDNESS[self.mode]:
            return
        self.mode, self.reason = mode, "detached" if mode == "detach" else reason
        _logger.info("shutdown.requested", mode=mode, reason=reason)
        self._decided.set()
        if self._scope is not None:
            self._scope.cancel()
        for action in self._on_decided:
            action()

    def note_signal(self, number: int) -> None:
        """A signal came: it stops as it means; the second SIGINT or SIGTERM kills, whatever was decided before."""
        meanings: dict[int, Mode] = {
            signal.SIGINT: "graceful",
            signal.SIGTERM: self._sigterm,
            signal.SIGHUP: "detach",
        }
        mode = meanings[number]
        if number != signal.SIGHUP:
            if self._is_interrupted:
                mode = "kill"
            self._is_interrupted = True
        self.request(mode, "signal")

    async def watch_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take signals until it is cancelled; those that are ignored already stay so, as `nohup` asks for."""
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        if not heeded:
            task_status.started()
            return
        with trio.open_signal_receiver(*heeded) as received:
            task_status.started()
            async for number in received:
                self.note_signal(number)

    async def wait_decided(self) -> None:
        """Return when it is decided that the supervisor stops."""
        await self._decided.wait()

    async def carry_out(self, actions: Actions) -> None:
        """Wait for the decision and do as it says; returns when the supervisor may leave."""
        await self._decided.wait()
        while True:
            mode = self.mode
            with self._interruptible() as scope:
                if self.mode is mode:
                    await self._do(actions)
            if not scope.cancelled_caught and self.mode is mode:
                return

    @contextmanager
    def _interruptible(self) -> Generator[trio.CancelScope, None, None]:
        with trio.CancelScope() as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    async def _do(self, actions: Actions) -> None:
        if self.mode == "drain":
            await actions.drain()
        elif self.mode == "graceful":
            actions.ask_all()
            if not await self._in_time(actions.wait_none_live):
                await actions.kill_all()
        elif self.mode == "detach":
            # The zygote ends with us, and with it a request that it has not read yet.
            await self._in_time(actions.wait_launched)
        elif self.mode == "kill":
            await actions.kill_all()

    async def _in_time(self, wait: Callable[[], Awaitable[None]]) -> bool:
        with trio.move_on_after(self._timeout_seconds):
            await wait()
            return True
        _logger.warning("shutdown.too_slow", mode=self.mode, timeout_seconds=self._timeout_seconds)
        return False
