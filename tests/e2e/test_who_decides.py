"""Families: permissions through files, many sessions with one BASE, ownership, prompts that are never run."""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import ASK, AVENOR, WAIT_SECONDS, Client, Place, Stable, read_log, say, steps
from tests.helpers import eventually_sync


def asking(place: Place, **ask: Any) -> str:
    """A script whose turn asks once, and says what it was told."""
    return place.script(steps({**ASK, **ask}, say("Done.")), name="ask.json")


def hanging(place: Place) -> str:
    """A script that echoes a prompt when it is told to `go`, and hangs at any other."""
    return place.script(steps({"do": "echo"}, match="^go"), steps(say("Hm."), {"do": "hang"}), name="hanging.json")


def responses(stable: Stable, runtime_id: str) -> list[dict[str, Any]]:
    """The permission responses in a log."""
    return [event for event in read_log(stable.log_path(runtime_id)) if event["event"] == "permission.response"]


def test_many_sessions_share_one_permission_base(shared: Stable, client: Client) -> None:
    """Four runs ask through one BASE at the same time: each gets an answer that was meant for it, none is lost."""
    base = shared.place.path / "common"
    ids = [
        client.spawn(
            shared.place,
            script=asking(shared.place),
            permission_handler=f"file:{base}",
            permission_claim_timeout="1ms",
        )["runtime_id"]
        for _ in range(4)
    ]
    request, response = Path(f"{base}.req"), Path(f"{base}.req.response")
    by_session = {client.call("status", runtime_id=each)["session_id"]: each for each in ids}
    answered: set[str] = set()

    def answer_next() -> bool:
        """Answer what is on the disk, as a careful person would."""
        for runtime_id in ids:
            if client.call("status", runtime_id=runtime_id)["status"] == "idle":
                answered.add(runtime_id)
        if len(answered) == len(ids):
            return True
        try:
            asked = json.loads(request.read_text())
        except (OSError, ValueError):
            return False
        if not response.exists():
            option = "once" if by_session[asked["session_id"]] in ids[:2] else "reject"
            answer = {"outcome": "selected", "option_id": option, "request_id": asked["request_id"]}
            temporary = Path(f"{base}.tmp")
            temporary.write_text(json.dumps(answer))
            temporary.rename(response)
        return False

    eventually_sync(answer_next, WAIT_SECONDS)
    told = {runtime_id: [each["option_id"] for each in responses(shared, runtime_id)] for runtime_id in ids}
    assert told == {ids[0]: ["once"], ids[1]: ["once"], ids[2]: ["reject"], ids[3]: ["reject"]}


def test_an_answer_to_one_run_never_fits_the_question_of_another(shared: Stable, client: Client) -> None:
    """A's question is settled elsewhere and B's takes its place: the answer that was meant for A settles nothing."""
    base = shared.place.path / "handed-on"
    request, response = Path(f"{base}.req"), Path(f"{base}.req.response")
    script = asking(shared.place)
    handler = {"permission_handler": f"file:{base}", "permission_claim_timeout": "1ms"}
    first = client.spawn(shared.place, script=script, **handler)
    eventually_sync(request.exists, WAIT_SECONDS)
    meant = json.loads(request.read_text())
    second = client.spawn(shared.place, script=script, **handler)
    client.call("answer_permission", runtime_id=first["runtime_id"], request_id=meant["request_id"], option_id="reject")

    def is_handed_on() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(request.read_text())["session_id"] == second["session_id"])
        return False

    eventually_sync(is_handed_on, WAIT_SECONDS)
    answer = {"outcome": "selected", "option_id": "once", "request_id": meant["request_id"]}
    response.write_text(json.dumps(answer))
    wait_complaints(shared, second["runtime_id"], 1)
    assert responses(shared, second["runtime_id"]) == []
    assert client.call("status", runtime_id=second["runtime_id"])["pending_permission"] is True
    client.call("cancel", runtime_id=second["runtime_id"])


def test_wrong_answers_are_reported_and_waited_on(shared: Stable, client: Client) -> None:
    """Half-written, wrong id, unknown option and outcome, a directory: none settles it; the right one does."""
    base = shared.place.path / "odd"
    spawned = client.spawn(
        shared.place, script=asking(shared.place), permission_handler=f"file:{base}", permission_claim_timeout="1ms"
    )
    runtime_id = spawned["runtime_id"]
    request, response = Path(f"{base}.req"), Path(f"{base}.req.response")
    eventually_sync(request.exists, WAIT_SECONDS)
    asked = json.loads(request.read_text())
    assert request.stat().st_mode & 0o777 == 0o600
    wrong: list[dict[str, Any]] = [
        {"outcome": "selected", "option_id": "once", "request_id": "perm_999"},
        {"outcome": "selected", "option_id": "maybe"},
        {"outcome": "selected"},
        {"outcome": "perhaps", "option_id": "once"},
        {},
    ]
    for number, each in enumerate(wrong, 1):
        response.write_text(json.dumps(each))
        wait_complaints(shared, runtime_id, number)
        assert responses(shared, runtime_id) == []
    response.write_text('{"outcome":"sel')
    assert client.call("status", runtime_id=runtime_id)["pending_permission"] is True
    answer = [AVENOR, "answer", str(base), "--option", "reject", "--force"]
    assert subprocess.run(answer, capture_output=True, timeout=60).returncode == 0
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    (settled,) = responses(shared, runtime_id)
    assert (settled["request_id"], settled["kind"], settled["source"]) == (asked["request_id"], "reject", "file")
    assert not request.exists()


def wait_complaints(stable: Stable, runtime_id: str, count: int) -> None:
    """Wait until so many wrong answers were reported."""
    eventually_sync(lambda: len(complaints(stable, runtime_id)) >= count, WAIT_SECONDS)


def complaints(stable: Stable, runtime_id: str) -> list[dict[str, Any]]:
    """What was reported about permissions."""
    log = read_log(stable.log_path(runtime_id))
    return [event for event in log if event["event"] == "avenor.error" and event["source"] == "permission"]


def test_a_file_handler_that_cannot_work_leaves_the_socket(shared: Stable, client: Client) -> None:
    """BASE lies in a directory that does not exist: told, and answered over the socket."""
    spawned = client.spawn(
        shared.place,
        script=asking(shared.place),
        permission_handler="file:/nonexistent/base",
        permission_claim_timeout="1ms",
    )
    runtime_id = spawned["runtime_id"]
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    asked = client.wait_event("permission.request", runtime_id, resolver="none")
    assert complaints(shared, runtime_id)
    client.call("answer_permission", runtime_id=runtime_id, request_id=asked["request_id"], option_id="once")
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"


def test_the_first_answer_wins_among_many(shared: Stable, client: Client) -> None:
    """Ten answers at once, different ones: one is accepted, the others are told that nothing is pending."""
    runtime_id = client.spawn(shared.place, script=asking(shared.place))["runtime_id"]
    request_id = client.call("wait", runtime_id=runtime_id, until="attention")["permission"]["request_id"]
    asked = [
        client.send("answer_permission", runtime_id=runtime_id, request_id=request_id, option_id=option)
        for option in ["once", "reject"] * 5
    ]
    answers = [client.answer(each) for each in asked]
    assert answers[0]["result"] == {"accepted": True}
    assert {each["error"]["code"] for each in answers[1:]} == {-32001}
    assert [each["option_id"] for each in responses(shared, runtime_id)] == ["once"]


def test_a_lost_owner_locks_nobody_out(shared: Stable, client: Client) -> None:
    """The owner disconnects with a permission open: anybody can answer, prompt, and cancel."""
    with Client(shared.socket) as owner:
        runtime_id = owner.spawn(shared.place, script=asking(shared.place))["runtime_id"]
        request_id = owner.call("wait", runtime_id=runtime_id, until="attention")["permission"]["request_id"]
        for method, params in (
            ("cancel", {}),
            ("prompt", {"text": "x"}),
            ("interrupt_and_prompt", {"text": "x"}),
            ("answer_permission", {"request_id": request_id, "option_id": "once"}),
            ("claim", {}),
        ):
            error = client.refusal(method, runtime_id=runtime_id, **params)
            assert (error["code"], bool(error["data"]["owner"])) == (-32010, True), method
        assert client.call("status", runtime_id=runtime_id)["status"] == "running"
        assert client.call("history", runtime_id=runtime_id)["events"]
    eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["owner"] is None, WAIT_SECONDS)
    client.call("answer_permission", runtime_id=runtime_id, request_id=request_id, option_id="once")
    assert client.call("status", runtime_id=runtime_id)["owner"] is not None
    assert client.call("cancel", runtime_id=runtime_id)["ok"] is True


def test_force_takes_over_and_tells_the_old_owner(shared: Stable, client: Client) -> None:
    """`claim force`: the old owner gets a notice, and is refused from then on."""
    with Client(shared.socket) as old:
        runtime_id = old.spawn(shared.place, script=hanging(shared.place))["runtime_id"]
        owner = client.call("claim", runtime_id=runtime_id, force=True)["owner"]
        notice = old.notice()
        assert (notice["kind"], notice["runtime_id"], notice["owner"]) == ("owner.changed", runtime_id, owner)
        assert old.refusal("prompt", runtime_id=runtime_id, text="x")["code"] == -32010
        assert old.call("cancel", runtime_id=runtime_id, force=True)["ok"] is True
        assert client.notice()["kind"] == "owner.changed"


def test_an_operator_can_always_shut_down(stable: Stable) -> None:
    """Whoever owns what, `shutdown` is not refused."""
    owner = stable.connect()
    owner.spawn(stable.place, script=hanging(stable.place))
    assert stable.shutdown("graceful") == 0


def test_accepted_prompts_are_run_in_order(shared: Stable, client: Client) -> None:
    """Twenty prompts at once, while a turn is on and while it is parked: each accepted one is run, once, in order."""
    runtime_id = client.spawn(shared.place, script=hanging(shared.place), prompt="go first")["runtime_id"]
    texts = [f"go {number}" for number in range(20)]
    asked = [client.send("prompt", runtime_id=runtime_id, text=text) for text in texts]
    assert all(client.answer(each)["result"]["accepted"] for each in asked)
    eventually_sync(lambda: turns(shared, runtime_id)[1] == 21, WAIT_SECONDS)
    assert turns(shared, runtime_id)[0] == ["go first", *texts]
    client.call("wait", runtime_id=runtime_id, until="done")
    assert client.call("result", runtime_id=runtime_id)["final_output"] == "go 19"


def turns(stable: Stable, runtime_id: str) -> tuple[list[str], int]:
    """The prompts that were sent, and how many turns have ended."""
    log = read_log(stable.log_path(runtime_id))
    started = [event["text"] for event in log if event["event"] == "turn.start"]
    return started, [event["event"] for event in log].count("turn.end")


def test_a_prompt_that_races_with_the_end_is_run_or_refused(shared: Stable, client: Client) -> None:
    """Prompts pipelined around a cancel: what was accepted before it is told of, what came after it is refused."""
    for before in range(4):
        runtime_id = client.spawn(shared.place, script=hanging(shared.place), prompt="go")["runtime_id"]
        client.call("wait", runtime_id=runtime_id, until="done")
        early = [client.send("prompt", runtime_id=runtime_id, text=f"go {n}") for n in range(before)]
        cancel = client.send("cancel", runtime_id=runtime_id)
        late = client.send("prompt", runtime_id=runtime_id, text="go late")
        assert client.answer(cancel)["result"]["ok"] is True
        assert "error" in client.answer(late)
        accepted = [f"go {n}" for n, each in enumerate(early) if "result" in client.answer(each)]
        log = read_log(shared.log_path(runtime_id))
        queued = [event["text"] for event in log if event["event"] == "prompt.queued"]
        assert queued == accepted
        assert "go late" not in json.dumps(log)
        assert [event["event"] for event in log].count("run.end") == 1


def test_a_prompt_at_the_end_of_a_one_shot_run(place: Place) -> None:
    """Prompts sent while `avenor run` comes to its end: each accepted one is run."""
    sock = place.path / "r.sock"
    gate = place.work / "gate"
    script = place.script(steps({"do": "echo"}, match="^more"), steps({"do": "wait_for", "path": str(gate)}))
    run = place.run("--prompt", "x", "--script", script, "--control-socket", str(sock))
    run.wait_event("turn.start")
    accepted: list[str] = []
    with Client(sock) as client:
        gate.touch()
        for number in range(1000):
            try:
                answer = client.ask("prompt", text=f"more {number}")
            except (EOFError, OSError):
                break
            if "error" in answer:
                assert answer["error"]["data"]["reason"] == "run_ending"
                break
            accepted.append(f"more {number}")
            if number == 30:
                client.close()
                break
    assert run.finish() == 0
    started = [event["text"] for event in run.events() if event["event"] == "turn.start"]
    assert started == ["x", *accepted]


def test_interrupt_cuts_the_turn_and_drops_or_keeps_the_queue(shared: Stable, client: Client) -> None:
    """The interrupted turn is told as cancelled, the run is not; the new prompt is next."""
    for keep, expected in ((False, ["x", "go now"]), (True, ["x", "go now", "go later"])):
        runtime_id = client.spawn(shared.place, script=hanging(shared.place), prompt="x")["runtime_id"]
        client.call("subscribe", runtime_id=runtime_id, replay=True)
        client.wait_event("agent.message_chunk", runtime_id)
        client.call("prompt", runtime_id=runtime_id, text="go later")
        client.call("interrupt_and_prompt", runtime_id=runtime_id, text="go now", keep_queue=keep)
        client.wait_event("turn.end", runtime_id, final_output=expected[-1])
        client.call("wait", runtime_id=runtime_id, until="done")
        assert turns(shared, runtime_id)[0] == expected
        assert client.call("status", runtime_id=runtime_id)["outcome"] == "DONE"


def test_auto_approve_takes_no_trap(shared: Stable, client: Client) -> None:
    """Options that only look like a harmless yes are not taken: always, a reject by name, and none at all."""
    traps = [
        [{"id": "a", "kind": "allow_always", "name": "Always"}, {"id": "r", "kind": "reject_once", "name": "No"}],
        [{"id": "reject", "kind": "allow_once", "name": "Yes"}, {"id": "r", "kind": "reject_once", "name": "No"}],
        [{"id": "a", "kind": "allow_once", "name": "Reject it"}, {"id": "r", "kind": "reject_once", "name": "No"}],
        [{"id": "r", "kind": "reject_once", "name": "No"}],
    ]
    for number, options in enumerate(traps):
        script = shared.place.script(steps({**ASK, "ask": {"options": options}}), name=f"trap{number}.json")
        runtime_id = client.spawn(shared.place, script=script, auto_approve=True)["runtime_id"]
        snapshot = client.call("wait", runtime_id=runtime_id, until="attention")
        assert snapshot["pending_permission"] is True, options
        assert complaints(shared, runtime_id)


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge", "missing", "binary", "unreadable", "device"])
def test_a_strange_prompt_file_does_not_block_the_supervisor(shared: Stable, client: Client, kind: str) -> None:
    """It is refused by the name of the field, uses no id, and leaves the FAILED sentinel that was asked for."""
    path = shared.place.path / f"prompt.{kind}"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "binary":
            path.write_bytes(b"\xff\xfe\x00")
        case "unreadable":
            path.symlink_to(path)
        case "device":
            path = Path("/dev/zero")
        case _:
            pass
    before = [each["runtime_id"] for each in client.call("list")]
    sentinel = shared.place.path / f"{kind}.done"
    params = {"dir": str(shared.place.work), "backend": "scripted", "sentinel_file": str(sentinel)}
    error = client.refusal("spawn", prompt_file=str(path), **params)
    assert (error["code"], error["data"]["field"]) == (-32602, "prompt_file")
    assert [each["runtime_id"] for each in client.call("list")] == before
    assert sentinel.read_text().startswith("FAILED\n")
