"""What an `avenor run` has left whose process was killed: there is no supervisor that would look after it."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from avenor.host import tree
from avenor.host.gitworktrees import (
    LEFT,
    PRIVATE,
    PROOF,
    WORKTREES,
    clear_worktrees,
    may_have_changed,
    remove_run,
    remove_tree,
)
from avenor.host.identity import ProcessId, boot_id
from avenor.host.ladder import Graces, stop_tree
from avenor.host.lock import FileLock
from avenor.host.procs import ProcsFile
from avenor.host.rundir import RunDir
from avenor.protocol.spec import Record

PREFIX: Final = "run-"


def sweep_leftovers(runs: Path) -> list[Path]:
    """Ends what dead runs have left running, and removes their directories; what resists stays.

    Dead is a run of our own user that has written down its process, which it does with its lock held, and whose lock is
    free. One that this process was started by, however it has ended, is left to a later sweep.

    Args:
        runs: Where the directories of runs are.

    Returns:
        Where files of writers are, which nobody can tell whether they are wanted.
    """
    kept: list[Path] = []
    for path in sorted(runs.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and _sweep(RunDir(path)):
                kept.append(path / LEFT)
    return kept


def _sweep(rundir: RunDir) -> bool:
    """Sweeps one directory if its run is dead; True if files of writers stay."""
    process = rundir.read_process()
    if process is None:  # perhaps it is just beginning
        return False
    lock = FileLock(rundir.lock_path)
    if not lock.try_acquire():
        return False
    try:
        return _end(rundir, process) and _clear(rundir)
    finally:
        lock.release()


def _end(rundir: RunDir, process: ProcessId) -> bool:
    """Ends what the process has started; False if something of it goes on."""
    if process.boot_id != boot_id():
        return True
    roots = [started.id for started in ProcsFile(rundir.procs_path).read()]
    name, value = tree.tree_tag(process.pid, process.start_ticks)
    if os.environ.get(name) == value or not tree.ancestors(os.getpid()).isdisjoint(root.pid for root in roots):
        return False
    graces = Graces()
    stop = partial(stop_tree, roots=roots, tag=(name, value), close_stdin=None, graces=graces, own_children_of=None)
    return not trio.run(stop).left


def _clear(rundir: RunDir) -> bool:
    """Removes the directory; True if files of writers stay."""
    remove_tree(str(rundir.path / PRIVATE))
    data = rundir.read_record()
    worktrees = rundir.path / WORKTREES
    if data is not None:
        try:
            record = msgspec.json.decode(data, type=Record)
        except msgspec.DecodeError:  # of another version, or damaged: nobody can tell what is in there
            return False
        clear_worktrees(rundir.path, may_have_changed(record))
        for found in worktrees.iterdir() if worktrees.is_dir() else ():
            if found.name != PROOF:
                (rundir.path / LEFT).mkdir(mode=0o700, exist_ok=True)
                found.rename(rundir.path / LEFT / found.name)
    remove_run(rundir.path)
    return rundir.path.exists()
