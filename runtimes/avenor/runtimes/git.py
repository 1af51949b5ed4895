"""Starts git so that neither the caller's environment nor the user's configuration changes what it does or says.

What git is asked is the caller's.
"""

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL
from typing import IO, Final

import trio

from avenor.host.children import CHILDREN

LIMIT_BYTES: Final = 65536
_LAST_LINE_BYTES: Final = 64  # kept free for the line that says how much is missing
_LISTING_BYTES: Final = 1 << 26  # some half million paths; held in memory
_READ_BYTES: Final = 1 << 20
_REAP_SECONDS: Final = 2.0  # after SIGKILL; only uninterruptible sleep takes longer

# What the caller says about where git, its configuration and repositories are. All other GIT_* variables change what
# git does or which repository it takes (GIT_DIR is set wherever a hook started us).
_KEPT_VARIABLES: Final = re.compile(
    r"GIT_(EXEC_PATH|CEILING_DIRECTORIES|DISCOVERY_ACROSS_FILESYSTEM"
    r"|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+))"
)
_OUR_VARIABLES: Final = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    # A partial clone would go to the network for what it lacks; the second is for git before 2.44.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
_SETTINGS: Final = {
    "core.hooksPath": os.devnull,  # post-index-change also runs for an index of ours
    "core.fsmonitor": "false",
    "core.splitIndex": "false",  # its shared half would be written into the repository
    "core.quotePath": "false",
    "core.fsync": "none",  # nothing of ours has to outlive a crash
    "core.bigFileThreshold": "512m",  # above it a diff counts no lines
    "diff.renameLimit": "1000",
    "diff.statGraphWidth": "0",
    "diff.statNameWidth": "0",
}


class GitFailed(Exception):
    """Git ended with an error, or answered with something else than expected; says what."""


class Git:
    """Starts git in one place with one environment.

    Args:
        cwd: Where it runs.
        env: Its whole environment.
        scratch: Where temporary files go.
    """

    def __init__(self, cwd: str, env: Mapping[str, str], scratch: str) -> None:
        self.cwd = cwd
        self.env = env
        self.scratch = scratch

    def varied(self, more: Mapping[str, str]) -> "Git":
        """The same with more variables."""
        return Git(self.cwd, {**self.env, **more}, self.scratch)

    async def ask(self, *arguments: str, none_status: int = 0) -> bytes:
        """What git answers, without the line break at its end; b"" if it exits with `none_status`.

        Raises:
            GitFailed: It failed, or said too much.
            OSError: It cannot be started.
        """
        with self._temporary() as output:
            await self.run(arguments, output, none_status=none_status)
            answer = output.read(_LISTING_BYTES)
            if output.read(1):
                raise GitFailed(f"git {arguments[0]}: more than {_LISTING_BYTES} bytes")
        return answer.removesuffix(b"\n")

    async def tell(self, *arguments: str, given: bytes) -> None:
        """Starts git with something to read, and drops what it says. Raises what `ask` does."""
        with self._temporary() as stdin, self._temporary() as output:
            stdin.write(given)
            stdin.seek(0)
            await self.run(arguments, output, stdin=stdin)

    async def show(self, *arguments: str, end: bytes) -> str:
        """What git says in lines that end in `end`, as `excerpt` gives it. Raises what `ask` does."""
        with self._temporary() as output:
            await self.run(arguments, output)
            return excerpt(output, end)

    async def run(
        self, arguments: Sequence[str], output: IO[bytes], *, stdin: IO[bytes] | None = None, none_status: int = 0
    ) -> None:
        """Runs git to its end; the output is left at its beginning. Raises what `ask` does.

        Cancellation: kills git with its group.
        """
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        # Files and no pipes: nobody has to read, and nothing that outlives git can make us wait.
        with self._temporary() as errors:
            process = await CHILDREN.start(
                ["git", "--no-pager", *settings, *arguments],
                stdin=DEVNULL if stdin is None else stdin,
                stdout=output,
                stderr=errors,
                cwd=self.cwd,
                env=self.env,
                start_new_session=True,
            )
            try:
                status = await process.wait()
            finally:
                await _end(process)
            if status not in (0, none_status):
                errors.seek(0)
                first = errors.read(_LAST_LINE_BYTES * 4).partition(b"\n")[0].decode(errors="replace")
                raise GitFailed(f"git {arguments[0]}: exit status {status}: {first}")
        output.seek(0)

    def _temporary(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self.scratch)


def excerpt(output: IO[bytes], end: bytes) -> str:
    """Text in lines, at most `LIMIT_BYTES` of it, cut between two; then the last line says how many are missing.

    Args:
        output: Something to read, from where it stands.
        end: One byte that ends each of its lines.
    """
    head = output.read(LIMIT_BYTES)
    total = head.count(end)
    while more := output.read(_READ_BYTES):
        total += more.count(end)
    shown: list[str] = []
    free = LIMIT_BYTES - _LAST_LINE_BYTES
    for raw in head.split(end)[:-1]:
        line = raw.decode(errors="replace").replace("\n", "\\n").replace("\r", "\\r")
        free -= len(line.encode()) + 1
        if free < 0:
            break
        shown.append(line)
    if len(shown) < total:
        shown.append(f"… and {total - len(shown)} more")
    return "\n".join(shown)


def git_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What git is started with where this is the caller's environment."""
    kept = {
        name: value for name, value in environ.items() if not name.startswith("GIT_") or _KEPT_VARIABLES.fullmatch(name)
    }
    return {**kept, **_OUR_VARIABLES}


async def _end(process: trio.Process) -> None:
    """Kills what still runs, with its group, and reaps it. Shielded and bounded."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REAP_SECONDS):
            await process.wait()
