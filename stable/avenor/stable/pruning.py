"""`prune`: forgets runtimes that ended long ago, and removes their directories. Their ids are never used again."""

import shutil
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

import structlog
import trio

from avenor.control.rpc import Call, MethodTable
from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import AvenorError, InvalidParams
from avenor.protocol.methods import Pruned, PruneParams
from avenor.stable.identifiers import Identifiers
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime, Stage

_logger: Final = structlog.get_logger()


def add_pruning(table: MethodTable, registry: Registry, identifiers: Identifiers) -> None:
    """Adds `prune` to the methods of the supervisor's socket."""

    def prune(call: Call, params: PruneParams) -> Awaitable[Pruned]:
        call.detach()  # a client that leaves must not leave half of the work
        return _prune(registry, identifiers, _oldest_kept(params))

    table.add("prune", PruneParams, prune)


async def _prune(registry: Registry, identifiers: Identifiers, oldest_kept_ms: float) -> Pruned:
    chosen = [runtime for runtime in registry if _is_older(runtime, oldest_kept_ms)]
    # Forgotten first, so that nobody is served from a directory that is half gone. What cannot be removed comes back
    # with the next supervisor, and with it the chance to try again.
    for runtime in chosen:
        registry.forget(runtime)
    problems = await trio.to_thread.run_sync(_remove_all, identifiers, [runtime.directory.path for runtime in chosen])
    if problems:
        raise AvenorError(
            f"{len(problems)} directories could not be removed: {problems[0]}",
            data={"errors": problems},
            retryable=True,
        )
    _logger.info("runtimes.pruned", count=len(chosen))
    return Pruned(pruned=[runtime.id for runtime in chosen])


def _oldest_kept(params: PruneParams) -> float:
    try:
        seconds = parse_duration(params.keep)
    except ValueError as error:
        raise InvalidParams(f"keep: {error}", data={"field": "keep", "value": params.keep}) from error
    return (time.time() - seconds) * 1000


def _is_older(runtime: Runtime, than_ms: float) -> bool:
    ended_at = runtime.state.ended_at or runtime.record.created_at
    return runtime.stage is Stage.ENDED and ended_at < than_ms


def _remove_all(identifiers: Identifiers, paths: list[Path]) -> list[str]:
    try:
        identifiers.write_mark(durable=True)
    except OSError as error:
        return [f"the highest id could not be noted, so nothing was removed: {error}"]
    problems: list[str] = []
    for path in paths:
        try:
            shutil.rmtree(path)
        except OSError as error:
            problems.append(str(error))
    return problems
