"""What the trace of a manifest proves: which field permitted a step, who has used what, and who tried more."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from avenor.runtimes.manifest.gateway_log import read_gateway_log
from tests.e2e.harness import Place, Stable, read_log
from tests.e2e.manifest_kit import DEFAULTS, FIXED, Acts, Step, Team, git, history, model_service, seed, told, verdict

_STEP = re.compile(r"(\w+)|\[(\d+)\]")


def field(manifest: Any, path: str) -> Any:
    """What a manifest has at a path such as `members[3].depends_on`.

    Raises:
        LookupError: It has nothing there.
    """
    for name, index in _STEP.findall(path):
        manifest = manifest[name] if name else manifest[int(index)]
    return manifest


def test_every_step_of_the_run_names_the_field_of_the_manifest_that_permits_it(place: Place) -> None:
    """Not a word for people: a path at which the manifest has something. The end has revision and state as well."""
    run = Team(place).run()
    assert run.finish() == 0, run.complaints
    steps = [event for event in run.events() if "permitted_by" in event]
    assert Counter(event["event"] for event in steps).keys() >= {
        "avenor.task",
        "avenor.budget",
        "avenor.authority",
        "avenor.result",
        "avenor.join",
        "avenor.candidate",
        "avenor.receipt",
        "avenor.verdict",
        "avenor.manifest.end",
    }
    declared = seed()
    for event in steps:
        assert field(declared, event["permitted_by"]) is not None, event
    assert told(run, "avenor.manifest.end")[0]["revision"] == told(run, "avenor.candidate")[-1]["revision"]


def test_an_evaluator_that_repairs_what_it_judges_changes_nothing(place: Place) -> None:
    """It did not ask; the write fails, its attempt is over, and the candidate is what the writer has made."""
    mends: list[Step] = [{"do": "run", "command": "echo mine > src/retry.py"}, verdict("accept")]
    run = Team(place, {"evaluator": mends}, flags=("--run-id", "m1")).run()
    assert run.finish() == 5, run.complaints
    update = [e for e in told(run, "tool.call_update", phase="evaluator") if e.get("status") in ("completed", "failed")]
    assert "Read-only file system" in json.dumps(update)
    (broken,) = [each for each in told(run, "avenor.authority") if each["decision"] == "violation"]
    assert broken["permitted_by"].startswith("members[4].tools")
    assert git(place, "show", "avenor/m1/candidate:src/retry.py") + "\n" == FIXED
    assert told(run, "avenor.manifest.end")[0]["state"] == "needs_human"


def test_tools_that_do_not_ask_are_counted_and_the_one_too_many_ends_the_attempt(place: Place) -> None:
    """A member that reads more often than it may, without a question, is ended for it."""
    manifest = seed()
    planner = manifest["members"][0]
    planner["tools"] = ["read_file", "create_task", "read_receipt"]
    planner["budget"]["tool_calls"] = 2
    reads: list[Step] = [
        {"do": "tool", "title": f"Read {number}", "kind": "read", "locations": [f"src/{number}.py"]}
        for number in range(3)
    ]
    run = Team(place, {"planner": [*reads, {"do": "hang"}]}, manifest=manifest).run()
    assert run.finish() == 6, (run.complaints, told(run, "avenor.manifest.end"))
    (end,) = told(run, "avenor.manifest.end")
    assert (end["state"], end["permitted_by"]) == ("budget_exhausted", "members[0].budget")
    assert history(run, "planner")[-1] == "failed"
    debits = told(run, "avenor.budget", op="debit", account="planner")
    assert sum(each["amounts"].get("tool_calls", 0) for each in debits) == 3


def test_the_ledger_is_the_gateways_own_log(place: Place) -> None:
    """Calls and tokens by attempt, of a whole run under a supervisor: what was charged is what was let pass."""
    asks: Step = {"do": "model", "prompt": "think"}
    acts: Acts = {name: [asks, *([asks] if name == "writer" else []), *steps] for name, steps in DEFAULTS.items()}
    with model_service() as (url, _served):
        team = Team(place, acts)
        roster = json.loads(Path(team.files[1]).read_text())
        for profile in roster["profiles"].values():
            profile["endpoint"] = {"dialect": "openai", "url": url}
            profile["env"] = {"OPENAI_BASE_URL": "{gateway_url}", "OPENAI_API_KEY": "{gateway_token}"}
        Path(team.files[1]).write_text(json.dumps(roster))
        stable = Stable(place)
        client = stable.connect()
        spawned = client.call(
            "spawn", manifest=team.files[0], roster=team.files[1], dir=str(place.work), wait="started"
        )
        client.call("subscribe", runtime_id=spawned["runtime_id"], replay=True)
        assert client.wait_event("run.end")["stop_reason"] == "accepted"
        log = stable.log_path(spawned["runtime_id"])
        assert stable.shutdown() == 0
    logged: Counter[tuple[str, str]] = Counter()
    for line in read_gateway_log((log.parent / "gateway.ndjson").read_bytes()):
        assert (line.end, line.status) == ("passed", 200)
        assert line.used is not None
        logged[line.attempt_id, "model_calls"] += 1
        logged[line.attempt_id, "tokens"] += line.used.input_tokens + line.used.output_tokens
    charged: Counter[tuple[str, str]] = Counter()
    for event in read_log(log):
        if event["event"] == "avenor.budget" and event["op"] == "debit" and event["source"] == "gateway":
            for unit in ("model_calls", "tokens"):
                if event["amounts"].get(unit):
                    charged[event["attempt_id"], unit] += event["amounts"][unit]
    assert charged == logged
    assert logged["writer.1", "model_calls"] == 2
    assert sum(count for (_, unit), count in logged.items() if unit == "model_calls") == 6
