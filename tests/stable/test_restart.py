"""A new supervisor on the state directory of an earlier one."""

import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trio

from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import write_sentinel
from avenor.protocol.events import RunEnd, RunEnding, RunStart, SessionStart, TurnEnd, encode_event
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.snapshot import Fold
from avenor.protocol.spec import Record, RunSpec
from avenor.stable import loading, supervision
from avenor.stable.loading import fold_log, load_runtimes
from avenor.stable.runtime import Stage
from tests.helpers import eventually
from tests.stable.kit import SPAWN, FakeLauncher, FakeRuntime, open_stable


def leave(
    tmp_path: Path,
    runtime_id: str,
    *events: RunStart | SessionStart | TurnEnd | RunEnding | RunEnd,
    key: str | None = None,
    on_crash: Literal["fail", "resume"] = "fail",
    parent_id: str | None = None,
) -> RunDir:
    """A runtime directory as an earlier supervisor left it."""
    directory = RunDir(tmp_path / "state" / runtime_id)
    directory.path.mkdir(parents=True)
    spec = RunSpec(prompt="x", backend="scripted", dir="/", sentinel_file=str(directory.sentinel_path))
    record = Record(
        runtime_id=runtime_id,
        run_id=f"run-{runtime_id}",
        spec=spec,
        prompt="x",
        key=key,
        parks=True,
        on_crash=on_crash,
        parent_id=parent_id,
    )
    directory.record_path.write_bytes(msgspec.json.encode(record))
    for seq, event in enumerate(events, 1):
        event.seq, event.ts, event.run_id = seq, seq, record.run_id
    directory.log_path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    return directory


def start() -> RunStart:
    """The first event of a run."""
    return RunStart(kind="single", backend="scripted", dir="/", version="0")


async def test_ended_runtimes_are_listed_with_their_real_outcome(tmp_path: Path) -> None:
    """From their logs, history and result included."""
    leave(
        tmp_path,
        "rt_1",
        start(),
        TurnEnd(stop_reason="refusal", final_output="no"),
        RunEnd(status="FAILED", exit_code=2, stop_reason="refusal"),
    )
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            client = await stable.connect()
            (listed,) = await client.call("list")
            assert (listed["status"], listed["outcome"], listed["exit_code"]) == ("ended", "FAILED", 2)
            assert (listed["run_id"], listed["final_output"], listed["started_at"]) == ("run-rt_1", "no", 1)
            assert (await client.call("result", runtime_id="rt_1"))["final_output"] == "no"
            history = await client.call("history", runtime_id="rt_1")
            assert [event["seq"] for event in history["events"]] == [1, 2, 3]
            assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_2"


async def test_a_runtime_that_was_lost_meanwhile_is_settled(tmp_path: Path) -> None:
    """One that never came up is told apart from one that died; neither is started again."""
    lost = leave(tmp_path, "rt_1", start())
    never = leave(tmp_path, "rt_2")
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            client = await stable.connect()
            await eventually(lambda: not stable.registry.live)
            reasons = [parse_sentinel(each.sentinel_path.read_text()).stop_reason for each in (lost, never)]
            assert reasons == ["runtime_lost", "launch_lost"]
            assert [each["outcome"] for each in await client.call("list")] == ["FAILED", "FAILED"]
            assert launcher.runtimes == {}


async def test_a_runtime_that_lives_on_is_neither_killed_nor_doubled(tmp_path: Path) -> None:
    """It keeps its id and process, all its events come, and it can be steered."""
    directory = leave(tmp_path, "rt_3", key="k")
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        alive = launcher.runtimes["rt_3"] = FakeRuntime(directory.path)
        await bodies.start(alive.live)
        alive.begin("ses_old")
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            client = await stable.connect()
            spawned = await client.call("spawn", **SPAWN, key="k")
            assert (spawned["runtime_id"], spawned["session_id"]) == ("rt_3", "ses_old")
            status = await client.call("status")
            assert (status["pid"], status["latest_seq"], status["status"]) == (alive.body.pid, 3, "running")
            await client.call("prompt", text="go on")
            assert alive.calls[-1][1] == "prompt"
            assert (await client.call("cancel"))["ok"] is True


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
async def test_an_order_that_nobody_was_there_to_pass_on_goes_down_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    """Of a parked run only the log tells it, in whose middle it is; of a long one that is read a little later."""
    monkeypatch.setattr(loading, "_SHORT_LOG_BYTES", limit_bytes)
    ordered = RunEnding(status="DONE", exit_code=0, stop_reason="end_turn", ordered=True)
    leave(tmp_path, "rt_1", start(), ordered, RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    below = leave(tmp_path, "rt_2", parent_id="rt_1")
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        alive = launcher.runtimes["rt_2"] = FakeRuntime(below.path)
        await bodies.start(alive.live)
        alive.begin()
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded) as stable:
            client = await stable.connect()
            assert (await client.call("wait", runtime_id="rt_2", until="done"))["outcome"] == "KILLED"


async def test_a_child_that_came_up_late_is_kept(tmp_path: Path) -> None:
    """It took its lock after the look around and before its end was written: it lives, and is not declared lost."""
    directory = leave(tmp_path, "rt_1")
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded = load_runtimes(tmp_path / "state", launcher.probe)
        late = launcher.runtimes["rt_1"] = FakeRuntime(directory.path)
        await bodies.start(late.live)
        late.begin()
        async with open_stable(tmp_path, launcher, loaded) as stable:
            client = await stable.connect()

            async def is_running() -> bool:
                return bool((await client.call("status"))["status"] == "running")

            await eventually(is_running)
            assert launcher.ended == []
            assert (await client.call("cancel"))["ok"] is True


async def test_damaged_directories_are_reported_and_left_alone(tmp_path: Path) -> None:
    """The others load; no id comes back."""
    leave(tmp_path, "rt_1").record_path.write_text("{")
    (tmp_path / "state/rt_2").mkdir()
    leave(tmp_path, "rt_7", start(), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    loaded = load_runtimes(tmp_path / "state", lambda _path: None)
    assert [runtime.id for runtime in loaded] == ["rt_7"]
    async with open_stable(tmp_path, loaded=loaded) as stable:
        client = await stable.connect()
        assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_8"


@pytest.mark.parametrize("wait", ["session", "started"])
async def test_what_never_had_what_a_repeated_spawn_waits_for_fails_it_again(tmp_path: Path, wait: str) -> None:
    """One that never came up, whatever is waited for; one that did, and had no session, only where that is."""
    end = RunEnd(status="FAILED", exit_code=1, stop_reason="agent_exited")
    leave(tmp_path, "rt_1", RunEnd(status="KILLED", exit_code=130, stop_reason="cancelled"), key="never")
    leave(tmp_path, "rt_2", start(), end, key="no session")
    async with open_stable(tmp_path, loaded=load_runtimes(tmp_path / "state", lambda _path: None)) as stable:
        client = await stable.connect()
        refusal = await client.refusal("spawn", **SPAWN, key="never", wait=wait)
        assert (refusal["data"]["runtime_id"], refusal["data"]["stop_reason"]) == ("rt_1", "cancelled")
        answer = await client.answer(await client.send("spawn", **SPAWN, key="no session", wait=wait))
        assert ("result" in answer) is (wait == "started")


async def test_a_repeated_spawn_is_answered_before_a_long_log_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the session that the log tells of."""
    may_read = threading.Event()

    def read(*args: Any) -> Fold:
        may_read.wait()
        return fold_log(*args)

    monkeypatch.setattr(loading, "_SHORT_LOG_BYTES", 0)
    monkeypatch.setattr(supervision, "fold_log", read)
    session = SessionStart(backend="scripted", dir="/", session_id="s7")
    leave(tmp_path, "rt_1", start(), session, RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"), key="k")
    async with open_stable(tmp_path, loaded=load_runtimes(tmp_path / "state", lambda _path: None)) as stable:
        client = await stable.connect()
        try:
            spawned = await client.call("spawn", **SPAWN, key="k")
        finally:
            may_read.set()
        assert (spawned["runtime_id"], spawned["session_id"]) == ("rt_1", "s7")


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20])
async def test_a_first_line_that_is_no_event_of_ours_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    """In a log of any length: the run is listed with its outcome, and its supervisor starts."""
    monkeypatch.setattr(loading, "_SHORT_LOG_BYTES", limit_bytes)
    directory = leave(tmp_path, "rt_1", start(), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    for strange in (b'"run.begun"', b"7"):
        directory.log_path.write_bytes(directory.log_path.read_bytes().replace(b'"run.start"', strange))
        (loaded,) = load_runtimes(tmp_path / "state", lambda _path: None)
        assert (loaded.stage, loaded.state.outcome, loaded.state.latest_seq) == (Stage.ENDED, "DONE", 2)
        directory.log_path.write_bytes(directory.log_path.read_bytes().replace(strange, b'"run.start"'))


@pytest.mark.parametrize("is_due", [False, True])
async def test_a_sentinel_that_is_still_due_is_written(tmp_path: Path, is_due: bool) -> None:
    """By a run that ended in good order on a full disk, whose supervisor was gone before there was room again."""
    directory = leave(tmp_path, "rt_1", start(), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
    if is_due:
        directory.note_sentinel(is_due=True)
    async with open_stable(tmp_path, loaded=load_runtimes(tmp_path / "state", lambda _path: None)):
        await eventually(lambda: not directory.is_sentinel_due())
    assert directory.sentinel_path.exists() is is_due


@pytest.mark.parametrize("on_crash", ["fail", "resume"])
@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (Outcome.of("end_turn", run_id="run-rt_1", session_id="ses_1"), ("DONE", "end_turn")),
        (Outcome.of("end_turn", run_id="another"), ("FAILED", "runtime_lost")),
        (None, ("FAILED", "runtime_lost")),
    ],
    ids=["ours", "another's", "none"],
)
async def test_an_end_that_only_the_sentinel_tells_stands(
    tmp_path: Path, told: Outcome | None, outcome: tuple[str, str], on_crash: Literal["fail", "resume"]
) -> None:
    """The log had no room for it before its supervisor left. Nothing runs once more, and nothing is told otherwise."""
    directory = leave(tmp_path, "rt_1", start(), on_crash=on_crash)
    directory.note_sentinel(is_due=False)
    if told is None:
        directory.sentinel_path.write_text("DONE?\n")
    else:
        write_sentinel(directory.sentinel_path, told)
    if (on_crash, outcome[0]) == ("resume", "FAILED"):
        (loaded,) = load_runtimes(tmp_path / "state", lambda _path: None)
        assert loaded.end is None  # it goes on
        return
    async with trio.open_nursery() as bodies:
        launcher = FakeLauncher(bodies)
        loaded_all = load_runtimes(tmp_path / "state", launcher.probe)
        async with open_stable(tmp_path, launcher, loaded_all) as stable:
            client = await stable.connect()
            await eventually(lambda: not stable.registry.live)
            status = await client.call("status", runtime_id="rt_1")
            assert (status["outcome"], status["stop_reason"]) == outcome
            assert parse_sentinel(directory.sentinel_path.read_text()).stop_reason == outcome[1]
            assert launcher.runtimes == {}


async def test_the_sentinel_of_a_parked_run_is_not_its_end(tmp_path: Path) -> None:
    """It tells of the last turn; what was lost is lost."""
    begun = RunStart(kind="single", backend="scripted", dir="/", version="0", parks=True)
    session = SessionStart(backend="scripted", dir="/", session_id="ses_1")
    directory = leave(tmp_path, "rt_1", begun, session, TurnEnd(stop_reason="end_turn", session_id="ses_1"))
    write_sentinel(directory.sentinel_path, Outcome.of("end_turn", run_id="run-rt_1"))
    directory.note_sentinel(is_due=False)
    (loaded,) = load_runtimes(tmp_path / "state", lambda _path: None)
    assert (loaded.stage, loaded.state.status, loaded.end) == (Stage.LOST, "idle", None)


async def test_a_sentinel_that_is_not_noted_is_not_believed(tmp_path: Path) -> None:
    """It may be that of another process, or of an earlier turn."""
    directory = leave(tmp_path, "rt_1", start())
    write_sentinel(directory.sentinel_path, Outcome.of("end_turn", run_id="run-rt_1"))
    for is_due in (None, True):
        if is_due is not None:
            directory.note_sentinel(is_due=is_due)
        (loaded,) = load_runtimes(tmp_path / "state", lambda _path: None)
        assert loaded.end is None


async def test_a_long_log_is_read_whole_only_after_clients_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once its outcome is known, soon after everything else."""
    monkeypatch.setattr(loading, "_SHORT_LOG_BYTES", 0)
    leave(
        tmp_path,
        "rt_1",
        start(),
        TurnEnd(stop_reason="end_turn", final_output="yes"),
        RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"),
    )
    (early,) = load_runtimes(tmp_path / "state", lambda _path: None)
    assert (early.state.outcome, early.state.run_id, early.state.final_output) == ("DONE", "run-rt_1", None)
    async with open_stable(tmp_path, loaded=[early]) as stable:
        client = await stable.connect()

        async def is_whole() -> bool:
            return bool((await client.call("status", runtime_id="rt_1"))["final_output"] == "yes")

        await eventually(is_whole)
