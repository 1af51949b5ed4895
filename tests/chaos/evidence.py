"""What a schedule leaves behind for the invariants: the place's files, and what its client was told."""

from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = "evidence.json"


class Spawned(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged spawn."""

    run: str
    runtime_id: str
    key: str | None = None


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged prompt, whose text is sent once."""

    runtime_id: str
    text: str


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged answer to a permission request."""

    runtime_id: str
    request_id: str
    option_id: str


class Evidence(msgspec.Struct, kw_only=True):
    """What the client of a schedule was told, over all its connections.

    Attributes:
        events: Of each runtime, in the order in which they came.
        listed: The last supervisor's `list`.
        processes: Pid and command line of what still lives, though all was ended.
        checkout: A digest of each file of the user's in the repository of manifests, before anything was done.
        problems: What went wrong before the end: calls that were never answered, supervisors that died by themselves.
    """

    spawned: list[Spawned] = []
    prompted: list[Prompted] = []
    answered: list[Answered] = []
    cancelled: list[str] = []
    events: dict[str, list[dict[str, Any]]] = {}
    listed: list[dict[str, Any]] = []
    processes: list[str] = []
    checkout: dict[str, str] = {}
    problems: list[str] = []


def write_evidence(place: Path, evidence: Evidence) -> None:
    """Put it beside the other files of the place."""
    (place / FILE).write_bytes(msgspec.json.encode(evidence))


def read_evidence(place: Path) -> Evidence:
    """What a schedule has left."""
    return msgspec.json.decode((place / FILE).read_bytes(), type=Evidence)
