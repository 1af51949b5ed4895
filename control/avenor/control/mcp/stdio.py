"""The MCP server on standard input and output.

The SDK's own reader drops what is no message, and whoever sent it waits for an answer that never comes. Lines are read
here: what is broken is mended, as an agent's lines are, and what cannot be mended is answered.
"""

import io
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
import msgspec
import trio
from anyio.abc import ObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from avenor.control.mcp.options import Options
from avenor.control.mcp.server import open_server
from avenor.protocol.errors import INVALID_REQUEST
from avenor.protocol.peer import IncomingNotification, IncomingRequest, Malformed, Peer

_decode: Final = types.jsonrpc_message_adapter.validate_json
_convert: Final = types.jsonrpc_message_adapter.validate_python


def serve_stdio(options: Options) -> None:
    """Be an MCP server on standard input and output, until the host closes them."""
    trio.run(_serve_stdio, options, strict_exception_groups=True)


async def _serve_stdio(options: Options) -> None:
    no_lines = anyio.wrap_file(io.StringIO())
    taken, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with (
        open_server(options) as server,
        stdio_server(no_lines) as (_, writing),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_read, trio.wrap_file(sys.stdin.buffer), taken, writing.send)
        await server.run(reading, writing, server.create_initialization_options())


async def _read(
    lines: AsyncIterable[bytes],
    taken: ObjectSendStream[SessionMessage | Exception],
    answer: Callable[[SessionMessage], Awaitable[None]],
) -> None:
    async with taken:
        async for line in lines:
            message = read_message(line)
            if isinstance(message, Malformed):
                problem = types.ErrorData(code=message.code, message=message.reason)
                await answer(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=message.id, error=problem)))
            elif message is not None:
                await taken.send(SessionMessage(message))


def read_message(line: bytes) -> types.JSONRPCMessage | Malformed | None:
    """The message in a line, mended where that is needed; None where there is nothing to take and nobody to answer."""
    try:
        return _decode(line, by_name=False)
    except ValueError:
        incoming = Peer().receive(line)
    if isinstance(incoming, Malformed):
        return incoming if line.strip() else None
    if not isinstance(incoming, IncomingRequest | IncomingNotification):
        return None
    try:
        params = msgspec.json.decode(incoming.params)
        return _convert({"jsonrpc": "2.0", **msgspec.structs.asdict(incoming), "params": params}, by_name=False)
    except ValueError:  # no object, or one with a number that nothing can hold
        if isinstance(incoming, IncomingNotification):
            return None
        return Malformed("params cannot be used", line, INVALID_REQUEST, incoming.id)
