"""The MCP server on the official SDK, with the SDK's client in the same process."""

from typing import Literal

import pytest
import trio
from mcp.client import Client as McpClient
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent
from trio.testing import MockClock

from avenor.control.mcp.calls import PROGRESS_SECONDS, Jockey
from avenor.control.mcp.server import make_server
from avenor.protocol.snapshot import Snapshot
from tests.control.mcp_kit import FakeClient

MODES: tuple[Literal["auto", "legacy"], ...] = ("auto", "legacy")


def host_of(client: FakeClient, mode: Literal["auto", "legacy"] = "auto") -> McpClient:
    """A host of a server whose supervisor is this one."""
    return McpClient(make_server(client.link, Jockey(client.link), "1.2"), mode=mode)


@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_are_listed_with_their_hints(mode: Literal["auto", "legacy"]) -> None:
    """Hosts ask a person by them."""
    async with host_of(FakeClient(), mode) as host:
        tools = {tool.name: tool for tool in (await host.list_tools()).tools}
        hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations is not None}
        assert hints.keys() == tools.keys()
        assert {name for name, hint in hints.items() if hint.read_only_hint} == {
            f"avenor_{word}" for word in ("status", "list", "result", "events", "inspect")
        }
        assert {name for name, hint in hints.items() if hint.destructive_hint} == {
            f"avenor_{word}" for word in ("interrupt", "cancel", "shutdown")
        }
        assert {name for name, hint in hints.items() if hint.open_world_hint} == {
            f"avenor_{word}" for word in ("spawn", "answer_permission", "prompt", "interrupt", "follow_up")
        }
        assert host.instructions is not None
        assert "avenor_spawn" in host.instructions


async def test_a_host_that_asks_for_progress_sees_a_long_wait(autojump_clock: MockClock) -> None:
    """In growing seconds, with what the run is at."""
    client = FakeClient(Snapshot(run_id="r", runtime_id="rt_1", status="running", phase="thinking"))
    seen: list[tuple[float, str | None]] = []

    async def show(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        seen.append((progress, message))
        if len(seen) == 3:
            client.snapshots[0] = Snapshot(run_id="r", runtime_id="rt_1", status="idle", final_output="x")
            client.changed.set()
        await trio.lowlevel.checkpoint()

    # The SDK's newest protocol has no progress between parts of one process; over a wire it has: tests/e2e.
    async with host_of(client, "legacy") as host:
        result = await host.call_tool("avenor_result", {"run_id": "r"}, progress_callback=show)
    assert not result.is_error
    assert [seconds for seconds, _ in seen] == pytest.approx([n * PROGRESS_SECONDS for n in (1, 2, 3)])
    assert seen[0][1] == "r running thinking last sign of life 0s ago"


async def test_a_fault_of_ours_is_a_result_that_hides_its_details(capsys: pytest.CaptureFixture[str]) -> None:
    """The connection and the other tools go on."""
    client = FakeClient()

    async def broken(fields: list[str] | None = None) -> list[Snapshot]:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("secret")

    works, client.list = client.list, broken  # type: ignore[method-assign]
    async with host_of(client) as host:
        result = await host.call_tool("avenor_list", {})
        assert result.is_error
        assert isinstance(result.content[0], TextContent)
        assert "a fault in avenor" in result.content[0].text
        assert "secret" not in result.content[0].text
        client.list = works  # type: ignore[method-assign]
        assert not (await host.call_tool("avenor_list", {})).is_error
        with pytest.raises(MCPError, match="no tool"):
            await host.call_tool("avenor_dance", {})
    assert "tool.failed" in capsys.readouterr().out  # where structlog prints as long as nobody has configured it
