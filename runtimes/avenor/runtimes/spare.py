"""A fork that is made ahead: it has lived through a rehearsal of its own, and waits for the directory of a run.

Most of what a fork takes is done for the first time in it: the pages that it writes to are copied, the kernel maps what
it reads, the processor has nothing of it at hand. In the time between two spawns nobody waits for that.
"""

import contextlib
import gc
import os
import socket
import sys
import traceback
from typing import Final, NoReturn

from avenor.runtimes.detach import BROKEN, become_runtime, close_all_but, forget_handlers, name_process
from avenor.runtimes.rehearsal import rehearse_start

_READY: Final = b"r"
# More than a path may have.
_READ_BYTES: Final = 8192


class Spare:
    """The side of the process that forked it.

    Attributes:
        pid: The process, which is our child.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def take(self, path: str, ready_fd: int) -> bool:
        """Have it be the runtime of a directory; False if it is not ready for one, or can never be.

        Args:
            path, ready_fd: See `become_runtime`; the descriptor stays open here.
        """
        try:
            if self._control.recv(1, socket.MSG_DONTWAIT) != _READY:
                return False
            socket.send_fds(self._control, [os.fsencode(path)], [ready_fd])
        except OSError:  # not yet; or dead
            return False
        self.close()
        return True

    def close(self) -> None:
        """Let go of it: it ends, unless it was taken."""
        self._control.close()


def fork_spare(stage: str) -> Spare:
    """Make one. It ends when nobody can take it any more.

    Args:
        stage: From `make_stage`; what is left there is not needed when it was taken, or has ended.

    Raises:
        OSError: There are no descriptors, or no room for a process.
    """
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as failed:
        failed.callback(ours.close)
        with theirs:
            pid = os.fork()
            if pid == 0:
                _wait(theirs, stage)
        failed.pop_all()
    return Spare(pid, ours)


def _wait(control: socket.socket, stage: str) -> NoReturn:
    """What the fork does; never returns, whatever happens. Its name tells whether it is ready."""
    try:
        forget_handlers()
        name_process("avenor-fork")
        os.setsid()
        # The zygote's own descriptors, above all the one whose end tells the supervisor of the zygote's end.
        close_all_but(control.fileno())
        rehearse_start(stage)
        gc.collect()  # else it comes in the midst of the start
        control.sendall(_READY)
        name_process("avenor-spare")
        path, fds, _, _ = socket.recv_fds(control, _READ_BYTES, 1)
    except OSError:  # no room for its files, or the zygote has died
        os._exit(BROKEN)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(BROKEN)
    if not fds:  # nobody wants it any more
        os._exit(0)
    become_runtime(os.fsdecode(path), fds[0])
