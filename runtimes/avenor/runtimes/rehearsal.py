"""Living runs that nobody asked for, so that what is slow the first time is not slow in every fork.

A function's first calls rewrite its code, and first lookups fill the interpreter's caches: memory that each fork would
have to copy and fill for itself.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator
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
_SAID: Final = (
    b'{"jsonrpc":"2.0","id":1,"method":"router.hello","params":{}}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"subscribe","params":{"after_seq":0,"replay":true,"on_lag":"disk"}}\n'
    b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{}}\n'
)


def rehearse(parent: str | None = None) -> None:
    """Live some runs to their end: no thread, no process, nothing left on the disk, nothing changed in this process.

    Args:
        parent: Where their directory is made; None for the system's place for such.

    Raises:
        OSError: There is no room for their files.
    """
    made = tempfile.TemporaryDirectory(prefix="rehearsal-", dir=parent)
    with made as directory, _without_threads(), no_failpoints(), _back_in_place():
        trio.run(live_runs, Path(directory))


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
            await _live(RunDir(path))


async def _live(rundir: RunDir) -> None:
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
                nursery.start_soon(_ask, rundir)

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


async def _ask(rundir: RunDir) -> None:
    """Connects as a supervisor does, and reads until the runtime ends."""
    with dial(rundir.socket_path) as connected:
        connected.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(_SAID)
            while await stream.receive_some(_READ_BYTES):
                pass


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
