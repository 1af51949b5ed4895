"""Families: line limits, noise, broken text and unknown things on the agent's side; turns that never end."""

import base64
import json
import sys
from typing import Any

import pytest

from tests.e2e.harness import ASK, WAIT_SECONDS, Client, Stable, read_log, say, steps
from tests.helpers import eventually_sync

_MEBIBYTE = 1024 * 1024


def noise(data: bytes) -> dict[str, Any]:
    """A step that writes these bytes to the agent's stdout."""
    return {"do": "noise", "base64": base64.b64encode(data).decode()}


def update_line(session: str, text: str) -> bytes:
    """A message chunk as one line of the protocol, its characters not escaped."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": session, "update": update}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def play(shared: Stable, client: Client, *each: dict[str, Any], **params: Any) -> tuple[str, list[dict[str, Any]]]:
    """Run these steps to the end of their turn; returns the id and the log."""
    script = shared.place.script(steps(*each))
    runtime_id = client.spawn(shared.place, script=script, **params)["runtime_id"]
    client.call("wait", runtime_id=runtime_id, until="done")
    return runtime_id, read_log(shared.log_path(runtime_id))


def test_noise_between_the_lines_changes_nothing(shared: Stable, client: Client) -> None:
    """Banners, colours, blank lines, CRLF, JSON that is no message, broken text: the turn is whole."""
    noises = [
        b"Welcome to the agent!\n",
        b"\x1b[31mred\x1b[0m\n",
        b"\n\r\n   \n",
        b'{"level":"info","msg":"starting"}\n',
        b"[1,2,3]\n",
        b"null\n42\n",
        b"\xff\xfe\xfa\n",
        b"\x00\x01\x02\n",
        "日本".encode()[:4] + b"\n",
        b'{"jsonrpc":"2.0","id":999,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":"never","error":{"code":1,"message":"x"}}\n',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"somebody else"}}\n',
        b'{"jsonrpc":"2.0","method":"session/update","params":null}\n',
        b'{"jsonrpc":"2.0","method":"session/update"}\n',
        b"{" * 2000 + b"\n",
    ]
    runtime_id, log = play(shared, client, say("One "), *map(noise, noises), say("two."))
    assert client.call("result", runtime_id=runtime_id) == {"final_output": "One two.", "stop_reason": "end_turn"}
    said = [event["text"] for event in log if event["event"] == "agent.noise"]
    assert "Welcome to the agent!" in said
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072, 5 * _MEBIBYTE])
def test_long_lines_arrive_whole(shared: Stable, client: Client, size: int) -> None:
    """Around 64 KiB, and 5 MiB in one line, multibyte characters all through."""
    text = "a" + "é" * (size // 2)
    runtime_id, _ = play(shared, client, say(text))
    assert client.call("result", runtime_id=runtime_id)["final_output"] == text


def test_lines_may_come_in_any_pieces(shared: Stable, client: Client) -> None:
    """One byte at a time, characters cut: the message is whole."""
    source = """
import sys, os, json
def read():
    return json.loads(sys.stdin.buffer.readline())
def say(message):
    for byte in json.dumps(message, ensure_ascii=False).encode() + b"\\n":
        os.write(1, bytes([byte]))
asked = read()
say(dict(jsonrpc="2.0", id=asked["id"], result=dict(protocolVersion=1, agentCapabilities=dict())))
asked = read()
say(dict(jsonrpc="2.0", id=asked["id"], result=dict(sessionId="ses é 日本")))
asked = read()
content = dict(type="text", text="é日本𝄞")
say(dict(jsonrpc="2.0", method="session/update", params=dict(sessionId="ses é 日本",
    update=dict(sessionUpdate="agent_message_chunk", content=content))))
say(dict(jsonrpc="2.0", id=asked["id"], result=dict(stopReason="end_turn")))
sys.stdin.buffer.readline()
"""
    path = shared.place.path / "slow_agent.py"
    path.write_text(source)
    spawned = client.spawn(shared.place, backend="acp", agent_command=f"{sys.executable} {path}")
    assert spawned["session_id"] == "ses é 日本"
    client.call("wait", runtime_id=spawned["runtime_id"], until="done")
    assert client.call("result", runtime_id=spawned["runtime_id"])["final_output"] == "é日本𝄞"


def test_a_line_over_the_limit_ends_the_turn_by_name(shared: Stable, client: Client) -> None:
    """More than 64 MiB in a line: the turn fails and says why; the supervisor is not harmed."""
    runtime_id, log = play(shared, client, {"do": "flood", "count": 1, "size": 65 * _MEBIBYTE}, {"do": "hang"})
    snapshot = client.call("status", runtime_id=runtime_id)
    assert (snapshot["status"], snapshot["outcome"]) == ("ended", "FAILED")
    assert "64 MiB" in json.dumps(log[-1]) or "67108864" in json.dumps(log[-1]), log[-1]


def test_more_output_than_a_line_of_ours_holds(shared: Stable, client: Client) -> None:
    """A turn with more than 16 MiB of output ends and parks, and `result` and `history` are answered."""
    chunk = {"do": "flood", "count": 9, "size": 2 * _MEBIBYTE}
    runtime_id, log = play(shared, client, chunk)
    assert client.call("status", runtime_id=runtime_id)["status"] == "idle"
    output = client.call("result", runtime_id=runtime_id)["final_output"]
    assert len(output) == 18 * _MEBIBYTE or output.endswith(" characters cut]")
    history = client.call("history", runtime_id=runtime_id, limit=1000)
    assert history["latest_seq"] == log[-1]["seq"]
    seen = [event["seq"] for event in history["events"]]
    while not history["complete"]:
        history = client.call("history", runtime_id=runtime_id, after_seq=seen[-1], limit=1000)
        assert history["events"]
        seen += [event["seq"] for event in history["events"]]
    assert seen == [event["seq"] for event in log]
    client.call("prompt", runtime_id=runtime_id, text="again")
    eventually_sync(
        lambda: [e["event"] for e in read_log(shared.log_path(runtime_id))].count("turn.end") == 2, WAIT_SECONDS
    )
    eventually_sync(lambda: client.call("status", runtime_id=runtime_id)["status"] == "idle", WAIT_SECONDS)


def test_output_that_grows_when_it_is_encoded(shared: Stable, client: Client) -> None:
    """Control characters take six bytes each in JSON: the turn, `result` and `history` still end."""
    runtime_id, log = play(shared, client, *[say("\x01" * _MEBIBYTE)] * 2, say("\x01" * (_MEBIBYTE // 2)))
    assert client.call("status", runtime_id=runtime_id)["status"] == "idle"
    assert client.call("result", runtime_id=runtime_id)["final_output"].startswith("\x01" * 1000)
    history = client.call("history", runtime_id=runtime_id, limit=1000)
    assert history["latest_seq"] == log[-1]["seq"]


def test_unknown_updates_and_stop_reasons_are_kept(shared: Stable, client: Client) -> None:
    """An update of a kind that nobody knows is in the log verbatim; the stop reason `zz` stays `zz`, code 1."""
    odd = {"sessionUpdate": "zz_future", "payload": {"deep": [1, {"x": None}]}}
    runtime_id, log = play(
        shared, client, say("Before."), {"do": "update", "update": odd}, say(" After."), {"do": "stop", "reason": "zz"}
    )
    (kept,) = [event for event in log if event["event"] == "session.update"]
    assert "zz_future" in json.dumps(kept)
    assert json.dumps(odd["payload"])[1:-1] in json.dumps(kept)
    snapshot = client.call("status", runtime_id=runtime_id)
    assert (snapshot["stop_reason"], snapshot["exit_code"], snapshot["outcome"]) == ("zz", 1, "FAILED")
    result = client.call("result", runtime_id=runtime_id)
    assert result == {"final_output": "Before. After.", "stop_reason": "zz"}


def test_known_updates_of_a_wrong_shape_are_kept_too(shared: Stable, client: Client) -> None:
    """What does not fit its kind is no reason to lose it, or the turn."""
    shapes = [
        {"sessionUpdate": "agent_message_chunk"},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "hologram", "data": 1}},
        {"sessionUpdate": "tool_call", "toolCallId": 7},
        {"sessionUpdate": "tool_call_update"},
        {"sessionUpdate": "plan", "entries": "none"},
        {"sessionUpdate": "usage_update", "used": "many"},
        {"sessionUpdate": 7},
        {"no": "kind"},
    ]
    updates = [{"do": "update", "update": shape} for shape in shapes]
    runtime_id, log = play(shared, client, *updates, say("Done."))
    assert client.call("result", runtime_id=runtime_id)["final_output"].endswith("Done.")
    text = json.dumps(log)
    assert all(json.dumps(shape)[1:-1] in text or "hologram" in text for shape in shapes[1:3])


def test_unknown_requests_of_the_agent_are_refused(shared: Stable, client: Client) -> None:
    """An agent that asks for what we do not offer is told so, and goes on."""
    each: list[dict[str, Any]] = [
        {"do": "request", "method": name, "params": {}} for name in ("fs/read_text_file", "terminal/create", "zz")
    ]
    runtime_id, _ = play(shared, client, *each, say(" Done."))
    output = client.call("result", runtime_id=runtime_id)["final_output"]
    assert output.count("-32601") == 3
    assert output.endswith("Done.")


def test_stderr_floods_do_not_block_the_agent(shared: Stable, client: Client) -> None:
    """Megabytes on stderr, broken text included, while nobody reads them."""
    runtime_id, _ = play(shared, client, {"do": "stderr", "text": "x" * 100 + "\n" + "y" * 3_000_000}, say("Done."))
    assert client.call("result", runtime_id=runtime_id)["final_output"] == "Done."


def cancelled(client: Client, runtime_id: str) -> dict[str, Any]:
    """Cancel, and look at what it came to."""
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    snapshot = client.call("status", runtime_id=runtime_id)
    assert (snapshot["status"], snapshot["outcome"], snapshot["exit_code"]) == ("ended", "KILLED", 130)
    return dict(snapshot)


def test_a_cancel_that_is_ignored_by_an_agent_that_streams_on(shared: Stable, client: Client) -> None:
    """The turn that never ends, loudly: cancel ends it within its graces all the same."""
    endless = [{"do": "ignore_cancel"}, *[say("blah " * 100, chunks=100, every=0.02)] * 100]
    script = shared.place.script(steps(*endless), name="endless.json")
    runtime_id = client.spawn(shared.place, script=script)["runtime_id"]
    client.call("subscribe", runtime_id=runtime_id)
    client.wait_event("agent.message_chunk", runtime_id)
    cancelled(client, runtime_id)


@pytest.mark.parametrize("at", ["start", "initialize", "session"])
def test_cancel_during_set_up(shared: Stable, client: Client, at: str) -> None:
    """There is no session to cancel yet; the spawn that waits for one is told, and the agent is gone."""
    script = shared.place.script(handshake={"at": at, "fault": "hang"}, name=f"{at}.json")
    params = {"prompt": "x", "dir": str(shared.place.work), "backend": "scripted", "script": script}
    waiting = client.send("spawn", **params)
    started = Client(shared.socket)
    runtime_id = eventually_sync(
        lambda: next((r["runtime_id"] for r in started.call("list") if r["pid"] and r["status"] != "ended"), None),
        WAIT_SECONDS,
    )
    eventually_sync(lambda: shared.place.processes_like(script), WAIT_SECONDS)
    assert runtime_id is not None
    cancelled(client, runtime_id)
    error = client.answer(waiting)["error"]
    assert error["data"]["runtime_id"] == runtime_id
    assert shared.place.processes_like(script) == []
    started.close()


def test_cancel_twice_and_late(shared: Stable, client: Client) -> None:
    """Several at once are all answered; one that comes when it is over says what is true, and changes nothing."""
    script = shared.place.script(steps(say("x"), {"do": "hang"}))
    runtime_id = client.spawn(shared.place, script=script)["runtime_id"]
    asked = [client.send("cancel", runtime_id=runtime_id) for _ in range(3)]
    assert [client.answer(each)["result"]["ok"] for each in asked] == [True] * 3
    sentinel = shared.sentinel(runtime_id)
    late = client.ask("cancel", runtime_id=runtime_id)
    assert late.get("result") == {"ok": True, "left": []} or late["error"]["code"] == -32000, late
    assert shared.sentinel(runtime_id) == sentinel
    assert [event["event"] for event in read_log(shared.log_path(runtime_id))].count("run.end") == 1


def test_cancel_with_an_open_permission(shared: Stable, client: Client) -> None:
    """The request is settled as cancelled, before the session ends; a late answer finds nothing pending."""
    runtime_id = client.spawn(shared.place, script=shared.place.script(steps(ASK, say("after"))))["runtime_id"]
    request = client.call("wait", runtime_id=runtime_id, until="attention")["permission"]
    cancelled(client, runtime_id)
    log = read_log(shared.log_path(runtime_id))
    (response,) = [event for event in log if event["event"] == "permission.response"]
    assert (response["kind"], response["source"]) == ("cancelled", "cancel")
    answer = {"runtime_id": runtime_id, "request_id": request["request_id"], "option_id": "once"}
    assert client.refusal("answer_permission", **answer)["code"] in (-32001, -32000)


def test_deny_is_not_cancel(shared: Stable, client: Client) -> None:
    """A rejected tool call fails with the agent's own option; the turn goes on to its own end."""
    script = shared.place.script(steps(ASK, say("So I did without.")))
    runtime_id = client.spawn(shared.place, script=script)["runtime_id"]
    request = client.call("wait", runtime_id=runtime_id, until="attention")["permission"]
    client.call("answer_permission", runtime_id=runtime_id, request_id=request["request_id"], option_id="reject")
    snapshot = client.call("wait", runtime_id=runtime_id, until="done")
    assert (snapshot["outcome"], snapshot["stop_reason"]) == ("DONE", "end_turn")
    log = read_log(shared.log_path(runtime_id))
    (response,) = [event for event in log if event["event"] == "permission.response"]
    assert (response["option_id"], response["kind"], response["source"]) == ("reject", "reject", "control")
    assert client.call("result", runtime_id=runtime_id)["final_output"].endswith("So I did without.")


@pytest.mark.parametrize("mid_line", [False, True])
def test_a_death_mid_turn_is_told_with_what_was_said(shared: Stable, client: Client, mid_line: bool) -> None:
    """An agent that is killed in its turn: FAILED, not completed, and what it had said is kept."""
    runtime_id, log = play(shared, client, say("Half of it"), {"do": "die", "signal": "SIGKILL", "mid_line": mid_line})
    snapshot = client.call("status", runtime_id=runtime_id)
    assert snapshot["outcome"] == "FAILED"
    assert snapshot["stop_reason"] not in ("end_turn", "cancelled")
    assert client.call("result", runtime_id=runtime_id)["final_output"].startswith("Half of it")
    assert log[-1]["event"] == "run.end"
