"""Telling a service manager how the supervisor is: started, at what, stopping, alive.

The protocol of sd_notify(3), which systemd and others speak: datagrams of `NAME=value` lines to the socket that the
environment names. Without one, and whatever goes wrong, nothing is told and nothing else changes.
"""

import errno
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Final

import structlog
import trio

from avenor.protocol.snapshot import RunStatus
from avenor.stable.runtime import Runtime
from avenor.stable.shutdown import Mode

# What is for this process alone: a runtime that had it would speak for the supervisor.
_NAMES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
# A crowd that starts or ends together costs one message.
_STATUS_SECONDS: Final = 1.0
_ORDER: Final[tuple[RunStatus, ...]] = ("running", "starting", "idle", "queued")
_FULL: Final = (errno.EAGAIN, errno.ENOBUFS)

_logger: Final = structlog.get_logger()


class Notifier:
    """Speaks to the service manager, if there is one, until it is closed.

    Args:
        address: The socket: a path, or a name in the abstract namespace that begins with `@`; None tells nobody.
        watchdog_seconds: How long the manager waits for a sign of life before it kills; None is for ever.
    """

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self._watchdog_seconds = watchdog_seconds
        self._status = ""
        # Opened once: a supervisor without a descriptor to spare lives, and must be able to say so.
        self._sender = None if address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if self._sender is not None:
            self._sender.setblocking(False)

    def close(self) -> None:
        """Tell nothing more."""
        if self._sender is not None:
            self._sender.close()

    async def tell_stopping(self) -> None:
        """Say that the supervisor is about to end, until it is taken: from there on the manager counts the time."""
        await self._insist("STOPPING=1")

    async def tell_alive(self) -> None:
        """Give signs of life until cancelled, from the loop that does all the work: one that is stuck gives none."""
        if self._address is None or self._watchdog_seconds is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await trio.sleep(self._watchdog_seconds / 2)

    async def report(self, text: Callable[[], str], wait_changed: Callable[[], Awaitable[None]]) -> None:
        """Say that the supervisor answers, and from then on what it is at, until cancelled.

        Args:
            text: What to say.
            wait_changed: Returns when that may be another.
        """
        if self._address is None:
            return
        await self._insist("READY=1")
        while True:
            if self._tell_status(text()):
                await wait_changed()
            await trio.sleep(_STATUS_SECONDS)

    def _tell_status(self, text: str) -> bool:
        """Say what the supervisor is at, for people, if that is news; False if there was no room for it now."""
        if text != self._status:
            if not self._tell(f"STATUS={text}"):
                return False
            self._status = text
        return True

    async def _insist(self, message: str) -> None:
        """Send a message until it is taken: a socket that is not connected tells nobody when there is room."""
        while True:
            if self._tell(message):
                return
            await trio.sleep(_STATUS_SECONDS)

    def _tell(self, message: str) -> bool:
        """Send a message; False if there was no room for it now. What can never be sent is given up."""
        if self._address is None or self._sender is None:
            return True
        try:
            self._sender.sendto(message.encode(), _socket_address(self._address))
        except OSError as error:
            if error.errno in _FULL:
                return False
            _logger.warning("service_manager.not_told", message=message, error=str(error))
        return True


def take_notifier(environ: MutableMapping[str, str], pid: int) -> Notifier:
    """The notifier that an environment asks for; what asks is taken out of it, so that no child inherits it.

    Args:
        environ: With `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, or some of them, or none.
        pid: This process; a watchdog that is meant for another one is not ours.
    """
    address, watchdog_usec, watchdog_pid = (environ.pop(name, "") for name in _NAMES)
    if address and address[0] not in "/@":  # AF_VSOCK and what may come
        _logger.warning("service_manager.unknown_address", address=address)
        address = ""
    is_ours = watchdog_pid in ("", str(pid))
    seconds = int(watchdog_usec) / 1e6 if is_ours and watchdog_usec.isdecimal() else 0.0
    return Notifier(address or None, seconds or None)


def describe(runtimes: Iterable[Runtime], mode: Mode | None = None) -> str:
    """One line on what a supervisor is at.

    Args:
        runtimes: Those that live.
        mode: How it is stopping, if it is.
    """
    counts = Counter(runtime.state.status for runtime in runtimes)
    parts = [f"{counts[status]} {status}" for status in _ORDER if counts[status]]
    text = ", ".join(parts) or "no runtime is live"
    return text if mode is None else f"shutting down ({mode}): {text}"


def _socket_address(address: str) -> str | bytes:
    return b"\0" + os.fsencode(address[1:]) if address.startswith("@") else address
