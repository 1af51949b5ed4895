"""An agent's program: starting it so that all it starts can be found again, its stderr, and its end.

Owns the process and its pipes. What is said over stdin and stdout is the wire's.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from subprocess import PIPE
from typing import Final

import structlog
import trio

from avenor.host.children import CHILDREN
from avenor.host.identity import ProcessId, is_alive, process_id
from avenor.host.ladder import Graces, StopResult, stop_tree
from avenor.host.procs import ProcsFile
from avenor.protocol.errors import SpawnError
from avenor.runtimes.backends.agent_text import Gate, TextLines
from avenor.runtimes.backends.base import StderrTail
from avenor.runtimes.backends.wiretap import TappedReceive, TappedSend, current_tap

READ_BYTES = 65536
REAP_SECONDS = 2.0  # After the process is known to be dead: the kernel owes us its status at once.

# The system is short of something that may come back; all other causes stay until somebody mends them.
_PASSING_ERRORS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY})

# What the shell in a sandbox says (as status 126 or 127) of a program that is there outside and not inside.
_NOT_INSIDE: Final = re.compile(
    r"(?:/bin/)?sh: (?:line )?\d+: (?P<program>.+): (?P<why>(?:command )?not found|[A-Z].+)"
)

_logger: Final = structlog.get_logger()


class AgentProcess:
    """A started agent. Its pipes are closed by `stop`.

    Args:
        process: Just started, with all three pipes.
        identity: Which process it is; None if it was gone before that could be read.
        tag: Name and value of the variable in the environment of all that it starts.
        owns_children: Everything below our own process may be ended with it.
        boxed: The program, if it was started through a sandbox, which has words of its own for one that is missing.
    """

    def __init__(
        self,
        process: trio.Process,
        identity: ProcessId | None,
        tag: tuple[str, str],
        *,
        owns_children: bool,
        boxed: str | None = None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._identity = identity
        self._tag = tag
        self._owns_children = owns_children
        self._boxed = boxed
        tap = current_tap()
        self.stdin = process.stdin if tap is None else TappedSend(process.stdin, tap)
        self.stdout = process.stdout if tap is None else TappedReceive(process.stdout, tap)
        self._stderr = process.stderr

    @property
    def pid(self) -> int:
        """The program's process id; it may be another's after `stop`."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended by now."""
        return self.returncode is not None

    @property
    def returncode(self) -> int | None:
        """What it has ended with, negative for a signal; None if it runs, or as far as we know."""
        return self._process.returncode

    async def wait(self) -> int:
        """Waits for the program's end; its return code, negative for a signal."""
        return await self._process.wait()

    async def read_stderr(self, tail: StderrTail, emit: Callable[[str], None]) -> None:
        """Reads stderr to its end: every line into the tail, and as many as the gate lets through to `emit`."""
        lines, gate = TextLines(), Gate()

        def tell(said: list[str]) -> None:
            new = said if self._boxed is None else [_translated(line, self._boxed) for line in said]
            for line in new:
                tail.add(line)
            for line in gate.admit(new, trio.current_time()):
                emit(line)

        try:
            while data := await self._stderr.receive_some(READ_BYTES):
                tell(lines.feed(bytes(data)))
        except trio.ClosedResourceError:
            pass  # we closed the pipe: the agent is being stopped
        tell(lines.rest())
        for line in gate.summary():
            emit(line)

    async def stop(self, graces: Graces) -> StopResult:
        """Ends the program and all that it started, reaps it, and closes its pipes.

        Cancellation: Shield it; cancelled, it closes the pipes, may leave processes, and can be called again.
        """
        roots = [] if self._identity is None else [self._identity]
        try:
            result = await stop_tree(
                roots=roots,
                tag=self._tag,
                close_stdin=self._close_stdin,
                graces=graces,
                own_children_of=os.getpid() if self._owns_children else None,
            )
            if self._identity is None or not is_alive(self._identity):  # what cannot be ended is nothing to wait for
                with trio.move_on_after(REAP_SECONDS):
                    await self._process.wait()
        finally:
            with trio.CancelScope(shield=True):
                for pipe in (self.stdin, self.stdout, self._stderr):
                    await pipe.aclose()
        return result

    async def _close_stdin(self) -> None:
        await self.stdin.aclose()


async def start_agent(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    tag: tuple[str, str],
    install: str,
    procs: ProcsFile | None,
    owns_children: bool = False,
    prefix: Sequence[str] = (),
) -> AgentProcess:
    """Starts a program in a session of its own and records it.

    Args:
        argv: The program line; the program is looked for on the PATH of `env`.
        cwd: Its working directory.
        env: Its whole environment; the tag is added.
        tag: Name and value of the variable by which everything that it starts is found again.
        install: How to get the program, for the error when it is missing.
        procs: Where the process is recorded for the sweep after a crash.
        owns_children: See `AgentProcess`.
        prefix: Words before the program line that start it in a sandbox. Errors are about the program all the same.

    Raises:
        SpawnError: It cannot be started; `retryable` if the system was only short of something.
    """
    if (tap := current_tap()) is not None:
        tap.started(argv, cwd, env)
    if prefix and not _is_there(argv[0], cwd, env):
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise _spawn_error(missing, argv[0], cwd, install)
    try:
        process = await CHILDREN.start(
            [*prefix, *argv],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=cwd,
            env={**env, tag[0]: tag[1]},
            start_new_session=True,
        )
    except OSError as error:
        raise _spawn_error(error, [*prefix, *argv][0], cwd, install) from error
    identity = process_id(process.pid)
    if procs is not None and identity is not None:
        try:
            procs.append(identity, pgid=process.pid)
        except OSError as error:
            # A full disk ends no run. The sweep after our own crash has the tag to go by as well.
            _logger.warning("agent.not_noted", pid=process.pid, error=str(error))
    return AgentProcess(process, identity, tag, owns_children=owns_children, boxed=argv[0] if prefix else None)


def _is_there(program: str, cwd: str, env: Mapping[str, str]) -> bool:
    """Whether a program would be found without the sandbox; that it may not be executed is for the sandbox to say."""
    if os.sep in program:
        return os.path.exists(os.path.join(cwd, program))
    return shutil.which(program, path=env.get("PATH", os.defpath)) is not None


def _translated(line: str, program: str) -> str:
    found = _NOT_INSIDE.fullmatch(line)
    if found is None or found["program"] != program:
        return line
    return f"{program} cannot be started inside the sandbox: {found['why']}"


def _spawn_error(error: OSError, program: str, cwd: str, install: str) -> SpawnError:
    if not os.path.isdir(cwd):
        message = f"cannot start {program}: the working directory {cwd} is not there"
    elif isinstance(error, FileNotFoundError):
        message = f"{program} is not installed, or not on the PATH: {install}"
    elif error.errno == errno.ENOEXEC:
        message = f"cannot start {program}: it is no program that this system runs; {install}"
    elif isinstance(error, PermissionError):
        message = f"cannot start {program}: it is not executable, or {cwd} may not be entered; {install}"
    else:
        message = f"cannot start {program}: {error.strerror}"
    return SpawnError(
        message, data={"program": program, "errno": error.errno}, retryable=error.errno in _PASSING_ERRORS
    )
