"""A runtime's directory: which file is where, and the two small ones that say what was asked and who does it."""

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from avenor.host.atomic import remove_unfinished, write_atomic
from avenor.host.identity import ProcessId, process_id

# Made for looks at a repository; see `avenor.runtimes.gitdelta`.
_SCRATCH: Final = "avenor-git-"
_DUE: Final = b"d"
_TOLD: Final = b"-"

_PROCESS = msgspec.json.Decoder(ProcessId)


class RunDir:
    """The names in a runtime's directory. Nothing is made or opened by asking for a name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def record_path(self) -> Path:
        """What was asked for: the run's settings, prompts and environment. No record = never accepted."""
        return self.path / "record.json"

    @property
    def lock_path(self) -> Path:
        """Held by the runtime for life; only the holder writes log, outcome and sentinel. See `note_sentinel`."""
        return self.path / "lock"

    @property
    def queued_path(self) -> Path:
        """Is there from before the record until the run gets its place, so that the next supervisor queues it again."""
        return self.path / "queued"

    @property
    def process_path(self) -> Path:
        """Which process holds the lock; serves only to signal it."""
        return self.path / "process.json"

    @property
    def socket_path(self) -> Path:
        """The runtime's control socket."""
        return self.path / "control.sock"

    @property
    def log_path(self) -> Path:
        """The event log, a run's journal."""
        return self.path / "events.ndjson"

    @property
    def sentinel_path(self) -> Path:
        """The sentinel, where the run named no other."""
        return self.path / "sentinel.env"

    @property
    def stderr_path(self) -> Path:
        """The runtime's own standard error."""
        return self.path / "stderr.log"

    @property
    def procs_path(self) -> Path:
        """The processes that the runtime started; see `avenor.host.procs`."""
        return self.path / "procs"

    def write_record(self, data: bytes) -> None:
        """Write the record, durably: once this has returned, the run is accepted.

        Raises:
            OSError: It could not be written; there is no record, or still the old one.
        """
        write_atomic(self.record_path, data)

    def read_record(self) -> bytes | None:
        """The record as it was written; None when there is none.

        Raises:
            OSError: It is there and cannot be read.
        """
        try:
            return self.record_path.read_bytes()
        except FileNotFoundError:
            return None

    def clear_passing(self) -> None:
        """Remove what a killed process had made here for a moment; only the lock's holder may. What resists stays."""
        remove_unfinished(self.path)
        for name in os.listdir(self.path):
            if name.startswith(_SCRATCH):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def note_sentinel(self, *, is_due: bool) -> None:
        """Note whether the sentinel is still to be written: a missing one may have been read and taken away.

        It is a byte in the lock file, since a file for it, made and deleted, would cost every run more.

        Raises:
            OSError: It could not be noted.
        """
        fd = os.open(self.lock_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, _DUE if is_due else _TOLD)
        finally:
            os.close(fd)

    def is_sentinel_due(self) -> bool:
        """Whether `note_sentinel` noted last that it is still to be written.

        Raises:
            OSError: The note is there and cannot be read.
        """
        return self._read_mark() == _DUE

    def is_sentinel_told(self) -> bool:
        """Whether `note_sentinel` noted last that it is written; it may have been taken away since.

        Raises:
            OSError: The note is there and cannot be read.
        """
        return self._read_mark() == _TOLD

    def write_process(self) -> ProcessId:
        """Write down that this process is the runtime; the lock is taken first.

        Raises:
            OSError: It could not be written.
        """
        own = process_id(os.getpid())
        assert own is not None  # we run, so we can be found
        # Not durable: a power failure ends the process that it names.
        write_atomic(self.process_path, msgspec.json.encode(own), durable=False)
        return own

    def read_process(self) -> ProcessId | None:
        """The process that wrote itself down last, alive or dead; None when none did or the file is damaged.

        Raises:
            OSError: It is there and cannot be read.
        """
        try:
            return _PROCESS.decode(self.process_path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _read_mark(self) -> bytes:
        try:
            with open(self.lock_path, "rb", buffering=0) as file:
                return file.read(1)
        except FileNotFoundError:
            return b""
