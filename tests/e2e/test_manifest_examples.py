"""The examples of manifests: verified and rehearsed as their README says, with what it says about their ends."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.harness import AVENOR, WAIT_SECONDS, Place
from tests.e2e.test_examples import EXAMPLES, ROWS, Rehearsal, rehearse, scratch, shell_block

MANIFESTS = ("retry", "checkout", "incident")


def read(name: str) -> dict[str, Any]:
    """An example's file."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return found


def rehearse_manifest(place: Place, name: str) -> Rehearsal:
    """Types an example's command; whatever it comes to, the user's branch and files are as they were."""
    done = rehearse(place, f"{name}.manifest.yaml")
    assert done.printed.startswith("accepted: ")
    assert git(done.folder, "status", "--porcelain") == ""
    assert git(done.folder, "log", "--format=%s") == "Start"
    assert git(done.folder, "worktree", "list").count("\n") == 0
    return done


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    return subprocess.check_output(["git", *arguments], cwd=folder, text=True).strip()


def started(done: Rehearsal) -> list[str]:
    """The attempts, in the order of their starts."""
    return [event["attempt_id"] for event in done.told("avenor.task") if event["state"] == "started"]


def test_every_manifest_has_its_row_its_schema_its_roster_and_its_script() -> None:
    """No manifest is forgotten in the README, and its command names the roster beside it."""
    assert {path.name for path in EXAMPLES.glob("*.manifest.yaml")} == {f"{name}.manifest.yaml" for name in MANIFESTS}
    assert {name for name in ROWS if name.endswith(".yaml")} == {f"{name}.manifest.yaml" for name in MANIFESTS}
    for name in MANIFESTS:
        words = shlex.split(ROWS[f"{name}.manifest.yaml"]["command"])
        assert words[words.index("--manifest") + 1] == f"docs/examples/{name}.manifest.yaml"
        assert words[words.index("--roster") + 1] == f"docs/examples/{name}.roster.yaml"
        for kind in ("manifest", "roster"):
            schema = read(f"{name}.{kind}.yaml")["$schema"]
            assert schema == f"../reference/schemas/{kind}.schema.json"
            assert (EXAMPLES / schema).exists()
        assert {each["script"] for each in read(f"{name}.roster.yaml")["profiles"].values()} == {f"{name}.script.json"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_example_of_a_manifest_is_verified(place: Place, name: str) -> None:
    """`avenor verify`, typed as the README says, has neither a mistake nor a warning to tell."""
    scratch(place)
    command = shell_block("retry.manifest.yaml --roster").replace("avenor", AVENOR, 1).replace("retry", name)
    done = subprocess.run(
        ["sh", "-c", command], cwd=place.work, env=place.environ(), capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].endswith(": ok"), done.stdout
    assert done.stdout.startswith("plan:\n"), done.stdout


def test_the_example_of_a_fan_out(place: Place) -> None:
    """Two readers after the planner; the writer after their join; the check fails once, and the repair is accepted."""
    done = rehearse_manifest(place, "retry")
    first, *readers = started(done)[:3]
    assert (first, set(readers)) == ("planner.1", {"implementation_reader.1", "check_reader.1"})
    assert started(done)[3:] == ["writer.1", "evaluator.1", "writer.2", "evaluator.2"]
    assert [each["passed"] for each in done.told("avenor.receipt")] == [False, True]
    assert [each["counted_as"] for each in done.told("avenor.verdict")] == ["repair", "accepted"]
    (end,) = done.told("avenor.manifest.end")
    branch = done.printed.rpartition(" ")[2].strip()
    assert git(done.folder, "rev-parse", branch) == end["revision"]
    assert git(done.folder, "diff", "--name-only", "HEAD", branch) == "docs/examples/retry/retry.py"


def test_the_example_of_a_manager_with_specialists(place: Place) -> None:
    """Each specialist has its own contract, and its result comes back as the answer of the tool."""
    done = rehearse_manifest(place, "checkout")
    assert started(done) == ["manager.1", "inspect_logs-2.1", "inspect_schema-2.1", "evaluator.1"]
    prompt = done.prompt("inspect_logs-2")
    assert "What does /checkout say from 10:03 to 10:05?" in prompt
    assert "docs/examples/checkout/app.log" in prompt
    assert "say why POST /checkout fails" not in prompt
    assert "schema" not in prompt
    said = "".join(e["content"]["text"] for e in done.told("agent.message_chunk") if e["phase"] == "manager")
    assert "column coupon_id does not exist" in said
    assert done.told("avenor.candidate") == []


def test_the_example_of_a_handoff(place: Place) -> None:
    """The receiver reads the record and accepts it; the report is its own, and the sender has no result."""
    done = rehearse_manifest(place, "incident")
    assert started(done) == ["intake.1", "recovery_controller.1", "evaluator.1"]
    assert [each["state"] for each in done.told("avenor.handoff")] == ["offered", "accepted"]
    assert "The primary of orders-db does not answer" in done.prompt("recovery_controller")
    assert "intake.1" not in {each["attempt_id"] for each in done.told("avenor.result")}
    (candidate,) = done.told("avenor.candidate")
    assert candidate["files"] == ["docs/examples/incident.md"]
    assert "promote the replica" in json.dumps(done.prompt("evaluator"))
