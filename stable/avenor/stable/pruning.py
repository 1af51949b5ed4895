"""Forgetting runtimes that ended long ago, and removing their directories. Their ids are never used again.

A directory is renamed in one step before its files are removed. So nobody who is killed in between leaves a runtime
with half of its files, which the next supervisor would take for one that was lost. What is left of it goes later.
"""

import os
import shutil
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from avenor.control.rpc import Call, MethodTable
from avenor.host.lock import is_locked
from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import AvenorError, InvalidParams
from avenor.protocol.methods import Pruned, PruneParams
from avenor.stable.identifiers import Identifiers
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.settle import is_unfinished, read_end

# No runtime's id, so that nobody takes what is left there for a runtime.
_LEFT: Final = "pruned-"

_logger: Final = structlog.get_logger()


class Gone(msgspec.Struct, frozen=True):
    """What a pruning came to.

    Attributes:
        pruned: The ids that are gone, from memory and from the disk's `rt_N`.
        problems: What could not be removed and why, a sentence for each.
    """

    pruned: list[str]
    problems: list[str]


class Pruner:
    """Forgets runtimes.

    Args:
        registry: Knows them all; its forgotten ones are gone for every client.
        identifiers: Whose high-water mark is on the disk before any directory goes.
        state_dir: Where the directories are.
    """

    def __init__(self, registry: Registry, identifiers: Identifiers, state_dir: Path) -> None:
        self._registry = registry
        self._identifiers = identifiers
        self._state_dir = state_dir
        self._turn = trio.Lock()

    def older_than(self, keep_seconds: float) -> list[Runtime]:
        """The runtimes that ended longer ago, and that nothing alive needs.

        Whatever is queued, starts, works, is parked, or is dead and not settled yet has not ended. The ancestors of one
        that lives stay with it: the bound of its tree counts from them.
        """
        than_ms = (time.time() - keep_seconds) * 1000
        needed = {parent.id for runtime in self._registry.live for parent in self._registry.ancestors(runtime)}
        return [each for each in self._registry if _ended_before(each, than_ms) and each.id not in needed]

    async def prune(self, keep_seconds: float) -> Gone:
        """Forget what `older_than` gives; what cannot be removed stays, or is tried again by the next pruning.

        Cancellation: some are gone then, and each of them wholly.
        """
        async with self._turn:
            chosen = self.older_than(keep_seconds)
            problems = await trio.to_thread.run_sync(self._note_ids) if chosen else []
            pruned: list[str] = []
            for runtime in [] if problems else chosen:
                # No await between the look and the deed: a client finds it whole, or not at all.
                await trio.lowlevel.checkpoint()
                if (problem := _set_aside(runtime)) is not None:
                    problems.append(problem)
                    continue
                self._registry.forget(runtime)
                pruned.append(runtime.id)
            problems += await trio.to_thread.run_sync(self._remove_left)
        if pruned:
            _logger.info("runtimes.pruned", count=len(pruned))
        return Gone(pruned, problems)

    async def remove_left(self) -> list[str]:
        """Remove what an earlier pruning has left; returns what still cannot be removed."""
        async with self._turn:
            return await trio.to_thread.run_sync(self._remove_left)

    def _note_ids(self) -> list[str]:
        try:
            self._identifiers.write_mark(durable=True)
        except OSError as error:
            return [f"the highest id could not be noted, so nothing was removed: {error}"]
        return []

    def _remove_left(self) -> list[str]:
        problems: list[str] = []
        try:
            left = sorted(self._state_dir.glob(f"{_LEFT}*"))
        except OSError as error:  # no descriptor left to look with
            return [f"{self._state_dir} could not be looked through: {error}"]
        for path in left:
            try:
                shutil.rmtree(path)
            except OSError as error:
                problems.append(f"{path.name} could not be removed: {error}")
        return problems


def add_pruning(table: MethodTable, pruner: Pruner) -> None:
    """Adds `prune` to the methods of the supervisor's socket."""

    def prune(call: Call, params: PruneParams) -> Pruned | Awaitable[Pruned]:
        keep_seconds = _keep_seconds(params)
        if params.dry_run:
            return Pruned(pruned=[runtime.id for runtime in pruner.older_than(keep_seconds)])
        call.detach()  # a client that leaves must not leave half of the work
        return _answer(pruner, keep_seconds)

    table.add("prune", PruneParams, prune)


async def _answer(pruner: Pruner, keep_seconds: float) -> Pruned:
    gone = await pruner.prune(keep_seconds)
    if gone.problems:
        raise AvenorError(
            f"{len(gone.pruned)} were forgotten, but not everything could be removed: {gone.problems[0]}",
            data={"errors": gone.problems, "pruned": gone.pruned},
            retryable=True,
        )
    return Pruned(pruned=gone.pruned)


def _keep_seconds(params: PruneParams) -> float:
    try:
        return parse_duration(params.keep)
    except ValueError as error:
        raise InvalidParams(f"keep: {error}", data={"field": "keep", "value": params.keep}) from error


def _ended_before(runtime: Runtime, than_ms: float) -> bool:
    ended_at = runtime.state.ended_at or runtime.record.created_at
    return runtime.stage is Stage.ENDED and ended_at < than_ms


def _set_aside(runtime: Runtime) -> str | None:
    """Renames a runtime's directory; returns why it stays, if it does."""
    directory = runtime.directory
    try:
        if not directory.path.exists():  # somebody was quicker
            return None
        if is_locked(directory.lock_path):  # not over, as we thought: whoever holds the lock lives
            return f"{runtime.id} stays: its process is still there"
        # `Keeper` is still at it: its end may not be on the disk, its sentinel not written, its tools not swept.
        if is_unfinished(directory) or read_end(directory.log_path) is None:
            return f"{runtime.id} stays: its end is not settled yet"
        os.rename(directory.path, directory.path.with_name(_LEFT + directory.path.name))
    except OSError as error:
        return f"{runtime.id} stays: {error}"
    return None
