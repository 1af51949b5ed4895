"""A conversation with a policy of its own: asked before anybody else, and shown all that happens."""

from pathlib import Path

import trio

from avenor.protocol.events import (
    Event,
    MessageChunk,
    PermissionRequest,
    PermissionResponse,
    SessionStart,
    ToolCall,
    TurnEnd,
)
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import Record
from avenor.runtimes.backends.base import OpenParams, PermissionAnswer, PermissionAsk, TurnStop
from avenor.runtimes.host import RunHost, Talk
from avenor.runtimes.life import live
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.turns import TurnResult
from tests.runtimes.fake_backend import FakeBackend, FakeSession
from tests.runtimes.run_rig import RunRig


class Rule:
    """A policy that gives the same answer to everything, and keeps what it sees."""

    def __init__(self, answer: PermissionAnswer | None) -> None:
        self.given = answer
        self.asked: list[PermissionAsk] = []
        self.seen: list[Event] = []

    def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        self.asked.append(ask)
        return self.given

    def note(self, event: Event) -> None:
        self.seen.append(event)


async def play_question(session: FakeSession, _text: str) -> TurnStop:
    """Calls a tool, asks for it, and says what was answered."""
    session.call_tool("Run it")
    answer = await session.ask(trusted=True)
    session.say(f"answered {answer.option_id}")
    return TurnStop(stop_reason="end_turn")


async def talk(rig: RunRig, policy: Rule | None, shaped: list[OpenParams]) -> None:
    """Runs one turn of a conversation with this policy."""

    async def finishing(_result: TurnResult) -> None:
        await trio.lowlevel.checkpoint()

    async def runner(_record: Record, host: RunHost) -> Outcome:
        opening = Talk(
            spec=host.record.spec,
            ending=host.ending,
            end=host.end,
            opened=lambda _session_id: None,
            policy=policy,
            shape=shaped.append,
        )
        async with host.open_conversation(opening) as conversation:
            result = await conversation.turn(
                Prompt(text="go", source="run"), interrupted=trio.Event(), queued=lambda: 0, finishing=finishing
            )
        return host.settle(Outcome.of(result.stop_reason, run_id=host.record.run_id))

    await live(rig.host, runner)


async def test_the_policy_answers_and_is_told_as_avenor(tmp_path: Path) -> None:
    """Nobody else is asked; the log has question and answer with why, as of every question that a rule settles."""
    rig = RunRig(tmp_path, FakeBackend(play_question))
    rule = Rule(PermissionAnswer(option_id="reject", message="not granted"))
    await talk(rig, rule, [])
    (request,), (response,) = rig.only(PermissionRequest), rig.only(PermissionResponse)
    assert request.resolver == "automatic"
    assert (response.option_id, response.kind, response.source) == ("reject", "reject", "avenor")
    assert response.message == "not granted"
    assert response.request_id == request.request_id
    assert "answered reject" in rig.log_path.read_text(encoding="utf-8")
    assert [ask.question for ask in rule.asked] == ["Run it?"]


async def test_what_the_policy_leaves_open_goes_to_the_broker(tmp_path: Path) -> None:
    """Here it approves by rule; without a policy it is the same."""
    for number, policy in enumerate((Rule(None), None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        rig = RunRig(folder, FakeBackend(play_question), auto_approve=True)
        await talk(rig, policy, [])
        assert [each.option_id for each in rig.only(PermissionResponse)] == ["allow"]
        assert len(rig.only(PermissionRequest)) == 1


async def test_a_withdrawn_question_is_told_as_cancelled(tmp_path: Path) -> None:
    """A policy may give no option at all."""
    rig = RunRig(tmp_path, FakeBackend(play_question))
    await talk(rig, Rule(PermissionAnswer(option_id=None)), [])
    (response,) = rig.only(PermissionResponse)
    assert (response.option_id, response.kind) == ("", "cancelled")


async def test_the_policy_sees_every_event_of_its_conversation(tmp_path: Path) -> None:
    """In order, stamped with the session, the questions included."""
    rig = RunRig(tmp_path, FakeBackend(play_question))
    rule = Rule(PermissionAnswer(option_id="allow"))
    await talk(rig, rule, [])
    kinds = [type(event) for event in rule.seen]
    expected = [SessionStart, ToolCall, PermissionRequest, PermissionResponse, MessageChunk, TurnEnd]
    assert [kind for kind in kinds if kind in expected] == expected
    assert {event.session_id for event in rule.seen} == {rig.only(SessionStart)[0].session_id}


async def test_the_parameters_of_an_opening_can_be_shaped(tmp_path: Path) -> None:
    """Each opening's, before the session to restore is filled in."""
    rig = RunRig(tmp_path, FakeBackend(play_question))
    shaped: list[OpenParams] = []
    await talk(rig, Rule(PermissionAnswer(option_id="allow")), shaped)
    (params,) = shaped
    assert params.cwd == str(tmp_path)
    assert rig.backend.sessions
