"""The one connection of an MCP server to its supervisor."""

from pathlib import Path

import pytest
import trio

from avenor.control.client import Client
from avenor.control.hub import EventHub, SingleHub
from avenor.control.mcp.link import Link, open_link
from avenor.protocol.errors import BrokenError, ClosedError, NoSuchRuntime, Unavailable
from avenor.protocol.events import TurnEnd
from avenor.protocol.snapshot import Snapshot
from tests.control.served import Writer, serving
from tests.helpers import eventually


def no_such(name: str) -> Exception:
    """For hubs."""
    return NoSuchRuntime(f"there is no {name}")


class CountingHub(SingleHub):
    """Says how often a call has come to it."""

    found = 0

    def find(self, runtime_id: str | None) -> EventHub:
        """Counts."""
        self.found += 1
        return super().find(runtime_id)


async def test_all_calls_share_one_connection_which_is_made_when_it_is_needed(tmp_path: Path) -> None:
    """Ownership hangs on it."""
    asked: list[str] = []

    async def find() -> str:
        asked.append("find")
        return str(served.path)

    async with serving(tmp_path, SingleHub(Writer(tmp_path).hub, no_such)) as served, open_link(find) as link:
        assert asked == []
        clients: list[object] = []

        async def ask() -> None:
            clients.append(await link.ask(_itself))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert clients[0] is clients[1]
        assert asked == ["find"]


async def _itself(client: object) -> object:
    await trio.lowlevel.checkpoint()
    return client


@pytest.mark.parametrize("again", [True, False])
async def test_a_question_that_the_break_cut_short_is_asked_again_only_if_it_may(tmp_path: Path, again: bool) -> None:
    """What looks is repeated over a new connection; what acts may have been carried out."""
    writer = Writer(tmp_path)
    hub = SingleHub(writer.hub, no_such)
    asked: list[Client] = []
    came: list[object] = []

    async def find() -> str:
        await trio.lowlevel.checkpoint()
        return str(tmp_path / f"{len(asked)}.sock")

    async def question(client: Client) -> Snapshot:
        asked.append(client)
        return await client.wait(until="done")

    async def ask(link: Link) -> None:
        try:
            came.append(await link.ask(question, again=again))
        except BrokenError as error:
            came.append(error)

    async with open_link(find) as link, serving(tmp_path, hub, "1.sock"), trio.open_nursery() as nursery:
        async with serving(tmp_path, hub, "0.sock"):
            nursery.start_soon(ask, link)
            await eventually(lambda: asked)
        await eventually(lambda: came or len(asked) == 2)
        writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
        await eventually(lambda: came)
    assert isinstance(came[0], Snapshot if again else BrokenError)
    assert len(asked) == (2 if again else 1)


async def test_a_server_that_does_not_come_back_is_told_of_as_broken(tmp_path: Path) -> None:
    """It may have carried out what it was asked, unlike one that was not there to begin with."""
    reasons: list[str] = []

    async def find() -> str:
        await trio.lowlevel.checkpoint()
        return str(tmp_path / "0.sock")

    async def question(client: Client) -> Snapshot:
        await served.server.close()
        served.listener.close()
        return await client.wait(until="done")

    hub = SingleHub(Writer(tmp_path).hub, no_such)
    async with open_link(find) as link, serving(tmp_path, hub, "0.sock") as served:
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await link.ask(question)
            reasons.append(caught.value.reason_word)
    assert reasons == ["broken", "no_server"]


@pytest.mark.parametrize("again", [True, False])
async def test_a_question_that_the_server_refuses_because_it_closes_is_asked_again_only_if_it_may(
    tmp_path: Path, again: bool
) -> None:
    """As before an upgrade: the answer of that moment is no reason to give a run up that its successor still has."""
    writer = Writer(tmp_path)
    hub = CountingHub(writer.hub, no_such)
    asked: list[Client] = []
    came: list[object] = []

    async def find() -> str:
        await trio.lowlevel.checkpoint()
        return str(tmp_path / f"{len(asked)}.sock")

    async def question(client: Client) -> Snapshot:
        asked.append(client)
        return await client.wait(until="done")

    async def ask(link: Link) -> None:
        try:
            came.append(await link.ask(question, again=again))
        except ClosedError as error:
            came.append(error)

    async with open_link(find) as link, serving(tmp_path, hub, "1.sock"), trio.open_nursery() as nursery:
        async with serving(tmp_path, hub, "0.sock") as first:
            nursery.start_soon(ask, link)
            await eventually(lambda: hub.found)
            await first.server.close()
            await eventually(lambda: came or len(asked) == 2)
        writer.emit(TurnEnd(stop_reason="end_turn", final_output="x"))
        await eventually(lambda: came)
    assert isinstance(came[0], Snapshot if again else ClosedError)
    assert len(asked) == (2 if again else 1)
