"""The stand-in model itself: it says what the prompt tells it to, and nothing is kept but counts."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Generator
from typing import Any

import pytest

from tests.agents.standin_model import HELD, StandInModel

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"required": ["command", "description"]}}},
    {"type": "function", "function": {"name": "write", "parameters": {"properties": {"filePath": {}, "content": {}}}}},
]


@pytest.fixture
def model() -> Generator[StandInModel, None, None]:
    """A running stand-in."""
    with StandInModel() as running:
        yield running


class Answer:
    """What a request got: the text, the tool calls, and whether the stream was whole."""

    def __init__(self, lines: list[str]) -> None:
        chunks = [json.loads(line) for line in lines if line != "[DONE]"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        self.text = "".join(delta.get("content", "") for delta in deltas)
        self.thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        self.calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
        self.is_whole = "[DONE]" in lines
        self.usage = next((chunk["usage"] for chunk in chunks if "usage" in chunk), None)


def user(text: str) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": text}


def post(model: StandInModel, *messages: dict[str, Any]) -> http.client.HTTPResponse:
    """Sends a streaming request with these messages."""
    body = {"model": "any", "stream": True, "messages": list(messages), "tools": TOOLS}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{model.url}/chat/completions", json.dumps(body).encode(), headers)
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=30)
    return response


def ask(model: StandInModel, *messages: dict[str, Any]) -> Answer:
    """What the model says to these messages."""
    with post(model, *messages) as response:
        lines = [line.decode().removeprefix("data: ").strip() for line in response]
    return Answer([line for line in lines if line])


def test_it_says_and_thinks_what_it_is_told(model: StandInModel) -> None:
    """Text and thoughts come as deltas, and the tokens as ordered."""
    answer = ask(model, user("[[reason: let me see]][[text: hello there]][[usage: 7 3]]"))
    assert (answer.thought, answer.text, answer.is_whole) == ("let me see", "hello there", True)
    assert answer.usage == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def test_it_calls_any_tool_by_the_end_of_its_name(model: StandInModel) -> None:
    """With the arguments as they are; one that is not offered is called all the same."""
    assert ask(model, user('[[call: rite {"a": [1]}]][[text: later]]')).calls == [
        {"name": "write", "arguments": '{"a": [1]}'}
    ]
    assert ask(model, user("[[call: nowhere]]")).calls == [{"name": "nowhere", "arguments": "{}"}]


def test_it_echoes_what_it_was_not_told(model: StandInModel) -> None:
    """A prompt without directives comes back."""
    assert ask(model, user("List the files.")).text == "ECHO List the files."


def test_a_tool_call_ends_its_turn_and_the_result_brings_the_rest(model: StandInModel) -> None:
    """Which step it is at stands in the transcript, not in the model."""
    prompt = user("[[shell: ls]][[write: a.txt | hi]][[text: done]]")
    result = {"role": "tool", "content": "ok"}
    (first,) = ask(model, prompt).calls
    assert (first["name"], json.loads(first["arguments"])["command"]) == ("bash", "ls")
    (second,) = ask(model, prompt, result).calls
    assert (second["name"], json.loads(second["arguments"])) == ("write", {"filePath": "a.txt", "content": "hi\n"})
    assert ask(model, prompt, result, result).text == "done"
    assert ask(model, prompt, result, result, result).text == "OK ok"


def test_errors_are_spent_after_their_number(model: StandInModel) -> None:
    """`x2` fails twice with the status and Retry-After, and then the rest is said."""
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as failed:
            ask(model, user("[[error: 429 x2 after 1]][[text: at last]]"))
        with failed.value as answer:
            assert (answer.code, answer.headers["Retry-After"]) == (429, "1")
    assert ask(model, user("[[error: 429 x2 after 1]][[text: at last]]")).text == "at last"


def test_a_drop_breaks_the_stream_off(model: StandInModel) -> None:
    """Without a number always, with one so often."""
    for _ in range(2):
        answer = ask(model, user("[[drop]]"))
        assert (answer.text, answer.is_whole) == ("part one part two ", False)
    assert not ask(model, user("[[drop: 1]][[text: whole]]")).is_whole
    assert ask(model, user("[[drop: 1]][[text: whole]]")).text == "whole"


def test_it_knows_what_it_was_asked(model: StandInModel) -> None:
    """Requests are found by the words of their prompt, with what was said before."""
    ask(model, user("the word is tern"), {"role": "assistant", "content": "noted"}, user("which word?"))
    (request,) = model.asked("which word?")
    assert "the word is tern" in request.earlier
    assert "noted" in request.earlier
    assert model.asked("the word is tern") == []


def test_it_is_told_what_to_say_to_prompts_of_others(model: StandInModel) -> None:
    """By words of the prompt, and only as long as that lasts."""
    with model.told({"which word": "[[text: tern]]", "word": "[[text: never]]"}):
        assert ask(model, user("and which word?")).text == "tern"
        assert ask(model, user("something else")).text == "ECHO something else"
    assert ask(model, user("and which word?")).text == "ECHO and which word?"


def test_a_held_answer_waits_for_its_release(model: StandInModel) -> None:
    """It shows that it has begun, and the rest comes when the test says so."""
    with model.held("which word?") as release, post(model, user("[[text: tern]] which word?")) as response:
        assert HELD.strip() in response.readline().decode()
        assert not release.is_set()
        release.set()
        rest = response.read().decode()
    assert "tern" in rest
    assert ask(model, user("[[text: tern]] which word?")).text == "tern"


def test_calls_that_are_marked_so_are_made_at_once(model: StandInModel) -> None:
    """The next turn comes when all of them have their results."""
    prompt = user("[[read+: a.txt]][[shell: ls]][[text: done]]")
    result = {"role": "tool", "content": "ok"}
    both = ask(model, prompt).calls
    assert [json.loads(each["arguments"])["command"] for each in both] == ["cat a.txt", "ls"]
    assert ask(model, prompt, result, result).text == "done"


def test_a_tool_is_called_by_the_end_of_its_name(model: StandInModel) -> None:
    """As those of an MCP server are, which agents put a name before; the last commit of the prompt is filled in."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    (call,) = ask(model, user(f'at {commit} [[call: look {{"at": "{{commit}}"}}]] [[call: bash]]')).calls
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"at": commit})
    TOOLS.append({"type": "function", "function": {"name": "server_look", "parameters": {}}})
    try:
        (call,) = ask(model, user("[[call: look]]")).calls
    finally:
        TOOLS.pop()
    assert (call["name"], call["arguments"]) == ("server_look", "{}")


def test_an_edit_is_a_patch_where_no_tool_edits(model: StandInModel) -> None:
    """Of one line, spaces before it included."""
    (call,) = ask(model, user("[[edit: a.py |   old |   new]]")).calls
    assert call["name"] == "apply_patch"
    assert "*** Update File: a.py\n@@\n-  old\n+  new\n" in json.loads(call["arguments"])["input"]
