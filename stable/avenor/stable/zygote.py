"""The supervisor's side of the zygote: keeps one running, and asks it for forks.

The zygote is a convenience, never a need: while there is none, runtimes are started as plain processes.
"""

import os
import signal
import socket
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from avenor.host.identity import ProcessId, boot_id
from avenor.host.start import own_command

# One that dies sooner than this did not work, and starting the next at once would only burn the processor.
_HEALTHY_SECONDS: Final = 5.0
_FIRST_DELAY_SECONDS: Final = 0.1
_LAST_DELAY_SECONDS: Final = 30.0
# The zygote reaps and reports as soon as its child has ended; this is for one that is halted.
_REPORT_SECONDS: Final = 5.0
# It takes a moment, unless a fork that it makes ahead rehearses just now, or it is halted.
_END_SECONDS: Final = 5.0
_READ_BYTES: Final = 64 * 1024

_logger: Final = structlog.get_logger()


class _Report(msgspec.Struct):
    """What the zygote tells. Tolerant: it may be of another version, after an upgrade under our feet."""

    path: str | None = None
    pid: int | None = None
    start_ticks: int = 0
    exited: int | None = None
    status: int | None = None


_decode_report: Final = msgspec.json.Decoder(_Report).decode


class ZygoteKeeper:
    """Keeps one zygote alive while `run` runs.

    Args:
        log_path: Takes the zygote's standard error. In the same folder are its passing files.
        program: The command line, to which the number of its socket and that folder are added.

    Attributes:
        pid: Of the zygote, until it has been collected here, and by nobody else; None while there is none.
        forked: The process that was forked for each directory, as far as the zygote told.
    """

    def __init__(self, log_path: Path, program: tuple[str, ...] = ()) -> None:
        self.pid: int | None = None
        self.forked: dict[str, ProcessId] = {}
        self._exit_statuses: dict[int, int] = {}
        self._reported = trio.lowlevel.ParkingLot()
        self._log_path = log_path
        self._program = program or tuple(own_command("avenor.runtimes.zygote"))
        self._control: socket.socket | None = None

    async def run(self) -> None:
        """Start a zygote, and another one when it dies, ever later if they die young. Runs until it is cancelled."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            started_at = trio.current_time()
            try:
                process, control = self._start()
            except OSError as error:
                _logger.warning("zygote.not_started", error=str(error))
            else:
                await self._follow(process, control)
            if trio.current_time() - started_at >= _HEALTHY_SECONDS:
                delay = _FIRST_DELAY_SECONDS
            await trio.sleep(delay)
            delay = min(delay * 2, _LAST_DELAY_SECONDS)

    def fork_nowait(self, path: Path, ready_fd: int) -> bool:
        """Ask for a runtime; False if there is no zygote to ask, or it is too busy to listen.

        Args:
            path: The runtime's directory.
            ready_fd: The end of the readiness pipe that goes to it. It stays open here, for the caller to close.
        """
        if self._control is None:
            return False
        line = msgspec.json.encode({"path": str(path)}) + b"\n"
        try:
            # A few hundred bytes: a Unix socket takes them whole or refuses them whole.
            return socket.send_fds(self._control, [line], [ready_fd]) == len(line)
        except OSError:
            return False

    def is_fork(self, pid: int) -> bool:
        """Whether a process has the command line of a zygote, as all that it forks have."""
        words = b"\0".join(os.fsencode(word) for word in self._program)
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(words + b"\0")
        except OSError:  # gone, or there is no /proc
            return False

    def forget(self, path: Path) -> None:
        """Drop what is known of a directory whose runtime has been settled."""
        process = self.forked.pop(str(path), None)
        if process is not None:
            self._exit_statuses.pop(process.pid, None)

    async def exit_status(self, path: Path) -> int | None:
        """How the dead process of a directory ended: an exit code, or minus a signal's number; None if nobody tells."""
        process = self.forked.get(str(path))
        with trio.move_on_after(_REPORT_SECONDS):
            while process is not None and self._control is not None and process.pid not in self._exit_statuses:
                await self._reported.park()
        return None if process is None else self._exit_statuses.get(process.pid)

    def _start(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, open(self._log_path, "ab") as log:
            os.set_inheritable(theirs.fileno(), True)
            try:
                pid = _spawn([*self._program, str(theirs.fileno()), str(self._log_path.parent)], log.fileno())
            except OSError:
                ours.close()
                raise
        _logger.debug("zygote.started", pid=pid)
        return pid, ours

    async def _follow(self, pid: int, control: socket.socket) -> None:
        self._control, self.pid = control, pid
        partial = b""
        try:
            while data := await _receive(control):
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    self._note(_decode_report(line))
        finally:
            self._control = None
            self._reported.unpark_all()
            with trio.move_on_after(_END_SECONDS, shield=True):
                await _end(pid, control)
            control.close()
            status = _collect(pid)
            self.pid = None
        _logger.warning("zygote.ended", pid=pid, status=status)

    def _note(self, report: _Report) -> None:
        if report.path is not None and report.pid is not None:
            self.forked[report.path] = ProcessId(report.pid, report.start_ticks, boot_id())
        elif report.exited is not None and report.status is not None and self._is_awaited(report.exited):
            self._exit_statuses[report.exited] = report.status
            self._reported.unpark_all()

    def _is_awaited(self, pid: int) -> bool:
        """Whether the process is not settled yet; else nobody would ever ask for its status."""
        return any(process.pid == pid for process in self.forked.values())


def _spawn(command: list[str], stderr: int) -> int:
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setsigmask=(),
        setsigdef=[n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)],
    )


async def _end(pid: int, control: socket.socket) -> None:
    """Ends a zygote, which ends the fork that it has made ahead; at once while it is still loading and has none."""
    os.kill(pid, signal.SIGTERM)
    while await _receive(control):
        pass


def _collect(pid: int) -> int:
    """The exit status of a zygote that has ended; one that is halted is ended by this. It takes no time."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _receive(control: socket.socket) -> bytes:
    try:
        await trio.lowlevel.wait_readable(control)
        return control.recv(_READ_BYTES)
    except BlockingIOError:  # woken for nothing
        return await _receive(control)
    except OSError:
        return b""
