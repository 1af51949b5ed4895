"""What the MCP tools make of a supervisor's answers, in virtual time."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.control.mcp.calls import PROGRESS_SECONDS, SPAWN_SECONDS, UNSEEN_WAIT_SECONDS, Jockey
from avenor.control.mcp.private import PrivateSupervisor
from avenor.control.mcp.problems import problem_text
from avenor.control.mcp.tools import BY_NAME
from avenor.control.mcp.views import run_of
from avenor.protocol.errors import (
    BrokenError,
    ConfigError,
    InvalidParams,
    LimitReached,
    MethodNotFound,
    Refused,
    SpawnError,
    Unsupported,
)
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams
from tests.control.mcp_kit import FakeClient

WORKING = Snapshot(run_id="r", runtime_id="rt_1", status="running", phase="working", phase_label="tests")


class Seen:
    """A host that shows progress."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, str]] = []

    async def report(self, seconds: float, text: str) -> None:
        """Keep it."""
        self.reports.append((seconds, text))


async def call(client: FakeClient, name: str, seen: Seen | None = None, **arguments: Any) -> dict[str, Any]:
    """The result of a tool."""
    jockey = Jockey(client.link)
    result = await jockey.call(BY_NAME[name], arguments, None if seen is None else seen.report)
    found: dict[str, Any] = msgspec.to_builtins(result)
    return found


async def test_a_wait_tells_of_its_progress_until_the_run_is_settled(autojump_clock: MockClock) -> None:
    """A host that shows progress waits as long as it takes."""
    client, seen = FakeClient(WORKING), Seen()

    async def finish() -> None:
        await trio.sleep(3600 + PROGRESS_SECONDS / 2)
        client.snapshots[0] = Snapshot(run_id="r", runtime_id="rt_1", status="idle", final_output="Ready.")
        client.changed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        result = await call(client, "avenor_result", seen, run_id="r")
    assert result == {"ready": True, "status": "done", "output": "Ready."}
    assert len(seen.reports) == 3600 / PROGRESS_SECONDS
    assert [seconds for seconds, _ in seen.reports] == sorted(seconds for seconds, _ in seen.reports)
    assert "working (tests)" in seen.reports[0][1]


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [({}, UNSEEN_WAIT_SECONDS), ({"timeout": "2m"}, 120), ({"timeout": 7}, 7), ({"timeout": "7"}, 7)],
)
async def test_a_wait_that_nobody_sees_ends_before_the_host_gives_it_up(
    autojump_clock: MockClock, arguments: dict[str, Any], seconds: float
) -> None:
    """Unless a time was given."""
    started = trio.current_time()
    result = await call(FakeClient(WORKING), "avenor_result", run_id="r", **arguments)
    assert result == {"ready": False, "status": "running", "output": None, "timed_out": True}
    assert trio.current_time() - started == pytest.approx(seconds)


async def test_a_look_that_does_not_wait_has_not_timed_out(autojump_clock: MockClock) -> None:
    """Nothing was waited for."""
    assert "timed_out" not in await call(FakeClient(WORKING), "avenor_result", run_id="r", wait=False)
    assert trio.current_time() == 0


async def test_a_spawn_that_has_to_wait_for_a_place_is_answered_all_the_same(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """With the ids of the run that waits."""
    client = FakeClient()
    started = await call(client, "avenor_spawn", repo_dir=str(tmp_path), prompt="x", label="late")
    assert started == {"run_id": client.snapshots[0].run_id, "runtime_id": "rt_1", "label": "late"}
    assert trio.current_time() == SPAWN_SECONDS
    assert (await call(client, "avenor_status", run_id="late"))["status"] == "waiting"


async def test_a_spawn_is_answered_from_its_own_result(tmp_path: Path) -> None:
    """Nothing that is asked after it can make an error of a run that has begun."""
    client = FakeClient()
    client.session_id = "s"
    started = await call(client, "avenor_spawn", repo_dir=str(tmp_path), prompt="x", label="early")
    assert started == {"run_id": client.spawned[0].run_id, "runtime_id": "rt_1", "label": "early"}
    assert client.asked == ["spawn"]


async def test_a_list_needs_no_more_of_a_snapshot_than_its_view_shows() -> None:
    """With many runs whole ones fit into no answer."""
    option: dict[str, Any] = {"request_id": "p", "tool": "t", "question": "q", "options": [], "resolver": "control"}
    told = {"run_id": "r", "runtime_id": "rt_1", "label": "l", "kind": "team", "started_at": 1}
    asking = {**told, "status": "running", "pending_permission": True, "permission": option, "permissions": [option]}
    ended = {**told, "status": "ended", "outcome": "FAILED", "stop_reason": "zz", "reason": "why", "ended_at": 2}
    runs = [msgspec.convert({**each, "final_output": "x"}, Snapshot) for each in (asking, ended)]
    client = FakeClient(*runs)
    listed = await call(client, "avenor_list")
    assert listed["runs"] == [msgspec.to_builtins(run_of(run, "lifecycle")) for run in runs]
    assert client.fields is not None
    assert "final_output" not in client.fields
    assert (await call(client, "avenor_list", view="full"))["runs"][0]["output_excerpt"] == "x"


async def test_params_that_models_write_as_text_are_taken() -> None:
    """ "true" for true, "5" for 5."""
    assert not (await call(FakeClient(WORKING), "avenor_result", run_id="r", wait="false"))["ready"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "run_id"),
        ({"run_id": "r", "wait": 3}, "wait"),
        ({"run_id": "r", "x": 1}, "`x`"),
        ({"run_id": "r", "timeout": "soon"}, "timeout"),
    ],
)
async def test_params_that_do_not_fit_are_refused_by_name(arguments: dict[str, Any], word: str) -> None:
    """And all that there are is told."""
    with pytest.raises(InvalidParams, match=word):
        await call(FakeClient(WORKING), "avenor_result", **arguments)


ENDED = Snapshot(run_id="r", runtime_id="rt_1", status="ended", session_id="s", on_event="/elsewhere/e.ndjson")


async def test_a_follow_up_keeps_what_the_run_was_asked_to_do_but_not_its_files(autojump_clock: MockClock) -> None:
    """Wherever its log is: the supervisor knows."""
    client = FakeClient(ENDED)
    client.specs["rt_1"] = SpawnParams(
        prompt_file="/p",
        dir="/d",
        backend="acp",
        agent_command="agent",
        env={"A": "b"},
        timeout=60.0,
        mcp_config="/m",
        on_event="/elsewhere/e.ndjson",
        sentinel_file="/s",
        permission_handler="file:/s.perm",
        parent_id="rt_0",
        on_crash="resume",
    )
    resumed = await call(client, "avenor_follow_up", run_id="r", prompt="next")
    assert (resumed["runtime_id"], resumed["resumed"]) == ("rt_2", True)
    run_id = resumed["run_id"]
    assert client.spawned == [
        SpawnParams(
            prompt="next",
            dir="/d",
            backend="acp",
            agent_command="agent",
            env={"A": "b"},
            timeout=60.0,
            on_crash="resume",
            resume="s",
            run_id=run_id,
            key=run_id,
        )
    ]


async def test_a_follow_up_is_refused_rather_than_guessed(autojump_clock: MockClock) -> None:
    """Where the supervisor does not say what the run was asked to do."""
    client = FakeClient(ENDED)
    with pytest.raises(MethodNotFound):
        await call(client, "avenor_follow_up", run_id="r", prompt="next")
    assert client.spawned == []


@pytest.mark.parametrize(
    ("ended", "word"),
    [
        (Snapshot(run_id="r", status="ended", kind="team", session_id="s"), "team"),
        (Snapshot(run_id="r", status="ended"), "before it had a session"),
    ],
)
async def test_what_has_no_session_to_go_on_with_is_refused(ended: Snapshot, word: str) -> None:
    """A team has many, and a run that never started has none."""
    with pytest.raises(Unsupported, match=word):
        await call(FakeClient(ended), "avenor_follow_up", run_id="r", prompt="x")


async def test_a_run_that_has_ended_takes_no_prompts_but_a_follow_up() -> None:
    """And the refusal says so."""
    client = FakeClient(Snapshot(run_id="r", runtime_id="rt_1", status="ended", outcome="DONE"))
    for name in ("avenor_prompt", "avenor_interrupt"):
        with pytest.raises(Refused, match="avenor_follow_up"):
            await call(client, name, run_id="r", prompt="x")
    assert await call(client, "avenor_cancel", run_id="r") == {"ok": True, "left": [], "status": "done"}


async def test_a_private_supervisor_that_cannot_be_launched_is_a_spawn_error(tmp_path: Path) -> None:
    """Its directory cannot be made."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SpawnError, match="cannot start a supervisor"):
        await PrivateSupervisor(str(tmp_path / "file" / "s.sock"), None).find()


async def test_of_several_permissions_one_must_be_named() -> None:
    """The refusal lists them."""
    option: dict[str, Any] = {"tool": "t", "question": "q", "options": [], "resolver": "control"}
    both = msgspec.convert(
        {"run_id": "r", "status": "running", "permissions": [{"request_id": name, **option} for name in ("p1", "p2")]},
        Snapshot,
    )
    with pytest.raises(InvalidParams) as caught:
        await call(FakeClient(both), "avenor_answer_permission", run_id="r", option_id="once")
    assert caught.value.data["candidates"] == ["p1", "p2"]


async def test_a_relative_directory_means_nothing_once_ours_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was started in one that was removed since."""
    here = tmp_path / "d"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(InvalidParams, match="repo_dir 'x': the working directory is gone"):
        await call(FakeClient(WORKING), "avenor_spawn", repo_dir="x", prompt="y")


def test_a_problem_tells_its_facts_once_and_what_to_do() -> None:
    """As text that a model reads."""
    mistakes = [{"file": "t.json", "path": "$.x", "message": "unknown"}, {"path": "$.y", "message": "wrong"}]
    text = problem_text("avenor_spawn", ConfigError("two mistakes", data={"field": "f", "errors": mistakes}))
    assert text == "avenor_spawn: two mistakes\nerrors: t.json $.x unknown; $.y wrong"
    option = {"optionId": "once", "kind": "allow_once", "name": "Once"}
    assert problem_text("t", InvalidParams("no", data={"options": [option]})) == "t: no\noptions: once"
    assert "avenor_cancel" in problem_text("avenor_spawn", LimitReached("no place is free"))
    assert "before you repeat it" in problem_text("avenor_prompt", BrokenError("it broke"))
    assert "may succeed later" in problem_text("avenor_spawn", ConfigError("busy", retryable=True))
    nobody = problem_text("avenor_spawn", BrokenError("nobody is there", reason="no_server"))
    assert nobody == "avenor_spawn: nobody is there\nThe same call may succeed later."
