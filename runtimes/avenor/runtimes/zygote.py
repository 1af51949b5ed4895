"""The warm process that runtimes are forked from: `python -m avenor.runtimes.zygote FD DIRECTORY`.

It has imported everything that a runtime needs, has one thread and one socket, and forks on request, which takes a
millisecond where a fresh interpreter takes a hundred and fifty. What it was started by can die at any time: it then
ends, and what it forked lives on.

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
from avenor.runtimes.detach import become_runtime, reset_signals, tell_error
from avenor.runtimes.immortal import immortalize
from avenor.runtimes.logs import configure_logs
from avenor.runtimes.rehearsal import rehearse

_READ_BYTES: Final = 64 * 1024
# More than the kernel gives with one message that carries one descriptor each.
_MAX_FDS: Final = 64
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
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._partial = b""
        self._fds: list[int] = []
        self._children: set[int] = set()

    def serve(self) -> None:
        """Fork and reap; returns when whoever asked has gone."""
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_out, False)
        os.set_blocking(wake_in, False)
        signal.signal(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(wake_in)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake_out, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake_out in ready:
                os.read(wake_out, _READ_BYTES)
                self._reap()
            if self._control.fileno() in ready and not self._take_requests():
                return

    def _take_requests(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, _READ_BYTES, _MAX_FDS)
        self._fds += fds
        if not data:
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._fork(_decode_request(line).path, self._fds.pop(0))
        return True

    def _fork(self, path: str, ready_fd: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            tell_error(ready_fd, SpawnError(f"cannot fork a runtime: {error.strerror}", retryable=True))
            os.close(ready_fd)
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become_runtime(path, ready_fd)
        os.close(ready_fd)
        self._children.add(pid)
        found = read_stat(pid)
        self._tell({"path": path, "pid": pid, "start_ticks": found.id.start_ticks if found else 0})

    def _reap(self) -> None:
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
    try:
        Zygote(control).serve()
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
