"""Runs and their logs as MCP resources."""

import msgspec
import pytest

from avenor.control.mcp.resources import list_resources, read_resource
from avenor.protocol.snapshot import Snapshot
from tests.control.mcp_kit import FakeClient, events


@pytest.mark.parametrize("run_id", ["a/b", "a/log", "50%", "%2F", "ä b?#", ".."])
async def test_what_is_listed_can_be_read_whatever_its_run_is_called(run_id: str) -> None:
    """The run id is one segment of the URI, and ASCII."""
    log = events({"event": "run.start"})
    client = FakeClient(Snapshot(run_id="other"), Snapshot(run_id=run_id, latest_seq=1), log=log)
    _, _, run, its_log = await list_resources(client.link)
    assert run.uri.isascii()
    assert " " not in run.uri
    text, _ = await read_resource(client.link, run.uri)
    assert msgspec.json.decode(text)["run_id"] == run_id
    text, _ = await read_resource(client.link, its_log.uri)
    assert [msgspec.json.decode(line) for line in text.splitlines()] == log
