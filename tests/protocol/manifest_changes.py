"""Manifests and rosters that exist only in memory, made from the ones in tests/data by changes."""

import copy
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avenor.protocol.manifest.asking import ASKING, Asking
from avenor.protocol.manifest.loading import CheckedManifest, check_manifest
from avenor.protocol.manifest.tree import Tree
from avenor.protocol.manifest.yamltree import read_tree
from avenor.protocol.spec import BACKENDS

DATA = Path(__file__).parents[1] / "data" / "manifests"
SEED = (DATA / "seed.yaml").read_bytes()
ROSTER = (DATA / "roster-scripted.yaml").read_bytes()

# The places of members and joins in the seed's manifest.
PLANNER, READER, TEST_READER, WRITER, EVALUATOR = range(5)


def seed() -> dict[str, Any]:
    """The seed's manifest, to be changed."""
    return copy.deepcopy(_value(read_tree(SEED, file="seed.yaml")))


def roster() -> dict[str, Any]:
    """Its roster, to be changed."""
    return copy.deepcopy(_value(read_tree(ROSTER, file="roster.yaml")))


def _value(tree: Tree) -> dict[str, Any]:
    assert not tree.mistakes
    value: dict[str, Any] = tree.value
    return value


def asks(name: str) -> Asking:
    """What avenor knows of its own backends."""
    return ASKING.get(name, Asking())


def check(
    manifest: Any = None,
    names: Any = None,
    *,
    files: Mapping[str, bytes] | None = None,
    roster_path: str | None = "/m/roster.yaml",
    unsandboxed: bool = False,
) -> CheckedManifest:
    """What is found about /m/team.yaml and /m/roster.yaml: bytes as they are, anything else as JSON."""
    contents = {
        "/m/team.yaml": _bytes(seed() if manifest is None else manifest),
        "/m/roster.yaml": _bytes(roster() if names is None else names),
        **(files or {}),
    }

    def read(path: str) -> bytes:
        if path not in contents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return contents[path]

    return check_manifest(
        "/m/team.yaml", read, roster_path=roster_path, backends=BACKENDS, asks=asks, unsandboxed=unsandboxed
    )


def _bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def told(checked: CheckedManifest) -> list[str]:
    """Its mistakes as `path: message`, without the file."""
    return [f"{found.path.removeprefix('$.')}: {found.message}" for found in checked.errors]


def errors(manifest: Any = None, names: Any = None, **more: Any) -> list[str]:
    """As `told`, of what `check` finds."""
    return told(check(manifest, names, **more))


def member(place: int, **changes: Any) -> dict[str, Any]:
    """The seed's manifest with one member changed; None of a change leaves the key out."""
    manifest = seed()
    manifest["members"][place].update(changes)
    manifest["members"][place] = {key: value for key, value in manifest["members"][place].items() if value is not None}
    return manifest


def extra_member(name: str = "extra", **changes: Any) -> dict[str, Any]:
    """The seed's manifest with a reader more, for which the budget is made to suffice."""
    manifest = seed()
    manifest["run"]["aggregate_budget"].update(model_calls=40, tool_calls=99, input_output_tokens=300000)
    manifest["members"].append(
        {
            "id": name,
            "role": "look at something else",
            "model_profile": "analysis-small",
            "tools": ["read_file"],
            "context_sources": ["task_contract"],
            "allowed_writes": [],
            "budget": {"model_calls": 1, "tool_calls": 1, "tokens": 1000, "seconds": 20},
            "depends_on": [],
            **changes,
        }
    )
    return manifest
