"""Turns over HTTP, on a stand-in server that the test can break: what is told, how turns end, what a break costs."""

import json
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, TurnStop
from tests.helpers import eventually
from tests.runtimes.agent_kit import TURN_SECONDS, RecordingSink, never, picks
from tests.runtimes.opencode_kit import Talk, talking


async def start_turn(talk: Talk, nursery: trio.Nursery, text: str) -> list[TurnStop]:
    """Starts a turn; its stop comes into the list."""
    stops: list[TurnStop] = []

    async def run() -> None:
        stops.append(await talk.session.prompt(text))

    nursery.start_soon(run)
    return stops


def chunks(sink: RecordingSink) -> list[str]:
    """The texts of the message chunks."""
    return [msgspec.json.decode(event.content)["text"] for event in sink.of(events.MessageChunk)]


def updates(sink: RecordingSink) -> list[str]:
    """The types of what was told verbatim."""
    return [msgspec.json.decode(event.update)["type"] for event in sink.of(events.SessionUpdate)]


async def test_words_and_thoughts_come_as_they_are_said(tmp_path: Path) -> None:
    """Each delta is an event at once, and the whole text at the end tells nothing twice."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt("think let me see\nsay hello there friend")
        assert (stop.stop_reason, stop.error) == ("end_turn", None)
        assert chunks(talk.sink) == ["hello", " there", " friend"]
        thoughts = talk.sink.of(events.ThoughtChunk)
        assert [msgspec.json.decode(event.content)["text"] for event in thoughts] == ["let", " me", " see"]
        assert len({event.messageId for event in talk.sink.of(events.MessageChunk)}) == 1


async def test_the_usage_is_that_of_all_steps_and_subagents(tmp_path: Path) -> None:
    """Tokens and cost are summed over the turn's messages; the event tells the context's use and the cost so far."""
    async with talking(tmp_path, picks("allow_once")) as talk:
        stop = await talk.session.prompt("delegate true\nsay done")
        assert stop.usage is not None
        assert (stop.usage.input_tokens, stop.usage.output_tokens, stop.usage.cached_read_tokens) == (140, 46, 14)
        assert (stop.usage.total_tokens, stop.usage.cost_usd) == (200, 0.5)
        await talk.session.prompt("say more")
        (first, second) = talk.sink.of(events.SessionUsage)
        assert (first.used, first.size) == (77, 1000)
        assert msgspec.json.decode(bytes(second.cost)) == {"amount": 0.5, "currency": "USD"}  # type: ignore[arg-type]


async def test_a_tool_is_told_from_its_call_to_its_output(tmp_path: Path) -> None:
    """The call, its running, and its output, each once, with what ACP has for them."""
    async with talking(tmp_path, picks("allow_once")) as talk:
        await talk.session.prompt("run echo hi")
        (call,) = talk.sink.of(events.ToolCall)
        assert (call.title, call.kind, call.status) == ("bash", "execute", "pending")
        running, done = talk.sink.of(events.ToolCallUpdate)
        assert (running.status, running.title, done.status) == ("in_progress", "echo hi", "completed")
        assert b'"hi\\n"' in bytes(done.content)  # type: ignore[arg-type]
        assert running.toolCallId == done.toolCallId == call.toolCallId


async def test_a_rejection_with_a_word_lets_the_agent_go_on(tmp_path: Path) -> None:
    """The message of an answer reaches the agent; without one the turn ends at the rejected tool."""
    message: str | None = "use ls"

    async def reject(_ask: PermissionAsk) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id="reject", message=message)

    async with talking(tmp_path, reject) as talk:
        assert (await talk.session.prompt("run rm x\nsay well then")).stop_reason == "end_turn"
        assert talk.sink.text() == "well then"
        message = None
        assert (await talk.session.prompt("run rm x\nsay never")).stop_reason == "end_turn"
        assert talk.sink.text() == "well then"
        assert talk.fake.asked("/reply") == [{"reply": "reject", "message": "use ls"}, {"reply": "reject"}]


async def test_a_question_of_the_agent_is_put_to_the_user(tmp_path: Path) -> None:
    """Its choices are the options; the one that gives no answer is the only other, and auto-approve may take none."""

    async def choose(ask: PermissionAsk) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=ask.options[len(talk.sink.asks)].option_id)

    async with talking(tmp_path, choose) as talk:
        assert (await talk.session.prompt("choose red blue")).stop_reason == "end_turn"
        assert talk.sink.text() == "got blue"
        await talk.session.prompt("choose red blue")
        assert talk.sink.text() == "got bluegot nothing"
        first, _ = talk.sink.asks
        assert (first.question, first.trusted_options) == ("Which one?", ())
        assert [option.option_id for option in first.options] == ["red", "blue", "reject"]


async def test_a_subagents_question_is_the_sessions_and_its_words_are_not(tmp_path: Path) -> None:
    """What a subagent asks is asked, what it does is told verbatim, and its text is none of the session's."""
    async with talking(tmp_path, picks("allow_once")) as talk:
        stop = await talk.session.prompt("delegate echo hi\nsay done")
        assert stop.stop_reason == "end_turn"
        assert talk.sink.text() == "done"
        assert [ask.question for ask in talk.sink.asks] == ["echo hi"]
        assert talk.sink.of(events.ToolCall) == []
        told = [msgspec.json.decode(event.update)["properties"]["part"] for event in talk.sink.of(events.SessionUpdate)]
        assert [part.get("text") or part["state"]["status"] for part in told] == [
            "pending",
            "running",
            "completed",
            "from below",
        ]


async def test_a_plan_a_title_and_what_nobody_knows_are_told(tmp_path: Path) -> None:
    """Todos are the plan, a new title is told, an event of an unknown kind comes as it is; empty diffs do not."""
    title = json.dumps({"type": "session.updated", "properties": {"info": {"id": "x", "title": "A title"}}})
    odd = json.dumps({"type": "session.odd", "properties": {"x": 1}})
    diff = json.dumps({"type": "session.diff", "properties": {"diff": []}})
    async with talking(tmp_path) as talk:
        await talk.session.prompt(f"todo one\ntell {title}\ntell {title}\ntell {odd}\ntell {diff}")
        (plan,) = talk.sink.of(events.SessionPlan)
        assert msgspec.json.decode(plan.entries)[0]["content"] == "one"
        assert [event.title for event in talk.sink.of(events.SessionInfo)] == ["A title"]
        assert updates(talk.sink) == ["session.odd"]


async def test_events_of_strangers_are_left_alone(tmp_path: Path) -> None:
    """Another client's sessions, the server's housekeeping and what cannot be read do no harm."""
    async with talking(tmp_path) as talk:
        await talk.fake.emit("message.updated", sessionID="ses_other", info={"id": "m", "role": "assistant"})
        await talk.fake.emit("plugin.added", id="x")
        await talk.fake.emit("session.status", sessionID=talk.session.session_id, status=7)
        await talk.fake.emit("message.updated", sessionID=talk.session.session_id, info={"role": "assistant"})
        assert (await talk.session.prompt("say fine")).stop_reason == "end_turn"
        assert talk.sink.text() == "fine"
        assert len(talk.sink.of(events.AgentNoise)) == 1
        assert updates(talk.sink) == ["message.updated"]


@pytest.mark.parametrize(
    ("failure", "failure_class", "permanent", "reason"),
    [
        ("APIError 429 slow down", "rate_limit", False, ""),
        ("APIError 500 oh", "overloaded", False, ""),
        ("APIError 401 who are you", "unknown", True, "auth"),
        ("APIError 400 what", "unknown", True, "invalid_request"),
        ("ProviderAuthError no key", "unknown", True, "auth"),
        ("ContextOverflowError too much", "unknown", True, "invalid_request"),
        ("UnknownError JSON parsing failed", "transport", False, ""),
    ],
)
async def test_a_model_that_fails_fails_the_turn(
    failure: str, failure_class: str, permanent: bool, reason: str, tmp_path: Path
) -> None:
    """With the service's own words and what they mean for a retry; a late idle does not end the next turn."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt(f"fail {failure}")
        assert stop.stop_reason == "error"
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent, stop.error.reason) == (failure_class, permanent, reason)
        assert stop.error.message == failure.split(" ", 2 if failure.startswith("API") else 1)[-1]
        assert stop.error.retry_after_seconds == (7.0 if "429" in failure or "500" in failure else None)
        assert (await talk.session.prompt("say whole\nidle_again\nsay again")).stop_reason == "end_turn"
        assert talk.sink.text() == "wholeagain"


@pytest.mark.parametrize(
    ("step", "stop_reason"),
    [
        ("fail MessageOutputLengthError", "max_tokens"),
        ("fail ContentFilterError", "refusal"),
        ("finish length", "max_tokens"),
        ("finish content-filter", "refusal"),
        ("finish other", "end_turn"),
    ],
)
async def test_ends_with_a_name_keep_it(step: str, stop_reason: str, tmp_path: Path) -> None:
    """Too long, or held back: an end of its own, not an error."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt(step)
        assert (stop.stop_reason, stop.error) == (stop_reason, None)


async def test_a_failure_before_the_first_message_ends_the_turn(tmp_path: Path) -> None:
    """The server tells of an error and of nothing else; asked, it says that nothing goes on."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt("fail_early no such agent")
        assert stop.error is not None
        assert stop.error.message == "no such agent"
        assert (await talk.session.prompt("say after")).stop_reason == "end_turn"


async def test_a_refused_prompt_fails_the_turn(tmp_path: Path) -> None:
    """An HTTP error is the turn's, with what the server said."""
    async with talking(tmp_path) as talk:
        talk.fake.refusals["/prompt_async"] = 503
        stop = await talk.session.prompt("say never")
        assert stop.error is not None
        assert stop.error.failure_class == "overloaded"
        assert "the fake says no" in stop.error.message
        talk.fake.refusals["/prompt_async"] = 400
        stop = await talk.session.prompt("say never")
        assert stop.error is not None
        assert stop.error.permanent
        talk.fake.refusals.clear()
        assert (await talk.session.prompt("say now")).stop_reason == "end_turn"


async def test_a_prompt_without_an_answer_fails_the_turn_and_is_aborted(tmp_path: Path) -> None:
    """Whether the server has got it is not known, so it is not to go on with it."""
    async with talking(tmp_path) as talk:
        talk.fake.refusals["/prompt_async"] = 0
        stop = await talk.session.prompt("say never")
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent) == ("transport", False)
        assert talk.fake.asked("/abort") == [{}]


@pytest.mark.parametrize(("status", "word"), [(500, "was refused"), (0, "did not get there")])
async def test_an_answer_that_is_not_taken_is_told(status: int, word: str, tmp_path: Path) -> None:
    """The question stays open in the server, and the turn can still be cancelled."""
    async with talking(tmp_path, picks("allow_once")) as talk, trio.open_nursery() as nursery:
        talk.fake.refusals["/reply"] = status
        stops = await start_turn(talk, nursery, "run true")
        (told,) = await talk.sink.wait_for(events.Error)
        assert word in told.message
        await talk.session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"


async def test_a_model_that_is_tried_again_is_told(tmp_path: Path) -> None:
    """Each time, so that the silence is explained; a cancel ends it as ever."""
    async with talking(tmp_path) as talk, trio.open_nursery() as nursery:
        stops = await start_turn(talk, nursery, "retry 2 overloaded")
        await talk.sink.wait_for(events.SessionUpdate, 2)
        await talk.session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"
        told = [
            msgspec.json.decode(event.update)["properties"]["status"] for event in talk.sink.of(events.SessionUpdate)
        ]
        assert [(status["attempt"], status["message"]) for status in told] == [(1, "overloaded"), (2, "overloaded")]


async def test_a_model_that_fails_again_and_again_fails_the_turn(tmp_path: Path) -> None:
    """opencode would try for ever: the turn is aborted, and ends with what the model's service said."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt("say so far\nretry 9 Too Many Requests")
        assert stop.stop_reason == "error"
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent) == ("rate_limit", False)
        assert stop.error.message == "the model has failed 5 times: Too Many Requests"
        assert talk.fake.statuses == {}
        assert (await talk.session.prompt("say after")).stop_reason == "end_turn"


async def test_what_a_broken_stream_missed_is_told(tmp_path: Path) -> None:
    """Every word once and in order, though some were sent while nobody listened, and the break is told."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt("say before\ngap one two three four five six\nsay after")
        assert stop.stop_reason == "end_turn"
        assert talk.sink.text() == "beforeone two three four five sixafter"
        assert ["broke off" in event.message for event in talk.sink.of(events.Error)] == [True]
        assert (await talk.session.prompt("say next")).stop_reason == "end_turn"


async def test_a_question_that_was_asked_in_a_gap_is_asked(tmp_path: Path) -> None:
    """The server has it still; answered, the turn goes on and is told to its end."""
    async with talking(tmp_path, picks("allow_once")) as talk, trio.open_nursery() as nursery:
        talk.fake.refusals["/event"] = 500
        await talk.fake.break_streams()
        stops = await start_turn(talk, nursery, f"run touch {tmp_path}/made\nsay done")
        await eventually(lambda: talk.fake.permissions)
        assert talk.sink.asks == []
        talk.fake.refusals.clear()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert (stops[0].stop_reason, talk.sink.text()) == ("end_turn", "done")
        assert len(talk.sink.asks) == 1
        assert (tmp_path / "made").exists()


async def test_a_look_up_that_fails_is_tried_again(tmp_path: Path) -> None:
    """It is told once, and the turn still gets its end."""
    async with talking(tmp_path) as talk, trio.open_nursery() as nursery:
        talk.fake.refusals |= {"/message": 500, "/event": 500}
        await talk.fake.break_streams()
        stops = await start_turn(talk, nursery, "say all of it")
        await eventually(lambda: talk.fake.messages[talk.session.session_id])
        del talk.fake.refusals["/event"]
        await eventually(lambda: any("looked up" in event.message for event in talk.sink.of(events.Error)))
        talk.fake.refusals.clear()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert (stops[0].stop_reason, talk.sink.text()) == ("end_turn", "all of it")


async def test_a_turn_that_ended_in_a_gap_has_ended(tmp_path: Path) -> None:
    """Nobody says idle again; what was said in the gap is told."""
    async with talking(tmp_path) as talk, trio.open_nursery() as nursery:
        talk.fake.refusals["/event"] = 500
        await talk.fake.break_streams()
        stops = await start_turn(talk, nursery, "think hm\nsay all of it")
        said = talk.fake.messages[talk.session.session_id]
        await eventually(lambda: any("completed" in message["info"]["time"] for message in said))
        assert (stops, talk.sink.text()) == ([], "")
        talk.fake.refusals.clear()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert (stops[0].stop_reason, talk.sink.text()) == ("end_turn", "all of it")
        assert stops[0].usage is not None


async def test_a_turn_that_the_server_has_lost_is_a_crash(tmp_path: Path) -> None:
    """A server that was started anew knows the messages, and goes on with nothing."""
    async with talking(tmp_path) as talk:
        stop = await talk.session.prompt("say half\nlose")
        assert (stop.stop_reason, talk.sink.text()) == ("error", "half")
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent) == ("crash", False)


async def test_a_cancel_rejects_what_nobody_will_answer(tmp_path: Path) -> None:
    """The server would keep the question, and a later rejection would reject what is asked then."""
    async with talking(tmp_path, never) as talk, trio.open_nursery() as nursery:
        stops = await start_turn(talk, nursery, "run true")
        await talk.sink.wait_asked()
        await talk.session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"
        assert talk.fake.permissions == {}
        paths = [path.rsplit("/", 1)[-1] for method, path, _ in talk.fake.requests if method == "POST"]
        assert paths.index("abort") < paths.index("reply")


async def test_an_answer_by_another_client_settles_the_question(tmp_path: Path) -> None:
    """The question is withdrawn here, and the turn goes on with the other's answer."""
    async with talking(tmp_path, never) as talk, trio.open_nursery() as nursery:
        stops = await start_turn(talk, nursery, "run true\nsay done")
        await talk.sink.wait_asked()
        (request_id,) = talk.fake.permissions
        await talk.fake._reply(request_id, "reply", {"reply": "once"})  # pyright: ignore[reportPrivateUsage]
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert (stops[0].stop_reason, talk.sink.text()) == ("end_turn", "done")
        assert talk.sink.withdrawn == talk.sink.asks
        assert talk.fake.asked("/reply") == []


async def test_an_abort_that_came_too_early_is_sent_again(tmp_path: Path) -> None:
    """A cancel that overtakes its prompt is not lost."""
    async with talking(tmp_path) as talk, trio.open_nursery() as nursery:
        talk.fake.refusals["/abort"] = 500
        stops = await start_turn(talk, nursery, "talk")
        await talk.sink.wait_text("tick")
        await talk.session.cancel()
        await eventually(lambda: talk.fake.asked("/abort"))
        assert stops == []
        talk.fake.refusals.clear()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"
