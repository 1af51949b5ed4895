"""Where runtimes run: three verbs, so that another machine or a scheduler can stand behind the same three.

A launcher is given the path of a runtime's directory and nothing else. What to run is in the record there.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from avenor.host import tree
from avenor.host.identity import ProcessId, is_alive, read_stat
from avenor.host.ladder import Graces, StopResult, stop_tree
from avenor.host.lock import is_locked
from avenor.host.procs import ProcsFile
from avenor.host.rundir import RunDir
from avenor.host.start import own_command
from avenor.protocol.errors import ErrorObject, SpawnError, from_wire
from avenor.stable.zygote import ZygoteKeeper

# A fork is ready within milliseconds, a fresh interpreter within a second. What takes this long on a machine that
# works at all is stuck.
_READY_SECONDS: Final = 60.0
_LINE_BYTES: Final = 64 * 1024
_KILL: Final = Graces(stdin_seconds=0.0, term_seconds=0.0)

_decode_error: Final = msgspec.json.Decoder(ErrorObject).decode


class Launcher(Protocol):
    """What the supervisor needs of a place where runtimes run."""

    async def launch(self, path: Path) -> ProcessId:
        """Start the runtime of a directory; returns when it answers on its socket.

        Raises:
            SpawnError: There is no such runtime now; its directory can be settled.

        Cancellation: the runtime may have been started.
        """
        ...

    def probe(self, path: Path) -> ProcessId | None:
        """The living runtime of a directory; None if there is none, or it has not yet said which process it is."""
        ...

    async def end(self, path: Path) -> StopResult:
        """End the runtime of a directory without asking it, and all that it started; also when only that is left."""
        ...

    async def exit_status(self, path: Path) -> int | None:
        """How the dead process of a directory ended, if anybody knows: an exit code, or minus a signal's number."""
        ...

    def forget(self, path: Path) -> None:
        """The directory has been settled."""
        ...


class LocalLauncher:
    """Runtimes as processes of this machine: forked from the zygote, or started plainly while there is none.

    Make it before anything is started here: children that are there already are not ours.

    Args:
        zygote: Kept by somebody else.
        live_paths: The directories of the runtimes that are not settled, whose processes no sweep may touch.
    """

    def __init__(self, zygote: ZygoteKeeper, live_paths: Callable[[], Iterable[Path]]) -> None:
        self._zygote = zygote
        self._live_paths = live_paths
        self._shares_orphans = _shares_orphans()
        self._launched: set[Path] = set()
        self._starting: dict[Path, int] = {}
        self._processes: dict[Path, ProcessId] = {}

    async def launch(self, path: Path) -> ProcessId:
        """See `Launcher.launch`."""
        self._launched.add(path)
        said = await self._start_and_hear(path, self._zygote.fork_nowait)
        if said is None:
            # The zygote died with the request, or the fork died without a word: a plain start will tell why.
            try:
                said = await self._start_and_hear(path, self._start_plainly)
            finally:
                self._starting.pop(path, None)
        word, _, rest = (said or b"").partition(b" ")
        if word != b"ready":
            raise _spawn_error(path, rest if word == b"error" else b"")
        process = RunDir(path).read_process()
        if process is None:
            raise SpawnError(f"{path}: the runtime says that it is ready, but not which process it is")
        self._processes[path] = process
        return process

    def probe(self, path: Path) -> ProcessId | None:
        """See `Launcher.probe`."""
        directory = RunDir(path)
        process = directory.read_process() if is_locked(directory.lock_path) else None
        # Whoever has the lock has not written yet who it is, where the file names one that is dead.
        return process if process is not None and is_alive(process) else None

    async def end(self, path: Path) -> StopResult:
        """See `Launcher.end`."""
        directory = RunDir(path)
        process = directory.read_process() or self._zygote.forked.get(str(path))
        roots = [started.id for started in ProcsFile(directory.procs_path).read()]
        tag = None
        if process is not None:
            roots.append(process)
            tag = tree.tree_tag(process.pid, process.start_ticks)
        # What a runtime of ours leaves behind comes to us, whatever it did to its environment. What another
        # supervisor's left behind went elsewhere, and only the tag can find it; so it is where others' orphans come to
        # us too, for nothing but the tag tells them from ours.
        is_below_us = path in self._launched and not self._shares_orphans
        result = await stop_tree(
            roots=roots,
            tag=tag,
            close_stdin=None,
            graces=_KILL,
            own_children_of=os.getpid() if is_below_us else None,
            spare_pids=partial(self._spare_pids, path),
        )
        self.reap()
        return result

    async def exit_status(self, path: Path) -> int | None:
        """See `Launcher.exit_status`."""
        status = None
        with contextlib.suppress(OSError):  # no descriptor left to look with: only the reason's wording lacks it
            status = self._collect(path)
        return await self._zygote.exit_status(path) if status is None else status

    def forget(self, path: Path) -> None:
        """Drop what is known of a directory whose runtime has been settled; what has ended there is reaped."""
        self._processes.pop(path, None)
        self._launched.discard(path)
        self._zygote.forget(path)
        self.reap()

    def reap(self) -> None:
        """Collect what ended as a child of this process, but for the zygote, and for runtimes that are not settled."""
        owned = {process.pid for process in self._processes.values()}
        with contextlib.suppress(OSError):  # no descriptor left to look with: the next one finds them
            tree.reap_adopted(owned if self._zygote.pid is None else {*owned, self._zygote.pid})

    def _collect(self, path: Path) -> int | None:
        """The exit status of a dead runtime that is our own child: it was started plainly, or its zygote has died."""
        process = self._processes.get(path)
        found = None if process is None else read_stat(process.pid)
        if found is None or found.id != process or not found.is_dead or found.ppid != os.getpid():
            return None
        pid, status = os.waitpid(found.id.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _spare_pids(self, path: Path) -> set[int]:
        """Children of ours that are others' runtimes: those that have said who they are, and those that start."""
        others = [other for other in self._live_paths() if other != path]
        processes = [self._process_of(other) for other in others]
        spared = {process.pid for process in processes if process is not None}
        if None in processes:
            # A zygote that has died may have forked it and not said so.
            spared |= {pid for pid in tree.children(os.getpid()) if self._zygote.is_fork(pid)}
        spared |= {pid for other, pid in self._starting.items() if other != path}
        return spared if self._zygote.pid is None else {*spared, self._zygote.pid}

    def _process_of(self, path: Path) -> ProcessId | None:
        """The process of a directory; None while one starts there that has not said which it is.

        The file may still name the one that was lost before.
        """
        if (launched := self._processes.get(path)) is not None:  # asked at every look of a sweep, for every runtime
            return launched
        told = (RunDir(path).read_process(), self._zygote.forked.get(str(path)))
        return next((process for process in told if process is not None and is_alive(process)), None)

    def _start_plainly(self, path: Path, ready_fd: int) -> bool:
        self._starting[path] = _spawn_plainly(path, ready_fd)
        return True

    async def _start_and_hear(self, path: Path, start: Callable[[Path, int], bool]) -> bytes | None:
        """Start one process; returns what it says on its readiness pipe, None if it ended without a word."""
        try:
            ready_out, ready_in = os.pipe()
        except OSError as error:  # no descriptor left
            raise SpawnError(f"{path}: cannot start a runtime: {error.strerror}", retryable=True) from error
        try:
            try:
                if not start(path, ready_in):
                    return None
            finally:
                os.close(ready_in)
            os.set_blocking(ready_out, False)
            with trio.fail_after(_READY_SECONDS):
                return await _read_line(ready_out)
        except trio.TooSlowError:
            raise SpawnError(f"{path}: the runtime was not ready after {_READY_SECONDS:g} s") from None
        finally:
            os.close(ready_out)


def _shares_orphans() -> bool:
    """Whether orphans that nothing of ours has left may come to this process.

    So it is for process 1, as in a container, and where somebody had started processes before this one became a
    supervisor (`sh -c 'other & exec avenor stable'`): they stay our children, and what they leave behind comes to us.
    """
    own = os.getpid()
    found = [read_stat(pid) for pid in tree.children(own)]
    return own == 1 or any(child is not None and not child.is_dead for child in found)


async def _read_line(fd: int) -> bytes | None:
    said = b""
    while b"\n" not in said:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, _LINE_BYTES)
        except BlockingIOError:  # woken for nothing
            continue
        if not data:
            return None
        said += data
    return said.partition(b"\n")[0]


def _spawn_plainly(path: Path, ready_fd: int) -> int:
    os.set_inheritable(ready_fd, True)
    command = [*own_command("avenor.runtimes"), str(path), str(ready_fd)]
    try:
        return os.posix_spawn(
            command[0],
            command,
            os.environ,
            setsigmask=(),
            setsigdef=[n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)],
        )
    except OSError as error:
        raise SpawnError(f"{command[0]}: cannot start a runtime: {error.strerror}") from error


def _spawn_error(path: Path, rest: bytes) -> SpawnError:
    try:
        told = from_wire(_decode_error(rest))
    except msgspec.DecodeError:
        return SpawnError(f"{path}: the runtime ended before it was ready; see {RunDir(path).stderr_path}")
    return SpawnError(told.message, data=told.data, retryable=told.retryable, reason=told.reason_word)
