"""The sentinel as a file: written in one step, and cleared with its companions before a run."""

from pathlib import Path

from avenor.host.atomic import remove_if_exists, write_atomic
from avenor.host.failpoints import failpoint
from avenor.host.lock import FileLock, is_locked
from avenor.protocol.outcomes import Outcome, render_sentinel


def write_sentinel(path: str | Path, outcome: Outcome) -> None:
    """Tell an outcome, in place of whatever the sentinel told before (0600, atomic, durable).

    Raises:
        OSError: It could not be written; the caller tells that on stderr and in the snapshot.
    """
    # A session id is the agent's to choose, and JSON can hold what UTF-8 cannot.
    text = render_sentinel(outcome).encode("utf-8", errors="replace")
    write_atomic(path, text, before_rename=lambda: failpoint("sentinel.before_rename"))
    failpoint("sentinel.after_rename")


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
