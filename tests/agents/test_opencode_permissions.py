"""Permissions of real opencode: asked over the socket, through files, and answered by avenor itself."""

import functools
import json
from pathlib import Path

import pytest

from avenor.control.blocking import Client
from avenor.protocol.errors import NoPendingPermission
from avenor.protocol.events import PermissionRequest, PermissionResponse, ToolCallUpdate, TurnEnd
from avenor.protocol.outcomes import Status
from tests.agents.harness import Home, MakeRun, Runtime, Stable
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents


def test_a_tool_runs_once_the_owner_has_allowed_it(shared: Runtime) -> None:
    """The question comes with its options and is seen in the status; the answer is taken once."""
    request = shared.ask("[[shell: echo allowed > allowed.txt]][[text: done]]")
    assert request.resolver == "control"
    assert {option.option_id for option in request.options} >= {"once", "reject"}
    snapshot = shared.snapshot()
    assert snapshot.permission
    assert snapshot.permission.request_id == request.request_id
    assert not (shared.folder / "allowed.txt").exists()
    assert shared.client.answer_permission(request.request_id, "once", shared.id).accepted
    response = shared.wait(PermissionResponse)
    assert (response.kind, response.source) == ("allow", "control")
    end = shared.wait(TurnEnd)
    assert (end.stop_reason, end.final_output) == ("end_turn", "done")
    assert (shared.folder / "allowed.txt").read_text() == "allowed\n"
    assert shared.events(ToolCallUpdate)[-1].status == "completed"
    assert not shared.snapshot().pending_permission
    with pytest.raises(NoPendingPermission):
        shared.client.answer_permission(request.request_id, "once", shared.id)


def test_a_file_is_written_once_the_shell_has_allowed_it(shared: Runtime) -> None:
    """An edit is asked for like a command; `avenor control answer-permission` answers it."""
    request = shared.ask("[[write: poem.txt | roses are red]][[text: written]]")
    shared.client.release(shared.id)
    answered = shared.stable.control("answer-permission", request.request_id, "once", shared.id)
    assert answered.returncode == 0, answered.stderr
    assert shared.wait(TurnEnd).final_output == "written"
    assert (shared.folder / "poem.txt").read_text() == "roses are red\n"


def test_a_rejected_tool_does_not_run_and_ends_the_turn(shared: Runtime) -> None:
    """opencode ends its turn when it is told no: end_turn, no file, and the session takes the next prompt."""
    request = shared.ask("[[shell: echo no > rejected.txt]][[text: never said]]")
    shared.client.answer_permission(request.request_id, "reject", shared.id)
    assert shared.wait(PermissionResponse).kind == "reject"
    end = shared.wait(TurnEnd)
    assert (end.stop_reason, end.final_output) == ("end_turn", "")
    assert shared.events(ToolCallUpdate)[-1].status == "failed"
    assert not (shared.folder / "rejected.txt").exists()
    assert shared.turn("[[text: still here]]").final_output == "still here"


def test_without_an_owner_the_question_goes_through_files(
    stable: Stable, client: Client, home: Home, tmp_path: Path
) -> None:
    """A spawn from the shell has no owner left: `avenor answer` allows the first command and rejects the second."""
    base = tmp_path / "ask"
    request = Path(f"{base}.req")
    prompt = "[[shell: echo one > one.txt]][[shell: echo two > two.txt]][[text: never said]]"
    words = ["--dir", str(tmp_path), "--permission-handler", f"file:{base}", "--prompt", prompt]
    spawned = stable.control("spawn", *words)
    assert spawned.returncode == 0, spawned.stderr
    runtime = Runtime(stable, client, json.loads(spawned.stdout)["runtime_id"], tmp_path)

    def is_asked(request_id: str) -> bool:
        return request.exists() and json.loads(request.read_text())["request_id"] == request_id

    def answer(option: str) -> int:
        return home.command(["avenor", "answer", str(base), "--option", option], tmp_path).returncode

    for option in ("once", "reject"):
        asked = runtime.wait(PermissionRequest)
        assert asked.resolver == "file"
        eventually_sync(functools.partial(is_asked, asked.request_id))
        assert answer("perhaps") == 2
        assert answer(option) == 0
        assert runtime.wait(PermissionResponse).source == "file"
    assert runtime.wait(TurnEnd).stop_reason == "end_turn"
    assert (tmp_path / "one.txt").read_text() == "one\n"
    assert not (tmp_path / "two.txt").exists()
    assert not request.exists()


def test_auto_approve_allows_once_and_asks_nobody(run: MakeRun) -> None:
    """Every question is answered with the option that allows this one time."""
    one = run("--auto-approve", "--prompt", "[[shell: echo 1 > a.txt]][[write: b.txt | 2]][[text: both]]")
    assert one.finish() == (0, "both\n"), one.errors()
    assert (one.folder / "a.txt").read_text() == "1\n"
    assert (one.folder / "b.txt").read_text() == "2\n"
    assert [request.resolver for request in one.events(PermissionRequest)] == ["automatic"] * 2
    answers = [(event.option_id, event.kind, event.source) for event in one.events(PermissionResponse)]
    assert answers == [("once", "allow", "avenor")] * 2
    assert one.sentinel().status is Status.DONE
