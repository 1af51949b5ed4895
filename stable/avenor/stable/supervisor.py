"""From nothing to a supervisor that answers, and back: the lock, the socket, the parts, the tombstone."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, ClassVar, Final

import structlog
import trio

from avenor.host.atomic import remove_unfinished
from avenor.host.lock import FileLock
from avenor.host.tree import become_subreaper
from avenor.host.unixsock import SocketInUse, bind_listener, has_server, remove_if_ours, socket_inode
from avenor.protocol.errors import AvenorError, Refused
from avenor.stable.launcher import LocalLauncher
from avenor.stable.loading import load_runtimes
from avenor.stable.logs import configure_logs
from avenor.stable.notify import Notifier, describe, take_notifier
from avenor.stable.options import Options
from avenor.stable.registry import Registry
from avenor.stable.shutdown import Shutdown
from avenor.stable.supervision import Supervision
from avenor.stable.tombstone import Reason, remove_tombstone, write_tombstone
from avenor.stable.zygote import ZygoteKeeper

if TYPE_CHECKING:
    from avenor.control.debug.server import DebugServer

_logger: Final = structlog.get_logger()


class StateInUse(Refused):
    """Another supervisor has the state directory."""

    reason: ClassVar[str] = "state_in_use"


def run_supervisor(options: Options) -> int:
    """Be the supervisor until it is told to stop, as `avenor stable` does; returns the exit code.

    0: it was told to stop, and did. 1: it could not start, or broke; standard error and the tombstone say why. A start
    that fails because another supervisor lives there touches nothing.
    """
    configure_logs(options.log_level, options.log_format)
    # Inherited as ignored, it has the kernel collect our children, and nobody learns how they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.closing(take_notifier(os.environ, os.getpid())) as notifier:
        return _run(options, notifier)


def _run(options: Options, notifier: Notifier) -> int:
    reason: Reason = "start_failed"
    try:
        with _state(options), _listening(options.control_socket) as listener, _http(options) as http:
            try:
                reason = trio.run(_supervise, options, listener, notifier, http, strict_exception_groups=True)
            except BaseException:
                reason = "crashed"
                raise
            finally:
                _bury(options.control_socket, reason)
    except (StateInUse, SocketInUse) as error:
        _complain(error.message)
        return 1
    except (AvenorError, OSError) as error:
        _complain(error.message if isinstance(error, AvenorError) else str(error))
        if reason == "start_failed":
            _bury_start(options.control_socket)
        return 1
    except Exception:
        _logger.exception("supervisor.crashed")
        return 1
    return 0


async def _supervise(
    options: Options, listener: socket.socket, notifier: Notifier, http: "DebugServer | None"
) -> Reason:
    """Serve until told to stop; returns why."""
    shutdown = Shutdown(timeout_seconds=options.shutdown_timeout, sigterm=options.on_sigterm)
    registry = Registry()
    zygote = ZygoteKeeper(options.state_path / "zygote.log")
    launcher = LocalLauncher(zygote, lambda: (runtime.directory.path for runtime in registry.live))
    become_subreaper()
    async with trio.open_nursery() as nursery:
        await nursery.start(shutdown.watch_signals)
        nursery.start_soon(notifier.tell_alive)
        nursery.start_soon(zygote.run)
        supervision = Supervision(options, launcher, registry, shutdown)
        loaded = await trio.to_thread.run_sync(load_runtimes, options.state_path, launcher.probe)
        await nursery.start(supervision.run, loaded)
        await nursery.start(supervision.server.serve, listener)
        if http is not None:
            await nursery.start(http.serve, supervision.server)
            if sys.stderr.isatty():
                _complain(http.told(is_terminal=True))
        _logger.info("supervisor.started", socket=options.control_socket, state_dir=str(options.state_path))
        nursery.start_soon(notifier.report, lambda: describe(registry.live, shutdown.mode), supervision.wait_changed)
        nursery.start_soon(_tell_stopping, shutdown, notifier)
        await shutdown.carry_out(supervision)
        with trio.move_on_after(0):  # once: a manager that is too busy for it now sees the end instead
            await notifier.tell_stopping()
        await supervision.server.close()
        if http is not None:
            await http.close()
        nursery.cancel_scope.cancel()
    _logger.info("supervisor.stopped", reason=shutdown.reason)
    return shutdown.reason


async def _tell_stopping(shutdown: Shutdown, notifier: Notifier) -> None:
    await shutdown.wait_decided()
    # A manager that is told waits for a minute or two and then kills; a drain may take hours.
    if shutdown.mode != "drain":
        await notifier.tell_stopping()


@contextlib.contextmanager
def _state(options: Options) -> Generator[None, None, None]:
    """The state directory, with its lock held: it proves that this supervisor lives."""
    path = options.state_path
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(path / "lock")
    if not lock.try_acquire():
        raise StateInUse(f"{path} has a live supervisor; stop it, or choose another --control-socket and --state-dir")
    try:
        remove_unfinished(path)
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _listening(path: str) -> Generator[socket.socket, None, None]:
    """The control socket, which is removed again if it is still ours."""
    # A user's own path: other programs must be able to dial it, which they cannot if it is too long.
    with bind_listener(path, allow_long_path=False) as listener:
        inode = socket_inode(path)
        try:
            remove_tombstone(path)
            yield listener
        finally:
            remove_if_ours(path, inode)


@contextlib.contextmanager
def _http(options: Options) -> "Generator[DebugServer | None, None, None]":
    """The server for HTTP, if there is to be one; else none of its modules is loaded."""
    if options.http_debug is None:
        yield None
        return
    from avenor.control.debug.server import open_debug

    with open_debug(options.http_debug, options.token_path) as server:
        yield server


def _bury_start(control_socket: str) -> None:
    """Tell of a start that failed, unless a supervisor lives there, which the file would deny."""
    with contextlib.suppress(OSError):  # it cannot be found out
        if not has_server(control_socket):
            _bury(control_socket, "start_failed")


def _bury(control_socket: str, reason: Reason) -> None:
    try:
        write_tombstone(control_socket, reason, pid=os.getpid())
    except OSError as error:
        _logger.warning("tombstone.not_written", error=str(error))


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens
        print(f"avenor stable: {message}", file=sys.stderr, flush=True)
