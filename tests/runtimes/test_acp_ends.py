"""How a turn of an ACP agent ended, where the agent's own word for it is not the truth."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from avenor.protocol.events import Usage
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, Session, TurnStop
from avenor.runtimes.backends.registry import get_backend
from tests.helpers import eventually
from tests.runtimes.agent_kit import RecordingSink, make_params, never, opened, picks, python_agent
from tests.runtimes.mini_agent import PRELUDE

# Says who it is, and opens a session.
_NAMED = """
def named(name):
    m = expect("initialize")
    reply(m, {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": {"name": name, "version": "1"}})
    reply(expect("session/new"), {"sessionId": "s1"})
"""


async def _turns(folder: Path, body: str, *prompts: str, sink: RecordingSink | None = None) -> list[TurnStop]:
    params = make_params(folder, command=python_agent(folder, PRELUDE + _NAMED + body))
    async with opened(get_backend("acp"), params, sink or RecordingSink()) as session:
        return [await session.prompt(prompt) for prompt in prompts]


async def _cancelled_turn(folder: Path, body: str, sink: RecordingSink) -> TurnStop:
    """A turn that is cancelled by us once a question has been answered, or is open."""
    params = make_params(folder, command=python_agent(folder, PRELUDE + _NAMED + body))
    stops: list[TurnStop] = []
    async with opened(get_backend("acp"), params, sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(_keep, session, stops)
        await sink.wait_text("now")
        await session.cancel()
        await eventually(lambda: stops)
    return stops[0]


async def _keep(session: Session, stops: list[TurnStop]) -> None:
    stops.append(await session.prompt("go"))


async def _withdraw(_ask: PermissionAsk) -> PermissionAnswer:
    await trio.lowlevel.checkpoint()
    return PermissionAnswer(option_id=None)


_ASKS = """
named("codex-acp")
p = expect("session/prompt")
ask(7)
recv()
end(p, "cancelled")
turns()
"""


async def test_a_turned_down_tool_is_no_cancelled_turn(tmp_path: Path) -> None:
    """Codex says `cancelled` when its user said no: the turn has ended, and the session goes on."""
    answers: list[Callable[[PermissionAsk], Awaitable[PermissionAnswer]]] = [picks("reject_once"), _withdraw]
    for number, answer in enumerate(answers):
        folder = tmp_path / str(number)
        folder.mkdir()
        stops = await _turns(folder, _ASKS, "go", "on", sink=RecordingSink(answer))
        assert [(stop.stop_reason, stop.error) for stop in stops] == [("end_turn", None), ("end_turn", None)]


async def test_a_turn_that_the_agent_cancelled_for_itself_is_called_so(tmp_path: Path) -> None:
    """Nobody had said no to anything."""
    (stop,) = await _turns(tmp_path, _ASKS, "go", sink=RecordingSink(picks("allow_once")))
    assert stop.stop_reason == "cancelled"


async def test_a_question_that_the_agent_withdrew_was_not_turned_down(tmp_path: Path) -> None:
    """`$/cancel_request` is its own doing."""
    body = """
named("codex-acp")
p = expect("session/prompt")
ask(7)
say("asked")
send(method="$/cancel_request", params={"requestId": 7})
recv()
end(p, "cancelled")
turns()
"""
    (stop,) = await _turns(tmp_path, body, "go", sink=RecordingSink(never))
    assert stop.stop_reason == "cancelled"


async def test_a_cancel_after_a_no_is_a_cancel(tmp_path: Path) -> None:
    """It was asked for, so it is called by its name."""
    body = """
named("codex-acp")
p = expect("session/prompt")
ask(7)
recv()
say("now")
expect("session/cancel")
end(p, "cancelled")
turns()
"""
    stop = await _cancelled_turn(tmp_path, body, RecordingSink(picks("reject_once")))
    assert (stop.stop_reason, stop.error) == ("cancelled", None)


async def test_a_sign_of_failure_in_a_cancelled_turn_does_not_count(tmp_path: Path) -> None:
    """A cut that leaves no word behind is what was wanted."""
    body = """
named("hermes-agent")
p = expect("session/prompt")
say("HTTP 500: now")
expect("session/cancel")
end(p)
turns()
"""
    stop = await _cancelled_turn(tmp_path, body, RecordingSink())
    assert (stop.stop_reason, stop.error) == ("end_turn", None)


async def test_a_failure_is_known_by_the_agents_name(tmp_path: Path) -> None:
    """pi-acp says nothing when its model fails; the next turn is judged by itself."""
    body = 'named("pi-acp")\nend(expect("session/prompt"))\nturns()\n'
    failed, fine = await _turns(tmp_path, body, "go", "on")
    assert failed.error is not None
    assert (failed.stop_reason, failed.error.failure_class, failed.error.permanent) == ("error", "unknown", False)
    assert (fine.stop_reason, fine.error) == ("end_turn", None)


async def test_an_agent_that_nothing_is_known_of_may_say_nothing(tmp_path: Path) -> None:
    """An empty turn is a failure only where the profile knows that it is."""
    (stop,) = await _turns(tmp_path, 'named("quiet")\nend(expect("session/prompt"))\nturns()\n', "go")
    assert (stop.stop_reason, stop.error) == ("end_turn", None)


async def test_tokens_of_each_call_make_the_turns(tmp_path: Path) -> None:
    """As qwen tells them, in the `_meta` of chunks without text."""
    body = """
def used(tokens):
    usage = {"inputTokens": tokens, "outputTokens": 1, "totalTokens": tokens + 1}
    update("agent_message_chunk", content={"type": "text", "text": ""}, _meta={"usage": usage})
named("qwen-code")
p = expect("session/prompt")
used(100)
used(200)
end(p)
turns()
"""
    first, second = await _turns(tmp_path, body, "go", "on")
    assert first.usage == Usage(input_tokens=300, output_tokens=2, total_tokens=302)
    assert second.usage is None


async def test_tokens_of_the_session_are_not_counted_twice(tmp_path: Path) -> None:
    """As copilot tells them, under `acp` as well."""
    body = """
named("Copilot")
for total in (100, 250):
    usage = {"inputTokens": total, "outputTokens": 0, "totalTokens": total}
    reply(expect("session/prompt"), {"stopReason": "end_turn", "usage": usage})
turns()
"""
    first, second = await _turns(tmp_path, body, "go", "on")
    assert (first.usage, second.usage) == (
        Usage(input_tokens=100, total_tokens=100),
        Usage(input_tokens=150, total_tokens=150),
    )


async def test_a_failed_turn_has_cost_something(tmp_path: Path) -> None:
    """What was told before the error counts for this turn."""
    body = """
named("claude")
p = expect("session/prompt")
update("usage_update", used=1, size=2, cost={"amount": 0.5, "currency": "USD"})
fail(p, -32603, "API Error: 500")
turns()
"""
    failed, fine = await _turns(tmp_path, body, "go", "on")
    assert failed.error is not None
    assert (failed.usage, fine.usage) == (Usage(cost_usd=0.5), None)
