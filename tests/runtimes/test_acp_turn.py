"""What an agent's turn is taken for: failed though it says that it ended, or only turned down."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from avenor.runtimes.backends.acp_turn import Heard, signs_of
from avenor.runtimes.backends.acp_updates import foreign_notification, read_update
from avenor.runtimes.backends.profiles import FailureSign, builtin, builtin_names
from tests.runtimes.transcripts import Message, backend_of, read_transcript, transcript_paths


def _take(heard: Heard, kind: str, **members: Any) -> None:
    params = {"sessionId": "s", "update": {"sessionUpdate": kind, **members}}
    update = read_update(Raw(json.dumps(params).encode()))
    heard.take(update.event, update.raw)


def _say(heard: Heard, *chunks: str, message: str | None = None) -> None:
    more = {} if message is None else {"messageId": message}
    for text in chunks:
        _take(heard, "agent_message_chunk", content={"type": "text", "text": text}, **more)


def _heard(**sign: Any) -> Heard:
    return Heard([FailureSign(**sign)])


def _class(heard: Heard, told: str = "end_turn") -> str | None:
    error = heard.failure(told)
    return None if error is None else error.failure_class


def _recorded_turns(path: Path) -> Iterator[tuple[Heard, Message]]:
    """What was heard in each recorded turn that nobody cancelled, and how the agent answered its prompt."""
    signs, running = builtin(backend_of(path.stem)).failures, dict[object, tuple[str, Heard]]()
    for direction, message in read_transcript(path):
        method: str | None = message.get("method")
        params: Message = message.get("params") or {}
        if direction == "meta":
            running.clear()
        elif method == "session/prompt":
            running[message["id"]] = (params["sessionId"], Heard(signs))
        elif method == "session/cancel":
            running = {key: turn for key, turn in running.items() if turn[0] != params["sessionId"]}
        elif method == "session/update":
            update = read_update(Raw(json.dumps(params).encode()))
            for session, heard in running.values():
                if session == update.session_id:
                    heard.take(update.event, update.raw)
        elif direction == "agent->client" and "agentInfo" in message.get("result", {}):
            signs = signs_of(signs, message["result"]["agentInfo"]["name"])
        elif direction == "agent->client" and method is None and message["id"] in running:
            yield running.pop(message["id"])[1], message


def test_no_recorded_turn_that_went_well_is_taken_for_a_failure() -> None:
    """Of all agents and cases, those included that cannot be played again; in the cases of errors some are."""
    well, failed = 0, 0
    for path in transcript_paths():
        for heard, answer in _recorded_turns(path):
            if answer.get("result", {}).get("stopReason") == "end_turn":
                error = heard.failure("end_turn")
                assert error is None or path.stem.endswith("-errors"), (path.stem, error)
                well, failed = well + (error is None), failed + (error is not None)
    assert well >= 60
    assert failed >= 15


def test_a_sign_in_the_last_message_is_found_across_its_chunks() -> None:
    """The message is put together; its text gives the class and is the error's message."""
    heard = _heard(pattern=r"^HTTP [45]\d\d: ")
    _say(heard, "HTTP 5", "29: over", "loaded\n")
    error = heard.failure("end_turn")
    assert error is not None
    assert (error.message, error.failure_class, error.permanent) == ("HTTP 529: overloaded", "overloaded", False)


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("tool_call", {"toolCallId": "t", "title": "x"}),
        ("tool_call_update", {"toolCallId": "t", "status": "completed"}),
        ("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}),
        ("user_message_chunk", {"content": {"type": "text", "text": "go on"}}),
    ],
)
def test_an_earlier_message_shows_no_sign(kind: str, members: dict[str, Any]) -> None:
    """What the agent went on after was no end."""
    heard = _heard(pattern="Error")
    _say(heard, "Error 1")
    _take(heard, kind, **members)
    assert _class(heard) is None
    _say(heard, "all is well")
    assert _class(heard) is None


def test_another_message_id_begins_another_message() -> None:
    """With ids, and from one with an id to one without."""
    heard = _heard(pattern="Error")
    _say(heard, "Error 1", message="a")
    _say(heard, "fine", message="b")
    assert _class(heard) is None
    _say(heard, "Error 2")
    assert _class(heard) == "unknown"


def test_a_state_of_the_session_does_not_end_a_message() -> None:
    """Usage and titles come in between."""
    heard = _heard(pattern="^one two$")
    _say(heard, "one ")
    _take(heard, "usage_update", used=1, size=2)
    _say(heard, "two")
    assert _class(heard) == "unknown"


def test_a_chunk_is_looked_at_by_itself() -> None:
    """Copilot's error is a chunk of its own, whatever a model has said in smaller pieces before it."""
    heard = Heard(builtin("copilot-acp").failures)
    _say(heard, "The log says ", "Error: ", "404 ", "and so on")
    assert _class(heard) is None
    _say(heard, "Info: Request failed due to a transient API error. Retrying...")
    assert _class(heard) is None
    _say(heard, "Error: Failed to get response from the AI model; Last error: 500 Internal Server Error")
    assert _class(heard) == "overloaded"


def test_an_update_that_shows_a_failure_is_told_in_the_words_that_follow() -> None:
    """Codex changes the thread's status, then says what it was."""
    heard = Heard(builtin("codex-acp").failures)
    _say(heard, "Warning: Model metadata for `x` not found.\n\n")
    _take(heard, "session_info_update", _meta={"codex": {"threadStatus": {"type": "active"}}})
    assert _class(heard) is None
    _take(heard, "session_info_update", _meta={"codex": {"threadStatus": {"type": "systemError"}}})
    assert _class(heard) == "unknown"
    _say(heard, "We're currently experiencing high demand.\n\n")
    error = heard.failure("end_turn")
    assert error is not None
    assert (error.message, error.failure_class) == ("We're currently experiencing high demand.", "overloaded")


def test_a_notification_of_the_agents_own_can_show_a_failure() -> None:
    """Its method is part of what is looked at."""
    heard = _heard(where="update", pattern='"_session/failed"')
    note = foreign_notification("_session/retrying", Raw(b'{"category":"rate_limited"}'))
    heard.take(note, note.update)
    assert _class(heard) is None
    note = foreign_notification("_session/failed", Raw(b'{"detail":"HTTP 429"}'))
    heard.take(note, note.update)
    assert _class(heard) == "rate_limit"


def test_silence_is_a_failure_only_where_the_profile_says_so() -> None:
    """pi-acp ends the turn of a failed model without a word; chunks without text are none."""
    heard = _heard(where="nothing")
    _take(heard, "usage_update", used=1, size=2)
    _say(heard, "")
    _take(heard, "agent_message_chunk", content="no content block")
    error = heard.failure("end_turn")
    assert error is not None
    assert (error.failure_class, error.permanent) == ("unknown", False)
    assert Heard([]).failure("end_turn") is None


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("agent_message_chunk", {"content": {"type": "text", "text": "hi"}}),
        ("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}),
        ("tool_call", {"toolCallId": "t", "title": "x"}),
        ("tool_call_update", {"toolCallId": "t"}),
        ("plan", {"entries": []}),
    ],
)
def test_whatever_was_said_or_done_is_no_silence(kind: str, members: dict[str, Any]) -> None:
    """A turn may well end without text."""
    heard = _heard(where="nothing")
    _take(heard, kind, **members)
    assert _class(heard) is None


def test_a_sign_counts_for_its_own_stop_reasons_only() -> None:
    """`max_tokens` is the truth already, whatever the text says."""
    heard = _heard(pattern="Error", stop_reasons=["refusal"])
    _say(heard, "Error")
    assert (_class(heard, "refusal"), _class(heard, "end_turn"), _class(heard, "max_tokens")) == ("unknown", None, None)


def test_a_sign_may_name_its_class() -> None:
    """Then the text, which may be the model's own, does not decide."""
    heard = _heard(pattern="", failure_class="crash", permanent=True)
    _say(heard, "I would write 429 Too Many Requests here")
    error = heard.failure("end_turn")
    assert error is not None
    assert (error.failure_class, error.permanent) == ("crash", True)


def test_signs_of_another_agent_do_not_count() -> None:
    """The profile of all others knows several agents by name."""
    signs = builtin("acp").failures
    assert signs_of(signs, "somebody") == []
    assert signs_of(signs, "") == []
    assert {sign.where for sign in signs_of(signs, "pi-acp")} == {"nothing", "message"}
    assert [sign.where for sign in signs_of(signs, "@agentclientprotocol/codex-acp")] == ["update"]
    assert [sign.where for sign in signs_of(signs, "Copilot")] == ["chunk"]


def test_the_signs_of_every_profile_can_be_searched_for() -> None:
    """A broken pattern would only be found when a turn has failed."""
    checked = 0
    for name in builtin_names():
        for sign in builtin(name).failures:
            heard = Heard([sign])
            _say(heard, "text")
            _take(heard, "session_info_update", title="t")
            for told in sign.stop_reasons:
                heard.failure(told)
            checked += 1
    assert checked >= 5


@pytest.mark.parametrize(
    ("told", "was_refused", "called"),
    [
        ("cancelled", True, "end_turn"),
        ("cancelled", False, "cancelled"),
        ("refusal", True, "refusal"),
        ("end_turn", True, "end_turn"),
    ],
)
def test_a_tool_that_was_turned_down_is_no_cancelled_turn(told: str, was_refused: bool, called: str) -> None:
    """Codex calls its end `cancelled` when its user has said no; every other word is kept."""
    heard = Heard([])
    heard.was_refused = was_refused
    assert heard.stop_reason(told) == called
