"""What was heard in one turn of an ACP agent, and from that how the turn truly ended. Pure.

An agent's own word for the end is not enough. Some say `end_turn` when their model has failed: the profile's failure
signs tell those. Some say `cancelled` when their user has turned down a tool: nobody has cancelled anything then, the
agent has only stopped to be told what to do instead, as others do with `end_turn`. So that is what it is called here;
`cancelled` would end a run as if it had been killed (contract, part 2).
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from avenor.protocol import events
from avenor.protocol.errors import ErrorObject
from avenor.protocol.events import Event
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.base import TurnError
from avenor.runtimes.backends.profiles import FailureSign

TEXT_LIMIT_CHARS = 16384  # The end of a message that is kept; an error's text is far shorter.

_SILENCE: Final = "the agent ended the turn without a word, as it does when its model fails"
_WORK = (events.ThoughtChunk, events.ToolCall, events.ToolCallUpdate, events.SessionPlan)


class _Content(msgspec.Struct, frozen=True):
    """Tolerant."""

    text: str = ""


_content = msgspec.json.Decoder(_Content)


class Heard:
    """What an agent has said and done in a turn.

    Args:
        signs: The failure signs of this agent.

    Attributes:
        was_refused: A question of the agent was answered with a no.
    """

    def __init__(self, signs: Sequence[FailureSign]) -> None:
        self._signs = signs
        self._updates: dict[int, str] = {}  # the updates that showed a sign, by its position
        self._is_silent = True
        self._message = ""
        self._message_id: object = UNSET
        self._chunk = ""
        self.was_refused = False

    def take(self, event: Event, update: Raw) -> None:
        """Takes the next event of the turn, and the update that it was made of."""
        if not self._signs:
            return
        if isinstance(event, events.MessageChunk):
            self._take_text(event)
        elif isinstance(event, _WORK):
            self._is_silent = False
            self.end_message()
        elif isinstance(event, events.UserChunk):
            self.end_message()
        else:
            self._look_at(update)

    def end_message(self) -> None:
        """What comes now belongs to another message."""
        self._message, self._chunk, self._message_id = "", "", UNSET

    def stop_reason(self, told: str) -> str:
        """The word for the end of a turn that nobody has cancelled, of which the agent has told `told`."""
        return "end_turn" if told == "cancelled" and self.was_refused else told

    def failure(self, told: str) -> TurnError | None:
        """Why the turn failed, although the agent has told `told`; None if it did not."""
        for position, sign in enumerate(self._signs):
            if told in sign.stop_reasons:
                evidence = self._evidence(position, sign)
                if evidence is not None:
                    return _error(sign, evidence)
        return None

    def _take_text(self, event: events.MessageChunk) -> None:
        try:
            text = _content.decode(event.content).text
        except msgspec.DecodeError:
            text = ""
        if event.messageId != self._message_id:
            self.end_message()
            self._message_id = event.messageId
        if text:  # some agents send empty chunks that carry their token counts
            self._is_silent = False
            self._chunk = text
            self._message = (self._message + text)[-TEXT_LIMIT_CHARS:]

    def _look_at(self, update: Raw) -> None:
        for position, sign in enumerate(self._signs):
            if sign.where == "update":
                text = bytes(update).decode(errors="replace")
                if re.search(sign.pattern, text):
                    self._updates[position] = text
                    self.end_message()  # what is said from here on tells what it was

    def _evidence(self, position: int, sign: FailureSign) -> str | None:
        """What shows the sign, for people; None if nothing does."""
        match sign.where:
            case "message":
                return _searched(sign, self._message)
            case "chunk":
                return _searched(sign, self._chunk)
            case "update":
                return self._message.strip() or self._updates[position] if position in self._updates else None
            case "nothing":
                return _SILENCE if self._is_silent else None


def signs_of(signs: Sequence[FailureSign], agent_name: str) -> list[FailureSign]:
    """Those of a profile's signs that may show in the agent of that name."""
    return [sign for sign in signs if re.search(sign.agent, agent_name, re.IGNORECASE)]


def _searched(sign: FailureSign, text: str) -> str | None:
    return text.strip() if text and re.search(sign.pattern, text) else None


def _error(sign: FailureSign, evidence: str) -> TurnError:
    error = classify(ErrorObject(code=0, message=evidence))
    if sign.failure_class is None:
        return error
    return msgspec.structs.replace(error, failure_class=sign.failure_class, permanent=sign.permanent)
