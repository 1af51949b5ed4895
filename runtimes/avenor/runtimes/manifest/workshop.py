"""What a manifest run needs of this machine: git worktrees, a sandbox around each attempt, the roster's programs."""

import contextlib
import os
import secrets
import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Final

import trio

from avenor.host.backend_names import profiles_folder
from avenor.host.gitworktrees import LEFT, PRIVATE, WORKTREES, remove_tree
from avenor.host.identity import process_id
from avenor.host.regular import read_regular
from avenor.host.tree import PART, TREE, tree_tag
from avenor.protocol.errors import ConfigError, RuntimeFailure
from avenor.protocol.manifest.binding import BoundContext, BoundMember, BoundReceipt
from avenor.protocol.spec import Record
from avenor.runtimes.backends.profiles import Profile, StatePlace
from avenor.runtimes.backends.registry import find_backend
from avenor.runtimes.environment import RUNTIME_ID, SOCKET
from avenor.runtimes.git import GitFailed
from avenor.runtimes.manifest.candidate import Changes, check
from avenor.runtimes.manifest.commands import Output, run_command
from avenor.runtimes.manifest.private import make_private
from avenor.runtimes.manifest.sandbox import HIDDEN, Cage, agent_places, probe_sandbox, sandbox_prefix
from avenor.runtimes.manifest.services import Bench, Change, ReceiptRun
from avenor.runtimes.manifest.worktrees import Worktrees
from avenor.runtimes.manifest.writable import frozen_paths, writable_paths

_CONTEXT_BYTES: Final = 64 * 1024
_CONTEXT_SECONDS: Final = 60.0


class GitBench(Bench, frozen=True, kw_only=True):
    """A bench in a worktree.

    Attributes:
        top: The root of the worktree.
    """

    top: str


class WorktreeFailed(RuntimeFailure):
    """A worktree could not be made, read or kept; says what git said."""

    reason = "worktree_failed"


class GitWorkshop:
    """See `services.Workshop`; made by `open_workshop`.

    Args:
        worktrees: The run's.
        record: What was asked for.
        scratch: The run's directory.
        environ: What agents and checks start from.
        is_sandboxed: Whether they are put into a sandbox.
    """

    def __init__(
        self, worktrees: Worktrees, record: Record, scratch: str, environ: Mapping[str, str], *, is_sandboxed: bool
    ) -> None:
        self._trees = worktrees
        self._scratch = scratch
        self._environ = {name: value for name, value in environ.items() if name not in (SOCKET, RUNTIME_ID)}
        self._profiles = record.profiles_folder or profiles_folder(environ)
        self._masked = _masked(record, scratch)
        self._is_sandboxed = is_sandboxed

    @property
    def is_sandboxed(self) -> bool:
        """See `Workshop`, as all that follows."""
        return self._is_sandboxed

    async def resolve(self, revision: str) -> str:
        with _translated("resolve the revision"):
            return await self._trees.resolve(revision)

    async def check_branches(self, branches: str) -> None:
        with _translated("look at the branches"):
            await self._trees.check_branches(branches)

    async def open(self, attempt_id: str, member: BoundMember, revision: str) -> GitBench:
        with _translated(f"make the worktree of {attempt_id}"):
            await self._trees.add(attempt_id, revision)
        profile = find_backend(member.profile.backend, self._profiles).profile
        env = {**self._environ, **member.profile.env}
        asking = {} if profile is None else {name: text for name, text in profile.env_asking.items() if name not in env}
        prefix = await self._cage(attempt_id, member.writes, env, profile, _files_of(member))
        directory, top = self._trees.cwd(attempt_id), self._trees.path(attempt_id)
        return GitBench(directory=directory, top=top, prefix=prefix, environ=asking)

    async def changes(self, attempt_id: str, writes: Sequence[str]) -> Change:
        found = await self._diff(attempt_id)
        if found is None:
            return Change()
        outside = [f"{each.path}: {each.reason}" for each in check(found, writes)]
        return Change(files=[each.path for each in found.files], outside=outside, digest=found.digest)

    async def commit(self, attempt_id: str, branch: str, message: str) -> str:
        with _translated(f"commit what {attempt_id} has changed"):
            return await self._trees.commit(attempt_id, branch, message)

    async def keep(self, attempt_id: str, branch: str) -> str:
        if not self._trees.has(attempt_id):
            return ""
        with _translated(f"keep what {attempt_id} has changed"):
            return await self._trees.keep_partial(attempt_id, branch)

    async def leave(self, attempt_id: str) -> str:
        if not self._trees.has(attempt_id):
            return ""
        with _translated(f"keep the files of {attempt_id}"):
            return await self._trees.leave(attempt_id, os.path.join(self._scratch, LEFT))

    async def close(self, attempt_id: str) -> None:
        with _translated(f"remove the worktree of {attempt_id}"):
            await self._trees.remove(attempt_id)
            await trio.to_thread.run_sync(remove_tree, self._private(attempt_id))

    async def forget_all(self) -> None:
        with _translated("remove the worktrees"):
            await self._trees.prune()
            await trio.to_thread.run_sync(remove_tree, os.path.join(self._scratch, PRIVATE))

    async def move(self, branch: str, old: str, new: str) -> None:
        with _translated(f"move {branch}"):
            await self._trees.move(branch, old, new)

    async def check(self, receipt: BoundReceipt, revision: str, number: int) -> ReceiptRun:
        place = f"receipt-{number}"
        try:
            with _translated(f"make a worktree for the check {receipt.name}"):
                await self._trees.add(place, revision)
            prefix = await self._cage(place, ["**"], self._environ, None, [])
            words = [*prefix, *receipt.command]
            done = await self._run(words, self._trees.cwd(place), receipt.timeout)
        finally:
            with trio.CancelScope(shield=True):
                await self.close(place)
        note = "" if done.status is not None else f"it took longer than {receipt.timeout:g} s\n"
        return ReceiptRun(exit_code=done.status, output=f"{note}{done.last}", digest=done.digest)

    async def files_at(self, revision: str) -> str:
        with _translated(f"list the files of {revision}"):
            return await self._trees.files_at(revision)

    async def diff(self, base: str, revision: str, path: str = "") -> str:
        with _translated(f"compare {base} with {revision}"):
            return await self._trees.show_diff(base, revision, path)

    async def source(self, context: BoundContext, directory: str) -> str:
        if context.kind == "text":
            return context.value
        if context.kind == "file":
            with _translated(f"read the context {context.name}"):
                return await trio.to_thread.run_sync(_read, context.value)
        prefix = await self._cage(self._attempt_of(directory), [], self._environ, None, [])
        done = await self._run([*prefix, *context.command], directory, _CONTEXT_SECONDS)
        if done.status != 0:
            what = "took too long" if done.status is None else f"has ended with status {done.status}"
            raise ConfigError(
                f"context {context.name}: {shlex.join(context.command)} {what}: {done.last[-500:]}",
                data={"field": "context", "value": context.name},
            )
        return done.first

    # ---- its own

    async def _diff(self, attempt_id: str) -> Changes | None:
        """What was changed; None where there is no worktree."""
        if not self._trees.has(attempt_id):
            return None
        with _translated(f"see what {attempt_id} has changed"):
            return await self._trees.diff(attempt_id)

    def _private(self, attempt_id: str) -> str:
        """Where copies of the agent's state are, its login among them: nobody needs them when the attempt is over."""
        return os.path.join(self._scratch, PRIVATE, attempt_id)

    def _attempt_of(self, directory: str) -> str:
        """Whose working directory it is."""
        top = directory.removesuffix(f"/{self._trees.prefix}") if self._trees.prefix else directory
        return os.path.basename(top)

    async def _cage(
        self,
        attempt_id: str,
        writes: Sequence[str],
        env: Mapping[str, str],
        profile: Profile | None,
        files: Sequence[str],
    ) -> list[str]:
        """The words that put a program of an attempt into its sandbox; none without one."""
        if not self._is_sandboxed:
            return []
        places = [] if profile is None else profile.state_places(env)
        with _translated(f"make the sandbox of {attempt_id}"):
            return await trio.to_thread.run_sync(self._make_cage, attempt_id, writes, env, places, files)

    def _make_cage(
        self,
        attempt_id: str,
        writes: Sequence[str],
        env: Mapping[str, str],
        places: Sequence[StatePlace],
        files: Sequence[str],
    ) -> list[str]:
        top = self._trees.path(attempt_id)
        private = self._private(attempt_id)
        make_private(private, places)
        cage = Cage(
            worktree=top,
            cwd=self._trees.cwd(attempt_id),
            writable=writable_paths(top, writes),
            frozen=frozen_paths(top, writes),
            private=private,
            home_state=[place.path for place in places],
            masked=self._masked,
            readable=[*self._trees.readable, *agent_places(env), *files],
        )
        return sandbox_prefix(cage)

    async def _run(self, words: Sequence[str], cwd: str, seconds: float) -> Output:
        # The run's mark, for the sweep after a crash, and one of its own, to tell it from what members run.
        own = process_id(os.getpid())
        whole = (TREE, "") if own is None else tree_tag(own.pid, own.start_ticks)
        env, tag = {**self._environ, whole[0]: whole[1]}, (PART, f"{whole[1]}-{secrets.token_hex(4)}")
        try:
            return await run_command(words, cwd=cwd, env=env, tag=tag, seconds=seconds, scratch=self._scratch)
        except OSError as error:
            raise WorktreeFailed(f"cannot start {words[0]}: {error.strerror}") from error


async def open_workshop(record: Record, scratch: str, environ: Mapping[str, str]) -> GitWorkshop:
    """The workshop of a run.

    Args:
        record: What was asked for.
        scratch: The run's directory.
        environ: What agents start from.

    Raises:
        ConfigError: There is no sandbox, and the run was not told to do without; or no repository.
    """
    if not record.spec.unsandboxed and (fault := probe_sandbox()) is not None:
        raise ConfigError(
            f"authority: sandbox unavailable: {fault.reason}; {fault.remedy}, or run with --unsandboxed",
            data={"field": "unsandboxed", "reason": fault.reason},
        )
    with _translated("open the repository"):
        worktrees = await Worktrees.open(record.spec.dir, os.path.join(scratch, WORKTREES), environ)
        os.makedirs(os.path.join(scratch, LEFT), mode=0o700, exist_ok=True)  # while there is room
    return GitWorkshop(worktrees, record, scratch, environ, is_sandboxed=not record.spec.unsandboxed)


@contextlib.contextmanager
def _translated(what: str) -> Generator[None]:
    try:
        yield
    except GitFailed as error:
        raise WorktreeFailed(f"cannot {what}: {error}") from error
    except OSError as error:
        raise WorktreeFailed(f"cannot {what}: {error.filename or ''} {error.strerror}") from error


def _masked(record: Record, scratch: str) -> list[str]:
    """The run's directory, and the one of all runs, with the sockets in them; and the supervisor's socket."""
    runs = os.path.dirname(os.path.abspath(scratch))
    is_general = runs in (*HIDDEN, "/") or f"{os.path.abspath(record.spec.dir)}/".startswith(f"{runs}/")
    places = [os.path.abspath(scratch), *([] if is_general else [runs])]
    if record.supervisor_socket is not None:
        places.append(os.path.abspath(record.supervisor_socket))
    return places


def _files_of(member: BoundMember) -> list[str]:
    """What the agent's own program line names, wherever that is."""
    profile = member.profile
    try:
        words = shlex.split(profile.agent_command or "")
    except ValueError:  # told when the session is opened
        words = []
    named = [*words, *([] if profile.script is None else [profile.script])]
    return [word for word in named if os.path.isabs(word)]


def _read(path: str) -> str:
    return read_regular(path, limit_bytes=_CONTEXT_BYTES).decode(errors="replace")
