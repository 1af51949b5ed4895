"""The machine that is measured on: what it is, whether it is quiet, and what its processes use."""

import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_QUIET_SHARE = 0.93
_LOOK_SECONDS = 0.25
# Asked before anything is pinned.
_CORES = sorted(os.sched_getaffinity(0))


def describe() -> list[str]:
    """What a reader must know to compare the figures with those of another machine."""
    return [
        f"{len(_CORES)} cores: {_processor()}",
        f"{platform.system()} {platform.release().split('-')[0]}, {_memory_gib():.0f} GiB of memory",
        f"{platform.python_implementation()} {platform.python_version()}",
    ]


def file_seconds(folder: Path) -> float:
    """How long it takes to make a file in a folder, which is made for that. It depends on what was deleted lately."""
    folder.mkdir()
    count = 50
    began = time.perf_counter()
    for number in range(count):
        os.close(os.open(folder / str(number), os.O_WRONLY | os.O_CREAT))
    return (time.perf_counter() - began) / count


def wait_quiet(limit_seconds: float) -> float:
    """Waits until hardly anything else uses the processors, or the time is over; returns the idle share, 0 to 1."""
    deadline = time.monotonic() + limit_seconds
    while True:
        idle = _idle_share(_LOOK_SECONDS)
        if idle >= _QUIET_SHARE or time.monotonic() > deadline:
            return idle


def pin(pid: int, core: int) -> None:
    """Keeps the main thread of a process on one core, counted from 0. A machine with one core has no choice.

    Args:
        pid: The process; 0 is this one.
        core: Which.
    """
    os.sched_setaffinity(pid, {_CORES[core % len(_CORES)]})


def unpin(pid: int) -> None:
    """Lets a process go wherever it may."""
    os.sched_setaffinity(pid, _CORES)


def pss_bytes(pid: int) -> int:
    """A process's proportional set size: its own pages, and its share of those that it has in common with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the kernel tells no Pss of process {pid}")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that processes have used so far, all threads, to the nanosecond."""
    return sum(_cpu_nanoseconds(pid) for pid in pids) / 1e9


def cpu_by_thread(pids: Iterable[int]) -> dict[int, int]:
    """The same in nanoseconds, thread by thread, for who compares: threads that end take what they used with them."""
    return {int(task.name): _cpu_of(task) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()}


def children(pid: int) -> list[int]:
    """The children of a process that are alive."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def runs_program(pid: int, program: str) -> bool:
    """Whether a process is there, and runs this program or script."""
    try:
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False


def zygote_of(pid: int) -> int:
    """The zygote of a supervisor."""
    for child in children(pid):
        if b"avenor.runtimes.zygote" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise ValueError(f"process {pid} has no zygote")


def _cpu_nanoseconds(pid: int) -> int:
    return sum(_cpu_of(task) for task in Path(f"/proc/{pid}/task").iterdir())


def _cpu_of(task: Path) -> int:
    return int((task / "schedstat").read_text().split()[0])


def _idle_share(seconds: float) -> float:
    before = _ticks()
    time.sleep(seconds)
    spent = [after - start for start, after in zip(before, _ticks(), strict=True)]
    return (spent[3] + spent[4]) / (sum(spent) or 1)


def _ticks() -> Sequence[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
