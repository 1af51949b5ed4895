"""What is pure of `opencode-http`: the stream's framing, and what a session's messages tell beyond what was told."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.base import PermissionAnswer
from avenor.runtimes.backends.http_sse import EventStream, EventTooLong
from avenor.runtimes.backends.opencode_questions import inquiry_answers, permission_ask, permission_reply
from avenor.runtimes.backends.opencode_transcript import Transcript
from avenor.runtimes.backends.opencode_types import Message, MessageInfo, Permission
from avenor.runtimes.backends.profiles import builtin

_STREAM = b': a comment\n\ndata: {"a":1}\r\n\r\nid: 7\nevent: x\ndata:one\ndata: two\n\n\ndata: cut off'


@given(st.lists(st.integers(min_value=0, max_value=len(_STREAM)), max_size=12))
def test_any_cut_of_a_stream_gives_the_same_events(cuts: list[int]) -> None:
    """Comments, other fields and unfinished events are nothing; data lines are joined."""
    stream = EventStream()
    found: list[bytes] = []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(_STREAM)]):
        found += stream.feed(_STREAM[start:end])
    assert found == [b'{"a":1}', b"one\ntwo"]


@pytest.mark.parametrize("data", [b"data: 123456789", b"data: 12345\ndata: 67890\n", b"x" * 20])
def test_an_event_over_the_limit_is_refused(data: bytes) -> None:
    """As one line, as several, or as a line that never ends."""
    with pytest.raises(EventTooLong):
        EventStream(limit_bytes=12 if b"\n" not in data else 9).feed(data)


def info(id: str, role: str = "assistant", **members: Any) -> MessageInfo:
    """A message."""
    return msgspec.convert({"id": id, "role": role, **members}, MessageInfo)


def part(id: str, message: str, **members: Any) -> Raw:
    """A part of a message."""
    return Raw(json.dumps({"id": id, "messageID": message, **members}).encode())


def text(id: str, message: str, words: str, *, is_whole: bool) -> Raw:
    """A text, at its beginning or whole."""
    return part(id, message, type="text", text=words, time={"start": 1, **({"end": 2} if is_whole else {})})


def said(told: list[Event]) -> str:
    """The message text of events."""
    return "".join(
        msgspec.json.decode(event.content)["text"] for event in told if isinstance(event, events.MessageChunk)
    )


@given(st.lists(st.text(min_size=1, max_size=5), max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_every_word_is_told_once_whatever_a_gap_swallows(words: list[str], gap_from: int, gap_to: int) -> None:
    """Deltas are lost from one to another; the end of the text has what is missing, whole and in order."""
    transcript = Transcript()
    transcript.start_turn()
    transcript.take_message(info("m1"), is_own=True)
    told = transcript.take_part(text("p1", "m1", "", is_whole=False))
    for number, word in enumerate(words):
        if number == gap_from:
            transcript.break_off()
        if not gap_from <= number < gap_to:
            told += transcript.take_delta("p1", word)
    told += transcript.take_part(text("p1", "m1", "".join(words), is_whole=True))
    assert said(told) == "".join(words)


def test_history_tells_what_was_missed_and_nothing_twice() -> None:
    """A text known in part, one not known at all, and one that is still being said."""
    transcript = Transcript()
    transcript.take_past([Message(info=info("m0"))])
    transcript.start_turn()
    transcript.take_message(info("u1", "user"), is_own=True)
    transcript.take_message(info("m1"), is_own=True)
    told = transcript.take_part(text("p1", "m1", "", is_whole=False)) + transcript.take_delta("p1", "one ")
    transcript.break_off()
    history = [
        Message(info=info("m0"), parts=[text("p0", "m0", "long ago", is_whole=True)]),
        Message(info=info("u1", "user"), parts=[text("q1", "u1", "the prompt", is_whole=True)]),
        Message(info=info("m1"), parts=[text("p1", "m1", "one two ", is_whole=True)]),
        Message(
            info=info("m2"), parts=[text("p2", "m2", "three ", is_whole=True), text("p3", "m2", "", is_whole=False)]
        ),
    ]
    told += transcript.catch_up(history)
    told += transcript.take_delta("p3", "lost")
    told += transcript.take_part(text("p3", "m2", "four", is_whole=True))
    assert said(told) == "one two three four"
    assert transcript.catch_up(history) == []
    assert transcript.prompt_id == "u1"


def test_what_came_of_a_message_before_the_history_is_kept() -> None:
    """After a gap parts come whose message is not known yet; the history, which may be older, tells whose it is."""
    transcript = Transcript()
    transcript.start_turn()
    assert transcript.take_part(text("q1", "u1", "the prompt", is_whole=True)) == []
    assert transcript.take_part(text("p1", "m1", "all of it", is_whole=True)) == []
    history = [
        Message(info=info("u1", "user"), parts=[]),
        Message(info=info("m1"), parts=[text("p1", "m1", "", is_whole=False)]),
    ]
    assert said(transcript.catch_up(history)) == "all of it"


def test_a_text_whose_end_was_trimmed_is_told_as_it_was_said() -> None:
    """What is out cannot be taken back, and is not told again."""
    transcript = Transcript()
    transcript.take_message(info("m1"), is_own=True)
    told = transcript.take_part(text("p1", "m1", "", is_whole=False)) + transcript.take_delta("p1", "so \n")
    told += transcript.take_part(text("p1", "m1", "so", is_whole=True))
    assert said(told) == "so \n"


def test_tokens_beyond_reason_are_told_as_the_most_that_can_be_counted() -> None:
    """The sum of two of the server's numbers may be larger than any number."""
    transcript = Transcript()
    transcript.start_turn()
    tokens = {"input": 1.5e308, "output": -3, "cache": {"read": 7, "write": 1.5e308}}
    transcript.take_message(info("m1", tokens=tokens, time={"completed": 1}), is_own=True)
    usage = transcript.usage()
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_read_tokens) == (2**53 - 1, 0, 7)


def test_a_tool_does_not_go_back() -> None:
    """An older state that comes late, or the same again, tells nothing."""
    transcript = Transcript()
    transcript.take_message(info("m1"), is_own=True)

    def tool(status: str, **state: Any) -> list[Event]:
        return transcript.take_part(
            part("p1", "m1", type="tool", tool="edit", callID="c1", state={"status": status, **state})
        )

    first = tool("running", input={"filePath": "a.py"})
    assert [events.event_name(event) for event in first] == ["tool.call", "tool.call_update"]
    (done,) = tool("error", input={"filePath": "a.py"}, error="no such file")
    assert isinstance(done, events.ToolCallUpdate)
    assert (done.status, done.kind, done.locations) == ("failed", "edit", Raw(b'[{"path":"a.py"}]'))
    assert tool("error", input={"filePath": "a.py"}, error="no such file") == []
    assert tool("running", input={"filePath": "a.py"}) == []


def test_what_belongs_to_earlier_turns_is_not_told() -> None:
    """The server still changes them: summaries of prompts, outputs that it drops."""
    transcript = Transcript()
    transcript.take_message(info("u1", "user"), is_own=True)
    transcript.take_message(info("m1"), is_own=True)
    transcript.start_turn()
    assert not transcript.take_message(info("u1", "user"), is_own=True)
    assert transcript.take_part(text("p9", "m1", "again", is_whole=True)) == []
    assert transcript.prompt_id is None
    assert transcript.take_message(info("u2", "user"), is_own=True)
    assert transcript.prompt_id == "u2"


@pytest.mark.parametrize(
    ("asked", "tool", "question"),
    [
        ({"permission": "bash", "metadata": {"command": "ls"}}, "execute", "ls"),
        ({"permission": "edit", "metadata": {"filepath": "/x/a.py", "diff": "+"}}, "edit", "/x/a.py"),
        ({"permission": "external_directory", "patterns": ["/etc/*"]}, "external_directory", "/etc/*"),
        ({"permission": "doom_loop"}, "doom_loop", "doom_loop"),
        ({}, "tool", "Allow this tool call?"),
    ],
)
def test_a_question_names_what_it_is_about(asked: dict[str, Any], tool: str, question: str) -> None:
    """The command, the file, or the pattern; auto-approve may take `once`, and nothing else."""
    permission = msgspec.json.decode(json.dumps({"id": "per_1", "sessionID": "ses_1", **asked}), type=Permission)
    ask = permission_ask(permission, Raw(b"{}"), builtin("opencode-http"))
    assert (ask.tool, ask.question) == (tool, question)
    assert ask.trusted_options == ["once"]
    assert [option.option_id for option in ask.options] == ["once", "always", "reject"]


def test_an_answer_is_what_the_server_takes() -> None:
    """A withdrawal is a rejection; a message goes along with that only; one question without an answer answers none."""
    assert permission_reply(PermissionAnswer(option_id="always", message="x")) == {"reply": "always"}
    assert permission_reply(PermissionAnswer(option_id=None)) == {"reply": "reject"}
    yes, no = PermissionAnswer(option_id="A"), PermissionAnswer(option_id="reject")
    assert inquiry_answers([yes, yes]) == [["A"], ["A"]]
    assert inquiry_answers([yes, no]) is None
