"""The list of started processes."""

import os
from pathlib import Path

import pytest

from avenor.host.identity import ProcessId
from avenor.host.procs import ProcsFile, StartedProcess


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    """Identity and group come back; the file is the user's only."""
    procs = ProcsFile(tmp_path / "procs")
    assert procs.read() == []
    procs.append(ProcessId(10, 111, "boot"), 10)
    ProcsFile(tmp_path / "procs").append(ProcessId(11, 222, "boot"), 10)
    assert procs.read() == [StartedProcess(10, 111, "boot", 10), StartedProcess(11, 222, "boot", 10)]
    assert procs.read()[1].id == ProcessId(11, 222, "boot")
    assert (tmp_path / "procs").stat().st_mode & 0o777 == 0o600


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    """A crash in the midst of a line loses that line only; members of later versions are ignored."""
    path = tmp_path / "procs"
    path.write_bytes(
        b'{"pid":1,"start_ticks":2,"boot_id":"b","pgid":1,"cgroup":"x"}\n\n{"pid":7}\nnonsense\xff\n'
        b'{"pid":3,"start_ticks":4,"boot_id":"b","pgid":3}\n{"pid":5,"start_ti'
    )
    assert [started.pid for started in ProcsFile(path).read()] == [1, 3]


def test_a_line_that_found_no_room_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next line would otherwise be fused with it."""
    procs = ProcsFile(tmp_path / "procs")
    procs.append(ProcessId(10, 111, "boot"), 10)
    write = os.write

    def short_write(fd: int, data: bytes) -> int:
        return write(fd, data[:5])

    monkeypatch.setattr(os, "write", short_write)
    with pytest.raises(OSError, match="no room to note process 11"):
        procs.append(ProcessId(11, 222, "boot"), 11)
    monkeypatch.undo()
    procs.append(ProcessId(12, 333, "boot"), 12)
    assert [started.pid for started in procs.read()] == [10, 12]
