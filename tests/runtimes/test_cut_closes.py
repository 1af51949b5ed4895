"""A close that is cut short, as one that takes longer than any may: nobody waits for it, and it can be tried again."""

from pathlib import Path

import pytest
import trio

from avenor.host import tree
from avenor.runtimes.backends.base import TurnStop, open_within
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink
from tests.runtimes.conformance import Kit
from tests.runtimes.opencode_kit import FakeKit
from tests.runtimes.test_acp_conformance import ScriptedKit


@pytest.mark.parametrize("kit", [ScriptedKit("scripted"), FakeKit()], ids=["a process of its own", "a server"])
async def test_a_close_that_is_cut_short_lets_go(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn under way and all tasks end, whether or not the agent does; the next close ends what is left of that."""
    params, sink, stops = kit.params(tmp_path), RecordingSink(), list[TurnStop]()

    async def is_cut_short(**_arguments: object) -> None:
        cut.cancel()
        await trio.sleep_forever()

    async def talk() -> None:
        stops.append(await session.prompt(kit.talk_on()))

    with trio.fail_after(TURN_SECONDS):
        async with trio.open_nursery() as nursery:
            session = await open_within(OPEN_SECONDS, kit.backend, params, sink, nursery)
            nursery.start_soon(talk)
            await sink.wait_text("tick")
            with monkeypatch.context() as patch, trio.CancelScope() as cut:
                patch.setattr("avenor.runtimes.backends.agent_process.stop_tree", is_cut_short)
                await session.close(GRACES)
        assert cut.cancelled_caught
        assert [stop.stop_reason for stop in stops] == ["cancelled"]
        await session.wait_exited()  # told, though the agent may only end now that its stdin is closed, or not at all
        assert (await session.close(GRACES)).left == []
    assert tree.tagged(*params.tag) == []
