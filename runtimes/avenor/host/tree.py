"""Finding the processes that came from us: below a process, by environment tag, and among our own adopted orphans.

The cheap way is the kernel's list of each thread's children; reading every process is kept for what it cannot find. To
be found at all, an escape (setsid, double fork, cleared environment) must come back to us: see `become_subreaper`.
"""

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from avenor.host.identity import ProcessStat, all_pids, read_stat

TREE: Final = "AVENOR_TREE"
PART: Final = "AVENOR_TREE_PART"

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37

# The kernel has the children lists only with CONFIG_PROC_CHILDREN (4.2 and later, nearly always on).
HAS_CHILDREN_LISTS: Final = Path(f"/proc/self/task/{os.getpid()}/children").exists()


class Walk(msgspec.Struct, frozen=True):
    """One look at the processes below some others.

    Attributes:
        alive: Those that run.
        gone_pids: Those that were listed, but had ended (zombies too) or moved when they were looked at.
    """

    alive: list[ProcessStat]
    gone_pids: set[int]


def walk(pids: Iterable[int], spare_pids: Collection[int] = ()) -> Walk:
    """Everything below these processes, themselves excluded unless one is below another; each is listed once.

    A process that moves while we look (its parent ends, and it comes to us) can be missed. An empty answer is a proof
    only if another walk gave one before it, and that one had already met all that this one finds gone.

    Args:
        pids: Where to start; those that do not exist have nothing below them.
        spare_pids: Left out, with all that is below them.
    """
    children_of = _listed_children if HAS_CHILDREN_LISTS else _scanned_children()
    alive: list[ProcessStat] = []
    gone_pids: set[int] = set()
    starts = list(dict.fromkeys(pids))
    parents = {*starts, os.getpid()}  # an orphan's parent is us, if we are a subreaper
    seen = set(spare_pids)
    for parent in starts:
        pending = [child for child in children_of(parent) if child not in seen]
        while pending:
            pid = pending.pop()
            if pid in seen:
                continue
            seen.add(pid)
            found = read_stat(pid)
            # With a parent that is none of ours it is a stranger with the pid of one that has ended just now.
            if found is None or found.is_dead or found.ppid not in parents:
                gone_pids.add(pid)
                continue
            alive.append(found)
            parents.add(pid)
            pending += children_of(pid)
    return Walk(alive, gone_pids)


def children(pid: int) -> list[int]:
    """The pids of a process's own children, zombies too."""
    return (_listed_children if HAS_CHILDREN_LISTS else _scanned_children())(pid)


def descendants(pid: int) -> list[ProcessStat]:
    """What runs below a process, zombies left out."""
    return walk([pid]).alive


def tagged(name: str, value: str) -> list[ProcessStat]:
    """Our user's running processes that were started with NAME=VALUE in their environment, this one left out.

    Reads every process (about 20 µs each), so it is for where the tree cannot tell. It cannot see processes that
    cleared or overwrote their environment, and those that forbid looking (setuid). Empty where there is no /proc.
    """
    wanted = b"\0" + os.fsencode(f"{name}={value}") + b"\0"
    own = os.getpid()
    pids = (pid for pid in all_pids() if pid != own and _is_ours(pid))
    hits = (read_stat(pid) for pid in pids if wanted in _environment(pid))
    return [found for found in hits if found is not None and not found.is_dead]


def ancestors(pid: int) -> set[int]:
    """The pids above a process, up to the first."""
    above: set[int] = set()
    found = read_stat(pid)
    while found is not None and found.ppid > 0 and found.ppid not in above:
        above.add(found.ppid)
        found = read_stat(found.ppid)
    return above


def tree_tag(pid: int, start_ticks: int) -> tuple[str, str]:
    """The variable that marks everything started below a runtime process, as name and value; for `tagged`.

    Run and runtime ids repeat (another supervisor has an `rt_1` too; `--run-id` is free text), so processes are found
    again by what does not: the runtime process's own pid and kernel start time.
    """
    return TREE, f"{pid}-{start_ticks}"


def part_tag(pid: int, start_ticks: int, number: int) -> tuple[str, str]:
    """The variable that marks, beside the tree's, what one of several sessions below a runtime process has started."""
    return PART, f"{pid}-{start_ticks}-{number}"


def become_subreaper() -> bool:
    """Make orphans among our descendants come back to us rather than to process 1. False: the system cannot.

    It holds for this process until it ends; forked children do not inherit it, so each runtime asks for itself.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def is_subreaper() -> bool:
    """Whether orphans among our descendants come back to this process."""
    answer = ctypes.c_int(0)
    return _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer)) == 0 and answer.value == 1


def reap(pids: Iterable[int]) -> list[int]:
    """Collect those of our children among these pids that have ended, and say which.

    Never pass a child that somebody else waits for (an agent that trio started): its exit status would be lost, and
    its crash be reported as success.
    """
    return [pid for pid in pids if _reap_one(pid)]


def reap_adopted(owned_pids: Collection[int]) -> list[int]:
    """Collect the ended orphans that came back to us while we run, so that they do not stay as zombies.

    Args:
        owned_pids: Children that were started here and are waited for elsewhere. Do not call this between the start of
            a process and its entry here: one that has ended already looks like an orphan.
    """
    return reap(walk([os.getpid()], owned_pids).gone_pids)


def _reap_one(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _listed_children(pid: int) -> list[int]:
    """The children of all threads of a process, by the kernel's own lists."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it, or the thread, ended while we looked; its children are with their new parent by now
    return children


def _scanned_children() -> Callable[[int], list[int]]:
    """The same from one look at every process, for systems without the lists."""
    by_parent: dict[int, list[int]] = {}
    for pid in all_pids():
        found = read_stat(pid)
        if found is not None:
            by_parent.setdefault(found.ppid, []).append(pid)
    return lambda pid: by_parent.get(pid, [])


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + _read(f"/proc/{pid}/environ")
    except OSError:  # gone, or not to be looked into
        return b""


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces: list[bytes] = []
        while piece := os.read(fd, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _prctl(option: int, argument: int) -> int:
    if sys.platform != "linux":
        return -errno.ENOSYS
    return int(_c_library().prctl(option, ctypes.c_ulong(argument), 0, 0, 0))


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
