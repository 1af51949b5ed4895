"""The sentinel file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from avenor.host import sentinelfile
from avenor.host.lock import FileLock
from avenor.host.sentinelfile import Sentinel, clear_stale, remove_sentinel, write_sentinel
from avenor.protocol.outcomes import Outcome, parse_sentinel

DONE = Outcome.of("end_turn", run_id="r1", session_id="s2")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's state is."""
    path = tmp_path_factory.mktemp("home") / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(path))
    return path


def test_the_file_tells_the_outcome(tmp_path: Path) -> None:
    """Its text is the protocol's, its mode private, and a later outcome replaces it."""
    path = tmp_path / "x.done"
    write_sentinel(path, Outcome.of("cancelled", run_id="r1", session_id="s1"))
    assert path.read_bytes() == b"KILLED\nSESSION=s1\nSTOP_REASON=cancelled\nEXIT_CODE=130\nRUN=r1\n"
    assert path.stat().st_mode & 0o777 == 0o600
    write_sentinel(path, DONE)
    assert parse_sentinel(path.read_text()) == DONE


def test_values_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    """An agent may choose a session id that UTF-8 cannot hold."""
    path = tmp_path / "x.done"
    write_sentinel(path, Outcome.of("end_turn", run_id="r1", session_id="a\ud800b"))
    assert "SESSION=a?b" in path.read_text()


def test_the_sentinel_of_a_run_that_lives_is_nobody_elses(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another run nor who tells of one that failed gets it, until it is given up, by whatever way they come."""
    monkeypatch.setattr(sentinelfile, "MOMENT_SECONDS", 0.0)
    (tmp_path / "link").symlink_to(tmp_path)
    path = tmp_path / "x.done"
    path.write_text("of the run that lives")
    sentinel = Sentinel(path)
    sentinel.keep()
    sentinel.keep()
    refused = partial(pytest.raises, OSError, match=r"in use by another run.*x\.done")
    with refused():
        Sentinel(tmp_path / "link" / "x.done").keep()
    waits: list[float] = []

    def try_once(seconds: float, try_acquire: Callable[[], bool]) -> bool:
        waits.append(seconds)
        return try_acquire()

    monkeypatch.setattr(sentinelfile, "acquired_within", try_once)
    monkeypatch.setattr(sentinelfile, "MOMENT_SECONDS", 2.0)
    with refused():
        write_sentinel(path, DONE)
    with refused():
        remove_sentinel(path)
    assert waits == [0.0, 0.0]  # one that is about to end has the last word
    assert path.read_text() == "of the run that lives"
    sentinel.give_up()
    sentinel.give_up()
    write_sentinel(path, DONE)
    assert parse_sentinel(path.read_text()) == DONE
    remove_sentinel(path)
    assert not path.exists()
    assert list(state.rglob("sentinels/*")) == []


def test_no_lock_is_made_where_none_can_be_or_none_is_needed(tmp_path: Path, state: Path) -> None:
    """A state that cannot be written to keeps no run from its sentinel; a run's own directory is locked already."""
    Sentinel(tmp_path / "sentinel.env", is_private=True).keep()
    assert not state.exists()
    state.touch()
    for _ in range(2):
        Sentinel(tmp_path / "x.done").keep()
    write_sentinel(tmp_path / "x.done", DONE)
    assert (tmp_path / "x.done").exists()


def test_a_new_run_finds_nothing_of_the_last_one(tmp_path: Path) -> None:
    """Sentinel, request and answer go; what else is there stays."""
    for name in ("x.done", "x.perm.req", "x.perm.req.response", "x.perm.req.response.late", "x"):
        (tmp_path / name).write_text("stale")
    clear_stale(tmp_path / "x.done", tmp_path / "x.perm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.perm.req.response.late"]
    clear_stale(tmp_path / "x.done", tmp_path / "x.perm")
    clear_stale(None, None)


def test_the_lock_of_one_that_was_killed_while_it_asked_goes(tmp_path: Path) -> None:
    """That of one that asks at this moment stays, and so does its question."""
    base = tmp_path / "x.perm"
    lock = FileLock(f"{base}.lock")
    assert lock.try_acquire()
    (tmp_path / "x.perm.req").write_text("asked")
    clear_stale(None, base)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.perm.lock", "x.perm.req"]
    lock.release()
    clear_stale(None, base)
    assert list(tmp_path.iterdir()) == []


def test_one_path_that_cannot_be_cleared_does_not_keep_the_others(tmp_path: Path) -> None:
    """The error is told after all were tried."""
    (tmp_path / "x.done").mkdir()
    (tmp_path / "x.perm.req").write_text("stale")
    with pytest.raises(OSError, match=r"x\.done"):
        clear_stale(tmp_path / "x.done", tmp_path / "x.perm")
    assert not (tmp_path / "x.perm.req").exists()


def test_a_base_at_which_nobody_can_look_does_not_keep_the_sentinel(tmp_path: Path) -> None:
    """Too long a name: the sentinel of the last run is not believed all the same."""
    (tmp_path / "x.done").write_text("stale")
    with pytest.raises(OSError, match="too long"):
        clear_stale(tmp_path / "x.done", tmp_path / ("x" * 255))
    assert list(tmp_path.iterdir()) == []
