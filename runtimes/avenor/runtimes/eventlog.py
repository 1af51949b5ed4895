"""The one writer of a run's events.

Stamps, encodes once, appends whole lines with one write, and hands the same bytes to the hub. A disk that is full never
stops a run and never leaves half a line: what was lost is said in the log as soon as it can be written again.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec
import structlog
import trio

from avenor.host.lock import keep_alone
from avenor.protocol.events import Error, Event, EventHead, encode_event, event_name
from avenor.protocol.methods import EVENT_PREFIX, EVENT_SUFFIX
from avenor.runtimes.eventsize import EVENT_LIMIT_BYTES, fit

# A batch is written at the latest with so many bytes: a larger one would gain nothing.
BATCH_LIMIT_BYTES: Final = 256 * 1024

_NAMES: Final[dict[type[Event], str]] = {}

_logger: Final = structlog.get_logger()


class Publisher(Protocol):
    """What the log needs of an `EventHub`."""

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        """Takes wrapped lines and their heads, in `seq` order."""
        ...


class Held:
    """Keeps what is published until somebody passes it on."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.heads: list[EventHead] = []

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        """See `Publisher.publish`."""
        self.lines += lines
        self.heads += heads


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every event of a run carries; empty ids are left out."""

    run_id: str
    runtime_id: str = ""
    label: str | None = None


class LineFile:
    """A file to which whole lines are appended, or nothing.

    Args:
        path: Of a file that is made if it is not there, a pipe, or a device.
        truncate: Whether it begins anew.
        is_alone: Whether a file in use by another run is refused, untouched.
        write: Writes to a descriptor.

    Raises:
        OSError: It cannot be opened; `EBUSY` when it is in use.

    Attributes:
        path: For messages.
        lost_from, lost_to: The seqs that could not be written since the last one that could; 0 when none.
        is_torn: Part of a line is out, and cannot be taken back.
    """

    def __init__(
        self, path: str, *, truncate: bool, is_alone: bool = False, write: Callable[[int, bytes], int] = os.write
    ) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        # O_NONBLOCK: a named pipe that nobody reads must not hold the run up. It means nothing for a real file.
        flags |= os.O_NONBLOCK
        self.path = path
        self.fd = os.open(path, flags, 0o600)
        try:
            if is_alone:
                keep_alone(self.fd, path)
            if truncate and stat.S_ISREG(os.fstat(self.fd).st_mode):
                os.ftruncate(self.fd, 0)
        except OSError:
            self.close()
            raise
        self.lost_from = 0
        self.lost_to = 0
        self._write = write
        self.is_torn = False

    def append(self, line: bytes) -> OSError | None:
        """Appends one line, newline included; on an error, which is returned, nothing of it stays."""
        if self.is_torn:
            line = b"\n" + line
        try:
            written = self._write(self.fd, line)
        except OSError as error:
            return error
        if written == len(line):
            self.is_torn = False
            return None
        self._cut(written)
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lose(self, seq: int) -> None:
        """Remembers that this event is not in the file."""
        if not self.lost_from:
            self.lost_from = seq
        self.lost_to = seq

    def close(self) -> None:
        """Closes the file; harmless twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _cut(self, written: int) -> None:
        try:
            os.ftruncate(self.fd, os.fstat(self.fd).st_size - written)
        except OSError:  # a pipe or device: what is out is out, but the next line starts on its own
            self.is_torn = True


class EventLog:
    """Stamps and writes the events of one run.

    Args:
        journal: The runtime's own log.
        copy: The file of `--on-event`, if that is another.
        stamp: What every event carries.
        publisher: The hub.
        clock: Monotonic seconds.
        seq: The last `seq` that is in the journal already.
    """

    def __init__(
        self,
        *,
        journal: LineFile,
        copy: LineFile | None,
        stamp: Stamp,
        publisher: Publisher,
        clock: Callable[[], float],
        seq: int = 0,
    ) -> None:
        self.seq = seq
        self.last_emit_at = clock()
        self._now_ms = 0
        self._journal = journal
        self._files = [("log", journal)] if copy is None else [("log", journal), ("on_event", copy)]
        self._copy = copy
        self._publisher = publisher
        self._clock = clock
        self._run_id = stamp.run_id
        self._runtime_id = stamp.runtime_id or msgspec.UNSET
        self._label = stamp.label or msgspec.UNSET
        self._synced_seq = seq
        self._sync_done: trio.Event | None = None
        self._has_losses = False
        self._is_batching = False
        self._lines: list[bytes] = []
        self._heads: list[EventHead] = []
        self._size = 0

    def emit(self, event: Event) -> None:
        """Stamps, writes and publishes one event. Never raises for a file, never waits."""
        if self._has_losses:
            self._tell_losses()
        line = self._stamp(event)
        cut: list[str] = []
        if len(line) > EVENT_LIMIT_BYTES:
            line, cut = fit(event, line)
        self.seq += 1
        self._lines.append(line)
        self._heads.append(_head(event))
        self._size += len(line)
        if not self._is_batching or self._size > BATCH_LIMIT_BYTES:
            self._flush()
        if cut:
            self.emit(Error(source="log", message=f"event {event.seq} was too long to send: cut {', '.join(cut)}"))

    def record(self, event: Event) -> Callable[[], None]:
        """Stamps and writes one event, and returns what publishes it, to be called before the next is emitted.

        For what others may act on only when more has happened: a reader of the log can see it at once all the same.
        """
        publisher, held = self._publisher, Held()
        self._publisher = held
        try:
            self.emit(event)
        finally:
            self._publisher = publisher
        return lambda: publisher.publish(held.lines, held.heads)

    @contextmanager
    def batch(self) -> Generator[None]:
        """For what came at once and is told at once: all emitted inside has one time, write and publication.

        Invariant: there is no `await` inside, so nobody sees an event late, and none is lost by a kill that would not
        have been lost one by one.
        """
        self._look_at_clocks()
        self._is_batching = not self._has_losses
        try:
            yield
        finally:
            self._is_batching = False
            if self._lines:
                self._flush()

    async def synced(self, seq: int | None = None) -> None:
        """Returns once everything up to `seq` (default: all that was emitted) is on the disk, as far as that takes it.

        One caller syncs for all that wait (group commit), in a worker thread.
        """
        wanted = self.seq if seq is None else seq
        while self._synced_seq < wanted:
            if self._sync_done is not None:
                await self._sync_done.wait()
                continue
            await self._sync()

    def close(self) -> None:
        """Closes the files; nothing may be emitted afterwards."""
        for _, file in self._files:
            file.close()

    def _flush(self) -> None:
        lines, heads = self._lines, self._heads
        self._lines, self._heads, self._size = [], [], 0
        block = b"\n".join(lines) + b"\n"
        new_failures: list[tuple[str, LineFile, OSError]] = []
        for source, file in self._files:
            was_whole = not file.lost_from
            failed = file.append(block)
            if failed is not None:
                _append_singly(file, lines, heads)
                self._has_losses = True
                self._is_batching = False  # a notice must not overtake what would wait for the end of the batch
                if was_whole:
                    new_failures.append((source, file, failed))
        self._publisher.publish([EVENT_PREFIX + line + EVENT_SUFFIX for line in lines], heads)
        # Only now, when every file has what it takes of these lines, may the next line follow them.
        for source, file, failed in new_failures:
            _logger.error("log.write_failed", source=source, path=file.path, error=failed.strerror)
            self.emit(Error(source=source, message=f"cannot write {file.path}: {failed.strerror}"))

    async def _sync(self) -> None:
        reached = self.seq
        done = self._sync_done = trio.Event()
        try:
            await trio.to_thread.run_sync(_fdatasync, self._journal.fd)
        except OSError as error:
            # Said, and gone on with: refusing to work would not make the disk better.
            _logger.error("log.sync_failed", path=self._journal.path, error=str(error))
        finally:
            self._synced_seq = max(self._synced_seq, reached)
            self._sync_done = None
            done.set()

    def _look_at_clocks(self) -> None:
        self._now_ms = time.time_ns() // 1_000_000
        self.last_emit_at = self._clock()

    def _stamp(self, event: Event) -> bytes:
        if not self._is_batching:
            self._look_at_clocks()
        event.seq = self.seq + 1
        event.ts = self._now_ms
        event.run_id = self._run_id
        event.runtime_id = self._runtime_id
        event.run_label = self._label
        return encode_event(event)

    def _tell_losses(self) -> None:
        """For each file with a gap, tries to put the line that says so before whatever comes next."""
        for source, file in self._files:
            if file.lost_from:
                self._tell_loss(source, file)
        self._has_losses = any(file.lost_from for _, file in self._files)

    def _tell_loss(self, source: str, damaged: LineFile) -> None:
        first, last = damaged.lost_from, damaged.lost_to
        notice = Error(
            source=source,
            message=f"events {first} to {last} could not be written to {damaged.path}",
            lost_from=first,
            lost_to=last,
        )
        line = self._stamp(notice)
        if damaged.append(line + b"\n") is not None:
            return  # still full: the notice was never there, and its seq goes to the next event
        self.seq = notice.seq
        damaged.lost_from = damaged.lost_to = 0
        for _, file in self._files:
            if file is not damaged and file.append(line + b"\n") is not None:
                file.lose(notice.seq)
        self._publisher.publish((EVENT_PREFIX + line + EVENT_SUFFIX,), (_head(notice),))


def _append_singly(file: LineFile, lines: list[bytes], heads: list[EventHead]) -> None:
    """After a block did not fit: appends those of its lines that do, and remembers the others."""
    for line, head in zip(lines, heads, strict=True):
        # What comes after a gap is counted as in it: a notice tells one range.
        if len(lines) == 1 or file.is_torn or file.lost_from or file.append(line + b"\n") is not None:
            file.lose(head.seq)


def _head(event: Event) -> EventHead:
    try:
        name = _NAMES[type(event)]
    except KeyError:
        name = _NAMES[type(event)] = event_name(event)
    return EventHead(name, event.seq, event.ts)


def _fdatasync(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # pragma: no cover - macOS
        os.fsync(fd)
