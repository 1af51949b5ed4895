"""The adapter against recorded agents: it says what the recorded client said, and understands what they said."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, Session, TurnStop
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.acp_checks import check_sent
from tests.runtimes.agent_kit import TAG_NAME, RecordingSink, make_params, opened
from tests.runtimes.transcripts import Message, backend_of, read_transcript, transcript_paths

_AGENT = Path(__file__).parent / "replay_agent.py"
_SPOKEN = {"initialize", "session/new", "session/prompt", "session/cancel"}

# What the model failed with, by the beginning of the prompt, and the classes and permanence that may come of it. Some
# agents pass on less than they were told: a bare text, an HTTP status of their own, or what went wrong an hour ago.
_Fault = tuple[str, bool]
_FAULTS: dict[str, _Fault] = {
    "[[error: 400]]": ("unknown", True),
    "[[error: 401]]": ("unknown", True),
    "[[error: 429 x2": ("rate_limit", False),
    "[[error: 500]]": ("overloaded", False),
    "[[drop: 3]]": ("transport", False),
    "[[garbage]]": ("transport", False),
}
_TOLD_INSTEAD: dict[str, _Fault] = {
    "cline": ("unknown", False),
    "fastagent": ("unknown", False),
    "gemini": ("overloaded", False),
    "hermes": ("unknown", True),
    "piacp": ("unknown", False),
    "vibe": ("unknown", True),
}
_PROMISED = re.compile(r"\[\[text: (.*?)\]\]")


class Recording:
    """One agent process of a transcript, up to its end, and what follows from it for the client."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.agent = path.stem.split("-")[0]
        records = read_transcript(path)
        ends = [index for index, (direction, _) in enumerate(records) if direction == "meta" and index > 0]
        self.records = records[: ends[0]] if ends else records
        self.said = [message for direction, message in self.records if direction == "client->agent"]
        self.heard = [message for direction, message in self.records if direction == "agent->client"]
        calls = [message for message in self.said if "method" in message]
        self.methods = [message["method"] for message in calls]
        self.prompts = [m["params"]["prompt"][0]["text"] for m in calls if m["method"] == "session/prompt"]
        self.answers = {message["id"]: message for message in self.said if "method" not in message}
        self.updates = [m["params"]["update"] for m in self.heard if m.get("method") == "session/update"]

    def is_playable(self) -> bool:
        """One session, all turns answered, and no call that we would not make."""
        return (
            set(self.methods) <= _SPOKEN
            and self.methods.count("session/new") == 1
            and {server.type for server in self.mcp_servers()} <= set(builtin(backend_of(self.name)).mcp)
            and len(self.stops()) == len(self.prompts) > 0
            and not self._has_late_cancel()
        )

    def _has_late_cancel(self) -> bool:
        """Whether a cancel came when no turn was left to cancel, which we do not send."""
        open_prompts: set[int] = set()
        for direction, message in self.records:
            if message.get("method") == "session/prompt":
                open_prompts.add(message["id"])
            elif direction == "agent->client" and "method" not in message:
                open_prompts.discard(message["id"])
            elif message.get("method") == "session/cancel" and not open_prompts:
                return True
        return False

    def stops(self) -> list[Message]:
        """The answers to the prompts, in order."""
        ids = [message["id"] for message in self.said if message.get("method") == "session/prompt"]
        answers = {message["id"]: message for message in self.heard if "method" not in message}
        return [answers[prompt_id] for prompt_id in ids if prompt_id in answers]

    def mcp_servers(self) -> list[McpServer]:
        """What was handed to the agent."""
        (params,) = [m["params"] for m in self.said if m.get("method") == "session/new"]
        return [McpServer(name=s["name"], command=s["command"], args=s["args"]) for s in params["mcpServers"]]

    def fault(self, turn: int) -> set[_Fault]:
        """The failures of which a turn must have one, as class and permanence; empty where the model was well."""
        prompt, said = self.prompts[turn], self._said_in(turn)
        promised = _PROMISED.search(prompt)
        if not self.name.endswith("-errors") or (promised and promised[1] in said):
            return set()
        usual = {fault for start, fault in _FAULTS.items() if prompt.startswith(start)}
        return usual | {fault for agent, fault in _TOLD_INSTEAD.items() if agent == self.agent}

    def was_cancelled(self, turn: int) -> bool:
        """Whether the client cancelled a turn."""
        return any(m.get("method") == "session/cancel" for m in self._part(turn))

    def _said_in(self, turn: int) -> str:
        updates = [m["params"]["update"] for m in self._part(turn) if m.get("method") == "session/update"]
        return "".join(u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk")

    def _part(self, turn: int) -> list[Message]:
        messages = [message for _, message in self.records]
        starts = [i for i, m in enumerate(messages) if m.get("method") == "session/prompt"]
        return messages[starts[turn] : [*starts, len(messages)][turn + 1]]

    def text(self) -> str:
        """All message text."""
        chunks = [u for u in self.updates if u["sessionUpdate"] == "agent_message_chunk"]
        return "".join(chunk["content"]["text"] for chunk in chunks)


class RecordedClient(RecordingSink):
    """A sink that answers questions as the recorded client did, and cancels where it did."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(self._answer)
        asked = [m for m in recording.heard if m.get("method") == "session/request_permission"]
        self._outcomes = [
            recording.answers[m["id"]]["result"]["outcome"] for m in asked if m["id"] in recording.answers
        ]
        self._cancels = recording.methods.count("session/cancel")

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


_RECORDINGS = [recording for recording in map(Recording, transcript_paths()) if recording.is_playable()]


def test_enough_recordings_can_be_played() -> None:
    """The set is not empty by some mistake in choosing it, and has cancels, rejections and errors."""
    agents = {recording.name.split("-")[0] for recording in _RECORDINGS}
    assert agents >= {"opencode", "codexacp", "claudeacp2", "gemini", "vibe"}
    cases = {recording.name.split("-")[1] for recording in _RECORDINGS}
    assert cases >= {"basic", "tool_allow", "tool_reject", "cancel", "cancel_tool", "cancel_permission", "errors"}


@pytest.mark.parametrize("recording", _RECORDINGS, ids=lambda recording: recording.name)
async def test_a_recorded_conversation_is_held_again(recording: Recording, tmp_path: Path) -> None:
    """Same methods, same params, same answers; every turn ends as it did and every update becomes an event."""
    transcript, log = tmp_path / "transcript.ndjson", tmp_path / "log.ndjson"
    lines = [json.dumps({"dir": direction, "msg": message}) for direction, message in recording.records]
    transcript.write_text("\n".join(lines), encoding="utf-8")
    sink = RecordedClient(recording)
    cwd = recording.said[1]["params"]["cwd"]
    program = [sys.executable, str(_AGENT), str(transcript), str(log)]
    profile = msgspec.structs.replace(builtin(backend_of(recording.name)), argv=program)
    # The recorded client left the agent in the mode in which it came.
    params = make_params(tmp_path, auto_approve=True, mcp_servers=recording.mcp_servers())
    stops: list[TurnStop] = []
    async with opened(AcpBackend(profile, "0"), params, sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(sink.cancel_when_due, session)
        for prompt in recording.prompts:
            stops.append(await session.prompt(prompt))
        await sink.wait_for(events.Event, len(recording.updates))
    _check_said(recording, [json.loads(line) for line in log.read_text().splitlines()], cwd, str(tmp_path))
    _check_heard(recording, sink, stops)


def _check_said(recording: Recording, sent: list[Message], their_cwd: str, our_cwd: str) -> None:
    for message in sent:
        check_sent(message)
    calls = [message for message in sent if "method" in message]
    theirs = [message for message in recording.said if "method" in message]
    assert [message["method"] for message in calls] == [message["method"] for message in theirs]
    for ours, their in zip(calls, theirs, strict=True):
        expected: dict[str, Any] = json.loads(json.dumps(their["params"]).replace(their_cwd, our_cwd))
        if ours["method"] == "initialize":
            assert ours["params"].pop("clientInfo")["name"] == "avenor"
            expected.pop("clientInfo", None)
        if ours["method"] == "session/prompt":
            expected = their["params"]
        for server in ours["params"].get("mcpServers", []):
            assert server["env"].pop()["name"] == TAG_NAME
        assert ours["params"] == expected
    answers = {message["id"]: message for message in sent if "method" not in message}
    for message in recording.heard:
        if message.get("method") == "session/request_permission" and message["id"] in recording.answers:
            assert answers[message["id"]]["result"] == recording.answers[message["id"]]["result"]
        elif "method" in message and "id" in message:
            assert answers[message["id"]].get("error", {}).get("code", -32601) == -32601


def _check_heard(recording: Recording, sink: RecordingSink, stops: list[TurnStop]) -> None:
    for turn, (stop, answer) in enumerate(zip(stops, recording.stops(), strict=True)):
        _check_stop(stop, answer, recording, turn)
    assert sink.text() == recording.text()
    shown = [event for event in sink.events if not isinstance(event, events.AgentStderr | events.AgentNoise)]
    foreign = [m for m in recording.heard if "method" in m and "id" not in m and m["method"] != "session/update"]
    known = [m for m in foreign if m["method"] != "$/cancel_request"]
    assert len(shown) == len(recording.updates) + len(known)
    plain = [event for event in shown if isinstance(event, events.SessionUpdate)]
    kinds = [msgspec.json.decode(event.update).get("sessionUpdate") for event in plain]
    assert set(kinds) <= {"config_option_update", None}


def _check_stop(stop: TurnStop, answer: Message, recording: Recording, turn: int) -> None:
    told = answer["result"]["stopReason"] if "result" in answer else None
    if recording.was_cancelled(turn):  # then it does not matter what else went wrong
        assert stop.stop_reason == (told or "cancelled")
        return
    fault = recording.fault(turn)
    if fault or told is None:
        assert stop.error is not None
        assert stop.stop_reason == ("refusal" if told == "refusal" else "error")
        assert (stop.error.failure_class, stop.error.permanent) in fault
    else:
        assert stop.error is None, stop
        was_refused = recording.name.endswith("-tool_reject")
        assert stop.stop_reason == ("end_turn" if was_refused else told)
