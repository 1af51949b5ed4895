"""Beginning a run that nobody asked for, so that what is slow the first time is not slow in every fork.

A function's first calls rewrite its code, and first lookups fill the interpreter's caches: memory that each fork would
have to copy and fill for itself.
"""

import contextlib
import os
import tempfile
from typing import Final

import trio

from avenor.host.identity import process_id
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.runtimes.process import Listening, Place, run_process

# Code is rewritten for good when it has run eight times.
_TIMES: Final = 8


def rehearse(parent: str | None = None) -> None:
    """Begin a run, and drop it when its socket answers: no agent, no thread, nothing left on the disk.

    Args:
        parent: Where its directory is made; None for the system's place for such.

    Raises:
        OSError: There is no room for its files.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=parent) as directory:
        for turn in range(_TIMES):
            path = os.path.join(directory, str(turn))
            os.mkdir(path)
            trio.run(_begin, RunDir(path))


async def _begin(rundir: RunDir) -> None:
    with trio.CancelScope() as scope:

        def told(_error: AvenorError | None) -> None:
            scope.cancel()

        identity = process_id(os.getpid())
        assert identity is not None  # we run, so we can be found
        spec = resolve_spec(RunSpec(backend="acp", agent_command="true", prompt="-", dir=str(rundir.path)))
        place = Place(
            rundir=rundir,
            identity=identity,
            sentinel_path=str(rundir.sentinel_path),
            sockets=[Listening(path=str(rundir.socket_path), is_private=True)],
            told=told,
        )
        with contextlib.suppress(AvenorError):
            await run_process(Record(runtime_id="-", run_id="-", spec=spec, prompt="-"), place)
