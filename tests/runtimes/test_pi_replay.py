"""The adapter against recorded pi, both lines of it: it says what the recorded client said, and understands pi."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import Backend, PermissionAnswer, PermissionAsk, Session, TurnStop
from avenor.runtimes.backends.pi import PiBackend
from avenor.runtimes.backends.profiles import Profile
from tests.runtimes.agent_kit import RecordingSink, make_params, opened
from tests.runtimes.transcripts import HERE, Message, read_transcript

_AGENT = Path(__file__).parent / "pi_replay_agent.py"
_PLAYED = {"prompt", "abort", "extension_ui_response"}
_STOPS = {"stop": "end_turn", "aborted": "cancelled", "error": "error"}
_BORDERS = {"agent_start", "agent_end", "agent_settled", "turn_start", "turn_end", "message_start", "message_end"}


class PiRecording:
    """One process of a transcript, and what follows from it for the client."""

    def __init__(self, name: str, records: list[tuple[str, Message]]) -> None:
        self.name = name
        self.records = _without_busy_prompts(records)
        said = [message for direction, message in self.records if direction == "client->agent"]
        self.said = [message for message in said if not message["type"].startswith("get_")]
        self.heard = [message for direction, message in self.records if direction == "agent->client"]
        self.prompts = [message["message"] for message in self.said if message["type"] == "prompt"]
        self.is_killed = any("killed" in message for direction, message in self.records if direction == "meta")

    @property
    def session_id(self) -> str:
        """Which session it was."""
        states = (m for m in self.heard if m.get("command") == "get_state")
        return cast("str", next(states)["data"]["sessionId"])

    @property
    def is_resumed(self) -> bool:
        """Whether the session was another process's before."""
        return any(
            "--session" in message.get("spawn", ()) for direction, message in self.records if direction == "meta"
        )

    def is_playable(self) -> bool:
        """Prompts, and no command that we would not send."""
        return bool(self.prompts) and {message["type"] for message in self.said} <= _PLAYED

    def texts(self, kind: str) -> str:
        """All deltas of a kind."""
        deltas = [m["assistantMessageEvent"] for m in self.heard if m["type"] == "message_update"]
        return "".join(delta["delta"] for delta in deltas if delta["type"] == kind)

    def stops(self) -> list[str]:
        """The stop reason of each prompt's last answer, in our words; the last prompt of a killed pi has none."""
        found: list[str] = []
        for _direction, message in self.records:
            if message.get("type") == "prompt":
                found.append("agent_exited")
            elif message.get("type") == "message_end" and message["message"]["role"] == "assistant":
                found[-1] = _STOPS.get(message["message"]["stopReason"], found[-1])
        return found

    def count_events(self) -> int:
        """How many events pi's records are."""
        return sum(_is_event(message) for message in self.heard) + sum(_tells_usage(m) for m in self.heard)


class RecordedUser(RecordingSink):
    """A sink that answers questions as the recorded client did, and cancels where it did."""

    def __init__(self, recording: PiRecording) -> None:
        super().__init__(self._answer)
        self._answers = [m["value"] for m in recording.said if m["type"] == "extension_ui_response"]
        self._cancels = sum(message["type"] == "abort" for message in recording.said)

    async def _answer(self, _ask: PermissionAsk) -> PermissionAnswer:
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=self._answers.pop(0))

    async def cancel_when_due(self, session: Session) -> None:
        """Sends each cancel when the replaying agent waits for it."""
        for count in range(1, self._cancels + 1):
            await self.wait_for(events.AgentNoise, count)
            await session.cancel()


def _without_busy_prompts(records: list[tuple[str, Message]]) -> list[tuple[str, Message]]:
    """Without second prompts in a busy session, which we never send, and what pi answered to them."""
    refused = {m["id"] for _, m in records if m.get("command") == "prompt" and not m["success"]}
    return [(direction, message) for direction, message in records if message.get("id") not in refused]


def _processes(path: Path) -> list[PiRecording]:
    """The processes of a transcript; a `spawn` begins each."""
    parts: list[list[tuple[str, Message]]] = []
    for direction, message in read_transcript(path):
        if "spawn" in message:
            parts.append([])
        parts[-1].append((direction, message))
    return [PiRecording(f"{path.stem}-{number}", part) for number, part in enumerate(parts, 1)]


def _recordings() -> list[PiRecording]:
    folders = [HERE, *(Path(name) for name in [os.environ.get("AVENOR_TRANSCRIPTS")] if name)]
    paths = [path for folder in folders for agent in ("pi", "pi3") for path in sorted(folder.glob(f"{agent}-*.ndjson"))]
    return [recording for path in paths for recording in _processes(path) if recording.is_playable()]


_RECORDINGS = _recordings()


def _is_event(message: Message) -> bool:
    match message["type"]:
        case "response":
            return False
        case "extension_ui_request":
            return message["method"] not in ("select", "confirm")
        case "message_update":
            return message["assistantMessageEvent"]["type"] in ("text_delta", "thinking_delta")
        case kind:
            return kind not in _BORDERS


def _tells_usage(message: Message) -> bool:
    told: dict[str, Any] = message["message"].get("usage", {}) if message["type"] == "message_end" else {}
    return bool(told.get("totalTokens"))


def test_enough_recordings_of_pi_can_be_played() -> None:
    """Both lines of pi, with cancels, rejections, faults, a kill and two resumed sessions."""
    cases = {recording.name for recording in _RECORDINGS}
    wanted = {"basic-1", "tool-1", "tool-2", "cancel-1", "errors-1", "kill_resume-1", "kill_resume-2"}
    assert cases >= {f"{agent}-{case}" for agent in ("pi", "pi3") for case in wanted}


@pytest.mark.parametrize("recording", _RECORDINGS, ids=lambda recording: recording.name)
async def test_a_recorded_conversation_with_pi_is_held_again(recording: PiRecording, tmp_path: Path) -> None:
    """Same commands, same params, same answers; every turn ends as it did and every record becomes an event."""
    transcript, log = tmp_path / "transcript.ndjson", tmp_path / "log.ndjson"
    lines = [json.dumps({"dir": direction, "msg": message}) for direction, message in recording.records]
    transcript.write_text("\n".join(lines), encoding="utf-8")
    log.touch()
    argv = [sys.executable, str(_AGENT), str(transcript), str(log)]
    backend: Backend = PiBackend(Profile(name="pi", adapter="pi", argv=argv, install="-"), "0")
    sink = RecordedUser(recording)
    params = make_params(tmp_path, resume=recording.session_id if recording.is_resumed else None)
    stops: list[TurnStop] = []
    async with opened(backend, params, sink) as session, trio.open_nursery() as nursery:
        assert session.session_id == recording.session_id
        assert session.resumed == recording.is_resumed
        nursery.start_soon(sink.cancel_when_due, session)
        for prompt in recording.prompts:
            stops.append(await session.prompt(prompt))
    _check_sent(recording, [json.loads(line) for line in log.read_text().splitlines()])
    _check_told(recording, sink, stops)


def _check_sent(recording: PiRecording, sent: list[Message]) -> None:
    assert [_params(message) for message in sent] == [_params(message) for message in recording.said]


def _params(message: dict[str, Any]) -> dict[str, Any]:
    """A record without its id, where that is the client's to choose."""
    is_ours = message["type"] != "extension_ui_response"
    return {name: value for name, value in message.items() if name != "id" or not is_ours}


def _check_told(recording: PiRecording, sink: RecordingSink, stops: list[TurnStop]) -> None:
    assert [stop.stop_reason for stop in stops] == recording.stops()
    for stop in stops:
        assert (stop.error is None) == (stop.stop_reason in ("end_turn", "cancelled"))
    assert sink.text() == recording.texts("text_delta")
    assert len([ask for ask in sink.asks if ask.trusted_options]) == len(sink.asks)
    shown = [event for event in sink.events if not isinstance(event, events.AgentStderr | events.AgentNoise)]
    assert len(shown) == recording.count_events()
