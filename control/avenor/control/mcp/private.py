"""A supervisor that the MCP server starts when none is named, and that outlives it.

It is found by its socket: the next MCP server on the same path finds the same runs, whether this supervisor still lives
or has to be started again.
"""

import os
import select
import subprocess
from pathlib import Path
from typing import Final

import trio

from avenor.control.wire import dial_trio
from avenor.host.start import own_command
from avenor.protocol.durations import format_duration
from avenor.protocol.errors import BrokenError, SpawnError

# Far more than a loaded machine needs.
_START_SECONDS: Final = 30.0
_RACE_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.05
_COMPLAINT_BYTES: Final = 2000
# What says whose agent the MCP server is, and the key to it: neither is for the agents of its supervisor.
_NOT_FOR_AGENTS: Final = ("AVENOR_RUN_ID", "AVENOR_RUNTIME_ID", "AVENOR_SOCKET", "MCP_AUTH_TOKEN")
# opencode ends a server together with all its descendants. What a shell leaves in the background is nobody's child.
_ORPHAN: Final = ("/bin/sh", "-c", '"$@" &', "sh")


class PrivateSupervisor:
    """The supervisor at a socket of our own.

    Args:
        socket: Its control socket; absolute. What it complains of is in a file beside it, `<socket>.log`.
        idle_seconds: How long it stays without a client and without a live run; None is for ever.
    """

    def __init__(self, socket: str, idle_seconds: float | None) -> None:
        self._socket = socket
        self._idle_seconds = idle_seconds
        self._log = Path(socket + ".log")
        self._life: int | None = None

    async def find(self) -> str:
        """The socket, when a supervisor answers there; starts one if there is none.

        Raises:
            SpawnError: It did not start.
        """
        if not await self._answers():
            await self._start()
        return self._socket

    async def _answers(self) -> bool:
        try:
            connection = await dial_trio(self._socket)
        except BrokenError:
            return False
        connection.close()
        return True

    async def _start(self) -> None:
        try:
            log_size = await trio.to_thread.run_sync(self._launch)
            # One that has ended may have lost a race against another that is not up yet.
            is_up = await self._wait_answers(_START_SECONDS, until_exit=True) or await self._wait_answers(_RACE_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise SpawnError(f"cannot start a supervisor at {self._socket}: {error}") from error
        finally:
            self._forget()
        if not is_up:
            complaint = await trio.to_thread.run_sync(self._complaint, log_size)
            raise SpawnError(f"the supervisor at {self._socket} did not start: {complaint}")

    async def _wait_answers(self, seconds: float, *, until_exit: bool = False) -> bool:
        with trio.move_on_after(seconds):
            # Whichever supervisor wins the race for the socket answers: it need not be ours, so that nothing tells us.
            while not await self._answers():
                if until_exit and self._is_over():
                    return False
                await trio.sleep(_LOOK_SECONDS)
            return True
        return False

    def _launch(self) -> int:
        """Start the process; returns how long the log was before."""
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [*own_command("avenor.cli"), "stable", "--control-socket", self._socket]
        if self._idle_seconds is not None:
            command += ["--idle-timeout", format_duration(self._idle_seconds)]
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_AGENTS}
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        log_size = os.fstat(descriptor).st_size
        life, held = os.pipe()
        self._life = life
        try:
            subprocess.run(
                [*_ORPHAN, *command],
                check=True,
                cwd="/",  # it must not keep the directory that its starter happens to be in
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=descriptor,
                pass_fds=(held,),
                start_new_session=True,
            )
            return log_size
        finally:
            os.close(descriptor)
            os.close(held)

    def _is_over(self) -> bool:
        """Whether the process that we started has ended: it holds the other end of a pipe, and nobody else does."""
        return self._life is not None and bool(select.select([self._life], [], [], 0)[0])

    def _forget(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None

    def _complaint(self, log_size: int) -> str:
        said = self._log.read_bytes()[log_size:][-_COMPLAINT_BYTES:]
        return said.decode(errors="replace").strip() or "it said nothing"
