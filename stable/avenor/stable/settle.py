"""The end of a runtime that cannot tell it itself: its outcome, in log and sentinel.

Its lock is taken first. Whoever holds it is the one writer, so a process that was slow to start and a supervisor that
gave it up can never both write an end. Everything here blocks: call it in a worker thread.
"""

import os
import time
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import UNSET

from avenor.host import logfile
from avenor.host.lock import FileLock
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import write_sentinel
from avenor.protocol.events import AnyEvent, RunEnd, decode_event, encode_event
from avenor.protocol.outcomes import Outcome, Status
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import Record

_logger: Final = structlog.get_logger()


class StillAlive(Exception):
    """The runtime's lock is held: it lives, and there is nothing to settle."""


def settle(directory: RunDir, record: Record, outcome: Outcome) -> RunEnd:
    """Give a dead runtime the end that its log tells, or else this one, and return it.

    A sentinel is written where there is none, and where it is this outcome that counts.

    Args:
        directory: Its directory.
        record: Its record.
        outcome: What it came to if its log does not say.

    Raises:
        StillAlive: It is not dead.
        OSError: Its log cannot be read or written.
    """
    lock = FileLock(directory.lock_path)
    if not lock.try_acquire():
        raise StillAlive(str(directory.path))
    try:
        logfile.repair(directory.log_path)
        end = read_end(directory.log_path)
        is_new = end is None
        if end is None:
            end = _append_end(directory.log_path, record, outcome)
        path = record.spec.sentinel_file
        if path is not None and (is_new or not os.path.exists(path)):
            _write_sentinel(path, _outcome(end, directory.log_path))
        return end
    finally:
        lock.release()


def read_end(log_path: Path) -> RunEnd | None:
    """The end that a log tells, None if it tells none."""
    line = logfile.last_line(log_path)
    event = None if line is None else _decode(line)
    return event if isinstance(event, RunEnd) else None


def lost_outcome(record: Record, session_id: str | None, *, status: int | None, was_up: bool) -> Outcome:
    """What a runtime came to that has died without telling.

    Args:
        record: Its record.
        session_id: Its last session, if it had one.
        was_up: Whether it ever answered, or logged anything.
        status: Its exit code, or minus the number of the signal that killed it; None if nobody knows.
    """
    how = "" if status is None else f" (exit status {status})"
    if not was_up:
        reason = f"the run was accepted, and its runtime never came up{how}"
        return Outcome.of("launch_lost", run_id=record.run_id, reason=reason)
    reason = f"the runtime's process ended without telling its outcome{how}"
    return Outcome.of("runtime_lost", run_id=record.run_id, session_id=session_id or "", reason=reason)


def killed_outcome(record: Record, state: Snapshot) -> Outcome:
    """What a runtime comes to that is ended at our own wish. A parked one stands by the outcome of its last turn."""
    session_id = state.session_id or ""
    if state.status == "idle":
        return Outcome.of(state.stop_reason or "end_turn", run_id=record.run_id, session_id=session_id)
    reason = "ended by the supervisor before it could end by itself"
    return Outcome.of("cancelled", run_id=record.run_id, session_id=session_id, reason=reason)


def _append_end(log_path: Path, record: Record, outcome: Outcome) -> RunEnd:
    end = RunEnd(
        seq=logfile.last_seq(log_path) + 1,
        ts=time.time_ns() // 1_000_000,
        run_id=record.run_id,
        run_label=record.spec.label or UNSET,
        runtime_id=record.runtime_id,
        session_id=outcome.session_id or UNSET,
        status=outcome.status.value,
        exit_code=outcome.exit_code,
        stop_reason=outcome.stop_reason,
        reason=outcome.reason or UNSET,
    )
    line = encode_event(end) + b"\n"
    for path in {str(log_path), record.spec.on_event or str(log_path)}:
        try:
            _append(path, line)
        except OSError as error:
            if path == str(log_path):
                raise
            _logger.warning("settle.copy_not_written", path=path, error=str(error))
    return end


def _append(path: str, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        size = os.fstat(fd).st_size
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size)
            raise OSError(f"{path}: no room for the end of the run")
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_sentinel(path: str, outcome: Outcome) -> None:
    try:
        write_sentinel(path, outcome)
    except OSError as error:
        _logger.error("settle.sentinel_not_written", path=path, error=str(error))


def _outcome(end: RunEnd, log_path: Path) -> Outcome:
    return Outcome(
        status=Status(end.status) if end.status in set(Status) else Status.FAILED,
        exit_code=end.exit_code,
        stop_reason=end.stop_reason,
        session_id=_last_session(log_path) if end.session_id is UNSET else end.session_id,
        reason=None if end.reason is UNSET else end.reason,
        run_id=end.run_id,
    )


def _last_session(log_path: Path) -> str:
    line = logfile.last_event_named(log_path, "session.start")
    event = None if line is None else _decode(line)
    return "" if event is None or event.session_id is UNSET else event.session_id


def _decode(line: bytes) -> AnyEvent | None:
    try:
        return decode_event(line)
    except msgspec.DecodeError:
        return None
