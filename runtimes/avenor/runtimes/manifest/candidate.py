"""What an attempt has changed in its worktree, whether it may, and the commit that is made of it.

The difference is taken between the pinned revision and the bytes that lie in the worktree. What the attempt has
committed, staged, ignored or hidden from git there makes no difference, nor does where it has moved HEAD.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from avenor.protocol.manifest.globs import matches_glob
from avenor.runtimes.git import Git, GitFailed
from avenor.runtimes.manifest.proof import Proof
from avenor.runtimes.manifest.walking import MAX_TOTAL_BYTES, Problem, Walk, find_obstacle, shown, walk
from avenor.runtimes.manifest.writable import is_placeholder

_SUBMODULE: Final = "160000"
_NOTHING: Final = "000000"
_RAW: Final = ("-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv")
_SHOWN_IGNORED: Final = 100


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """From where an attempt started.

    Attributes:
        commit: The revision of its worktree.
        tree: The files of that.
        admin: What the user's repository keeps of the worktree.
    """

    commit: str
    tree: str
    admin: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One path that is another than at the pinned revision. A renamed file is two of them.

    Attributes:
        path: Relative to the repository, as `walking.shown` shows it.
        status: As git says it: A added, D deleted, M other content or mode, T of another type.
        mode: Git's mode now; `000000` of what is gone. `old_mode` is that of before.
        added: Lines; None of what is binary. Likewise `removed`.
    """

    path: str
    status: str
    mode: str
    old_mode: str
    added: int | None = None
    removed: int | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All that differs.

    Attributes:
        pin: Against what.
        tree: The files as they are now, as a tree that can be committed; the pinned one where there are problems.
        files: What differs.
        problems: What is there and cannot be in a commit; then nothing can be made of the rest either.
        ignored: What the pinned revision's own `.gitignore` files ignore: left out, the first hundred by name.
        digest: Of the whole difference, contents included: `sha256:…`.
    """

    pin: Pin
    tree: str
    files: list[Change]
    problems: list[Problem]
    ignored: list[str]
    digest: str

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing."""
        return not self.files and not self.problems


def check(changes: Changes, globs: Sequence[str]) -> list[Problem]:
    """What of the changes violates write targets; none if all may be taken.

    Args:
        changes: What was changed.
        globs: What may be, relative to the repository.
    """
    outside = [
        Problem(change.path, "it is in none of the write targets")
        for change in changes.files
        if not any(matches_glob(glob, change.path) for glob in globs)
    ]
    modules = [
        Problem(change.path, "it is another repository (submodule)")
        for change in changes.files
        if _SUBMODULE in (change.mode, change.old_mode)
    ]
    return sorted({*outside, *modules, *changes.problems})


class Snapshot:
    """Takes what one attempt has changed. Its methods raise `GitFailed`, and `OSError` where something cannot be read.

    Args:
        proof: Where it is compared.
        worktree: Its top.
        records: What was kept at its making: the index, and the ignore files in `rules`.
        pin: From where it started.
    """

    def __init__(self, proof: Proof, worktree: str, records: Path, pin: Pin) -> None:
        self._proof = proof
        self._worktree = worktree
        self._records = records
        self._pin = pin

    async def take(self) -> Changes:
        """The changes, now."""
        with tempfile.TemporaryDirectory(dir=self._proof.scratch, ignore_cleanup_errors=True) as folder:
            index = os.path.join(folder, "index")
            await trio.to_thread.run_sync(_copy_index, self._records / "index", index)
            git = self._proof.git(self._worktree, index)
            found = await trio.to_thread.run_sync(walk, self._worktree)
            sorted_out = await self._sort_out(git, found)
            tree = await self._write(git, sorted_out)
        return await self._compare(tree, sorted_out)

    async def _sort_out(self, git: Git, found: Walk) -> "_Sorted":
        statuses = await git.ask("diff-files", "-z", "--name-status", "--no-renames", "--ignore-submodules=all")
        words = _items(statuses)
        changed = dict(zip(words[1::2], words[::2], strict=True))
        listed = _items(await git.ask("ls-files", "-z", "--stage"))
        entries = [entry.partition(b"\t") for entry in listed]
        modules = [path for facts, _, path in entries if facts.startswith(_SUBMODULE.encode())]
        tracked = {path for _, _, path in entries}
        others = [path for path in found.files if path not in tracked]
        ignored = await self._ignored(others)
        sort = partial(_sort, self._worktree, found, changed, [path for path in others if path not in ignored], modules)
        result = await trio.to_thread.run_sync(sort)
        result.ignored = sorted(ignored)
        return result

    async def _ignored(self, paths: Sequence[bytes]) -> set[bytes]:
        """Which of these paths the pinned revision ignores."""
        if not paths:
            return set()
        # This command takes paths for patterns, whatever it is told: with `./` before it, none begins with magic.
        git = self._proof.git(str(self._records / "rules")).varied({"GIT_LITERAL_PATHSPECS": "0"})
        words = ("check-ignore", "-z", "--stdin", "--no-index")
        with tempfile.TemporaryFile(dir=git.scratch) as given, tempfile.TemporaryFile(dir=git.scratch) as told:
            given.write(_joined(b"./" + path for path in paths))
            given.seek(0)
            await git.run(words, told, stdin=given, none_status=1)
            return {path.removeprefix(b"./") for path in _items(told.read())}

    async def _write(self, git: Git, sorted_out: "_Sorted") -> str:
        """The tree of what is there; the pinned one where there are problems, which are then all that counts."""
        if sorted_out.problems:
            return self._pin.tree
        try:
            if sorted_out.removed:  # first: one of them may stand where a directory of the present ones is
                await git.tell("update-index", "-z", "--force-remove", "--stdin", given=_joined(sorted_out.removed))
            if sorted_out.present:
                await git.tell("update-index", "-z", "--add", "--stdin", given=_joined(sorted_out.present))
            return (await git.ask("write-tree")).decode("ascii")
        except GitFailed as error:
            sorted_out.problems.append(Problem("", f"git cannot take it: {error}"))
            return self._pin.tree

    async def _compare(self, tree: str, sorted_out: "_Sorted") -> Changes:
        git = self._proof.git()
        raw = await git.ask("diff-tree", *_RAW, self._pin.tree, tree, "--")
        counts = await git.ask("diff-tree", "-r", "-z", "--numstat", *_RAW[4:], self._pin.tree, tree, "--")
        problems = sorted(sorted_out.problems)
        digest = hashlib.sha256(raw + msgspec.json.encode(problems)).hexdigest()
        return Changes(
            pin=self._pin,
            tree=tree,
            files=_read_changes(raw, _read_counts(counts)),
            problems=problems,
            ignored=[shown(path) for path in sorted_out.ignored[:_SHOWN_IGNORED]],
            digest=f"sha256:{digest}",
        )


class _Sorted(msgspec.Struct):
    """What to take out of an index, and what to put in."""

    removed: list[bytes]
    present: list[bytes]
    problems: list[Problem]
    ignored: list[bytes] = []


def _sort(
    top: str, found: Walk, changed: Mapping[bytes, bytes], others: Iterable[bytes], modules: Sequence[bytes]
) -> _Sorted:
    result = _Sorted(removed=[], present=[], problems=list(found.problems))
    result.removed = sorted(path for path in changed if path not in found.files)
    replaced = [path for path in modules if path in found.files]
    result.problems += [Problem(shown(path), "it is where another repository was (submodule)") for path in replaced]
    left = MAX_TOTAL_BYTES
    for path in [*(path for path in changed if path in found.files), *others]:
        status = found.files[path]
        if path not in changed and is_placeholder(status):
            continue
        inside = any(path.startswith(module + b"/") for module in modules)
        obstacle = "it is in another repository (submodule)" if inside else find_obstacle(top, path, status)
        if obstacle is None and status.st_size > left:
            obstacle = f"all changes together have more than {MAX_TOTAL_BYTES} bytes"
        if obstacle is None:
            left -= status.st_size
            result.present.append(path)
        else:
            result.problems.append(Problem(shown(path), obstacle))
    return result


def _read_changes(raw: bytes, counts: Mapping[bytes, tuple[int | None, int | None]]) -> list[Change]:
    words = _items(raw)
    changes: list[Change] = []
    for facts, path in zip(words[::2], words[1::2], strict=True):
        old_mode, mode, _, _, status = facts.decode("ascii").removeprefix(":").split(" ")
        added, removed = counts.get(path, (None, None))
        changes.append(
            Change(path=shown(path), status=status, mode=mode, old_mode=old_mode, added=added, removed=removed)
        )
    return changes


def _read_counts(listed: bytes) -> dict[bytes, tuple[int | None, int | None]]:
    counts: dict[bytes, tuple[int | None, int | None]] = {}
    for entry in _items(listed):
        added, removed, path = entry.split(b"\t", 2)
        counts[path] = (_count(added), _count(removed))
    return counts


def _count(word: bytes) -> int | None:
    return None if word == b"-" else int(word)


def _copy_index(source: Path, target: str) -> None:
    """Copies an index, its time included, by which git knows what it has to look at again."""
    shutil.copyfile(source, target)
    status = source.stat()
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def new_objects(raw: bytes) -> list[str]:
    """The objects that the second of two trees has and the first has not, from `diff-tree -t --raw -z --no-abbrev`."""
    facts = [word.decode("ascii").split(" ") for word in _items(raw) if word.startswith(b":")]
    return [new for _, mode, _, new, _ in facts if mode not in (_NOTHING, _SUBMODULE)]


def _items(listing: bytes) -> list[bytes]:
    return listing.split(b"\0")[:-1]


def _joined(items: Iterable[bytes]) -> bytes:
    return b"".join(item + b"\0" for item in items)
