"""The codex adapter against recorded codex: it says what the recorded client said, and understands what codex said."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.protocol import events
from avenor.runtimes.backends.base import BackendRefused, OpenParams, PermissionAnswer, PermissionAsk, Session, TurnStop
from tests.helpers import eventually
from tests.runtimes.agent_kit import TURN_SECONDS, RecordingSink, opened
from tests.runtimes.codex_checks import check_answer, check_call
from tests.runtimes.codex_kit import replaying
from tests.runtimes.transcripts import HERE, Message, read_transcript

Record = tuple[str, Message]

# What the recorded client tried out and we never call.
_NEVER_CALLED = {"model/list", "thread/list", "turn/steer", "no/such"}
_STOPS = {"completed": "end_turn", "failed": "error"}


class Recording:
    """One process of codex with the one session that we would have had with it.

    Calls that we never make are left out together with their answers; so is a prompt into a running turn, whose text
    codex takes for the turn that runs, and everything about other threads that is not told to all.
    """

    def __init__(self, name: str, records: Sequence[Record]) -> None:
        self.name = name
        self.records = _without_calls(records, _left_out(records))
        self.said = [message for direction, message in self.records if direction == "client->agent"]
        self.heard = [message for direction, message in self.records if direction == "agent->client"]
        self.calls = [message for message in self.said if "method" in message]
        self.prompts = [m["params"]["input"][0]["text"] for m in self.calls if m["method"] == "turn/start"]
        self.told = [message for message in self.heard if "method" in message and "id" not in message]
        self.asked = {m["id"]: m["method"] for m in self.heard if "method" in m and "id" in m}
        self.answers = {message["id"]: message["result"] for message in self.said if "method" not in message}

    @property
    def opening(self) -> Message:
        """The call that opens the thread."""
        return next(m for m in self.calls if m["method"] in ("thread/start", "thread/resume"))

    @property
    def thread_id(self) -> str:
        """Of our thread."""
        answers = {message["id"]: message for message in self.heard if "method" not in message}
        return str(answers[self.opening["id"]]["result"]["thread"]["id"])

    def of_thread(self, method: str) -> list[Message]:
        """The params of what our thread has told by a method."""
        found = [message["params"] for message in self.told if message["method"] == method]
        return [params for params in found if params["threadId"] == self.thread_id]


class RecordedClient(RecordingSink):
    """A sink that answers questions as the recorded client did, and cancels where it did."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(self._answer)
        self._decisions = [recording.answers[i]["decision"] for i in recording.asked if i in recording.answers]
        self._interrupts = [call["method"] for call in recording.calls].count("turn/interrupt")

    async def _answer(self, _ask: PermissionAsk) -> PermissionAnswer:
        if not self._decisions:
            await trio.sleep_forever()  # it was the cancel that settled it
        await trio.lowlevel.checkpoint()
        return PermissionAnswer(option_id=self._decisions.pop(0))

    def shown(self) -> list[events.Event]:
        """All that codex has said over the wire."""
        return [event for event in self.events if not isinstance(event, events.AgentStderr | events.AgentNoise)]

    async def cancel_when_due(self, session: Session) -> None:
        """Sends each interrupt when codex waits for it."""
        for count in range(1, self._interrupts + 1):
            await self.wait_for(events.AgentNoise, count)
            await session.cancel()


def _recordings() -> list[Recording]:
    folders = {HERE, Path(os.environ.get("AVENOR_TRANSCRIPTS") or HERE)}
    paths = sorted(path for folder in folders for path in folder.glob("codex-*.ndjson"))
    found: list[Recording] = []
    for path in paths:
        for number, records in enumerate(_processes(read_transcript(path)), start=1):
            found.append(Recording(f"{path.stem}-{number}", records))
    return found


def _processes(records: list[Record]) -> list[list[Record]]:
    """The conversation of each process of a transcript."""
    processes: list[list[Record]] = []
    for direction, message in records:
        if direction != "meta":
            processes[-1].append((direction, message))
        elif "spawn" in message:
            processes.append([])
    return processes


def _left_out(records: Sequence[Record]) -> set[Any]:
    """The ids of calls that we would not have made."""
    left_out: set[Any] = set()
    busy = False
    ours: str | None = None
    opened = False
    for direction, message in records:
        method, params = message.get("method"), message.get("params", {})
        if direction == "agent->client":
            if method == "turn/completed" and params["threadId"] == ours:
                busy = False
        elif method in _NEVER_CALLED or (method in ("thread/start", "thread/resume") and opened):
            left_out.add(message["id"])
        elif method in ("thread/start", "thread/resume"):
            opened = True
        elif method == "turn/start":
            ours = ours or params["threadId"]
            if busy or params["threadId"] != ours:
                left_out.add(message["id"])
            busy = True
    return left_out


def _without_calls(records: Sequence[Record], ids: set[Any]) -> list[Record]:
    """A call's id and a question's may be the same: only calls and their answers go."""
    return [
        (direction, message)
        for direction, message in records
        if not (message.get("id") in ids and ("method" in message) == (direction == "client->agent"))
    ]


_RECORDINGS = _recordings()


def test_every_recording_of_codex_is_played() -> None:
    """None of the ten is lost by some mistake in choosing."""
    cases = {recording.name.removeprefix("codex-").rpartition("-")[0] for recording in _RECORDINGS}
    assert cases >= {
        *("basic", "cancel", "cancel_permission", "cancel_tool", "errors", "kill_resume", "parallel", "patch"),
        *("tool_allow", "tool_reject"),
    }
    methods = {call["method"] for recording in _RECORDINGS for call in recording.calls}
    assert methods == {"initialize", "initialized", "thread/start", "thread/resume", "turn/start", "turn/interrupt"}


@pytest.mark.parametrize("recording", _RECORDINGS, ids=lambda recording: recording.name)
async def test_a_recorded_conversation_is_held_again(recording: Recording, tmp_path: Path) -> None:
    """Same methods, same params, same answers; every turn ends as it did and every notification becomes an event."""
    sink = RecordedClient(recording)
    stops, sent = await _hold(recording, tmp_path, sink)
    _check_said(recording, sent, str(tmp_path))
    _check_turns(recording, stops)
    _check_told(recording, sink)


async def _hold(recording: Recording, folder: Path, sink: RecordedClient) -> tuple[list[TurnStop], list[Message]]:
    transcript, log = folder / "transcript.ndjson", folder / "log.ndjson"
    lines = [json.dumps({"dir": direction, "msg": message}) for direction, message in recording.records]
    transcript.write_text("\n".join(lines), encoding="utf-8")
    backend, params = replaying(folder, transcript, log)
    stops: list[TurnStop] = []
    async with opened(backend, _as_recorded(recording, params), sink) as session, trio.open_nursery() as nursery:
        assert session.session_id == recording.thread_id
        nursery.start_soon(sink.cancel_when_due, session)
        for prompt in recording.prompts[: len(recording.of_thread("turn/completed"))]:
            stops.append(await session.prompt(prompt))
        if len(recording.prompts) > len(stops):  # killed in the last turn
            nursery.start_soon(session.prompt, recording.prompts[-1])
        await eventually(lambda: len(sink.shown()) >= len(recording.told), seconds=TURN_SECONDS)
        nursery.cancel_scope.cancel()
    return stops, [json.loads(line) for line in log.read_text().splitlines()]


def _as_recorded(recording: Recording, params: OpenParams) -> OpenParams:
    theirs = recording.opening["params"]
    return msgspec.structs.replace(params, resume=theirs.get("threadId"), agent=theirs.get("sandbox"))


def _check_said(recording: Recording, sent: list[Message], our_cwd: str) -> None:
    calls = [message for message in sent if "method" in message]
    for call in calls:
        check_call(call)
    made = [call for call in calls if call["method"] != "model/list"]
    assert [call["method"] for call in made] == [call["method"] for call in recording.calls]
    for ours, theirs in zip(made, recording.calls, strict=True):
        _check_params(ours["method"], dict(ours["params"]), dict(theirs["params"]), our_cwd)
    answers = {message["id"]: message for message in sent if "method" not in message}
    for question, method in recording.asked.items():
        if question in recording.answers:
            assert answers[question]["result"] == recording.answers[question]
        check_answer(method, answers[question]["result"])


def _check_params(method: str, ours: dict[str, Any], theirs: dict[str, Any], our_cwd: str) -> None:
    match method:
        case "initialize":
            assert ours.keys() == theirs.keys()
            assert ours["capabilities"] == theirs["capabilities"]
            assert ours["clientInfo"].keys() == theirs["clientInfo"].keys()
        case "thread/start" | "thread/resume":
            free = {"approvalPolicy", "approvalsReviewer", "sandbox"}
            if "threadId" in theirs:
                free |= {"cwd", "excludeTurns"}
            assert ours.keys() - free == theirs.keys() - free
            assert ours["cwd"] == our_cwd
            assert ours["sandbox"] == theirs.get("sandbox", "workspace-write")
            assert ours.get("threadId") == theirs.get("threadId")
        case "turn/start":
            theirs.pop("model", None)  # ours is chosen for the whole thread
            assert ours == theirs
        case _:
            assert ours == theirs


def _check_turns(recording: Recording, stops: list[TurnStop]) -> None:
    done = [params["turn"] for params in recording.of_thread("turn/completed")]
    decisions = [answer["decision"] for answer in recording.answers.values()]
    for stop, turn in zip(stops, done, strict=True):
        refused = "end_turn" if "cancel" in decisions else "cancelled"
        assert stop.stop_reason == _STOPS.get(turn["status"], refused)
        assert (stop.error is not None) == (turn["status"] == "failed")
    totals = [
        params["tokenUsage"]["total"]["totalTokens"] for params in recording.of_thread("thread/tokenUsage/updated")
    ]
    if "threadId" in recording.opening["params"]:
        totals = [total - totals[0] for total in totals]  # what was used before is told before the first turn
    assert sum(stop.usage.total_tokens for stop in stops if stop.usage) == max(totals, default=0)


def _check_told(recording: Recording, sink: RecordedClient) -> None:
    assert len(sink.shown()) == len(recording.told)
    deltas = [params["delta"] for params in recording.of_thread("item/agentMessage/delta")]
    whole = [params["item"] for params in recording.of_thread("item/completed")]
    assert sink.text() == "".join(deltas)
    for item in whole:
        if item["type"] == "agentMessage":
            assert item["text"] in sink.text()
    tools = [item for item in whole if item["type"] in ("commandExecution", "fileChange")]
    ends = [event for event in sink.of(events.ToolCallUpdate) if event.status in ("completed", "failed")]
    assert [event.toolCallId for event in ends] == [item["id"] for item in tools]
    assert [event.status == "completed" for event in ends] == [item["status"] == "completed" for item in tools]


async def test_a_session_that_codex_does_not_know_is_refused_in_its_words(tmp_path: Path) -> None:
    """As it was recorded at the end of a resumed session."""
    _, records = _processes(read_transcript(HERE / "codex-kill_resume.ndjson"))
    unknown = next(m for d, m in records if d == "client->agent" and m["method"] == "thread/resume" and m["id"] == 5)
    kept = [(d, m) for d, m in records if m.get("method") in ("initialize", "initialized") or m.get("id") in (1, 5)]
    transcript, log = tmp_path / "transcript.ndjson", tmp_path / "log.ndjson"
    transcript.write_text("\n".join(json.dumps({"dir": d, "msg": m}) for d, m in kept), encoding="utf-8")
    backend, params = replaying(tmp_path, transcript, log)
    params = msgspec.structs.replace(params, resume=unknown["params"]["threadId"])
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused, match="no rollout found") as caught:
            await backend.open(params, RecordingSink(), nursery)
    assert (caught.value.reason_word, caught.value.retryable) == ("resume_failed", False)
