"""The file that a supervisor leaves beside its socket when it ends: why, which process, when (contract, part 7)."""

import datetime
from pathlib import Path
from typing import Literal

from avenor.host.atomic import remove_if_exists, write_atomic

Reason = Literal["signal", "shutdown", "detached", "idle", "start_failed", "crashed"]


def tombstone_path(control_socket: str) -> Path:
    """Where the tombstone of a socket is."""
    return Path(f"{control_socket}.dead")


def render_tombstone(reason: Reason, *, pid: int, at: datetime.datetime) -> str:
    """The tombstone's one line; `at` must have a time zone."""
    stamp = at.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"STOPPED reason={reason} pid={pid} at={stamp}\n"


def write_tombstone(control_socket: str, reason: Reason, *, pid: int) -> None:
    """Say that this supervisor has ended.

    Raises:
        OSError: It could not be written.
    """
    text = render_tombstone(reason, pid=pid, at=datetime.datetime.now(datetime.UTC))
    write_atomic(tombstone_path(control_socket), text.encode())


def remove_tombstone(control_socket: str) -> None:
    """Take away what the last supervisor on this socket left; only once we know that none lives there.

    Raises:
        OSError: It is there and cannot be removed.
    """
    remove_if_exists(tombstone_path(control_socket))
