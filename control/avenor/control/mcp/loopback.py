"""Addresses that only this machine reaches."""

import ipaddress
import socket
from typing import Final

DEFAULT_ADDRESS: Final = "127.0.0.1:3748"


def parse_address(text: str) -> tuple[str, int]:
    """The host and port of `HOST:PORT`, `[IPV6]:PORT` or `:PORT`, which is on 127.0.0.1.

    Raises:
        ValueError: It is no such address, or others than this machine could reach it.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{text!r} is no HOST:PORT")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)}
    except OSError as error:
        raise ValueError(f"{host!r} cannot be resolved: {error.strerror or error}") from error
    others = [address for address in found if not ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    if others:
        raise ValueError(f"{text!r}: {', '.join(sorted(others))} is no loopback address")
    return host, int(port)


def listen_on(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    Raises:
        OSError: The address cannot be had.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)
