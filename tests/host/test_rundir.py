"""The runtime's directory."""

import os
from pathlib import Path

import pytest

from avenor.host.identity import is_alive, process_id
from avenor.host.lock import FileLock, is_locked
from avenor.host.rundir import RunDir


def test_the_names_are_fixed() -> None:
    """Supervisors of other versions, and people, find the files by name."""
    run_dir = RunDir("/state/rt_1")
    paths = [
        run_dir.record_path,
        run_dir.lock_path,
        run_dir.process_path,
        run_dir.socket_path,
        run_dir.log_path,
        run_dir.sentinel_path,
        run_dir.stderr_path,
        run_dir.procs_path,
    ]
    assert [str(path) for path in paths] == [
        "/state/rt_1/record.json",
        "/state/rt_1/lock",
        "/state/rt_1/process.json",
        "/state/rt_1/control.sock",
        "/state/rt_1/events.ndjson",
        "/state/rt_1/sentinel.env",
        "/state/rt_1/stderr.log",
        "/state/rt_1/procs",
    ]
    assert repr(run_dir) == "RunDir('/state/rt_1')"


def test_the_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """It holds prompts and environment, so it is the user's only; without one there is none."""
    run_dir = RunDir(tmp_path)
    assert run_dir.read_record() is None
    run_dir.write_record(b'{"prompt":"hi"}')
    assert run_dir.read_record() == b'{"prompt":"hi"}'
    assert run_dir.record_path.stat().st_mode & 0o777 == 0o600


def test_whether_the_sentinel_is_due_is_noted_in_the_lock_file(tmp_path: Path) -> None:
    """Whoever holds the lock keeps it, and nothing else is made; where nothing was noted it is not due."""
    run_dir = RunDir(tmp_path)
    assert not run_dir.is_sentinel_due()
    lock = FileLock(run_dir.lock_path)
    assert lock.try_acquire()
    assert not run_dir.is_sentinel_due()
    assert not run_dir.is_sentinel_told()
    for is_due in (True, False, True):
        run_dir.note_sentinel(is_due=is_due)
        assert run_dir.is_sentinel_due() is is_due
        assert run_dir.is_sentinel_told() is not is_due
    assert is_locked(run_dir.lock_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert run_dir.lock_path.stat().st_size == 1
    lock.release()


def test_whether_the_sentinel_is_due_is_not_guessed(tmp_path: Path) -> None:
    """What cannot be read, as without descriptors, is an error: a guess could lose a sentinel."""
    run_dir = RunDir(tmp_path)
    run_dir.lock_path.mkdir()
    with pytest.raises(IsADirectoryError):
        run_dir.is_sentinel_due()


def test_what_a_killed_process_made_for_a_moment_goes(tmp_path: Path) -> None:
    """Half-written files and scratch folders; what is to stay, and what others put there, is left alone."""
    run_dir = RunDir(tmp_path)
    run_dir.write_record(b"{}")
    kept = ["events.ndjson", ".avenor-notes", "mine.tmp"]
    for name in [*kept, ".avenor-0123456789abcdef.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / "avenor-git-abc" / "objects").mkdir(parents=True)
    run_dir.clear_passing()
    run_dir.clear_passing()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "record.json"])


def test_a_runtime_writes_down_which_process_it_is(tmp_path: Path) -> None:
    """The identity read back is this process's."""
    run_dir = RunDir(tmp_path)
    assert run_dir.read_process() is None
    written = run_dir.write_process()
    assert run_dir.read_process() == written == process_id(os.getpid())
    assert is_alive(written)


def test_a_damaged_process_file_names_nobody(tmp_path: Path) -> None:
    """Torn, empty or of another shape: nobody will be signalled for it."""
    run_dir = RunDir(tmp_path)
    for text in ("", '{"pid": 1', '{"pid": 1}', '{"pid":"1","start_ticks":2,"boot_id":"b"}'):
        run_dir.process_path.write_text(text)
        assert run_dir.read_process() is None


def test_the_process_file_of_this_version_stays_readable(tmp_path: Path) -> None:
    """A sample as it lies on users' disks."""
    run_dir = RunDir(tmp_path)
    run_dir.process_path.write_text('{"pid":4711,"start_ticks":81234,"boot_id":"6d6f-01"}')
    found = run_dir.read_process()
    assert found is not None
    assert (found.pid, found.start_ticks, found.boot_id) == (4711, 81234, "6d6f-01")
