"""A close that takes longer than any may: nothing is proven, nobody waits for it, and it can be tried again."""

from pathlib import Path

import pytest
import trio

from avenor.host import tree
from avenor.host.ladder import Graces
from avenor.runtimes.backends.base import TurnStop, close_in_time, open_within
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink
from tests.runtimes.conformance import Kit
from tests.runtimes.opencode_kit import FakeKit
from tests.runtimes.test_acp_conformance import ScriptedKit

_NO_TIME = Graces(stdin_seconds=0.0, term_seconds=0.0, kill_seconds=0.0)


@pytest.mark.parametrize("kit", [ScriptedKit("scripted"), FakeKit()], ids=["a process of its own", "a server"])
async def test_a_close_that_is_cut_short_lets_go(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn under way and all tasks end, whether or not the agent does; the next close ends what is left of that."""
    params, sink, stops = kit.params(tmp_path), RecordingSink(), list[TurnStop]()

    async def never(**_arguments: object) -> None:
        await trio.sleep_forever()

    async def talk() -> None:
        stops.append(await session.prompt(kit.talk_on()))

    with trio.fail_after(TURN_SECONDS):
        async with trio.open_nursery() as nursery:
            session = await open_within(OPEN_SECONDS, kit.backend, params, sink, nursery)
            nursery.start_soon(talk)
            await sink.wait_text("tick")
            with monkeypatch.context() as patch:
                patch.setattr("avenor.runtimes.backends.agent_process.stop_tree", never)
                patch.setattr("avenor.runtimes.backends.base.CLOSING_SECONDS", 1.0)
                stopped = await close_in_time(session, _NO_TIME)
        assert (stopped.left, stopped.unverified) == ([], "ending the agent took longer than it may")
        assert [stop.stop_reason for stop in stops] == ["cancelled"]
        await session.wait_exited()  # told, though the agent may only end now that its stdin is closed, or not at all
        assert (await session.close(GRACES)).left == []
    assert tree.tagged(*params.tag) == []
