"""Where the sockets are that nobody named."""

import os


def default_socket() -> str:
    """The supervisor's socket when none is named."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime_dir):  # the XDG specification says to ignore a relative one
        return os.path.join(runtime_dir, "avenor", "stable.sock")
    return os.path.join(os.path.expanduser("~"), ".avenor", "stable.sock")


def control_socket(given: str | None) -> str:
    """The socket that a client command means: the flag, else AVENOR_SOCKET, else the default one."""
    return given or os.environ.get("AVENOR_SOCKET") or default_socket()
