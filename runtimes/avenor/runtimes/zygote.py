"""The warm process that runtimes are forked from: `python -m avenor.runtimes.zygote FD DIRECTORY`.

It has imported everything that a runtime needs, has one thread and one socket, and forks on request, which takes a
millisecond where a fresh interpreter takes a hundred and fifty. While nobody asks it makes one fork ahead (`spare.py`).
What it was started by can die at any time: it then ends, and what it forked lives on.

Requests are JSON lines `{"path": DIRECTORY}`, each with one descriptor: the readiness pipe of that runtime. Its end
without a word means that there is no such runtime, so a request that dies with us in the socket is answered too.
Reports are JSON lines: `{"path": …, "pid": …, "start_ticks": …}` for a fork, `{"exited": PID, "status": …}` for an end.
"""

import contextlib
import gc
import importlib
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final

import msgspec
import structlog
import trio

import avenor.runtimes
from avenor.host.identity import read_stat
from avenor.protocol.errors import SpawnError
from avenor.runtimes.backends.registry import backend_names, get_backend
from avenor.runtimes.detach import become_runtime, forget_handlers, name_process, reset_signals, tell_error
from avenor.runtimes.immortal import fill_gaps, immortalize
from avenor.runtimes.logs import configure_logs
from avenor.runtimes.rehearsal import clear_left, make_stage, rehearse
from avenor.runtimes.spare import Spare, fork_spare

_READ_BYTES: Final = 64 * 1024
# More than the kernel gives with one message that carries one descriptor each.
_MAX_FDS: Final = 64
# After a request for so long without another, there is time for what no request waits for.
_QUIET_MS: Final = 50
# Manifests are seldom run, last for minutes, and bring an HTTP server with them: such a run imports them by itself.
_LEFT_OUT: Final = frozenset({"avenor.runtimes.manifest"})


class _Request(msgspec.Struct):
    path: str


_logger: Final = structlog.get_logger()
_decode_request: Final = msgspec.json.Decoder(_Request).decode


class Zygote:
    """Serves one socket until its other end is closed.

    Args:
        control: A connected stream socket, blocking; descriptors come with the lines.
        directory: For files that are needed for a moment.
    """

    def __init__(self, control: socket.socket, directory: str) -> None:
        self._control = control
        self._directory = directory
        self._spare: Spare | None = None
        self._stage: str | None = None
        self._wants_spare = True
        self._partial = b""
        self._fds: list[int] = []
        self._children: set[int] = set()

    def serve(self) -> None:
        """Fork and reap; returns when whoever asked has gone, or on SIGTERM, when the spare has ended."""
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_out, False)
        os.set_blocking(wake_in, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _wake_up)
        signal.set_wakeup_fd(wake_in)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake_out, select.POLLIN)
        try:
            while self._step(poller, wake_out):
                pass
        finally:
            self._drop_spare()

    def _step(self, poller: select.poll, wake_out: int) -> bool:
        """Waits for something and does it; False at the end."""
        ready = {fd for fd, _ in poller.poll(_QUIET_MS if self._wants_spare else None)}
        if not ready:
            self._prepare()
        if wake_out in ready:
            numbers = os.read(wake_out, _READ_BYTES)
            self._reap()
            if signal.SIGTERM in numbers:
                return False
        return self._control.fileno() not in ready or self._take_requests()

    def _take_requests(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, _READ_BYTES, _MAX_FDS)
        self._fds += fds
        if not data:
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._fork(_decode_request(line).path, self._fds.pop(0))
        return True

    def _prepare(self) -> None:
        """Makes a spare, while nobody asks for anything."""
        self._wants_spare = False
        self._strike()
        with contextlib.suppress(OSError):  # the next request will be another occasion
            self._stage = make_stage(self._directory)
            self._spare = fork_spare(self._stage)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            os.waitpid(self._spare.pid, 0)
        self._strike()

    def _strike(self) -> None:
        """Removes what the last spare has rehearsed with; there it would cost pages that are not used again."""
        if self._stage is not None:
            shutil.rmtree(self._stage, ignore_errors=True)
            self._stage = None

    def _take_spare(self, path: str, ready_fd: int) -> int | None:
        """Has the spare be a runtime; returns which process it is, None if there is none that is ready."""
        spare = self._spare
        if spare is None or not spare.take(path, ready_fd):
            return None
        self._spare = None
        return spare.pid

    def _fork(self, path: str, ready_fd: int) -> None:
        try:
            pid = self._take_spare(path, ready_fd) or os.fork()
        except OSError as error:
            tell_error(ready_fd, SpawnError(f"cannot fork a runtime: {error.strerror}", retryable=True))
            os.close(ready_fd)
            return
        if pid == 0:
            forget_handlers()
            become_runtime(path, ready_fd)
        self._wants_spare = self._spare is None
        os.close(ready_fd)
        self._children.add(pid)
        found = read_stat(pid)
        self._tell({"path": path, "pid": pid, "start_ticks": found.id.start_ticks if found else 0})

    def _reap(self) -> None:
        if self._spare is not None and os.waitpid(self._spare.pid, os.WNOHANG)[0]:
            self._spare.close()
            self._spare = None
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                self._tell({"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def _tell(self, report: dict[str, Any]) -> None:
        self._control.sendall(msgspec.json.encode(report) + b"\n")


def preload(directory: str) -> None:
    """Import all that a runtime may import, and do once what is slow the first time, so that no fork has to.

    msgspec looks into a struct when it first makes a decoder for it; trio makes parts of itself in its first run.
    """
    _import_all(avenor.runtimes.__path__, "avenor.runtimes.")
    for name, module in list(sys.modules.items()):
        if name.startswith("avenor."):
            _prepare_structs(module)
    for name in backend_names():
        get_backend(name)
    configure_logs(level="info", is_terminal=False)
    try:
        clear_left(directory)
        rehearse(directory)
    except Exception:  # supervision boundary: it only makes forks faster
        _logger.exception("zygote.not_rehearsed")
        trio.run(trio.lowlevel.checkpoint)


def _import_all(folders: Iterable[str], prefix: str) -> None:
    for found in pkgutil.iter_modules(folders, prefix):
        if found.name in _LEFT_OUT or found.name.endswith(".__main__"):
            continue
        module = importlib.import_module(found.name)
        if found.ispkg:
            _import_all(module.__path__, f"{found.name}.")


def _prepare_structs(module: ModuleType) -> None:
    for each in vars(module).values():
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module.__name__:
            # Some never come as JSON, and what msgspec then says depends on their members. It only makes forks faster.
            with contextlib.suppress(Exception):
                msgspec.json.Decoder(each)


def main(control_fd: int, directory: str) -> None:
    """Serve the socket that is open as `control_fd`; files that are needed for a moment go into the directory."""
    control = socket.socket(fileno=control_fd)
    gc.disable()
    name_process("avenor-zygote")
    os.setsid()
    os.chdir("/")
    reset_signals()
    preload(directory)
    if _is_abandoned(control):  # the rest takes another while, which whoever asked did not wait for
        return
    gc.collect()
    immortalize()
    # Frozen objects are never visited by the collector, so their pages stay shared with every fork.
    gc.freeze()
    _kept = fill_gaps()
    try:
        Zygote(control, directory).serve()
    except (BrokenPipeError, ConnectionResetError):
        return


def _is_abandoned(control: socket.socket) -> bool:
    """Whether the other end is closed, and no request waits."""
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _wake_up(_number: int, _frame: object) -> None:
    """A handler must exist for the wake-up descriptor to be written to."""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    sys.stderr.flush()
    os._exit(0)  # taking down what is loaded takes longer than all else, and somebody waits for this
