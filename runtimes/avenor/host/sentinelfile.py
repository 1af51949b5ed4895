"""The sentinel as a file: written in one step, and cleared with its companions before a run."""

import contextlib
import hashlib
import os
from collections.abc import Generator
from pathlib import Path

from avenor.host.atomic import remove_if_exists, write_atomic
from avenor.host.failpoints import failpoint
from avenor.host.lock import MOMENT_SECONDS, FileLock, acquired_within, in_use, is_locked
from avenor.host.xdg import state_home
from avenor.protocol.outcomes import Outcome, render_sentinel


class Sentinel:
    """The sentinel of a run, which is kept for it while it works: a watcher must not be told another run's outcome.

    What keeps it is a lock in the user's state, named after the path: beside the sentinel it would be one more file for
    whoever works there. Where none can be made, nothing is kept.

    Args:
        path: The file.
        is_private: It is in the run's own directory, whose lock this process holds: no other is needed.
    """

    def __init__(self, path: str | Path, *, is_private: bool = False) -> None:
        self.path = str(path)
        self._lock = None if is_private else FileLock(_lock_path(self.path))

    def keep(self, *, is_patient: bool = True) -> None:
        """Keep it for us, until it is given up or this process ends; without effect when it is kept.

        Args:
            is_patient: Whether to wait for one that only tells of a run that failed to start. Blocks for that.

        Raises:
            OSError: `EBUSY`, another run that lives keeps it.
        """
        if self._lock is None:
            return
        try:
            os.makedirs(os.path.dirname(self._lock.path), mode=0o700, exist_ok=True)
            is_kept = acquired_within(MOMENT_SECONDS if is_patient else 0.0, self._lock.try_acquire)
        except OSError:
            return
        if not is_kept:
            raise in_use(self.path)

    def give_up(self) -> None:
        """Let others have it; without effect when it is not kept."""
        if self._lock is not None and self._lock.is_held:
            with contextlib.suppress(OSError):
                self._lock.remove()

    def write(self, outcome: Outcome) -> None:
        """Tell an outcome, in place of whatever the sentinel told before (0600, atomic, durable).

        Raises:
            OSError: It could not be written; the caller tells that on stderr and in the snapshot.
        """
        # A session id is the agent's to choose, and JSON can hold what UTF-8 cannot.
        text = render_sentinel(outcome).encode("utf-8", errors="replace")
        write_atomic(self.path, text, before_rename=lambda: failpoint("sentinel.before_rename"))
        failpoint("sentinel.after_rename")


def _lock_path(path: str) -> str:
    directory, name = os.path.split(path)
    full = os.path.join(os.path.realpath(directory), name)
    return os.path.join(state_home(os.environ), "avenor", "sentinels", hashlib.sha256(os.fsencode(full)).hexdigest())


def write_sentinel(path: str | Path, outcome: Outcome) -> None:
    """Tell the outcome of a run that does not live: one that never began, or that is lost.

    Raises:
        OSError: It could not be written; `EBUSY` when a run that lives keeps the sentinel.
    """
    with _kept(path) as sentinel:
        sentinel.write(outcome)


def remove_sentinel(path: str | Path) -> None:
    """Remove what a run that does not live has told before.

    Raises:
        OSError: It could not be removed; `EBUSY` when a run that lives keeps the sentinel.
    """
    with _kept(path) as sentinel:
        remove_if_exists(sentinel.path)


def clear_stale(path: str | Path | None, permission_base: str | Path | None) -> None:
    """Remove what an earlier run left: the sentinel, and the permission request and its answer at BASE.

    All three are tried before an error is raised.

    Raises:
        OSError: The first of those met; `EINVAL` when one of the paths is no regular file.
    """
    errors = [] if path is None else _remove_all(Path(path))
    if permission_base is not None:
        try:
            errors += _clear_question(permission_base)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@contextlib.contextmanager
def _kept(path: str | Path) -> Generator[Sentinel, None, None]:
    sentinel = Sentinel(path)
    sentinel.keep(is_patient=False)  # one that lives now, and ends, has the last word
    try:
        yield sentinel
    finally:
        sentinel.give_up()


def _clear_question(base: str | Path) -> list[OSError]:
    lock_path = Path(f"{base}.lock")
    # Another run may be asking at the same BASE at this moment: then its files are not stale.
    if is_locked(lock_path):
        return []
    errors = _remove_all(Path(f"{base}.req"), Path(f"{base}.req.response"))
    if not errors:
        _remove_free_lock(lock_path)
    return errors


def _remove_all(*paths: Path) -> list[OSError]:
    errors: list[OSError] = []
    for each in paths:
        try:
            remove_if_exists(each)
        except OSError as error:
            errors.append(error)
    return errors


def _remove_free_lock(path: Path) -> None:
    """Removes the lock of one that was killed while it asked."""
    lock = FileLock(path)
    if path.exists() and lock.try_acquire():
        lock.remove()
