"""MCP servers that a run hands to its agents: what one is, and the file in which people list them.

The file is the one that MCP clients share: `{"mcpServers": {NAME: {"command", "args", "env"} | {"type", "url",
"headers"}}}`. Values of `env`, `headers` and `url` may be secrets: no message here repeats one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from avenor.protocol.errors import ConfigError
from avenor.protocol.validation import Mistake, find_doubles, find_mistakes

# Agents make tool names from it, and some refuse other characters.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_URL: Final = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server: a program, or an address.

    Attributes:
        name: Unique within a run.
        type: How it is reached.
        command: The program of `stdio`, with `args` and `env`, which adds to the agent's environment.
        url: The address of `http` and `sse`, with `headers` for each request.
    """

    name: str
    type: Literal["stdio", "http", "sse"] = "stdio"
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server in the file, where its name is the key."""

    type: Literal["stdio", "http", "sse"] = "stdio"
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}


def read_mcp_config(data: bytes, *, file: str) -> list[McpServer]:
    """The servers in a file.

    Args:
        data: Its content.
        file: Its name, for messages.

    Raises:
        ConfigError: It cannot be used; the message has a line for each mistake, `data.errors` lists them all.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(file, [Mistake("$", f"this is no JSON: {error}")]) from error
    servers: list[McpServer] = []
    mistakes = find_doubles(data)
    for path, name, item in _entries(value, mistakes):
        found = find_mistakes(item, _Entry, path)
        if not found:
            server = McpServer(name=name, **cast("dict[str, Any]", item))
            found = find_server_mistakes(server, path, name_path=path)
            servers.append(server)
        mistakes += found
    if mistakes:
        raise _refusal(file, mistakes)
    return servers


def find_server_mistakes(server: McpServer, path: str, *, name_path: str | None = None) -> list[Mistake]:
    """What is wrong with a server beyond its types.

    Args:
        server: Its types are right.
        path: Where it stands, as a JSON path.
        name_path: Where its name stands, if not beside the rest.
    """
    return list(_rules(server, path, name_path or f"{path}.name"))


def find_conflicts(servers: Mapping[str, McpServer], known: Mapping[str, McpServer], where: str) -> list[Mistake]:
    """Names that mean one server here and another there; the same server twice is none.

    Args:
        servers: By their JSON paths.
        known: By their names.
        where: Who else gives servers, in words.
    """
    return [
        Mistake(f"{path}.name", f"{server.name!r} is another server {where}: give one of them another name")
        for path, server in servers.items()
        if known.get(server.name, server) != server
    ]


def find_list_mistakes(servers: Sequence[McpServer], path: str) -> list[Mistake]:
    """What is wrong with servers beyond their types, each by itself and all together."""
    found: list[Mistake] = []
    known: dict[str, McpServer] = {}
    for index, server in enumerate(servers):
        place = f"{path}[{index}]"
        found += find_server_mistakes(server, place)
        found += find_conflicts({place: server}, known, "earlier in the list")
        known.setdefault(server.name, server)
    return found


def join_servers(first: Sequence[McpServer], second: Sequence[McpServer]) -> list[McpServer]:
    """All of them, in order, each name once: of two that have one, the first counts."""
    by_name: dict[str, McpServer] = {}
    for server in (*first, *second):
        by_name.setdefault(server.name, server)
    return list(by_name.values())


def is_http_url(text: str) -> bool:
    """Whether a text is the address of something on the web: `http` or `https`, with a host."""
    return _URL.fullmatch(text) is not None


def _entries(value: object, mistakes: list[Mistake]) -> Iterator[tuple[str, str, object]]:
    """Path, name and content of each server of a file; what is wrong around them goes to `mistakes`."""
    if not isinstance(value, dict):
        mistakes.append(Mistake("$", 'it must be an object: {"mcpServers": {NAME: …}}'))
        return
    members = cast("dict[str, object]", value)
    mistakes += [
        Mistake(f"$.{name}", "unknown member; known here: mcpServers") for name in members if name != "mcpServers"
    ]
    if "mcpServers" not in members:
        mistakes.append(Mistake("$", "member 'mcpServers' is missing"))
        return
    servers = members["mcpServers"]
    if not isinstance(servers, dict):
        mistakes.append(Mistake("$.mcpServers", "it must be an object: {NAME: …}"))
        return
    for name, item in cast("dict[str, object]", servers).items():
        yield f"$.mcpServers.{name}", name, item


def _rules(server: McpServer, path: str, name_path: str) -> Iterator[Mistake]:
    if not _NAME.fullmatch(server.name):
        yield Mistake(name_path, "a server's name is 1 to 64 letters, digits, '-', '_' and '.'")
    if server.type == "stdio":
        yield from _program_rules(server, path)
    else:
        yield from _address_rules(server, path)


def _program_rules(server: McpServer, path: str) -> Iterator[Mistake]:
    if server.url and not server.command:
        yield Mistake(path, "it has a url and no type: add the type, http or sse")
        return
    if not server.command:
        yield Mistake(path, "member 'command' is missing: the program to start")
    yield from _misplaced(path, "stdio", url=server.url, headers=server.headers)
    for name, texts in (("command", [server.command]), ("args", server.args), ("env", [*server.env.values()])):
        if any("\0" in text for text in texts):
            yield Mistake(f"{path}.{name}", "it holds a NUL")
    if any(not name or "=" in name or "\0" in name for name in server.env):
        yield Mistake(f"{path}.env", "a name is not empty and holds neither '=' nor NUL")


def _address_rules(server: McpServer, path: str) -> Iterator[Mistake]:
    if not server.url:
        yield Mistake(path, "member 'url' is missing: the address of the server")
    elif not is_http_url(server.url):
        yield Mistake(f"{path}.url", "it is no address: write it as http://HOST/… or https://HOST/…")
    yield from _misplaced(path, server.type, command=server.command, args=server.args, env=server.env)
    for name, value in server.headers.items():
        if not name or any(character in name + value for character in "\r\n\0"):
            yield Mistake(f"{path}.headers", "a name is not empty, and neither names nor values hold line ends or NUL")
            return


def _misplaced(path: str, kind: str, **values: object) -> Iterator[Mistake]:
    for name, value in values.items():
        if value:
            yield Mistake(f"{path}.{name}", f"a server of type {kind} takes no {name}")


def _refusal(file: str, mistakes: Sequence[Mistake]) -> ConfigError:
    lines = [f"{file}: {found.path}: {found.message}" for found in mistakes]
    data = {"file": file, "path": mistakes[0].path, "errors": msgspec.to_builtins(list(mistakes))}
    return ConfigError("\n".join(lines), data=data)
