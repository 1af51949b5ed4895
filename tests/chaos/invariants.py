"""What must hold after everything: read from the files alone, with what the client was told as one of them.

Each check gives sentences that say what is broken; none means that all is well.
"""

import json
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from avenor.host.rundir import RunDir
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.spec import Record
from tests.chaos.evidence import Evidence, read_evidence
from tests.chaos.manifest_invariants import Worked, check_manifest, check_repository

STATE: Final = "s.state"
# Names of what is made for a moment, or for as long as somebody lives.
_PASSING: Final = (
    ".avenor-*.tmp",
    "avenor-git-*",
    "avenor-rehearsal-*",
    "*.req",
    "*.req.response",
    "*.perm.lock",
    "*.sock.lock",
)

# How often a supervisor resumes a run unless it is told otherwise, and what it says when it resumes none any more.
_MOST_RESUMES: Final = 3
_STOPPING: Final = "shutting down"
_LOST: Final = ("runtime_lost", "launch_lost")

Event = Mapping[str, Any]


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What one runtime has left.

    Attributes:
        lines: Of its log, as far as they are events.
        flaws: What in the log is no event.
        sentinel: None if there is none.
    """

    record: Record
    lines: Sequence[Event]
    flaws: Sequence[str]
    sentinel: str | None

    @property
    def id(self) -> str:
        """Its runtime id."""
        return self.record.runtime_id

    @property
    def is_manifest(self) -> bool:
        """Whether its members are held to a manifest."""
        return self.record.kind == "manifest"

    @property
    def end(self) -> Event | None:
        """Its last event, if that is the run's end."""
        return self.lines[-1] if self.lines and self.lines[-1]["event"] == "run.end" else None

    def named(self, *names: str) -> list[Event]:
        """Its events of these names."""
        return [event for event in self.lines if event["event"] in names]


def check_place(place: Path) -> list[str]:
    """All that is broken in what a schedule left."""
    evidence = read_evidence(place)
    runtimes = {left.id: left for left in read_runtimes(place / STATE)}
    found = list(evidence.problems)
    for left in runtimes.values():
        found += [f"{left.id}: {problem}" for problem in check_runtime(left)]
        found += [f"{left.id}: {problem}" for problem in check_received(left, evidence.events.get(left.id, []))]
    found += check_listed(runtimes, evidence.listed)
    found += check_acknowledged(runtimes, evidence)
    if evidence.checkout:
        worked = [
            Worked(run_id=left.record.run_id, folder=f"{STATE}/{left.id}", lines=left.lines)
            for left in runtimes.values()
            if left.is_manifest
        ]
        found += check_repository(place, evidence.checkout, worked)
    found += check_leftovers(place)
    found += check_complaints(place)
    found += check_tombstone(place)
    found += [f"a process lives on: {process}" for process in evidence.processes]
    return found


def read_runtimes(state: Path) -> Iterator[Left]:
    """Every runtime that was accepted, which is to say: that has a record."""
    for path in sorted(state.glob("rt_*"), key=lambda path: int(path.name.removeprefix("rt_"))):
        directory = RunDir(path)
        data = directory.read_record()
        if data is not None:
            yield _read(directory, msgspec.json.decode(data, type=Record))


def check_runtime(left: Left) -> Iterator[str]:
    """What is wrong with one runtime's own files."""
    yield from left.flaws
    yield from check_numbers(left.lines)
    ends = len(left.named("run.end"))
    if ends != 1 or left.end is None:
        last = left.lines[-1]["event"] if left.lines else "nothing"
        yield f"{ends} outcomes in the log, whose last line is {last}"
    else:
        yield from check_sentinel(left.end, left.sentinel, left.record.run_id)
    yield from _check_work(left)
    if left.is_manifest:
        yield from check_manifest(left.lines)


def check_numbers(lines: Iterable[Event]) -> Iterator[str]:
    """Gaps and repetitions of `seq`; those that a full disk explains are none."""
    last = 0
    for event in lines:
        expected = last + 1
        if "lost_from" in event:
            if event["lost_from"] != expected:
                yield f"seq {event['seq']} tells that {event['lost_from']} to {event['lost_to']} are lost, after {last}"
            expected = event["lost_to"] + 1
        if event["seq"] != expected:
            yield f"seq {event['seq']} ({event['event']}) comes after {last}"
        last = event["seq"]


def check_sentinel(end: Event, text: str | None, run_id: str) -> Iterator[str]:
    """Whether the sentinel tells what the log tells."""
    if text is None:
        yield f"there is no sentinel, and the log ends with {end['status']}/{end['stop_reason']}"
        return
    try:
        told = parse_sentinel(text)
    except ValueError as error:
        yield str(error)
        return
    if _outcome(told) != (end["status"], end["exit_code"], end["stop_reason"]) or told.run_id != run_id:
        yield f"the sentinel tells {_outcome(told)} of {told.run_id}, the log {end}"


def check_received(left: Left, received: Sequence[Event]) -> Iterator[str]:
    """Whether a client got every event once, in order, and as it is in the log."""
    if [event["seq"] for event in received] != [event["seq"] for event in left.lines]:
        yield f"a client got the events {_ranges(received)}, the log has {_ranges(left.lines)}"
    elif list(received) != list(left.lines):
        wrong = next(pair for pair in zip(received, left.lines, strict=True) if pair[0] != pair[1])
        yield f"a client got {wrong[0]} where the log has {wrong[1]}"


def check_listed(runtimes: Mapping[str, Left], listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Whether the last supervisor knew every runtime, as its log tells it."""
    ids = [snapshot["runtime_id"] for snapshot in listed]
    if sorted(ids) != sorted(runtimes):
        yield f"list has {ids}, and there are the records of {list(runtimes)}"
    for snapshot in listed:
        left = runtimes.get(snapshot["runtime_id"])
        if left is None or left.end is None:
            continue
        shown = tuple(snapshot[name] for name in ("status", "outcome", "exit_code", "stop_reason", "latest_seq"))
        told = ("ended", *(left.end[name] for name in ("status", "exit_code", "stop_reason", "seq")))
        if shown != told:
            yield f"{left.id}: list shows {shown}, the log tells {told}"


def check_acknowledged(runtimes: Mapping[str, Left], evidence: Evidence) -> Iterator[str]:
    """Whether what was answered is in the files."""
    for spawned in evidence.spawned:
        if spawned.runtime_id not in runtimes:
            yield f"the spawn of {spawned.run} was answered with {spawned.runtime_id}, which has no record"
    keys = Counter(left.record.key for left in runtimes.values() if left.record.key is not None)
    yield from (f"{count} runtimes have the key {key}" for key, count in keys.items() if count > 1)
    for prompted in evidence.prompted:
        yield from _check_prompt(runtimes.get(prompted.runtime_id), prompted.text)
    for answered in evidence.answered:
        left = runtimes.get(answered.runtime_id)
        responses = [] if left is None else left.named("permission.response")
        given = (answered.request_id, answered.option_id)
        if given not in [(response["request_id"], response["option_id"]) for response in responses]:
            yield f"{answered.runtime_id}: the answer {given} was acknowledged, and is not in the log"


def check_leftovers(place: Path) -> Iterator[str]:
    """Sockets, temporary files, and what else is there only while somebody lives."""
    for path in sorted(place.rglob("*")):
        is_passing = any(path.match(pattern) for pattern in _PASSING)
        if is_passing or (path.exists() and stat.S_ISSOCK(path.stat().st_mode)):
            yield f"left behind: {path.relative_to(place)}"


def check_complaints(place: Path) -> Iterator[str]:
    """Errors that nobody was told of: in the log of the supervisors, in that of the zygotes, in those of runtimes."""
    for path in [place / "supervisors.log", *sorted((place / STATE).rglob("*.log"))]:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for line in lines:
            is_error = '"level": "error"' in line and path.parent == place
            is_broken = '"exception"' in line or line.startswith("Traceback")
            if is_error or is_broken:
                yield f"{path.relative_to(place)}: {line[-600:]}"


def check_tombstone(place: Path) -> Iterator[str]:
    """Whether the last supervisor said why it left."""
    path = place / "s.sock.dead"
    text = path.read_text() if path.exists() else ""
    if not text.startswith("STOPPED reason=shutdown "):
        yield f"the tombstone of the last supervisor says {text!r}"


def _read(directory: RunDir, record: Record) -> Left:
    data = directory.log_path.read_bytes() if directory.log_path.exists() else b""
    *whole, torn = data.split(b"\n")
    lines: list[Event] = []
    flaws = [f"the log ends with half a line: {torn[:80]!r}"] if torn else []
    for line in whole:
        try:
            event: Any = json.loads(line)
            lines.append({**event, "event": event["event"], "seq": event["seq"]})
        except (ValueError, KeyError, TypeError):
            flaws.append(f"a line of the log is no event: {line[:80]!r}")
    sentinel = Path(record.spec.sentinel_file or directory.sentinel_path)
    text = sentinel.read_text() if sentinel.exists() else None
    return Left(record=record, lines=lines, flaws=flaws, sentinel=text)


def _check_work(left: Left) -> Iterator[str]:
    """Whether anything was done twice, or done on without leave."""
    done = Counter(
        (event.get("path"), event["phase"], event["iteration"])
        for event in left.named("avenor.phase.end")
        if event["exit_code"] == 0
    )
    yield from (f"the phase {phase} was completed {count} times" for phase, count in done.items() if count > 1)
    resumes = len(left.named("run.resumed"))
    if left.record.on_crash == "fail" and resumes:
        yield "it was resumed, though it was to fail"
    names = [event["event"] for event in left.lines]
    if "run.ending" in names and "run.resumed" in names[names.index("run.ending") :]:
        yield "it was resumed after it was told to end"
    if left.end is not None and left.end["stop_reason"] in _LOST:
        why = str(left.end.get("reason", ""))
        if left.record.on_crash == "resume" and resumes < _MOST_RESUMES and _STOPPING not in why:
            yield f"it was to be resumed, and was lost after {resumes} resumes: {why}"
        if "run.ending" in names:
            yield f"it was told to end, and is told to be lost: {why}"


def _check_prompt(left: Left | None, text: str) -> Iterator[str]:
    if left is None:
        yield f"the prompt {text!r} was acknowledged by a runtime that has no record"
        return
    if text not in [event["text"] for event in left.named("prompt.queued")]:
        yield f"{left.id}: the prompt {text!r} was acknowledged, and is not in the log"
    sent = [event["text"] for event in left.named("turn.start")].count(text)
    # A run that ended well has said all that was accepted; a crash, or a cancel, may come before.
    is_told = left.end is not None and left.end["status"] == "DONE" and left.record.config is None
    if is_told and sent == 0:
        yield f"{left.id}: the run is done, and the prompt {text!r} was never sent"
    if sent > 1 and left.record.config is None and not left.named("run.resumed"):
        yield f"{left.id}: the prompt {text!r} was sent {sent} times"


def _outcome(told: Outcome) -> tuple[str, int, str]:
    return told.status.value, told.exit_code, told.stop_reason


def _ranges(events: Sequence[Event]) -> str:
    """The numbers of events, runs of them as `1-9`."""
    parts: list[list[int]] = []
    for event in events:
        if parts and event["seq"] == parts[-1][1] + 1:
            parts[-1][1] = event["seq"]
        else:
            parts.append([event["seq"], event["seq"]])
    return ", ".join(f"{first}-{last}" for first, last in parts) or "none"
