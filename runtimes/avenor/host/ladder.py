"""The stop ladder: ending everything that a process started, politely first, and proving that it is gone.

    standard input closed → grace → SIGTERM to all → grace → everything stopped, SIGKILL → verified

Whoever calls has already asked in the agent's own protocol. Only processes found below the given roots, below this
process, or by the environment tag are ever signalled, each by its identity.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec
import trio

from avenor.host import tree
from avenor.host.identity import ProcessId, ProcessStat, read_stat, signal_process, wait_dead

# What an agent leaves when it ends at the close of its input is mostly on its way out too (it lost its own pipes).
_FOLLOW_SECONDS: Final = 0.2
# Each pass stops what the last one found; a tree that still grows after so many is met by the next round of the kill.
_STOP_PASSES: Final = 32
# A walk is repeated while it meets processes that ended meanwhile; after so many it counts as not proven.
_SETTLE_PASSES: Final = 64


class Graces(msgspec.Struct, frozen=True, kw_only=True):
    """How long each step of the ladder may take; together they bound the whole."""

    stdin_seconds: float = 2.0
    term_seconds: float = 2.0
    kill_seconds: float = 5.0


class LeftProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that could not be ended: another user's, or in uninterruptible sleep."""

    pid: int
    name: str
    reason: str


class StopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder came to; with nothing left and nothing unverified, all that was started is proven gone.

    Attributes:
        left: What still runs.
        unverified: Why the rest cannot be proven to be gone; None when it can.
    """

    left: list[LeftProcess] = []
    unverified: str | None = None


async def stop_tree(
    *,
    roots: Sequence[ProcessId],
    tag: tuple[str, str] | None,
    close_stdin: Callable[[], Awaitable[None]] | None,
    graces: Graces,
    own_children_of: int | None,
    spare_pids: Callable[[], Collection[int]] = tuple,
) -> StopResult:
    """End processes and everything that they started, bounded by the sum of the graces.

    Args:
        roots: The processes that were started, which whoever started them reaps (trio); they may have ended already.
        tag: An environment variable and a value that no other run on this machine has. Looked for only where orphans
            may be out of reach: with our own pid in `own_children_of` and this process a subreaper, everything that
            was started is below us, and reading all processes' environments would prove nothing more.
        close_stdin: Closes the roots' standard input; None goes to SIGTERM at once.
        graces: How long to wait after each step; without time for SIGTERM, SIGKILL comes at once.
        own_children_of: Also end everything below this pid: our own, when all that runs below this process is to end.
            None when others' processes run below us too; then the answer is `unverified`.
        spare_pids: Gives the children that somebody here ends and reaps himself, left alone with all that is below
            them. Asked at every look: others start while we end these.

    Cancellation: cuts the graces short. The kill step is still made, shielded and bounded by `kill_seconds`; then
        `Cancelled` goes on.
    """
    ladder = _Ladder(roots, tag, own_children_of, spare_pids)
    try:
        await ladder.ask(close_stdin, graces)
    finally:
        # Invariant: bounded by kill_seconds, for the kill step watches its own deadline.
        with trio.CancelScope(shield=True):
            await ladder.kill(graces.kill_seconds)
    return ladder.result()


def left_reason(found: ProcessStat, *, is_denied: bool) -> str | None:
    """Why a process outlived SIGKILL, in words; None where no accepted reason explains it."""
    if is_denied:
        return f"runs as another user (uid {_uid(found.id.pid)})"
    return "in uninterruptible sleep" if found.state == "D" else None


class _Ladder:
    """What one stop knows: every process seen so far that lives, and what it answered to signals."""

    def __init__(
        self,
        roots: Sequence[ProcessId],
        tag: tuple[str, str] | None,
        own_children_of: int | None,
        spare_pids: Callable[[], Collection[int]],
    ) -> None:
        self._roots = roots
        self._root_pids = {root.pid for root in roots}
        self._tag = tag
        self._top = own_children_of
        self._spare_pids = spare_pids
        self._sees_escapes = own_children_of == os.getpid() and tree.is_subreaper()
        self._known: dict[ProcessId, ProcessStat] = {}
        self._denied: set[ProcessId] = set()
        self._asked: set[ProcessId] = set()
        self._is_settled = True
        self._is_empty = False

    async def ask(self, close_stdin: Callable[[], Awaitable[None]] | None, graces: Graces) -> None:
        """The polite steps; returns when nothing is left, or all graces have passed."""
        self._collect()  # before anything ends: an orphan may be out of reach where we are no subreaper
        if close_stdin is not None:
            with trio.move_on_after(graces.stdin_seconds):
                await _close(close_stdin)
                await _wait_all_dead(self._roots)
                with trio.move_on_after(_FOLLOW_SECONDS):
                    await _wait_all_dead(found.id for found in self._collect())
        if graces.term_seconds <= 0:  # who has no time to end must not begin to, and perhaps tell another end than ours
            self._collect_all()
            return
        with trio.move_on_after(graces.term_seconds):
            while alive := self._collect_all():
                self._terminate(alive)
                await _wait_all_dead(found.id for found in alive)

    async def kill(self, seconds: float) -> None:
        """Stop, kill, look again, until nothing is left but what cannot be killed, or the time is up."""
        deadline = trio.current_time() + seconds
        while not self._is_empty and (alive := self._collect_all()):
            frozen = self._stop(alive, deadline)
            for found in frozen:
                self._signal(found, signal.SIGKILL)
            killable = [found.id for found in frozen if found.id not in self._denied]
            with trio.CancelScope(deadline=deadline):
                await _wait_all_dead(killable)
            if not killable or trio.current_time() >= deadline:
                return

    def result(self) -> StopResult:
        left: list[LeftProcess] = []
        doubts: list[str] = []
        for found in [] if self._is_empty else self._collect_all():
            reason = left_reason(found, is_denied=found.id in self._denied)
            if reason is None:
                doubts.append(f"process {found.id.pid} ({found.name}) had not ended in time after SIGKILL")
            else:
                left.append(LeftProcess(pid=found.id.pid, name=found.name, reason=reason))
        if not self._is_settled:
            doubts.append("processes kept ending and starting while they were looked for")
        if not self._sees_escapes:
            doubts.append(_CANNOT_SEE)
        return StopResult(left=left, unverified="; ".join(doubts) or None)

    def _collect_all(self) -> list[ProcessStat]:
        """What is left, the tag included where only that finds escapes."""
        alive = [] if self._is_empty else self._collect()  # where nothing lives, nothing starts
        if self._tag is not None and not self._sees_escapes:
            kept_out = {os.getpid(), *tree.ancestors(os.getpid()), *self._spare_pids()}
            extra = [found for found in tree.tagged(*self._tag) if found.id.pid not in kept_out]
            self._known.update((found.id, found) for found in extra)
            self._is_empty = self._is_empty and not extra
            alive = list(self._known.values())
        return alive

    def _collect(self) -> list[ProcessStat]:
        """What is left of the cheap tree. An empty answer is a proof; see `tree.walk` for why it takes two looks."""
        met: set[int] | None = None
        for _ in range(_SETTLE_PASSES):
            alive, gone = self._look()
            self._is_settled = bool(alive) or (met is not None and gone <= met)
            self._is_empty = self._is_settled and not alive
            if self._is_settled:
                return alive
            met = gone if met is None else met | gone
        return []

    def _look(self) -> tuple[list[ProcessStat], set[int]]:
        seeds = [seed for process in {*self._roots, *self._known} if (seed := _living(process)) is not None]
        starts = [seed.id.pid for seed in seeds]
        below = tree.walk(starts if self._top is None else [*starts, self._top], self._spare_pids())
        if self._top == os.getpid():
            # At once, for what forks on and on would bury us under its zombies. Roots are their starter's to reap, and
            # spared children were not looked at.
            tree.reap(below.gone_pids - self._root_pids)
        self._known = {found.id: found for found in [*seeds, *below.alive]}
        return list(self._known.values()), below.gone_pids

    def _terminate(self, alive: Iterable[ProcessStat]) -> None:
        for found in alive:
            if found.id not in self._asked:
                self._asked.add(found.id)
                self._signal(found, signal.SIGTERM)
                self._signal(found, signal.SIGCONT)  # a stopped process takes no other signal

    def _stop(self, alive: list[ProcessStat], deadline: float) -> list[ProcessStat]:
        """Halt everything before the kill, so that nothing forks on or starts anything again meanwhile."""
        halted: dict[ProcessId, ProcessStat] = {}
        for _ in range(_STOP_PASSES):
            fresh = [found for found in alive if found.id not in halted]
            for found in fresh:
                halted[found.id] = found
                self._signal(found, signal.SIGSTOP)
            if not fresh or trio.current_time() >= deadline:
                break
            alive = self._collect()
        return list(halted.values())

    def _signal(self, found: ProcessStat, signal_number: signal.Signals) -> None:
        try:
            signal_process(found.id, signal_number)
        except PermissionError:
            self._denied.add(found.id)


_CANNOT_SEE: Final = "orphans that cleared their environment do not come back to this process, so they cannot be found"


async def _close(close_stdin: Callable[[], Awaitable[None]]) -> None:
    try:
        await close_stdin()
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        await trio.lowlevel.checkpoint()  # closed already, or nobody reads: both are what we want


async def _wait_all_dead(processes: Iterable[ProcessId]) -> None:
    for process in processes:
        await wait_dead(process)
    await trio.lowlevel.checkpoint()


def _living(process: ProcessId) -> ProcessStat | None:
    found = read_stat(process.pid)
    return found if found is not None and found.id == process and not found.is_dead else None


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1
