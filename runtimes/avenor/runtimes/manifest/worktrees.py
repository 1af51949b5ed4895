"""The worktrees of a run: one for each attempt, at its pinned revision, and what is made of the changes in it.

They are git worktrees of the user's repository, so that git works inside as everybody expects. But their files are
written, compared and committed through a repository of the run's own (`proof.py`), so the files are the bytes that git
has stored: no filter runs (a file in Git LFS is its pointer), no line ending is changed, submodules are empty. The
user's index, checkout, branches and stash are never touched; all that appears in the repository are its entries for
the worktrees, and the refs that `commit` and `keep_partial` set.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

import msgspec
import trio

from avenor.host.atomic import write_atomic
from avenor.host.gitworktrees import PROOF, detach, entries, remove_tree, worktree_of
from avenor.host.regular import read_regular
from avenor.protocol.errors import ConfigError, LocalProtocolError
from avenor.runtimes.git import Git, GitFailed, git_environment
from avenor.runtimes.manifest.candidate import Changes, Pin, Snapshot, new_objects
from avenor.runtimes.manifest.proof import Proof

_ATTEMPT_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# In the entry that the user's repository has of a worktree. git itself leaves a locked one alone, whatever it prunes.
_LOCK: Final = "locked"
_LOCK_BYTES: Final = 64 * 1024
_OURS: Final = "avenor: the worktree of a run; `git worktree remove -f -f` removes it if the run has gone"
_AUTHOR: Final = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "avenor"), ("EMAIL", "avenor@localhost"))
}
# What becomes of a run outlives a crash, other than all else that we ask git for.
_DURABLE: Final = ("-c", "core.fsync=committed,reference")
_DIFF: Final = ("-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames", "--diff-algorithm=myers")

_pin = msgspec.json.Decoder(Pin)


class Worktrees:
    """All worktrees of one run; made by `open`. Methods that ask git raise `GitFailed`, and `OSError`.

    Attributes:
        top: The root of the user's checkout.
        prefix: Where below it the run's directory is, as `src/app`; empty at the root.
    """

    def __init__(self, user: Git, proof: Proof, folder: Path, *, top: str, prefix: str, common: str) -> None:
        self.top = top
        self.prefix = prefix
        self._user = user
        self._proof = proof
        self._folder = folder
        self._common = common
        self._changes: dict[str, Changes] = {}
        self._adding = trio.Lock()

    @classmethod
    async def open(cls, directory: str, folder: str, environ: Mapping[str, str]) -> Self:
        """The worktrees of a run, also of one that goes on after its process was lost.

        Args:
            directory: Where the run works: in a checkout of a git repository.
            folder: Where the worktrees go; the run's own, in no repository. It is made.
            environ: The environment that git is started from.

        Raises:
            ConfigError: There is no repository that a manifest could work with.
        """
        root, start = await trio.to_thread.run_sync(_make_room, folder, directory)
        scratch = str(root / PROOF / "scratch")
        env = {**git_environment(environ), "GIT_NO_REPLACE_OBJECTS": "1"}
        top, common, prefix, object_format = await _find(Git(start, env, scratch), directory)
        proof = Proof(root / PROOF, os.path.join(common, "objects"), environ, object_format)
        await trio.to_thread.run_sync(proof.make)
        return cls(Git(top, env, scratch), proof, root, top=top, prefix=prefix, common=common)

    @property
    def readable(self) -> list[str]:
        """What git needs to see besides a worktree when it runs inside."""
        return [self._common]

    def path(self, attempt_id: str) -> str:
        """The root of an attempt's worktree."""
        if not _ATTEMPT_ID.fullmatch(attempt_id):
            raise LocalProtocolError(f"attempt id {attempt_id!r} is no name of a directory")
        return str(self._folder / attempt_id)

    def cwd(self, attempt_id: str) -> str:
        """What stands in for the run's directory there."""
        return os.path.join(self.path(attempt_id), self.prefix) if self.prefix else self.path(attempt_id)

    def has(self, attempt_id: str) -> bool:
        """Whether there is a worktree of the attempt, also one that an earlier process of the run has made."""
        return (self._records(attempt_id) / "pin").is_file() and os.path.isdir(self.path(attempt_id))

    async def resolve(self, revision: str) -> str:
        """The commit that a revision names in the user's repository.

        Raises:
            ConfigError: There is none.
        """
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            answer = (await self._user.ask(*words, none_status=1)).decode("ascii")
        except GitFailed:
            answer = ""
        if not _OBJECT_ID.fullmatch(answer):
            raise ConfigError(
                f"run.source_revision: git:{revision} is no commit of the repository {self.top}; "
                "commit first, or name another revision",
                data={"field": "run.source_revision", "value": f"git:{revision}"},
            )
        return answer

    async def check_branches(self, branches: str) -> None:
        """Makes sure that a run can have branches of its own in the user's repository.

        Args:
            branches: The beginning of their names, `avenor/RUN_ID`.

        Raises:
            ConfigError: No branch can be called so, or there are some, of another run.
        """
        data: dict[str, object] = {"field": "run_id", "value": branches}
        try:
            await self._user.ask("check-ref-format", f"refs/heads/{branches}/candidate")
        except GitFailed as error:
            raise ConfigError(f"run_id: git has no branches {branches}/…; take another run id", data=data) from error
        listed = await self._user.ask("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/avenor")
        for branch in os.fsdecode(listed).splitlines():
            if f"{branch}/".startswith(f"{branches}/") or f"{branches}/".startswith(f"{branch}/"):
                raise ConfigError(
                    f"run_id: the run's branches are {branches}/…, and there is a branch {branch}; "
                    "rename or delete it, or take another run id",
                    data=data,
                )

    async def add(self, attempt_id: str, revision: str) -> str:
        """Makes the worktree of an attempt, and returns its root; what a killed process has left of it goes first.

        Args:
            attempt_id: Whose.
            revision: The commit, as `resolve` gives it.

        Raises:
            ConfigError: The run's directory is not there at that revision.

        Cancellation: What was made so far is removed by `remove`, `prune` or the next `add`.
        """
        path = self.path(attempt_id)
        async with self._adding:  # git's own entries are made one after the other
            await self.remove(attempt_id)
            await self._user.ask("worktree", "add", "--quiet", "--detach", "--no-checkout", path, revision)
        pin = await self._register(attempt_id, path, revision)
        await self._check_out(attempt_id, path, pin)
        if not await trio.Path(self.cwd(attempt_id)).is_dir():
            raise ConfigError(
                f"dir: {self.prefix} is not there at revision {revision}; use a directory that is",
                data={"field": "dir"},
            )
        return path

    async def diff(self, attempt_id: str) -> Changes:
        """What an attempt has changed, once nothing of it runs any more."""
        pin = self._read_pin(attempt_id)
        snapshot = Snapshot(self._proof, self.path(attempt_id), self._records(attempt_id), pin)
        changes = self._changes[attempt_id] = await snapshot.take()
        return changes

    async def commit(self, attempt_id: str, branch: str, message: str) -> str:
        """Commits what the last `diff` of the attempt has found, as it was then, on top of its pinned revision.

        Whether it may be taken is for `candidate.check` to say, before.

        Args:
            attempt_id: Whose.
            branch: The branch of the user's repository, `avenor/…`, that is set to the commit. It is made, or is where
                this run has set it.
            message: The commit's.

        Returns:
            The commit.

        Raises:
            LocalProtocolError: There was no `diff`, or it found what cannot be committed.
        """
        changes = self._changes.get(attempt_id)
        if changes is None or changes.problems:
            raise LocalProtocolError(f"attempt {attempt_id} has nothing that can be committed: take the diff first")
        made = (
            await self._proof.git()
            .varied(_AUTHOR)
            .ask("commit-tree", changes.tree, "-p", changes.pin.commit, "-m", message)
        )
        commit = made.decode("ascii")
        await self._hand_over(changes, commit)
        await self._set(f"refs/heads/{branch}", commit)
        return commit

    async def keep_partial(self, attempt_id: str, branch: str) -> str:
        """Keeps what an attempt has left, for people to look at; returns the ref, empty if there is nothing to keep."""
        changes = await self.diff(attempt_id)
        if not changes.files:
            return ""
        await self.commit(attempt_id, branch, f"What attempt {attempt_id} had changed when it was lost")
        return f"refs/heads/{branch}"

    async def leave(self, attempt_id: str, folder: str) -> str:
        """Moves the files of a worktree away, as plain ones, and removes all else of it; returns where they are."""
        return await trio.to_thread.run_sync(self._leave, attempt_id, folder)

    async def files_at(self, revision: str) -> str:
        """The paths of all files at a commit, one a line, cut at `git.LIMIT_BYTES`."""
        return await self._proof.git().show("ls-tree", "-r", "-z", "--name-only", "--full-tree", revision, end=b"\0")

    async def show_diff(self, base: str, revision: str, path: str = "") -> str:
        """The difference between two commits, of all files or of those at or below a path; cut as `files_at`."""
        await self._borrow(base, revision)
        where = [path] if path else []
        return await self._proof.git().show("diff-tree", *_DIFF, base, revision, "--", *where, end=b"\n")

    async def move(self, branch: str, old: str, new: str) -> None:
        """Sets a branch of the user's repository to a commit, if it is at `old`, or is not there and `old` is empty."""
        ref = f"refs/heads/{branch}"
        now = await self._user.ask("rev-parse", "--verify", "--quiet", ref, none_status=1)
        if now.decode("ascii") == old:
            await self._user.ask(*_DURABLE, "update-ref", "-m", "avenor", ref, new, old or "0" * len(new))

    async def remove(self, attempt_id: str) -> None:
        """Removes a worktree with all that is known of it; harmless where there is none."""
        self._changes.pop(attempt_id, None)
        await trio.to_thread.run_sync(self._remove, attempt_id)

    async def prune(self, keep: Collection[str] = ()) -> None:
        """Removes this run's worktrees but some, and in the user's repository the entries of runs that are gone.

        Args:
            keep: Attempts whose worktrees stay.
        """
        await trio.to_thread.run_sync(partial(self._prune, set(keep)))

    # ---- its own

    def _records(self, attempt_id: str) -> Path:
        return self._proof.folder / "attempts" / attempt_id

    def _read_pin(self, attempt_id: str) -> Pin:
        try:
            return _pin.decode((self._records(attempt_id) / "pin").read_bytes())
        except FileNotFoundError as error:
            raise LocalProtocolError(f"attempt {attempt_id} has no worktree") from error

    async def _register(self, attempt_id: str, path: str, revision: str) -> Pin:
        """Notes from where the attempt starts, outside of its reach."""
        inside = Git(path, self._user.env, self._user.scratch)
        admin = os.fsdecode(await inside.ask("rev-parse", "--absolute-git-dir"))
        tree = (await self._proof.git().ask("rev-parse", "--verify", f"{revision}^{{tree}}")).decode("ascii")
        pin = Pin(commit=revision, tree=tree, admin=admin)
        records = self._records(attempt_id)
        (records / "rules").mkdir(parents=True, exist_ok=True)
        write_atomic(Path(admin, _LOCK), f"{_OURS}\n".encode(), durable=False)
        write_atomic(records / "pin", msgspec.json.encode(pin), durable=False)
        return pin

    async def _check_out(self, attempt_id: str, path: str, pin: Pin) -> None:
        records = self._records(attempt_id)
        git = self._proof.git(path, str(records / "index"))
        await git.ask("read-tree", pin.tree)
        await git.ask("checkout-index", "--all", "--force", "--index", "--quiet")
        listed = await git.ask("ls-files", "-z", "--stage")
        await trio.to_thread.run_sync(_keep_rules, path, records / "rules", listed.split(b"\0"))
        # git inside the worktree starts from the same.
        await trio.to_thread.run_sync(shutil.copy2, records / "index", os.path.join(pin.admin, "index"))

    async def _hand_over(self, changes: Changes, commit: str) -> None:
        """Gives the user's repository the objects of a commit that it lacks."""
        git = self._proof.git()
        words = ("diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames")
        raw = await git.ask(*words, changes.pin.tree, changes.tree, "--")
        names = dict.fromkeys([commit, changes.tree, *new_objects(raw)])
        with _temporary(git) as pack, _temporary(git) as given, _temporary(git) as told:
            given.write("".join(f"{name}\n" for name in names).encode())
            given.seek(0)
            await git.run(("pack-objects", "--stdout", "--quiet"), pack, stdin=given)
            await self._user.run((*_DURABLE, "unpack-objects", "-q"), told, stdin=pack)

    async def _set(self, ref: str, commit: str) -> None:
        """Sets a ref of the user's repository, if that takes no commit of anybody else away from it."""
        now = (await self._user.ask("rev-parse", "--verify", "--quiet", ref, none_status=1)).decode("ascii")
        if now and not self._proof.has_made(now):
            raise GitFailed(f"{ref} is at {now}, which this run has not made")
        await self._user.ask(*_DURABLE, "update-ref", "-m", "avenor", ref, commit, now or "0" * len(commit))

    async def _borrow(self, *revisions: str) -> None:
        """Fails early where a commit is known to neither repository."""
        for revision in revisions:
            await self._proof.git().ask("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")

    def _leave(self, attempt_id: str, folder: str) -> str:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        place = os.path.join(folder, attempt_id)
        os.rename(self.path(attempt_id), place)
        detach(Path(place))
        self._remove(attempt_id)
        return place

    def _remove(self, attempt_id: str) -> None:
        path, records = self.path(attempt_id), self._records(attempt_id)
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            self._forget(_pin.decode((records / "pin").read_bytes()).admin, path)
        for entry in entries(self._common):
            if worktree_of(entry) == path:
                self._forget(str(entry), path)
        remove_tree(path)
        remove_tree(str(records))

    def _prune(self, keep: set[str]) -> None:
        for place in (self._folder, self._proof.folder / "attempts"):
            for found in sorted(place.iterdir()):
                if found.name not in keep and _ATTEMPT_ID.fullmatch(found.name):
                    self._remove(found.name)
        for entry in entries(self._common):
            path = worktree_of(entry)
            if path is not None and not os.path.lexists(path) and _is_ours(entry):
                remove_tree(str(entry))

    def _forget(self, admin: str, path: str) -> None:
        """Removes the user's repository's entry of a worktree, if it is one and of this worktree."""
        entry = Path(admin)
        if entry.parent == Path(self._common, "worktrees") and worktree_of(entry) == path:
            # The folder of all entries stays, though git would remove it: another's may be in the making.
            remove_tree(admin)


def _temporary(git: Git) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=git.scratch)


def _make_room(folder: str, directory: str) -> tuple[Path, str]:
    """Makes what git needs to be asked anything; returns both places without links."""
    root = Path(os.path.realpath(folder))
    (root / PROOF / "scratch").mkdir(parents=True, exist_ok=True)
    return root, os.path.realpath(directory)


def _real(path: bytes) -> str:
    return os.path.realpath(os.fsdecode(path))


def _joined(start: str, way: str) -> str:
    return os.path.normpath(os.path.join(start, way))


async def _find(git: Git, directory: str) -> tuple[str, str, str, str]:
    """The repository around a directory: its root, its common directory, the way down from the root, its format."""
    words = ("rev-parse", "--is-inside-work-tree", "--show-object-format", "--show-prefix", "--show-cdup")
    common_words = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    try:
        answer = (await git.ask(*words)).split(b"\n")
        common = _real(await git.ask(*common_words))
    except (GitFailed, OSError) as error:
        raise _no_repository(directory, str(error)) from error
    if len(answer) != 4 or answer[0] != b"true":
        raise _no_repository(directory, "it is not in the working tree of a repository")
    if "\n" in common:
        raise _no_repository(directory, "the path of its git directory has a line break")
    _, object_format, prefix, way_up = map(os.fsdecode, answer)
    return _joined(git.cwd, way_up), common, prefix.rstrip("/"), object_format


def _no_repository(directory: str, reason: str) -> ConfigError:
    return ConfigError(
        f"dir: a manifest needs a git repository with a working tree, and {directory} is in none: {reason}; "
        "use `git init` and commit, or another --dir",
        data={"field": "dir", "value": directory},
    )


def _keep_rules(path: str, rules: Path, listed: list[bytes]) -> None:
    """Copies the ignore files of a fresh worktree to where no attempt can change them."""
    for entry in listed:
        facts, _, name = entry.partition(b"\t")
        if facts.startswith(b"100") and name.rpartition(b"/")[2] == b".gitignore":
            target = os.path.join(os.fsencode(rules), name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(os.fsencode(path), name), target)


def _is_ours(entry: Path) -> bool:
    try:
        return read_regular(str(entry / _LOCK), limit_bytes=_LOCK_BYTES).startswith(_OURS.encode())
    except OSError:
        return False
