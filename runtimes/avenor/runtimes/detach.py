"""Becoming a runtime process: what a forked or freshly started process does before the run itself begins.

Whoever started it can go away, so it keeps nothing of that process: no terminal, no session, no descriptor, no signal
setting, no directory and no environment but what the record says.
"""

import contextlib
import fcntl
import gc
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from avenor.host.failpoints import failpoint
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError, SpawnError, to_wire
from avenor.protocol.spec import Record

# Right after the standard three, so that "everything above" is one range.
_READY_FD: Final = 3
_CLEAR_FD: Final = 10
# sysexits.h EX_SOFTWARE: told apart from every exit code of a run.
BROKEN: Final = 70

_decode_record: Final = msgspec.json.Decoder(Record).decode


def become_runtime(path: str, ready_fd: int) -> NoReturn:
    """Be the runtime of a directory until it has ended; never returns, whatever happens.

    Signals are as `reset_signals` leaves them when this is called.

    Args:
        path: The runtime's directory, absolute, with its record in it.
        ready_fd: A pipe that takes `ready` or `error` and JSON, one line; closed as soon as that is said.
    """
    code = BROKEN
    failpoint("launch.after_fork")
    try:
        code = _run(path, ready_fd)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else BROKEN
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        # Not `sys.exit`: a fork's cleanup handlers belong to the process that it was forked from.
        os._exit(code)


def _run(path: str, ready_fd: int) -> int:
    name_process(f"avenor-{os.path.basename(path)}")
    with contextlib.suppress(PermissionError):  # a session leader already
        os.setsid()
    try:
        _redirect(RunDir(path), ready_fd)
    except OSError as error:
        # Without a log of its own there is nowhere else to say it.
        tell_error(ready_fd, SpawnError(f"{path}: cannot open the runtime's files: {error}"))
        return BROKEN
    try:
        take_place(RunDir(path))
    except AvenorError as error:
        tell_error(_READY_FD, error)
        return BROKEN
    gc.enable()
    # Here, for a process that was not forked has not imported it, and could not tell then why it failed.
    from avenor.runtimes.main import run_directory

    return run_directory(path, _READY_FD)


def tell_error(ready_fd: int, error: AvenorError) -> None:
    """Say on a readiness pipe why there will be no runtime; nobody listening is no error."""
    line = b"error " + msgspec.json.encode(to_wire(error)) + b"\n"
    with contextlib.suppress(OSError):
        os.write(ready_fd, line)


def reset_signals() -> None:
    """Dispositions and mask as Python itself starts with, whatever this process was started with."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):  # KILL, STOP, and those that the C library keeps for itself
            signal.signal(number, signal.SIG_DFL)
    # A reader's death is an error of the write, and Ctrl-C an exception.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def forget_handlers() -> None:
    """Take back, in a fork, how the zygote is woken by the ends of its children and by the wish that it ends."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _redirect(directory: RunDir, ready_fd: int) -> None:
    stderr = os.open(directory.stderr_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # First out of the way of the numbers that are about to be overwritten.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CLEAR_FD) for fd in (null, stderr, ready_fd)]
    for source, target in zip((moved[0], moved[0], moved[1]), (0, 1, 2), strict=True):
        os.dup2(source, target, inheritable=True)
    os.dup2(moved[2], _READY_FD, inheritable=False)
    close_all_but(_READY_FD)


def name_process(name: str) -> None:
    """What `ps` and `top` call this process, cut after 15 bytes; where there is no such name, nothing."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def close_all_but(kept: int) -> None:
    """Close every descriptor but the standard three and this one."""
    for fd in _open_fds():
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):  # the one that the listing itself was read through
                os.close(fd)


def _open_fds() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return list(range(os.sysconf("SC_OPEN_MAX")))


def take_place(directory: RunDir) -> None:
    """Directory, file mode and environment as the record says.

    Raises:
        SpawnError: The record cannot be used, or its directory is not there.
    """
    try:
        record = _decode_record(directory.read_record() or b"")
    except (OSError, msgspec.DecodeError) as error:
        raise SpawnError(f"{directory.record_path}: cannot read the record: {error}") from error
    try:
        os.chdir(Path(record.spec.dir))
    except OSError as error:
        raise SpawnError(
            f"dir {record.spec.dir}: {error.strerror}; make it, or choose another", data={"field": "dir"}
        ) from error
    os.umask(record.umask)
    _set_environ(record.environ)


def _set_environ(wanted: Mapping[str, str]) -> None:
    """Make this process's environment what is wanted, which it nearly is when it was forked."""
    present = dict(os.environ)
    for name in present:
        if name not in wanted:
            del os.environ[name]
    for name, value in wanted.items():
        if present.get(name) != value:
            os.environ[name] = value
