"""Where a manifest run has its worktrees and its sandboxes' own places, and the removal of both once the run is dead.

A run that lives removes them itself (`avenor.runtimes.manifest`). What is here asks git nothing, so that a supervisor
can do it for one whose process was lost.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from avenor.host.regular import read_regular
from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.spec import Record

# A path and a newline.
_LINK_BYTES: Final = 64 * 1024
# In the run's directory: worktrees of attempts, what only their agents see, and the files of writers whose change could
# not be taken into the repository.
WORKTREES: Final = "worktrees"
PRIVATE: Final = "private"
LEFT: Final = "left"
# In the folder of the worktrees: the run's own repository, which borrows the objects of the user's.
PROOF: Final = ".proof"
ALTERNATES: Final = "objects/info/alternates"


def clear_worktrees(directory: Path, keep: Callable[[str], bool]) -> None:
    """Remove what a dead run has left: git's entries of its worktrees, their files, and copies of agents' logins.

    Harmless where there is nothing, and done again after a kill in the middle. What cannot be removed stays.

    Args:
        directory: The run's. Nothing that it has started may be alive.
        keep: Whether the files of a worktree, by its name, stay; it is none of the repository's any more then.

    Raises:
        OSError: It cannot be looked at.
    """
    remove_tree(str(directory / PRIVATE))
    folder = Path(os.path.realpath(directory / WORKTREES))
    if not folder.is_dir():
        return
    for entry in entries(_common(folder)):
        path = worktree_of(entry)
        if path is not None and os.path.dirname(path) == str(folder):
            remove_tree(str(entry))
    for found in sorted(folder.iterdir()):
        if found.name == PROOF:
            continue
        if not keep(found.name):
            remove_tree(str(found))
        elif not found.is_symlink():
            detach(found)


def may_have_changed(record: Record) -> Callable[[str], bool]:
    """Which attempts at a record's manifest, by the names of their worktrees, may have changed files."""
    manifest = record.config
    members = manifest.members if isinstance(manifest, ResolvedManifest) else []
    names = {member.id for member in members if member.is_writer or record.spec.unsandboxed}
    return lambda attempt_id: attempt_id.rpartition(".")[0] in names


def remove_run(directory: Path) -> None:
    """Remove the directory of a run that nobody looks after any more, but for files that are nowhere else (`LEFT`)."""
    with contextlib.suppress(OSError):
        (directory / LEFT).rmdir()  # if there is nothing in it
    if not (directory / LEFT).is_dir():
        remove_tree(str(directory))
        return
    for found in directory.iterdir():
        if found.name != LEFT:
            remove_tree(str(found))


def entries(common: str) -> list[Path]:
    """What a repository has of its worktrees, a folder for each.

    Args:
        common: The repository's git directory.
    """
    try:
        return sorted(Path(common, "worktrees").iterdir())
    except OSError:
        return []


def worktree_of(entry: Path) -> str | None:
    """The root of the worktree that an entry of a repository is about."""
    try:
        link = os.fsdecode(read_regular(str(entry / "gitdir"), limit_bytes=_LINK_BYTES)).rstrip("\n")
    except OSError:
        return None
    return os.path.dirname(link)


def remove_tree(path: str) -> None:
    """Removes what is there, whatever it is, and follows no link. What cannot be removed stays."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    for folder, names, _ in os.walk(path):  # an attempt may have closed directories to itself
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def detach(worktree: Path) -> None:
    """Makes plain files of a worktree: its `.git`, which names the entry, is a file."""
    link = worktree / ".git"
    if link.is_file() and not link.is_symlink():
        link.unlink()


def _common(folder: Path) -> str:
    """The git directory of the repository that worktrees are of; one that is nowhere if the run had not come so far."""
    try:
        objects = os.fsdecode((folder / PROOF / ALTERNATES).read_bytes()).rstrip("\n")
    except OSError:
        return os.devnull
    return os.path.dirname(objects)
