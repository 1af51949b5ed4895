"""A small repository, and a manifest on it whose members try to write wherever they may not.

Two members read, one writes, one judges. One of them stands at a gate: which, is said by the kind of the run. The
script `stray.sh` is granted to those who read and write, so only the sandbox keeps it from what it tries.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from tests.chaos.rehearsed import AT_GATE, NAME, gate

Kind = Literal["reading", "writing"]

KINDS: Final[tuple[Kind, ...]] = ("reading", "writing")
REPOSITORY: Final = "repository"
BRANCH: Final = "main"
WRITER: Final = "writer"
# What each member waits for, the join taken for the two that it brings together.
WAITS_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "finder": (),
    "checker": (),
    WRITER: ("finder", "checker"),
    "judge": (WRITER,),
}
# The folder that the writer may write, and what it puts there.
ALLOWED: Final = "own/"
WRITTEN: Final = "own/part.txt"
NEW_TEXT: Final = "the new part\n"
# The name of whatever a member leaves where it may not write.
STRAYED: Final = "strayed"

_STRAY: Final = "stray.sh"
_STRAY_SCRIPT: Final = """\
for target in strayed.txt {repository}/strayed.txt {repository}/.git/strayed {place}/strayed.txt; do
    echo strayed > "$target"
done 2>/dev/null
echo strayed 2>/dev/null >> kept.txt
echo strayed 2>/dev/null >> {repository}/kept.txt
git update-ref refs/heads/strayed HEAD 2>/dev/null
exit 0
"""
_COMMITTED: Final = {"kept.txt": "kept\n", "changed.txt": "committed\n", "staged.txt": "committed\n", WRITTEN: "old\n"}
_IDENTITY: Final = ("-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false")
_GATED: Final[Mapping[Kind, str]] = {"reading": "checker", "writing": WRITER}

_BUDGET: Final = {"model_calls": 3, "tool_calls": 8, "tokens": 20_000, "seconds": 200}
_MANIFEST: Final[dict[str, Any]] = {
    "schema_version": "team.v1",
    "team_id": "chaos",
    "run": {
        "contract": "write the new part",
        "source_revision": f"git:{BRANCH}",
        "plan_epoch": 3,
        "aggregate_budget": {
            "model_calls": 30,
            "tool_calls": 90,
            "input_output_tokens": 200_000,
            "deadline_seconds": 900,
        },
        "terminal_states": ["accepted", "rejected", "needs_human", "cancelled", "timed_out", "budget_exhausted"],
    },
    "members": [
        {
            "id": "finder",
            "role": "find the old part",
            "model_profile": "small",
            "tools": ["read_file", "stray"],
            "context_sources": ["task_contract"],
            "allowed_writes": [],
            "budget": _BUDGET,
            "depends_on": [],
        },
        {
            "id": "checker",
            "role": "find who needs it",
            "model_profile": "small",
            "tools": ["read_file", "stray"],
            "context_sources": ["task_contract"],
            "allowed_writes": [],
            "budget": _BUDGET,
            "depends_on": [],
        },
        {
            "id": WRITER,
            "role": "write the new part",
            "model_profile": "middling",
            "tools": ["read_file", "apply_patch", "stray"],
            "context_sources": ["task_contract", "joined_reader_evidence"],
            "allowed_writes": ["candidate:part"],
            "budget": _BUDGET,
            "depends_on": ["found"],
        },
        {
            "id": "judge",
            "role": "judge the candidate",
            "model_profile": "large",
            "tools": ["read_diff"],
            "context_sources": ["task_contract", "candidate_revision"],
            "allowed_writes": [],
            "budget": _BUDGET,
            "depends_on": [WRITER],
        },
    ],
    "joins": [
        {
            "id": "found",
            "requires": ["finder", "checker"],
            "rule": "all_required_results_with_matching_source_revision_and_plan_epoch",
            "on_missing": "needs_human",
            "on_conflict": "preserve_both_and_pause",
        }
    ],
    "evaluation": {
        "owner": "judge",
        "accepts_when": "contract_checks_and_required_receipts_pass",
        "otherwise": ["one_bounded_repair", "rejected", "needs_human"],
    },
    "cancellation": {
        "parent_cancel": "propagate_to_all_children",
        "worker_timeout": "cancel_tools_then_mark_timed_out",
        "grace_seconds": 2,
        "late_result": "reject_unless_run_id_revision_and_plan_epoch_match",
    },
}


def write_repository(place: Path) -> None:
    """The repository, with work of its user that is not committed; and the files of both kinds of run."""
    top = place / REPOSITORY
    (top / ALLOWED).mkdir(parents=True)
    for name, text in _COMMITTED.items():
        (top / name).write_text(text)
    (top / _STRAY).write_text(_STRAY_SCRIPT.format(repository=top, place=place))
    git(top, "init", "-q", "-b", BRANCH)
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "before")
    (top / "staged.txt").write_text("staged\n")
    git(top, "add", "staged.txt")
    (top / "changed.txt").write_text("changed\n")
    (top / "untracked.txt").write_text("untracked\n")
    (place / "manifest.json").write_text(json.dumps(_MANIFEST))
    for kind in KINDS:
        script = place / f"{kind}.script.json"
        script.write_text(json.dumps({"rules": _rules(top, _GATED[kind])}))
        (place / f"{kind}.roster.json").write_text(json.dumps(_roster(script)))


def spawn_params(place: Path, kind: str) -> dict[str, Any]:
    """What a spawn says of a run of this kind, beside what all say."""
    files = {"manifest": str(place / "manifest.json"), "roster": str(place / f"{kind}.roster.json")}
    return {"dir": str(place / REPOSITORY), **files}


def gate_of(place: Path, name: str) -> Path:
    """The file that the agents of a run wait for: git's own folder is all of the place that is seen in a sandbox."""
    return gate(place / REPOSITORY / ".git", name)


def git(top: Path, *arguments: str) -> str:
    """What git says, in a repository that no variable of the environment replaces."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.check_output(["git", *_IDENTITY, *arguments], cwd=top, env=environ, text=True)


def _roster(script: Path) -> dict[str, Any]:
    profile = {"backend": "scripted", "script": str(script)}
    return {
        "schema_version": "roster.v1",
        "profiles": {name: {**profile, "family": name} for name in ("small", "middling", "large")},
        "tools": {"stray": {"kinds": ["execute"], "commands": [f"sh {_STRAY}"]}},
        "writes": {"candidate:part": [ALLOWED]},
        "receipts": {"written": {"command": ["grep", "-q", "new", WRITTEN], "timeout": "60s"}},
    }


def _rules(top: Path, gated: str) -> list[dict[str, Any]]:
    """What each member does; one of them stands at the gate when all but its result is done."""
    stray = {"do": "run", "command": f"sh {_STRAY}", "ask": True}
    look = {"do": "tool", "title": f"Read {WRITTEN}", "kind": "read", "locations": [WRITTEN], "ask": True}
    write = {"do": "write", "path": WRITTEN, "text": NEW_TEXT, "ask": True}
    beyond = {"do": "write", "path": "strayed-by-patch.txt", "text": "strayed\n", "ask": True}
    revision = "{env:AVENOR_REVISION}"
    result = {"source_revision": revision, "plan_epoch": 3}
    verdict = {"verdict": "accept", "revision": revision}
    acts: dict[str, list[dict[str, Any]]] = {
        "finder": [look, stray, _call("submit_result", {**result, "findings": [_finding("the part")]})],
        "checker": [look, stray, _call("submit_result", {**result, "findings": [_finding("its use")]})],
        WRITER: [write, beyond, stray, _call("submit_result", {**result, "findings": [_finding("the change")]})],
        "judge": [_call("read_diff", {}), _call("submit_verdict", verdict)],
    }
    at_gate = [{"do": "say", "text": AT_GATE}, {"do": "wait_for", "path": str(gate(top / ".git", f"{{env:{NAME}}}"))}]
    acts[gated][-1:-1] = at_gate
    return [{"match": f"^You are `{name}`", "steps": steps} for name, steps in acts.items()]


def _call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"do": "mcp", "tool": tool, "arguments": arguments}


def _finding(subject: str) -> dict[str, str]:
    return {"subject": subject, "claim": "it is there", "finding": f"{subject} is there"}
