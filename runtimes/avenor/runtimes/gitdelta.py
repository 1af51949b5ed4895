"""What changed in a git repository between two moments, told without touching the repository.

Owns the calls of git and the temporary files they need: index and new objects of every snapshot are ours, so the user's
index, refs, stash, object store and working tree stay as they are (but for the times of objects, which git renews on
those it meets). When to look is the caller's. Needs git 2.31.

All paths are relative to the repository's root and the whole repository is looked at, also from a folder inside it.
Submodules are not entered: one is told of when its checked-out commit changed. A repository that lies inside without
being a submodule is left out.

No program of the user's runs: hooks, filters, external diffs and the like are off. Without its filter a file cannot be
compared with what git stores for it, so a file under one (Git LFS) counts as changed when its size or its time of
modification did.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec
import structlog
import trio

from avenor.host.regular import open_regular
from avenor.runtimes.git import Git, GitFailed, git_environment

_T = TypeVar("_T")

_logger: Final = structlog.get_logger()

_STEP_SECONDS: Final = 30.0
_DIFF_OPTIONS: Final = (
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=none",
    f"-O{os.devnull}",
)
# What `git diff --stat` does by itself when nothing is configured and its output is not a terminal.
_STAT_OPTIONS: Final = ("--stat=80", "--no-color", "--find-renames", "--diff-algorithm=myers")

_PLAIN_DRIVER: Final = re.compile(r"[A-Za-z0-9_-]+")  # what git lets one look for by attribute


class GitMark(msgspec.Struct, frozen=True):
    """How a repository was at one moment.

    Attributes:
        commit: HEAD's commit; "" without commits.
        tree: Object id of a snapshot of all files that are tracked, or untracked and not ignored; "" if none could be
            taken. Known only to the `GitDeltas` that made it.
    """

    commit: str
    tree: str


class GitPast(msgspec.Struct, frozen=True):
    """What a phase is told of: how the repository was before the phase before it, and how that one left it.

    Attributes:
        began: When the phase before began; before the first phase, when that begins.
        ended: When it had ended; None before the first phase.
    """

    began: GitMark | None = None
    ended: GitMark | None = None

    @property
    def latest(self) -> GitMark | None:
        """The last mark of the two."""
        return self.ended or self.began

    def then(self, mark: GitMark | None) -> "GitPast":
        """The past of what comes next, after a phase has left this."""
        return GitPast(began=self.latest, ended=mark)


class GitDelta(msgspec.Struct, frozen=True):
    """What happened since a mark; all "" when there is nothing to tell.

    Attributes:
        prev_commit: HEAD's commit at the mark.
        diff_stat: `git diff --stat` from that commit to HEAD.
        changed_files: The paths whose content, mode or existence is another than at the mark, whether committed or not,
            one a line, unquoted; a line break in a name is shown as `\\n` or `\\r`. A renamed file shows by both names.
    """

    prev_commit: str = ""
    diff_stat: str = ""
    changed_files: str = ""


class GitDeltas:
    """Takes marks of the repository around a directory, and tells what changed since one.

    A failure is logged and leaves its part empty; where there is no repository that git would work with, everything is
    empty. Several calls may be under way at once. Its temporary files, on which all its marks depend, are removed by
    `close`, or at the end of a `with` block.

    Args:
        directory: Where to look for the repository.
        environ: The environment that git is started from.
        scratch: An existing directory for the temporary files; None for the system's.
        step_seconds: The limit of each of a mark's two steps (HEAD, snapshot), and of each of a delta's three,
            waiting for another caller's snapshot included.
    """

    def __init__(
        self,
        directory: str,
        environ: Mapping[str, str],
        *,
        scratch: str | None = None,
        step_seconds: float = _STEP_SECONDS,
    ) -> None:
        # The ways that git tells start behind links, where `..` is another place.
        self._directory = os.path.realpath(directory)
        self._env = git_environment(environ)
        self._scratch_parent = scratch
        self._scratch: str | None = None
        self._is_closed = False
        self._step_seconds = step_seconds
        self._snapshots = _Snapshots()

    async def mark(self) -> GitMark | None:
        """How the repository is now; None without one.

        Cancellation: ends git; nothing is left behind but what `close` removes.
        """
        found = await self._attempt("head", self._find_with_head)
        if found is None:
            return None
        repository, commit = found
        tree = await self._attempt("snapshot", partial(self._snapshots.take, repository))
        return GitMark(commit=commit, tree=tree or "")

    async def since(self, mark: GitMark | None) -> GitDelta:
        """What changed since a mark of ours; nothing without one.

        Cancellation: as for `mark`.
        """
        if mark is None:
            return GitDelta()
        repository = await self._attempt("find", self._find)
        if repository is None:
            return GitDelta()
        diff_stat: str | None = None
        changed_files: str | None = None
        if mark.commit:
            diff_stat = await self._attempt("diff_stat", partial(repository.diff_stat, mark.commit))
        if mark.tree:
            changed_files = await self._attempt("changed_files", partial(self._changed_files, repository, mark.tree))
        return GitDelta(prev_commit=mark.commit, diff_stat=diff_stat or "", changed_files=changed_files or "")

    def close(self) -> None:
        """Removes the temporary files; harmless twice."""
        self._is_closed = True
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _attempt(self, step: str, work: Callable[[], Awaitable[_T]]) -> _T | None:
        """The result of a bounded step; None if it failed, which is logged."""
        try:
            with trio.move_on_after(self._step_seconds):
                return await work()
            reason = f"took longer than {self._step_seconds:g} s"
        except GitFailed as error:
            reason = str(error)
        except OSError as error:
            reason = error.strerror or type(error).__name__
        _logger.warning("git.failed", step=step, reason=reason)
        return None

    async def _changed_files(self, repository: "_Repository", tree: str) -> str:
        return await repository.changed_files(tree, await self._snapshots.take(repository))

    async def _find_with_head(self) -> "tuple[_Repository, str] | None":
        repository = await self._find()
        return None if repository is None else (repository, await repository.head())

    async def _find(self) -> "_Repository | None":
        """The repository; None without one, without git, and where git refuses (bare, somebody else's, broken)."""
        git = Git(self._directory, self._env, self._open_scratch())
        try:
            where = await git.ask("rev-parse", "--is-inside-work-tree", "--show-cdup")
        except (GitFailed, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            _logger.debug("git.no_repository", reason=str(error))
            return None
        is_inside, _, way_up = where.partition(b"\n")
        if is_inside != b"true":
            return None
        return await _Repository.open(Git(_joined_path(self._directory, way_up), self._env, git.scratch))

    def _open_scratch(self) -> str:
        """The directory of our temporary files, made at its first use."""
        assert not self._is_closed
        if self._scratch is None:
            self._scratch = os.path.abspath(tempfile.mkdtemp(prefix="avenor-git-", dir=self._scratch_parent))
            os.mkdir(_objects(self._scratch))
            # It may lie in the very repository, where it is no change of the phase's.
            with open(os.path.join(self._scratch, ".gitignore"), "x", encoding="ascii") as ignored:
                ignored.write("*\n")
        return self._scratch


class _Repository:
    """A repository with a working tree, seen from its root. Its methods raise what `Git.ask` does."""

    def __init__(self, git: Git, index: str, objects: str) -> None:
        self._git = git
        self._index = index
        self._with_objects = git.varied(
            {
                "GIT_OBJECT_DIRECTORY": _objects(git.scratch),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(objects),
            }
        )

    @classmethod
    async def open(cls, git: Git) -> Self:
        paths = (await git.ask("rev-parse", "--git-path", "index", "--git-path", "objects")).split(b"\n")
        if len(paths) != 2:
            raise GitFailed("the path of the git directory has a line break")
        index, objects = (_joined_path(git.cwd, path) for path in paths)
        return cls(git, index, objects)

    async def head(self) -> str:
        """HEAD's commit, "" without commits."""
        answer = await self._git.ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}", none_status=1)
        return answer.decode("ascii")

    async def diff_stat(self, commit: str) -> str:
        return await self._git.show("diff", *_STAT_OPTIONS, *_DIFF_OPTIONS, f"{commit}..HEAD", "--", end=b"\n")

    async def changed_files(self, old: str, new: str) -> str:
        options = ("-r", "-z", "--name-only", "--no-renames", *_DIFF_OPTIONS)
        return await self._with_objects.show("diff-tree", *options, old, new, end=b"\0")

    async def snapshot(self) -> str:
        """Writes a tree of the working tree's files, whose contents are hashed and not stored."""
        folder = tempfile.TemporaryDirectory(dir=self._git.scratch, prefix="snapshot-", ignore_cleanup_errors=True)
        with folder as path:
            index = os.path.join(path, "index")
            await trio.to_thread.run_sync(_copy_index, self._index, index, abandon_on_cancel=True)
            drivers = await self._filter_drivers()
            env = {"GIT_INDEX_FILE": index, **_without_filters(self._git.env, drivers)}
            git = self._with_objects.varied(env)
            await _update(git)
            await _pin_filtered(git, drivers)
            # The contents that were hashed are nowhere stored.
            return (await git.ask("write-tree", "--missing-ok")).decode("ascii")

    async def _filter_drivers(self) -> list[str]:
        """The names of all filters that are configured anywhere, whether a file uses them or not."""
        names = await self._git.ask("config", "-z", "--name-only", "--get-regexp", r"^filter\.", none_status=1)
        return sorted({os.fsdecode(name)[len("filter.") :].rpartition(".")[0] for name in _items(names)})


class _Snapshots:
    """One snapshot at a time; those who wait share the next, for a team's members ask all at once."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._begun = 0
        self._latest = (0, "")  # its number, counted from 1, and its tree

    def statistics(self) -> trio.LockStatistics:
        """Who waits."""
        return self._turn.statistics()

    async def take(self, repository: _Repository) -> str:
        """A snapshot that was begun after this call. Raises what `Git.ask` does."""
        begun_before = self._begun
        async with self._turn:
            number, tree = self._latest
            if number > begun_before:
                return tree
            self._begun += 1
            number, tree = self._begun, await repository.snapshot()
            self._latest = (number, tree)
            return tree


async def _update(git: Git) -> None:
    """Brings git's index into line with the working tree."""
    # Plain `git add -A` would store every content, also that of a huge file which nobody wanted to commit.
    changed = await git.ask("diff-files", "-z", "--name-status", "--no-renames", "--ignore-submodules=dirty")
    others = await git.ask("ls-files", "-z", "--others", "--exclude-standard")
    sort = partial(_sort_out, git.cwd, _items(changed), _items(others))
    removed, present = await trio.to_thread.run_sync(sort, abandon_on_cancel=True)
    if removed:  # first: one of them may stand where a directory of the present ones is, or the reverse
        await git.tell("update-index", "-z", "--force-remove", "--stdin", given=_joined(removed))
    if present:
        await git.tell("update-index", "-z", "--add", "--info-only", "--stdin", given=_joined(present))


async def _pin_filtered(git: Git, drivers: Iterable[str]) -> None:
    """Enters every file under a filter by its size and time instead of its content.

    The index may hold such a file's filtered content or, without the filter, its own: the same file would come as two.
    """
    specs = [f":(attr:filter={driver})" for driver in drivers if _PLAIN_DRIVER.fullmatch(driver)]
    if specs:
        listed = _items(await git.ask("ls-files", "-z", "--stage", "--", *specs))
        pin = partial(_pins, git.cwd, listed)
        if pins := await trio.to_thread.run_sync(pin, abandon_on_cancel=True):
            await git.tell("update-index", "-z", "--index-info", given=_joined(pins))


def _without_filters(env: Mapping[str, str], drivers: Iterable[str]) -> dict[str, str]:
    """Variables that configure filters away. Not `-c`, which cannot say a name with an equals sign."""
    settings = [
        (f"filter.{driver}.{name}", value)
        for driver in drivers
        for name, value in (("clean", ""), ("process", ""), ("required", "false"))
    ]
    start = int(env.get("GIT_CONFIG_COUNT") or 0)
    more = {"GIT_CONFIG_COUNT": str(start + len(settings))}
    for number, (name, value) in enumerate(settings, start):
        more[f"GIT_CONFIG_KEY_{number}"] = name
        more[f"GIT_CONFIG_VALUE_{number}"] = value
    return more


def _copy_index(source: str, target: str) -> None:
    """Copies an index if there is one, its time included, by which git knows what it has to look at again."""
    with contextlib.suppress(FileNotFoundError), open(open_regular(source), "rb") as old:
        status = os.fstat(old.fileno())
        with open(target, "xb") as new:
            shutil.copyfileobj(old, new)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _sort_out(top: str, changed: Sequence[bytes], others: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What to take out of an index and what to hash; git would give up at anything that cannot be hashed.

    Args:
        top: The root of the working tree.
        changed: Statuses and tracked paths in turn. A conflict is named several times; if removed, also as that.
        others: Untracked paths; a repository's has a slash at its end.
    """
    root = os.fsencode(top)
    statuses = list(zip(changed[::2], changed[1::2], strict=True))
    removed = {path for status, path in statuses if status == b"D" or not os.path.lexists(os.path.join(root, path))}
    paths = [path for path in dict.fromkeys(path for _, path in statuses) if path not in removed]
    paths += [path for path in others if not path.endswith(b"/")]
    return sorted(removed), [path for path in paths if _can_hash(os.path.join(root, path))]


def _can_hash(path: bytes) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return os.access(path, os.R_OK)
    return stat.S_ISLNK(mode) or stat.S_ISDIR(mode)


def _pins(top: str, listed: Iterable[bytes]) -> list[bytes]:
    """Index entries (`mode id stage<TAB>path`) of files, with an id made of size and time."""
    pins: list[bytes] = []
    root = os.fsencode(top)
    for entry in listed:
        facts, _, path = entry.partition(b"\t")
        mode, known, stage = facts.split(b" ")
        with contextlib.suppress(OSError):
            status = os.lstat(os.path.join(root, path))
            if mode.startswith(b"100") and stat.S_ISREG(status.st_mode):
                digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
                pins.append(b"%s %s %s\t%s" % (mode, digest[: len(known)].encode(), stage, path))
    return pins


def _objects(scratch: str) -> str:
    return os.path.join(scratch, "objects")


def _joined_path(start: str, way: bytes) -> str:
    return os.path.abspath(os.path.join(start, os.fsdecode(way)))


def _quoted(path: str) -> str:
    """A path for a list that is separated by colons."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _items(listing: bytes) -> list[bytes]:
    return listing.split(b"\0")[:-1]


def _joined(items: Iterable[bytes]) -> bytes:
    return b"".join(item + b"\0" for item in items)
