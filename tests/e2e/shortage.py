"""What a system can be short of, made to measure: room on a disk, descriptors, and a clock that is right."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.e2e.harness import WAIT_SECONDS, Place
from tests.helpers import eventually_sync, kill_each


class SmallDisk:
    """A file system of a few MiB, which can be filled to the last byte and freed again.

    Args:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no room, not even for one byte in a new block."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while os.write(fd, bytes(size)):
                        pass
        finally:
            os.close(fd)

    def free(self) -> None:
        """Give back what was filled."""
        self._filler.unlink()


@contextlib.contextmanager
def mounted_small(place: Place) -> Generator[SmallDisk | None, None, None]:
    """A file system of 2 MiB in the place, as `small`; None where mounting is not allowed. Ends what works on it."""
    path = place.path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield SmallDisk(path)
    finally:
        kill_each(place.processes())
        eventually_sync(
            lambda: subprocess.run(["umount", str(path)], capture_output=True).returncode == 0, WAIT_SECONDS
        )


def told_lost(events: list[dict[str, Any]]) -> list[int]:
    """The seqs that a log says it has not got."""
    return [seq for e in events if "lost_from" in e for seq in range(e["lost_from"], e["lost_to"] + 1)]


def missing(events: list[dict[str, Any]]) -> list[int]:
    """The seqs that a log has not got."""
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    return sorted(set(range(1, seqs[-1] + 1)) - set(seqs))


@contextlib.contextmanager
def without_descriptors(pid: int) -> Generator[None, None, None]:
    """A process that can open nothing more, for as long as this lasts."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


_CLOCK_C = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *offset;

__attribute__((constructor)) static void map_offset(void) {
    int fd = open(getenv("STEPPED_CLOCK"), O_RDONLY | O_CLOEXEC);
    offset = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *offset;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
"""


class SteppedClock:
    """A wall clock for the processes that are started with it, which can be set while they run.

    Args:
        folder: For its files.

    Attributes:
        environ: What makes a process use it.
    """

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.set(0)
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_CLOCK_C)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        self.environ = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._offset)}

    def set(self, offset_seconds: int) -> None:
        """So far ahead of the true time."""
        with self._offset.open("r+b" if self._offset.exists() else "w+b") as file:
            file.write(offset_seconds.to_bytes(8, "little", signed=True))
