"""Living runs that nobody asked for, so that what is slow the first time is not slow in every fork.

A function's first calls rewrite its code, and first lookups fill the interpreter's caches: memory that each fork would
have to copy and fill for itself.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from avenor.host.atomic import write_atomic
from avenor.host.failpoints import no_failpoints
from avenor.host.rundir import RunDir
from avenor.host.unixsock import dial
from avenor.protocol.errors import AvenorError
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.runtimes.detach import take_place
from avenor.runtimes.main import take
from avenor.runtimes.process import Listening, Place, run_process

# Code is rewritten for good when it has run eight times.
_TIMES: Final = 8
# On a machine where they take longer, forks that are not quite as fast are sooner there.
_LIMIT_SECONDS: Final = 2.0
_READ_BYTES: Final = 65536
_MEMORY: Final = "/dev/shm"
_PREFIX: Final = "avenor-rehearsal-"
# Nobody rehearses for so long.
_LEFT_SECONDS: Final = 60.0

# An agent that says something in each turn and ends with its input. Our peer numbers its requests from 1.
_AGENT: Final = r"""
n=0
while IFS= read -r line; do
    case $line in
        *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
        *'"method":"session/new"'*) result='{"sessionId":"-"}' ;;
        *'"method":"session/prompt"'*)
            printf '%s%s\n' '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"-","update":' \
                '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"-"}}}}'
            result='{"stopReason":"end_turn"}' ;;
        *) continue ;;
    esac
    n=$((n + 1))
    printf '{"jsonrpc":"2.0","id":%d,"result":%s}\n' "$n" "$result"
done
"""
# What a supervisor says first to a runtime, and what it asks often.
_HELLO: Final = b'{"jsonrpc":"2.0","id":1,"method":"router.hello","params":{}}\n'
_QUESTIONS: Final = (
    b'{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"after_seq":0,"replay":true,"on_lag":"disk"}}\n'
    b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{}}\n'
)


def rehearse(parent: str | None = None) -> None:
    """Live some runs to their end: no thread, no process, nothing left on the disk, nothing changed in this process.

    Args:
        parent: See `make_stage`.

    Raises:
        OSError: There is no room for their files.
    """
    stage = make_stage(parent)
    try:
        with _playing():
            trio.run(live_runs, Path(stage))
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def make_stage(parent: str | None = None) -> str:
    """A directory to rehearse in; whoever called removes it.

    Args:
        parent: Where it is made, if there is no better place; None for the system's place for such.

    Raises:
        OSError: There is no room for it.
    """
    return tempfile.mkdtemp(prefix=_PREFIX, dir=_memory() or parent)


def rehearse_start(stage: str) -> None:
    """Live one run up to where it begins, without an agent; its files are left on the stage."""
    with _playing():
        trio.run(_start_run, Path(stage))


@contextlib.contextmanager
def _playing() -> Generator[None, None, None]:
    with _without_threads(), no_failpoints(), _back_in_place():
        yield


def clear_left(parent: str) -> None:
    """Remove what rehearsals that were killed have left, where `make_stage` would put them with this parent."""
    for left in Path(_memory() or parent).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = left.stat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _LEFT_SECONDS:
                shutil.rmtree(left)


def _memory() -> str | None:
    """A place for files that never go to a disk, where the system has one: there they cost least."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None


async def live_runs(directory: Path) -> None:
    """Live runs in folders of this directory, whatever the time allows.

    Raises:
        OSError: There is no room for their files.
    """
    (directory / "agent").write_text(_AGENT)
    with trio.move_on_after(_LIMIT_SECONDS):
        for number in range(_TIMES):
            path = directory / str(number)
            path.mkdir()
            (path / "agent").symlink_to(directory / "agent")
            await _live(RunDir(path), lambda rundir: _ask(rundir, _HELLO + _QUESTIONS))


async def _start_run(directory: Path) -> None:
    """Without a supervisor's hello a run does not begin, though it answers whoever asks."""
    with trio.move_on_after(_LIMIT_SECONDS) as cut:

        async def ask(rundir: RunDir) -> None:
            await _ask(rundir, _QUESTIONS, answers=_QUESTIONS.count(b"\n"))
            cut.cancel()

        await _live(RunDir(directory), ask)


async def _live(rundir: RunDir, visit: Callable[[RunDir], Awaitable[None]]) -> None:
    spec = resolve_spec(RunSpec(backend="acp", agent_command="/bin/sh agent", prompt="-", dir=str(rundir.path)))
    # It parks, as runs under a supervisor do, and ends when nobody has sent a prompt for the shortest time.
    asked = Record(
        runtime_id="-",
        run_id="-",
        spec=spec,
        prompt="-",
        environ=dict(os.environ),
        parks=True,
        parked_timeout=1e-6,
    )
    write_atomic(rundir.record_path, msgspec.json.encode(asked), durable=False)
    take_place(rundir)
    record, lock = take(rundir)
    try:
        async with trio.open_nursery() as nursery:

            def told(_error: AvenorError | None) -> None:
                nursery.start_soon(visit, rundir)

            place = Place(
                rundir=rundir,
                identity=rundir.write_process(),
                sentinel_path=str(rundir.sentinel_path),
                sockets=[Listening(path=str(rundir.socket_path), is_private=True)],
                told=told,
                has_supervisor=True,
            )
            await run_process(record, place)
    finally:
        lock.release()


async def _ask(rundir: RunDir, said: bytes, answers: float = float("inf")) -> None:
    """Connects as a supervisor does, and reads until there were so many answers, or the runtime ends."""
    with dial(rundir.socket_path) as connected:
        connected.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(said)
            while answers > 0 and (data := await stream.receive_some(_READ_BYTES)):
                answers -= data.count(b"\n")


@contextlib.contextmanager
def _back_in_place() -> Generator[None, None, None]:
    """What a runtime takes over from its record is given back: directory and file mode."""
    directory, umask = os.getcwd(), os.umask(0o077)
    try:
        yield
    finally:
        os.chdir(directory)
        os.umask(umask)


@contextlib.contextmanager
def _without_threads() -> Generator[None, None, None]:
    """What goes to a worker thread is done at once: a process that has threads must not be forked."""

    async def run_inline(function: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    threads: Any = trio.to_thread
    original = threads.run_sync
    threads.run_sync = run_inline
    try:
        yield
    finally:
        threads.run_sync = original
