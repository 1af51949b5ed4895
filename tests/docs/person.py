"""What a person does with the `avenor` commands of the documentation that do not end by themselves.

It is run in the place of `avenor`. What serves is left running, as in a shell of its own, once it can be talked to.
What only follows is ended with Ctrl-C when it has shown something, or when there is nothing to see.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

REAL: Final = "DOCS_AVENOR"
"""The variable with the path of the real command."""
BUSY: Final = "DOCS_BUSY"
"""The variable with the path of a file that is there when an agent is at work that takes long."""

_PATIENCE_SECONDS: Final = 120.0
# How long somebody looks at an empty screen.
_LOOK_SECONDS: Final = 1.0


def main(words: Sequence[str]) -> int:
    """The exit status of a command, for the person who has typed it."""
    command = next((word for word in words if not word.startswith("-")), "")
    if command == "stable":
        return _leave(words, _can_connect(_socket_of(words)))
    if command == "mcp" and "http" in words:
        return _leave(words, _can_connect_to(words[words.index("--addr") + 1]))
    if command == "board" and not {"--help"} & set(words):
        return _leave(words, lambda: True)
    if "--control-socket" in words and command != "mcp":
        busy = Path(os.environ[BUSY])
        return _leave(words, lambda: busy.exists() and _can_connect(_socket_of(words))())
    if ("tail" in words and "control" in words) or (command == "top" and "--once" not in words) or "--hold" in words:
        return _look(words)
    return subprocess.run([os.environ[REAL], *words], check=False).returncode


def _leave(words: Sequence[str], is_ready: Callable[[], bool]) -> int:
    """Start it, and go on when it serves; if it ends before, with its status."""
    process = subprocess.Popen(
        [os.environ[REAL], *words], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if (status := process.poll()) is not None:
            return status
        if is_ready():
            return 0
        time.sleep(0.02)
    return 1


def _look(words: Sequence[str]) -> int:
    process = subprocess.Popen([os.environ[REAL], *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    # Not while Python starts, of which nobody can say what an interrupt does there.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None and not _has_socket(process.pid):
        time.sleep(0.02)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.select(_LOOK_SECONDS)
    process.send_signal(signal.SIGINT)
    sys.stdout.buffer.write(process.stdout.read())
    return 0 if process.wait() in (0, 130, -signal.SIGINT) else process.returncode


def _has_socket(pid: int) -> bool:
    try:
        return any(os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended, or closed what was looked at
        return False


def _socket_of(words: Sequence[str]) -> str:
    if "--control-socket" in words:
        return words[words.index("--control-socket") + 1]
    return os.path.join(os.environ["XDG_RUNTIME_DIR"], "avenor", "stable.sock")


def _can_connect(path: str) -> Callable[[], bool]:
    return lambda: _answers(socket.AF_UNIX, path)


def _can_connect_to(address: str) -> Callable[[], bool]:
    host, _, port = address.rpartition(":")
    return lambda: _answers(socket.AF_INET, (host, int(port)))


def _answers(family: int, address: str | tuple[str, int]) -> bool:
    with socket.socket(family) as sock:
        return sock.connect_ex(address) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
