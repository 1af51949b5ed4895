"""What an earlier supervisor left in the state directory: runtimes that live on, that have ended, and that were lost.

Everything here blocks: call it in a worker thread.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from avenor.host import logfile
from avenor.host.identity import ProcessId
from avenor.host.rundir import RunDir
from avenor.protocol.events import decode_head
from avenor.protocol.snapshot import Fold
from avenor.protocol.spec import Record
from avenor.stable.identifiers import list_runtimes
from avenor.stable.records import read_record
from avenor.stable.runtime import Runtime, Stage, first_snapshot
from avenor.stable.settle import read_end, read_sentinel

# Read as a whole before clients are served: a few milliseconds. Of longer logs only the end is.
_SHORT_LOG_BYTES: Final = 512 * 1024

_logger: Final = structlog.get_logger()


def load_runtimes(state_dir: Path, probe: Callable[[Path], ProcessId | None]) -> list[Runtime]:
    """The runtimes of a state directory, in the order of their ids. Nothing is changed.

    A directory without a record was never accepted; one with a damaged record is reported and left alone.

    Args:
        state_dir: Where their directories are.
        probe: See `Launcher.probe`.
    """
    loaded = [_load(RunDir(state_dir / name), probe) for name in list_runtimes(state_dir)]
    return [runtime for runtime in loaded if runtime is not None]


def fold_log(directory: RunDir, record: Record) -> Fold:
    """The state that a whole log comes to."""
    fold = Fold(first_snapshot(directory, record, Stage.ENDED))
    for line in logfile.iter_lines(directory.log_path):
        _apply_line(fold, line)
    return fold


def _load(directory: RunDir, probe: Callable[[Path], ProcessId | None]) -> Runtime | None:
    try:
        record = read_record(directory)
    except (OSError, msgspec.DecodeError) as error:
        _logger.error("record.unusable", path=str(directory.record_path), error=str(error))
        return None
    if record is None:
        return None
    try:
        return _load_recorded(directory, record, probe)
    except (OSError, msgspec.DecodeError) as error:
        _logger.error("runtime.unreadable", runtime_id=record.runtime_id, error=str(error))
        return None


def _load_recorded(directory: RunDir, record: Record, probe: Callable[[Path], ProcessId | None]) -> Runtime:
    process = probe(directory.path)
    if process is not None:
        # Whole, however long: a client that comes back names the last event that it has, and must find no less here.
        runtime = Runtime(directory, record, Stage.LIVE, fold_log(directory, record))
        runtime.process = process
        runtime.state.pid = process.pid
        runtime.last_status = "starting"
        return runtime
    end = read_end(directory.log_path)
    if end is None and directory.queued_path.exists() and not directory.log_path.exists():
        return Runtime(directory, record, Stage.QUEUED)
    if end is None:
        runtime = Runtime(directory, record, Stage.LOST, fold_log(directory, record))
        if runtime.state.status != "idle":  # the sentinel of one that is parked tells of its last turn
            runtime.end = read_sentinel(directory, record)
        if record.on_crash == "resume":  # one that is to be up again counts among the parked; a dead one does not
            runtime.last_status = "starting"
        return runtime
    is_long = directory.log_path.stat().st_size > _SHORT_LOG_BYTES
    if not is_long:
        fold = fold_log(directory, record)
    else:
        fold = Fold(first_snapshot(directory, record, Stage.ENDED))
        _apply_first(fold, directory)
        fold.apply(end)
    runtime = Runtime(directory, record, Stage.ENDED, fold)
    runtime.is_summary = is_long
    for event in (runtime.started, runtime.has_session, runtime.ended):
        event.set()
    return runtime


def _apply_line(fold: Fold, line: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):  # no event of ours
        fold.apply_line(decode_head(line), line)


def _apply_first(fold: Fold, directory: RunDir) -> None:
    """What the beginning of a log tells: when it was, and of which kind. If it is no event of ours, it tells less."""
    line = next(logfile.iter_lines(directory.log_path), None)
    if line is not None:
        _apply_line(fold, line)
