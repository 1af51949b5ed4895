"""Whom a cancel takes along, over the supervisor's real socket, with fake runtimes."""

from pathlib import Path
from typing import Any

import pytest
import trio

from avenor.control.rpc import Call
from avenor.protocol.errors import NotOwner
from avenor.protocol.events import RunEnding
from avenor.protocol.methods import Cancelled
from avenor.stable import cancelling, link
from tests.helpers import eventually
from tests.stable.kit import SPAWN, Client, Stable, open_stable

ORDERED = RunEnding(status="KILLED", exit_code=130, stop_reason="cancelled")


async def family(stable: Stable, client: Client) -> None:
    """A root, its two children, and a grandchild: rt_1, rt_2, rt_3 and, below rt_2, rt_4."""
    await stable.spawned(client)
    await stable.spawned(client, parent_id="rt_1")
    await stable.spawned(client, parent_id="rt_1")
    await stable.spawned(client, parent_id="rt_2")


async def outcomes(client: Client) -> list[str | None]:
    """What each runtime has come to."""
    return [each["outcome"] for each in await client.call("list")]


async def test_a_cancel_goes_down_to_the_last_and_whoever_owns_them(tmp_path: Path) -> None:
    """The answer comes when all of them have ended; a parked one stands by its last turn."""
    async with open_stable(tmp_path) as stable:
        client, other = await stable.connect(), await stable.connect()
        await family(stable, client)
        await other.call("claim", runtime_id="rt_3", force=True)
        stable.runtime("rt_4").park()
        await client.call("wait", runtime_id="rt_4", until="done")
        assert await client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
        assert await outcomes(client) == ["KILLED", "KILLED", "KILLED", "KILLED"]
        assert stable.runtime("rt_3").calls[-1] == ("supervisor", "cancel", {"runtime_id": "rt_3", "force": True})


async def test_a_cancel_in_the_middle_leaves_those_above_and_beside_alone(tmp_path: Path) -> None:
    """It goes down only."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        await client.call("cancel", runtime_id="rt_2")
        assert await outcomes(client) == [None, "KILLED", None, "KILLED"]


async def test_who_may_not_cancel_the_run_leaves_those_below_alone_too(tmp_path: Path) -> None:
    """The runtime decides, and it is asked first."""
    async with open_stable(tmp_path) as stable:
        client, other = await stable.connect(), await stable.connect()
        await family(stable, client)
        assert (await other.refusal("cancel", runtime_id="rt_1"))["code"] == -32010
        assert await outcomes(client) == [None, None, None, None]
        assert (await client.call("spawn", **SPAWN, wait="started", parent_id="rt_1"))["runtime_id"] == "rt_5"


async def test_those_below_of_a_parked_run_end_although_the_one_who_asked_has_left(tmp_path: Path) -> None:
    """Its events need not tell that it was cancelled, for it may just be ending: its answer does, and nobody waits."""
    async with open_stable(tmp_path) as stable:
        client, asker = await stable.connect(), await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").park()
        answers = trio.Event()

        async def answer_late(_call: Call, _params: dict[str, Any]) -> Cancelled:
            await answers.wait()
            stable.runtime("rt_1").end("end_turn")
            return Cancelled(ok=True, left=[])

        stable.runtime("rt_1").behaviour["cancel"] = lambda call, params: answer_late(call, params)
        await asker.send("cancel", runtime_id="rt_1", force=True)
        await eventually(lambda: stable.runtime("rt_1").calls[-1][1] == "cancel")
        await asker.close()
        await eventually(lambda: stable.runtime("rt_1").left == ["c2"])
        answers.set()
        assert (await client.call("wait", runtime_id="rt_4", until="done"))["outcome"] == "KILLED"


@pytest.mark.parametrize(("how", "outcome"), [("cancelled", "KILLED"), ("timeout", "TIMEOUT")])
async def test_a_run_that_was_ordered_to_end_takes_those_below_along(tmp_path: Path, how: str, outcome: str) -> None:
    """By a signal or its own timeout, of which the supervisor hears by the events; nobody has called `cancel`."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").end(how)
        assert (await client.call("wait", runtime_id="rt_4", until="done"))["outcome"] == "KILLED"
        await client.call("wait", runtime_id="rt_2", until="done")
        await client.call("wait", runtime_id="rt_3", until="done")
        assert await outcomes(client) == [outcome, "KILLED", "KILLED", "KILLED"]


@pytest.mark.parametrize(("ordered", "below"), [(True, "KILLED"), (False, None)])
async def test_a_parked_run_takes_those_below_along_if_it_was_ordered_to_end(
    tmp_path: Path, ordered: bool, below: str | None
) -> None:
    """By a signal, or a cancel on its own socket, and not if it is reaped: its outcome is that of its last turn."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").park()
        stable.runtime("rt_1").emit(RunEnding(status="DONE", exit_code=0, stop_reason="end_turn", ordered=ordered))
        stable.runtime("rt_1").end(keep_sentinel=True)
        await client.call("wait", runtime_id="rt_1", until="done")
        if ordered:
            for runtime_id in ("rt_2", "rt_3", "rt_4"):
                await client.call("wait", runtime_id=runtime_id, until="done")
        assert await outcomes(client) == ["DONE", below, below, below]


@pytest.mark.parametrize("how", ["end_turn", "refusal", "lost"])
async def test_a_run_that_was_not_ordered_to_end_leaves_those_below_as_they_are(tmp_path: Path, how: str) -> None:
    """They are still listed below it, go on, and may get children; and a cancel of the ended one ends them."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        runtime = stable.runtime("rt_1")
        if how == "lost":
            runtime.die()
        else:
            runtime.end(how)
        await client.call("wait", runtime_id="rt_1", until="done")
        assert (await outcomes(client))[1:] == [None, None, None]
        assert (await client.call("status", runtime_id="rt_1"))["children"] == ["rt_2", "rt_3"]
        assert (await client.call("spawn", **SPAWN, wait="started", parent_id="rt_2"))["runtime_id"] == "rt_5"
        assert await client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
        assert (await outcomes(client))[1:] == ["KILLED"] * 4


async def test_nothing_starts_below_a_run_from_the_moment_it_is_ordered_to_end(tmp_path: Path) -> None:
    """However deep, although its agents still live for a moment; the refused one's sentinel says FAILED."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        stable.runtime("rt_4").behaviour["cancel"] = lambda _call, _params: Cancelled(ok=True, left=[])
        stable.runtime("rt_1").emit(ORDERED)
        await client.call("wait", runtime_id="rt_2", until="done")
        sentinel = tmp_path / "late.done"
        for parent_id in ("rt_1", "rt_4"):
            refusal = await client.refusal("spawn", **SPAWN, parent_id=parent_id, sentinel_file=str(sentinel))
            assert (refusal["data"]["reason"], refusal["data"]["retryable"]) == ("run_ending", False)
            assert refusal["data"]["field"] == "parent_id"
        assert sentinel.read_text().startswith("FAILED\n")
        assert len(await client.call("list")) == 4


async def test_one_that_waits_for_a_place_and_one_that_starts_are_cancelled_too(tmp_path: Path) -> None:
    """The first was spawned below a run that has ended; the second gets the cancel as its first call."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        root = await stable.spawned(client)
        stable.runtime(root).end()
        await stable.registry.resolve(root).ended.wait()
        stable.launcher.gate = trio.Event()
        starting = await client.send("spawn", **SPAWN, parent_id=root)
        waiting = await client.send("spawn", **SPAWN, parent_id=root)
        assert [each["status"] for each in await client.call("list")] == ["ended", "starting", "queued"]
        cancel = await client.send("cancel", runtime_id=root)
        assert (await client.answer(waiting))["error"]["data"]["outcome"] == "KILLED"
        stable.launcher.gate.set()
        assert (await client.answer(cancel))["result"] == {"ok": True, "left": []}
        assert (await client.answer(starting))["error"]["data"]["outcome"] == "KILLED"
        assert (await outcomes(client))[1:] == ["KILLED", "KILLED"]


async def test_what_could_not_be_ended_below_is_named_with_whose_it_was(tmp_path: Path) -> None:
    """And where nothing could be proven, that is said as well."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)

        def left(runtime_id: str, answer: Cancelled) -> None:
            def end(_call: Call, _params: dict[str, Any]) -> Cancelled:
                stable.runtime(runtime_id).end("cancelled")
                return answer

            stable.runtime(runtime_id).behaviour["cancel"] = end

        left("rt_1", Cancelled(ok=True, left=["a (1): of another user"]))
        left("rt_3", Cancelled(ok=True, left=["b (2): of another user"], unverified="no /proc"))
        left("rt_4", Cancelled(ok=True, left=[], unverified="no descriptors"))
        assert await client.call("cancel", runtime_id="rt_1") == {
            "ok": True,
            "left": ["a (1): of another user", "rt_3: b (2): of another user"],
            "unverified": "rt_3: no /proc; rt_4: no descriptors",
        }


async def test_one_below_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has called its cancel, so nobody else would notice that it is never answered."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)
        stable.runtime("rt_2").behaviour["cancel"] = lambda _call, _params: _never()
        assert await client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
        assert "rt_2" in stable.launcher.ended
        assert await outcomes(client) == ["KILLED"] * 4


@pytest.mark.parametrize("who", ["owner", "nobody owns it", "force"])
async def test_one_that_does_not_listen_is_killed_for_whoever_may_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Its owner, anybody if there is none, and whoever uses force; nothing goes on with it."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path, on_crash="resume") as stable:
        client, other = await stable.connect(), await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").behaviour["cancel"] = lambda _call, _params: _never()
        if who == "nobody owns it":
            await client.call("release", runtime_id="rt_1")
        caller = client if who == "owner" else other
        assert await caller.call("cancel", runtime_id="rt_1", force=who == "force") == {"ok": True, "left": []}
        assert "rt_1" in stable.launcher.ended
        assert await outcomes(client) == ["KILLED"] * 4


@pytest.mark.parametrize("dies", [False, True])
async def test_a_cancel_is_not_taken_back_by_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """One that does not listen is killed all the same, and one that is lost meanwhile does not go on."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 60 if dies else 0.1)
    async with open_stable(tmp_path, on_crash="resume") as stable:
        client, asker = await stable.connect(), await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").behaviour["cancel"] = lambda _call, _params: _never()
        await asker.send("cancel", runtime_id="rt_1", force=True)
        await eventually(lambda: stable.runtime("rt_1").calls[-1][1] == "cancel")
        await asker.close()
        await eventually(lambda: stable.runtime("rt_1").left == ["c2"])
        if dies:
            stable.runtime("rt_1").die()
        assert (await client.call("wait", runtime_id="rt_1", until="done"))["outcome"] == "KILLED"
        assert list(stable.launcher.runtimes) == ["rt_1", "rt_2", "rt_3", "rt_4"]


async def test_a_fault_in_a_cancel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who waits for the answer does not wait for ever."""
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)

        def fail(_raw: bytes) -> Cancelled:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(cancelling, "_decode_cancelled", fail)
        assert (await client.refusal("cancel", runtime_id="rt_1"))["code"] == -32603


async def test_one_that_does_not_listen_is_not_killed_for_who_may_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the runtime would say, if it said anything: another client owns it."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path) as stable:
        client, other = await stable.connect(), await stable.connect()
        await family(stable, client)
        stable.runtime("rt_1").behaviour["cancel"] = lambda _call, _params: _never()
        refusal = await other.refusal("cancel", runtime_id="rt_1")
        assert (refusal["code"], refusal["data"]["owner"]) == (-32010, "c1")
        assert await outcomes(client) == [None] * 4


async def test_one_that_still_starts_belongs_to_its_spawner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else ends it by being first; its spawner does, as soon as it is up."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path) as stable:
        client, other = await stable.connect(), await stable.connect()
        stable.launcher.gate = trio.Event()
        await client.send("spawn", **SPAWN)
        await client.call("ping")
        assert (await other.refusal("cancel", runtime_id="rt_1"))["code"] == -32010
        cancel = await client.send("cancel", runtime_id="rt_1")
        await eventually(lambda: "rt_1" in stable.launcher.ended)
        stable.launcher.gate.set()
        assert (await client.answer(cancel))["result"] == {"ok": True, "left": []}
        assert await outcomes(client) == ["KILLED"]


@pytest.mark.parametrize("who", ["spawner", "it has left", "force"])
async def test_one_that_waits_for_a_place_belongs_to_its_spawner(tmp_path: Path, who: str) -> None:
    """As if it ran: it is ended for its spawner, for anybody when that has left, and for whoever uses force."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client, other = await stable.connect(), await stable.connect()
        await stable.spawned(other)
        await client.send("spawn", **SPAWN)
        await client.call("ping")
        refusal = await other.refusal("cancel", runtime_id="rt_2")
        assert (refusal["code"], refusal["data"]["owner"]) == (-32010, "c1")
        assert (await other.call("status", runtime_id="rt_2"))["status"] == "queued"
        if who == "it has left":
            await client.close()
            await eventually(lambda: len(stable.supervision.server.clients) == 1)
        caller = client if who == "spawner" else other
        assert await caller.call("cancel", runtime_id="rt_2", force=who == "force") == {"ok": True, "left": []}
        assert await outcomes(other) == [None, "KILLED"]


async def test_one_that_nothing_can_be_sent_to_is_killed_for_who_may_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal of other calls says to cancel it, so that must do something."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path) as stable:
        client, other = await stable.connect(), await stable.connect()
        await family(stable, client)
        monkeypatch.setattr(link, "_OUT_LIMIT_BYTES", -1)
        assert (await other.refusal("cancel", runtime_id="rt_1"))["data"]["retryable"] is True
        assert await client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
        assert await outcomes(client) == ["KILLED"] * 4


async def test_one_below_that_refuses_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be ending by itself; if it is not, it is killed."""
    monkeypatch.setattr(cancelling, "_PATIENCE_SECONDS", 0.1)
    async with open_stable(tmp_path) as stable:
        client = await stable.connect()
        await family(stable, client)

        def refuse(_call: Call, _params: dict[str, Any]) -> Cancelled:
            raise NotOwner("never", data={"owner": "nobody"})

        stable.runtime("rt_3").behaviour["cancel"] = refuse
        await client.call("cancel", runtime_id="rt_1")
        assert "rt_3" in stable.launcher.ended


async def test_one_below_that_is_lost_while_it_is_cancelled_is_not_resumed(tmp_path: Path) -> None:
    """Its end is what was asked for."""
    async with open_stable(tmp_path, on_crash="resume") as stable:
        client = await stable.connect()
        await family(stable, client)

        def crash(_call: Call, _params: dict[str, Any]) -> Cancelled:
            stable.runtime("rt_2").die()
            return Cancelled(ok=False, left=[])

        stable.runtime("rt_2").behaviour["cancel"] = crash
        await client.call("cancel", runtime_id="rt_1")
        assert await outcomes(client) == ["KILLED"] * 4


async def test_parked_ones_do_not_count_against_the_tree(tmp_path: Path) -> None:
    """Else a jockey that starts one worker after the other would be refused until its first ones are reaped."""
    async with open_stable(tmp_path, max_tree=2) as stable:
        client = await stable.connect()
        root = await stable.spawned(client)
        for _ in range(3):
            worker = await stable.spawned(client, parent_id=root)
            stable.runtime(worker).park()
            await client.call("wait", runtime_id=worker, until="done")
        await stable.spawned(client, parent_id=root)
        refusal = await client.refusal("spawn", **SPAWN, parent_id=root)
        assert (refusal["data"]["limit"], refusal["data"]["retryable"]) == ("max_tree", True)


async def test_a_child_does_not_wait_while_anybody_above_it_lives(tmp_path: Path) -> None:
    """Also when its parent has ended by itself: the one above that may wait for both."""
    async with open_stable(tmp_path, max_runtimes=1) as stable:
        client = await stable.connect()
        await stable.spawned(client)
        await stable.spawned(client, parent_id="rt_1")
        stable.runtime("rt_2").end()
        await stable.registry.resolve("rt_2").ended.wait()
        await stable.spawned(client, parent_id="rt_2")
        assert (await client.call("status", runtime_id="rt_3"))["status"] == "running"


async def _never() -> Cancelled:
    await trio.sleep_forever()
    raise AssertionError
