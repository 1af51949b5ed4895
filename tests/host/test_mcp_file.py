"""The file of MCP servers of a run."""

import json
import os
from pathlib import Path

import pytest

from avenor.host.mcp_file import load_servers
from avenor.protocol.errors import AvenorError, ConfigError, InvalidParams
from avenor.protocol.mcp import McpServer
from avenor.protocol.spec import RunSpec

PING = McpServer(name="ping", command="ping-server")


def spec(path: Path, *servers: McpServer) -> RunSpec:
    return RunSpec(prompt="go", mcp_config=str(path), mcp_servers=list(servers))


def test_a_run_without_a_file_stays_as_it_is() -> None:
    """There is nothing to read."""
    given = RunSpec(prompt="go", mcp_servers=[PING])
    assert load_servers(given) is given


def test_what_the_file_lists_joins_what_was_given(tmp_path: Path) -> None:
    """The same server in both is handed over once."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"ping": {"command": "ping-server"}, "b": {"command": "x"}}}))
    assert load_servers(spec(path, PING)).mcp_servers == [PING, McpServer(name="b", command="x")]


def test_one_name_for_two_servers_is_refused(tmp_path: Path) -> None:
    """Nobody could tell which of them is meant."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"ping": {"command": "another"}}}))
    with pytest.raises(
        InvalidParams, match=r"mcp_servers\[0\]\.name: 'ping' is another server in .*mcp\.json"
    ) as caught:
        load_servers(spec(path, PING))
    assert caught.value.data["field"] == "mcp_servers"
    assert [found["path"] for found in caught.value.data["errors"]] == ["$.mcp_servers[0].name"]


def test_a_file_that_cannot_be_used_is_told_with_its_name(tmp_path: Path) -> None:
    """Missing, no file that can be read to an end, or wrong inside."""
    wrong, pipe = tmp_path / "wrong.json", tmp_path / "pipe"
    wrong.write_text('{"mcpServers": {"a": {}}}')
    os.mkfifo(pipe)
    cases: list[tuple[Path, type[AvenorError], str]] = [
        (tmp_path / "none.json", InvalidParams, "No such file"),
        (pipe, InvalidParams, "not a regular file"),
        (wrong, ConfigError, r"wrong\.json: \$\.mcpServers\.a: member 'command' is missing"),
    ]
    for path, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            load_servers(spec(path))
        assert caught.value.data["field"] == "mcp_config"
        assert str(path) in caught.value.message
