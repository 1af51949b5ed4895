"""Starts programs in a real sandbox, for the tests that try to get out of it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.runtimes.manifest.private import make_private
from avenor.runtimes.manifest.sandbox import Cage, agent_places, probe_sandbox, sandbox_prefix

SECONDS = 60.0


def needs_sandbox() -> pytest.MarkDecorator:
    """Skips where there is no bubblewrap; with AVENOR_REQUIRE_SANDBOX=1 the tests run, and fail, all the same."""
    fault = probe_sandbox()
    is_required = os.environ.get("AVENOR_REQUIRE_SANDBOX") == "1"
    return pytest.mark.skipif(fault is not None and not is_required, reason=fault.reason if fault else "")


class Place:
    """A worktree with something to write and much to leave alone, and a cage around it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worktree = folder / "run" / "worktrees" / "a.1"
        self.outside = folder / "outside"
        self.home = folder / "home"
        self.other = folder / "run" / "worktrees" / "b.1"
        for each in (self.worktree / "src" / "retry", self.outside, self.home, self.other):
            each.mkdir(parents=True)
        for path in (self.worktree / "src/retry/a.py", self.worktree / "src/b.py", self.worktree / ".git"):
            path.write_text("as it was\n", encoding="utf-8")
        for path in (self.outside / "secret", self.other / "secret", self.folder / "run" / "log"):
            path.write_text("as it was\n", encoding="utf-8")

    def cage(self, *writable: str, **changes: Any) -> Cage:
        """The cage, with these paths of the worktree writable. The folder lies in `/tmp`, so it is shown again."""
        cage = Cage(
            worktree=str(self.worktree),
            private=str(self.folder / "run" / "private"),
            writable=[str(self.worktree / path) for path in writable],
            masked=[str(self.folder / "run")],
            readable=[str(self.folder), *agent_places(self.env)],
        )
        return msgspec.structs.replace(cage, **changes)

    @property
    def env(self) -> dict[str, str]:
        """A program's environment."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "OUTSIDE": str(self.outside)}

    async def run(self, cage: Cage, *command: str) -> "Ran":
        """Runs a program in the cage to its end."""
        make_private(cage.private, [])
        with trio.fail_after(SECONDS):
            done = await trio.run_process(
                [*sandbox_prefix(cage), *command], capture_stdout=True, capture_stderr=True, check=False, env=self.env
            )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def shell(self, cage: Cage, line: str) -> "Ran":
        """Runs a shell line."""
        return await self.run(cage, "sh", "-c", line)

    async def python(self, cage: Cage, source: str, *arguments: str) -> "Ran":
        """Runs some Python."""
        return await self.run(cage, sys.executable, "-c", source, *arguments)

    def untouched(self) -> bool:
        """Whether everything outside of the writable paths is as it was."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        kept = [path for path in files if "private" not in path.parts]
        return all(path.read_text(encoding="utf-8") == "as it was\n" for path in kept) and len(kept) == 6


class Ran(msgspec.Struct, frozen=True):
    """What came of a program."""

    status: int
    stdout: str
    stderr: str

    @property
    def words(self) -> Sequence[str]:
        """What it printed."""
        return self.stdout.split()
