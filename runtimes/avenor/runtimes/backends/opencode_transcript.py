"""What is known of the messages of one session, and what of it has been told. Pure.

The server sends a message's text as deltas, and whole at its beginning and end. Deltas have no place in the text, so
they are followed only where the text's beginning came over the same stream; after a break the rest of a text is told
when it comes whole.
"""

import msgspec
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event, Usage
from avenor.runtimes.backends.opencode_tools import ToolCalls
from avenor.runtimes.backends.opencode_types import Message, MessageInfo, Part, whole

_part = msgspec.json.Decoder(Part)

# Kinds of parts that only mark where a step begins and ends, and what the files were like then.
_MARKS = ("step-start", "step-finish", "snapshot")
_TEXTS = ("text", "reasoning")


class _Text:
    """A text or thought: what of it was told."""

    def __init__(self, kind: str, message_id: str) -> None:
        self.kind = kind
        self.message_id = message_id
        self.told = ""
        self.has_gap = False


class Transcript:
    """The messages of a session.

    Attributes:
        prompt_id: The message that began the turn; None until the server has told of it.
        answers: The agent's messages of the turn, in their order.
        spent: All messages of the turn that have used up tokens: those of subagents too.
    """

    def __init__(self) -> None:
        self.prompt_id: str | None = None
        self.answers: dict[str, MessageInfo] = {}
        self.spent: dict[str, MessageInfo] = {}
        self._roles: dict[str, str] = {}
        self._past: set[str] = set()
        self._texts: dict[str, _Text] = {}
        self._tools = ToolCalls()
        self._waiting: dict[str, list[Raw]] = {}

    @property
    def last_answer(self) -> MessageInfo | None:
        """The agent's last message of the turn."""
        return next(reversed(self.answers.values()), None)

    @property
    def is_answered(self) -> bool:
        """Whether the agent has said something in the turn, and nothing is added to it any more."""
        return bool(self.answers) and all(answer.is_over for answer in self.answers.values())

    def start_turn(self) -> None:
        """What comes from now on under an id that is not known yet is the turn's."""
        self._past.update(self._roles)
        self.prompt_id = None
        for known in (self.answers, self.spent, self._roles, self._texts, self._waiting):
            known.clear()
        self._tools.clear()

    def take_past(self, history: list[Message]) -> None:
        """Takes messages that are none of a coming turn's."""
        self._past.update(message.info.id for message in history)

    def break_off(self) -> None:
        """The stream has a gap now."""
        for text in self._texts.values():
            text.has_gap = True

    def take_message(self, info: MessageInfo, *, is_own: bool) -> bool:
        """Takes the state of a message; False if it is of an earlier turn, or tells nothing new.

        Args:
            info: The message.
            is_own: Whether it is of this session; False for one of a subagent.
        """
        if info.id in self._past:
            return False
        self._roles[info.id] = info.role
        if info.role != "assistant":
            if is_own and self.prompt_id is None:
                self.prompt_id = info.id
            return True
        before = self.spent.get(info.id)
        if before is not None and (before == info or (before.is_over and not info.is_over)):
            return False
        self.spent[info.id] = info
        if is_own:
            self.answers[info.id] = info
        return True

    def take_part(self, raw: Raw) -> list[Event]:
        """The events for the state of a part of a message of this session.

        Raises:
            msgspec.DecodeError: It is no part.
        """
        part = _part.decode(raw)
        role = self._roles.get(part.messageID)
        if role is None and part.messageID not in self._past:
            # Of a message that began in a gap; whose it is, the history tells.
            self._waiting.setdefault(part.messageID, []).append(raw.copy())
        if role != "assistant" or part.type in _MARKS:
            return []
        if part.type == "tool":
            return self._tools.take(part)
        if part.type in _TEXTS:
            return self._take_text(part)
        return [events.SessionUpdate(update=raw.copy())]

    def is_worth_telling(self, raw: Raw) -> bool:
        """Whether a part of a subagent's message is told: its tools, and texts that are whole.

        Raises:
            msgspec.DecodeError: It is no part.
        """
        part = _part.decode(raw)
        if self._roles.get(part.messageID) != "assistant" or part.type in _MARKS:
            return False
        return part.type not in _TEXTS or (part.time is not None and part.time.end is not None)

    def take_delta(self, part_id: str, delta: str) -> list[Event]:
        """The event for more of a text; none for one whose place in it is not known."""
        text = self._texts.get(part_id)
        if text is None or text.has_gap:
            return []
        return _more(text, part_id, delta)

    def catch_up(self, history: list[Message]) -> list[Event]:
        """The events for what was missed, from the session's messages as they are now."""
        told: list[Event] = []
        for message in history:
            if self.take_message(message.info, is_own=True) or message.info.id not in self._past:
                for part in [*message.parts, *self._waiting.pop(message.info.id, [])]:
                    told += self.take_part(part)
        self.break_off()  # texts that were begun meanwhile: the start of their deltas was missed
        return told

    def usage(self) -> Usage | None:
        """What the turn has used; None if no model has answered."""
        spent = [info for info in self.spent.values() if info.is_over]
        if not spent:
            return None
        total = Usage(cost_usd=0.0)
        for info in spent:
            total = total.plus(_usage(info))
        return total if total.total_tokens or total.cost_usd else None

    def _take_text(self, part: Part) -> list[Event]:
        text = self._texts.get(part.id)
        if text is None:
            text = self._texts[part.id] = _Text(part.type, part.messageID)
        is_whole = part.time is None or part.time.end is not None
        # A beginning may hold words already; what comes later, whole, has all of them. Its end may be trimmed.
        if (is_whole or not text.told) and part.text.startswith(text.told):
            return _more(text, part.id, part.text[len(text.told) :])
        return []


def _more(text: _Text, part_id: str, more: str) -> list[Event]:
    if not more:
        return []
    text.told += more
    content = Raw(msgspec.json.encode({"type": "text", "text": more}))
    if text.kind == "reasoning":
        return [events.ThoughtChunk(content=content, messageId=part_id)]
    return [events.MessageChunk(content=content, messageId=text.message_id)]


def _usage(info: MessageInfo) -> Usage:
    """opencode counts thoughts, and what the cache has read or taken, apart from input and output."""
    tokens = info.tokens
    prompt = whole(tokens.input + tokens.cache.write)
    said = whole(tokens.output + tokens.reasoning)
    cached = whole(tokens.cache.read)
    return Usage(
        input_tokens=prompt,
        output_tokens=said,
        total_tokens=prompt + said + cached,
        cached_read_tokens=cached,
        cost_usd=info.cost,
    )
