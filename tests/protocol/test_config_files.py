"""The form of config files, and how findings are told."""

import json
from typing import Any

import pytest

from avenor.protocol.config_loading import Finding, config_kind, load_config
from avenor.protocol.configs import ConfigKind, ResolvedLoop, ResolvedPhase, ResolvedTeam
from avenor.protocol.errors import ConfigError, from_wire, to_wire
from tests.protocol.config_folder import Folder, check, errors, load, loop, phase, team


def test_a_team_is_loaded_with_its_prompts() -> None:
    """In order, each phase with the kind of its list."""
    content = {
        "pre": [phase("plan", prompt="plan it")],
        "team": [phase("x", prompt_file="p/x.md"), phase("y")],
        "post": [phase("review")],
    }
    loaded = load(content, files={"/c/p/x.md": "grüße".encode()})
    assert loaded.config == ResolvedTeam(
        file="/c/root.json",
        pre=[ResolvedPhase(name="plan", kind="pre", prompt="plan it")],
        team=[
            ResolvedPhase(name="x", kind="team", prompt="grüße"),
            ResolvedPhase(name="y", kind="team", prompt="go"),
        ],
        post=[ResolvedPhase(name="review", kind="post", prompt="go")],
    )
    assert (loaded.warnings, loaded.notes) == ([], [])


def test_a_loop_is_loaded_with_its_limit() -> None:
    """As a loop."""
    loaded = load({"loop": [phase("fix")], "max_iterations": 3}, "loop")
    step = ResolvedPhase(name="fix", kind="loop", prompt="go")
    assert loaded.config == ResolvedLoop(file="/c/root.json", loop=[step], max_iterations=3)


def test_unknown_members_are_refused() -> None:
    """At the top and in a phase, with what is known there."""
    found = errors({"team": [phase(retries=3)], "teams": [], "max_iterations": 3})
    assert [line.partition(";")[0] for line in found] == [
        "root.json: $.team[0].retries: unknown member",
        "root.json: $.teams: unknown member",
        "root.json: $.max_iterations: unknown member",
    ]
    assert found[0].endswith(
        "known here: name, prompt, prompt_file, loop_file, team_file, resume_from_previous, conditional, agent, model, "
        "backend"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"team": [phase(conditional="yes")]}, ["root.json: $.team[0].conditional: Expected `bool`, got `str`"]),
        ({"team": {"a": 1}}, ["root.json: $.team: Expected `array`, got `object`"]),
        ({"pre": None, "team": [phase()]}, ["root.json: $.pre: Expected `array`, got `null`"]),
        ({"team": ["go"]}, ["root.json: $.team[0]: Expected `object`, got `str`"]),
        ({"team": [{"prompt": "go"}]}, ["root.json: $.team[0]: member 'name' is missing"]),
        ({"team": [phase(prompt=5)]}, ["root.json: $.team[0].prompt: Expected `str | null`, got `int`"]),
        ([], ["root.json: $: Expected `object`, got `array`"]),
    ],
)
def test_wrong_types_are_refused_once(content: Any, expected: list[str]) -> None:
    """What cannot be read breaks no other rule: a prompt that is a number is no missing prompt."""
    assert errors(content) == expected


@pytest.mark.parametrize("limit", ["3", 1.5, True, None])
def test_the_limit_of_a_loop_is_a_whole_number(limit: object) -> None:
    """JSON's other kinds are refused."""
    found = errors(loop(max_iterations=limit), "loop")
    assert len(found) == 1
    assert found[0].startswith("root.json: $.max_iterations: Expected `int`")


@pytest.mark.parametrize("data", [b"", b"{", b"{} {}", b"\xff", b"team: []", b"[" * 100_000, b'{"team":[],}'])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    """Trailing data and endless nesting too."""
    found = errors(data)
    assert len(found) == 1
    assert found[0].startswith("root.json: $: this is no JSON: ")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"pre":[{"name":"a","prompt":"x"}],"pre":[{"name":"b","prompt":"y"}],"team":[]}', "$.pre"),
        ('{"team":[{"name":"a","prompt":"x","prompt":"y"}]}', "$.team[0].prompt"),
    ],
)
def test_a_member_that_is_there_twice_is_refused(text: str, path: str) -> None:
    """The work that one of them describes would be lost without a word."""
    assert errors(text.encode()) == [f"root.json: {path}: it is there twice"]


def test_a_file_that_cannot_be_read_is_a_mistake_like_others() -> None:
    """With the system's reason."""
    with pytest.raises(ConfigError, match=r"^/x/none\.json: \$: No such file or directory$"):
        load_config("/x/none.json", "team", read=Folder({}).read, has_initial=False)


def test_an_error_without_words_is_told_as_it_is() -> None:
    """Some have no strerror."""

    def read(path: str) -> bytes:
        raise OSError(f"no way to {path}")

    with pytest.raises(ConfigError, match="no way to /x"):
        load_config("/x", "team", read=read, has_initial=False)


def test_every_mistake_is_told_at_once() -> None:
    """Of the form, the rules, the prompt files, the templates and the nested files, in the root and below."""
    files = {
        "/c/sub/loop.json": {
            "loop": [phase("", prompt_file="../empty.md"), phase("ok", prompt="{{")],
            "max_iterations": 0,
            "x": 1,
        },
        "/c/empty.md": b"",
    }
    content = {
        "unknown": 1,
        "pre": [{"name": 5, "prompt": "  "}],
        "team": [
            phase("a", extra=1, prompt_file="missing.md", prompt="{{.Nope}}"),
            phase("a", loop_file="sub/loop.json", backend="x"),
        ],
    }
    found = [tuple(line.split(": ")[:2]) for line in errors(content, files=files)]
    assert set(found) == {
        ("root.json", "$.unknown"),
        ("root.json", "$.pre[0].name"),
        ("root.json", "$.pre[0].prompt"),
        ("root.json", "$.team[0].extra"),
        ("root.json", "$.team[0]"),
        ("root.json", "$.team[0].prompt"),
        ("root.json", "$.team[0].prompt_file"),
        ("root.json", "$.team[1].name"),
        ("root.json", "$.team[1].backend"),
        ("sub/loop.json", "$.x"),
        ("sub/loop.json", "$.max_iterations"),
        ("sub/loop.json", "$.loop[0].name"),
        ("sub/loop.json", "$.loop[0].prompt_file"),
        ("sub/loop.json", "$.loop[1].prompt"),
    }
    assert len(found) == len(set(found))


@pytest.mark.parametrize("kind", ["loop", "team"])
def test_the_error_has_a_line_for_each_mistake_and_names_the_schema(kind: ConfigKind) -> None:
    """For people and editors; programs get the same as a list, on the wire too."""
    folder = Folder({"/c/root.json": {"pre": [phase("")], "x\ny": 1}})
    with pytest.raises(ConfigError) as caught:
        load_config("/c/root.json", kind, read=folder.read, has_initial=False)
    lines = caught.value.message.split("\n")
    assert len(lines) == 3
    assert lines[0].startswith("/c/root.json: $.x y: unknown member")
    assert lines[1] == "/c/root.json: $.pre[0].name: it is empty: a phase needs a name"
    assert lines[2] == (
        f"the format: docs/reference/{kind}.md; its JSON Schema: docs/reference/schemas/{kind}.schema.json"
    )
    data = from_wire(to_wire(caught.value)).data
    assert (data["file"], data["path"]) == ("/c/root.json", "$.x\ny")
    assert data["errors"][1] == {
        "file": "/c/root.json",
        "path": "$.pre[0].name",
        "message": "it is empty: a phase needs a name",
    }


def test_a_thousand_mistakes_are_enough() -> None:
    """The rest is counted: an answer to a spawn is one line of bounded length."""
    found = check({"pre": [phase("") for _ in range(1003)]}).errors
    assert len(found) == 1001
    assert found[-1] == Finding("/c/root.json", "$", "and 3 more")
    assert len(check({"pre": [phase("") for _ in range(1000)]}).errors) == 1000


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (team(), "team"),
        (loop(), "loop"),
        ({"max_iterations": 1}, "loop"),
        ({"team": [], "loop": []}, "team"),
        ({"pre": [phase()]}, None),
        ([], None),
    ],
)
def test_the_kind_of_a_file_is_told_by_what_only_one_kind_has(content: Any, kind: ConfigKind | None) -> None:
    """Pre and post are in both."""
    assert config_kind(json.dumps(content).encode()) == kind


def test_what_is_no_json_has_no_kind() -> None:
    """Loading says what is wrong."""
    assert config_kind(b"{") is None
