"""Runs a program line of the roster to its end: a check of a candidate, or the source of a context. Bounded in time and
output, and everything that it started is ended."""

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, STDOUT
from typing import IO, Final

import msgspec
import trio

from avenor.host.children import CHILDREN
from avenor.host.identity import process_id
from avenor.host.ladder import Graces, stop_tree

OUTPUT_BYTES: Final = 32 * 1024
_READ_BYTES: Final = 1 << 20
# The program has had its time; what it started had as much.
_GRACES: Final = Graces(stdin_seconds=0.0, term_seconds=0.0, kill_seconds=5.0)
_END_SECONDS: Final = 10.0  # Above the graces: a shield must end.


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a program.

    Attributes:
        status: Its exit status, negative for a signal; None if it took too long.
        first: The beginning of what it wrote to both outputs, `OUTPUT_BYTES` at most. Likewise `last`.
        digest: Of all that it wrote: `sha256:…`.
    """

    status: int | None
    first: str
    last: str
    digest: str


async def run_command(
    words: Sequence[str], *, cwd: str, env: Mapping[str, str], tag: tuple[str, str], seconds: float, scratch: str
) -> Output:
    """Runs a program to its end, or until its time is over.

    Args:
        words: The program line, the sandbox's words included.
        cwd: Where.
        env: Its whole environment; the tag is added.
        tag: Name and value of the variable by which what it starts is found again.
        seconds: Its time.
        scratch: Where its output is kept meanwhile.

    Raises:
        OSError: It cannot be started.

    Cancellation: Ends it, with all that it started.
    """
    # A file and no pipe: nothing that outlives the program can make us wait.
    with tempfile.TemporaryFile(dir=scratch) as output:
        process = await CHILDREN.start(
            list(words),
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            cwd=cwd,
            env={**env, tag[0]: tag[1]},
            start_new_session=True,
        )
        identity = process_id(process.pid)
        status: int | None = None
        try:
            with trio.move_on_after(seconds):
                status = await process.wait()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
                roots = [] if identity is None else [identity]
                await stop_tree(roots=roots, tag=tag, close_stdin=None, graces=_GRACES, own_children_of=None)
                await process.wait()
        return await trio.to_thread.run_sync(_read, output, status)


def _read(output: IO[bytes], status: int | None) -> Output:
    output.seek(0)
    digest = hashlib.sha256()
    while piece := output.read(_READ_BYTES):
        digest.update(piece)
    size = output.tell()
    output.seek(0)
    first = output.read(OUTPUT_BYTES)
    output.seek(max(0, size - OUTPUT_BYTES), os.SEEK_SET)
    last = output.read(OUTPUT_BYTES)
    return Output(
        status=status,
        first=first.decode(errors="replace"),
        last=last.decode(errors="replace"),
        digest=f"sha256:{digest.hexdigest()}",
    )
