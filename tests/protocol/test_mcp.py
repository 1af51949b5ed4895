"""MCP servers: the file that lists them, and what a run, a loop and a team may say of them."""

import json
from typing import Any

import pytest

from avenor.protocol.configs import ResolvedTeam
from avenor.protocol.errors import ConfigError, InvalidParams
from avenor.protocol.mcp import McpServer, is_http_url, join_servers, read_mcp_config
from avenor.protocol.spec import RunSpec, resolve_spec, with_servers
from tests.protocol.config_folder import check, errors, load, loop, phase, team

PING = McpServer(name="ping", command="ping-server")
STATED = {"name": "ping", "command": "ping-server"}


def read(value: Any) -> list[McpServer]:
    return read_mcp_config(json.dumps(value).encode(), file="mcp.json")


def mistakes(value: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(value)
    assert caught.value.message.splitlines() == [
        f"mcp.json: {found['path']}: {found['message']}" for found in caught.value.data["errors"]
    ]
    return [f"{found['path']}: {found['message']}" for found in caught.value.data["errors"]]


# The file


def test_a_file_lists_programs_and_addresses() -> None:
    """As other clients of MCP write it: the type may be left out for a program."""
    servers = read(
        {
            "mcpServers": {
                "files": {"command": "mcp-files", "args": ["--ro", "/data"], "env": {"TOKEN": "t"}},
                "also": {"type": "stdio", "command": "x"},
                "web": {"type": "http", "url": "https://host/mcp", "headers": {"Authorization": "Bearer b"}},
                "old": {"type": "sse", "url": "http://127.0.0.1:1/sse"},
            }
        }
    )
    assert servers == [
        McpServer(name="files", command="mcp-files", args=["--ro", "/data"], env={"TOKEN": "t"}),
        McpServer(name="also", command="x"),
        McpServer(name="web", type="http", url="https://host/mcp", headers={"Authorization": "Bearer b"}),
        McpServer(name="old", type="sse", url="http://127.0.0.1:1/sse"),
    ]


def test_a_file_may_list_nothing() -> None:
    """So that one can be made before there is anything to put in."""
    assert read({"mcpServers": {}}) == []


def test_every_mistake_of_a_file_is_told_with_its_path() -> None:
    """One in each server hides none in the next."""
    found = mistakes(
        {
            "servers": {},
            "mcpServers": {
                "a": {"command": 1, "argz": []},
                "b": {"command": "x", "url": "http://h/", "headers": {"A": "b"}},
                "c": {"type": "http"},
                "d": {"type": "ws", "url": "ws://h"},
                "e": {"url": "http://h/"},
                "f": {"type": "sse", "url": "h/sse", "command": "x", "args": ["y"], "env": {"A": "b"}},
                "g h": {},
                "i": {"command": "x", "env": {"A=B": "c"}, "args": ["\0"]},
                "j": {"type": "http", "url": "http://h/", "headers": {"A": "b\r\nC: d", "E": "\n"}},
                "k": [],
            },
        }
    )
    assert found == [
        "$.servers: unknown member; known here: mcpServers",
        "$.mcpServers.a.command: Expected `str`, got `int`",
        "$.mcpServers.a.argz: unknown member; known here: type, command, args, env, url, headers",
        "$.mcpServers.b.url: a server of type stdio takes no url",
        "$.mcpServers.b.headers: a server of type stdio takes no headers",
        "$.mcpServers.c: member 'url' is missing: the address of the server",
        "$.mcpServers.d.type: 'ws' is none of stdio, http, sse",
        "$.mcpServers.e: it has a url and no type: add the type, http or sse",
        "$.mcpServers.f.url: it is no address: write it as http://HOST/… or https://HOST/…",
        "$.mcpServers.f.command: a server of type sse takes no command",
        "$.mcpServers.f.args: a server of type sse takes no args",
        "$.mcpServers.f.env: a server of type sse takes no env",
        "$.mcpServers.g h: a server's name is 1 to 64 letters, digits, '-', '_' and '.'",
        "$.mcpServers.g h: member 'command' is missing: the program to start",
        "$.mcpServers.i.args: it holds a NUL",
        "$.mcpServers.i.env: a name is not empty and holds neither '=' nor NUL",
        "$.mcpServers.j.headers: a name is not empty, and neither names nor values hold line ends or NUL",
        "$.mcpServers.k: Expected `object`, got `array`",
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[]", '$: it must be an object: {"mcpServers": {NAME: …}}'),
        (b"{}", "$: member 'mcpServers' is missing"),
        (b'{"mcpServers": []}', "$.mcpServers: it must be an object: {NAME: …}"),
        (b"{", "$: this is no JSON: "),
        (b'"\xff"', "$: this is no JSON: "),
        (b'{"mcpServers": {}} x', "$: this is no JSON: "),
        (b'{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "$.mcpServers.a: it is there twice"),
    ],
)
def test_what_is_no_list_of_servers_says_what_is_expected(data: bytes, expected: str) -> None:
    """The wrong file, or half of one."""
    with pytest.raises(ConfigError) as caught:
        read_mcp_config(data, file="mcp.json")
    assert caught.value.message.startswith(f"mcp.json: {expected}")
    assert caught.value.data["file"] == "mcp.json"


def test_no_message_repeats_what_may_be_secret() -> None:
    """Values of env, headers and url come into no log by way of an error."""
    found = mistakes(
        {
            "mcpServers": {
                "a": {"command": "x", "env": {"T=": "hush"}},
                "b": {"type": "http", "url": "hush", "headers": {"A": "hush\n"}},
                "c": {"command": "x", "env": {"T": "hush\0"}},
            }
        }
    )
    assert len(found) == 4
    assert not any("hush" in each for each in found)


# A run


def test_a_run_takes_servers_that_are_right() -> None:
    """They stay as they are."""
    assert resolve_spec(RunSpec(prompt="go", dir="/d", mcp_servers=[PING])).mcp_servers == [PING]


def test_a_run_is_told_all_that_is_wrong_with_its_servers() -> None:
    """In the answer to a spawn, under `data.errors`."""
    servers = [PING, McpServer(name=""), McpServer(name="ping", command="other"), PING]
    with pytest.raises(InvalidParams) as caught:
        resolve_spec(RunSpec(prompt="go", dir="/d", mcp_servers=servers))
    assert caught.value.data["field"] == "mcp_servers"
    assert [(found["path"], found["message"]) for found in caught.value.data["errors"]] == [
        ("$.mcp_servers[1].name", "a server's name is 1 to 64 letters, digits, '-', '_' and '.'"),
        ("$.mcp_servers[1]", "member 'command' is missing: the program to start"),
        ("$.mcp_servers[2].name", "'ping' is another server earlier in the list: give one of them another name"),
    ]


def test_the_file_of_servers_is_relative_to_the_directory_of_the_run() -> None:
    """As every path."""
    assert resolve_spec(RunSpec(prompt="go", dir="/d", mcp_config="m.json")).mcp_config == "/d/m.json"


def test_of_two_servers_with_one_name_the_first_counts() -> None:
    """They are the same where this is used: a difference was refused before."""
    other = McpServer(name="web", type="http", url="http://h/")
    assert join_servers([PING], [other, PING]) == [PING, other]
    spec = RunSpec(prompt="go", mcp_servers=[PING])
    assert with_servers(spec, [other]).mcp_servers == [PING, other]
    assert with_servers(spec, []) is spec


# Loops and teams


def test_a_config_names_servers_for_its_phases() -> None:
    """They are kept in the config as it is resolved."""
    loaded = load(team(mcp_servers=[STATED]))
    assert isinstance(loaded.config, ResolvedTeam)
    assert loaded.config.mcp_servers == [PING]
    assert load(loop(mcp_servers=[STATED]), "loop").config.mcp_servers == [PING]
    assert load(team()).config.mcp_servers == []


def test_the_servers_of_a_config_are_checked_with_all_else() -> None:
    """Types, rules and names, each with its path."""
    servers = [STATED, {"name": "x"}, {"name": "y", "comand": "z"}, 5, {**STATED, "args": ["-v"]}, STATED]
    assert errors(team(mcp_servers=servers, team=[phase(prompt="")])) == [
        "root.json: $.mcp_servers[2].comand: unknown member; known here: name, type, command, args, env, url, headers",
        "root.json: $.mcp_servers[3]: Expected `object`, got `int`",
        "root.json: $.team[0].prompt: it is empty: a prompt needs some text",
        "root.json: $.mcp_servers[1]: member 'command' is missing: the program to start",
        "root.json: $.mcp_servers[4].name: 'ping' is another server earlier in the list: give one of them another name",
    ]
    assert errors(team(mcp_servers={})) == ["root.json: $.mcp_servers: Expected `array`, got `object`"]


def test_a_nested_config_may_add_servers_and_not_change_those_around_it() -> None:
    """Its phases get both; the same server twice is no mistake."""
    inner = loop(mcp_servers=[STATED, {"name": "web", "type": "http", "url": "http://h/"}])
    outer = team(team=[phase(loop_file="inner.json")], mcp_servers=[STATED])
    config = load(outer, files={"/c/inner.json": inner}).config
    assert isinstance(config, ResolvedTeam)
    nested = config.team[0].nested
    assert nested is not None
    assert [server.name for server in nested.mcp_servers] == ["ping", "web"]
    changed = loop(mcp_servers=[{**STATED, "args": ["-v"]}])
    assert errors(outer, files={"/c/inner.json": changed}) == [
        "inner.json: $.mcp_servers[0].name: 'ping' is another server of the run, or of a config around this one: "
        "give one of them another name"
    ]


def test_a_config_may_not_change_a_server_of_the_run() -> None:
    """Which of the two is meant, nobody could tell."""
    from avenor.protocol.config_loading import check_config

    data = json.dumps(team(mcp_servers=[{**STATED, "args": ["-v"]}])).encode()
    found = check_config("/c/r.json", "team", read=lambda _path: data, has_initial=False, servers=[PING])
    assert [error.path for error in found.errors] == ["$.mcp_servers[0].name"]
    same = check_config("/c/r.json", "team", read=lambda _path: data, has_initial=False)
    assert check(team()).errors == same.errors == []


# Addresses


@pytest.mark.parametrize("text", ["http://h", "https://h:1/p?q=1#f", "HTTP://[::1]:80/", "http://user:pw@h/"])
def test_an_address_has_a_scheme_and_a_host(text: str) -> None:
    """What more it has is the server's business."""
    assert is_http_url(text)


@pytest.mark.parametrize("text", ["", "h", "ftp://h", "http://", "http:///p", "http://h /", "http://h\n", "//h"])
def test_what_is_no_address_is_told(text: str) -> None:
    """Before an agent fails with it."""
    assert not is_http_url(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server_url": "localhost:4096", "backend": "opencode-http"}, "write it as http://HOST:PORT"),
        ({"server_url": "http://u:hush@h/"}, "only backend opencode-http takes it"),
    ],
)
def test_a_server_url_that_cannot_be_used_is_refused_without_being_repeated(
    changes: dict[str, Any], message: str
) -> None:
    """It may hold a password."""
    with pytest.raises(InvalidParams) as caught:
        resolve_spec(RunSpec(prompt="go", dir="/d", **changes))
    assert message in caught.value.message
    assert "hush" not in repr(caught.value)
    assert caught.value.data == {"field": "server_url"}


def test_the_server_url_stays_with_the_backend_that_takes_it() -> None:
    """In a team it is for the members that use it."""
    url = "http://127.0.0.1:4096"
    assert resolve_spec(RunSpec(prompt="go", dir="/d", backend="opencode-http", server_url=url)).server_url == url
    assert resolve_spec(RunSpec(team_file="t", dir="/d", server_url=url)).server_url == url
