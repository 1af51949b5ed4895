"""What must hold of a manifest run, beyond what must of any: in its log, and in the repository that it worked on.

The books are kept here once more, from the log alone and in another way than avenor does it, so that an account that a
process has taken over wrongly from the one before is found.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.rehearsed_manifest import ALLOWED, BRANCH, NEW_TEXT, REPOSITORY, STRAYED, WRITER, WRITTEN, git

Event = Mapping[str, Any]

_UNITS: Final = ("model_calls", "tool_calls", "tokens")
_RUN: Final = "run"
_OVER: Final = (
    "done",
    "failed",
    "missing",
    "lost",
    "effect_unknown",
    "reconciled",
    "cancelled",
    "timed_out",
)
_ENDS: Final = {
    "accepted": ("DONE", 0, "accepted"),
    "needs_human": ("BLOCKED", 5, "blocked"),
    "rejected": ("FAILED", 1, "rejected"),
    "budget_exhausted": ("FAILED", 6, "budget_exhausted"),
    "timed_out": ("TIMEOUT", 124, "timeout"),
    "cancelled": ("KILLED", 130, "cancelled"),
}
# How the supervisor ends what can no longer tell its own end.
_SETTLED: Final = ("runtime_lost", "launch_lost")
# In git's own folder: what a run adds of its own, and the suite's gates.
_OURS: Final = ("refs/heads/avenor", "logs/refs/heads/avenor", "objects", "worktrees", "gate-")


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest run in the repository.

    Attributes:
        folder: Where its files are, relative to the place.
        lines: Of its log.
    """

    run_id: str
    folder: str
    lines: Sequence[Event]


class _Account(msgspec.Struct):
    parent: str | None
    limits: Counter[str]
    used: Counter[str]
    is_open: bool = True


def check_manifest(lines: Sequence[Event]) -> Iterator[str]:
    """What is wrong in the log of a manifest run."""
    yield from _check_attempts(lines)
    yield from _check_writer(lines)
    yield from _check_books(lines)
    yield from _check_charges(lines)
    yield from _check_candidates(lines)
    yield from _check_end(lines)


def look_at_checkout(place: Path) -> dict[str, str]:
    """A digest of each file that is the user's: of the work tree, and of git's folder but for what runs add there."""
    top = place / REPOSITORY
    names = (path.relative_to(top) for path in sorted(top.rglob("*")) if path.is_file() or path.is_symlink())
    return {str(name): _digest(top / name) for name in names if not _is_ours(name)}


def check_repository(place: Path, before: Mapping[str, str], runs: Sequence[Worked]) -> Iterator[str]:
    """What manifest runs have done to the repository that they were not to do.

    Args:
        place: With the repository.
        before: The checkout as it was.
        runs: All that worked there.
    """
    now = look_at_checkout(place)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        yield f"the user's checkout was changed: {', '.join(changed)}"
    yield from _check_strays(place)
    yield from _check_branches(place / REPOSITORY, runs)
    yield from _check_left(place, runs)


# ---- the log


def _check_attempts(lines: Sequence[Event]) -> Iterator[str]:
    """Each attempt is begun once, one at a time, and none before those of a process that is gone were given up."""
    running: dict[str, str] = {}
    orphaned: set[str] = set()
    begun: set[str] = set()
    for event in lines:
        if event["event"] == "run.resumed":
            orphaned = set(running)
        if event["event"] != "avenor.task" or "attempt_id" not in event:
            continue
        task, attempt = event["task_id"], event["attempt_id"]
        if event["state"] == "started":
            if attempt in begun:
                yield f"the attempt {attempt} was begun twice"
            if task in running:
                yield f"{attempt} was begun while {running[task]} was open"
            if orphaned:
                yield f"{attempt} was begun before the tasks {sorted(orphaned)} of the lost process were looked at"
            begun.add(attempt)
            running[task] = attempt
        elif event["state"] in _OVER:
            running.pop(task, None)
            orphaned.discard(task)


def _check_writer(lines: Sequence[Event]) -> Iterator[str]:
    """Of a lost writer nobody knows what it has done, until its worktree was looked at; of a reader everybody does."""
    told = [event for event in lines if event["event"] == "avenor.task"]
    has_ended = any(event["event"] == "avenor.manifest.end" or _is_settled(event) for event in lines)
    unknown: str | None = None
    for event in told:
        if event["task_id"] != WRITER:
            if event["state"] in ("effect_unknown", "reconciled"):
                yield f"{event['task_id']} only reads, and is told to be {event['state']}"
            continue
        if event["state"] == "lost":
            yield f"{event.get('attempt_id')} was lost, and its effects are not told to be unknown"
        if unknown is not None and event["state"] != "reconciled":
            yield f"after the loss of {unknown} comes {event['state']}, and it was not reconciled"
        unknown = event.get("attempt_id") if event["state"] == "effect_unknown" else None
    if unknown is not None and not has_ended:
        yield f"{unknown} was lost, and never reconciled"


def _check_books(lines: Sequence[Event]) -> Iterator[str]:
    """Nothing is promised or used that is not there, and what the log tells to be left is what is left."""
    accounts: dict[str, _Account] = {}
    for event in lines:
        if event["event"] == "avenor.manifest.start":
            accounts[_RUN] = _Account(None, _counted(event["limits"]), Counter())
        if event["event"] != "avenor.budget" or event["op"] in ("warn", "block"):
            continue
        name = event["account"]
        match event["op"]:
            case "reserve":
                yield from _reserve(accounts, event)
            case "release":
                accounts[name].is_open = False
            case _:
                yield from _debit(accounts, event)


def _reserve(accounts: dict[str, _Account], event: Event) -> Iterator[str]:
    name, parent, limits = event["account"], event["parent"], _counted(event["limits"])
    rest = _rest(accounts, parent)
    yield from (
        f"seq {event['seq']}: {limits[unit]} {unit} were reserved for {name}, and {parent} had {rest[unit]}"
        for unit in _UNITS
        if limits[unit] > rest[unit]
    )
    before = accounts.get(name)
    if before is not None and before.is_open:
        yield f"seq {event['seq']}: the budget of {name} was reserved twice"
    used = Counter[str]() if before is None else before.used
    accounts[name] = _Account(parent, limits + used, used)


def _debit(accounts: dict[str, _Account], event: Event) -> Iterator[str]:
    name: str = event["account"]
    charged: str | None = name
    while charged is not None:
        accounts[charged].used.update(_counted(event["amounts"]))
        charged = accounts[charged].parent
    rest, told = _rest(accounts, name), _counted(event["rest"])
    if any(rest[unit] < 0 for unit in _UNITS):
        yield f"seq {event['seq']}: {name} has used more than it had: {_shown(rest)} left"
    elif any(rest[unit] != told[unit] for unit in _UNITS):
        yield f"seq {event['seq']}: {name} is told to have {_shown(told)} left, and has {_shown(rest)}"
    overdrawn = _rest(accounts, _RUN)
    if any(overdrawn[unit] < 0 for unit in _UNITS):
        yield f"seq {event['seq']}: the run has used or promised more than it had: {_shown(overdrawn)} left"


def _rest(accounts: Mapping[str, _Account], name: str) -> Counter[str]:
    rest = Counter(accounts[name].limits)
    rest.subtract(accounts[name].used)
    for child in accounts.values():
        if child.parent == name and child.is_open:
            rest.subtract(child.limits)
            rest.update(child.used)
    return rest


def _check_charges(lines: Sequence[Event]) -> Iterator[str]:
    """Whoever was told something was charged for it."""
    turns: Counter[str] = Counter()
    charged: Counter[str] = Counter()
    for event in lines:
        if event["event"] == "turn.start" and "phase" in event:
            turns[f"{event['phase']}.{event.get('attempt', 1)}"] += 1
        elif event["event"] == "avenor.budget" and event["op"] == "debit" and "attempt_id" in event:
            charged[event["attempt_id"]] += event["amounts"].get("model_calls", 0)
    for attempt, count in turns.items():
        if count > charged[attempt]:
            yield f"{attempt} had {count} turns, and was charged for {charged[attempt]}"


def _check_candidates(lines: Sequence[Event]) -> Iterator[str]:
    """A candidate has nothing but what its writer may write, and is accepted only when its check has passed."""
    passed: set[str] = set()
    for event in lines:
        if event["event"] == "avenor.candidate":
            outside = [name for name in event["files"] if not name.startswith(ALLOWED)]
            if outside:
                yield f"the candidate of {event['attempt_id']} has {outside}, which its writer may not write"
        elif event["event"] == "avenor.receipt" and event["passed"]:
            passed.add(event["revision"])
        elif _is_accepted(event) and event["revision"] not in passed:
            yield f"{event['revision']} was accepted, and its check has not passed"


def _check_end(lines: Sequence[Event]) -> Iterator[str]:
    """There is one terminal state, and it is the run's outcome, but where the process died before it could tell."""
    ends = [event for event in lines if event["event"] == "avenor.manifest.end"]
    if len(ends) > 1:
        yield f"the manifest has {len(ends)} terminal states: {[event['state'] for event in ends]}"
    if not lines or lines[-1]["event"] != "run.end" or not ends or _is_settled(lines[-1]):
        return
    told = tuple(lines[-1][name] for name in ("status", "exit_code", "stop_reason"))
    if told != _ENDS[ends[0]["state"]]:
        yield f"the manifest is {ends[0]['state']}, and the run {told}"


def _is_accepted(event: Event) -> bool:
    return (event["event"], event.get("state")) == ("avenor.manifest.end", "accepted")


def _is_settled(event: Event) -> bool:
    return event["event"] == "run.end" and str(event["stop_reason"]) in _SETTLED


def _counted(amounts: Mapping[str, Any]) -> Counter[str]:
    return Counter({unit: int(amounts.get(unit, 0)) for unit in _UNITS})


def _shown(amounts: Counter[str]) -> str:
    return ", ".join(f"{amounts[unit]} {unit}" for unit in _UNITS)


# ---- the repository


def _is_ours(name: Path) -> bool:
    inside = str(name).removeprefix(".git/")
    return name.parts[0] == ".git" and inside.startswith(_OURS)


def _digest(path: Path) -> str:
    content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def _check_strays(place: Path) -> Iterator[str]:
    """What members have left where they may not; a sandbox's own places, which nobody else sees, do not count."""
    for path in sorted(place.rglob(f"{STRAYED}*")):
        name = path.relative_to(place)
        if "private" not in name.parts:
            yield f"a member has written where it may not: {name}"


def _check_branches(top: Path, runs: Sequence[Worked]) -> Iterator[str]:
    """What is on the branches of runs is within their rights, and is what they have told."""
    listed = git(top, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/avenor").split()
    branches = dict(zip(listed[::2], listed[1::2], strict=True))
    for name, commit in branches.items():
        files = git(top, "diff-tree", "-r", "--no-renames", "--name-only", BRANCH, commit).split()
        outside = [file for file in files if not file.startswith(ALLOWED)]
        if outside:
            yield f"{name} has {outside}, which its writer may not write"
    for run in runs:
        yield from _check_told(top, branches, run)


def _check_told(top: Path, branches: Mapping[str, str], run: Worked) -> Iterator[str]:
    for event in run.lines:
        if event["event"] == "avenor.task" and "partial" in event and event["partial"] not in branches:
            yield f"{event['attempt_id']} is told to have left {event['partial']}, which is not there"
        if _is_accepted(event):
            branch = f"refs/heads/avenor/{run.run_id}/candidate"
            if branches.get(branch) != event["revision"]:
                yield f"{event['revision']} was accepted, and {branch} is {branches.get(branch)}"
            elif git(top, "show", f"{branch}:{WRITTEN}") != NEW_TEXT:
                yield f"{branch} was accepted without what its writer has written"


def _check_left(place: Path, runs: Sequence[Worked]) -> Iterator[str]:
    """Worktrees, git's entries of them, its locks, and the private places of sandboxes, with logins of agents."""
    folder = place / REPOSITORY / ".git"
    found = [*folder.glob("worktrees/*"), *folder.rglob("*.lock")]
    for run in runs:
        kept = _kept(run.lines)
        found += (place / run.folder).glob("private/*")
        found += (path for path in (place / run.folder).glob("worktrees/[!.]*") if path.name not in kept)
        found += (place / run.folder).glob("worktrees/*/.git")
    yield from (f"left behind: {path.relative_to(place)}" for path in sorted(found))


def _kept(lines: Sequence[Event]) -> set[str]:
    """Attempts of a writer whose process was lost, and nobody has looked since: what it has written is for people."""
    told = [event for event in lines if event["event"] == "avenor.task" and event["task_id"] == WRITER]
    states = {event["attempt_id"]: event["state"] for event in told if "attempt_id" in event}
    return {attempt for attempt, state in states.items() if state not in _OVER or state == "effect_unknown"}
