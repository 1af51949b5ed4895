"""Which process is meant: pid, kernel start time and boot together name one process for ever.

Owns reading one process's state, signalling it and waiting for its end. A pid alone is never trusted: it may have been
given to a stranger. A zombie counts as dead everywhere, for its parent may never reap it.
"""

import contextlib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, cast

import msgspec
import trio

HAS_PROC: Final = Path("/proc/self/stat").exists()
_POLL_SECONDS: Final = 0.02
# What there may be again in a moment.
_SHORT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ProcessId(msgspec.Struct, frozen=True):
    """One process, never mistaken for another one.

    Attributes:
        pid: Its number while it lives.
        start_ticks: When it started, in clock ticks since boot; in microseconds of the epoch where there is no /proc.
        boot_id: The boot in which it lives.
    """

    pid: int
    start_ticks: int
    boot_id: str


class ProcessStat(msgspec.Struct, frozen=True):
    """What the kernel tells of a process at one moment.

    Attributes:
        name: The kernel's name for it, at most 15 characters.
        state: One letter: R running, S sleeping, D uninterruptible, T stopped, Z zombie, X gone.
        ppid: Its present parent.
        pgid: Its process group.
        is_dead: It has ended, reaped or not.
    """

    id: ProcessId
    name: str
    state: str
    ppid: int
    pgid: int
    is_dead: bool


@functools.cache
def boot_id() -> str:
    """What identifies this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # pragma: no cover - only without /proc
        import psutil

        return f"boot-{int(psutil.boot_time())}"


def read_stat(pid: int) -> ProcessStat | None:
    """The process's present state, zombies included; None when there is no such process."""
    return _read_proc_stat(pid) if HAS_PROC else _read_psutil_stat(pid)


def all_pids() -> list[int]:
    """Every process that the system shows us."""
    if HAS_PROC:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    import psutil

    return list(psutil.pids())


def process_id(pid: int) -> ProcessId | None:
    """The identity of the process that has this pid now, zombies included; None when there is none."""
    found = read_stat(pid)
    return None if found is None else found.id


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs; a zombie does not, and nothing survives a reboot."""
    if process.boot_id != boot_id():
        return False
    found = read_stat(process.pid)
    return found is not None and found.id == process and not found.is_dead


def signal_process(process: ProcessId, signal_number: int) -> bool:
    """Signal this very process, never one that got its pid later. False: it is dead.

    Raises:
        PermissionError: It runs as another user.
    """
    if process.boot_id != boot_id():
        return False
    try:
        with _pidfd(process.pid) as fd:
            # The descriptor pins the process, so what is alive now is what gets the signal.
            if not is_alive(process):
                return False
            _send(process.pid, fd, signal_number)
    except ProcessLookupError:
        return False
    return True


async def wait_dead(process: ProcessId) -> None:
    """Return when this very process has ended, at once if it already has. It need not be a child of ours.

    Cancellation: nothing changes.
    """
    await trio.lowlevel.checkpoint()
    # Polling: without a pidfd (not Linux, or no descriptor left now) the kernel tells only parents of an exit.
    while not await _has_died(process):  # noqa: ASYNC110
        await trio.sleep(_POLL_SECONDS)


async def _has_died(process: ProcessId) -> bool:
    """Whether it is dead: waits for that where the kernel tells; False where it must be asked again."""
    try:
        with _pidfd(process.pid) as fd:
            if is_alive(process):
                if fd is None:
                    return False
                await trio.lowlevel.wait_readable(fd)
    except ProcessLookupError:
        return True
    except OSError as error:
        if error.errno not in _SHORT_OF:
            raise
        return False
    return True


@contextlib.contextmanager
def _pidfd(pid: int) -> Generator[int | None, None, None]:
    """A descriptor for the process that has the pid now; None where none can be had.

    Raises:
        ProcessLookupError: There is no such process.
    """
    fd = _open_pidfd(pid)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _open_pidfd(pid: int) -> int | None:
    pidfd_open = cast("Callable[[int], int] | None", getattr(os, "pidfd_open", None))
    if pidfd_open is None:
        return None
    try:
        return pidfd_open(pid)
    except OSError as error:
        # On a kernel without the call we can still look at /proc.
        if error.errno in (*_SHORT_OF, errno.ENOSYS, errno.EPERM):
            return None
        if error.errno == errno.EINVAL:  # a thread's number, or none at all
            raise ProcessLookupError(errno.ESRCH, "no such process", str(pid)) from error
        raise


def _send(pid: int, fd: int | None, signal_number: int) -> None:
    if sys.platform == "linux" and fd is not None:
        signal.pidfd_send_signal(fd, signal_number)
    else:
        # Without a pidfd, the pid could be given away between our look and this call: microseconds, and the kernel
        # hands pids out in turn.
        os.kill(pid, signal_number)


def _read_proc_stat(pid: int) -> ProcessStat | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        text = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # proc(5): the name is in parentheses and may hold any byte, parentheses too.
    before, _, after = text.rpartition(b")")
    state, ppid, pgid, *more = after.split()
    threads, start_ticks = int(more[14]), int(more[16])
    # A main thread that ended before the others shows as a zombie, but its process lives on.
    is_dead = state in b"ZXx" and threads <= 1
    return ProcessStat(
        id=ProcessId(pid, start_ticks, boot_id()),
        name=before.partition(b"(")[2].decode(errors="replace"),
        state=state.decode(),
        ppid=int(ppid),
        pgid=int(pgid),
        is_dead=is_dead,
    )


def _read_psutil_stat(pid: int) -> ProcessStat | None:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "S"
            return ProcessStat(
                id=ProcessId(pid, round(process.create_time() * 1_000_000), boot_id()),
                name=process.name(),
                state=state,
                ppid=process.ppid(),
                pgid=os.getpgid(pid),
                is_dead=state == "Z",
            )
    except (psutil.Error, ProcessLookupError):
        return None
