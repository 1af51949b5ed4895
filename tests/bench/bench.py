"""What every measurement is given: where to work, how long, and the programs to start."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import machine
from tests.bench.agents import shell_agent
from tests.bench.figures import Row
from tests.bench.native import make_child
from tests.bench.ours import Params, Supervisor, agent_params

FLEET = 100


class Bench:
    """One run of the benchmark.

    Args:
        folder: Empty, for all files.
        quick: Whether fewer samples will do.

    Attributes:
        agent: Spawn params for the cheapest agent.
        child: The command of the children of others.
        forked: Of the runtimes whose parent was looked at, those that the zygote has forked.
        looked_at: How many these are.
        failures: What went wrong with single spawns.
        spawns: How many were tried.
        file_seconds: How long it took to make a file where the state directories are.
        stuck: The names of other supervisors that did not end when they were asked to, once for each time.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.agent: Params = agent_params(shell_agent(folder), wait="started")
        self.child = make_child(folder)
        self.forked = 0
        self.looked_at = 0
        self.failures: list[str] = []
        self.spawns = 0
        self.stuck: list[str] = []
        self._numbers = itertools.count()
        self.file_seconds = machine.file_seconds(self.new_folder("files"))

    def times(self, full: int, quick: int) -> int:
        """How often, in full or in a hurry."""
        return quick if self.quick else full

    def new_folder(self, name: str) -> Path:
        """A path that is not used yet."""
        return self.folder / f"{name}{next(self._numbers)}"

    def note_launcher(self, ours: Supervisor) -> None:
        """Looks how the runtimes that are alive were started."""
        for pid in ours.runtime_pids().values():
            self.note_runtime(ours, pid)

    def note_runtime(self, ours: Supervisor, pid: int) -> None:
        """Looks how a runtime was started: one whose parent is the zygote was forked from it."""
        self.looked_at += 1
        self.forked += machine.parent(pid) == machine.zygote_of(ours.pid)

    def settle(self) -> float:
        """Waits for a quiet machine, for a while; returns the idle share."""
        return machine.wait_quiet(1.0 if self.quick else 4.0)


Measurement = Callable[[Bench], Iterator[Row]]
