"""Agents that would approve by themselves are started in a mode in which they ask."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.host import tree
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.base import BackendRefused, OpenParams
from avenor.runtimes.backends.profiles import builtin, builtin_names
from tests.runtimes.agent_kit import RecordingSink, make_params, opened, python_agent
from tests.runtimes.mini_agent import PRELUDE

# An agent that comes in mode `wild`, and exits when it is told another mode than those it offers.
_BODY = """
modes = [{"id": m, "name": m.upper()} for m in ("wild", "tame", "plan")]
def state(current):
    return {"currentModeId": current, "availableModes": modes}
start(result={"modes": state("wild")}, loadSession=True)
while True:
    m = recv()
    if m["method"] == "session/set_mode":
        reply(m, {})
    else:
        say("ok")
        end(m)
"""


def _backend(asking: str | Sequence[str] | None) -> AcpBackend:
    return AcpBackend(msgspec.structs.replace(builtin("acp"), asking_agent=asking), "0")


def _params(folder: Path, body: str = _BODY, **changes: object) -> OpenParams:
    return make_params(folder, command=python_agent(folder, PRELUDE + body), **changes)


@pytest.mark.parametrize("asking", ["tame", ["calm", "tame", "wild"]])
async def test_it_is_made_to_ask(asking: str | list[str], tmp_path: Path) -> None:
    """The first mode of the profile that it offers is set, without anybody having asked for one."""
    async with opened(_backend(asking), _params(tmp_path), RecordingSink()) as session:
        assert session.agent == "tame"


async def test_who_names_a_mode_gets_that_one(tmp_path: Path) -> None:
    """Plan was asked for."""
    async with opened(_backend("tame"), _params(tmp_path, agent="plan"), RecordingSink()) as session:
        assert session.agent == "plan"


async def test_who_approves_everything_leaves_it_as_it_comes(tmp_path: Path) -> None:
    """Nobody wants to be asked then."""
    async with opened(_backend("tame"), _params(tmp_path, auto_approve=True), RecordingSink()) as session:
        assert session.agent == "wild"


async def test_a_resumed_session_is_made_to_ask_as_well(tmp_path: Path) -> None:
    """Agents do not keep the mode with the session."""
    body = _BODY.replace("start(result=", "loaded(").replace(", loadSession=True)", ")")
    loaded = """
def loaded(result):
    hello(loadSession=True)
    m = expect("session/load")
    heard("old")
    reply(m, result)
"""
    async with opened(_backend("tame"), _params(tmp_path, loaded + body, resume="s1"), RecordingSink()) as session:
        assert (session.resumed, session.agent) == (True, "tame")


@pytest.mark.parametrize("body", [_BODY, "start()\nturns()\n"])
async def test_an_agent_that_cannot_be_made_to_ask_is_not_let_loose(body: str, tmp_path: Path) -> None:
    """The refusal says what there is, and both ways out; nothing is left running."""
    params = _params(tmp_path, body)
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused, match="--agent, or let it do as it likes with --auto-approve") as caught:
            await _backend(["calm", "meek"]).open(params, RecordingSink(), nursery)
    assert (caught.value.reason_word, caught.value.retryable) == ("unknown_agent", False)
    assert "calm or meek" in caught.value.message
    assert tree.tagged(*params.tag) == []


def test_every_agent_that_has_modes_to_approve_by_itself_is_made_to_ask() -> None:
    """Those of the backends' list whose handshake offers one; the others ask as they come."""
    asking = {name for name in builtin_names() if builtin(name).adapter == "acp" and builtin(name).asking_agents}
    assert asking == {"claude-acp", "codex-acp", "copilot-acp", "cursor-acp", "gemini-acp", "qwen-acp"}
    assert builtin("codex-acp").asking_agents == ["workspace-write", "auto"]
    assert builtin("qwen-acp").asking_agents == ("default",)
