"""`stable --keep`: ended runtimes are pruned by themselves, at the start and from then on every hour."""

from typing import Final

import structlog
import trio

from avenor.stable.pruning import Pruner

# Nobody who keeps runs for days misses an hour; a look costs a walk over what is in memory.
INTERVAL_SECONDS: Final = 3600.0

_logger: Final = structlog.get_logger()


async def retain(pruner: Pruner, keep_seconds: float | None) -> None:
    """Keep what ended within so many seconds, until cancelled. Without them, finish only what was begun to be removed.

    What goes wrong is logged, and tried again an hour later.
    """
    if keep_seconds is None:
        _tell(await pruner.remove_left())
        return
    while True:
        _tell((await pruner.prune(keep_seconds)).problems)
        await trio.sleep(INTERVAL_SECONDS)


def _tell(problems: list[str]) -> None:
    if problems:
        _logger.warning("retention.incomplete", count=len(problems), first=problems[0])
