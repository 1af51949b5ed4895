"""How much an event matters to somebody who watches: a milestone, a finding, or activity. Pure."""

from __future__ import annotations

import re

from avenor.control.manifesttext import is_telling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Event = dict[str, Any]

MILESTONE = "MILESTONE"
FINDING = "FINDING"
ACTIVITY = "ACTIVITY"

MESSAGE_CHUNK = "agent.message_chunk"

_MILESTONES = frozenset(
    {
        "session.start",
        "session.end",
        "avenor.loop.start",
        "avenor.loop.end",
        "avenor.team.start",
        "avenor.team.end",
        "avenor.phase.end",
        "permission.request",
        "avenor.retry",
        "avenor.error",
    }
)
_TELLING_STATUSES = ("waiting", "done")
_COMMIT = "git commit"
_CONFIDENCE_LEAST = 60
# Emphasis may stand between the words: `**Confidence:** 85%`.
_SIGNS = re.compile(
    r"\[finding\]|failed test|correction needed|reviewer flagged|confidence[*_]*:[*_\s]*([0-9]{1,3})(?:\.[0-9]+)?\s*%",
    re.IGNORECASE,
)
# More than the longest sign with its blanks: what must be kept of a message to see a sign that a chunk cuts in two.
_KEPT_CHARS = 64


class Classifier:
    """Classifies the events of a log in their order; it remembers what later events do not repeat.

    An event alone does not always tell: a completed tool call has its title in an earlier event, and a sign in a
    message may be cut in two by chunks. It then counts for the chunk that completes it.
    """

    def __init__(self) -> None:
        self._commits: set[tuple[object, ...]] = set()
        self._said: dict[tuple[object, ...], tuple[object, str]] = {}

    def classify(self, event: Event) -> str:
        """The class of the next event."""
        name = event.get("event")
        if name == MESSAGE_CHUNK:
            return FINDING if self._has_new_sign(event) else ACTIVITY
        if name in ENDS_MESSAGE:
            self._said.pop(speaker_of(event), None)
        if name in _MILESTONES:
            return MILESTONE
        if name == "agent.status":
            return MILESTONE if event.get("phase") in _TELLING_STATUSES else ACTIVITY
        if name in ("tool.call", "tool.call_update"):
            return MILESTONE if self._completes_commit(event) else ACTIVITY
        return MILESTONE if is_telling(event) else ACTIVITY

    def _completes_commit(self, event: Event) -> bool:
        key = (*speaker_of(event), event.get("toolCallId"))
        if _COMMIT in str(event.get("title", "")) or _COMMIT in _command_of(event):
            self._commits.add(key)
        return event.get("status") == "completed" and key in self._commits

    def _has_new_sign(self, event: Event) -> bool:
        speaker, message_id = speaker_of(event), event.get("messageId")
        last_id, before = self._said.get(speaker, (message_id, ""))
        if message_id != last_id:
            before = ""
        text = before + text_of(event)
        self._said[speaker] = (message_id, text[-_KEPT_CHARS:])
        return any(found.end() > len(before) and _is_sign(found) for found in _SIGNS.finditer(text))


# What ends the message of its session, as where markers are read (contract, part 3).
ENDS_MESSAGE = frozenset(
    {
        "agent.thought_chunk",
        "user.message_chunk",
        "tool.call",
        "tool.call_update",
        "permission.request",
        "turn.start",
        "turn.end",
        "session.end",
        "avenor.phase.end",
        "run.end",
    }
)


def speaker_of(event: Event) -> tuple[object, ...]:
    """What tells the sessions apart that are in one log."""
    return tuple(_plain(event.get(name)) for name in ("runtime_id", "path", "session_id"))


def text_of(event: Event) -> str:
    """The text of a chunk; of other content its kind, `[image]`."""
    content = _object(event.get("content"))
    return str(content.get("text", "")) if content.get("type", "text") == "text" else f"[{content['type']}]"


def _is_sign(found: re.Match[str]) -> bool:
    percent = found[1]
    return percent is None or int(percent) >= _CONFIDENCE_LEAST


def _command_of(event: Event) -> str:
    command: Any = _object(event.get("rawInput")).get("command", "")
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _plain(value: object) -> object:
    """A value that can be a key, whatever a foreign line has in its place."""
    return value if isinstance(value, str) else None
