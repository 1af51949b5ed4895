"""`status`, `list`, `result`, `history` and `wait`, served from memory and from the log."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.control.hub import EventHub, SingleHub
from avenor.control.reading import OUTPUT_LIMIT_CHARS
from avenor.protocol.errors import NoSuchRuntime
from avenor.protocol.events import PermissionOption, PermissionRequest, RunEnd, RunStart, SessionStart, TurnEnd
from avenor.protocol.manifest.events import ManifestEnd
from avenor.protocol.snapshot import Fold, Snapshot
from tests.control.served import FakeHubs, Writer, request, serving


async def test_status_and_list_show_snapshots(tmp_path: Path) -> None:
    """One, or all; which one must be clear."""
    one, two = Writer(tmp_path, "rt_1"), Writer(tmp_path, "rt_2")
    one.say(3)
    async with serving(tmp_path, FakeHubs(one.hub, two.hub)) as served:
        client = served.client()
        assert (await client.call("status", {"runtime_id": "rt_1"}))["latest_seq"] == 3
        assert [snapshot["runtime_id"] for snapshot in await client.call("list")] == ["rt_1", "rt_2"]
        error = (await client.ask("status"))["error"]
        assert (error["code"], error["data"]["candidates"]) == (-32000, ["rt_1", "rt_2"])


async def test_a_server_of_one_run_finds_it_with_and_without_its_id(tmp_path: Path) -> None:
    """And nothing else."""
    writer = Writer(tmp_path, "rt_1")
    source = SingleHub(writer.hub, lambda name: NoSuchRuntime(f"no runtime {name}"))
    async with serving(tmp_path, source) as served:
        client = served.client()
        for params in ({}, {"runtime_id": "rt_1"}):
            assert (await client.call("status", params))["runtime_id"] == "rt_1"
        assert len(await client.call("list")) == 1
        assert (await client.call("subscribe"))["latest_seq"] == 0
        assert (await client.ask("status", {"runtime_id": "rt_2"}))["error"]["data"]["reason"] == "no_such_runtime"


async def test_a_list_can_be_asked_for_some_members_only(tmp_path: Path) -> None:
    """So that it fits into a line, however many runs there are."""
    hubs = FakeHubs(Writer(tmp_path, "rt_1").hub, Writer(tmp_path, "rt_2").hub)
    async with serving(tmp_path, hubs) as served:
        client = served.client()
        listed = await client.call("list", {"fields": ["runtime_id", "status"]})
        assert listed == [{"runtime_id": name, "status": "running"} for name in ("rt_1", "rt_2")]
        error = (await client.ask("list", {"fields": ["status", "mood"]}))["error"]
        assert (error["code"], error["data"]["value"]) == (-32602, "mood")


async def test_a_wait_may_have_any_end(tmp_path: Path) -> None:
    """Also one in a time that no clock can tell."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.send(request(1, "wait", {"until": "done", "timeout_ms": 10**400}))
        await client.call("ping")
        writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        assert (await client.line())["result"]["status"] == "ended"


@pytest.mark.parametrize("later", [0, 6000])
async def test_result_is_that_of_the_last_turn_and_complete(later: int, tmp_path: Path) -> None:
    """However long it is, and however much came after it."""
    writer = Writer(tmp_path)
    text = "word " * 20_000
    writer.emit(TurnEnd(stop_reason="end_turn", final_output="old"), TurnEnd(stop_reason="zz", final_output=text))
    writer.say(later + 1)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        assert await served.client().call("result") == {"final_output": text, "stop_reason": "zz"}


@pytest.mark.parametrize("earlier", [0, 6000])
async def test_result_before_a_turn_has_ended_is_empty(earlier: int, tmp_path: Path) -> None:
    """A run that ended without one has at least its stop reason."""
    writer = Writer(tmp_path)
    writer.say(earlier + 1)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        assert await client.call("result") == {"final_output": None, "stop_reason": None}
        writer.emit(RunEnd(status="FAILED", exit_code=1, stop_reason="spawn_failed"))
        assert await client.call("result") == {"final_output": None, "stop_reason": "spawn_failed"}


@pytest.mark.parametrize("later", [0, 6000])
async def test_result_of_a_manifest_is_what_its_end_says(later: int, tmp_path: Path) -> None:
    """Not what a member says, even after that."""
    writer = Writer(tmp_path)
    writer.emit(RunStart(kind="manifest", backend="b", dir="/d", version="1", parks=False))
    writer.emit(TurnEnd(stop_reason="end_turn", final_output="a member's"))
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        assert await client.call("result") == {"final_output": None, "stop_reason": "end_turn"}
        writer.emit(ManifestEnd(state="accepted", permitted_by="x", final_output="accepted: c0ffee"))
        writer.emit(TurnEnd(stop_reason="cancelled", final_output="a late one's"))
        writer.say(later + 1)
        writer.emit(RunEnd(status="DONE", exit_code=0, stop_reason="accepted"))
        assert await client.call("result") == {"final_output": "accepted: c0ffee", "stop_reason": "accepted"}
        assert (await client.call("status"))["final_output"] == "accepted: c0ffee"


async def test_a_turn_without_output_has_no_final_output(tmp_path: Path) -> None:
    """Null, not an empty text."""
    writer = Writer(tmp_path)
    writer.emit(TurnEnd(stop_reason="cancelled"))
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        assert await served.client().call("result") == {"final_output": None, "stop_reason": "cancelled"}


async def test_history_pages_through_all_events(tmp_path: Path) -> None:
    """From the log as far as memory does not reach, then from memory, without a seam."""
    writer = Writer(tmp_path)
    writer.say(5000)
    assert writer.hub.ring.floor > 0
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        found: list[int] = []
        pages: list[Any] = []
        while not pages or not pages[-1]["complete"]:
            params = {"after_seq": found[-1] if found else 0, "limit": 700}
            pages.append(await client.call("history", params))
            found += [event["seq"] for event in pages[-1]["events"]]
            assert pages[-1]["latest_seq"] == 5000
        assert found == list(range(1, 5001))
        assert [len(page["events"]) for page in pages] == [700] * 7 + [100]
        assert len((await client.call("history"))["events"]) == 64
        assert await client.call("history", {"after_seq": 9999}) == {"events": [], "latest_seq": 5000, "complete": True}


async def test_history_of_a_runtime_that_ended_before_we_started(tmp_path: Path) -> None:
    """Nothing of it is in memory; what the log has of a torn line is not there."""
    writer = Writer(tmp_path, "rt_1")
    writer.say(10)
    with writer.path.open("ab") as file:
        file.write(b'{"event":"agent.message_chunk","seq":11,"ts"')
    hub = EventHub("rt_1", writer.path, Fold(Snapshot(runtime_id="rt_1", status="ended", latest_seq=10)))
    async with serving(tmp_path, FakeHubs(hub)) as served:
        page = await served.client().call("history", {"runtime_id": "rt_1", "after_seq": 4})
        assert [event["seq"] for event in page["events"]] == [5, 6, 7, 8, 9, 10]
        assert page["complete"]


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_page_of_history_fits_into_a_line(is_old: bool, tmp_path: Path) -> None:
    """Large events make it shorter; one that fits into no line is left out."""
    writer = Writer(tmp_path)
    writer.say(8, size=4 << 20)
    writer.say(1, size=16 << 20)
    writer.say(1, size=10)
    if is_old:
        writer.say(5000)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        found: list[int] = []
        while not found or found[-1] < 10:
            page = await client.call("history", {"after_seq": found[-1] if found else 0})
            assert len(page["events"]) <= 3 or is_old
            found += [event["seq"] for event in page["events"]]
        assert found[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 10]


@pytest.mark.parametrize("params", [{"limit": 0}, {"after_seq": -1}, {"limit": "all"}])
async def test_history_refuses_what_means_nothing(params: Any, tmp_path: Path) -> None:
    """With the name of the field."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        error = (await served.client().ask("history", params))["error"]
        assert (error["code"], error["data"]["field"]) == (-32602, next(iter(params)))


async def test_wait_answers_when_the_runtime_is_done(tmp_path: Path) -> None:
    """Parked is done; and what is done already is answered at once."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.send(request(1, "wait", {"until": "done"}) + request(2, "ping"))
        assert (await client.line())["id"] == 2
        writer.emit(SessionStart(backend="b", dir="/d"))
        writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
        answer = await client.line()
        assert (answer["id"], answer["result"]["status"], answer["result"]["final_output"]) == (1, "idle", "x")
        assert (await client.call("wait", {"until": "attention"}))["status"] == "idle"


async def test_wait_for_attention_answers_for_a_permission_request(tmp_path: Path) -> None:
    """Which is not being done."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.send(request(1, "wait", {"until": "attention"}) + request(2, "wait", {"until": "done"}))
        await served.client().ask("ping")
        option = PermissionOption(option_id="once", kind="allow_once")
        writer.emit(PermissionRequest(request_id="p", tool="t", question="?", options=[option], resolver="control"))
        answer = await client.line()
        assert (answer["id"], answer["result"]["pending_permission"]) == (1, True)


async def test_wait_ends_with_its_time(tmp_path: Path) -> None:
    """With the snapshot as it is then."""
    async with serving(tmp_path, FakeHubs(Writer(tmp_path).hub)) as served:
        client = served.client()
        assert (await client.call("wait", {"until": "done", "timeout_ms": 0}))["status"] == "running"
        error = (await client.ask("wait", {"until": "done", "timeout_ms": -1}))["error"]
        assert (error["code"], error["data"]["field"]) == (-32602, "timeout_ms")


@pytest.mark.parametrize("text", ["word " * 20_000, None])
async def test_wait_gives_the_complete_output_if_it_is_asked_for(text: str | None, tmp_path: Path) -> None:
    """That of the last turn, as `result` does, which could come too late."""
    writer = Writer(tmp_path)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        await client.send(request(1, "wait", {"until": "done", "complete_output": True}))
        await served.client().ask("ping")
        output = msgspec.UNSET if text is None else text
        writer.emit(TurnEnd(stop_reason="end_turn", final_output="old"), TurnEnd(stop_reason="zz", final_output=output))
        answer = (await client.line())["result"]
        assert (answer["final_output"], answer["final_output_truncated"]) == (text, False)


@pytest.mark.parametrize("later", [0, 6000])
async def test_wait_leaves_a_huge_output_to_result(later: int, tmp_path: Path) -> None:
    """An answer fits into a line whatever the characters are."""
    writer = Writer(tmp_path)
    fits, huge = "\0" * OUTPUT_LIMIT_CHARS, "x" * (OUTPUT_LIMIT_CHARS + 1)
    async with serving(tmp_path, FakeHubs(writer.hub)) as served:
        client = served.client()
        for text, is_cut in ((fits, False), (huge, True)):
            writer.emit(TurnEnd(stop_reason="end_turn", final_output=text))
            writer.say(later + 1)
            answer = await client.call("wait", {"until": "done", "complete_output": True})
            assert (answer["final_output"] == text, answer["final_output_truncated"]) == (not is_cut, is_cut)
