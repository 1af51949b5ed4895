"""The gateway's own log: one line for each model request, which the run's ledger can be held against."""

import os
from types import TracebackType
from typing import Literal

import msgspec
import structlog

from avenor.runtimes.manifest.gateway_usage import Used

_logger = structlog.get_logger()


class GatewayLine(msgspec.Struct, frozen=True, kw_only=True):
    """One model request.

    Attributes:
        ts_ms: When it came, as Unix time.
        attempt_id: Whose it was.
        path: Below the endpoint's address.
        end: `passed` whole; `cut` by a revocation or by a client that left; `broken` by the service; `unreachable`,
            where no answer came at all; `refused`, where it was not let pass: only that is not charged.
        status: What the client was answered; None if nothing.
        used: The tokens that the answer told; None if it told none.
        duration_ms: From the request to the end of its answer.
    """

    ts_ms: int
    attempt_id: str
    path: str
    end: Literal["passed", "cut", "broken", "unreachable", "refused"]
    status: int | None
    used: Used | None
    duration_ms: int


class GatewayLog:
    """Appends lines to a file. Use as a context manager.

    Args:
        path: Made where it is missing; what is in it stays, since a run may go on in a new process. None keeps no log.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> "GatewayLog":
        if self._path is not None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def add(self, line: GatewayLine) -> None:
        """Appends a line, whole, with one write. One that cannot be written is told on stderr, and the call goes on."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            _logger.warning("gateway.log_failed", path=self._path, error=str(error))


def read_gateway_log(data: bytes) -> list[GatewayLine]:
    """The lines of a log; a torn last one, of a process that was killed, is left out."""
    whole, _, _ = data.rpartition(b"\n")
    return [msgspec.json.decode(line, type=GatewayLine) for line in whole.splitlines()]
