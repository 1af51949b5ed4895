"""Joins the chunks of each message of a log into one event. Pure."""

from __future__ import annotations

from avenor.control.eventclass import ENDS_MESSAGE, MESSAGE_CHUNK, speaker_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from avenor.control.eventclass import Event

CHUNKS = (MESSAGE_CHUNK, "agent.thought_chunk", "user.message_chunk")


class _Open:
    """A message that may go on; `last` is its newest chunk."""

    __slots__ = ("last", "offset", "texts")

    def __init__(self, event: Event, offset: int) -> None:
        self.offset = offset
        self.last = event
        self.texts = [text_of(event)]

    def is_continued_by(self, event: Event) -> bool:
        return self.last["event"] == event["event"] and self.last.get("messageId") == event.get("messageId")

    def joined(self) -> Event:
        return {**self.last, "content": {"type": "text", "text": "".join(self.texts)}}


class MessageJoiner:
    """Turns the chunks of a message into one event, given when the message has ended: the last chunk with all the text.

    A message goes on over what does not end it, and messages of several sessions may be open at a time.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], _Open] = {}

    @property
    def open_offset(self) -> int | None:
        """Where the oldest message begins that has not been given; None if there is none."""
        return min((message.offset for message in self._open.values()), default=None)

    def feed(self, event: Event, offset: int) -> list[Event]:
        """The events that are complete with this one, in order.

        Args:
            event: The next of the log.
            offset: Where its line begins.
        """
        speaker = speaker_of(event)
        message = self._open.get(speaker)
        if event["event"] not in CHUNKS:
            if event["event"] == "run.end":
                return [*self.finish(), event]
            ended = self._end(speaker) if event["event"] in ENDS_MESSAGE else []
            return [*ended, event]
        if message is not None and message.is_continued_by(event):
            message.last = event
            message.texts.append(text_of(event))
            return []
        ended = self._end(speaker)
        self._open[speaker] = _Open(event, offset)
        return ended

    def finish(self) -> list[Event]:
        """The messages that are open, as far as they came."""
        messages = [message.joined() for message in self._open.values()]
        self._open.clear()
        return messages

    def _end(self, speaker: tuple[object, ...]) -> list[Event]:
        message = self._open.pop(speaker, None)
        return [] if message is None else [message.joined()]
