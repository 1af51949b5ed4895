"""What a supervisor is started with, as `avenor stable` reads it from its command line."""

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from avenor.host.xdg import state_home
from avenor.protocol.methods import LogLevel
from avenor.protocol.spec import OnCrash


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one supervisor. Durations are seconds.

    Attributes:
        control_socket: Where clients find it; absolute.
        state_dir: Where the runtimes' directories are; absolute. None takes `default_state_dir`.
        max_runtimes: How many runtimes may be starting or in a turn at once; parked ones do not count.
        queue: How many spawns may wait for a place; 0 refuses them.
        max_tree: How many runtimes may work or wait at once in one tree of parents and children.
        max_parked: How many parked runtimes keep their agent; beyond it the oldest is reaped.
        idle_timeout: Stop after so long without a live runtime and without a client; None never.
        parked_timeout: How long a runtime stays parked; 0 is for ever.
        shutdown_timeout: How long a graceful shutdown waits before it kills, and a detach for runtimes that just start.
        on_crash: For spawns that do not say: whether a run has failed when its process is lost, or goes on.
        max_resumes: How often it goes on within `resume_window`; then it has failed.
        permission_claim_timeout: For spawns that do not say; see `RunSpec`.
        keep: How long ended runtimes are kept; None is for ever.
        http_debug: The loopback address at which HTTP is answered; None nowhere.
        http_token_file: Where its token goes; None puts it beside the control socket.
        log_format: None is console on a terminal, else json.
    """

    control_socket: str
    state_dir: str | None = None
    max_runtimes: int = 16
    queue: int = 64
    max_tree: int = 64
    max_parked: int = 16
    idle_timeout: float | None = None
    parked_timeout: float = 30 * 60.0
    shutdown_timeout: float = 10.0
    on_sigterm: Literal["graceful", "detach"] = "graceful"
    on_crash: OnCrash = "fail"
    max_resumes: int = 3
    resume_window: float = 10 * 60.0
    permission_claim_timeout: float = 30.0
    keep: float | None = None
    http_debug: str | None = None
    http_token_file: str | None = None
    log_level: LogLevel = "info"
    log_format: Literal["console", "json"] | None = None

    @property
    def state_path(self) -> Path:
        """The state directory, with the default filled in."""
        return Path(self.state_dir) if self.state_dir is not None else default_state_dir(self.control_socket)

    @property
    def token_path(self) -> str:
        """Where the token for HTTP goes, with the default filled in."""
        return self.http_token_file or f"{self.control_socket}.token"


def default_state_dir(control_socket: str) -> Path:
    """The state directory that belongs to a socket: the same one for every start on that path."""
    # Twelve hex digits name one of a user's few sockets, and keep `control.sock` below the kernel's 107 bytes.
    socket_id = hashlib.sha256(os.fsencode(os.path.abspath(control_socket))).hexdigest()[:12]
    return Path(state_home(os.environ), "avenor", "stable", socket_id)
