"""Templates are checked when a config is loaded, with the fields that its kind has."""

from itertools import product
from typing import Any

import pytest

from avenor.protocol.config_loading import template_fields
from avenor.protocol.configs import ConfigKind
from avenor.protocol.events import PhaseKind
from tests.protocol.config_folder import errors, loop, phase

COMMON = {"RunID", "Phase", "WorkDir", "PrevPhaseCommit", "DiffStat", "ChangedFiles"}
LISTS: list[tuple[ConfigKind, PhaseKind]] = [
    ("loop", "pre"),
    ("loop", "loop"),
    ("loop", "post"),
    ("team", "pre"),
    ("team", "team"),
    ("team", "post"),
]
WHERE = {
    "Iteration": "exists only in loops",
    "MaxIterations": "exists only in loops",
    "TeamOutput": "exists only in the post phases of teams",
}


def content(kind: ConfigKind, place: PhaseKind, **members: Any) -> Any:
    return {"pre": [phase("first")], place: [phase("x", **members)]}


def test_the_fields_are_those_of_the_contract() -> None:
    """Some everywhere, the iteration in loops, what members said after a team."""
    expected = {
        ("loop", "pre"): COMMON | {"Iteration", "MaxIterations"},
        ("loop", "loop"): COMMON | {"Iteration", "MaxIterations"},
        ("loop", "post"): COMMON | {"Iteration", "MaxIterations"},
        ("team", "pre"): COMMON,
        ("team", "team"): COMMON,
        ("team", "post"): COMMON | {"TeamOutput"},
    }
    assert {place: set(template_fields(*place)) for place in LISTS} == expected


@pytest.mark.parametrize(("place", "field"), [*product(LISTS, sorted(COMMON | set(WHERE)))])
def test_a_prompt_uses_the_fields_of_its_place_only(place: tuple[ConfigKind, PhaseKind], field: str) -> None:
    """Another one is refused with where it exists."""
    kind, name = place
    found = errors(content(kind, name, prompt=f"a\n  {{{{.{field}}}}}"), kind)
    if field in template_fields(kind, name):
        assert found == []
        return
    assert len(found) == 1
    assert found[0].startswith(f"root.json: $.{name}[0].prompt: line 2, column ")
    assert found[0].endswith(f"; .{field} {WHERE[field]}")


@pytest.mark.parametrize(("kind", "place"), LISTS)
def test_a_field_that_nobody_has_is_refused_without_a_place(kind: ConfigKind, place: PhaseKind) -> None:
    """A misspelling, most often."""
    found = errors(content(kind, place, prompt="{{.RunId}}"), kind)
    assert len(found) == 1
    assert "exists only" not in found[0]


def test_every_problem_of_a_template_is_told() -> None:
    """Each with its line and column, and only the lacking field with where it exists."""
    found = errors(content("team", "team", prompt="{{.Nope}} {{.Iteration}}\n{{.TeamOutput}}"))
    assert len(found) == 3
    assert "exists only" not in found[0]
    assert found[1].endswith("; .Iteration exists only in loops")
    assert found[2].endswith("; .TeamOutput exists only in the post phases of teams")


def test_the_syntax_of_a_template_is_checked() -> None:
    """Before any agent starts."""
    found = errors(content("team", "team", prompt="{{if .RunID}}"))
    assert len(found) == 1
    assert found[0].startswith("root.json: $.team[0].prompt: line 1, column ")


def test_the_template_of_a_prompt_file_is_checked_with_the_fields_of_its_phase() -> None:
    """The same file may be right in one place and wrong in another."""
    files = {"/c/p.md": b"{{.Iteration}}", "/c/l.json": loop(loop=[phase("step", prompt_file="p.md")])}
    found = errors({"team": [phase("a", prompt_file="p.md"), phase("b", loop_file="l.json")]}, files=files)
    assert len(found) == 1
    assert found[0].startswith("root.json: $.team[0].prompt_file: p.md: line 1, column ")
