"""What is read out of a turn's events while they pass: markers, the final output, what the agent is at."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from avenor.protocol.events import (
    AgentPhase,
    Event,
    MessageChunk,
    PermissionRequest,
    ThoughtChunk,
    ToolCall,
    ToolCallUpdate,
    UserChunk,
)
from avenor.protocol.markers import Directive, MarkerParser


class _Text(msgspec.Struct, frozen=True, gc=False):
    """A content block, as far as it is text. Tolerant."""

    type: str
    text: str = ""


_decode_text: Final = msgspec.json.Decoder(_Text).decode
_ENDS_MESSAGE: Final = (ToolCall, ToolCallUpdate, ThoughtChunk, UserChunk, PermissionRequest)
_LOOKS_LIKE: Final[dict[type[Event], AgentPhase]] = {
    ThoughtChunk: "thinking",
    MessageChunk: "working",
    ToolCall: "working",
}


class Reading:
    """Reads along with one turn. Pure.

    Attributes:
        directives: The markers of the turn, statuses left out, in order.
    """

    def __init__(self) -> None:
        self.directives: list[Directive] = []
        self._parser = MarkerParser()
        self._text: list[str] = []

    @property
    def final_output(self) -> str:
        """The message text since the last tool call."""
        return "".join(self._text)

    def note(self, event: Event) -> Sequence[Directive]:
        """Takes the next event; returns the status markers that have become complete."""
        if isinstance(event, MessageChunk):
            self._note_text(event)
        elif isinstance(event, _ENDS_MESSAGE):
            self._parser.end_message()
            if isinstance(event, ToolCall):
                self._text.clear()
        return self._take() if self._parser.has_directives else ()

    def end(self) -> Sequence[Directive]:
        """The turn is over; returns the status markers of its last message."""
        self._parser.end_message()
        return self._take()

    def _note_text(self, event: MessageChunk) -> None:
        try:
            block = _decode_text(event.content)
        except msgspec.DecodeError:  # a kind of content that we do not know is no text
            return
        if block.type == "text":
            self._parser.feed_message(block.text, None if event.messageId is UNSET else event.messageId)
            self._text.append(block.text)

    def _take(self) -> Sequence[Directive]:
        statuses: list[Directive] = []
        for directive in self._parser.take():
            (statuses if directive.kind == "status" else self.directives).append(directive)
        return statuses


def looks_like(event: Event) -> AgentPhase | None:
    """What an agent that reports this seems to be at; None if it tells nothing."""
    return _LOOKS_LIKE.get(type(event))
