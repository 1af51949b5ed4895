"""The end of a runtime that cannot tell it itself."""

import contextlib
import errno
import os
from pathlib import Path

import msgspec
import pytest

from avenor.host.lock import FileLock
from avenor.host.rundir import RunDir
from avenor.protocol.events import Error, RunEnd, RunStart, SessionStart, decode_event, encode_event
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import Record, RunSpec
from avenor.stable.settle import StillAlive, bridge, is_unfinished, killed_outcome, lost_outcome, settle
from tests.runtimes.manifest_rig import seed

LOST = Outcome.of("runtime_lost", run_id="r1", session_id="s1", reason="gone")


def make(tmp_path: Path, *, on_event: str | None = None) -> tuple[RunDir, Record]:
    """A runtime directory with a record."""
    directory = RunDir(tmp_path / "rt_1")
    directory.path.mkdir()
    spec = RunSpec(prompt="x", sentinel_file=str(directory.sentinel_path), on_event=on_event, label="L")
    return directory, Record(runtime_id="rt_1", run_id="r1", spec=spec, prompt="x", parks=True)


def log(directory: RunDir, *events: RunStart | SessionStart | RunEnd, tail: bytes = b"") -> None:
    """Write a log with these events and a torn tail."""
    lines: list[bytes] = []
    for seq, event in enumerate(events, 1):
        event.seq, event.run_id = seq, "r1"
        lines.append(encode_event(event) + b"\n")
    directory.log_path.write_bytes(b"".join(lines) + tail)


START = RunStart(kind="single", backend="scripted", dir="/", version="0")


def test_a_lost_runtime_gets_its_end_after_the_torn_tail_is_cut(tmp_path: Path) -> None:
    """The next seq, whole lines, stamped as the runtime would have; and the sentinel."""
    directory, record = make(tmp_path)
    log(directory, START, SessionStart(backend="scripted", dir="/", session_id="s1"), tail=b'{"event":"turn.st')
    settle(directory, record, LOST)
    *_, last = directory.log_path.read_bytes().splitlines()
    end = decode_event(last)
    assert isinstance(end, RunEnd)
    assert (end.seq, end.stop_reason, end.status, end.runtime_id, end.run_label) == (
        3,
        "runtime_lost",
        "FAILED",
        "rt_1",
        "L",
    )
    told = parse_sentinel(directory.sentinel_path.read_text())
    assert (told.status, told.stop_reason, told.session_id, told.run_id) == ("FAILED", "runtime_lost", "s1", "r1")


def test_an_end_that_was_logged_stands(tmp_path: Path) -> None:
    """The sentinel is written from it where it is due, and only there: one that is missing may have been read."""
    directory, record = make(tmp_path)
    session = SessionStart(backend="scripted", dir="/", session_id="s7")
    log(directory, START, session, RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    before = directory.log_path.read_bytes()
    directory.note_sentinel(is_due=True)
    assert settle(directory, record, LOST).status == "DONE"
    assert directory.log_path.read_bytes() == before
    assert parse_sentinel(directory.sentinel_path.read_text()).session_id == "s7"
    directory.sentinel_path.unlink()
    directory.socket_path.touch()
    settle(directory, record, LOST)
    assert not directory.sentinel_path.exists()


@pytest.mark.parametrize("is_due", [False, True])
def test_what_a_runtime_has_told_itself_is_told_again_only_where_it_is_due(tmp_path: Path, is_due: bool) -> None:
    """One that was parked when it was ended has written its sentinel, unless there was no room for it."""
    directory, record = make(tmp_path)
    log(directory, START)
    if is_due:
        directory.note_sentinel(is_due=True)
    parked = Outcome.of("end_turn", run_id="r1")
    assert settle(directory, record, parked, is_told=True).status == "DONE"
    assert directory.sentinel_path.exists() is is_due
    assert not directory.is_sentinel_due()


def test_a_sentinel_without_room_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the log has the end by then; one that can never be written is given up."""
    directory, record = make(tmp_path)
    for number, is_due in ((errno.ENOSPC, True), (errno.EACCES, False)):

        def fail(_path: str, _outcome: Outcome, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr("avenor.stable.settle.write_sentinel", fail)
            with pytest.raises(OSError, match="No space") if is_due else contextlib.nullcontext():
                settle(directory, record, LOST)
        assert (directory.is_sentinel_due(), is_unfinished(directory)) == (is_due, is_due)
        assert not directory.sentinel_path.exists()


def test_a_runtime_that_lives_is_not_settled(tmp_path: Path) -> None:
    """Only the holder of the lock may write."""
    directory, record = make(tmp_path)
    lock = FileLock(directory.lock_path)
    assert lock.try_acquire()
    with pytest.raises(StillAlive):
        settle(directory, record, LOST)
    assert not directory.log_path.exists()
    lock.release()


def test_the_copy_of_the_log_gets_the_end_too(tmp_path: Path) -> None:
    """`--on-event` elsewhere has errors of its own, which do not matter here."""
    copy = tmp_path / "copy.ndjson"
    directory, record = make(tmp_path, on_event=str(copy))
    settle(directory, record, LOST)
    assert copy.read_bytes() == directory.log_path.read_bytes()
    missing = msgspec.structs.replace(record.spec, on_event=str(tmp_path / "no/such/dir"))
    directory.log_path.unlink()
    settle(directory, msgspec.structs.replace(record, spec=missing), LOST)
    assert directory.log_path.exists()


def test_what_never_came_up_is_told_apart_from_what_was_lost(tmp_path: Path) -> None:
    """With the exit status, where that is known."""
    _, record = make(tmp_path)
    never = lost_outcome(record, None, status=-9, was_up=False)
    lost = lost_outcome(record, "s1", status=None, was_up=True)
    assert (never.stop_reason, lost.stop_reason, lost.session_id) == ("launch_lost", "runtime_lost", "s1")
    assert "-9" in (never.reason or "")


def test_a_parked_runtime_that_we_kill_keeps_its_outcome(tmp_path: Path) -> None:
    """A running one was cancelled."""
    _, record = make(tmp_path)
    parked = killed_outcome(record, Snapshot(status="idle", stop_reason="end_turn"))
    running = killed_outcome(record, Snapshot(status="running"))
    assert (parked.status, running.status) == ("DONE", "KILLED")


def test_what_a_killed_runtime_left_for_a_moment_goes_with_it(tmp_path: Path) -> None:
    """Its socket, half-written files, scratch folders, and a question that nobody waits for any more."""
    directory, record = make(tmp_path)
    base = str(directory.sentinel_path) + ".perm"
    spec = msgspec.structs.replace(record.spec, permission_handler=f"file:{base}")
    log(directory, START)
    for path in (f"{base}.req", f"{base}.lock", directory.socket_path, directory.path / ".avenor-0.tmp"):
        Path(path).touch()
    (directory.path / "avenor-git-x").mkdir()
    settle(directory, msgspec.structs.replace(record, spec=spec), LOST)
    assert sorted(path.name for path in directory.path.iterdir()) == ["events.ndjson", "lock", "sentinel.env"]


def test_a_settlement_that_was_cut_short_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that never came up has no socket; until all is told something stands in its place."""
    directory, record = make(tmp_path)

    def die(_path: str, _outcome: Outcome) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("avenor.stable.settle.write_sentinel", die)
        with pytest.raises(KeyboardInterrupt):
            settle(directory, record, LOST)
    assert directory.socket_path.exists()
    assert not directory.sentinel_path.exists()
    settle(directory, record, LOST)
    assert directory.sentinel_path.exists()
    assert not directory.socket_path.exists()


def test_events_that_a_full_disk_kept_out_are_told_before_another_process_goes_on(tmp_path: Path) -> None:
    """So the next number is one that nobody has seen; twice, or where nothing is missing, nothing is told."""
    directory, record = make(tmp_path)
    log(directory, START, tail=b'{"event":"turn.st')
    for _ in range(2):
        bridge(directory, record, 7)
    _, told = (decode_event(line) for line in directory.log_path.read_bytes().splitlines())
    assert isinstance(told, Error)
    assert (told.seq, told.lost_from, told.lost_to) == (8, 2, 7)


def test_nobody_writes_beside_a_living_runtime(tmp_path: Path) -> None:
    """Its lock says that it lives."""
    directory, record = make(tmp_path)
    lock = FileLock(directory.lock_path)
    assert lock.try_acquire()
    with pytest.raises(StillAlive):
        bridge(directory, record, 7)
    lock.release()


@pytest.mark.parametrize(("unsandboxed", "kept"), [(False, ["writer.1"]), (True, ["planner.1", "writer.1"])])
def test_a_lost_manifest_run_leaves_what_its_writers_have_changed(
    tmp_path: Path, unsandboxed: bool, kept: list[str]
) -> None:
    """Once what it has started is ended, and no sooner, all else goes; without a sandbox everybody may write."""
    directory, record = make(tmp_path)
    record = msgspec.structs.replace(
        record, config=seed(), spec=msgspec.structs.replace(record.spec, unsandboxed=unsandboxed)
    )
    names = ["planner.1", "receipt-1", "writer.1"]
    for place in ("private", "worktrees"):
        for name in names:
            (directory.path / place / name).mkdir(parents=True)
    settle(directory, record, LOST, is_swept=False)
    assert sorted(path.name for path in (directory.path / "worktrees").iterdir()) == names
    settle(directory, record, LOST)
    assert sorted(path.name for path in (directory.path / "worktrees").iterdir()) == kept
    assert not (directory.path / "private").exists()


def test_what_cannot_be_looked_at_counts_as_unfinished(tmp_path: Path) -> None:
    """Whoever settles it tries again."""
    directory = RunDir(tmp_path)
    assert not is_unfinished(directory)
    directory.lock_path.mkdir()
    assert is_unfinished(directory)
