"""Checks for agents that have the stand-in model behind them, beside those of every backend: what a model says, how it
fails, and what is left of an agent when it ends in one way or another.

`ALL_CHECKS` is the whole suite for a real agent.
"""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from avenor.host import tree
from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.base import OpenParams, Session, TurnError, TurnStop
from tests.helpers import command_of, eventually
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, opened, picks
from tests.runtimes.conformance import CHECKS, WORD, Check, Kit

_PROBE: Final = Path(__file__).with_name("mcp_probe.py")
# By this a tool that was begun by `Kit.work_on` is known among an agent's processes.
_TOOL: Final = "time.sleep(60)"
# Longer than any agent needs that ends at all when its input is closed; codex-acp 2.6 takes seven seconds.
_LINGER_SECONDS: Final = 12.0


async def tells_thoughts_apart(kit: Kit, folder: Path) -> None:
    """What the model thinks comes as thoughts, and is no part of what it says."""
    stop, sink = await _turn(kit, folder, "[[reason: let me see]][[text: one two three]]")
    assert stop.error is None
    thoughts = [msgspec.json.decode(event.content)["text"] for event in sink.of(events.ThoughtChunk)]
    assert "let me see" in "".join(thoughts)
    assert sink.text() == "one two three"


async def tells_what_it_costs(kit: Kit, folder: Path) -> None:
    """A turn's usage has its price in dollars."""
    stop, _ = await _turn(kit, folder, kit.say("hello there"))
    assert stop.usage is not None
    assert isinstance(stop.usage.cost_usd, float)


async def tells_a_bad_request(kit: Kit, folder: Path) -> None:
    """A model that answers 400 has failed for good."""
    error = await _failure(kit, folder, "[[error: 400]] a bad request")
    assert error.permanent


async def tells_a_refused_login(kit: Kit, folder: Path) -> None:
    """A model that answers 401 has failed for good."""
    error = await _failure(kit, folder, "[[error: 401]] who are you")
    assert error.permanent


async def tells_a_rate_limit(kit: Kit, folder: Path) -> None:
    """Of a passing 429 nothing is told but the answer, or the failure as what it is, so that a retry can wait."""
    stop, sink = await _turn(kit, folder, "[[error: 429 x2 after 1]][[text: through at last]] not so fast")
    if stop.error is None:
        assert stop.stop_reason == "end_turn"
        assert "through at last" in sink.text()
    else:
        assert (stop.error.failure_class, stop.error.permanent) == ("rate_limit", False)


async def tells_a_model_that_is_down(kit: Kit, folder: Path) -> None:
    """A model that answers nothing but 500 has failed, and may be back."""
    error = await _failure(kit, folder, "[[error: 500]] a lasting fault")
    assert (error.failure_class, error.permanent) == ("overloaded", False)


async def tells_a_broken_answer(kit: Kit, folder: Path) -> None:
    """A connection that breaks off each time is a failure that may pass."""
    error = await _failure(kit, folder, "[[drop]] a weak line")
    assert not error.permanent


async def starts_an_mcp_server(kit: Kit, folder: Path) -> None:
    """A server that is handed over is started with its environment and asked for its tools."""
    log = folder / "probe.log"
    server = McpServer(name="probe", command=sys.executable, args=[str(_PROBE), str(log)], env={"PROBE_WORD": "heron"})
    params = msgspec.structs.replace(kit.params(folder), mcp_servers=[server])
    async with opened(kit.backend, params, RecordingSink()) as session:
        await session.prompt(kit.say("hello"))
        await eventually(lambda: log.exists() and "tools/list" in log.read_text(), seconds=OPEN_SECONDS)
    assert "heron" in log.read_text()


async def resumes_after_a_kill(kit: Kit, folder: Path) -> None:
    """Killed in the midst of a turn, the session goes on in another process with all that was said before that turn."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        session_id = session.session_id
        await session.prompt(kit.say(f"The word is {WORD}."))
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.talk_on(), stops)
        await sink.wait_text("tick")
        os.kill(session.agent_pid, signal.SIGKILL)
        await eventually(lambda: stops, seconds=TURN_SECONDS)
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder, resume=session_id), sink) as session:
        assert (session.resumed, session.session_id) == (True, session_id)
        await session.prompt(kit.recall())
        assert kit.has_recalled(WORD, sink.text())


async def ends_its_tool_on_cancel(kit: Kit, folder: Path) -> None:
    """A tool does not outlive the turn that was cancelled, and nothing outlives the session."""
    async with _working(kit, folder) as (session, params, stops):
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        await eventually(lambda: not _tools(params), seconds=TURN_SECONDS)
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []


async def leaves_nothing_when_its_input_closes(kit: Kit, folder: Path) -> None:
    """Its input closed in mid-tool, it ends by itself or is ended, and so is its tool."""
    async with _working(kit, folder) as (session, params, _):
        _close_input_of(session.agent_pid)
        with trio.move_on_after(_LINGER_SECONDS):  # some never end by themselves
            await session.wait_exited()
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []


ALL_CHECKS: Final[list[Check]] = [
    *CHECKS,
    tells_thoughts_apart,
    tells_what_it_costs,
    tells_a_bad_request,
    tells_a_refused_login,
    tells_a_rate_limit,
    tells_a_model_that_is_down,
    tells_a_broken_answer,
    starts_an_mcp_server,
    resumes_after_a_kill,
    ends_its_tool_on_cancel,
    leaves_nothing_when_its_input_closes,
]


async def _turn(kit: Kit, folder: Path, prompt: str) -> tuple[TurnStop, RecordingSink]:
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session:
        return await session.prompt(prompt), sink


async def _failure(kit: Kit, folder: Path, prompt: str) -> TurnError:
    """The error of a turn that must fail, and say why."""
    stop, _ = await _turn(kit, folder, prompt)
    assert stop.error is not None
    assert stop.error.message
    assert stop.stop_reason == "error"
    return stop.error


async def _keep_stop(prompt: Callable[[str], Awaitable[TurnStop]], text: str, stops: list[TurnStop]) -> None:
    stops.append(await prompt(text))


@asynccontextmanager
async def _working(kit: Kit, folder: Path) -> AsyncGenerator[tuple[Session, OpenParams, list[TurnStop]], None]:
    """A session whose tool runs, its params, and how its turn ended once it has."""
    sink, begun = RecordingSink(picks("allow_once")), folder / "begun"
    params = kit.params(folder)
    async with opened(kit.backend, params, sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.work_on(begun), stops)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        await eventually(lambda: _tools(params), seconds=TURN_SECONDS)
        yield session, params, stops


def _tools(params: OpenParams) -> list[int]:
    """The processes of the tool that `Kit.work_on` has begun."""
    pids = (found.id.pid for found in tree.tagged(*params.tag))
    return [pid for pid in pids if _TOOL in command_of(pid)]


def _close_input_of(pid: int) -> None:
    """Takes our end of a process's input pipe away; the number of the descriptor stays in use, by /dev/null."""
    pipe = os.readlink(f"/proc/{pid}/fd/0")
    ours = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and _target(fd) == pipe]
    assert ours
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for fd in ours:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # the descriptor of the listing itself
