"""Whether a run stands still: read from its directory, so that it can be told while no supervisor lives."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from avenor.host.identity import is_alive
from avenor.host.lock import is_locked
from avenor.host.logfile import iter_lines
from avenor.host.procs import ProcsFile
from avenor.host.rundir import RunDir
from avenor.protocol.events import decode_head
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.protocol.spec import Record
from tests.chaos.rehearsed import AT_GATE, TEAM_PHASES
from tests.chaos.rehearsed_manifest import WAITS_FOR

_MEMBERS: Final = tuple(phase["name"] for phase in TEAM_PHASES)
_STILL: Final = ("gate", "asking")


class Watched:
    """One runtime's directory at one moment."""

    def __init__(self, directory: RunDir, record: Record) -> None:
        self.directory = directory
        self.id = record.runtime_id
        self.name = record.spec.label or ""
        self.kind = record.kind
        self.lines = [json.loads(line) for line in iter_lines(directory.log_path)]

    @property
    def has_ended(self) -> bool:
        """Whether the log tells an outcome."""
        return bool(self.lines) and self.lines[-1]["event"] == "run.end"

    @property
    def is_alive(self) -> bool:
        """Whether its process holds the lock."""
        return is_locked(self.directory.lock_path)

    def agents(self) -> list[int]:
        """The pids of its living agents."""
        started = [started.id for started in ProcsFile(self.directory.procs_path).read()]
        return [process.pid for process in started if is_alive(process)]

    def snapshot(self) -> Snapshot:
        """What its log comes to."""
        fold = Fold(Snapshot(runtime_id=self.id))
        for line in iter_lines(self.directory.log_path):
            fold.apply_line(decode_head(line), line)
        return fold.state

    def describe(self) -> str:
        """What it is at, for people."""
        life = "lives" if self.is_alive else "is dead"
        return f"{self.id} ({self.kind}) {life}, at {self._turns()}, after {self.lines[-1:]}"

    def is_still(self, *, gate_is_open: bool) -> bool:
        """Whether a living run waits for somebody: at its gate, for an answer, or for a prompt."""
        turns = self._turns()
        if len(self.agents()) < len(turns):
            return False  # a new process has the lock already, and has not gone on yet with what the log tells
        waits = [state == "asking" or (state == "gate" and not gate_is_open) for state in turns.values()]
        if self.kind == "team" and self._is_at_members():
            return all(waits) and sorted(turns) == sorted(self._unfinished()) != []
        if self.kind == "manifest":
            return sorted(turns) == sorted(self._startable()) != [] and all(waits)
        if turns:
            return all(waits)
        state = self.snapshot()
        return state.status == "idle" and state.queued_prompts == 0

    def _turns(self) -> dict[str, str]:
        """The turns that run, by phase, and what each is at."""
        turns: dict[str, str] = {}
        for event in self.lines:
            phase = str(event.get("phase", "")) if self.kind != "single" else ""
            match event["event"]:
                case "turn.start" | "permission.response":
                    turns[phase] = "busy"
                case "agent.message_chunk" if event["content"].get("text") == AT_GATE:
                    turns[phase] = "gate"
                case "permission.request":
                    turns[phase] = "asking"
                case "turn.end":
                    turns.pop(phase, None)
                case "run.resumed":
                    turns.clear()
                case _:
                    pass
        return turns

    def _is_at_members(self) -> bool:
        return any(_kind(event) == "team" for event in self.lines) and len(self._unfinished()) > 0

    def _startable(self) -> list[str]:
        """The members of a manifest that have all they wait for, and are not done."""
        states = {event["task_id"]: event["state"] for event in self.lines if event["event"] == "avenor.task"}
        done = {name for name, state in states.items() if state == "done"}
        return [name for name, needed in WAITS_FOR.items() if name not in done and done.issuperset(needed)]

    def _unfinished(self) -> list[str]:
        ended = {event["phase"] for event in self.lines if event["event"] == "avenor.phase.end"}
        return [name for name in _MEMBERS if name not in ended]


def watch(state: Path) -> list[Watched]:
    """All runtimes that have a record."""
    found: list[Watched] = []
    for path in sorted(state.glob("rt_*")):
        directory = RunDir(path)
        data = directory.read_record()
        if data is not None:
            found.append(Watched(directory, msgspec.json.decode(data, type=Record)))
    return found


def _kind(event: dict[str, Any]) -> str | None:
    return event["kind"] if event["event"] == "avenor.phase.start" else None
