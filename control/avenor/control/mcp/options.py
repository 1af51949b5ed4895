"""What an MCP server is started with, as `avenor mcp` reads it from its command line."""

from collections.abc import Awaitable, Callable

import msgspec

from avenor.control.mcp.private import PrivateSupervisor


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one MCP server.

    Attributes:
        socket: The supervisor's; absolute.
        starts: Whether it is a private one, which is started when it is not there.
        idle_seconds: How long the private one stays without clients and live runs; None is for ever.
        parent_id: The runtime that this server works for, if its supervisor is the one that it uses.
        version: Of avenor.
    """

    socket: str
    starts: bool
    idle_seconds: float | None = None
    parent_id: str | None = None
    version: str = ""

    def finder(self) -> Callable[[], Awaitable[str]]:
        """What gives the supervisor's socket, each time that it is to be connected to."""
        if self.starts:
            return PrivateSupervisor(self.socket, self.idle_seconds).find

        async def named() -> str:
            return self.socket

        return named
