"""The list of processes that a runtime has started, kept so that they can be swept after the runtime's own crash."""

import os
from pathlib import Path

import msgspec

from avenor.host.identity import ProcessId


class StartedProcess(msgspec.Struct, frozen=True):
    """One process that a runtime started, as a line of its `procs` file. Tolerant: later versions may add members.

    Attributes:
        pgid: The process group it was started in; its own pid when it leads a session.
    """

    pid: int
    start_ticks: int
    boot_id: str
    pgid: int

    @property
    def id(self) -> ProcessId:
        """The process that is meant."""
        return ProcessId(self.pid, self.start_ticks, self.boot_id)


_DECODER = msgspec.json.Decoder(StartedProcess)


class ProcsFile:
    """An append-only file (0600), a JSON line for each process; written by the runtime, read by whoever sweeps."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def append(self, process: ProcessId, pgid: int) -> None:
        """Note a process, before it is given any work. It outlives our crash, though not the machine's.

        Raises:
            OSError: It could not be noted; the file is as it was.
        """
        line = StartedProcess(process.pid, process.start_ticks, process.boot_id, pgid)
        data = msgspec.json.encode(line) + b"\n"
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            try:
                if os.write(fd, data) == len(data):
                    return
                raise OSError(f"no room to note process {process.pid} in {self._path}")
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)

    def read(self) -> list[StartedProcess]:
        """All processes noted so far, dead ones too; torn or foreign lines are skipped, no file is no process.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [started for line in lines if (started := _decode(line)) is not None]


def _decode(line: bytes) -> StartedProcess | None:
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
