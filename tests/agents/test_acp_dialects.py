"""The stand-in model in the dialects of other agents: what it says and how it fails comes through."""

import http.client
import json
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.agents.acp_dialects import DialectModel
from tests.agents.standin_model import StandInModel

_TOOL = {"command": {"type": "string"}}
_PATHS = {
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/g:streamGenerateContent",
}


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    """A running translator before a running stand-in."""
    with StandInModel() as model, DialectModel(model.url) as translated:
        yield translated.url


def _body(dialect: str, prompt: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": _TOOL, "required": ["command"]}
    match dialect:
        case "responses":
            asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
            tool: dict[str, Any] = {
                "type": "function",
                "name": "exec_command",
                "parameters": {"properties": {"cmd": {}}},
            }
            return {"model": "m", "stream": True, "instructions": "be good", "input": [asked], "tools": [tool]}
        case "messages":
            tool = {"name": "Bash", "input_schema": schema}
            blocks = [
                {"type": "text", "text": "<system-reminder>[[text: no]]</system-reminder>"},
                {"type": "text", "text": prompt},
            ]
            asked = {"role": "user", "content": blocks}
            return {"model": "m", "stream": True, "system": "be good", "messages": [asked], "tools": [tool]}
        case _:
            declared = {"name": "run_shell_command", "parametersJsonSchema": schema}
            asked = {"role": "user", "parts": [{"text": prompt}]}
            return {"contents": [asked], "tools": [{"functionDeclarations": [declared]}]}


def _ask(url: str, dialect: str, prompt: str) -> tuple[int, dict[str, str], str]:
    return _post(url, dialect, _body(dialect, prompt))


def _post(url: str, dialect: str, body: dict[str, Any]) -> tuple[int, dict[str, str], str]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port)
    try:
        connection.request("POST", _PATHS[dialect], json.dumps(body))
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read().decode()
    finally:
        connection.close()


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def _find(value: Any, key: str) -> list[str]:
    """All texts under that name, however deep."""
    return re.findall(rf'"{key}": "([^"]*)"', json.dumps(value))


@pytest.mark.parametrize(
    ("dialect", "kind", "key"),
    [
        ("responses", "response.output_text.delta", "delta"),
        ("messages", "content_block_delta", "text"),
        ("gemini", None, "text"),
    ],
)
def test_what_it_says_comes_in_pieces(url: str, dialect: str, kind: str | None, key: str) -> None:
    """The prompt is found behind what the agent put around it, and the tokens come at the end."""
    status, _, text = _ask(url, dialect, "[[text: one two]][[usage: 7 3]]")
    assert status == 200
    deltas = [event for event in _events(text) if kind is None or event["type"] == kind]
    assert "".join(_find(deltas, key)) == "one two"
    assert '"input_tokens": 7' in text or '"promptTokenCount": 7' in text


@pytest.mark.parametrize(
    ("dialect", "name", "command"),
    [("responses", "exec_command", "cmd"), ("messages", "Bash", "command"), ("gemini", "run_shell_command", "command")],
)
def test_it_calls_the_shell_as_the_agent_names_it(url: str, dialect: str, name: str, command: str) -> None:
    """With the arguments that the agent's own tool takes."""
    _, _, text = _ask(url, dialect, "[[shell: echo hi]]")
    assert name in _find(_events(text), "name")
    assert f'{command}\\": \\"echo hi' in text or f'"{command}": "echo hi"' in text


def test_a_tool_of_a_namespace_is_called_in_it(url: str) -> None:
    """codex puts those of an MCP server into one."""
    body = _body("responses", "[[call: look {}]]")
    inner: dict[str, Any] = {"type": "function", "name": "look", "parameters": {}}
    body["tools"].append({"type": "namespace", "name": "mcp__eyes", "tools": [inner]})
    status, _, text = _post(url, "responses", body)
    (done,) = [event["item"] for event in _events(text) if event["type"] == "response.output_item.done"]
    assert (status, done["namespace"], done["name"], done["arguments"]) == (200, "mcp__eyes", "look", "{}")


@pytest.mark.parametrize("dialect", list(_PATHS))
def test_an_error_keeps_its_status_and_its_wait(url: str, dialect: str) -> None:
    """What an agent goes by is the status, the message and Retry-After."""
    status, headers, text = _ask(url, dialect, f"[[error: 429 x1 after 3]] {dialect}")
    assert (status, headers["Retry-After"]) == (429, "3")
    assert json.loads(text)["error"]["message"] == "stand-in error 429"


@pytest.mark.parametrize("dialect", list(_PATHS))
def test_an_answer_that_breaks_off_is_broken_here_as_well(url: str, dialect: str) -> None:
    """The agent's client can tell: the last chunk of the transfer never comes."""
    with pytest.raises(http.client.IncompleteRead) as caught:
        _ask(url, dialect, "[[drop]]")
    assert b"part one" in caught.value.partial


@pytest.mark.parametrize("dialect", list(_PATHS))
def test_what_is_no_json_comes_through(url: str, dialect: str) -> None:
    """As it is, in an event of its own."""
    assert "data: {this is not json\n" in _ask(url, dialect, "[[garbage]][[text: x]]")[2]


def test_codex_is_told_to_call_tools_of_servers_and_the_one_for_patches(url: str) -> None:
    """The first are in a namespace for each server; the second takes text."""
    body = _body("responses", '[[call+: ping {"a": 1}]][[edit: f | old | new]]')
    spaced = {"type": "namespace", "name": "mcp__pinger", "tools": [{"type": "function", "name": "ping"}]}
    body["tools"] = [spaced, {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}]
    told = _events(_post(url, "responses", body)[2])
    call, patch = (event["item"] for event in told if event["type"] == "response.output_item.done")
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__pinger", "ping")
    assert json.loads(call["arguments"]) == {"a": 1}
    assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
    assert "+new" in patch["input"]
