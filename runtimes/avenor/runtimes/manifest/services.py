"""What a manifest run needs of the machine around it, so that tests can give it something else."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from avenor.protocol.manifest.binding import BoundContext, BoundMember, BoundReceipt
from avenor.protocol.manifest.roster import Endpoint
from avenor.runtimes.manifest.desk import Credentials
from avenor.runtimes.manifest.gateway import Meter
from avenor.runtimes.manifest.mcp_http import ToolBox


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Where one attempt works.

    Attributes:
        directory: Its working folder, absolute.
        prefix: Words before its agent's program line: the sandbox's; empty without one.
        environ: Variables that its agent needs for that, over its other ones.
    """

    directory: str
    prefix: Sequence[str] = ()
    environ: Mapping[str, str] = {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer has done to its worktree.

    Attributes:
        files: What differs from the pinned revision, relative to `--dir`.
        outside: Those of them that the writer may not write.
        digest: Of the whole difference, as `sha256:…`.
    """

    files: list[str] = []
    outside: list[str] = []
    digest: str = ""


class ReceiptRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has come to; no exit code where it took too long or could not start."""

    exit_code: int | None
    output: str
    digest: str


class Workshop(Protocol):
    """Worktrees, sandboxes, and git."""

    @property
    def is_sandboxed(self) -> bool:
        """Whether agents and checks run in a sandbox."""
        ...

    async def resolve(self, revision: str) -> str:
        """The commit of a revision.

        Raises:
            ConfigError: There is no repository, or no such revision in it.
        """
        ...

    async def check_branches(self, branches: str) -> None:
        """Makes sure that the run can have branches of its own.

        Args:
            branches: The beginning of their names.

        Raises:
            ConfigError: No branch can be called so, or there are some.
        """
        ...

    async def open(self, attempt_id: str, member: BoundMember, revision: str) -> Bench:
        """A worktree of an attempt, cut from a commit.

        Raises:
            AvenorError: It could not be made.
        """
        ...

    async def changes(self, attempt_id: str, writes: Sequence[str]) -> Change:
        """What was changed in a worktree."""
        ...

    async def commit(self, attempt_id: str, branch: str, message: str) -> str:
        """Commits what was changed, and sets the branch to it; returns the commit.

        Raises:
            AvenorError: It could not be done. Others' commits stay on the branch.
        """
        ...

    async def keep(self, attempt_id: str, branch: str) -> str:
        """Keeps what was changed under a ref, which is returned; empty if nothing was."""
        ...

    async def leave(self, attempt_id: str) -> str:
        """Moves the files of a worktree to where they stay when the run is over; returns that, empty without any."""
        ...

    async def close(self, attempt_id: str) -> None:
        """Removes a worktree. Harmless twice, and where there is none."""
        ...

    async def forget_all(self) -> None:
        """Removes what is left of all worktrees of the run."""
        ...

    async def move(self, branch: str, old: str, new: str) -> None:
        """Sets a branch to a commit, if it is where it was left: at `old`, or, where that is empty, nowhere."""
        ...

    async def check(self, receipt: BoundReceipt, revision: str, number: int) -> ReceiptRun:
        """Runs a check in a fresh worktree of a commit; `number` makes its name unique."""
        ...

    async def files_at(self, revision: str) -> str:
        """The paths of all files at a commit, one a line, bounded."""
        ...

    async def diff(self, base: str, revision: str, path: str = "") -> str:
        """The difference between two commits as git shows it, bounded."""
        ...

    async def source(self, context: BoundContext, directory: str) -> str:
        """What a context's file or command holds now, bounded; a command runs in this folder."""
        ...


class DeskLike(Protocol):
    """What the run needs of its desk."""

    def admit(self, attempt_id: str, endpoint: Endpoint | None) -> Credentials:
        """Gives an attempt its credentials."""
        ...

    def revoke(self, attempt_id: str) -> None:
        """Makes them worth nothing."""
        ...


class OpenDesk(Protocol):
    """Opens the desk of a run."""

    def __call__(self, meter: Meter, toolbox: ToolBox) -> AbstractAsyncContextManager[DeskLike]: ...
