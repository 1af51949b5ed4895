"""What the supervisor does with runtimes, over its real socket, with fake runtimes."""

import errno
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from avenor.control.rpc import Call
from avenor.host import logfile
from avenor.host.ladder import StopResult
from avenor.host.sentinelfile import write_sentinel
from avenor.protocol.errors import MethodNotFound, SpawnError
from avenor.protocol.events import EventHead, RunEnd, TurnEnd, TurnStart, encode_event
from avenor.protocol.methods import LINE_LIMIT_BYTES, RouterReaped
from avenor.protocol.outcomes import Outcome, Status, parse_sentinel
from avenor.stable import supervision
from tests.helpers import eventually
from tests.stable.kit import SPAWN, FakeLauncher, Stable, open_stable


def sentinel_of(path: str) -> Status:
    """The status that a sentinel tells."""
    return parse_sentinel(Path(path).read_text()).status


async def test_spawn_answers_with_the_session_once_there_is_one(tmp_path: Path) -> None:
    """`wait: session`, the default, is answered at session.start and not before."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        request = await client.send("spawn", **SPAWN)
        await eventually(lambda: "rt_1" in stable.launcher.runtimes and stable.runtime("rt_1").owner == "c1")
        assert (await client.call("status"))["session_id"] is None
        stable.runtime("rt_1").begin("ses_9")
        result = (await client.answer(request))["result"]
        assert result == {
            "runtime_id": "rt_1",
            "session_id": "ses_9",
            "on_event": str(tmp_path / "state/rt_1/events.ndjson"),
            "sentinel_file": str(tmp_path / "state/rt_1/sentinel.env"),
        }


async def test_the_spawner_owns_what_it_spawned(tmp_path: Path) -> None:
    """The claim is made before the spawn is answered, and others are refused with the owner's name."""
    async with open_stable(tmp_path) as stable:
        first, second = await stable.connect(), await stable.connect()
        runtime_id = await stable.spawned(first)
        assert (await second.call("status"))["owner"] == "c1"
        refusal = await second.refusal("prompt", text="hi", runtime_id=runtime_id)
        assert (refusal["code"], refusal["data"]["owner"]) == (-32010, "c1")


async def test_a_forced_claim_tells_the_old_owner(tmp_path: Path) -> None:
    """A notice from a runtime reaches the one client that it names."""
    async with open_stable(tmp_path) as stable:
        first, second = await stable.connect(), await stable.connect()
        await stable.spawned(first)
        assert (await second.call("claim", force=True)) == {"owner": "c2"}
        assert await first.notice() == {"kind": "owner.changed", "runtime_id": "rt_1", "owner": "c2"}


async def test_a_client_that_leaves_releases_what_it_owned(tmp_path: Path) -> None:
    """The runtime is told which of its router's clients has gone."""
    async with open_stable(tmp_path) as stable:
        first, second = await stable.connect(), await stable.connect()
        await stable.spawned(first)
        await first.close()
        await eventually(lambda: stable.runtime("rt_1").left == ["c1"])
        assert (await second.call("claim"))["owner"] == "c2"


async def test_pipelined_calls_reach_the_runtime_in_order(tmp_path: Path) -> None:
    """One connection's calls are passed on in the order in which they were sent."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        requests = [await client.send("prompt", text=f"p{number}") for number in range(20)]
        for request in requests:
            assert "result" in await client.answer(request)
        texts = [params["text"] for _, method, params in stable.runtime("rt_1").calls if method == "prompt"]
        assert texts == [f"p{number}" for number in range(20)]


async def test_calls_made_before_the_runtime_is_up_are_passed_on_when_it_is(tmp_path: Path) -> None:
    """A prompt to a starting runtime waits for its link, behind the spawner's claim."""
    async with open_stable(tmp_path) as stable:
        stable.launcher.gate = trio.Event()
        client = await stable.connect()
        spawn = await client.send("spawn", **SPAWN, wait="started")
        prompt = await client.send("prompt", text="early")
        await client.call("ping")
        stable.launcher.gate.set()
        assert (await client.answer(spawn))["result"]["runtime_id"] == "rt_1"
        assert "result" in await client.answer(prompt)
        assert [method for _, method, _ in stable.runtime("rt_1").calls] == ["claim", "prompt"]


async def test_events_pass_through_byte_for_byte(tmp_path: Path) -> None:
    """A subscriber of the supervisor gets the runtime's own lines, and the log has the same."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await client.call("subscribe")
        await stable.spawned(client)
        stable.runtime("rt_1").park()
        await client.wait_event("turn.end")
        log = (tmp_path / "state/rt_1/events.ndjson").read_text()
        assert [event["seq"] for event in client.events] == [1, 2, 3, 4]
        assert log.count("\n") == 4


async def test_the_same_key_gives_the_same_runtime(tmp_path: Path) -> None:
    """Also for a duplicate that comes while the first is under way, and from another client."""
    async with open_stable(tmp_path) as stable:
        stable.launcher.gate = trio.Event()
        first, second = await stable.connect(), await stable.connect()
        one = await first.send("spawn", **SPAWN, key="k", wait="started")
        two = await second.send("spawn", **SPAWN, key="k", wait="started")
        await second.call("ping")
        stable.launcher.gate.set()
        answers = [await first.answer(one), await second.answer(two)]
        assert [answer["result"]["runtime_id"] for answer in answers] == ["rt_1", "rt_1"]
        assert list(stable.launcher.runtimes) == ["rt_1"]


async def test_a_refused_spawn_uses_no_id_and_lists_all_mistakes(tmp_path: Path) -> None:
    """−32602 with the field and all errors; the FAILED sentinel is written if one was named."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        sentinel = tmp_path / "run.done"
        refusal = await client.refusal(
            "spawn", prompt=5, dir="/", backend="scripted", zap=1, sentinel_file=str(sentinel)
        )
        assert (refusal["code"], refusal["data"]["field"]) == (-32602, "prompt")
        assert [error["path"] for error in refusal["data"]["errors"]] == ["$.prompt", "$.zap"]
        assert sentinel_of(str(sentinel)) is Status.FAILED
        assert not list((tmp_path / "state").glob("rt_*"))
        assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_1"


async def test_a_launch_that_fails_is_told_with_id_and_sentinel(tmp_path: Path) -> None:
    """The runtime is listed as ended, its sentinel says FAILED, and the answer says where to look."""
    async with open_stable(tmp_path) as stable:
        stable.launcher.failures.append(SpawnError("no room"))
        client = await stable.connect()
        refusal = await client.refusal("spawn", **SPAWN)
        assert (refusal["code"], refusal["message"]) == (-32000, "no room")
        assert refusal["data"]["reason"] == "spawn_failed"
        assert refusal["data"]["runtime_id"] == "rt_1"
        assert sentinel_of(refusal["data"]["sentinel_file"]) is Status.FAILED
        assert (await client.call("status", runtime_id="rt_1"))["status"] == "ended"


@pytest.mark.parametrize("fault", [OSError("odd"), RuntimeError("odd")], ids=["system", "ours"])
async def test_a_fault_in_a_launch_leaves_nothing_starting_for_ever(tmp_path: Path, fault: Exception) -> None:
    """Whatever was raised: the spawn is answered, the runtime has ended, and its place is free."""
    async with open_stable(tmp_path, max_runtimes=1, queue=0) as stable:
        stable.launcher.failures.append(fault)
        client = await stable.connect()
        refusal = await client.refusal("spawn", **SPAWN)
        assert refusal["data"]["reason"] == "internal_error"
        assert "odd" not in refusal["message"]
        assert sentinel_of(refusal["data"]["sentinel_file"]) is Status.FAILED
        assert (await client.call("status", runtime_id="rt_1"))["status"] == "ended"
        assert await stable.spawned(client) == "rt_2"


@pytest.mark.parametrize("places", [0, 1])
async def test_a_spawn_whose_record_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    """Refused as retryable, whether it would start or wait for a place; no runtime is listed, no directory is left."""

    def refuse(_directory: object, _record: object) -> None:
        raise OSError(24, "Too many open files")

    async with open_stable(tmp_path, max_runtimes=places) as stable:
        client = await stable.connect()
        monkeypatch.setattr("avenor.stable.spawning.write_record", refuse)
        assert (await client.refusal("spawn", **SPAWN))["data"]["retryable"] is True
        assert await client.call("list") == []
        assert list((tmp_path / "state").glob("rt_*")) == []


async def test_a_launch_that_may_work_later_is_told_as_retryable(tmp_path: Path) -> None:
    """A client that reads only `retryable` does the right thing."""
    async with open_stable(tmp_path) as stable:
        stable.launcher.failures.append(SpawnError("no descriptor", retryable=True))
        client = await stable.connect()
        assert (await client.refusal("spawn", **SPAWN))["data"]["retryable"] is True


async def test_what_waited_for_a_launch_that_fails_is_told(tmp_path: Path) -> None:
    """A prompt that was sent to a starting runtime does not wait for ever."""
    async with open_stable(tmp_path) as stable:
        stable.launcher.gate = trio.Event()
        stable.launcher.failures.append(SpawnError("no room"))
        client = await stable.connect()
        spawn = await client.send("spawn", **SPAWN)
        prompt = await client.send("prompt", text="early")
        await client.call("ping")
        stable.launcher.gate.set()
        assert (await client.answer(prompt))["error"]["data"]["reason"] == "broken"
        assert "error" in await client.answer(spawn)


async def test_a_run_that_ends_before_its_session_fails_the_spawn(tmp_path: Path) -> None:
    """The answer comes when the end is settled, with what the run said."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        request = await client.send("spawn", **SPAWN)
        await eventually(lambda: "rt_1" in stable.launcher.runtimes)
        stable.runtime("rt_1").end("agent_exited")
        error = (await client.answer(request))["error"]
        assert error["data"]["reason"] == "runtime_failure"
        assert error["data"]["stop_reason"] == "agent_exited"
        assert sentinel_of(error["data"]["sentinel_file"]) is Status.FAILED


async def test_a_killed_runtime_is_settled_as_lost(tmp_path: Path) -> None:
    """Its tools are swept, run.end is appended with the next seq, and subscribers hear of it."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await client.call("subscribe")
        await stable.spawned(client)
        stable.runtime("rt_1").die()
        end = await client.wait_event("run.end")
        assert (end["seq"], end["stop_reason"], end["status"]) == (4, "runtime_lost", "FAILED")
        status = await client.call("status", runtime_id="rt_1")
        assert (status["status"], status["outcome"], status["pid"], status["owner"]) == ("ended", "FAILED", None, None)
        assert stable.launcher.ended == ["rt_1"]
        assert sentinel_of(status["sentinel_file"]) is Status.FAILED


async def test_whoever_hears_of_an_end_finds_the_sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the runtime was killed right after it had written its end to the log."""
    seen: list[str] = []
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await client.call("subscribe")
        await stable.spawned(client)
        runtime = stable.runtime("rt_1")

        def write(path: str, outcome: Outcome) -> None:
            seen.append(stable.registry.resolve("rt_1").state.status)
            write_sentinel(path, outcome)

        monkeypatch.setattr("avenor.stable.settle.write_sentinel", write)
        end = RunEnd(seq=4, ts=1, run_id=runtime.record.run_id, status="DONE", exit_code=0, stop_reason="end_turn")
        logfile.append(runtime.directory.log_path, encode_event(end) + b"\n")
        runtime.die()
        assert (await client.wait_event("run.end"))["status"] == "DONE"
        assert seen == ["running"]
        assert sentinel_of(str(runtime.directory.sentinel_path)) is Status.DONE
        assert stable.launcher.ended == []  # it had ended in good order


async def test_a_fault_while_an_end_is_settled_leaves_no_runtime_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is settled all the same, as it would have been, and a drain does not wait for ever."""
    faults = [RuntimeError("a fault of ours"), OSError(errno.EIO, "a fault of the system")]

    async def exit_status(_launcher: FakeLauncher, _path: Path) -> int | None:
        if faults:
            raise faults.pop()
        return -9

    monkeypatch.setattr(FakeLauncher, "exit_status", exit_status)
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await client.call("subscribe")
        await stable.spawned(client)
        stable.runtime("rt_1").die()
        end = await client.wait_event("run.end")
        assert (end["stop_reason"], faults) == ("runtime_lost", [])
        await client.call("shutdown", mode="drain")
        await stable.stopped.wait()


async def test_a_fault_in_a_link_leaves_no_runtime_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came over it could not be passed on: it is connected anew, no event is lost, and cancel works."""
    faults = [OSError(errno.EMFILE, "no descriptor left")]
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await client.call("subscribe")
        hub = stable.registry.resolve(await stable.spawned(client)).hub
        publish = hub.publish

        def fail_first(notes: list[bytes], heads: list[EventHead]) -> None:
            if faults:
                raise faults.pop()
            publish(notes, heads)

        monkeypatch.setattr(hub, "publish", fail_first)
        stable.runtime("rt_1").park()
        await client.wait_event("turn.end")
        assert [event["seq"] for event in client.events] == [1, 2, 3, 4]
        assert faults == []
        assert await client.call("cancel") == {"ok": True, "left": []}


async def test_cancel_is_answered_when_the_runtime_is_gone(tmp_path: Path) -> None:
    """After the answer nothing of it lives, and cancelling again is answered in the same way."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        assert await client.call("cancel") == {"ok": True, "left": []}
        assert stable.runtime("rt_1").body.poll() is not None
        assert await client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
        assert (await client.refusal("prompt", text="x", runtime_id="rt_1"))["data"]["reason"] == "run_ending"


async def test_cancel_of_a_runtime_that_dies_instead_is_answered(tmp_path: Path) -> None:
    """A link that breaks under a cancel is no error if the run has ended."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        runtime = stable.runtime("rt_1")
        runtime.behaviour["cancel"] = lambda _call, _params: _never(runtime.die)
        assert (await client.call("cancel"))["ok"] is True


async def _never(first: object) -> None:
    assert callable(first)
    first()
    await trio.sleep_forever()


async def test_without_an_id_the_only_live_runtime_is_meant(tmp_path: Path) -> None:
    """Several are an error that lists them; none is one, too."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        assert (await client.refusal("status"))["data"]["reason"] == "no_such_runtime"
        await stable.spawned(client)
        await stable.spawned(client)
        refusal = await client.refusal("status")
        assert refusal["data"]["candidates"] == ["rt_1", "rt_2"]
        await client.call("cancel", runtime_id="rt_1")
        assert (await client.call("status"))["runtime_id"] == "rt_2"
        assert (await client.refusal("status", runtime_id="rt_9"))["data"]["candidates"] == ["rt_2"]


async def test_a_runtime_goes_by_its_label_and_its_run_id_too(tmp_path: Path) -> None:
    """Live ones are meant before ended ones, of those the newest; a name of several live ones is an error."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client, label="review", run_id="run_a")
        await stable.spawned(client, label="review")
        await stable.spawned(client, label="fix")
        assert (await client.call("status", runtime_id="fix"))["runtime_id"] == "rt_3"
        assert (await client.call("status", runtime_id="run_a"))["runtime_id"] == "rt_1"
        assert (await client.refusal("status", runtime_id="review"))["data"]["candidates"] == ["rt_1", "rt_2"]
        await client.call("cancel", runtime_id="run_a")
        assert stable.runtime("rt_1").calls[-1][2]["runtime_id"] == "rt_1"
        assert (await client.call("status", runtime_id="review"))["runtime_id"] == "rt_2"
        await client.call("cancel", runtime_id="rt_2")
        assert (await client.call("status", runtime_id="review"))["runtime_id"] == "rt_2"


async def test_what_a_runtime_was_asked_to_do_is_told_after_its_end_too(tmp_path: Path) -> None:
    """As the params of a spawn of the same run, wherever its log is."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        log = str(tmp_path / "e.ndjson")
        runtime_id = await stable.spawned(client, label="careful", env={"A": "b"}, on_event=log, auto_approve=True)
        stable.runtime(runtime_id).end()
        await client.call("wait", runtime_id=runtime_id, until="done")
        spec = await client.call("spec", runtime_id="careful")
        asked = {name: spec[name] for name in ("prompt", "env", "on_event", "auto_approve", "on_crash")}
        expected = {"prompt": "do it", "env": {"A": "b"}, "on_event": log, "auto_approve": True, "on_crash": "fail"}
        assert asked == expected
        assert spec["sentinel_file"] is spec["permission_handler"] is None  # they lie where only this run's may
        again = await client.call("spawn", **{**spec, "wait": "started"})
        assert again["runtime_id"] == "rt_2"


async def test_a_list_that_fits_into_no_line_is_asked_for_in_part(tmp_path: Path) -> None:
    """The refusal says how; ids and states of all runs are had all the same."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        for _ in range(2):
            runtime_id = await stable.spawned(client)
            await client.call("wait", runtime_id=runtime_id, until="attention", timeout_ms=0)
            stable.registry.resolve(runtime_id).state.final_output = "x" * (LINE_LIMIT_BYTES // 2)
            stable.registry.resolve(runtime_id).revise()
        refusal = await client.refusal("list")
        assert refusal["data"]["reason"] == "answer_too_large"
        assert "`fields`" in refusal["message"]
        listed = await client.call("list", fields=["runtime_id", "status"])
        assert listed == [{"runtime_id": name, "status": "running"} for name in ("rt_1", "rt_2")]


async def test_prune_forgets_what_ended_long_ago(tmp_path: Path) -> None:
    """Directories and list entries go, live runtimes stay, and no id comes back."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client, key="k")
        await stable.spawned(client, parent_id="rt_1")
        await stable.spawned(client)
        for runtime_id in ("rt_2", "rt_3"):
            await client.call("cancel", runtime_id=runtime_id)
        assert (await client.call("prune", keep="30000d"))["pruned"] == []  # the fakes end in 1970
        assert (await client.call("prune", keep="1h"))["pruned"] == ["rt_2", "rt_3"]
        assert [each["runtime_id"] for each in await client.call("list")] == ["rt_1"]
        assert (await client.call("status", runtime_id="rt_1"))["children"] == []
        assert [path.name for path in (tmp_path / "state").glob("rt_*")] == ["rt_1"]
        assert (await client.refusal("history", runtime_id="rt_2"))["data"]["reason"] == "no_such_runtime"
        assert (await client.call("spawn", **SPAWN, wait="started"))["runtime_id"] == "rt_4"


@pytest.mark.parametrize("keep", ["soon", -1])
async def test_prune_refuses_what_is_no_time(tmp_path: Path, keep: object) -> None:
    """Nothing is removed."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        refusal = await client.refusal("prune", keep=keep)
        assert (refusal["code"], refusal["data"]["field"]) == (-32602, "keep")


async def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the first directory; the others are gone."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        await client.call("cancel", runtime_id="rt_1")

        def refuse(path: Path) -> None:
            raise PermissionError(f"{path} stays")

        monkeypatch.setattr("shutil.rmtree", refuse)
        refusal = await client.refusal("prune", keep=0)
        assert "rt_1 stays" in refusal["message"]
        assert refusal["data"]["retryable"] is True


async def test_spawns_beyond_the_limit_wait_and_start_in_order(tmp_path: Path) -> None:
    """A queued spawn has its id and record at once, is listed as queued, and starts when there is a place."""
    async with open_stable(tmp_path, max_runtimes=1, queue=2) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        second = await client.send("spawn", **SPAWN, wait="started")
        third = await client.send("spawn", **SPAWN, wait="started")
        listed = await client.call("list")
        assert [each["status"] for each in listed] == ["running", "queued", "queued"]
        assert (tmp_path / "state/rt_3/record.json").exists()
        refusal = await client.refusal("spawn", **SPAWN)
        assert (refusal["data"]["reason"], refusal["data"]["retryable"]) == ("limit_reached", True)
        stable.runtime("rt_1").end()
        assert (await client.answer(second))["result"]["runtime_id"] == "rt_2"
        stable.runtime("rt_2").begin()
        stable.runtime("rt_2").park()
        assert (await client.answer(third))["result"]["runtime_id"] == "rt_3"


async def test_a_queued_spawn_can_be_cancelled(tmp_path: Path) -> None:
    """It ends as KILLED with its sentinel, and its spawner is told."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        queued = await client.send("spawn", **SPAWN)
        assert (await client.refusal("prompt", text="x", runtime_id="rt_2"))["data"]["reason"] == "queued"
        assert (await client.call("cancel", runtime_id="rt_2"))["ok"] is True
        error = (await client.answer(queued))["error"]
        assert sentinel_of(error["data"]["sentinel_file"]) is Status.KILLED
        assert (await client.call("status", runtime_id="rt_2"))["outcome"] == "KILLED"
        assert list(stable.launcher.runtimes) == ["rt_1"]


async def test_children_never_queue_behind_their_parent(tmp_path: Path) -> None:
    """They start beyond --max-runtimes, up to --max-tree, and are refused beyond that, retryable."""
    async with open_stable(tmp_path, max_runtimes=1, max_tree=3) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        assert await stable.spawned(client, parent_id="rt_1") == "rt_2"
        assert await stable.spawned(client, parent_id="rt_2") == "rt_3"
        refusal = await client.refusal("spawn", **SPAWN, parent_id="rt_1")
        assert (refusal["data"]["limit"], refusal["data"]["retryable"]) == ("max_tree", True)
        listed = await client.call("list")
        assert [each["children"] for each in listed] == [["rt_2"], ["rt_3"], []]
        assert [each["depth"] for each in listed] == [0, 1, 2]
        unknown = await client.refusal("spawn", **SPAWN, parent_id="rt_99")
        assert (unknown["code"], unknown["data"]["field"]) == (-32602, "parent_id")


async def test_the_oldest_parked_runtime_is_reaped(tmp_path: Path) -> None:
    """Beyond --max-parked, whoever owns it; its sentinel stays as it was."""
    async with open_stable(tmp_path, max_parked=1) as stable:
        client = await stable.connect()
        for _ in range(2):
            runtime_id = await stable.spawned(client)
            stable.runtime(runtime_id).park()
            await client.call("wait", runtime_id=runtime_id, until="done")
        await eventually(lambda: len(stable.registry.live) == 1)
        assert stable.registry.live[0].id == "rt_2"
        first = await client.call("status", runtime_id="rt_1")
        assert sentinel_of(first["sentinel_file"]) is Status.DONE


async def test_a_parked_runtime_that_has_accepted_a_prompt_is_not_reaped(tmp_path: Path) -> None:
    """It refuses, since it knows of the prompt before its supervisor does; when it parks again, another one goes."""
    async with open_stable(tmp_path, max_parked=1) as stable:
        client = await stable.connect()
        for runtime_id in ("rt_1", "rt_2", "rt_3"):
            await stable.spawned(client)
            if runtime_id == "rt_1":
                stable.runtime(runtime_id).behaviour["router.reap"] = lambda _call, _params: RouterReaped(reaped=False)
            stable.runtime(runtime_id).park()
            await client.call("wait", runtime_id=runtime_id, until="done")
        await stable.registry.resolve("rt_2").ended.wait()
        first = stable.runtime("rt_1")
        assert first.calls[1:] == [("", "router.reap", {})]
        first.emit(TurnStart(text="more", source="control"))
        first.park()
        await stable.registry.resolve("rt_3").ended.wait()
        assert [each.id for each in stable.registry.live] == ["rt_1"]


async def test_a_drain_asks_again_when_a_runtime_that_would_not_go_parks_again(tmp_path: Path) -> None:
    """Also if all that it did meanwhile came at once, so that it was never seen at work."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        runtime = stable.runtime("rt_1")
        refused = trio.Event()

        def refuse(_call: Call, _params: dict[str, Any]) -> RouterReaped:
            del runtime.behaviour["router.reap"]
            refused.set()
            return RouterReaped(reaped=False)

        runtime.behaviour["router.reap"] = refuse
        runtime.park()
        await client.call("wait", until="done")
        await client.call("shutdown", mode="drain")
        await refused.wait()
        await eventually(lambda: stable.registry.resolve("rt_1").last_status == "running")
        runtime.emit_together(TurnStart(text="more", source="control"), TurnEnd(stop_reason="end_turn"))
        await stable.stopped.wait()
        assert sentinel_of(str(tmp_path / "state/rt_1/sentinel.env")) is Status.DONE


async def test_a_parked_runtime_of_an_older_version_is_asked_to_end_as_it_understands(tmp_path: Path) -> None:
    """It knows no `router.reap`, and would else be kept for ever."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        runtime = stable.runtime("rt_1")

        def unknown(_call: Call, _params: dict[str, Any]) -> RouterReaped:
            raise MethodNotFound("there is no method 'router.reap' here")

        runtime.behaviour["router.reap"] = unknown
        runtime.park()
        await client.call("wait", until="done")
        await client.call("shutdown", mode="drain")
        await stable.stopped.wait()
        assert runtime.calls[1:] == [("", "router.reap", {}), ("supervisor", "shutdown", {"mode": "graceful"})]
        assert sentinel_of(str(tmp_path / "state/rt_1/sentinel.env")) is Status.DONE


async def test_parked_runtimes_hold_no_place(tmp_path: Path) -> None:
    """A new spawn starts beside them, and a woken one goes on at once, beyond the limit."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        stable.runtime("rt_1").park()
        await client.call("wait", until="done")
        await stable.spawned(client)
        stable.runtime("rt_1").begin()
        assert await eventually(lambda: stable.registry.busy_count == 2)


@pytest.mark.parametrize("mode", ["graceful", "kill"])
async def test_shutdown_ends_running_parked_and_queued_runtimes(tmp_path: Path, mode: str) -> None:
    """Each has its outcome and sentinel; parked ones keep theirs; the answer comes first."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        stable.runtime("rt_1").park()
        await client.call("wait", until="done")
        await stable.spawned(client)
        await client.send("spawn", **SPAWN)
        await client.call("ping")
        assert await client.call("shutdown", mode=mode) == {"shutting_down": True}
        assert (await client.refusal("spawn", **SPAWN))["data"]["reason"] == "shutting_down"
        await stable.stopped.wait()
        statuses = [sentinel_of(str(tmp_path / f"state/rt_{number}/sentinel.env")) for number in (1, 2, 3)]
        assert statuses == [Status.DONE, Status.KILLED, Status.KILLED]


async def shut_down_with_one_that_is_deaf(stable: Stable, runtime_id: str = "rt_1", **params: str) -> None:
    """Returns when the supervisor has stopped; the runtime does not end when it is asked to."""
    client = await stable.connect()
    await stable.spawned(client)
    stable.runtime(runtime_id).behaviour["shutdown"] = lambda _call, _params: _never(int)
    await client.call("shutdown", **params)
    await stable.stopped.wait()


async def test_a_graceful_shutdown_kills_what_does_not_end(tmp_path: Path) -> None:
    """After --shutdown-timeout; the end is ours, so it is told as KILLED and not as lost."""
    async with open_stable(tmp_path, shutdown_timeout=0.05) as stable:
        await shut_down_with_one_that_is_deaf(stable)
        assert stable.launcher.ended[0] == "rt_1"
        assert sentinel_of(str(tmp_path / "state/rt_1/sentinel.env")) is Status.KILLED


async def test_what_a_kill_could_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor leaves in time; it does not say that everything has ended."""
    monkeypatch.setattr(supervision, "_SELF_KILL_SECONDS", 0.1)
    monkeypatch.setattr(supervision, "_KILL_SECONDS", 0.1)

    async def end(_launcher: FakeLauncher, _path: Path) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(FakeLauncher, "end", end)
    with structlog.testing.capture_logs() as logs:
        async with open_stable(tmp_path) as stable:
            await shut_down_with_one_that_is_deaf(stable, mode="kill")
    assert [entry["runtimes"] for entry in logs if entry["event"] == "shutdown.not_all_ended"] == [["rt_1"]]


async def test_a_kill_gives_each_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many outcomes are to be written to a slow disk, the supervisor stays as long as one after the other is."""
    end, begun, put_off = FakeLauncher.end, trio.Event(), False

    async def end_last(launcher: FakeLauncher, path: Path) -> StopResult:
        nonlocal put_off
        if path.name == "rt_2":
            await begun.wait()
        elif not begun.is_set():
            first = trio.current_effective_deadline()
            begun.set()
            put_off = await eventually(lambda: trio.current_effective_deadline() > first)
        return await end(launcher, path)

    monkeypatch.setattr(FakeLauncher, "end", end_last)
    async with open_stable(tmp_path) as stable:
        await stable.spawned(await stable.connect())
        stable.runtime("rt_1").behaviour["shutdown"] = lambda _call, _params: _never(int)
        await shut_down_with_one_that_is_deaf(stable, "rt_2", mode="kill")
        assert (put_off, stable.registry.live) == (True, ())


async def test_a_kill_waits_for_what_it_needs_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no descriptor at the first look: the supervisor does not break, and ends what it was to end."""
    faults = [OSError(errno.EMFILE, "no descriptor left")]
    end = FakeLauncher.end

    async def fail_first(launcher: FakeLauncher, path: Path) -> StopResult:
        if faults:
            raise faults.pop()
        return await end(launcher, path)

    monkeypatch.setattr(FakeLauncher, "end", fail_first)
    async with open_stable(tmp_path) as stable:
        await shut_down_with_one_that_is_deaf(stable, mode="kill")
        assert (faults, stable.registry.live) == ([], ())
        assert sentinel_of(str(tmp_path / "state/rt_1/sentinel.env")) is Status.KILLED


async def test_drain_waits_for_running_and_queued_ones(tmp_path: Path) -> None:
    """New spawns are refused, accepted ones run, parked ones go."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        queued = await client.send("spawn", **SPAWN, wait="started")
        await client.call("shutdown", mode="drain")
        stable.runtime("rt_1").park()
        assert (await client.answer(queued))["result"]["runtime_id"] == "rt_2"
        assert not stable.stopped.is_set()
        stable.runtime("rt_2").begin()
        stable.runtime("rt_2").park()
        await stable.stopped.wait()
        assert sentinel_of(str(tmp_path / "state/rt_2/sentinel.env")) is Status.DONE


async def test_detach_leaves_every_runtime_alone(tmp_path: Path) -> None:
    """Nothing is asked of them; only the supervisor leaves."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        await client.call("shutdown", mode="detach")
        await stable.stopped.wait()
        assert [method for _, method, _ in stable.runtime("rt_1").calls] == ["claim"]
        assert stable.runtime("rt_1").body.poll() is None


async def test_detach_lets_come_up_what_is_being_started_and_starts_nothing_more(tmp_path: Path) -> None:
    """A start that was begun is nobody else's to begin again; what is queued stays so for the next supervisor."""
    async with open_stable(tmp_path, max_runtimes=2) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        stable.launcher.gate = trio.Event()
        starting = await client.send("spawn", **SPAWN, wait="started")
        await client.send("spawn", **SPAWN)
        await client.call("shutdown", mode="detach")
        stable.runtime("rt_1").end()
        await client.call("wait", runtime_id="rt_1", until="done")
        assert [each["status"] for each in await client.call("list")] == ["ended", "starting", "queued"]
        assert (tmp_path / "state/rt_3/queued").exists()
        assert not stable.stopped.is_set()
        stable.launcher.gate.set()
        assert (await client.answer(starting))["result"]["runtime_id"] == "rt_2"
        await stable.stopped.wait()
        assert list(stable.launcher.runtimes) == ["rt_1", "rt_2"]


async def test_an_idle_supervisor_stops_itself(tmp_path: Path) -> None:
    """After --idle-timeout without a live runtime and without a client, and not before both are gone."""
    # Long enough for the client to come in time on a busy machine.
    async with open_stable(tmp_path, idle_timeout=3.0) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        await client.call("cancel")
        assert stable.shutdown.mode is None
        await client.close()
        await stable.stopped.wait()
        assert stable.shutdown.reason == "idle"
