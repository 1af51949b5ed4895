"""Turns, questions and noise of an ACP session, with agents that do one odd thing each."""

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from avenor.host import tree
from avenor.protocol import events
from avenor.runtimes.backends import acp_questions, acp_session, agent_link, line_wire
from avenor.runtimes.backends.base import AgentExit, OpenParams, PermissionAnswer, PermissionAsk, TurnStop
from avenor.runtimes.backends.registry import get_backend
from tests.helpers import eventually
from tests.runtimes.agent_kit import (
    GRACES,
    QUICK,
    TURN_SECONDS,
    RecordingSink,
    make_params,
    never,
    opened,
    picks,
    python_agent,
)
from tests.runtimes.mini_agent import PRELUDE

ACP = get_backend("acp")


def _params(folder: Path, body: str, **changes: object) -> OpenParams:
    return make_params(folder, command=python_agent(folder, PRELUDE + body), **changes)


async def _one_turn(folder: Path, body: str, sink: RecordingSink | None = None, text: str = "hi") -> TurnStop:
    async with opened(ACP, _params(folder, "start()\n" + body), sink or RecordingSink()) as session:
        return await session.prompt(text)


# What is not the protocol


async def test_noise_on_stdout_is_told_and_does_no_harm(tmp_path: Path) -> None:
    """Banners, colours, blank lines, CRLF, broken UTF-8 and JSON that is no message: the turn goes on."""
    body = r"""
raw(b"\x1b[32mWelcome\x1b[0m\r\n\n   \r\n\x1b[0m\n")
raw(b"bad \xff bytes\n" + b'{"level":"info","message":"a log line"}\n' + b"[1,2]\n" + b"{broken\n")
p = expect("session/prompt")
raw(b"\x1b[0m" + json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s1", "update": {
    "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "still"}}}}).encode() + b"\r\n")
end(p)
turns()
"""
    sink = RecordingSink()
    assert (await _one_turn(tmp_path, body, sink)).stop_reason == "end_turn"
    assert [event.text for event in sink.of(events.AgentNoise)] == [
        "Welcome",
        "bad \ufffd bytes",
        '{"level":"info","message":"a log line"}',
        "[1,2]",
        "{broken",
    ]
    assert sink.text() == "still"


async def test_stderr_is_told_line_by_line_and_its_end_is_kept(tmp_path: Path) -> None:
    """Every line is an event; the last one needs no newline."""
    body = 'sys.stderr.write("one\\n\\ntwo")\nsys.stderr.flush()\nos.close(2)\nturns()\n'
    sink = RecordingSink()
    params = _params(tmp_path, "start()\n" + body)
    async with opened(ACP, params, sink):
        await sink.wait_for(events.AgentStderr, 2)
    assert [event.text for event in sink.of(events.AgentStderr)] == ["one", "two"]
    assert params.stderr_tail.text() == "one\ntwo"


async def test_a_flood_on_stderr_does_not_fill_the_log(tmp_path: Path) -> None:
    """Thousands of lines at once: some are told, the rest is counted, and the tail has the newest."""
    body = 'for n in range(20000):\n    sys.stderr.write(f"line {n}\\n")\nsys.stderr.flush()\nos.close(2)\nturns()\n'
    sink = RecordingSink()
    params = _params(tmp_path, "start()\n" + body)
    async with opened(ACP, params, sink):
        await eventually(lambda: "line 19999" in params.stderr_tail.text())
    texts = [event.text for event in sink.of(events.AgentStderr)]
    left_out = [int(text.split()[0][1:]) for text in texts if text.startswith("(")]
    assert sum(left_out) + len(texts) - len(left_out) == 20000
    assert len(texts) < 5000


async def test_a_line_over_the_limit_ends_the_turn_with_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the answer. The agent is told to stop, and the next turn works."""
    monkeypatch.setattr(line_wire, "LINE_LIMIT_BYTES", 1 << 20)
    body = """
start()
p = expect("session/prompt")
say("x" * (2 << 20))
expect("session/cancel")
end(p, "cancelled")
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, body), sink) as session:
        stop = await session.prompt("go")
        assert stop.stop_reason == "error"
        assert stop.error is not None
        assert (stop.error.reason, stop.error.message) == (
            "line_too_long",
            "the agent sent a line of more than 1 MiB",
        )
        assert [event.message for event in sink.of(events.Error)] == ["the agent sent a line of more than 1 MiB"]
        assert (await session.prompt("again")).stop_reason == "end_turn"
        assert sink.text() == "again"


async def test_a_long_line_within_the_limit_is_read(tmp_path: Path) -> None:
    """Megabytes in one message are slow, not wrong."""
    sink = RecordingSink()
    body = 'p = expect("session/prompt")\nsay("x" * (8 << 20))\nend(p)\nturns()\n'
    assert (await _one_turn(tmp_path, body, sink)).stop_reason == "end_turn"
    assert len(sink.text()) == 8 << 20


async def test_full_pipes_in_both_directions_are_no_deadlock(tmp_path: Path) -> None:
    """An agent that asks thousands of things before it reads a large prompt gets all its answers."""
    body = """
start()
for n in range(3000):
    send(id=f"q{n}", method="fs/read_text_file", params={"path": "x" * 200})
messages = [recv() for n in range(3001)]
prompt = next(m for m in messages if "method" in m)
answers = [m for m in messages if "method" not in m]
assert [a["id"] for a in answers] == [f"q{n}" for n in range(3000)]
assert {a["error"]["code"] for a in answers} == {-32601}
say(str(len(prompt["params"]["prompt"][0]["text"])))
end(prompt)
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, body), sink) as session:
        assert (await session.prompt("y" * (4 << 20))).stop_reason == "end_turn"
    assert sink.text() == str(4 << 20)


async def test_an_agent_that_never_reads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What we owe it does not grow without bound: it counts as having closed its side."""
    monkeypatch.setattr(line_wire, "OUTBOX_LIMIT_BYTES", 1 << 16)
    monkeypatch.setattr(agent_link, "DRAIN_SECONDS", 0.1)
    body = """
start()
p = expect("session/prompt")
n = 0
while True:
    n += 1
    send(id=n, method="fs/read_text_file", params={})
"""
    async with opened(ACP, _params(tmp_path, body), RecordingSink(), QUICK) as session:
        stop = await session.prompt("go")
        assert stop.stop_reason == "agent_exited"
        assert stop.error is not None
        assert "closed its input or output" in stop.error.message


# Requests and notifications


@pytest.mark.parametrize("method", ["fs/write_text_file", "terminal/create", "craft/drainMidTurnQueue", "no/such"])
async def test_requests_that_we_do_not_know_are_refused(tmp_path: Path, method: str) -> None:
    """−32601 with the method's name, fs and terminal included: we declare neither."""
    body = f"""
p = expect("session/prompt")
send(id="x", method={method!r}, params={{}})
say(json.dumps(recv()))
end(p)
turns()
"""
    sink = RecordingSink()
    await _one_turn(tmp_path, body, sink)
    answer = json.loads(sink.text())
    assert answer["id"] == "x"
    assert answer["error"] == {"code": -32601, "message": f"Method not found: {method}", "data": {"method": method}}


async def test_notifications_outside_acp_and_other_sessions_updates_are_kept_apart(tmp_path: Path) -> None:
    """Nothing is dropped, and nothing of it counts as this session's words."""
    body = """
p = expect("session/prompt")
send(method="_session/retrying", params={"attempt": 1})
say("a subagent speaks", session="s2")
say("mine")
end(p)
turns()
"""
    sink = RecordingSink()
    await _one_turn(tmp_path, body, sink)
    assert sink.text() == "mine"
    first, second = (msgspec.json.decode(event.update) for event in sink.of(events.SessionUpdate))
    assert first == {"method": "_session/retrying", "params": {"attempt": 1}}
    assert second["sessionId"] == "s2"


async def test_updates_before_the_session_is_open_come_after_it(tmp_path: Path) -> None:
    """What an agent says before it answers session/new is told when the caller knows the session."""
    body = """
hello()
m = expect("session/new")
update("usage_update", used=1, size=2)
reply(m, {"sessionId": "s1"})
update("available_commands_update", availableCommands=[])
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, body), sink):
        assert sink.events == []
        await sink.wait_for(events.SessionCommands)
    assert [type(event) for event in sink.events] == [events.SessionUsage, events.SessionCommands]


async def test_too_many_updates_before_the_session_are_told_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held back is bounded; told early is better than lost."""
    monkeypatch.setattr(acp_session, "HELD_LIMIT", 3)
    body = """
hello()
m = expect("session/new")
for n in range(6):
    update("usage_update", used=n, size=2)
reply(m, {"sessionId": "s1"})
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, body), sink) as session:
        await session.prompt("x")
    assert [event.used for event in sink.of(events.SessionUsage)] == [0, 1, 2, 3, 4, 5]


# Questions


async def test_a_withdrawn_question_is_settled_as_cancelled(tmp_path: Path) -> None:
    """`$/cancel_request` takes one question back, and only that one."""
    body = """
p = expect("session/prompt")
ask(7, title="first")
ask("7", title="second")
second = recv()
send(method="$/cancel_request", params={"requestId": 99})
send(method="$/cancel_request", params={})
send(method="$/cancel_request", params={"requestId": 7})
say(json.dumps([recv(), second]))
end(p)
turns()
"""

    async def answer_the_second(ask: PermissionAsk) -> PermissionAnswer:
        return await (never if ask.question == "first" else picks("allow_once"))(ask)

    sink = RecordingSink(answer_the_second)
    await _one_turn(tmp_path, body, sink)
    answers = {answer["id"]: answer["result"]["outcome"] for answer in json.loads(sink.text())}
    assert answers == {7: {"outcome": "cancelled"}, "7": {"outcome": "selected", "optionId": "yes"}}
    assert [ask.question for ask in sink.withdrawn] == ["first"]


async def test_questions_are_asked_in_the_agents_order(tmp_path: Path) -> None:
    """Many at once reach the owner as they came; one that is withdrawn in the same breath is not asked."""
    body = """
p = expect("session/prompt")
for n in range(20):
    ask(n, title=str(n))
raw(b"".join(json.dumps(m).encode() + b"\\n" for m in (
    {"jsonrpc": "2.0", "id": "x", "method": "session/request_permission", "params": {"sessionId": "s1",
     "toolCall": {"toolCallId": "t", "title": "withdrawn"}, "options": []}},
    {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "x"}})))
answers = [recv() for n in range(21)]
end(p)
turns()
"""
    sink = RecordingSink(picks("allow_once"))
    assert (await _one_turn(tmp_path, body, sink)).stop_reason == "end_turn"
    assert [ask.question for ask in sink.asks] == [str(n) for n in range(20)]


async def test_more_questions_than_anybody_answers_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open questions are bounded; the agent hears at once that the next one is not asked."""
    monkeypatch.setattr(acp_questions, "QUESTIONS_LIMIT", 2)
    body = """
p = expect("session/prompt")
for n in range(3):
    ask(n)
say(json.dumps(recv()))
expect("session/cancel")
recv(), recv()
end(p, "cancelled")
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, "start()\n" + body), sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, "go")
        await sink.wait_for(events.MessageChunk)
        await sink.wait_asked(2)
        await session.cancel()
    answer = json.loads(sink.text())
    assert (answer["id"], answer["result"]) == (2, {"outcome": {"outcome": "cancelled"}})
    assert len(sink.asks) == 2


async def test_several_questions_at_once_get_their_own_answers(tmp_path: Path) -> None:
    """Answers may come in another order than the questions."""
    body = """
p = expect("session/prompt")
for name in ("a", "b", "c"):
    ask(name, title=name)
say(json.dumps([recv() for _ in range(3)]))
end(p)
turns()
"""
    answered: list[str] = []

    async def last_first(ask: PermissionAsk) -> PermissionAnswer:
        order = ["c", "b", "a"]
        await eventually(lambda: len(sink.asks) == 3 and answered == order[: order.index(ask.question)])
        answered.append(ask.question)
        return PermissionAnswer(option_id="yes" if ask.question == "b" else "no")

    sink = RecordingSink(last_first)
    await _one_turn(tmp_path, body, sink)
    answers = {answer["id"]: answer["result"]["outcome"]["optionId"] for answer in json.loads(sink.text())}
    assert answers == {"a": "no", "b": "yes", "c": "no"}


async def test_a_question_after_the_cancel_is_not_asked(tmp_path: Path) -> None:
    """While a turn is being cancelled nobody is bothered; an agent that waits for the answer goes on."""
    body = """
p = expect("session/prompt")
say("on it")
expect("session/cancel")
ask(1)
assert recv()["result"]["outcome"] == {"outcome": "cancelled"}
say(", late words")
end(p, "cancelled")
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, "start()\n" + body), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def run() -> None:
            stops.append(await session.prompt("go"))

        nursery.start_soon(run)
        await sink.wait_text("on it")
        await session.cancel()
        await eventually(lambda: stops)
    assert stops[0].stop_reason == "cancelled"
    assert sink.asks == []
    assert sink.text() == "on it, late words"


async def test_a_question_goes_with_its_turn(tmp_path: Path) -> None:
    """An agent that does not wait for the answer hears that it is cancelled, and nobody is asked any longer."""
    body = """
p = expect("session/prompt")
ask(1)
end(p)
p, answer = sorted((recv(), recv()), key=lambda message: "method" not in message)
say(json.dumps(answer["result"]))
end(p)
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, "start()\n" + body), sink) as session:
        assert (await session.prompt("go")).stop_reason == "end_turn"
        await session.prompt("again")
        assert json.loads(sink.text()) == {"outcome": {"outcome": "cancelled"}}
        assert sink.withdrawn == sink.asks


async def test_a_question_that_is_none_is_refused(tmp_path: Path) -> None:
    """Malformed params get −32602, so that the agent does not wait for ever."""
    body = """
p = expect("session/prompt")
send(id=1, method="session/request_permission", params={"sessionId": "s1"})
say(str(recv()["error"]["code"]))
end(p)
turns()
"""
    sink = RecordingSink(picks("allow_once"))
    await _one_turn(tmp_path, body, sink)
    assert sink.text() == "-32602"
    assert sink.asks == []


async def test_a_question_knows_the_tool_call_before_it(tmp_path: Path) -> None:
    """The title and input that were told with the tool call are the question's."""
    body = """
p = expect("session/prompt")
update("tool_call", toolCallId="t", title="bash", kind="execute")
update("tool_call_update", toolCallId="t", title="echo hi", rawInput={"command": "echo hi"})
ask(1)
recv()
end(p)
turns()
"""
    sink = RecordingSink(picks("reject_once"))
    await _one_turn(tmp_path, body, sink)
    (ask,) = sink.asks
    assert (ask.tool, ask.question) == ("execute", "echo hi")
    assert isinstance(ask.input, msgspec.Raw)
    assert msgspec.json.decode(ask.input) == {"command": "echo hi"}


# How turns end


async def test_a_stop_reason_that_nobody_knows_is_kept(tmp_path: Path) -> None:
    """Verbatim: `zz` stays `zz`."""
    stop = await _one_turn(tmp_path, 'end(expect("session/prompt"), "zz")\nturns()\n')
    assert (stop.stop_reason, stop.error) == ("zz", None)


async def test_usage_and_cost_come_with_the_stop(tmp_path: Path) -> None:
    """Tokens from the answer, cost from the session's total."""
    body = """
p = expect("session/prompt")
update("usage_update", used=5, size=10, cost={"amount": 0.25, "currency": "USD"})
reply(p, {"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}})
turns()
"""
    stop = await _one_turn(tmp_path, body)
    assert stop.usage == events.Usage(input_tokens=3, output_tokens=4, total_tokens=7, cost_usd=0.25)


async def test_a_models_error_is_classified(tmp_path: Path) -> None:
    """The turn ends as `error` with class and wait; the session goes on."""
    body = """
start()
fail(expect("session/prompt"), -32603, "Internal error", details="429 Too Many Requests", retryAfter=12)
turns()
"""
    async with opened(ACP, _params(tmp_path, body), RecordingSink()) as session:
        stop = await session.prompt("x")
        assert stop.stop_reason == "error"
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.retry_after_seconds) == ("rate_limit", 12.0)
        assert (await session.prompt("again")).stop_reason == "end_turn"


@pytest.mark.parametrize("result", ["{}", "[]", "null", '{"stopReason": 7}'])
async def test_an_answer_that_is_none_ends_the_turn_with_a_named_error(tmp_path: Path, result: str) -> None:
    """The turn never hangs on a malformed answer."""
    body = f'p = expect("session/prompt")\nsend(id=p["id"], result=json.loads({result!r}))\nturns()\n'
    stop = await _one_turn(tmp_path, body)
    assert stop.stop_reason == "error"
    assert stop.error is not None
    assert stop.error.reason == "bad_reply"


async def test_an_error_after_a_cancel_is_a_cancelled_turn(tmp_path: Path) -> None:
    """hermes and qwen answer a cancel with an error."""
    body = """
p = expect("session/prompt")
say("x")
expect("session/cancel")
fail(p, -32603, "Request was aborted.")
turns()
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, "start()\n" + body), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def run() -> None:
            stops.append(await session.prompt("go"))

        nursery.start_soon(run)
        await sink.wait_text("x")
        await session.cancel()
        await eventually(lambda: stops)
    assert stops[0].stop_reason == "cancelled"
    assert stops[0].error is not None
    assert stops[0].error.message == "Request was aborted."


async def test_a_cancel_without_a_turn_says_nothing(tmp_path: Path) -> None:
    """A late cancel must not hit the next turn."""
    async with opened(ACP, _params(tmp_path, "start()\nturns()\n"), RecordingSink()) as session:
        await session.prompt("one")
        await session.cancel()
        assert (await session.prompt("two")).stop_reason == "end_turn"  # `turns` takes prompts only


async def test_what_a_dying_agent_said_last_is_heard(tmp_path: Path) -> None:
    """Text and stderr before the end are told; the error has exit status and stderr."""
    body = """
p = expect("session/prompt")
say("last words")
sys.stderr.write("disk on fire\\n")
sys.stderr.flush()
os._exit(3)
"""
    sink = RecordingSink()
    async with opened(ACP, _params(tmp_path, "start()\n" + body), sink) as session:
        stop = await session.prompt("x")
        assert stop.stop_reason == "agent_exited"
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.reason) == ("crash", "agent_exited")
        assert "exit status 3" in stop.error.message
        assert "disk on fire" in stop.error.message
        assert await session.wait_exited() == AgentExit(returncode=3, stderr_tail="disk on fire")
    assert sink.text() == "last words"


async def test_an_answer_before_the_death_counts(tmp_path: Path) -> None:
    """An agent that answers and dies has answered."""
    stop = await _one_turn(tmp_path, 'end(expect("session/prompt"))\nos._exit(1)\n')
    assert stop.stop_reason == "end_turn"


async def test_a_child_that_holds_the_pipes_does_not_hide_the_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's end is seen although a tool of its own keeps stdout and stderr open."""
    monkeypatch.setattr(agent_link, "DRAIN_SECONDS", 0.2)
    body = """
import subprocess
p = expect("session/prompt")
subprocess.Popen(["sleep", "60"], start_new_session=True)
os._exit(9)
"""
    async with opened(ACP, _params(tmp_path, "start()\n" + body), RecordingSink()) as session:
        assert (await session.prompt("x")).stop_reason == "agent_exited"
        assert (await session.close(GRACES)).left == []


async def test_a_child_that_holds_the_pipes_does_not_hide_a_death_between_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known before what the agent said last has been waited for."""
    monkeypatch.setattr(agent_link, "DRAIN_SECONDS", TURN_SECONDS)
    body = """
import subprocess
subprocess.Popen(["sleep", "60"], start_new_session=True)
turns()
"""
    async with opened(ACP, _params(tmp_path, "start()\n" + body), RecordingSink()) as session:
        await session.prompt("x")
        assert not session.is_lost
        os.kill(session.agent_pid, signal.SIGKILL)
        await eventually(lambda: session.is_lost)


async def test_an_agent_that_closes_its_output_and_runs_on_has_ended_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can never answer, so waiting for it would be for ever."""
    monkeypatch.setattr(agent_link, "DRAIN_SECONDS", 0.2)
    body = 'p = expect("session/prompt")\nos.close(1)\ntime.sleep(60)\n'
    async with opened(ACP, _params(tmp_path, "start()\n" + body), RecordingSink()) as session:
        stop = await session.prompt("x")
        assert stop.stop_reason == "agent_exited"
        assert (await session.wait_exited()).returncode is None
        assert (await session.close(QUICK)).left == []


async def test_a_cancelled_close_can_be_repeated(tmp_path: Path) -> None:
    """Interrupted in its first grace, the end is finished by the second attempt, and nothing is left."""
    body = "start()\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('up')\ntime.sleep(60)\n"
    sink = RecordingSink()
    params = _params(tmp_path, body)
    async with opened(ACP, params, sink) as session:
        await sink.wait_text("up")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.close, GRACES)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []
