"""The rules of loop and team configs, one by one."""

from typing import Any

import pytest

from avenor.protocol.configs import ConfigKind
from avenor.protocol.spec import BACKENDS
from tests.protocol.config_folder import check, errors, load, loop, phase, team

BLANK = ["", "  ", " \n\t", "\u00a0"]
SOURCES = ("prompt", "prompt_file", "loop_file", "team_file")
OTHERS = {"/c/p.md": b"go", "/c/l.json": loop(), "/c/t.json": team()}
GIVEN = {"prompt": "go", "prompt_file": "p.md", "loop_file": "l.json", "team_file": "t.json"}


# --- the config as a whole --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("team", team()),
        ("team", {"pre": [phase()]}),
        ("loop", loop()),
        ("loop", {"pre": [phase()]}),
        ("loop", {"loop": [phase()], "max_iterations": 1, "pre": [], "post": []}),
        ("team", {"$schema": "team.schema.json", "team": [phase()]}),
    ],
)
def test_one_phase_in_pre_or_in_the_main_list_is_enough(kind: ConfigKind, content: Any) -> None:
    """Every other member may be left out."""
    assert errors(content, kind) == []


@pytest.mark.parametrize("content", [{}, {"pre": []}, {"post": [phase()]}, {"pre": [], "post": [phase()]}])
@pytest.mark.parametrize("kind", ["loop", "team"])
def test_pre_and_the_main_list_may_not_both_be_empty(kind: ConfigKind, content: Any) -> None:
    """Post phases alone are nothing to run, and a prompt for the run is no phase of the config."""
    expected = [f"root.json: $: pre and {kind} are both empty: at least one of them needs a phase"]
    assert errors(content, kind) == expected
    assert errors(content, kind, has_initial=True) == expected


@pytest.mark.parametrize("limit", [0, -1])
def test_a_loop_runs_at_least_once(limit: int) -> None:
    """`max_iterations` is 1 or more."""
    assert errors(loop(max_iterations=limit), "loop") == [
        f"root.json: $.max_iterations: it is {limit}: it must be 1 or more"
    ]
    assert errors(loop(max_iterations=1), "loop") == []


def test_a_loop_runs_ten_times_if_it_does_not_say() -> None:
    """The default of the contract."""
    config = load(loop(), "loop").config
    assert getattr(config, "max_iterations", None) == 10


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLANK)
def test_a_phase_needs_a_name_that_is_not_blank(name: str) -> None:
    """Blanks are no name."""
    assert "root.json: $.pre[0].name: it is empty: a phase needs a name" in errors({"pre": [phase(name)]})


@pytest.mark.parametrize("name", ["(initial)", " (initial) "])
@pytest.mark.parametrize("kind", ["loop", "team"])
def test_the_name_of_the_initial_phase_is_reserved(kind: ConfigKind, name: str) -> None:
    """Whether or not the run has a prompt."""
    expected = [
        "root.json: $.post[0].name: (initial) is reserved for the phase of the prompt that is given to the run",
    ]
    content = {"pre": [phase()], "post": [phase(name)]}
    assert errors(content, kind) == expected
    assert errors(content, kind, has_initial=True) == expected


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "\x1b[31m", "a\x7f", "a\x9b", "a\u2028b", "a\0"])
def test_a_name_holds_no_control_character(name: str) -> None:
    """It stands in lines of logs, sentinels and markers."""
    found = errors({"team": [phase(name, conditional=True)]}, has_initial=True)
    assert len(found) == 1
    assert found[0].startswith("root.json: $.team[0].name: ")
    assert found[0].endswith(" holds a line end or another control character")
    assert name not in found[0]


@pytest.mark.parametrize("place", ["pre", "team", "post"])
@pytest.mark.parametrize("other", ["pre", "team", "post"])
def test_names_are_unique_across_the_three_lists(place: str, other: str) -> None:
    """The message says where the first one is."""
    lists: dict[str, list[Any]] = {"pre": [phase("first")], "team": [], "post": []}
    lists[place].append(phase("same"))
    lists[other].append(phase("same"))
    found = errors(lists)
    assert len(found) == 1
    assert ".name: 'same' is the name of $." in found[0]
    assert found[0].endswith(" too: names are unique across pre, team and post")


def test_the_names_of_a_loop_are_unique_too() -> None:
    """Its lists have other names."""
    assert errors({"pre": [phase("a")], "loop": [phase("a")], "post": [phase("a")]}, "loop") == [
        "root.json: $.loop[0].name: 'a' is the name of $.pre[0] too: names are unique across pre, loop and post",
        "root.json: $.post[0].name: 'a' is the name of $.pre[0] too: names are unique across pre, loop and post",
    ]


def test_a_nested_file_has_names_of_its_own() -> None:
    """Uniqueness is within one config."""
    assert errors(team(post=[phase("a", loop_file="l.json")]), files={"/c/l.json": loop(pre=[phase("a")])}) == []


def test_a_long_name_is_cut_in_messages() -> None:
    """A message stays readable."""
    assert len(errors({"team": [phase("n" * 5000 + "\n")]})[0]) < 200


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("place", ["pre", "team", "post"])
def test_each_of_the_four_sources_alone_is_enough(place: str, source: str) -> None:
    """In every list; a null counts as absent."""
    absent = dict.fromkeys(set(SOURCES) - {source})
    content = {"pre": [phase("x")], place: [phase("y", **{source: GIVEN[source]}, **absent)]}
    assert errors(content, files=OTHERS) == []


def test_a_phase_needs_a_source() -> None:
    """With none of the four there is nothing to do."""
    expected = (
        "root.json: $.team[0]: it has none of prompt, prompt_file, loop_file, team_file: a phase needs exactly one"
    )
    assert errors({"team": [{"name": "a"}]}) == [expected]
    assert errors({"team": [{"name": "a", "prompt": None}]}) == [expected]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("prompt", "prompt_file"),
        ("prompt", "loop_file"),
        ("prompt", "team_file"),
        ("prompt_file", "loop_file"),
        ("prompt_file", "team_file"),
        ("loop_file", "team_file"),
    ],
)
def test_two_sources_are_mutually_exclusive(first: str, second: str) -> None:
    """The message names the two."""
    content = {"team": [phase(**{name: GIVEN[name] for name in (first, second)})]}
    message = f"{first} and {second} are mutually exclusive: a phase needs exactly one source"
    assert errors(content, files=OTHERS) == [f"root.json: $.team[0]: {message}"]


def test_all_four_sources_break_all_three_rules() -> None:
    """Each with its message."""
    found = errors({"team": [phase(**GIVEN)]}, files=OTHERS)
    pairs = [("prompt", "prompt_file"), ("loop_file", "team_file"), ("prompt", "loop_file")]
    assert [line.split(": ")[2] for line in found] == [f"{a} and {b} are mutually exclusive" for a, b in pairs]


@pytest.mark.parametrize("prompt", BLANK)
def test_a_prompt_is_not_blank(prompt: str) -> None:
    """An agent would get nothing."""
    assert errors({"pre": [phase(prompt=prompt)]}) == [
        "root.json: $.pre[0].prompt: it is empty: a prompt needs some text"
    ]


@pytest.mark.parametrize("content", [text.encode() for text in BLANK])
def test_a_prompt_file_is_not_blank(content: bytes) -> None:
    """The file is named."""
    assert errors({"pre": [phase(prompt_file="p.md")]}, files={"/c/p.md": content}) == [
        "root.json: $.pre[0].prompt_file: p.md: it is empty: a prompt needs some text"
    ]


def test_a_prompt_file_is_utf_8() -> None:
    """The message says where it is not."""
    assert errors({"pre": [phase(prompt_file="p.md")]}, files={"/c/p.md": b"go \xff"}) == [
        "root.json: $.pre[0].prompt_file: p.md: it is not UTF-8 (byte 3)"
    ]


@pytest.mark.parametrize("source", SOURCES[1:])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(source: str) -> None:
    """The reason is the system's."""
    assert errors({"pre": [phase(**{source: "sub/x"})]}) == [
        f"root.json: $.pre[0].{source}: sub/x: No such file or directory"
    ]


@pytest.mark.parametrize("source", SOURCES[1:])
@pytest.mark.parametrize(("name", "shown"), [("", "''"), ("a\0b", r"'a\x00b'")])
def test_a_name_that_no_file_can_have_is_refused(source: str, name: str, shown: str) -> None:
    """Before anything is opened."""
    assert errors({"pre": [phase(**{source: name})]}) == [f"root.json: $.pre[0].{source}: {shown} is no path of a file"]


# --- conditional members ----------------------------------------------------------------------------------------------

NEEDS_PRE = (
    "$.team[0].conditional: a conditional member needs a pre phase that can skip it: add one to pre "
    "(for the outermost file, a prompt given to the run is one)"
)


def test_conditional_members_need_a_pre_phase() -> None:
    """Nobody could skip them otherwise."""
    content = {"team": [phase("a", conditional=True), phase("b")]}
    assert errors(content) == [f"root.json: {NEEDS_PRE}"]
    assert errors(team(pre=[phase("p")], **content)) == []


def test_the_initial_phase_is_a_pre_phase_for_conditional_members() -> None:
    """A prompt for the run satisfies the rule."""
    assert errors({"team": [phase(conditional=True)]}, has_initial=True) == []


def test_the_initial_phase_is_no_pre_phase_of_a_nested_team() -> None:
    """It runs before the outermost config only."""
    nested = {"/c/t.json": {"team": [phase(conditional=True)]}}
    found = errors({"team": [phase(team_file="t.json")]}, files=nested, has_initial=True)
    assert found == [f"t.json: {NEEDS_PRE}"]


def test_conditional_elsewhere_needs_no_pre_phase() -> None:
    """It is ignored there, with a warning."""
    assert errors(team(post=[phase("z", conditional=True)])) == []


@pytest.mark.parametrize(("one", "other"), [("Auth", "auth"), ("STRASSE", "straße")])
def test_conditional_names_do_not_differ_by_case_only(one: str, other: str) -> None:
    """A skip marker is matched without regard to case."""
    members = [phase(one, conditional=True), phase(other, conditional=True)]
    assert errors({"pre": [phase()], "team": members}) == [
        f"root.json: $.team[1].name: {other!r} differs from {one!r} of $.team[0] by case only: "
        "a skip marker cannot tell conditional members apart by case"
    ]


def test_other_names_may_differ_by_case_only() -> None:
    """Only conditional members can be meant by a skip marker."""
    members = [phase("Auth", conditional=True), phase("auth")]
    assert errors({"pre": [phase("AUTH")], "team": members}) == []


@pytest.mark.parametrize("name", [" a", "a ", " a "])
def test_a_conditional_name_neither_begins_nor_ends_with_a_blank(name: str) -> None:
    """A marker's label is taken without blanks around it."""
    message = "begins or ends with a blank: no skip marker can name a conditional member so"
    assert errors({"pre": [phase("p")], "team": [phase(name, conditional=True)]}) == [
        f"root.json: $.team[0].name: {name!r} {message}"
    ]
    assert errors({"team": [phase(name)]}) == []


@pytest.mark.parametrize("name", ["a]b", "a|>b", "|>", "|", "a | b", "größe", "`x`"])
def test_a_conditional_name_may_hold_what_closes_markers(name: str) -> None:
    """In the angle form the last `|>` of the line closes."""
    assert errors({"pre": [phase("p")], "team": [phase(name, conditional=True)]}) == []


# --- overrides of members ---------------------------------------------------------------------------------------------


def test_a_member_names_a_backend_that_exists() -> None:
    """The message lists them."""
    assert errors({"team": [phase(backend="claude")]}) == [
        "root.json: $.team[0].backend: 'claude' is no backend: choose one of " + ", ".join(BACKENDS)
    ]
    assert errors({"team": [phase(backend="scripted")]}) == []


@pytest.mark.parametrize("member", ["agent", "model", "backend"])
def test_an_override_is_not_empty(member: str) -> None:
    """Left out, it takes the run's."""
    assert errors({"team": [phase(**{member: ""})]}) == [
        f"root.json: $.team[0].{member}: it is empty: leave it out, or give it some text"
    ]


@pytest.mark.parametrize(
    ("member", "value"), [("agent", "x"), ("model", "x"), ("backend", "nonsense"), ("conditional", True)]
)
@pytest.mark.parametrize(("kind", "place"), [("team", "pre"), ("team", "post"), ("loop", "pre"), ("loop", "loop")])
def test_what_only_members_have_is_ignored_elsewhere_with_a_warning(
    kind: ConfigKind, place: str, member: str, value: object
) -> None:
    """The run does not get it."""
    lists: dict[str, Any] = {"pre": [phase("first")], place: [phase("x", **{member: value})]}
    loaded = load(lists, kind)
    assert [(found.path, found.message) for found in loaded.warnings] == [
        (f"$.{place}[0].{member}", f"it is ignored: {member} is for members of `team` only")
    ]
    resolved = getattr(loaded.config, place)[0]
    assert (resolved.agent, resolved.model, resolved.backend, resolved.conditional) == (None, None, None, False)


def test_members_keep_their_overrides() -> None:
    """Without a warning."""
    overrides: dict[str, Any] = {"agent": "a", "model": "m", "backend": "acp", "conditional": True}
    loaded = load(team(pre=[phase("p")], team=[phase("x", **overrides)]))
    assert loaded.warnings == []
    member = getattr(loaded.config, "team")[0]  # noqa: B009
    assert {name: getattr(member, name) for name in overrides} == overrides


def test_conditional_members_that_no_pre_phase_is_told_of_are_warned_about() -> None:
    """The instructions go to a prompt, and a nested run has none here."""
    content = {"pre": [phase("p", loop_file="l.json")], "team": [phase(conditional=True)]}
    found = check(content, files=OTHERS).warnings
    assert [(warning.path, warning.message) for warning in found] == [
        ("$.team[0].conditional", "every pre phase is a nested run: none is told how to skip this conditional member")
    ]
    assert check(content, files=OTHERS, has_initial=True).warnings == []
    content["pre"].append(phase("q"))
    assert check(content, files=OTHERS).warnings == []
    content["pre"].clear()
    assert check(content, files=OTHERS).warnings == []


# --- resuming, and other notes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "content", "place", "reason"),
    [
        ("team", {"pre": [1]}, "$.pre[0]", "nothing is before the first phase of pre"),
        ("team", {"pre": [0], "team": [1]}, "$.team[0]", "team members start fresh"),
        ("team", {"pre": [0], "team": [0, 1]}, "$.team[1]", "team members start fresh"),
        ("team", {"pre": [0], "post": [1]}, "$.post[0]", "nothing is before the first phase of post"),
        ("loop", {"pre": [1]}, "$.pre[0]", "nothing is before the first phase of pre"),
        ("loop", {"pre": [0], "loop": [1]}, "$.loop[0]", "nothing is before the first phase of loop"),
        ("loop", {"loop": [0], "post": [1]}, "$.post[0]", "nothing is before the first phase of post"),
        ("loop", {"loop": [0, "l.json"]}, "$.loop[1]", "a nested run has no session of its own"),
        ("loop", {"loop": ["l.json", 1]}, "$.loop[1]", "the phase before it is a nested run"),
    ],
)
def test_resuming_where_nothing_can_be_resumed_is_ignored_with_a_note(
    kind: ConfigKind, content: dict[str, list[Any]], place: str, reason: str
) -> None:
    """Neither an error nor a warning, and the run does not see the flag."""
    lists = {name: [_resuming(f"{name}{i}", item) for i, item in enumerate(items)] for name, items in content.items()}
    loaded = load(lists, kind, files=OTHERS)
    assert loaded.warnings == []
    assert (f"{place}.resume_from_previous", f"it means nothing here: {reason}") in [
        (note.path, note.message) for note in loaded.notes
    ]
    name, _, index = place.removeprefix("$.").rstrip("]").partition("[")
    assert not getattr(loaded.config, name)[int(index)].resume_from_previous


def _resuming(name: str, item: Any) -> dict[str, Any]:
    """A phase that resumes (1, or a nested one), or does not (0)."""
    if isinstance(item, str):
        return phase(name, loop_file=item, resume_from_previous=True)
    return phase(name, resume_from_previous=bool(item))


@pytest.mark.parametrize(("kind", "place"), [("team", "pre"), ("team", "post"), ("loop", "pre"), ("loop", "loop")])
def test_a_later_phase_of_a_list_resumes_the_one_before_it(kind: ConfigKind, place: str) -> None:
    """Without a note."""
    content = {"pre": [phase("p")], place: [phase("a"), phase("b", resume_from_previous=True), phase("c")]}
    loaded = load(content, kind)
    assert loaded.notes == []
    assert [each.resume_from_previous for each in getattr(loaded.config, place)] == [False, True, False]


def test_the_first_pre_phase_resumes_the_initial_one() -> None:
    """It is the phase before it, and a nested config has none."""
    nested = {"/c/t.json": {"pre": [phase(resume_from_previous=True)]}}
    loaded = load(
        {"pre": [phase("a", resume_from_previous=True), phase("b", team_file="t.json")]}, files=nested, has_initial=True
    )
    assert [note.file for note in loaded.notes] == ["/c/t.json"]
    assert loaded.config.pre[0].resume_from_previous


@pytest.mark.parametrize("place", ["loop", "post"])
def test_no_other_list_begins_after_the_initial_phase(place: str) -> None:
    """Its first phase has nothing before it, whether or not the run has a prompt."""
    content = {"pre": [phase("p")], place: [phase("a", resume_from_previous=True)]}
    assert [note.path for note in check(content, "loop", has_initial=True).notes] == [
        f"$.{place}[0].resume_from_previous"
    ]


def test_a_slash_in_a_name_is_noted() -> None:
    """It joins names elsewhere, and is allowed."""
    loaded = load(team(pre=[phase("src/auth")]))
    assert loaded.warnings == []
    assert [(note.path, note.message) for note in loaded.notes] == [
        ("$.pre[0].name", "'src/auth' holds a '/', which joins names in the `path` of nested events")
    ]
