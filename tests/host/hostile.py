"""Processes that are hard to end, one kind a mode: `python -S hostile.py MODE`.

Each process that starts writes its pid as a line on standard output; the first one writes `ready` when all are there.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn


def main(mode: str) -> None:
    announce()
    MODES[mode]()


def announce() -> None:
    os.write(1, b"%d\n" % os.getpid())


def ready() -> None:
    os.write(1, b"ready\n")


def sleep() -> NoReturn:
    while True:
        time.sleep(100)


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def until_eof(exit_code: int = 7) -> NoReturn:
    while os.read(0, 4096):
        pass
    os._exit(exit_code)


def fork(child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


def polite() -> None:
    """Ends with 7 at the end of its input."""
    ready()
    until_eof()


def deaf() -> None:
    """Heeds neither the end of its input nor SIGTERM."""
    ignore_term()
    ready()
    sleep()


def leader_exits() -> None:
    """Ends on SIGTERM, and leaves a child in its group that ignores it."""
    started, child_is_up = os.pipe()

    def child() -> None:
        ignore_term()
        announce()
        os.write(child_is_up, b".")
        sleep()

    fork(child)
    os.read(started, 1)
    ready()
    sleep()


def escape() -> None:
    """Leaves a daemon behind: double fork, a session of its own, no environment, deaf; ends with its input."""
    exec_daemon = [sys.executable, "-S", __file__, "deaf_daemon"]

    def middle() -> None:
        os.setsid()
        fork(lambda: os.execve(sys.executable, exec_daemon, {}))

    middle_pid = fork(middle)
    os.waitpid(middle_pid, 0)
    until_eof()


def deaf_daemon() -> None:
    ignore_term()
    ready()
    sleep()


def walker() -> None:
    """Forks on and on, each process ending as soon as it has a successor in a new session.

    For ten seconds at the most: nobody could find what a test run that was killed has left.
    """
    ignore_term()
    ready()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()


def respawn() -> None:
    """Starts a child again and again when it ends; deaf, all of them."""
    ignore_term()

    def child() -> None:
        announce()
        sleep()

    pid = fork(child)
    ready()
    while True:
        os.waitpid(pid, 0)
        pid = fork(child)


def halted() -> None:
    """Stops itself, as by a terminal; SIGTERM alone would never reach it."""
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep()


def headless() -> None:
    """Its main thread has ended, so that it looks like a zombie, while another thread goes on."""
    threading.Thread(target=sleep).start()
    ready()
    ctypes.CDLL(None).pthread_exit(None)


def crash() -> None:
    """Ends at once, leaving a deaf child."""

    def child() -> None:
        ignore_term()
        announce()
        ready()
        sleep()

    fork(child)
    os._exit(3)


MODES: dict[str, Callable[[], None]] = {
    mode.__name__: mode
    for mode in (polite, deaf, leader_exits, escape, deaf_daemon, walker, respawn, halted, headless, crash)
}

if __name__ == "__main__":
    main(sys.argv[1])
