"""The adapter against every recorded agent: call by call it says what the recorded client said, where that is not free.

Free are the order of settings, whether a session is loaded or resumed by an agent that has both (both are played), and
what our client is called. What agents say is looked at more closely, recording by recording, in `test_acp_replay`.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.base import (
    BackendRefused,
    OpenParams,
    PermissionAnswer,
    PermissionAsk,
    Session,
    TurnStop,
    open_within,
)
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.acp_checks import check_sent
from tests.runtimes.agent_kit import OPEN_SECONDS, QUICK, RecordingSink, make_params, opened
from tests.runtimes.replays import Play, plays
from tests.runtimes.transcripts import Message, backend_of

_AGENT: Final = Path(__file__).parent / "replay_agent.py"

_CAN_NOTHING: Final = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


def _is_ours(play: Play) -> bool:
    """Whether our client would open the session so: of some agents it only ever loads one, and some get no programs."""
    profile = builtin(backend_of(play.name))
    if play.opening["method"] == "session/resume" and profile.resume_by == "load":
        return False
    return "stdio" in profile.mcp or not play.opening["params"].get("mcpServers")


_PLAYS: Final = [play for play in plays() if _is_ours(play)]


class RecordedUser(RecordingSink):
    """A sink that answers questions as the recorded client did, and cancels where it did."""

    def __init__(self, play: Play) -> None:
        super().__init__(self._answer)
        asked = [m for m in play.heard if m.get("method") == "session/request_permission"]
        self._outcomes = [play.answers[m["id"]]["result"]["outcome"] for m in asked if m["id"] in play.answers]
        self._cancels = sum(call["method"] == "session/cancel" for call in play.calls)

    async def _answer(self, _ask: PermissionAsk) -> PermissionAnswer:
        outcome = self._outcomes.pop(0)
        if outcome["outcome"] == "cancelled" and self._cancels:
            await trio.sleep_forever()  # it was the cancel that settled it
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=outcome.get("optionId"))

    async def cancel_when_due(self, session: Session) -> None:
        """Sends each cancel when the replaying agent waits for it."""
        for count in range(1, self._cancels + 1):
            await self.wait_for(events.AgentNoise, count)
            await session.cancel()


def test_every_kind_of_conversation_is_played() -> None:
    """None is lost by a mistake in taking the recordings apart."""
    names = {play.name.split("-")[0] for play in _PLAYS}
    assert names >= {"claudeacp2", "claudeacp3", "codexacp", "codexacp2", "copilot", "gemini", "opencode", "qwen"}
    assert names >= {"cline", "echo", "exagent", "fastagent", "hermes", "piacp", "vibe"}
    methods = {call["method"].removeprefix("session/") for play in _PLAYS for call in play.calls}
    ours = {"initialize", "new", "load", "resume", "list", "prompt", "cancel"}
    assert methods == {*ours, "set_config_option", "set_mode", "set_model"}
    assert sum(play.is_refused for play in _PLAYS) > 10
    assert sum(len(play.prompts) for play in _PLAYS) > 200


@pytest.mark.parametrize("play", _PLAYS, ids=[play.name for play in _PLAYS])
async def test_our_client_says_what_the_recorded_one_said(play: Play, tmp_path: Path) -> None:
    """The same methods in the same order, with the same params and the same answers."""
    backend, params, log = _stage(play, tmp_path)
    sink = RecordedUser(play)
    if play.is_refused or not play.is_applied:
        await _refused(play, backend, params)
    else:
        await _held(play, backend, params, sink)
    _check_said(play, [json.loads(line) for line in log.read_text().splitlines()], str(tmp_path))


def _stage(play: Play, folder: Path) -> tuple[AcpBackend, OpenParams, Path]:
    """The agent's side as a program, under its profile; what it is opened with; where it keeps what it hears."""
    transcript, log = folder / "transcript.ndjson", folder / "log.ndjson"
    lines = [json.dumps({"dir": direction, "msg": message}) for direction, message in play.records]
    transcript.write_text("\n".join(lines), encoding="utf-8")
    opening = play.opening
    resume_by: Literal["resume", "load"] = "load" if opening["method"] == "session/load" else "resume"
    program = [sys.executable, "-S", str(_AGENT), str(transcript), str(log)]
    profile = msgspec.structs.replace(
        builtin(backend_of(play.name)), argv=program, resume_by=resume_by, resume_not_while=""
    )
    servers: list[Message] = opening["params"].get("mcpServers", [])
    params = make_params(
        folder,
        auto_approve=True,  # the recorded client left the agent in the mode in which it came
        resume=opening["params"].get("sessionId"),
        mcp_servers=[McpServer(name=s["name"], command=s["command"], args=s["args"]) for s in servers],
        **play.settings,
    )
    return AcpBackend(profile, "0"), params, log


async def _refused(play: Play, backend: AcpBackend, params: OpenParams) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, backend, params, RecordingSink(), nursery)
    if not play.is_applied:
        assert caught.value.reason_word == "not_applied"
    elif params.resume:
        assert caught.value.reason_word == "resume_failed"
    else:
        assert caught.value.reason_word in ("session_refused", "auth_required")


async def _held(play: Play, backend: AcpBackend, params: OpenParams, sink: RecordedUser) -> None:
    async with opened(backend, params, sink, QUICK) as session, trio.open_nursery() as nursery:
        assert session.resumed == (params.resume is not None)
        for kind, value in play.settings.items():
            assert kind == "thinking" or getattr(session, kind) == value
        nursery.start_soon(sink.cancel_when_due, session)
        for turn, prompt in enumerate(play.prompts):
            answer = play.stop(turn)
            if answer is None:  # the recorded agent was killed in this turn
                nursery.start_soon(_kill_when_all_is_told, play, sink, session)
            _check_stop(await session.prompt(prompt), answer)
        await sink.wait_text(_text(play))
    assert sink.text() == _text(play)


async def _kill_when_all_is_told(play: Play, sink: RecordedUser, session: Session) -> None:
    await sink.wait_text(_text(play))
    await sink.wait_asked(sum(message.get("method") == "session/request_permission" for message in play.heard))
    os.kill(session.agent_pid, signal.SIGKILL)


def _text(play: Play) -> str:
    chunks = [update for update in play.told() if update["sessionUpdate"] == "agent_message_chunk"]
    return "".join(chunk["content"]["text"] for chunk in chunks)


def _check_stop(stop: TurnStop, answer: Message | None) -> None:
    if answer is None:
        assert stop.stop_reason == "agent_exited"
    elif "error" in answer:
        assert stop.error is not None
        assert stop.stop_reason in ("error", "cancelled")


def _check_said(play: Play, sent: list[Message], cwd: str) -> None:
    for message in sent:
        check_sent(message)
    calls = [message for message in sent if "method" in message]
    assert [call["method"] for call in calls] == [call["method"] for call in play.calls]
    for ours, theirs in zip(calls, play.calls, strict=True):
        assert _shape(ours, cwd) == _shape(theirs, cwd)
    answers = {message["id"]: message for message in sent if "method" not in message}
    for message in play.heard:
        if message.get("method") == "session/request_permission" and message["id"] in play.answers:
            assert answers[message["id"]]["result"] == play.answers[message["id"]]["result"]
        elif "method" in message and "id" in message and message["id"] in play.answers:
            assert answers[message["id"]]["error"]["code"] == -32601


def _shape(call: Message, cwd: str) -> Message:
    """The params of a call, without what each client is free to say of itself and of its whereabouts."""
    params: dict[str, Any] = json.loads(json.dumps(call["params"]))
    params.pop("clientInfo", None)
    if call["method"] == "initialize":
        params["clientCapabilities"] = {**_CAN_NOTHING, **params["clientCapabilities"]}
    if "cwd" in params:
        params["cwd"] = cwd
    for server in params.get("mcpServers", []):
        server["env"] = []  # ours hands over its PATH
    return params
