"""Bringing accepted spawns to the disk, without a thread and a high-water mark for each of a crowd."""

import msgspec
import trio

from avenor.host.rundir import RunDir
from avenor.stable.identifiers import Identifiers
from avenor.stable.records import sync_record


class _Batch(msgspec.Struct):
    """What is brought to the disk together; `failures` has those that were not, by path."""

    directories: list[RunDir] = []
    failures: dict[str, OSError] = {}
    is_done: bool = False


class Durability:
    """Syncs records. Those that are asked for while others are on their way go together, after them.

    Args:
        identifiers: Whose high-water mark is written down with each batch.
    """

    def __init__(self, identifiers: Identifiers) -> None:
        self._identifiers = identifiers
        self._next = _Batch()
        self._under_way: trio.Event | None = None

    async def sync(self, directory: RunDir) -> None:
        """Return when the record of a directory is on the disk.

        Raises:
            OSError: It could not be brought there.

        Cancellation: those that wait for the same batch bring it to its end.
        """
        batch = self._next
        batch.directories.append(directory)
        while not batch.is_done:
            if self._under_way is None:
                await self._carry_out(batch)
            else:
                await self._under_way.wait()
        failure = batch.failures.get(str(directory.path))
        if failure is not None:
            raise failure

    async def _carry_out(self, batch: _Batch) -> None:
        if batch is self._next:
            self._next = _Batch()
        over = self._under_way = trio.Event()
        try:
            await trio.to_thread.run_sync(self._sync_all, batch)
            batch.is_done = True
        finally:
            self._under_way = None
            over.set()

    def _sync_all(self, batch: _Batch) -> None:
        for directory in batch.directories:
            try:
                sync_record(directory)
            except OSError as error:
                batch.failures[str(directory.path)] = error
        try:
            self._identifiers.write_mark()
        except OSError as error:
            batch.failures.update((str(directory.path), error) for directory in batch.directories)
