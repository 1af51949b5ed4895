"""The sandbox of one attempt: bubblewrap, and what of this machine is inside it.

Inside, everything can be read and nothing written, but for the paths that the attempt may write, and for places of its
own: `/tmp`, `/var/tmp`, the agent's state. Hidden are `/run`, others' `/tmp`, all devices but the harmless ones, all
processes but its own, and what the caller masks: the sockets by which runs are steered, run directories, worktrees of
other attempts. The network is not shut off; a socket is shut off by its path.

A directory that may be written is bound writable as a whole. A single file is bound by itself, which holds exactly what
was allowed: another file beside it cannot appear even for a moment. The price is that such a file can be written in
place, and neither renamed over nor removed (EROFS, or EBUSY). Agents' own editing tools write in place (opencode's and
codex's were tried); `sed -i` and `git apply` do not, and need a glob that means the folder.

Who gets privileges back: nobody. All capabilities are dropped, new ones cannot be had (no_new_privs), mounts are locked
against nested user namespaces, and there is no terminal to type into (a session of its own).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from avenor.protocol.errors import ConfigError

PROGRAM: Final = "bwrap"
# Replaced by private ones, or by nothing: other programs' files and sockets are there.
HIDDEN: Final = ("/tmp", "/var/tmp", "/run")
# Settings and controls of the whole machine. Root's process may write some of them by their mode alone, without any
# capability, and bubblewrap covers only those whose directory looks writable.
_SYSTEM: Final = ("acpi", "bus", "fs", "irq", "mtrr", "pressure", "scsi", "sys", "sysrq-trigger")
# They name sockets that are not there inside, or that would lend the user's own authority.
_UNSET: Final = (
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "GPG_AGENT_INFO",
    "WAYLAND_DISPLAY",
    "DISPLAY",
    "AVENOR_SOCKET",
    "AVENOR_RUNTIME_ID",
)
_NAMESPACES: Final = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_ALWAYS: Final = ("--new-session", "--cap-drop", "ALL", "--as-pid-1")
# Root is called nobody inside: a process that is called root may make no namespaces of its own there, and agents that
# have a sandbox of their own (codex) do.
_NOT_ROOT: Final = ("--uid", "65534", "--gid", "65534")
# The first process inside. It outlives the program by nothing, and with the first process everything inside ends. The
# program itself could not be it: SIGTERM would not reach it, and it would have to reap what others leave.
_FIRST: Final = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
_BASE: Final = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
_PROBE_SECONDS: Final = 10.0
_INSTALL: Final = "install bubblewrap (`apt-get install bubblewrap`, `dnf install bubblewrap`)"
_ALLOW: Final = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap with "
    "`userns,`; in a container, its security options)"
)


class SandboxFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no sandbox.

    Attributes:
        reason: What was found, in one line.
        remedy: What to do about it.
    """

    reason: str
    remedy: str


class Cage(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt may see and do. All paths are absolute; a place that is not there is left out.

    Attributes:
        worktree: Where it works.
        cwd: Where in it the program starts; None at its top.
        writable: Files and directories of the worktree that it may write: see `writable.writable_paths`.
        frozen: What in those directories it may not write: see `writable.frozen_paths`.
        private: A directory of the attempt's own, made ready by `private.make_private`. What is written to the private
            places is in it, also after the attempt.
        home_state: Directories where the agent keeps its own state; each is replaced by its copy in `private`.
        masked: Directories, files and sockets that are not to be seen. The worktree may lie below one.
        readable: What is to be seen although it lies in a hidden place: see `agent_places`.
    """

    worktree: str
    private: str
    cwd: str | None = None
    writable: Sequence[str] = ()
    frozen: Sequence[str] = ()
    home_state: Sequence[str] = ()
    masked: Sequence[str] = ()
    readable: Sequence[str] = ()


def probe_sandbox() -> SandboxFault | None:
    """Why bubblewrap cannot be used; None if it can. Found out once in a process, by starting it.

    Call it from the thread that runs trio, which it holds up for some milliseconds: a program that another thread
    starts could be collected as an orphan (see `host.children`).
    """
    found = _start_words()
    return found if isinstance(found, SandboxFault) else None


def sandbox_prefix(cage: Cage) -> list[str]:
    """The words that start a program in the sandbox; they go before its program line.

    Raises:
        ConfigError: There is no sandbox, or a writable path leads out of the worktree.
    """
    start = _start_words()
    if isinstance(start, SandboxFault):
        raise ConfigError(f"sandbox unavailable: {start.reason}; {start.remedy}", data={"field": "sandbox"})
    mounts = [*_hidden(cage), *_readable(cage), *_grown(cage), *_masked(cage), *_worktree(cage), *_state(cage)]
    words = [*start, *_base()]
    for mount in mounts:
        words += mount
    for path in _sealed(cage):
        words += ["--remount-ro", path]
    for name in _UNSET:
        words += ["--unsetenv", name]
    return [*words, "--setenv", "TMPDIR", "/tmp", "--chdir", cage.cwd or cage.worktree, "--", *_FIRST]


def agent_places(env: Mapping[str, str]) -> list[str]:
    """What a program with this environment needs of the hidden places: its home, programs, and Python's own modules.

    With `…/bin` on the PATH goes the folder that it is in, where the programs' own files are.
    """
    folders = [folder for folder in env.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    owners = [os.path.dirname(os.path.normpath(folder)) for folder in folders]
    places = [env.get("HOME", ""), *folders, *owners, sys.prefix, sys.base_prefix, *sys.path]
    resolver = os.path.realpath("/etc/resolv.conf")
    return [place for place in dict.fromkeys([*places, resolver]) if os.path.isabs(place) and _hides(place)]


def state_copy(private: str, number: int) -> str:
    """Where in a private directory the copy of one of the `home_state` directories is."""
    return os.path.join(private, "state", str(number))


@lru_cache(maxsize=1)
def _start_words() -> tuple[str, ...] | SandboxFault:
    """The program and its namespaces, or why they cannot be had."""
    program = shutil.which(PROGRAM)
    if program is None:
        return SandboxFault(reason="bubblewrap (bwrap) is not installed", remedy=_INSTALL)
    mapped = _NOT_ROOT if os.geteuid() == 0 else ()
    first = (program, "--unshare-user", *mapped, *_NAMESPACES, *_ALWAYS)
    problem = _try(first)
    if problem is None:
        return first
    if os.geteuid() == 0:  # root needs no user namespace, where there may be none
        second = (program, *_NAMESPACES, *_ALWAYS)
        if _try(second) is None:
            return second
    return SandboxFault(reason=f"bubblewrap does not work here: {problem}", remedy=_ALLOW)


def _base() -> list[str]:
    """The machine, read-only."""
    words = [*_BASE]
    for path in (f"/proc/{name}" for name in _SYSTEM):
        if os.path.exists(path):
            words += ["--ro-bind", path, path]
    return words


def _try(words: Sequence[str]) -> str | None:
    """What goes wrong with such a sandbox; None if nothing does."""
    try:
        done = subprocess.run(
            [*words, *_base(), "--", *_FIRST, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit status {done.returncode}"


_Mount = Sequence[str]


def _hidden(cage: Cage) -> Iterator[_Mount]:
    for place in HIDDEN:
        # One that is a link shows what another one hides.
        if os.path.isdir(place) and not os.path.islink(place):
            own = private_place(cage.private, place)
            yield ("--tmpfs", place) if own is None else ("--bind", own, place)


def private_place(private: str, place: str) -> str | None:
    """What stands in for a hidden place; None if that is an empty one."""
    return None if place == "/run" else os.path.join(private, place.strip("/").replace("/", "-"))


def _hides(path: str) -> bool:
    """Whether a path lies in a hidden place; the place itself does not."""
    return any(_is_below(os.path.realpath(path), os.path.realpath(place)) for place in HIDDEN)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _readable(cage: Cage) -> Iterator[_Mount]:
    for path in _outermost(cage.readable):
        if _hides(path):
            yield ("--ro-bind", path, path)
            # The way there may lead over a link that is hidden as well.
            real = os.path.realpath(path)
            if real != path:
                yield ("--ro-bind", real, real)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without those that are not there, and those below another."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if os.path.exists(path)}):
        if not any(_is_below(path, other) for other in kept):
            kept.append(path)
    return kept


def _seen(cage: Cage, path: str) -> bool:
    """Whether a path that is there is there inside as well."""
    return not _hides(path) or any(path == place or _is_below(path, place) for place in _outermost(cage.readable))


def _masked(cage: Cage) -> Iterator[_Mount]:
    for path in sorted(cage.masked):
        if os.path.lexists(path) and _seen(cage, path):
            yield ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", os.devnull, path)


def _worktree(cage: Cage) -> Iterator[_Mount]:
    yield ("--ro-bind", cage.worktree, cage.worktree)
    for path in sorted(cage.writable):
        _check_inside(path, cage.worktree)
        yield ("--bind", path, path)
    for path in sorted(cage.frozen):
        yield ("--ro-bind-try", path, path)
    link = os.path.join(cage.worktree, ".git")
    if cage.worktree in map(os.path.normpath, cage.writable) and os.path.lexists(link):
        yield ("--ro-bind", link, link)


def _check_inside(path: str, worktree: str) -> None:
    """Refuses a path with a link on it: bubblewrap would bind what the link leads to."""
    top = os.path.realpath(worktree)
    real = os.path.realpath(path)
    where = os.path.relpath(os.path.normpath(path), os.path.normpath(worktree))
    if real != os.path.normpath(os.path.join(top, where)) or (real != top and not _is_below(real, top)):
        raise ConfigError(
            f"allowed_writes: {where} leads over a link or out of the worktree: {real}; name the place itself",
            data={"field": "allowed_writes", "path": where},
        )


def _state(cage: Cage) -> Iterator[_Mount]:
    for number, path in enumerate(cage.home_state):
        if _anchor(path) is not None:
            yield ("--bind", state_copy(cage.private, number), path)


def _grown(cage: Cage) -> Iterator[_Mount]:
    """Room for state directories that are not there: their parent is shown entry by entry, in a place that can grow."""
    for folder in _growing(cage):
        yield ("--tmpfs", folder)
        for entry in sorted(os.listdir(folder)):
            path = os.path.join(folder, entry)
            if os.path.islink(path):
                yield ("--symlink", os.readlink(path), path)
            else:
                yield ("--ro-bind-try", path, path)


def _growing(cage: Cage) -> list[str]:
    anchors = {anchor for path in cage.home_state if (anchor := _anchor(path)) is not None and anchor != path}
    return sorted(anchors)


def _anchor(path: str) -> str | None:
    """The nearest directory above, or the path itself, that is there; None where that is no place to put anything."""
    anchor = path
    while not os.path.isdir(anchor):
        if os.path.lexists(anchor):
            return None
        anchor = os.path.dirname(anchor)
    return None if anchor == "/" else anchor


def _sealed(cage: Cage) -> list[str]:
    """Empty places that are there only for what was put into them: nobody is to write there."""
    masks = [path for path in cage.masked if os.path.isdir(path) and _seen(cage, path)]
    return sorted({*masks, *_growing(cage), *(["/run"] if os.path.isdir("/run") else [])})
