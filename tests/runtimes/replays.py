"""Every recorded ACP conversation as plays: what a client like ours would have said of it, and what the agent answers.

The recorded client tried things that ours never does: it set one mode after the other, forked, sent a second prompt
into a busy session, kept two sessions in one process, asked for the list of sessions before it needed it. A play is one
session of one process with these left out; whatever remains is expected of our client, call by call.
"""

import json
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.runtimes.transcripts import OTHER_WIRES, Message, transcript_paths

# The recordings that no other test reads: compressed, since nobody looks at them one by one.
MORE: Final = Path(__file__).parent.parent / "data" / "transcripts-more.tar.xz"

Record = tuple[str, Message]

_OPENINGS: Final = ("session/new", "session/load", "session/resume")
_SETTINGS: Final = ("session/set_config_option", "session/set_mode", "session/set_model")
# Our settings, by the ids of agents' config options.
_KINDS: Final = {"mode": "agent", "model": "model", "thinking": "thinking"}
# What an agent tells of a session's past; the other updates are of its present state.
_PAST: Final = {
    "user_message_chunk",
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
}
_METHOD_NOT_FOUND: Final = -32601
_TURNS: Final = ("session/prompt", "session/cancel")


@dataclass
class Play:
    """One conversation to be held again.

    Attributes:
        name: Of the recording, with what is played of it.
        agent: The recording's agent.
        records: What is said, in order, from `initialize` on.
        settings: The agent, model or thinking level that our client is to be asked for.
        is_refused: Whether the agent refused to open the session, or opened another one than it was asked for.
        is_applied: Whether the settings were in use when the agent had taken them.
    """

    name: str
    agent: str
    records: list[Record]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    is_refused: bool = False
    is_applied: bool = True

    @property
    def calls(self) -> list[Message]:
        """What our client must say, except for its answers."""
        return [message for direction, message in self.records if direction == "client->agent" and "method" in message]

    @property
    def opening(self) -> Message:
        """The call that opens the session."""
        return next(call for call in self.calls if call["method"] in _OPENINGS)

    @property
    def prompts(self) -> list[str]:
        """The prompts' texts."""
        return [call["params"]["prompt"][0]["text"] for call in self.calls if call["method"] == "session/prompt"]

    @property
    def heard(self) -> list[Message]:
        """What the agent says."""
        return [message for direction, message in self.records if direction == "agent->client"]

    @property
    def answers(self) -> Mapping[Any, Message]:
        """What the recorded client answered to the agent's requests."""
        said = (message for direction, message in self.records if direction == "client->agent")
        return {message["id"]: message for message in said if "method" not in message}

    def stop(self, turn: int) -> Message | None:
        """What the agent answered to a prompt; None if it did not."""
        ids = [call["id"] for call in self.calls if call["method"] == "session/prompt"]
        return next((m for m in self.heard if "method" not in m and m.get("id") == ids[turn]), None)

    def told(self) -> list[Message]:
        """The updates of the session's own turns: what a load replays comes before the first of them."""
        first = next((i for i, (_, m) in enumerate(self.records) if m.get("method") == "session/prompt"), None)
        later = self.records if self.opening["method"] == "session/new" else self.records[first:] if first else []
        return [message["params"]["update"] for _, message in later if message.get("method") == "session/update"]


def recordings() -> Iterator[tuple[str, list[Record]]]:
    """Every recorded ACP conversation, by name."""
    for path in transcript_paths():
        yield path.stem, _read(path.read_text(encoding="utf-8"))
    with tarfile.open(MORE) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            yield Path(member.name).stem, _read(file.read().decode())


def plays() -> list[Play]:
    """All of all recordings."""
    return [play for name, records in recordings() for play in plays_of(name, records)]


def plays_of(name: str, records: Sequence[Record]) -> Iterator[Play]:
    """The plays of a recording: one for each session that was opened in it, and one for each setting that was made."""
    assert not name.startswith(OTHER_WIRES)
    made = {_table(m, "result").get("sessionId") for d, m in records if d == "agent->client" and "result" in m}
    for number, process in enumerate(_processes(records), 1):
        openings = [message for _, message in process if message.get("method") in _OPENINGS]
        for count, opening in enumerate(openings, 1):
            part = _Session(process, opening, made)
            if part.is_unknown_call:
                continue  # our client then tries the other call
            yield Play(f"{name}-{number}.{count}", _agent(name), part.turns(), is_refused=part.is_refused)
            if not part.is_refused:
                for kind, value, lines in part.settings():
                    is_applied = _is_applied(lines[-1][1], kind, value)
                    yield Play(
                        f"{name}-{number}.{count}-{kind}", _agent(name), lines, {kind: value}, is_applied=is_applied
                    )


class _Session:
    """One session of a process.

    Args:
        process: All that was said.
        opening: The call that opened it.
        made: The ids of all sessions that the recording's agent has made: an id that is none of them is unknown to it.
    """

    def __init__(self, process: Sequence[Record], opening: Message, made: Collection[str | None]) -> None:
        self._process = process
        self._opening = opening
        self._answer = _answer(process, opening)
        self._result = _table(self._answer, "result")
        self._wanted = opening["params"].get("sessionId")
        self.id = self._wanted or self._result.get("sessionId")
        is_other = self._wanted is not None and (
            self._wanted not in made or self._result.get("sessionId", self.id) != self.id
        )
        self.is_refused = bool(_table(self._answer, "error")) or is_other
        self.is_unknown_call = _table(self._answer, "error").get("code") == _METHOD_NOT_FOUND

    def turns(self) -> list[Record]:
        """The opening and the turns, up to the first thing that our client never does."""
        kept: list[Record] = []
        open_prompts: set[Any] = set()
        for direction, message in [*self._handshake(), *self._after()]:
            method = message.get("method")
            if direction == "client->agent" and method is not None:
                if method in _SETTINGS or (method == "session/cancel" and not open_prompts):
                    continue
                if method == "session/prompt":
                    if open_prompts:
                        break  # a second prompt in a busy session
                    open_prompts.add(message["id"])
            if direction == "agent->client" and method is None:
                if not _asked(kept, message["id"]):
                    continue  # the answer to a call that was left out
                open_prompts.discard(message["id"])
            kept.append((direction, message))
        return kept

    def settings(self) -> Iterator[tuple[str, str, list[Record]]]:
        """What was set in it, as our client would have, each alone: the kind, the value, and what is said."""
        seen: set[str] = set()
        for index, (direction, message) in enumerate(self._process):
            if direction != "client->agent" or message.get("method") not in _SETTINGS:
                continue
            found = self._setting(message)
            answer = _answer(self._process, message)
            if found is None or found[0] in seen or answer is None or "error" in answer:
                continue
            seen.add(found[0])
            upto = self._process.index(("agent->client", answer))
            between = [r for r in self._process[index:upto] if r[1] is message or self._is_mine(r[1])]
            yield (*found, [*self._handshake(), *between, ("agent->client", answer)])

    def _setting(self, call: Message) -> tuple[str, str] | None:
        """Which of our settings a call makes, and to what; None if our client would not make it, or not by this call.

        A config option is the way to set what it is offered for. The older calls are for agents without.
        """
        params, options = call["params"], _tables(self._result, "configOptions")
        if params.get("sessionId") != self.id:
            return None
        by_id = {option["id"]: option for option in options}
        if call["method"] == "session/set_config_option":
            option = by_id.get(params["configId"], {})
            is_new = option.get("currentValue") != params["value"]
            return (_KINDS[option["id"]], params["value"]) if is_new and option.get("id") in _KINDS else None
        kind, member, field_, offers = (
            ("mode", "modeId", "currentModeId", "availableModes")
            if call["method"] == "session/set_mode"
            else ("model", "modelId", "currentModelId", "availableModels")
        )
        value: str = params[member]
        state = _table(self._result, f"{kind}s")
        ids = [offer.get("id", offer.get("modelId")) for offer in _tables(state, offers)]
        if kind in by_id or value not in ids or value == state.get(field_):
            return None
        return _KINDS[kind], value

    def _handshake(self) -> list[Record]:
        """`initialize`, the opening, and what the agent says of this session until it has answered."""
        first = next(message for _, message in self._process if message.get("method") == "initialize")
        hello = _answer(self._process, first)
        assert hello is not None
        start = self._process.index(("client->agent", self._opening))
        end = self._process.index(("agent->client", self._answer)) if self._answer else len(self._process)
        opening = [r for r in self._process[start : end + 1] if r[1] is self._opening or self._is_mine(r[1])]
        return [("client->agent", first), ("agent->client", hello), *opening, *self._doubt()]

    def _doubt(self) -> list[Record]:
        """The list of sessions: our client asks for it where the agent restores one without a word of its past."""
        if (
            self._opening["method"] != "session/load"
            or not self._answer
            or "result" not in self._answer
            or self._has_past()
        ):
            return []
        call = next((m for d, m in self._process if m.get("method") == "session/list" and d == "client->agent"), None)
        answer = _answer(self._process, call) if call is not None else None
        return [("client->agent", call), ("agent->client", answer)] if call is not None and answer is not None else []

    def _has_past(self) -> bool:
        start = self._process.index(("client->agent", self._opening))
        for direction, message in self._process[start + 1 :]:
            if direction == "client->agent":
                return False
            is_update = message.get("method") == "session/update" and self._is_mine(message)
            if is_update and message["params"]["update"]["sessionUpdate"] in _PAST:
                return True
        return False

    def _after(self) -> Iterator[Record]:
        """What belongs to this session after its opening."""
        if self._answer is None or self.is_refused:
            return
        start = self._process.index(("agent->client", self._answer))
        theirs: set[Any] = set()
        for direction, message in self._process[start + 1 :]:
            method = message.get("method")
            if direction == "client->agent" and method in _OPENINGS and message["params"].get("sessionId") == self.id:
                return  # opened once more
            if direction == "client->agent" and method is not None and not self._is_turn(message):
                continue
            if direction == "agent->client" and method is not None and not self._is_mine(message):
                if "id" in message:
                    theirs.add(message["id"])
                continue
            if direction == "client->agent" and method is None and message["id"] in theirs:
                continue
            yield direction, message

    def _is_turn(self, message: Message) -> bool:
        """Whether a call belongs to a turn of this session, or sets something in it."""
        mine = message["method"] in (*_TURNS, *_SETTINGS)
        return mine and message["params"].get("sessionId") == self.id

    def _is_mine(self, message: Message) -> bool:
        """Whether what an agent says belongs to this session, or to none."""
        if "method" not in message:
            return self._answer is not None and message is self._answer
        return _table(message, "params").get("sessionId") in (None, self.id)


def _is_applied(answer: Message, kind: str, value: str) -> bool:
    """Whether an answer that tells what is set now tells this value."""
    options = {_KINDS.get(option["id"]): option for option in _tables(answer["result"], "configOptions")}
    return kind not in options or bool(options[kind]["currentValue"] == value)


def _table(message: Message | None, name: str) -> Message:
    """A member that is an object; empty where there is none."""
    found: Message = (message or {}).get(name) or {}
    return found


def _tables(message: Message, name: str) -> list[Message]:
    """A member that is a list of objects; empty where there is none."""
    found: list[Message] = message.get(name) or []
    return found


def _agent(name: str) -> str:
    return name.split("-")[0]


def _read(text: str) -> list[Record]:
    records = [json.loads(line) for line in text.splitlines()]
    return [(record["dir"], record["msg"]) for record in records]


def _processes(records: Sequence[Record]) -> Iterator[list[Record]]:
    """What was said to each process of the agent, and by it."""
    process: list[Record] = []
    for direction, message in records:
        if direction == "meta" and "spawn" in message and process:
            yield process
            process = []
        elif direction != "meta":
            process.append((direction, message))
    if process:
        yield process


def _answer(process: Sequence[Record], call: Message) -> Message | None:
    """The agent's answer to a call."""
    start = process.index(("client->agent", call))
    later = (m for d, m in process[start:] if d == "agent->client" and "method" not in m)
    return next((message for message in later if message.get("id") == call["id"]), None)


def _asked(kept: Sequence[Record], request_id: Any) -> bool:
    calls = (message for direction, message in kept if direction == "client->agent" and "method" in message)
    return any(call.get("id") == request_id for call in calls)
