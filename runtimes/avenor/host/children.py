"""The children of this process: those that it starts itself, and the orphans that come to it because it is a subreaper.

An orphan that has ended stays as a zombie until somebody collects it. Collecting one of our own children instead would
cost its exit status: trio would then report a crash as success. The kernel does not tell the two apart, so every
program that this process starts is started here. What is known is known for the whole process, as its children are.
"""

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any, Final

import trio

from avenor.host import tree


class Children:
    """Tells our own children from adopted ones. There is one for each process: `CHILDREN`."""

    def __init__(self) -> None:
        self._own: dict[int, trio.Process] = {}
        self._starts = 0
        self._none_starts = trio.lowlevel.ParkingLot()

    async def start(self, argv: Sequence[str], **options: Any) -> trio.Process:
        """`trio.lowlevel.open_process`, whose child is known as ours before it can be mistaken for an orphan."""
        self._starts += 1
        try:
            process = await trio.lowlevel.open_process(list(argv), **options)
            self._own[process.pid] = process
        finally:
            self._starts -= 1
            if not self._starts:
                self._none_starts.unpark_all()
        return process

    async def reap_orphans(self) -> list[int]:
        """Collect the adopted children that have ended; returns their pids. One that is no subreaper adopts nobody.

        Waits while a child is being started here: until its pid is known, one that has ended already looks like an
        orphan. From the look to the collecting there is no await.
        """
        while self._starts:
            await self._none_starts.park()
        # Asking for the return code collects it for trio, whose pid another process may have from then on.
        self._own = {pid: process for pid, process in self._own.items() if process.returncode is None}
        adopted = tree.children(os.getpid()) if tree.is_subreaper() else []
        return tree.reap(pid for pid in adopted if pid not in self._own)

    async def keep_reaping(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect orphans as soon as they end, until cancelled. Only where nothing but this starts processes."""
        with trio.open_signal_receiver(signal.SIGCHLD) as ended:
            task_status.started()
            async for _ in ended:
                with contextlib.suppress(OSError):  # no descriptor left to look with; the next end is another chance
                    await self.reap_orphans()


CHILDREN: Final = Children()
