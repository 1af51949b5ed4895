"""What is forgotten after a while, and what never is."""

import errno
import gc
import os
import shutil
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.host.lock import FileLock
from avenor.host.rundir import RunDir
from avenor.protocol.events import MessageChunk, RunEnd, RunStart, encode_event
from avenor.protocol.spec import Record, RunSpec
from avenor.stable.identifiers import Identifiers
from avenor.stable.loading import load_runtimes
from avenor.stable.pruning import Gone, Pruner
from avenor.stable.registry import Registry
from avenor.stable.retention import retain
from tests.helpers import eventually
from tests.stable.kit import SPAWN, Client, FakeLauncher, FakeRuntime, Stable, open_stable

DAY_MS = 24 * 3600 * 1000


def leave(
    tmp_path: Path, runtime_id: str, *, ended_days_ago: float | None = None, events: int = 0, **spec: Any
) -> RunDir:
    """A runtime directory as an earlier supervisor left it: ended so long ago, or without an end."""
    directory = RunDir(tmp_path / "state" / runtime_id)
    directory.path.mkdir(parents=True)
    spec = {"sentinel_file": str(directory.sentinel_path), **spec}
    key, parent_id = spec.pop("key", None), spec.pop("parent_id", None)
    record = Record(
        runtime_id=runtime_id,
        run_id=f"run-{runtime_id}",
        spec=RunSpec(prompt="x", backend="scripted", dir="/", **spec),
        prompt="x",
        key=key,
        parent_id=parent_id,
        parks=True,
    )
    directory.record_path.write_bytes(msgspec.json.encode(record))
    told: list[RunStart | MessageChunk | RunEnd] = [RunStart(kind="single", backend="scripted", dir="/", version="0")]
    told += [MessageChunk(content=msgspec.Raw(b'"x"')) for _ in range(events)]
    if ended_days_ago is not None:
        told.append(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        Path(spec["sentinel_file"]).write_text("OUTCOME=DONE\n")
    now = time.time_ns() // 1_000_000
    for seq, event in enumerate(told, 1):
        event.seq, event.run_id, event.runtime_id = seq, record.run_id, runtime_id
        event.ts = now - int((ended_days_ago or 0) * DAY_MS)
    directory.log_path.write_bytes(b"".join(encode_event(event) + b"\n" for event in told))
    return directory


def directories(tmp_path: Path) -> set[str]:
    """What is in the state directory, but for what belongs to no runtime."""
    return {path.name for path in (tmp_path / "state").iterdir()} - {"lock", "high-water"}


async def listed(client: Client) -> list[str]:
    """The ids that the supervisor knows."""
    return [each["runtime_id"] for each in await client.call("list")]


class FakePruner(Pruner):
    """Notes when it was asked; needs no thread, so that time can be virtual."""

    def __init__(self, problems: list[str]) -> None:
        self.asked: list[tuple[float, float]] = []
        self._problems = problems

    async def prune(self, keep_seconds: float) -> Gone:
        """Nothing is there to go."""
        self.asked.append((trio.current_time(), keep_seconds))
        await trio.lowlevel.checkpoint()
        return Gone([], self._problems)


@pytest.mark.parametrize("problems", [[], ["rt_1 stays: it is bewitched"]])
async def test_it_is_looked_at_the_start_and_every_hour(problems: list[str], autojump_clock: MockClock) -> None:
    """Whatever went wrong the last time."""
    pruner = FakePruner(problems)
    begun = trio.current_time()
    with trio.move_on_after(2.5 * 3600):
        await retain(pruner, 60.0)
    assert [(at - begun, keep) for at, keep in pruner.asked] == [(0.0, 60.0), (3600.0, 60.0), (7200.0, 60.0)]


async def test_what_ended_long_ago_goes_at_the_start_and_nothing_else(tmp_path: Path) -> None:
    """The recent one stays, what lives, what was lost and is settled now, and files that a spawn named elsewhere."""
    mine = {name: str(tmp_path / name) for name in ("mine.done", "mine.ndjson")}
    (tmp_path / "mine.ndjson").write_text("mine\n")
    leave(tmp_path, "rt_1", ended_days_ago=8, sentinel_file=mine["mine.done"], on_event=mine["mine.ndjson"])
    leave(tmp_path, "rt_2", ended_days_ago=6)
    leave(tmp_path, "rt_3")
    lives = leave(tmp_path, "rt_4")
    leave(tmp_path, "rt_9", ended_days_ago=8)
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        alive = launcher.runtimes["rt_4"] = FakeRuntime(lives.path)
        await bodies.start(alive.live)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded, keep=7 * 24 * 3600.0) as stable:
            client = await stable.connect()
            await eventually(lambda: directories(tmp_path) == {"rt_2", "rt_3", "rt_4"})
            assert await listed(client) == ["rt_2", "rt_3", "rt_4"]
            assert (tmp_path / "mine.done").exists()
            assert (tmp_path / "mine.ndjson").read_text() == "mine\n"
            assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_10"
    assert (tmp_path / "state/high-water").read_text() in ("9\n", "10\n")


async def test_without_a_time_only_what_was_begun_is_finished(tmp_path: Path) -> None:
    """A pruning that was killed leaves no runtime with half of its files, and its rest goes at the next start."""
    leave(tmp_path, "rt_1", ended_days_ago=800)
    half = leave(tmp_path, "rt_2", ended_days_ago=800)
    half.log_path.unlink()  # as if removed first: with its record there, it would look like one that was lost
    half.path.rename(half.path.with_name("pruned-rt_2"))
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        async with open_stable(tmp_path, launcher, load_runtimes(tmp_path / "state", launcher.probe)) as stable:
            assert await listed(await stable.connect()) == ["rt_1"]
            await eventually(lambda: directories(tmp_path) == {"rt_1"})


async def ended(stable: Stable, client: Client, **params: Any) -> str:
    """The id of a new runtime that has ended."""
    runtime_id = await stable.spawned(client, **params)
    await client.call("cancel", runtime_id=runtime_id)
    return runtime_id


async def test_a_dry_run_tells_and_does_nothing(tmp_path: Path) -> None:
    """The ids are those that the same call without it would forget."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        await stable.spawned(client)
        assert await client.call("prune", keep=0, dry_run=True) == {"pruned": ["rt_1"]}
        assert await listed(client) == ["rt_1", "rt_2"]
        assert await client.call("prune", keep=0) == {"pruned": ["rt_1"]}
        assert await client.call("prune", keep=0, dry_run=True) == {"pruned": []}


async def test_what_is_queued_is_never_pruned(tmp_path: Path) -> None:
    """It has not even begun, however old it is."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        await client.send("spawn", **SPAWN)
        assert await client.call("prune", keep=0) == {"pruned": []}
        assert await listed(client) == ["rt_1", "rt_2"]


async def test_the_parents_of_one_that_lives_stay_with_it(tmp_path: Path) -> None:
    """The bound of the tree counts from its root; when the last of them has ended, they go."""
    async with open_stable(tmp_path, max_tree=2) as stable:
        client = await stable.connect()
        root = await stable.spawned(client)
        child = await stable.spawned(client, parent_id=root)
        stable.runtime(root).end()
        await client.call("wait", runtime_id=root, until="done")
        grandchild = await stable.spawned(client, parent_id=child)
        stable.runtime(child).end()
        await client.call("wait", runtime_id=child, until="done")
        assert await client.call("prune", keep=0) == {"pruned": []}
        assert (await client.call("status", runtime_id=grandchild))["parent_id"] == child
        await client.call("cancel", runtime_id=grandchild)

        async def may_all_go() -> bool:  # when the ends of those that nobody has cancelled are settled, too
            told: dict[str, object] = await client.call("prune", keep=0, dry_run=True)
            return told == {"pruned": [root, child, grandchild]}

        await eventually(may_all_go)
        assert (await client.call("prune", keep=0))["pruned"] == [root, child, grandchild]


async def test_the_key_of_one_that_is_pruned_is_free(tmp_path: Path) -> None:
    """Asked for again, it gives a new runtime with a new id, and no answer from the old one."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        assert await ended(stable, client, key="k") == "rt_1"
        await client.call("prune", keep=0)
        assert await stable.spawned(client, key="k") == "rt_2"


async def test_one_whose_process_is_still_there_stays(tmp_path: Path) -> None:
    """Its lock is what counts, whatever was thought of it; and it is told."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        await ended(stable, client)
        lock = FileLock(tmp_path / "state/rt_1/lock")
        assert lock.try_acquire()
        refusal = await client.refusal("prune", keep=0)
        assert refusal["data"]["errors"] == ["rt_1 stays: its process is still there"]
        assert refusal["data"]["pruned"] == ["rt_2"]
        assert await listed(client) == ["rt_1"]
        assert directories(tmp_path) == {"rt_1"}
        lock.release()
        assert await client.call("prune", keep=0) == {"pruned": ["rt_1"]}


async def test_one_whose_end_is_still_to_be_settled_stays(tmp_path: Path) -> None:
    """Its socket is there until its tools are swept and its sentinel is written, and its log may not have the end."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        directory = RunDir(tmp_path / "state/rt_1")
        log = directory.log_path.read_bytes()
        for spoil, mend in (
            (directory.socket_path.touch, directory.socket_path.unlink),
            (lambda: directory.log_path.write_bytes(b""), lambda: directory.log_path.write_bytes(log)),
        ):
            spoil()
            refusal = await client.refusal("prune", keep=0)
            assert refusal["data"]["errors"] == ["rt_1 stays: its end is not settled yet"]
            assert await listed(client) == ["rt_1"]
            mend()
        assert await client.call("prune", keep=0) == {"pruned": ["rt_1"]}


async def test_one_whose_directory_somebody_removed_is_forgotten(tmp_path: Path) -> None:
    """There is nothing left to do for it."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        shutil.rmtree(tmp_path / "state/rt_1")
        assert await client.call("prune", keep=0) == {"pruned": ["rt_1"]}
        assert await listed(client) == []


async def test_a_directory_that_cannot_be_renamed_keeps_its_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed and can be read as before; the others go."""
    rename = os.rename

    def refuse(old: Path, new: Path) -> None:
        if old.name == "rt_1":
            raise PermissionError(f"{old} is not yours")
        rename(old, new)

    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        await ended(stable, client)
        monkeypatch.setattr("os.rename", refuse)
        refusal = await client.refusal("prune", keep=0)
        assert "not yours" in refusal["message"]
        assert refusal["data"]["pruned"] == ["rt_2"]
        assert await listed(client) == ["rt_1"]
        assert (await client.call("history", runtime_id="rt_1"))["events"]


async def test_files_that_cannot_be_removed_are_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runtime is gone all the same, for every later supervisor too."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)

        def refuse(path: Path) -> None:
            raise PermissionError(f"{path} is busy")

        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", refuse)
            refusal = await client.refusal("prune", keep=0)
        assert "pruned-rt_1" in refusal["message"]
        assert refusal["data"]["retryable"] is True
        assert await listed(client) == []
        assert load_runtimes(tmp_path / "state", stable.launcher.probe) == []
        assert await client.call("prune", keep=0) == {"pruned": []}
        assert directories(tmp_path) == set()


async def test_nothing_goes_before_the_highest_id_is_noted(tmp_path: Path) -> None:
    """Else an id could come back after a restart."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await ended(stable, client)
        mark = tmp_path / "state/high-water"
        mark.unlink()
        mark.mkdir()
        refusal = await client.refusal("prune", keep=0)
        assert "nothing was removed" in refusal["message"]
        assert await listed(client) == ["rt_1"]
        mark.rmdir()
        assert await client.call("prune", keep=0) == {"pruned": ["rt_1"]}
        assert Identifiers(tmp_path / "state").allocate()[0] == "rt_2"


async def test_two_prunings_at_once_forget_each_runtime_once(tmp_path: Path) -> None:
    """The second waits for the first, and finds nothing left."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        for _ in range(5):
            await ended(stable, client)
        asked = [await client.send("prune", keep=0) for _ in range(3)]
        answers = [(await client.answer(each))["result"]["pruned"] for each in asked]
        assert sorted(each for pruned in answers for each in pruned) == [f"rt_{number}" for number in range(1, 6)]


async def test_those_who_read_what_is_pruned_get_an_answer(tmp_path: Path) -> None:
    """`history` and a replay that are under way end with what was there, a notice of what was not, or a refusal."""
    leave(tmp_path, "rt_1", ended_days_ago=1, events=20_000)
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            reader, other = await stable.connect(), await stable.connect()
            await reader.call("subscribe", runtime_id="rt_1", replay=True)
            asked = [await other.send("history", runtime_id="rt_1", after_seq=seq * 1000) for seq in range(20)]
            pruned = await other.send("prune", keep=0)
            asked += [await other.send("history", runtime_id="rt_1", after_seq=seq * 1000) for seq in range(20)]
            assert (await other.answer(pruned))["result"] == {"pruned": ["rt_1"]}
            for each in asked:
                answer = await other.answer(each)
                assert "result" in answer or answer["error"]["data"]["reason"] == "no_such_runtime"
            await eventually(lambda: has_all(reader, 20_002))
            assert [each["seq"] for each in reader.events] == list(range(1, len(reader.events) + 1))


async def has_all(reader: Client, count: int) -> bool:
    """Whether so many events have come, or were told as missed."""
    await reader.call("ping")
    missed: int = sum(notice["dropped_count"] for notice in reader.notices)
    return len(reader.events) + missed == count


async def test_a_client_that_follows_everything_does_not_keep_what_is_pruned(tmp_path: Path) -> None:
    """Neither of what it had before, nor of what it was still reading; else a board that stays open costs ever more."""
    leave(tmp_path, "rt_1", ended_days_ago=1, events=20_000)
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            board, client = await stable.connect(), await stable.connect()
            await board.call("subscribe", replay=True, on_lag="disk")
            await ended(stable, client)
            hubs = weakref.WeakSet(stable.registry.all_hubs())
            assert len((await client.call("prune", keep=0))["pruned"]) == 2

            async def are_gone() -> bool:
                await board.call("ping")
                gc.collect()
                return not hubs

            await eventually(are_gone)
            await stable.spawned(client)
            await board.wait_event("turn.start")
            assert board.events[-1]["runtime_id"] == "rt_3"


async def test_a_supervisor_without_descriptors_is_not_ended_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be looked through now is told, and looked through the next time."""

    def none_left(_path: Path, _pattern: str) -> list[Path]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    tmp_path.joinpath("state").mkdir()
    pruner = Pruner(Registry(), Identifiers(tmp_path / "state"), tmp_path / "state")
    monkeypatch.setattr(Path, "glob", none_left)
    (told,) = await pruner.remove_left()
    assert "Too many open files" in told
    await retain(pruner, None)
