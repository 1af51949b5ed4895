"""What is special to the ACP agents that people run, driven for real with the stand-in model behind each.

The suite that holds for all agents is `test_conformance`.
"""

import sys
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import BackendRefused
from avenor.runtimes.backends.profiles import builtin
from tests.agents.acp_agents import RECIPES, AcpKit, AgentHome
from tests.agents.acp_dialects import DialectModel
from tests.agents.mcp_http_probe import HttpProbe
from tests.agents.standin_model import StandInModel
from tests.helpers import eventually
from tests.runtimes.agent_kit import OPEN_SECONDS, RecordingSink, opened, picks

pytestmark = pytest.mark.agents

# Those that start no MCP servers; that the others do is shown by the conformance suite.
_WITHOUT_PROGRAMS = [name for name, recipe in RECIPES.items() if "stdio" not in builtin(recipe.backend).mcp]


@pytest.fixture(scope="session")
def translated(model: StandInModel) -> Generator[DialectModel, None, None]:
    """The stand-in for agents that do not speak its dialect."""
    with DialectModel(model.url) as running:
        yield running


@pytest.fixture(scope="session", params=list(RECIPES))
def name(request: pytest.FixtureRequest) -> str:
    """The recipe of the agent under test; all tests of one agent come together."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def kit(name: str, model: StandInModel, translated: DialectModel, tmp_path_factory: pytest.TempPathFactory) -> AcpKit:
    """The agent, with a home of its own."""
    home = AgentHome(name, tmp_path_factory.mktemp(name), model.url, translated.url)
    return AcpKit(name, home, model)


async def test_it_asks_before_it_acts(kit: AcpKit, tmp_path: Path) -> None:
    """As it is started, a tool is asked for, and exactly one of the answers may be taken for the user."""
    sink, made = RecordingSink(picks("allow_once")), tmp_path / "made.txt"
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        await session.prompt(kit.touch(made))
    (ask,) = sink.asks
    kinds = {option.option_id: option.kind for option in ask.options}
    assert [kinds[option] for option in ask.trusted_options] == ["allow_once"]


async def test_a_turned_down_tool_is_no_cancelled_turn(kit: AcpKit, tmp_path: Path) -> None:
    """Whatever the agent calls it: its turn has ended, and nobody has cancelled it."""
    sink, made = RecordingSink(picks("reject_once")), tmp_path / "made.txt"
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        stop = await session.prompt(kit.touch(made))
    assert (stop.stop_reason, stop.error) == ("end_turn", None)
    assert not made.exists()


@pytest.mark.parametrize("name", _WITHOUT_PROGRAMS, indirect=True)
async def test_a_program_as_mcp_server_is_not_left_out_in_silence(name: str, kit: AcpKit, tmp_path: Path) -> None:
    """An agent that cannot start one is not given any: the refusal says what it takes (copilot would ignore it)."""
    kinds = builtin(RECIPES[name].backend).mcp
    server = McpServer(name="probe", command=sys.executable)
    params = msgspec.structs.replace(kit.params(tmp_path), mcp_servers=[server])
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused, match=f"takes only servers of type {' and '.join(kinds)}"):
            await kit.backend.open(params, RecordingSink(), nursery)


async def test_an_mcp_server_on_http_reaches_it(kit: AcpKit, tmp_path: Path) -> None:
    """With the headers that were given, and asked for its tools."""
    with HttpProbe() as probe:
        server = McpServer(name="probe", type="http", url=probe.url, headers={"X-Probe": "heron"})
        params = msgspec.structs.replace(kit.params(tmp_path), mcp_servers=[server])
        async with opened(kit.backend, params, RecordingSink()) as session:
            await session.prompt(kit.say("hello"))
            await eventually(lambda: "tools/list" in probe.asked, seconds=OPEN_SECONDS)
    assert "heron" in probe.asked


async def test_nothing_that_it_says_is_noise(kit: AcpKit, tmp_path: Path) -> None:
    """Whatever it sends outside the protocol's own updates is kept as it came; none of it is taken for garbage."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(tmp_path), sink) as session:
        await session.prompt(kit.say("hello"))
    assert sink.of(events.AgentNoise) == []
