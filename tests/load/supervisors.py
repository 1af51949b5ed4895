"""Supervisors under load, and what can be counted at them from outside."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench import machine
from tests.e2e.harness import Client, Place, Stable
from tests.load.agents import shell_agent

MIB = 2**20
# What a cancel answers that has left nothing, and has proven it.
CLEAN: Final[dict[str, Any]] = {"ok": True, "left": []}
# Spawns under way at once: more would only queue for the two cores of a small machine.
_AT_ONCE = 16
_PATIENCE_SECONDS = 300.0


class Loaded:
    """A supervisor with bounds that no row reaches, and a client that waits long enough for a busy machine.

    Args:
        place: Where it is.
        flags: More flags.
        options: See `Stable`.
    """

    def __init__(self, place: Place, *flags: str, **options: Any) -> None:
        self.place = place
        self.agent = shell_agent(place)
        if not {"--max-runtimes", "--max-parked"} & set(flags):
            flags = ("--max-runtimes", "2000", "--max-parked", "2000", *flags)
        self.stable = Stable(place, *flags, **options)
        self.client = self.connect()

    def connect(self) -> Client:
        """Another client."""
        client = self.stable.connect()
        client.sock.settimeout(_PATIENCE_SECONDS)
        return client

    def spawn_many(self, prompts: Sequence[str], **params: Any) -> list[str]:
        """Spawn one for each prompt, some at a time; returns the ids in the order of the prompts."""
        chosen = {"dir": str(self.place.work), "wait": "started", **self.agent, **params}
        ids: list[str] = []
        for start in range(0, len(prompts), _AT_ONCE):
            asked = [self.client.send("spawn", prompt=prompt, **chosen) for prompt in prompts[start : start + _AT_ONCE]]
            for answer in map(self.client.answer, asked):
                if "result" not in answer:
                    raise RuntimeError(f"a spawn has failed: {answer['error']}")
                ids.append(answer["result"]["runtime_id"])
        return ids

    def cancel_many(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Cancel all at once; returns the answers."""
        asked = [self.client.send("cancel", runtime_id=runtime_id, force=True) for runtime_id in ids]
        return [self.client.answer(each) for each in asked]

    def statuses(self) -> dict[str, int]:
        """How many runtimes there are in each status."""
        found = [each["status"] for each in self.client.call("list")]
        return {status: found.count(status) for status in sorted(set(found))}

    def wait_statuses(self, wanted: dict[str, int]) -> None:
        """Waits until so many are in each."""
        wait_until(lambda: self.statuses() == wanted, f"{wanted} was never reached: {self.statuses()}")

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self.stable.process.pid

    def keepers(self) -> dict[str, int]:
        """Supervisor and zygote, by name."""
        return {"supervisor": self.pid, "zygote": machine.zygote_of(self.pid)}

    def footprint(self) -> dict[str, dict[str, int]]:
        """What must be as it was when the load has gone: for supervisor and zygote descriptors, threads and children,
        zombies among these too. The fork that is made ahead is one of them.
        """
        self.stable.wait_spare()
        return {
            name: {
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": len(os.listdir(f"/proc/{pid}/task")),
                "children": len(machine.children(pid)),
            }
            for name, pid in self.keepers().items()
        }

    def memory(self) -> dict[str, float]:
        """Their proportional set sizes in MiB."""
        return {name: machine.pss_bytes(pid) / MIB for name, pid in self.keepers().items()}

    def leftovers(self) -> list[str]:
        """Processes of this place that are neither supervisor nor zygote, nor made ahead by it."""
        keepers = set(self.keepers().values())
        return [command for pid, command in self.place.in_use().items() if pid not in keepers]


def wait_until(condition: Callable[[], object], problem: str) -> None:
    """Waits until something is so.

    Raises:
        RuntimeError: It never was.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(problem)
        time.sleep(0.05)


def rss_mib(pid: int) -> float:
    """What a process has in memory, which is read faster than its proportional set size."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def is_idle(pid: int) -> bool:
    """Whether a process uses next to nothing for a second."""
    before = machine.cpu_seconds([pid])
    time.sleep(1)
    return machine.cpu_seconds([pid]) - before < 0.05
