"""The end of a runtime that cannot tell it itself: its outcome, in log and sentinel.

Its lock is taken first. Whoever holds it is the one writer, so a process that was slow to start and a supervisor that
gave it up can never both write an end. Everything here blocks: call it in a worker thread.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import UNSET

from avenor.host import logfile
from avenor.host.atomic import is_passing
from avenor.host.failpoints import failpoint
from avenor.host.gitworktrees import clear_worktrees, may_have_changed
from avenor.host.lock import FileLock
from avenor.host.regular import read_regular
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import clear_stale, remove_sentinel, write_sentinel
from avenor.protocol.events import AnyEvent, Error, RunEnd, RunEnding, decode_event, encode_event
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.outcomes import Outcome, Status, parse_sentinel
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import Record, permission_base

# Its values are a line each, of what an agent or a user has chosen.
_SENTINEL_BYTES: Final = 1 << 20

_logger: Final = structlog.get_logger()


class StillAlive(Exception):
    """The runtime's lock is held: it lives, and there is nothing to settle."""


def settle(
    directory: RunDir,
    record: Record,
    outcome: Outcome,
    *,
    seen_seq: int = 0,
    is_swept: bool = True,
    is_told: bool = False,
) -> RunEnd:
    """Give a dead runtime the end that its log tells, or else this one, and return it.

    A sentinel is written where it is due, as its mark says, and where it is this outcome that counts. One that is
    missing may have been read and taken away, and its path be another run's by now.

    Args:
        directory: Its directory.
        record: Its record.
        outcome: What it came to if its log does not say.
        seen_seq: The last event that came from it. What its log has not got of these is told to be lost.
        is_swept: Whether what it started is ended already. If not, its socket stays for a sign that this is to be done,
            and so do the worktrees of a manifest.
        is_told: Whether the runtime has brought this outcome into its sentinel itself, unless that is due.

    Raises:
        StillAlive: It is not dead.
        OSError: Its log cannot be read or written; or, where that is passing, its sentinel. It can be done again.
    """
    lock = FileLock(directory.lock_path)
    if not lock.try_acquire():
        raise StillAlive(str(directory.path))
    try:
        logfile.repair(directory.log_path)
        end = read_end(directory.log_path)
        is_new = end is None
        if end is None:
            if not is_told:
                _put_due(directory)
            _put_socket(directory)
            failpoint("settle.before_log")
            end = _append_end(directory.log_path, record, outcome, seen_seq)
            failpoint("settle.after_log")
        path = record.spec.sentinel_file
        is_due = (is_new and not is_told) or directory.is_sentinel_due()
        if is_new and is_due and path is not None:
            # That of an earlier turn, which would be believed if this one could be written only later, or never.
            with contextlib.suppress(OSError):
                remove_sentinel(path)
        if is_due and path is not None:
            _write_sentinel(path, told_outcome(end, directory.log_path))
        with contextlib.suppress(OSError):
            if directory.is_sentinel_due():
                directory.note_sentinel(is_due=False)
        if is_swept:
            _remove_worktrees(directory, record)
            _remove_socket(directory)
        _remove_passing(directory, record)
        return end
    finally:
        lock.release()


def bridge(directory: RunDir, record: Record, seen_seq: int) -> None:
    """Tell in the log of a dead runtime which events it has not got, so that whoever goes on gives no number twice.

    Args:
        directory: Its directory.
        record: Its record.
        seen_seq: The last event that came from it.

    Raises:
        StillAlive: It is not dead.
        OSError: Its log cannot be read or written.
    """
    lock = FileLock(directory.lock_path)
    if not lock.try_acquire():
        raise StillAlive(str(directory.path))
    try:
        logfile.repair(directory.log_path)
        last_seq = logfile.last_seq(directory.log_path)
        if last_seq < seen_seq:
            lost = _tell_lost(directory.log_path, record, last_seq + 1, seen_seq)
            logfile.append(directory.log_path, encode_event(lost) + b"\n")
    finally:
        lock.release()


def is_unfinished(directory: RunDir) -> bool:
    """Whether something is left to do for a runtime whose log tells its end.

    One that was killed leaves its socket, and one that could not write its sentinel says so. That the sentinel is
    missing says nothing: whoever has read it may take it away. What cannot be read now is looked at again.
    """
    try:
        return os.path.lexists(directory.socket_path) or directory.is_sentinel_due()
    except OSError:
        return True


def read_end(log_path: Path) -> RunEnd | None:
    """The end that a log tells, None if it tells none."""
    line = logfile.last_line(log_path)
    event = None if line is None else _decode(line)
    return event if isinstance(event, RunEnd) else None


def told_outcome(end: RunEnd, log_path: Path) -> Outcome:
    """What a log's end says that its run came to."""
    return Outcome(
        status=_status(end.status),
        exit_code=end.exit_code,
        stop_reason=end.stop_reason,
        session_id=last_session(log_path) if end.session_id is UNSET else end.session_id,
        reason=None if end.reason is UNSET else end.reason,
        run_id=end.run_id,
    )


def read_sentinel(directory: RunDir, record: Record) -> Outcome | None:
    """What a run has told in its sentinel, as its mark says; None if there is nothing of it there.

    Where its log had no room for its end, this may be all that there is of it.
    """
    path = record.spec.sentinel_file
    try:
        if path is None or not directory.is_sentinel_told():
            return None
        outcome = parse_sentinel(read_regular(path, limit_bytes=_SENTINEL_BYTES).decode())
    except (OSError, ValueError):
        return None
    return outcome if outcome.run_id == record.run_id else None


def last_session(log_path: Path) -> str:
    """The last session that a log tells of; empty if there was none."""
    line = logfile.last_event_named(log_path, "session.start")
    event = None if line is None else _decode(line)
    return "" if event is None or event.session_id is UNSET else event.session_id


def lost_outcome(
    record: Record, session_id: str | None, *, status: int | None, was_up: bool, not_resumed: str | None = None
) -> Outcome:
    """What a runtime came to that has died without telling.

    Args:
        record: Its record.
        session_id: Its last session, if it had one.
        was_up: Whether it ever answered, or logged anything.
        status: Its exit code, or minus the number of the signal that killed it; None if nobody knows.
        not_resumed: Why no other process goes on with it, where that was asked for.
    """
    how = "" if status is None else f" (exit status {status})"
    how = how if not_resumed is None else f"{how}; it does not go on, for {not_resumed}"
    if not was_up:
        reason = f"the run was accepted, and its runtime never came up{how}"
        return Outcome.of("launch_lost", run_id=record.run_id, reason=reason)
    reason = f"the runtime's process ended without telling its outcome{how}"
    return Outcome.of("runtime_lost", run_id=record.run_id, session_id=session_id or "", reason=reason)


def told_ending(record: Record, ending: RunEnding, session_id: str | None) -> Outcome:
    """What a runtime was coming to that something had ended before it died.

    Args:
        record: Its record.
        ending: What it told of that.
        session_id: Its last session, if it had one.
    """
    return Outcome(
        status=_status(ending.status),
        exit_code=ending.exit_code,
        stop_reason=ending.stop_reason,
        session_id=session_id or "",
        reason=None if ending.reason is UNSET else ending.reason,
        run_id=record.run_id,
    )


def killed_outcome(record: Record, state: Snapshot) -> Outcome:
    """What a runtime comes to that is ended at our own wish. A parked one stands by the outcome of its last turn."""
    session_id = state.session_id or ""
    if state.status == "idle":
        return Outcome.of(state.stop_reason or "end_turn", run_id=record.run_id, session_id=session_id)
    reason = "ended by the supervisor before it could end by itself"
    return Outcome.of("cancelled", run_id=record.run_id, session_id=session_id, reason=reason)


def _append_end(log_path: Path, record: Record, outcome: Outcome, seen_seq: int) -> RunEnd:
    last_seq = logfile.last_seq(log_path)
    lost = b""
    if last_seq < seen_seq:
        lost = encode_event(_tell_lost(log_path, record, last_seq + 1, seen_seq)) + b"\n"
        last_seq = seen_seq + 1
    end = RunEnd(
        seq=last_seq + 1,
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
    line = lost + encode_event(end) + b"\n"
    logfile.append(log_path, line)
    if (copy := record.spec.on_event) is not None and not _is_same(copy, log_path):
        _tell_copy(log_path, copy, line)
    return end


def _tell_lost(log_path: Path, record: Record, first: int, last: int) -> Error:
    return Error(
        seq=last + 1,
        ts=time.time_ns() // 1_000_000,
        run_id=record.run_id,
        run_label=record.spec.label or UNSET,
        runtime_id=record.runtime_id,
        source="log",
        message=f"events {first} to {last} could not be written to {log_path}",
        lost_from=first,
        lost_to=last,
    )


def _tell_copy(log_path: Path, copy: str, line: bytes) -> None:
    try:
        if os.path.isfile(copy):
            logfile.complete_copy(log_path, copy)
        else:
            logfile.append(copy, line)
    except OSError as error:
        _logger.warning("settle.copy_not_written", path=copy, error=str(error))


def _is_same(copy: str, log_path: Path) -> bool:
    return os.path.realpath(copy) == os.path.realpath(log_path)


def _put_due(directory: RunDir) -> None:
    """For the next to settle it, if the sentinel cannot be written once the log has this end."""
    try:
        directory.note_sentinel(is_due=True)
    except OSError as error:
        if is_passing(error):
            raise


def _put_socket(directory: RunDir) -> None:
    """For a runtime that never came up: what stands where its socket would be says that not all is told yet."""
    with contextlib.suppress(OSError):
        directory.socket_path.touch(mode=0o600)


def _remove_socket(directory: RunDir) -> None:
    """What a runtime that was killed left of its socket; nobody listens there, and its being gone says: all is told."""
    with contextlib.suppress(OSError):
        os.unlink(directory.socket_path)


def _remove_worktrees(directory: RunDir, record: Record) -> None:
    """What a manifest run that was killed left of its attempts; the files of those that may have changed some stay."""
    if not isinstance(record.config, ResolvedManifest):
        return
    try:
        clear_worktrees(directory.path, may_have_changed(record))
    except OSError as error:
        _logger.warning("settle.worktrees_not_removed", error=str(error))


def _remove_passing(directory: RunDir, record: Record) -> None:
    """What was made for a moment, and a question that nobody waits for any more."""
    directory.clear_passing()
    try:
        clear_stale(None, permission_base(record.spec.permission_handler))
    except OSError as error:
        _logger.warning("settle.question_not_removed", error=str(error))


def _write_sentinel(path: str, outcome: Outcome) -> None:
    try:
        write_sentinel(path, outcome)
    except OSError as error:
        if is_passing(error):
            raise
        _logger.error("settle.sentinel_not_written", path=path, error=str(error))


def _status(word: str) -> Status:
    return Status(word) if word in set(Status) else Status.FAILED


def _decode(line: bytes) -> AnyEvent | None:
    try:
        return decode_event(line)
    except msgspec.DecodeError:
        return None
