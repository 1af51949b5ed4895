"""Turns of the codex adapter with a codex that does what it is told, well or badly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from avenor.protocol import events
from avenor.protocol.errors import LocalProtocolError
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, TurnStop
from avenor.runtimes.backends.codex_asking import QUESTIONS_LIMIT
from avenor.runtimes.backends.line_wire import LINE_LIMIT_BYTES
from tests.helpers import eventually
from tests.runtimes.agent_kit import GRACES, TURN_SECONDS, RecordingSink, never, opened, picks
from tests.runtimes.codex_kit import STARTED, completed, doing, heard, small_codex, thread, told

_QUESTION: dict[str, Any] = {
    "id": 7,
    "method": "item/commandExecution/requestApproval",
    "params": {"threadId": "thread-1", "turnId": "turn-1", "itemId": "call-1", "startedAtMs": 1, "command": "ls"},
}


async def _stop_of(folder: Path, *things: Mapping[str, object], sink: RecordingSink | None = None) -> TurnStop:
    backend, params = small_codex(folder)
    async with opened(backend, params, sink or RecordingSink()) as session:
        return await session.prompt(doing(*things))


def _answers(folder: Path) -> dict[object, object]:
    """The client's answers by the ids of the questions."""
    return {m["id"]: m.get("result", m.get("error", {}).get("code")) for m in heard(folder) if "method" not in m}


@pytest.mark.parametrize(
    ("status", "stop_reason", "has_error"),
    [("completed", "end_turn", False), ("failed", "error", True), ("interrupted", "interrupted", True)],
)
async def test_a_turn_ends_as_codex_says(status: str, stop_reason: str, has_error: bool, tmp_path: Path) -> None:
    """A turn that was broken off, though nobody here has asked for that, is no success."""
    stop = await _stop_of(tmp_path, STARTED, completed(status))
    assert (stop.stop_reason, stop.error is not None) == (stop_reason, has_error)
    assert stop.usage is None


async def test_an_error_that_codex_will_try_again_after_is_no_end(tmp_path: Path) -> None:
    """It is told, and the turn goes on."""
    sink = RecordingSink()
    retry = told("error", error={"message": "Reconnecting... 1/2"}, willRetry=True)
    assert (await _stop_of(tmp_path, STARTED, retry, completed(), sink=sink)).error is None
    assert any(b"Reconnecting" in bytes(event.update) for event in sink.of(events.SessionUpdate))


async def test_the_end_of_another_turn_is_not_ours(tmp_path: Path) -> None:
    """codex may run turns by itself; each end has its turn's id."""
    failed = completed("failed", turn_id="turn-0")
    assert (await _stop_of(tmp_path, failed, STARTED, completed())).stop_reason == "end_turn"


async def test_a_turn_may_end_before_its_start_is_answered(tmp_path: Path) -> None:
    """Answers and notifications come in whatever order codex writes them."""
    late = {"late": {"result": {"turn": {"id": "turn-1"}}}}
    other = completed("failed", turn_id="turn-0")
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session:
        stop = await session.prompt(doing({"start": None}, other, STARTED, completed(), late))
        assert (stop.stop_reason, stop.error) == ("end_turn", None)
        assert (await session.prompt(doing(STARTED, completed()))).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("answer", "stop_reason", "reason"),
    [
        ({"error": {"code": -32600, "message": "thread not found"}}, "error", "invalid_request"),
        ({"result": {"turn": None}}, "error", "bad_reply"),
    ],
)
async def test_a_refused_start_fails_the_turn(
    answer: dict[str, object], stop_reason: str, reason: str, tmp_path: Path
) -> None:
    """With what codex says about it."""
    stop = await _stop_of(tmp_path, {"start": answer})
    assert stop.error is not None
    assert (stop.stop_reason, stop.error.reason) == (stop_reason, reason)


async def test_the_death_of_codex_ends_the_turn(tmp_path: Path) -> None:
    """With how it died; later prompts are answered at once."""
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session:
        stop = await session.prompt(doing(STARTED, {"exit": 3}))
        assert stop.error is not None
        assert (stop.stop_reason, stop.error.failure_class) == ("agent_exited", "crash")
        assert "exit status 3" in stop.error.message
        assert (await session.prompt(doing())).stop_reason == "agent_exited"


async def test_one_prompt_at_a_time(tmp_path: Path) -> None:
    """codex would take a second one for more of the first."""
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, doing({"wait": "turn/interrupt"}))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LocalProtocolError):
            await session.prompt(doing())
        nursery.cancel_scope.cancel()


async def test_an_interrupt_waits_until_the_turn_has_started(tmp_path: Path) -> None:
    """Sent at once it would be refused, and the turn would go on."""
    backend, params = small_codex(tmp_path)
    sink = RecordingSink(never)
    async with opened(backend, params, sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []

        async def run() -> None:
            question = {**_QUESTION, "id": "first"}
            prompt = doing(
                question, {"answered": "first"}, STARTED, {"wait": "turn/interrupt"}, completed("interrupted")
            )
            stops.append(await session.prompt(prompt))

        nursery.start_soon(run)
        await sink.wait_asked()
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
    assert (stops[0].stop_reason, stops[0].error) == ("cancelled", None)
    order = [message.get("method", "answer") for message in heard(tmp_path)]
    assert order[-2:] == ["answer", "turn/interrupt"]
    assert _answers(tmp_path)["first"] == {"decision": "cancel"}


async def test_a_question_while_a_turn_is_cancelled_is_answered_at_once(tmp_path: Path) -> None:
    """Nobody is asked any more."""
    backend, params = small_codex(tmp_path)
    sink = RecordingSink(never)
    async with opened(backend, params, sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(
            session.prompt,
            doing(STARTED, {"wait": "turn/interrupt"}, _QUESTION, {"answered": 7}, completed("interrupted")),
        )
        await sink.wait_for(events.SessionUpdate)
        await session.cancel()
    assert sink.asks == []
    assert _answers(tmp_path)[7] == {"decision": "cancel"}


async def test_a_question_that_codex_withdraws_is_not_answered(tmp_path: Path) -> None:
    """Whoever was asked is told, and codex hears nothing about it."""

    async def answer_second(ask: PermissionAsk) -> PermissionAnswer:
        if ask.question == "Run ls":
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id="accept")

    resolved = told("serverRequest/resolved", requestId=7)
    second = {**_QUESTION, "id": 8, "params": {**_QUESTION["params"], "command": "pwd"}}
    things: list[Mapping[str, object]] = [STARTED, _QUESTION, resolved, second, {"answered": 8}, completed()]
    assert (await _stop_of(tmp_path, *things, sink=RecordingSink(answer_second))).stop_reason == "end_turn"
    assert _answers(tmp_path) == {8: {"decision": "accept"}}


async def test_a_question_goes_with_its_turn(tmp_path: Path) -> None:
    """A codex that does not wait for the answer hears that it is cancelled."""
    backend, params = small_codex(tmp_path)
    sink = RecordingSink(never)
    async with opened(backend, params, sink) as session:
        assert (await session.prompt(doing(STARTED, _QUESTION, completed()))).stop_reason == "end_turn"
        await eventually(lambda: _answers(tmp_path) == {7: {"decision": "cancel"}})
        assert sink.withdrawn == sink.asks


async def test_no_answer_declines(tmp_path: Path) -> None:
    """A question that is settled without an option lets the turn go on."""

    async def nothing(_ask: PermissionAsk) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=None)

    things: list[Mapping[str, object]] = [STARTED, _QUESTION, {"answered": 7}, completed()]
    assert (await _stop_of(tmp_path, *things, sink=RecordingSink(nothing))).stop_reason == "end_turn"
    assert _answers(tmp_path)[7] == {"decision": "decline"}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("item/tool/call", {"tool": "x"}, -32601),
        ("account/chatgptAuthTokens/refresh", {}, -32601),
        ("item/commandExecution/requestApproval", {"itemId": 3}, -32602),
    ],
)
async def test_what_we_cannot_answer_is_refused(
    method: str, params: dict[str, object], code: int, tmp_path: Path
) -> None:
    """So that codex does not wait."""
    question: dict[str, object] = {"id": 5, "method": method, "params": params}
    await _stop_of(tmp_path, STARTED, question, {"answered": 5}, completed())
    assert _answers(tmp_path)[5] == code


async def test_another_threads_words_are_not_ours(tmp_path: Path) -> None:
    """A subagent's text is kept as it came; its questions are asked, since it would wait for ever."""
    sink = RecordingSink(picks("allow_once"))
    foreign = {"threadId": "thread-2", "turnId": "t", "itemId": "i", "delta": "not mine"}
    question = {**_QUESTION, "params": {**_QUESTION["params"], "threadId": "thread-2"}}
    end = {"method": "turn/completed", "params": {"threadId": "thread-2", "turn": {"id": "turn-1", "status": "failed"}}}
    words = {"method": "item/agentMessage/delta", "params": foreign}
    stop = await _stop_of(tmp_path, STARTED, words, question, {"answered": 7}, end, completed(), sink=sink)
    assert stop.stop_reason == "end_turn"
    assert sink.text() == ""
    assert any(b"not mine" in bytes(event.update) for event in sink.of(events.SessionUpdate))


async def test_what_is_no_message_is_noise(tmp_path: Path) -> None:
    """And a notification of the wrong shape is told as an error, without an end of the turn."""
    sink = RecordingSink()
    broken = {"method": "turn/completed", "params": {"threadId": "thread-1", "turn": 5}}
    await _stop_of(tmp_path, STARTED, {"raw": "hello from a library"}, broken, completed(), sink=sink)
    assert [event.text for event in sink.of(events.AgentNoise)] == ["hello from a library"]
    (error,) = sink.of(events.Error)
    assert "turn/completed" in error.message


async def test_a_line_over_the_limit_fails_the_turn_and_interrupts_it(tmp_path: Path) -> None:
    """The session goes on after the interrupted turn's end."""
    sink = RecordingSink()
    backend, params = small_codex(tmp_path)
    too_long: dict[str, object] = {"long": LINE_LIMIT_BYTES + 1}
    async with opened(backend, params, sink) as session:
        stop = await session.prompt(doing(STARTED, too_long, {"wait": "turn/interrupt"}, completed("interrupted")))
        assert stop.error is not None
        assert (stop.stop_reason, stop.error.reason) == ("error", "line_too_long")
        assert (await session.prompt(doing(STARTED, completed()))).stop_reason == "end_turn"


async def test_the_lost_line_may_have_been_the_end_itself(tmp_path: Path) -> None:
    """Then codex has nothing to interrupt, and says so."""
    backend, params = small_codex(tmp_path, turn_interrupt={"error": {"code": -32600, "message": "no active turn"}})
    too_long: dict[str, object] = {"long": LINE_LIMIT_BYTES + 1}
    async with opened(backend, params, RecordingSink()) as session:
        stop = await session.prompt(doing(STARTED, too_long))
        assert stop.error is not None
        assert stop.error.reason == "line_too_long"


async def test_the_session_follows_what_codex_tells_of_its_settings(tmp_path: Path) -> None:
    """Mode and model may change in mid-turn, by a rule of codex's own."""
    settings = {"model": "large", "approvalPolicy": "on-request", "sandboxPolicy": {"type": "readOnly"}}
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session:
        await session.prompt(doing(STARTED, told("thread/settings/updated", threadSettings=settings), completed()))
        assert (session.model, session.agent) == ("large", "read-only")
        await session.prompt(doing(STARTED, told("model/rerouted", toModel="tiny"), completed()))
        assert session.model == "tiny"


async def test_a_close_in_mid_turn_is_a_cancelled_turn(tmp_path: Path) -> None:
    """We have ended codex, so it has not crashed."""
    backend, params = small_codex(tmp_path)
    stops: list[TurnStop] = []
    sink = RecordingSink()
    async with opened(backend, params, sink) as session, trio.open_nursery() as nursery:

        async def run() -> None:
            stops.append(await session.prompt(doing(STARTED)))

        nursery.start_soon(run)
        await sink.wait_for(events.SessionUpdate)
        assert (await session.close(GRACES)).left == []
    assert (stops[0].stop_reason, stops[0].error) == ("cancelled", None)


async def test_too_many_open_questions_are_declined(tmp_path: Path) -> None:
    """A codex that asks without end cannot fill the memory."""
    count = QUESTIONS_LIMIT + 1
    questions = [{**_QUESTION, "id": number} for number in range(count)]
    backend, params = small_codex(tmp_path)
    sink = RecordingSink(never)
    async with opened(backend, params, sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, doing(STARTED, *questions, {"wait": "turn/interrupt"}, completed()))
        await sink.wait_asked(QUESTIONS_LIMIT)
        await eventually(lambda: _answers(tmp_path))
        assert _answers(tmp_path) == {count - 1: {"decision": "decline"}}
        await session.cancel()
    assert sink.withdrawn == sink.asks


async def test_an_mcp_server_that_failed_is_an_error_in_the_log(tmp_path: Path) -> None:
    """codex goes on without it; one that starts is nothing special."""
    sink = RecordingSink()
    words = [
        told("mcpServer/startupStatus/updated", name="a", status="ready", error=None),
        told("mcpServer/startupStatus/updated", name="b", status="failed", error="no such file"),
    ]
    await _stop_of(tmp_path, STARTED, *words, completed(), sink=sink)
    assert [event.message for event in sink.of(events.Error)] == ["MCP server 'b' did not start: no such file"]


async def test_the_end_of_codex_can_be_waited_for(tmp_path: Path) -> None:
    """With its exit status; the process id was that of the program."""
    backend, params = small_codex(tmp_path)
    async with opened(backend, params, RecordingSink()) as session:
        assert params.procs is not None
        assert [record.pid for record in params.procs.read()] == [session.agent_pid]
        await session.prompt(doing({"exit": 3}))
        assert (await session.wait_exited()).returncode == 3


async def test_words_before_the_session_is_open_come_after_its_opening(tmp_path: Path) -> None:
    """So that whoever opened it can tell of that first."""
    sink = RecordingSink()
    backend, params = small_codex(tmp_path, thread_start={**thread(), "before": told("warning", message="careful")})
    async with opened(backend, params, sink):
        assert sink.of(events.SessionUpdate) == []
        (event,) = await sink.wait_for(events.SessionUpdate)
    assert b"careful" in bytes(event.update)
