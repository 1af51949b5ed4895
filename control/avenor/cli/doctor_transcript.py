"""The file of `avenor doctor --transcript`: what was said with each agent, one JSON object a line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from avenor.cli.commands import DOCTOR
from avenor.cli.output import dump
from avenor.cli.parsing import UsageError
from avenor.runtimes.backends.wiretap import Direction, Tap

_HIDDEN = b"[secret]"


class Transcript:
    """Writes `{t, backend, dir, msg}`: seconds since it was opened, who, which way, and the message or line.

    Passwords that avenor has made for an agent are not in it. Whatever the agent itself tells is.

    Args:
        path: The file, which is overwritten; None keeps nothing.

    Raises:
        UsageError: It cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        self._began = time.monotonic()
        self._fd: int | None = None
        if path is not None:
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise UsageError(f"--transcript {path}: {error.strerror or error}", DOCTOR) from error

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    @property
    def tapping(self) -> Callable[[str, Sequence[str]], Tap] | None:
        """Makes the taps; None where nothing is kept."""
        return None if self._fd is None else self._tap

    def write(self, backend: str, direction: str, message: object, *, secrets: Sequence[str]) -> None:
        """Append a line. A disk that is full is no reason to examine nothing: what does not fit is lost."""
        if self._fd is None:
            return
        seconds = round(time.monotonic() - self._began, 3)
        line = dump({"t": seconds, "backend": backend, "dir": direction, "msg": message}) + b"\n"
        for secret in secrets:  # they are made of letters that JSON leaves as they are
            line = line.replace(secret.encode(), _HIDDEN)
        try:
            os.write(self._fd, line)
        except OSError:
            return

    def _tap(self, backend: str, secrets: Sequence[str]) -> Tap:
        return _BackendTap(self, backend, secrets)


class _BackendTap:
    """Puts together the lines of one backend; see `wiretap.Tap`."""

    def __init__(self, transcript: Transcript, backend: str, secrets: Sequence[str]) -> None:
        self._transcript = transcript
        self._backend = backend
        self._names = secrets
        self._values: list[str] = []
        self._partial: dict[Direction, bytes] = {}

    def started(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        """A program is about to be started: its lines begin anew."""
        self._flush()
        self._values += [env[name] for name in self._names if env.get(name)]
        self._write("meta", {"spawn": list(argv), "cwd": cwd})

    def passed(self, direction: Direction, data: bytes) -> None:
        """Bytes went over a pipe; none are the end of one."""
        *lines, rest = (self._partial.pop(direction, b"") + data).split(b"\n")
        for line in lines:
            self._write_line(direction, line)
        if rest and data:
            self._partial[direction] = rest
        elif rest:
            self._write_line(direction, rest)

    def told(self, direction: Direction, message: object) -> None:
        """A whole message."""
        self._write(direction, message)

    def _flush(self) -> None:
        for direction, rest in self._partial.items():
            self._write_line(direction, rest)
        self._partial.clear()

    def _write_line(self, direction: Direction, line: bytes) -> None:
        if line.strip():
            self._write(direction, _decoded(line))

    def _write(self, direction: str, message: object) -> None:
        self._transcript.write(self._backend, direction, message, secrets=self._values)


def _decoded(line: bytes) -> object:
    """A line as JSON, else as text."""
    import msgspec

    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line.decode(errors="replace").rstrip("\r")
