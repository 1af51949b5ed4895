"""Opening sessions of pi, with a pi of a few lines in its place: what is refused, and why."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.protocol import events
from avenor.protocol.errors import AgentExited, LocalProtocolError
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused, OpenParams, Session, TurnStop, open_within
from avenor.runtimes.backends.pi import EXTENSION, PiBackend
from avenor.runtimes.backends.profiles import builtin
from tests.helpers import eventually
from tests.runtimes.agent_kit import OPEN_SECONDS, QUICK, RecordingSink, make_params, never, opened, picks

_PI = Path(__file__).parent / "mini_pi.py"
_THINKER = {"id": "thinker", "provider": "standin", "reasoning": True}
_BEGIN: list[dict[str, Any]] = [{"type": "agent_start"}]
_END: list[dict[str, Any]] = [{"type": "agent_end", "messages": []}]


def make_backend(folder: Path, *, ends_on_stdin_close: bool = True, **plan: Any) -> PiBackend:
    """A backend whose pi does as planned."""
    path = folder / "plan.json"
    path.write_text(json.dumps({"log": str(folder / "log"), **plan}), encoding="utf-8")
    argv = [sys.executable, str(_PI), str(path)]
    profile = msgspec.structs.replace(builtin("pi"), argv=argv, ends_on_stdin_close=ends_on_stdin_close)
    return PiBackend(profile, "0")


def received(folder: Path) -> list[dict[str, Any]]:
    """What that pi was sent."""
    return [json.loads(line) for line in (folder / "log").read_text(encoding="utf-8").splitlines()]


def delta(text: str) -> dict[str, Any]:
    """A piece of text from the model."""
    event = {"type": "text_delta", "contentIndex": 0, "delta": text}
    return {"type": "message_update", "assistantMessageEvent": event}


def message_end(stop_reason: str, **members: Any) -> dict[str, Any]:
    """The end of an answer of the model."""
    return {"type": "message_end", "message": {"role": "assistant", "stopReason": stop_reason, **members}}


async def refused(backend: PiBackend, params: OpenParams) -> BackendRefused:
    """The refusal of an opening that must fail, with nothing left behind."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, backend, params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    return caught.value


def test_the_extension_is_part_of_the_package() -> None:
    """It is beside the module that gives it to pi."""
    assert "tool_call" in EXTENSION.read_text(encoding="utf-8")


async def test_an_open_session_tells_what_pi_offers(tmp_path: Path) -> None:
    """Version, model, models and thinking levels; and the extension is on the command line."""
    backend = make_backend(tmp_path, models=[_THINKER], state={"model": _THINKER}, levels=["off", "max"])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert (session.agent_version, session.model, session.agent) == ("pi 0.0", "standin/thinker", None)
        assert session.capabilities.models == ["standin/thinker"]
        assert session.capabilities.thinking == ["off", "max"]
        assert session.capabilities.resume == "resume"


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ({}, ["off"]),
        ({"reasoning": True}, ["off", "minimal", "low", "medium", "high"]),
        ({"reasoning": True, "thinkingLevelMap": {"off": None, "xhigh": "max"}},
         ["minimal", "low", "medium", "high", "xhigh"]),
    ],
)  # fmt: skip
async def test_thinking_levels_are_known_of_a_pi_that_does_not_tell_them(
    tmp_path: Path, model: dict[str, Any], levels: list[str]
) -> None:
    """0.73 answers such a command without an id."""
    backend = make_backend(tmp_path, state={"model": {"id": "m", "provider": "p", **model}})
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert session.capabilities.thinking == levels


async def test_a_pi_that_would_not_ask_is_refused(tmp_path: Path) -> None:
    """Without our extension it does as it likes; only auto-approve allows that."""
    backend = make_backend(tmp_path, extension=None)
    refusal = await refused(backend, make_params(tmp_path))
    assert (refusal.reason_word, refusal.retryable) == ("not_applied", False)
    params = make_params(tmp_path, auto_approve=True)
    async with opened(backend, params, RecordingSink()) as session:
        assert session.agent_version is None


async def test_an_extension_that_does_not_ask_is_not_enough(tmp_path: Path) -> None:
    """It says whether it does."""
    backend = make_backend(tmp_path, extension={"version": "0.0", "asks": False})
    assert (await refused(backend, make_params(tmp_path))).reason_word == "not_applied"
    backend = make_backend(tmp_path, extension="something else of that name")
    assert (await refused(backend, make_params(tmp_path))).reason_word == "not_applied"


async def test_auto_approve_tells_the_extension_not_to_ask(tmp_path: Path) -> None:
    """By a variable; what the caller has set there does not count."""
    env = {**make_params(tmp_path).env, "AVENOR_PI_ASK": "0"}
    async with opened(make_backend(tmp_path), make_params(tmp_path, env=env), RecordingSink()) as session:
        assert session.agent_version == "pi 0.0"
    params = make_params(tmp_path, env={**env, "AVENOR_PI_ASK": "1"}, auto_approve=True)
    async with opened(make_backend(tmp_path), params, RecordingSink()) as session:
        assert session.agent_version == "pi 0.0"


async def test_what_pi_cannot_do_is_refused_before_it_starts(tmp_path: Path) -> None:
    """Agents, MCP servers, and the resuming of what is no session id."""
    backend = make_backend(tmp_path)
    refusal = await refused(backend, make_params(tmp_path, agent="plan"))
    assert (refusal.reason_word, refusal.data["offers"]) == ("unknown_agent", [])
    servers = [McpServer(name="ping", command="ping")]
    assert (await refused(backend, make_params(tmp_path, mcp_servers=servers))).reason_word == "unsupported_mcp"
    for session_id in ("../notes", "notes.jsonl", "/etc/passwd", ""):
        assert (await refused(backend, make_params(tmp_path, resume=session_id))).reason_word == "resume_failed"
    assert not (tmp_path / "log").exists()


async def test_a_model_that_pi_made_up_is_refused(tmp_path: Path) -> None:
    """pi says that it uses it, and does not offer it."""
    backend = make_backend(tmp_path, state={"model": {"id": "nope", "provider": "standin"}}, models=[_THINKER])
    refusal = await refused(backend, make_params(tmp_path, model="standin/nope"))
    assert (refusal.reason_word, refusal.data["offers"]) == ("unknown_model", ["standin/thinker"])
    assert "standin/thinker" in refusal.message


async def test_a_model_at_which_pi_ends_is_refused_with_what_there_is(tmp_path: Path) -> None:
    """pi is started once more to learn what it offers."""
    backend = make_backend(tmp_path, dies_of=["--model"])
    refusal = await refused(backend, make_params(tmp_path, model="nope"))
    assert (refusal.reason_word, refusal.data["offers"]) == ("unknown_model", ["standin/large"])


async def test_a_pi_that_ends_for_another_reason_has_ended(tmp_path: Path) -> None:
    """Its exit and its last words are told, and the model is not blamed."""
    backend = make_backend(tmp_path, dies_of=["--model"], last_words="out of luck")
    params = make_params(tmp_path, model="large")
    async with trio.open_nursery() as nursery:
        with pytest.raises(AgentExited, match=r"(?s)exit status 1.*out of luck") as caught:
            await open_within(OPEN_SECONDS, backend, params, RecordingSink(), nursery)
    assert caught.value.retryable


async def test_another_model_than_the_wanted_one_is_refused(tmp_path: Path) -> None:
    """It is offered, but pi uses another."""
    backend = make_backend(tmp_path, models=[_THINKER])
    refusal = await refused(backend, make_params(tmp_path, model="thinker"))
    assert (refusal.reason_word, refusal.data["current"]) == ("not_applied", "standin/large")


async def test_thinking_levels_are_checked(tmp_path: Path) -> None:
    """One that is not offered, and one that was not set."""
    backend = make_backend(tmp_path, levels=["off", "high"])
    refusal = await refused(backend, make_params(tmp_path, thinking="deepest"))
    assert (refusal.reason_word, refusal.data["offers"]) == ("unknown_thinking", ["off", "high"])
    assert (await refused(backend, make_params(tmp_path, thinking="high"))).reason_word == "not_applied"


async def test_another_session_than_the_wanted_one_is_refused(tmp_path: Path) -> None:
    """Also one whose id begins alike."""
    refusal = await refused(make_backend(tmp_path), make_params(tmp_path, resume="session"))
    assert (refusal.reason_word, refusal.retryable) == ("resume_failed", False)


@pytest.mark.parametrize(
    "plan",
    [
        {"last_words": "No session found matching 'session-2'"},
        {"first": ["Session found in different project: /elsewhere"], "last_words": ""},
    ],
)
async def test_a_session_that_pi_does_not_have_is_not_resumed(tmp_path: Path, plan: dict[str, Any]) -> None:
    """pi ends, and tells why on one of its outputs."""
    backend = make_backend(tmp_path, dies_of=["--session"], **plan)
    assert (await refused(backend, make_params(tmp_path, resume="session-2"))).reason_word == "resume_failed"


async def test_an_answer_that_is_not_as_documented_is_no_session(tmp_path: Path) -> None:
    """The refusal says what was wrong."""
    refusal = await refused(make_backend(tmp_path, state={"sessionId": 5}), make_params(tmp_path))
    assert refusal.reason_word == "session_refused"
    assert "sessionId" in refusal.message


async def test_what_is_no_record_is_noise(tmp_path: Path) -> None:
    """Banners are told as noise, records of unknown types are kept, and a banner before a record does not hide it."""
    sink = RecordingSink()
    first = ["hello there", '\x1b[31m{"type": "news", "of": 1}', "[1]", '{"type": 5}', '{"type": "message_end"}']
    async with opened(make_backend(tmp_path, first=first), make_params(tmp_path), sink):
        await sink.wait_for(events.SessionUpdate, 3)
    assert [event.text for event in sink.of(events.AgentNoise)] == ["hello there", "[1]"]
    kept = [msgspec.json.decode(event.update) for event in sink.of(events.SessionUpdate)]
    assert kept == [{"type": "news", "of": 1}, {"type": 5}, {"type": "message_end"}]


async def test_a_question_while_pi_starts_is_told_that_nobody_answers(tmp_path: Path) -> None:
    """The session is not open yet: there is nobody to ask."""
    question = {"type": "extension_ui_request", "id": "q", "method": "confirm", "title": "Really?"}
    sink = RecordingSink()
    async with opened(make_backend(tmp_path, first=[json.dumps(question)]), make_params(tmp_path), sink):
        pass
    (answer,) = [message for message in received(tmp_path) if message["type"] == "extension_ui_response"]
    assert answer == {"type": "extension_ui_response", "id": "q", "cancelled": True}
    assert sink.asks == []


async def test_a_question_with_a_time_limit_is_withdrawn_in_time(tmp_path: Path) -> None:
    """pi has answered it by itself then, without a word."""
    question = {"type": "extension_ui_request", "id": "q", "method": "select", "options": ["A"], "timeout": 1}
    sink = RecordingSink(never)
    # Nothing but the limit ends this turn: nobody answers, and pi goes on when it has heard.
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, question, {"type": "hear"}, *_END]])
    async with opened(backend, make_params(tmp_path), sink) as session:
        await session.prompt("hello")
    assert sink.withdrawn == sink.asks  # it may be over before anybody could be asked
    (answer,) = [message for message in received(tmp_path) if message["type"] == "extension_ui_response"]
    assert answer == {"type": "extension_ui_response", "id": "q", "cancelled": True}


@pytest.mark.parametrize(
    ("words", "permanent", "reason"),
    [
        ("No API key found for standin.", True, "auth"),
        ("No model selected.", True, "auth"),
        ("Agent is already processing.", False, ""),
    ],
)
async def test_a_prompt_that_pi_refuses_is_a_failed_turn(
    tmp_path: Path, words: str, permanent: bool, reason: str
) -> None:
    """With pi's words; what would fail again is permanent."""
    backend = make_backend(tmp_path, refuses=words)
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt("hello")
    assert stop.stop_reason == "error"
    assert stop.error is not None
    assert (stop.error.message, stop.error.permanent, stop.error.reason) == (words, permanent, reason)


@pytest.mark.parametrize(
    ("said", "stop_reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("aborted", "cancelled"), ("zz", "zz"), ("toolUse", "end_turn")],
)
async def test_the_stop_reasons_of_pi_have_our_names(tmp_path: Path, said: str, stop_reason: str) -> None:
    """And one that nobody knows stays as it is."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("hi"), message_end(said), *_END]])
    sink = RecordingSink()
    async with opened(backend, make_params(tmp_path), sink) as session:
        assert await session.prompt("hello") == TurnStop(stop_reason=stop_reason)
    assert sink.text() == "hi"


async def test_a_prompt_that_an_extension_handles_has_an_end(tmp_path: Path) -> None:
    """1.x says so with its answer; of 0.73 it is found out."""
    backend = make_backend(tmp_path, prompts=[[], []], accepted={"disposition": "handled"})
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert await session.prompt("/one") == TurnStop(stop_reason="end_turn")
    backend = make_backend(tmp_path, prompts=[[]])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        assert await session.prompt("/two") == TurnStop(stop_reason="end_turn")


async def test_a_line_over_the_limit_ends_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been the turn's end; pi is told to stop, and the session goes on."""
    monkeypatch.setattr("avenor.runtimes.backends.line_wire.LINE_LIMIT_BYTES", 4000)
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("x" * 5000)], [*_BEGIN, message_end("stop"), *_END]])
    async with opened(backend, make_params(tmp_path), RecordingSink()) as session:
        stop = await session.prompt("hello")
        assert stop.error is not None
        assert (stop.stop_reason, stop.error.reason) == ("error", "line_too_long")
        assert (await session.prompt("again")).stop_reason == "end_turn"
    assert "abort" in [message["type"] for message in received(tmp_path)]


async def test_an_answer_to_a_question_goes_to_its_asker(tmp_path: Path) -> None:
    """By id, in the form that the kind of question wants."""
    questions = [
        {"type": "extension_ui_request", "id": "a", "method": "select", "title": "?", "options": ["No", "Fine"]},
        {"type": "extension_ui_request", "id": "b", "method": "confirm", "title": "?"},
        {"type": "extension_ui_request", "id": "c", "method": "editor", "title": "?"},
        {"type": "extension_ui_request", "id": "d", "method": "select", "title": "?"},
    ]
    sink = RecordingSink(picks("allow_once"))
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, *questions], [*_BEGIN, *_END]])
    async with opened(backend, make_params(tmp_path), sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, "hello")
        await sink.wait_asked(2)
        with pytest.raises(LocalProtocolError):
            await session.prompt("too early")
        await eventually(lambda: len(_answers(tmp_path)) == 4)
        nursery.cancel_scope.cancel()
    cancelled = {"cancelled": True}
    assert _answers(tmp_path) == {"a": {"value": "Fine"}, "b": {"confirmed": True}, "c": cancelled, "d": cancelled}


def _answers(folder: Path) -> dict[str, Any]:
    found = [message for message in received(folder) if message.pop("type") == "extension_ui_response"]
    return {message.pop("id"): message for message in found}


async def test_a_closed_session_is_cancelled(tmp_path: Path) -> None:
    """The turn that ran ends so, and a prompt after it as well."""
    backend = make_backend(tmp_path, prompts=[[*_BEGIN, delta("hi")]])
    sink = RecordingSink()
    stops: list[TurnStop] = []

    async def turn(session: Session) -> None:
        stops.append(await session.prompt("hello"))

    async with opened(backend, make_params(tmp_path), sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(turn, session)
        await sink.wait_text("hi")
        await session.close(QUICK)
        stops.append(await session.prompt("anyone?"))
    assert [stop.stop_reason for stop in stops] == ["cancelled", "cancelled"]
