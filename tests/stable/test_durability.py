"""Records on their way to the disk."""

from pathlib import Path

import pytest
import trio

from avenor.host.rundir import RunDir
from avenor.stable import durability
from avenor.stable.durability import Durability
from avenor.stable.identifiers import Identifiers


def _accepted(identifiers: Identifiers) -> RunDir:
    directory = RunDir(identifiers.allocate()[1])
    directory.record_path.write_bytes(b"{}")
    return directory


def _note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    synced: list[str] = []

    def note(directory: RunDir) -> None:
        synced.append(directory.path.name)

    monkeypatch.setattr(durability, "sync_record", note)
    return synced


async def test_a_crowd_of_records_goes_to_the_disk_in_two_trips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for while the first is on its way goes together."""
    identifiers = Identifiers(tmp_path)
    synced = _note_syncs(monkeypatch)
    marks: list[int] = []
    monkeypatch.setattr(identifiers, "write_mark", lambda: marks.append(len(synced)))
    under_test = Durability(identifiers)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(under_test.sync, _accepted(identifiers))
    assert len(set(synced)) == len(synced) == 20
    assert marks == [1, 20]


async def test_a_record_that_cannot_be_synced_fails_alone(tmp_path: Path) -> None:
    """Its companions are on the disk all the same."""
    identifiers = Identifiers(tmp_path)
    under_test = Durability(identifiers)
    failures: list[str] = []

    async def sync(directory: RunDir) -> None:
        try:
            await under_test.sync(directory)
        except OSError:
            failures.append(directory.path.name)

    directories = [_accepted(identifiers) for _ in range(3)]
    directories[2].record_path.unlink()
    async with trio.open_nursery() as nursery:
        for directory in directories:
            nursery.start_soon(sync, directory)
    assert failures == ["rt_3"]
    assert (tmp_path / "high-water").read_text() == "3\n"


async def test_a_cancelled_sync_leaves_its_companions_to_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is left of a batch carries it out."""
    identifiers = Identifiers(tmp_path)
    synced = _note_syncs(monkeypatch)
    under_test = Durability(identifiers)
    first, second = _accepted(identifiers), _accepted(identifiers)
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        await under_test.sync(first)
    await under_test.sync(second)
    assert cancelled.cancelled_caught
    assert synced[-1] == "rt_2"
