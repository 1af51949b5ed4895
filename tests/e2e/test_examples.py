"""The examples of loops and teams: verified and rehearsed as their README says, with what it says about their ends."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from avenor.protocol.outcomes import Outcome, parse_sentinel
from tests.e2e.harness import AVENOR, WAIT_SECONDS, Place, read_log

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
README = (EXAMPLES / "README.md").read_text()
_SCRATCH = "/tmp/rehearsal"
_ROW = re.compile(
    r"^\| \[(?P<file>[\w.-]+)\].* \| `(?P<command>avenor run [^`]+)`"
    r" \| `(?P<status>\w+)`, code (?P<code>\d+)(?P<rest>.*)\|$",
    re.MULTILINE,
)
ROWS = {row["file"]: row for row in _ROW.finditer(README)}
_IDENTITY = {f"GIT_{who}_{what}": "an@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Rehearsal(msgspec.Struct, frozen=True):
    """What came of an example.

    Attributes:
        folder: The repository where it was rehearsed.
        printed: Its standard output.
    """

    folder: Path
    code: int
    printed: str
    outcome: Outcome
    events: list[dict[str, Any]]

    def told(self, name: str) -> list[dict[str, Any]]:
        """Its events of this name."""
        return [event for event in self.events if event["event"] == name]

    def prompt(self, phase: str, iteration: int = 0) -> str:
        """What a phase was told first."""
        starts = (e for e in self.told("turn.start") if (e["phase"], e["iteration"]) == (phase, iteration))
        return str(next(starts)["text"])

    def phases(self) -> list[str]:
        """Its own phases in the order in which they began."""
        return [event["phase"] for event in self.told("avenor.phase.start") if "path" not in event]


def shell_block(words: str) -> str:
    """The shell example of the README that has these words, with the scratch folder left to the test."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if words in block]
    return block


def scratch(place: Place) -> Path:
    """A repository made as the README says, in which the place works from now on."""
    folder = place.path / "rehearsal"
    commands = shell_block("git init").replace(_SCRATCH, str(folder))
    subprocess.run(["sh", "-ec", commands], cwd=ROOT, env=place.environ(**_IDENTITY), check=True, timeout=WAIT_SECONDS)
    place.work = folder
    return folder


def rehearse(place: Place, file: str) -> Rehearsal:
    """Type an example's command, with nothing added but where to tell of it."""
    folder = scratch(place)
    program, *words = shlex.split(ROWS[file]["command"])
    assert program == "avenor"
    sentinel, log = place.path / "run.done", place.path / "run.ndjson"
    told = ["--sentinel-file", str(sentinel), "--on-event", str(log)]
    process = place.start(*words, *told, environ=_IDENTITY)
    printed, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert sentinel.exists(), complaints.decode()
    assert place.processes() == {}
    outcome = parse_sentinel(sentinel.read_text())
    rehearsal = Rehearsal(folder, process.returncode, printed.decode(), outcome, read_log(log))
    check_end(rehearsal, file)
    return rehearsal


def check_end(rehearsal: Rehearsal, file: str) -> None:
    """It ends as its row says, and says the same in all places."""
    row = ROWS[file]
    outcome = rehearsal.outcome
    assert (outcome.status, outcome.exit_code, rehearsal.code) == (row["status"], int(row["code"]), int(row["code"]))
    reason = re.search(r"`REASON=(.*?)`", row["rest"])
    assert outcome.reason == (reason[1] if reason else None)
    last = rehearsal.events[-1]
    assert (last["event"], last["status"], last["exit_code"]) == ("run.end", outcome.status, outcome.exit_code)


def test_every_config_has_its_row_its_schema_and_its_script() -> None:
    """No config is forgotten in the README; editors find the schema, and the command names the script beside it."""
    configs = {path.name for kind in ("loop", "team") for path in EXAMPLES.glob(f"*.{kind}.json")}
    rows = {name: row for name, row in ROWS.items() if not name.endswith(".yaml")}
    assert configs - {"module.loop.json"} == set(rows)
    assert "(module.loop.json)" in README
    for name in configs:
        config = json.loads((EXAMPLES / name).read_text())
        kind = name.split(".")[1]
        assert config["$schema"] == f"../reference/schemas/{kind}.schema.json"
        assert (EXAMPLES / config["$schema"]).exists()
    for name, row in rows.items():
        words = shlex.split(row["command"])
        kind = name.split(".")[1]
        assert words[words.index(f"--{kind}-file") + 1] == f"docs/examples/{name}"
        assert words[words.index("--script") + 1] == f"docs/examples/{name.split('.')[0]}.script.json"


def test_every_example_is_verified(place: Place) -> None:
    """`avenor verify`, typed as the README says, finds nothing to say about any of them."""
    scratch(place)
    command = shell_block("*.team.json").replace("avenor", AVENOR, 1)
    done = subprocess.run(
        ["sh", "-c", command], cwd=place.work, env=place.environ(), capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == len(list(EXAMPLES.glob("*.team.json"))) + len(list(EXAMPLES.glob("*.loop.json")))
    assert all(line.endswith(": ok") for line in lines), done.stdout


def test_the_example_of_tests_and_fixes(place: Place) -> None:
    """The first round fixes, the second finds nothing and ends the loop; it was told what the fix has changed."""
    done = rehearse(place, "test-and-fix.loop.json")
    ends = [(end["phase"], end["iteration"]) for end in done.told("avenor.phase.end")]
    assert ends == [("survey", 0), ("test", 1), ("fix", 1), ("test", 2), ("report", 0)]
    (end,) = done.told("avenor.loop.end")
    assert (end["exit_reason"], end["iterations_completed"]) == ("marker", 2)
    assert done.prompt("test", 1).startswith("Round 1 of at most 6.")
    assert done.prompt("test", 2).startswith("Round 2 of at most 6.")
    assert "\ntotal.py\n" in done.prompt("test", 2)
    assert "{{" not in done.prompt("test", 2)
    assert done.printed.startswith("Two tests failed because")


def test_the_example_of_a_review(place: Place) -> None:
    """Scope first, three reviewers at the same time, and the last phase is told what each of them found."""
    done = rehearse(place, "review.team.json")
    first, *members, last = done.phases()
    assert (first, set(members), last) == ("scope", {"correctness", "security", "tests"}, "reconcile")
    prompt = done.prompt("reconcile")
    found = [prompt.index(words) for words in ("## correctness\n", "## security\n", "## tests\n")]
    assert found == sorted(found)
    assert "`../` leads out of the folder" in prompt
    assert (done.folder / "review.md").exists()
    assert done.printed.startswith("One thing must change before a merge")


def test_the_example_of_a_triage(place: Place) -> None:
    """The first phase is told how to skip members, and skips two; the others run."""
    done = rehearse(place, "triage.team.json")
    first, *members, last = done.phases()
    assert (first, set(members), last) == ("triage", {"api-review", "dependencies"}, "notes")
    assert "<|team: skip | " in done.prompt("triage")
    (end,) = done.told("avenor.team.end")
    assert (end["members_completed"], end["members_skipped"], end["exit_reason"]) == (2, 2, "end_turn")
    assert "storage-review" not in done.prompt("notes")


def test_the_example_of_loops_in_a_team(place: Place) -> None:
    """Three workers empty one list, each module taken once, and write in the session in which they took it."""
    done = rehearse(place, "modules.team.json")
    first, *members, last = done.phases()
    assert (first, set(members), last) == ("list", {"worker-1", "worker-2", "worker-3"}, "summary")
    claimed = {path.name for path in (done.folder / "claims").iterdir()}
    assert claimed == {"src-cart.py", "src-tax.py", "src-mail.py", "src-login.py"}
    ends = done.told("avenor.loop.end")
    assert {(end["path"], end["exit_reason"]) for end in ends} == {(name, "marker") for name in members}
    inner = [event for event in done.told("avenor.phase.start") if "path" in event]
    takes = {(e["path"], e["iteration"]): e["session_id"] for e in inner if e["phase"] == "take"}
    writes = {(e["path"], e["iteration"]): e["session_id"] for e in inner if e["phase"] == "write"}
    assert (len(takes), len(writes)) == (7, 4)
    assert writes.items() <= takes.items()


def test_the_example_of_a_member_that_needs_a_person(place: Place) -> None:
    """One member's question ends the other two, who were at work, and nothing comes after."""
    done = rehearse(place, "migrate.team.json")
    plan, freeze, *members = done.phases()
    assert (plan, freeze, set(members)) == ("plan", "freeze", {"schema", "callers", "docs"})
    starts = {event["phase"]: event["session_id"] for event in done.told("avenor.phase.start")}
    assert starts["freeze"] == starts["plan"]
    (end,) = done.told("avenor.team.end")
    assert (end["exit_reason"], end["exit_label"]) == ("abort", done.outcome.reason)
    assert (end["members_aborted"], end["members_cancelled"], end["members_completed"]) == (1, 2, 0)
    assert done.outcome.session_id == starts["schema"]
    assert "## schema\nOf 1204 users" in done.printed
