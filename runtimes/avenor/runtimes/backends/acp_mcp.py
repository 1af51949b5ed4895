"""MCP servers in the shape in which ACP hands them to an agent, and the refusal of those that it cannot take. Pure."""

import shutil
from collections.abc import Mapping, Sequence

from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused


def to_wire(servers: Sequence[McpServer], env: Mapping[str, str], tag: tuple[str, str]) -> list[dict[str, object]]:
    """The `mcpServers` of session/new, load and resume.

    Args:
        servers: What to hand over.
        env: The agent's environment: ACP wants a program's whole path, which is looked for on the PATH there.
        tag: By which all that the agent starts is found again; some agents give their servers no environment of ours.
    """
    return [_program(server, env, tag) if server.type == "stdio" else _address(server) for server in servers]


def refuse_unless(servers: Sequence[McpServer], kinds: Sequence[str], who: str) -> None:
    """Lets pass servers of these kinds.

    Args:
        servers: What is to be handed over.
        kinds: What can be.
        who: Who says so, as the beginning of a sentence.

    Raises:
        BackendRefused: One is of another kind; the reason is `unsupported_mcp`.
    """
    for server in servers:
        if server.type not in kinds:
            can = f"only servers of type {' and '.join(kinds)}" if kinds else "no MCP servers at all"
            raise BackendRefused(
                f"MCP server {server.name!r} is of type {server.type}, and {who} takes {can}: leave it out, or choose "
                "another backend",
                reason="unsupported_mcp",
                data={"field": "mcp_servers", "server": server.name, "type": server.type, "offers": list(kinds)},
            )


def _program(server: McpServer, env: Mapping[str, str], tag: tuple[str, str]) -> dict[str, object]:
    command = server.command
    if "/" not in command:
        command = shutil.which(command, path=env.get("PATH")) or command
    return {"name": server.name, "command": command, "args": server.args, "env": _pairs({**server.env, tag[0]: tag[1]})}


def _address(server: McpServer) -> dict[str, object]:
    return {"type": server.type, "name": server.name, "url": server.url, "headers": _pairs(server.headers)}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
