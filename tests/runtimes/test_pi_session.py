"""Turns with a pi of a few lines in its place: cancelling, dying, and what pi does without a word."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import Session, TurnStop
from tests.helpers import eventually
from tests.runtimes.agent_kit import QUICK, RecordingSink, make_params, never, opened
from tests.runtimes.test_pi_open import delta, make_backend, message_end, received

_BEGIN: list[dict[str, Any]] = [{"type": "agent_start"}, {"type": "message_start", "message": {"role": "assistant"}}]
_END: list[dict[str, Any]] = [message_end("stop"), {"type": "agent_end"}]
_ABORTED: list[dict[str, Any]] = [message_end("aborted"), {"type": "agent_end"}]


def question(number: int) -> dict[str, Any]:
    """A question of some extension."""
    return {"type": "extension_ui_request", "id": f"q{number}", "method": "confirm", "title": "Sure?"}


async def run_turn(session: Session, during: Callable[[], Awaitable[None]]) -> TurnStop:
    """The end of a turn, while something else is done."""
    stops: list[TurnStop] = []

    async def turn() -> None:
        stops.append(await session.prompt("hello"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await during()
    return stops[0]


async def test_a_cancel_is_an_abort_and_withdraws_the_questions(tmp_path: Path) -> None:
    """Without a turn it is nothing; in one, pi's own word ends it."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("hi"), question(1)]], aborted=_ABORTED)
    sink = RecordingSink(never)
    async with opened(backend, make_params(tmp_path), sink) as session:
        assert session.agent_pid > 0
        await session.cancel()

        async def cancel() -> None:
            await sink.wait_asked()
            await session.cancel()

        assert await run_turn(session, cancel) == TurnStop(stop_reason="cancelled")
        await eventually(lambda: sink.withdrawn == sink.asks)
        await eventually(lambda: len(received(tmp_path)) >= 8)
    kinds = [message["type"] for message in received(tmp_path)]
    assert kinds.count("abort") == 1
    assert kinds.index("abort") < kinds.index("extension_ui_response")


async def test_a_question_after_a_cancel_is_withdrawn_at_once(tmp_path: Path) -> None:
    """Nobody is asked about a tool that will not run."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("hi")]], aborted=[question(1), *_ABORTED])
    sink = RecordingSink(never)
    async with opened(backend, make_params(tmp_path), sink) as session:

        async def cancel() -> None:
            await sink.wait_text("hi")
            await session.cancel()

        assert (await run_turn(session, cancel)).stop_reason == "cancelled"
    assert sink.asks == []
    assert [message["id"] for message in received(tmp_path) if "cancelled" in message] == ["q1"]


async def test_more_questions_than_anybody_can_answer_are_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the limit."""
    monkeypatch.setattr("avenor.runtimes.backends.pi_session.QUESTIONS_LIMIT", 1)
    sink = RecordingSink(never)
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, question(1), question(2)]], aborted=_ABORTED)
    async with opened(backend, make_params(tmp_path), sink) as session:

        async def cancel() -> None:
            await sink.wait_asked()
            await eventually(lambda: [m["id"] for m in received(tmp_path) if "cancelled" in m] == ["q2"])
            await session.cancel()

        await run_turn(session, cancel)


async def test_a_question_goes_with_its_turn(tmp_path: Path) -> None:
    """A pi that does not wait for the answer hears that it is cancelled."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, question(1), *_END]])
    sink = RecordingSink(never)
    async with opened(backend, make_params(tmp_path), sink) as session:
        assert (await session.prompt("hello")).stop_reason == "end_turn"
        await eventually(lambda: [m["id"] for m in received(tmp_path) if "cancelled" in m] == ["q1"])
        assert sink.withdrawn == sink.asks


async def test_a_pi_that_dies_in_a_turn_ends_it(tmp_path: Path) -> None:
    """With how it ended, and its last words; the next prompt ends so too."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, {"type": "die"}]])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt("hello")
        assert stop.error is not None
        assert (stop.stop_reason, stop.error.failure_class) == ("agent_exited", "crash")
        assert "exit status 1" in stop.error.message
        assert "this is the end" in stop.error.message
        assert (await session.wait_exited()).returncode == 1
        assert (await session.prompt("again")).stop_reason == "agent_exited"


async def test_a_pi_that_is_busy_without_a_word_is_asked_until_it_is_not(tmp_path: Path) -> None:
    """The turn ends then."""
    busy = {"sessionId": "session-1", "isStreaming": True}
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("hi"), *_END]], later=[busy, busy, busy])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert await session.prompt("hello") == TurnStop(stop_reason="end_turn")
    assert len([message for message in received(tmp_path) if message["type"] == "get_state"]) >= 5


async def test_a_state_that_is_not_as_documented_ends_the_turn(tmp_path: Path) -> None:
    """As failed: nothing else would tell its end."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, *_END]], later=[{"sessionId": 5}])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt("hello")
    assert stop.error is not None
    assert (stop.stop_reason, stop.error.reason) == ("error", "bad_reply")


async def test_a_pi_that_says_much_before_its_session_is_open_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, and whole; beyond a limit it is told before the session is."""
    monkeypatch.setattr("avenor.runtimes.backends.pi_session.HELD_LIMIT", 3)
    sink = RecordingSink()
    first = [f'{{"type":"news","of":{number}}}' for number in range(9)]
    async with opened(make_backend(tmp_path, first=first), make_params(tmp_path), sink):
        await sink.wait_for(events.SessionUpdate, 9)
    told = [msgspec.json.decode(event.update)["of"] for event in sink.of(events.SessionUpdate)]
    assert told == list(range(9))


async def test_a_pi_that_does_not_go_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    """A profile may say so; then the ladder begins with the signal."""
    backend = make_backend(tmp_path, ends_on_stdin_close=False)
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert (await session.close(QUICK)).left == []


async def test_tools_are_told_with_what_they_are_about(tmp_path: Path) -> None:
    """Title, kind, place and output, as far as pi gives them; what it gives in another form is kept."""
    tools: list[dict[str, Any]] = [
        {"type": "tool_execution_start", "toolCallId": "1", "toolName": "edit", "args": {"path": "a.py", "edits": []}},
        {"type": "tool_execution_update", "toolCallId": "1", "toolName": "edit", "partialResult": {"content": "?"}},
        {"type": "tool_execution_end", "toolCallId": "1", "toolName": "edit", "result": "gone", "isError": True},
        {"type": "tool_execution_start", "toolCallId": "2", "toolName": "dance", "args": [1]},
        {"type": "message_update", "assistantMessageEvent": {"type": "song", "contentIndex": 1}},
        {"type": "message_end", "message": {"role": "custom", "content": "by an extension"}},
    ]
    sink = RecordingSink()
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, *tools, *_END]])
    async with opened(backend, make_params(tmp_path), sink) as session:
        await session.prompt("hello")
    edit, dance = sink.of(events.ToolCall)
    assert (edit.title, edit.kind, edit.locations) == ("edit a.py", "edit", msgspec.Raw(b'[{"path":"a.py"}]'))
    assert (dance.title, dance.kind, dance.locations) == ("dance", "other", msgspec.UNSET)
    running, ended = sink.of(events.ToolCallUpdate)
    assert (running.status, running.content, ended.status) == ("in_progress", msgspec.UNSET, "failed")
    assert ended.rawOutput == msgspec.Raw(b'"gone"')
    assert len(sink.of(events.SessionUpdate)) == 2
