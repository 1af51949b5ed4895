"""The adapter against recorded agents: it says what the recorded client said, and understands what they said."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, Session, TurnStop
from avenor.runtimes.backends.registry import get_backend
from tests.runtimes.acp_checks import check_sent
from tests.runtimes.agent_kit import RecordingSink, make_params, opened
from tests.runtimes.transcripts import Message, read_transcript, transcript_paths

_AGENT = Path(__file__).parent / "replay_agent.py"
_SPOKEN = {"initialize", "session/new", "session/prompt", "session/cancel"}


class Recording:
    """One agent process of a transcript, up to its end, and what follows from it for the client."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
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
            and [m["params"]["mcpServers"] for m in self.said if m.get("method") == "session/new"] == [[]]
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
            await self.wait_for(events.AgentStderr, count)
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
    params = make_params(tmp_path, command=[sys.executable, str(_AGENT), str(transcript), str(log)])
    stops: list[TurnStop] = []
    async with opened(get_backend("acp"), params, sink) as session, trio.open_nursery() as nursery:
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
        assert ours["params"] == expected
    answers = {message["id"]: message for message in sent if "method" not in message}
    for message in recording.heard:
        if message.get("method") == "session/request_permission" and message["id"] in recording.answers:
            assert answers[message["id"]]["result"] == recording.answers[message["id"]]["result"]
        elif "method" in message and "id" in message:
            assert answers[message["id"]].get("error", {}).get("code", -32601) == -32601


def _check_heard(recording: Recording, sink: RecordingSink, stops: list[TurnStop]) -> None:
    for stop, answer in zip(stops, recording.stops(), strict=True):
        if "result" in answer:
            assert (stop.stop_reason, stop.error) == (answer["result"]["stopReason"], None)
        else:
            assert stop.stop_reason in ("error", "cancelled")
            assert stop.error is not None
    assert sink.text() == recording.text()
    shown = [event for event in sink.events if not isinstance(event, events.AgentStderr | events.AgentNoise)]
    foreign = [m for m in recording.heard if "method" in m and "id" not in m and m["method"] != "session/update"]
    known = [m for m in foreign if m["method"] != "$/cancel_request"]
    assert len(shown) == len(recording.updates) + len(known)
    plain = [event for event in shown if isinstance(event, events.SessionUpdate)]
    kinds = [msgspec.json.decode(event.update).get("sessionUpdate") for event in plain]
    assert set(kinds) <= {"config_option_update", None}
