"""The script format: what loads, what is refused and how, and its schema."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from avenor.protocol.errors import ConfigError
from avenor.protocol.script import Ask, Say, Script, Tool, load_script, script_schema

DOCS = Path(__file__).parents[2] / "docs"

EVERY_STEP: list[dict[str, Any]] = [
    {"do": "say", "text": "hello", "chunks": 3, "every": "10ms", "message_id": None},
    {"do": "think", "text": "hm"},
    {"do": "echo"},
    {"do": "recall"},
    {"do": "tool", "title": "Look", "kind": "read", "ask": True, "steps": [{"do": "wait", "seconds": 0.1}]},
    {"do": "write", "path": "a.txt", "text": "x", "ask": {"on_reject": [{"do": "stop", "reason": "end_turn"}]}},
    {"do": "run", "command": "true", "background": True},
    {"do": "mcp", "tool": "replan", "server": "avenor", "arguments": {"reason": "x"}, "on_reply": [{"steps": []}]},
    {"do": "model", "prompt": "p", "url": "http://h", "key": "k", "on_reply": [{"match": "a|b", "steps": []}]},
    {"do": "wait", "seconds": "1s"},
    {"do": "wait_for", "path": "go", "timeout": 3},
    {"do": "barrier", "directory": "meet", "count": 2},
    {"do": "plan", "entries": ["one", {"content": "two", "priority": "high", "status": "completed"}]},
    {"do": "usage", "input_tokens": 1, "output_tokens": 2, "cached_read_tokens": 3, "cost": 0.5},
    {"do": "stop", "reason": "zz"},
    {"do": "fail", "message": "no", "code": -1, "data": {"a": 1}, "retry_after": 2},
    {"do": "hang"},
    {"do": "ignore_cancel"},
    {"do": "die", "signal": "SIGKILL", "mid_line": True},
    {"do": "flood", "count": 5, "size": 10, "kind": "thought"},
    {"do": "noise", "base64": "/w=="},
    {"do": "noise", "text": "a banner"},
    {"do": "stderr", "text": "oops"},
    {"do": "update", "update": {"sessionUpdate": "brand_new"}},
    {"do": "notify", "method": "_x/y"},
    {"do": "request", "method": "fs/write_text_file", "params": {}},
    {"do": "set", "option": "mode", "value": "plan"},
]

EVERYTHING: dict[str, Any] = {
    "$schema": "script.schema.json",
    "rules": [{"match": "(?i)go", "times": 2, "per": "session", "steps": EVERY_STEP}],
    "models": ["m", {"id": "n", "name": "N", "description": "the other"}],
    "modes": [],
    "thought_levels": ["low"],
    "capabilities": {"load": False},
    "handshake": {"at": "session", "fault": "error", "error": {"do": "fail", "message": "busy"}, "times": 1},
    "ignores": ["sigterm"],
}


def load(script: object) -> Script:
    return load_script(json.dumps(script).encode(), file="s.json")


def mistakes_of(script: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(script)
    assert caught.value.data["file"] == "s.json"
    return {error["path"]: error["message"] for error in caught.value.data["errors"]}


def test_a_script_with_every_step_loads_and_fits_the_schema() -> None:
    """Loader and schema accept the same full script."""
    script = load(EVERYTHING)
    assert len(script.rules[0].steps) == len(EVERY_STEP)
    jsonschema.validate(EVERYTHING, script_schema())


def test_every_step_of_the_schema_is_in_the_full_script() -> None:
    """The script above forgets no step, so that a new one must be added to it."""
    documented: set[str] = set()
    for definition in script_schema()["$defs"].values():
        documented |= set(definition.get("properties", {}).get("do", {}).get("enum", []))
    assert documented == {step["do"] for step in EVERY_STEP}


def test_the_default_script_loads_and_fits_the_schema() -> None:
    """What users get without a script of their own is a valid one."""
    data = files("avenor.runtimes.scripted").joinpath("default.json").read_bytes()
    assert load_script(data, file="default.json").rules
    jsonschema.validate(json.loads(data), script_schema())


def test_an_empty_script_offers_models_modes_and_everything_else() -> None:
    """All members have a default."""
    script = load({})
    assert script.models == ["small", "large"]
    assert script.capabilities.load
    assert script.rules == []


def test_asking_with_true_is_left_to_the_player_and_own_options_are_kept() -> None:
    """Both forms of `ask` load."""
    option = {"id": "yes", "kind": "allow_once", "name": "Yes"}
    steps = [{"do": "tool", "title": "t", "ask": True}, {"do": "tool", "title": "t", "ask": {"options": [option]}}]
    first, second = load({"rules": [{"steps": steps}]}).rules[0].steps
    assert isinstance(first, Tool)
    assert first.ask is True
    assert isinstance(second, Tool)
    assert isinstance(second.ask, Ask)
    assert [given.id for given in second.ask.options] == ["yes"]
    assert [given.id for given in Ask().options] == ["once", "always", "reject"]


def test_every_mistake_is_reported_at_once_with_its_path() -> None:
    """One attempt shows all that is wrong, nested steps included."""
    found = mistakes_of(
        {
            "zebra": 1,
            "models": ["m", "m"],
            "rules": [
                {"match": "(", "steps": [{"do": "dance"}, {"text": "x"}, {"do": "say", "text": 1}, {"do": "run"}]},
                {"steps": [{"do": "tool", "title": "t", "ask": {"on_allow": [{"do": "wait", "seconds": "soon"}]}}]},
                {"times": 0},
                3,
            ],
        }
    )
    assert list(found) == [
        "$.zebra",
        "$.rules[0].steps[0].do",
        "$.rules[0].steps[1]",
        "$.rules[0].steps[2].text",
        "$.rules[0].steps[3]",
        "$.rules[0]",
        "$.rules[1].steps[0].ask.on_allow[0]",
        "$.rules[2].times",
        "$.rules[2]",
        "$.rules[3]",
        "$",
    ]
    assert "'dance' is none of say, think" in found["$.rules[0].steps[0].do"]
    assert "no regular expression" in found["$.rules[0]"]
    assert "'soon'" in found["$.rules[1].steps[0].ask.on_allow[0]"]
    assert "'steps' is missing" in found["$.rules[2]"]
    assert "models are not distinct" in found["$"]


@pytest.mark.parametrize(
    ("step", "path", "says"),
    [
        ({"do": "noise"}, "", "text or base64"),
        ({"do": "noise", "text": "a", "base64": "YQ=="}, "", "text or base64"),
        ({"do": "noise", "base64": "*"}, "", "base64"),
        ({"do": "die", "signal": "SIGNONE"}, "", "SIGNONE"),
        ({"do": "die", "exit_code": 256}, ".exit_code", "<= 255"),
        ({"do": "say", "text": "a", "chunks": 0}, ".chunks", ">= 1"),
        ({"do": "say", "text": "a", "every": -1}, "", "-1"),
        ({"do": "tool", "title": "t", "kind": "magic"}, ".kind", "magic"),
        ({"do": "tool", "title": "t", "ask": {"options": []}}, ".ask.options", "length >= 1"),
        ({"do": "tool", "title": "t", "ask": {"on_option": {"maybe": []}}}, ".ask", "maybe"),
        ({"do": "plan", "entries": [{"content": "x", "status": "late"}]}, ".entries[0].status", "late"),
        ({"do": "usage", "cost": -1}, ".cost", ">= 0"),
        ({"do": "set", "option": "colour", "value": "red"}, ".option", "colour"),
        ({"do": "hang", "for": 3}, ".for", "unknown member"),
        ({"do": 3}, ".do", "3 is none of"),
        ("say", "", "Expected"),
    ],
)
def test_a_bad_step_is_refused_with_its_path(step: object, path: str, says: str) -> None:
    """Each rule of the format that types alone do not show has its refusal."""
    found = mistakes_of({"rules": [{"steps": [step]}]})
    assert list(found) == ["$.rules[0].steps[0]" + path]
    assert says in found["$.rules[0].steps[0]" + path]


def test_two_permission_options_with_one_id_are_refused() -> None:
    """An answer must name one option."""
    option = {"id": "a", "kind": "allow_once", "name": "A"}
    found = mistakes_of({"rules": [{"steps": [{"do": "tool", "title": "t", "ask": {"options": [option, option]}}]}]})
    assert "not distinct" in found["$.rules[0].steps[0].ask"]


def test_an_error_at_the_start_is_refused_because_nothing_was_asked() -> None:
    """Before stdin is read there is no request to answer."""
    assert "no request" in mistakes_of({"handshake": {"at": "start", "fault": "error"}})["$.handshake"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"rules":[]} x', b"\xff", b"[" * 5000, b'{"rules":[{"steps":["\xff"]}]}']
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    """Broken files, trailing data, bad UTF-8 and bottomless nesting give the same kind of error."""
    with pytest.raises(ConfigError) as caught:
        load_script(data, file="s.json")
    assert caught.value.data["errors"][0]["path"].startswith("$")


def test_a_script_that_is_no_object_is_refused() -> None:
    """The top level is an object."""
    assert "Expected `object`" in mistakes_of([])["$"]


def test_a_plain_text_say_keeps_its_message_id_unset() -> None:
    """Absent and null differ: a new id, or none."""
    steps = [{"do": "say", "text": "a"}, {"do": "say", "text": "a", "message_id": None}]
    first, second = load({"rules": [{"steps": steps}]}).rules[0].steps
    assert isinstance(first, Say)
    assert isinstance(second, Say)
    assert first.message_id is not None
    assert second.message_id is None


@pytest.mark.parametrize("page", ["reference/script.md", "how-to/rehearse.md"])
def test_the_examples_of_the_documentation_are_scripts(page: str) -> None:
    """Every JSON block can be copied into a file and played."""
    text = (DOCS / page).read_text(encoding="utf-8")
    examples = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        load_script(example.encode(), file=page)


def test_the_reference_names_every_step_and_member() -> None:
    """A new step, or a new member of the script, is documented."""
    text = (DOCS / "reference" / "script.md").read_text(encoding="utf-8")
    names = {step["do"] for step in EVERY_STEP} | {member for step in EVERY_STEP for member in step} | set(EVERYTHING)
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
