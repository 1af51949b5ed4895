"""`avenor verify` of manifests: the plan, its price, and every mistake with its place."""

import json
from pathlib import Path

import pytest

from avenor.cli import main

DATA = Path(__file__).parents[1] / "data" / "manifests"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the seed's manifest and its roster."""
    monkeypatch.chdir(tmp_path)
    for name in ("seed.yaml", "roster-scripted.yaml"):
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    return tmp_path


def test_the_plan_is_shown_and_priced(capfd: pytest.CaptureFixture[str]) -> None:
    """Graph, longest way, best against serial time, reserved against available, cost."""
    assert main(["verify", "seed.yaml", "--roster", "roster-scripted.yaml"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "plan:",
        "- planner                60 s, at most $0.27",
        "- implementation_reader  90 s, after planner, at most $0.036",
        "- test_reader            90 s, after planner, at most $0.036",
        "- reader_join            join, after implementation_reader, test_reader",
        "- writer                 150 s, after reader_join, writes src/retry.py, tests/test_retry.py, at most $0.3",
        "- evaluator              90 s, after writer, at most $0.128",
        "longest way: 390 s: planner → implementation_reader → reader_join → writer → evaluator",
        "one after the other: 480 s; at best: 390 s; saved by working at the same time: 90 s",
        "budget: reserved of available",
        "- model calls        15 of 18, 3 left",
        "- tool calls         38 of 40, 2 left",
        "- tokens         100000 of 120000, 20000 left",
        "- dollars             0 of 1.2, 1.2 left",
        "- seconds           390 of 480, 90 left",
        "cost: at most $0.77, if every reserved token is of the dearest kind",
        "seed.yaml: manifest retry-fix, 5 members: ok",
    ]


def test_json_has_the_price_and_the_places_of_mistakes(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    """Beside what it has of loops and teams."""
    assert main(["verify", "--json", "seed.yaml", "--roster", "roster-scripted.yaml"]) == 0
    [right] = json.loads(capfd.readouterr().out)
    assert list(right) == ["file", "kind", "ok", "errors", "warnings", "notes", "price"]
    assert (right["kind"], right["ok"], right["price"]["ideal_seconds"]) == ("manifest", True, 390)
    text = (folder / "seed.yaml").read_text().replace("depends_on: [writer]", "depends_on: [writer, planer]")
    (folder / "seed.yaml").write_text(text)
    assert main(["verify", "--json", "seed.yaml", "--roster", "roster-scripted.yaml"]) == 1
    [wrong] = json.loads(capfd.readouterr().out)
    [error] = wrong["errors"]
    assert (error["line"], error["column"], error["path"]) == (60, 26, "$.members[4].depends_on[1]")


def test_without_a_roster_the_plan_is_shown_and_the_file_is_no_good(capfd: pytest.CaptureFixture[str]) -> None:
    """A run would refuse it."""
    assert main(["verify", "seed.yaml"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("seed.yaml:1:1: $: a run needs a roster")
    assert lines[1] == "plan:"
    assert "writes candidate_branch:retry_module, candidate_branch:retry_tests" in lines[6]
    assert lines[-2].startswith("cost: not known, without prices of reasoning-medium, analysis-small")
    assert lines[-1].startswith("seed.yaml: manifest: 1 error; the format: docs/reference/manifest.md")


def test_a_manifest_that_is_no_plan_shows_none(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    """Only what is wrong."""
    (folder / "seed.yaml").write_text("schema_version: team.v1\nmembers: []\n")
    assert main(["verify", "seed.yaml", "--roster", "roster-scripted.yaml"]) == 1
    assert "plan:" not in capfd.readouterr().out


def test_members_that_are_called_and_budgets_without_limit_are_shown_as_such(
    capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    """After the plan, in which they have no place."""
    text = (folder / "seed.yaml").read_text()
    text = text.replace("    cost_usd: 1.20\n", "").replace("[implementation_reader, test_reader]", "[test_reader]")
    at = text.index("depends_on: [planner]")
    text = text[:at] + "depends_on: []\n    callable_by: [planner]" + text[at + len("depends_on: [planner]") :]
    text = text.replace("seconds: 90 }\n    depends_on: []", "seconds: 50 }\n    depends_on: []")
    (folder / "seed.yaml").write_text(text)
    main(["verify", "seed.yaml", "--roster", "roster-scripted.yaml"])
    lines = capfd.readouterr().out.splitlines()
    assert "- implementation_reader  50 s, when called by planner, at most $0.036" in lines
    assert "- dollars             0 of no limit" in lines


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("m.json", {"schema_version": "team.v1"}, "manifest"),
        ("m.txt", "# mine\nschema_version: team.v1\n", "manifest"),
        ("m.yml", "nothing: here\n", "manifest"),
        ("t.json", {"team": []}, "team"),
        ("none.json", None, "team"),
    ],
)
def test_what_a_file_is_is_told_by_its_content_or_its_name(
    capfd: pytest.CaptureFixture[str], name: str, content: object, kind: str
) -> None:
    """Unless --kind says it."""
    if content is not None:
        Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["verify", name]) == 1
    assert f"{name}: {kind}: " in capfd.readouterr().out
    assert main(["verify", "--kind", "loop", name]) == 1
    assert f"{name}: loop: " in capfd.readouterr().out


def test_without_a_sandbox_more_is_asked_of_the_agents(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    """As of a run with that flag."""
    text = (folder / "roster-scripted.yaml").read_text()
    text = text.replace(
        "backend: scripted, family: rehearsed-a", "backend: acp, agent_command: x, enforces_tools: [execute, fetch]"
    )
    (folder / "roster-scripted.yaml").write_text(text)
    words = ["verify", "seed.yaml", "--roster", "roster-scripted.yaml"]
    assert main(words) == 0
    capfd.readouterr()
    assert main([*words, "--unsandboxed"]) == 1
    assert "not known to ask before it uses tools of kind delete, edit, move" in capfd.readouterr().out
