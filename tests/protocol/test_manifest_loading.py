"""A manifest and its roster are read strictly, and all that is wrong with both is told at once, with its place."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.protocol.errors import ConfigError
from avenor.protocol.manifest.binding import BoundContext, BoundReceipt, ResolvedManifest
from avenor.protocol.manifest.loading import load_manifest
from avenor.protocol.spec import BACKENDS
from tests.protocol.manifest_changes import (
    EVALUATOR,
    PLANNER,
    ROSTER,
    SEED,
    WRITER,
    asks,
    check,
    errors,
    member,
    roster,
    seed,
    told,
)


def loaded(manifest: bytes = SEED, names: bytes = ROSTER) -> ResolvedManifest:
    found = check(manifest, names).manifest
    assert found is not None
    return found


def test_the_manifest_of_the_seed_loads_as_it_stands_there() -> None:
    """Without an error or a warning."""
    checked = check(SEED, ROSTER)
    assert (checked.errors, checked.warnings) == ([], [])
    assert checked.manifest is not None
    assert [each.id for each in checked.manifest.members] == [
        "planner",
        "implementation_reader",
        "test_reader",
        "writer",
        "evaluator",
    ]


def test_names_are_what_the_roster_says() -> None:
    """Profiles, commands, contexts, write targets and receipts."""
    writer = loaded().members[WRITER]
    assert (writer.profile.name, writer.profile.backend, writer.profile.family) == (
        "coding-medium",
        "scripted",
        "rehearsed-c",
    )
    assert writer.writes == ["src/retry.py", "tests/test_retry.py"]
    assert [(grant.tool, grant.field) for grant in writer.capabilities.grants] == [
        ("read_file", "members[3].tools[0]"),
        ("apply_patch", "members[3].tools[1]"),
        ("run_focused_test", "members[3].tools[2]"),
    ]
    assert writer.capabilities.grants[2].commands == ["python -m pytest -q tests/test_retry.py*"]
    assert loaded().members[2].contexts[2] == BoundContext(
        name="test_map", kind="command", command=["git", "ls-files", "tests"]
    )
    assert loaded().receipts == [
        BoundReceipt(name="focused_tests", command=["python", "-m", "pytest", "-q", "tests/test_retry.py"], timeout=60)
    ]
    assert loaded().revision == "r1"


def test_members_have_avenor_s_tools_that_they_declare_and_those_for_their_results() -> None:
    """Only the owner of the evaluation may submit a verdict."""
    manifest = loaded()
    assert manifest.member("planner").own_tools == [
        "create_task",
        "start_worker",
        "cancel_worker",
        "read_receipt",
        "submit_result",
    ]
    assert manifest.member("evaluator").own_tools == [
        "read_diff",
        "read_test_receipt",
        "submit_verdict",
        "submit_result",
    ]
    assert manifest.member("evaluator").capabilities.own_tools["submit_verdict"] == "evaluation.owner"


def test_a_record_gives_the_manifest_again() -> None:
    """It is what a runtime gets."""
    manifest = loaded()
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=ResolvedManifest) == manifest


def test_json_is_taken_as_well_and_means_the_same() -> None:
    """Also where the file's name says nothing."""
    assert loaded(json.dumps(seed()).encode(), json.dumps(roster()).encode()) == loaded()


def test_paths_in_a_roster_are_relative_to_its_folder() -> None:
    """Scripts and files of contexts."""
    names = roster()
    names["profiles"]["coding-medium"]["script"] = "sub/../w.json"
    names["context"]["rules"] = {"file": "rules.md"}
    manifest = member(PLANNER, context_sources=["task_contract", "rules"])
    files = {"/m/w.json": b'{"rules": []}', "/m/rules.md": b"be kind"}
    checked = check(manifest, names, files=files)
    assert told(checked) == []
    assert checked.manifest is not None
    assert checked.manifest.members[WRITER].profile.script == "/m/w.json"
    assert checked.manifest.members[PLANNER].contexts[1] == BoundContext(name="rules", kind="file", value="/m/rules.md")


def test_contexts_of_a_roster_can_be_text_or_another_name_of_a_built_in_one() -> None:
    """Beside files and commands."""
    names = roster()
    names["context"] |= {"note": {"text": "hello"}, "tests": {"builtin": "test_map"}}
    checked = check(member(PLANNER, context_sources=["note", "tests"]), names)
    assert checked.manifest is not None
    assert checked.manifest.members[PLANNER].contexts == [
        BoundContext(name="note", kind="text", value="hello"),
        BoundContext(name="tests", kind="builtin", value="test_map"),
    ]


def test_every_mistake_is_told_at_once_with_its_line_and_column() -> None:
    """In both files; what is right in a file with mistakes is checked all the same."""
    text = SEED.decode()
    for right, wrong in (
        ("plan_epoch: 7", "plan_epoch: -1"),
        ("depends_on: [reader_join]", "depends_on: [reader_joint]"),
        ("role: make one", "rolle: make one"),
        ("owner: evaluator", "owner: nobody"),
        ("on_missing: needs_human", "on_missing: carry_on"),
    ):
        assert right in text
        text = text.replace(right, wrong)
    checked = check(text.encode(), ROSTER.replace(b"backend: scripted, family: rehearsed-a", b"backend: nothing"))
    lines = [found.line() for found in checked.errors]
    assert [line.partition(": ")[0] for line in lines[:-1]] == [
        "/m/team.yaml:7:3",
        "/m/team.yaml:44:5",
        "/m/team.yaml:45:5",
        "/m/team.yaml:48:38",
        "/m/team.yaml:51:18",
        "/m/team.yaml:66:5",
        "/m/team.yaml:70:3",
    ]
    assert "$.joins[0].on_missing: 'carry_on' is none of needs_human, rejected" in lines[5]
    assert lines[-1].startswith(
        "/m/roster.yaml:5:23: $.profiles.reasoning-medium.backend: 'nothing' is none of opencode-acp"
    )
    assert checked.manifest is None


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("run", {"contract": " "}, "run.contract: Expected `str` matching regex"),
        ("run", {"source_revision": "r1"}, "run.source_revision: Expected `str` matching regex"),
        ("run", {"source_revision": "git:-rf"}, "run.source_revision: Expected `str` matching regex"),
        ("run", {"plan_epoch": "7"}, "run.plan_epoch: Expected `int`, got `str`"),
        ("run", {"plan_epoch": True}, "run.plan_epoch: Expected `int`, got `bool`"),
        ("run", {"aggregate_budget": None}, "run.aggregate_budget: Expected"),
        ("cancellation", {"grace_seconds": -1}, "cancellation.grace_seconds: Expected `float` >= 0"),
        ("cancellation", {"late_result": "keep"}, "cancellation.late_result: 'keep' is none of reject_unless_"),
        ("cancellation", {"extra": 1}, "cancellation.extra: unknown member"),
        ("evaluation", {"otherwise": []}, "evaluation.otherwise: Expected `array` of length >= 1"),
        ("evaluation", {"otherwise": ["retry"]}, "evaluation.otherwise[0]: 'retry' is none of one_bounded_repair"),
        ("evaluation", {"accepts_when": "always"}, "evaluation.accepts_when: 'always' is none of"),
    ],
)
def test_what_has_the_wrong_form_is_refused(where: str, change: dict[str, Any], message: str) -> None:
    """Each value by its type and bounds."""
    manifest = seed()
    manifest[where].update(change)
    found = errors(manifest)
    assert len(found) == 1
    assert found[0].startswith(message)


@pytest.mark.parametrize("unit", ["model_calls", "tool_calls", "tokens", "seconds"])
def test_a_budget_is_at_least_one_of_each(unit: str) -> None:
    """None, half or less is none."""
    budget = {"model_calls": 1, "tool_calls": 1, "tokens": 1, "seconds": 90, unit: 0}
    assert errors(member(EVALUATOR, budget=budget)) == [
        f"members[4].budget.{unit}: Expected `{'float` >= 1.0' if unit == 'seconds' else 'int` >= 1'}"
    ]


@pytest.mark.parametrize("key", ["schema_version", "team_id", "run", "members", "evaluation", "cancellation"])
def test_what_is_missing_is_named(key: str) -> None:
    """At the top of the file."""
    manifest = seed()
    del manifest[key]
    assert f"$: member {key!r} is missing" in errors(manifest)


@pytest.mark.parametrize("content", [b"", b"- a", b"just text", b"7", b"null"])
def test_a_file_that_is_no_object_is_refused(content: bytes) -> None:
    """Nothing of it can be checked."""
    assert errors(content) == ["$: an object is expected, with schema_version first"]


def test_a_member_that_is_no_object_is_one_mistake() -> None:
    """Its neighbours are checked."""
    manifest = seed()
    manifest["members"][PLANNER] = "planner"
    manifest["members"][EVALUATOR]["model_profile"] = "best"
    found = errors(manifest)
    assert found[0].startswith("members[0]: Expected `object`, got `str`")
    assert any(line.startswith("members[4].model_profile: neither the roster") for line in found)


def test_lists_and_objects_of_a_wrong_kind_are_told_with_all_else() -> None:
    """A draft is made of whatever there is."""
    names = roster()
    names["profiles"]["analysis-small"] = {"backend": 1, "prices": "cheap", "endpoint": {"url": 5}, "env": {"A": 1}}
    names["writes"]["candidate_branch:retry_module"] = []
    names["receipts"] = []
    manifest = seed()
    manifest["joins"] = [{"id": "reader_join", "requires": [], "rule": "x", "on_missing": 1, "on_conflict": None}]
    manifest["handoffs"] = {}
    manifest["team_id"] = "no spaces"
    found = " | ".join(errors(manifest, names))
    for part in (
        "profiles.analysis-small.backend:",
        "profiles.analysis-small.prices:",
        "profiles.analysis-small.endpoint.url:",
        "profiles.analysis-small.endpoint: member 'dialect' is missing",
        "profiles.analysis-small.env.A:",
        "writes.candidate_branch:retry_module:",
        "receipts:",
        "joins[0].requires:",
        "joins[0].rule:",
        "handoffs:",
        "team_id:",
    ):
        assert part in found


def test_without_a_roster_a_run_is_refused_and_the_plan_can_still_be_priced() -> None:
    """Its names mean nothing then."""
    checked = check(roster_path=None)
    assert [found.message for found in checked.errors] == [
        "a run needs a roster, which says what its names stand for: give one (--roster FILE)"
    ]
    assert checked.price is not None
    assert checked.price.cost_usd is None


@pytest.mark.parametrize("path", ["/m/none.yaml", "/m/roster.yaml"])
def test_files_that_cannot_be_read_say_why(path: str) -> None:
    """With the reason that the system gives, or the form."""
    found = check(roster_path=path, names=b"\xff").errors
    assert [(each.file, each.message) for each in found] == [
        (path, "No such file or directory" if "none" in path else "it is not UTF-8 (byte 0)")
    ]


def test_the_format_is_told_where_a_form_is_wrong_and_not_where_a_file_is_missing() -> None:
    """Whoever mistyped a name has no use for it."""

    def missing(path: str) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    def wrong(path: str) -> bytes:
        return b"a: 1"

    for read, is_told in ((missing, False), (wrong, True)):
        with pytest.raises(ConfigError) as caught:
            load_manifest("t.yaml", read, roster_path="r.yaml", backends=BACKENDS, asks=asks)
        assert ("the format: docs/" in caught.value.message) is is_told


def test_load_manifest_raises_all_mistakes_as_one_error() -> None:
    """For programs as well: file, path, message, line and column of each."""
    with pytest.raises(ConfigError) as caught:
        load_manifest("t.yaml", lambda path: b"a: 1", roster_path="r.yaml", backends=BACKENDS, asks=asks)
    data = caught.value.data
    assert (data["file"], data["path"]) == ("t.yaml", "$.a")
    places = [(each["file"], each["path"], each["line"], each["column"]) for each in data["errors"]]
    assert ("t.yaml", "$.a", 1, 1) in places
    assert ("r.yaml", "$.a", 1, 1) in places
    assert "t.yaml:1:1: $.a: unknown member" in caught.value.message
    assert "docs/reference/manifest.md" in caught.value.message


def test_load_manifest_gives_manifest_warnings_and_notes() -> None:
    """For a run that can start."""
    contents = {"t.yaml": SEED, "r.yaml": ROSTER}
    loaded = load_manifest("t.yaml", contents.__getitem__, roster_path="r.yaml", backends=BACKENDS, asks=asks)
    assert (loaded.manifest.team_id, loaded.warnings, loaded.notes) == ("retry-fix", [], [])


def test_a_great_many_mistakes_are_cut() -> None:
    """An answer to a spawn has to fit into one line."""
    found = check({f"k{number}": 1 for number in range(1500)}).errors
    assert len(found) == 1001
    assert found[-1].message.startswith("and ")


def test_the_price_has_path_times_and_reservations() -> None:
    """The figures of the seed's manifest, at the roster's prices."""
    price = check().price
    assert price is not None
    assert price.critical_path == ["planner", "implementation_reader", "reader_join", "writer", "evaluator"]
    assert (price.ideal_seconds, price.serial_seconds, price.saved_seconds) == (390, 480, 90)
    assert [(row.unit, row.reserved, row.available) for row in price.budget] == [
        ("model_calls", 15, 18),
        ("tool_calls", 38, 40),
        ("tokens", 100000, 120000),
        ("cost_usd", 0, 1.2),
        ("seconds", 390, 480),
    ]
    assert (price.cost_usd, price.unpriced) == (0.77, [])
    assert [(node.id, node.kind, node.needs) for node in price.nodes][3] == (
        "reader_join",
        "join",
        ["implementation_reader", "test_reader"],
    )


def test_without_prices_the_cost_is_not_known() -> None:
    """It says whose prices are missing."""
    names = roster()
    del names["profiles"]["coding-medium"]["prices"]
    price = check(names=names).price
    assert price is not None
    assert (price.cost_usd, price.unpriced) == (None, ["coding-medium"])


def test_there_is_no_price_of_what_is_no_plan() -> None:
    """With a cycle, or with parts missing."""
    assert check(member(PLANNER, depends_on=["evaluator"])).price is None
    assert check(member(PLANNER, budget=None)).price is None


def test_the_examples_of_the_reference_load() -> None:
    """The manifest with the roster, to which the profile that it leaves out is added."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "manifest.md").read_text()
    manifest, names = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    names = names.replace("tools:\n", "  evaluation-medium: { backend: scripted }\ntools:\n", 1)
    checked = check(manifest.encode(), names.encode())
    assert (told(checked), checked.warnings, checked.notes) == ([], [], [])
