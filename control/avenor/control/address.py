"""Where HTTP is served: addresses that only this machine reaches."""

import ipaddress
import socket
from typing import Final

import msgspec

# Connections that wait to be accepted; a crowd beyond it is told by its kernel to try again.
_BACKLOG: Final = 128


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A loopback address.

    Attributes:
        name: The host as it was given.
        ip: What it resolved to, once: who listens must not be led elsewhere by asking again.
        port: 0 for a free one.
    """

    name: str
    ip: str
    port: int

    @property
    def host(self) -> str:
        """The IP address as it stands in a URL."""
        return f"[{self.ip}]" if ":" in self.ip else self.ip


def parse_address(text: str) -> Address:
    """The address that `HOST:PORT`, `[IPV6]:PORT` or `:PORT`, which is on 127.0.0.1, names.

    Blocks where a name must be looked up.

    Raises:
        ValueError: It is no such address, or others than this machine could reach it.
    """
    name, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{text!r} is no HOST:PORT; :8080 means 127.0.0.1:8080")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        raise ValueError(f"{text!r}: an IPv6 address goes in brackets, [::1]:8080")
    name = name or "127.0.0.1"
    return Address(name=name.lower(), ip=_only_loopback(name), port=int(port))


def listen(address: Address) -> socket.socket:
    """A socket that listens there, non-blocking.

    Raises:
        OSError: The address cannot be had.
    """
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    listener = socket.create_server((address.ip, address.port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _only_loopback(name: str) -> str:
    """What a host resolves to, IPv4 first.

    Raises:
        ValueError: To nothing, or not to loopback addresses alone.
    """
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"the host {name!r} cannot be resolved: {reason}; use 127.0.0.1") from error
    others = sorted({each for each in found if not ipaddress.ip_address(each).is_loopback})
    if others:
        raise ValueError(f"the host {name!r} is {', '.join(others)}, which is no loopback address; use 127.0.0.1")
    return min(found, key=lambda each: ":" in each)
