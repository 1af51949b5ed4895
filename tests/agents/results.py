"""What became of the checks on real agents: one file for each program under a backend, kept in the repository.

`docs/backends.py` makes the reference's matrix of them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

FOLDER: Final = Path(__file__).with_name("results")

# The variable that names the folder to keep results in; without it none are kept.
KEPT_IN: Final = "AVENOR_AGENT_RESULTS"

Verdict = Literal["passed", "failed", "not offered"]


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The last result of one check.

    Attributes:
        verdict: What became of it.
        version: The agent's name and version, as it told them.
        date: The day in UTC, as 2026-11-30.
        reason: Why it is not offered, or what kind of error it was.
    """

    verdict: Verdict
    version: str
    date: str
    reason: str = ""


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is known of one program under one backend.

    Attributes:
        agent: The name of the column.
        backend: Which one.
        checks: By the names of the checks.
    """

    agent: str
    backend: str
    checks: Mapping[str, Result]


def read_columns(folder: Path = FOLDER) -> Sequence[Column]:
    """All that is kept, by name."""
    return [msgspec.json.decode(path.read_bytes(), type=Column) for path in sorted(folder.glob("*.json"))]


def keep(folder: Path, agent: str, backend: str, checks: Mapping[str, Result], known: Sequence[str]) -> None:
    """Adds new results to what is kept of an agent, and forgets those of checks that there are no more.

    Args:
        folder: Where; it is made if need be.
        agent: The name of the column.
        backend: Which one.
        checks: The new results.
        known: The names of all checks, in the order to keep.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{agent}.json"
    both = dict(checks)
    if path.exists():
        both = {**msgspec.json.decode(path.read_bytes(), type=Column).checks, **checks}
    # A line for each check, so that a change shows what changed.
    lines = [f"  {json.dumps(name)}: {msgspec.json.encode(both[name]).decode()}" for name in known if name in both]
    head = f'{{\n "agent": {json.dumps(agent)},\n "backend": {json.dumps(backend)},\n "checks": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")
