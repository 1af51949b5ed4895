"""One turn of the scripted agent: what steps have in common, and what is known of the turn when it ends."""

import math
import os
from collections.abc import Generator
from typing import Any

from avenor.protocol.errors import ErrorObject
from avenor.runtimes.scripted.connection import Connection, Reply
from avenor.runtimes.scripted.loop import Job, Loop, Wait
from avenor.runtimes.scripted.session import Session
from avenor.runtimes.scripted.state import Answered, Chosen, StateDirectory
from avenor.runtimes.scripted.text import excerpt, fill

Steps = Generator[Wait, bool, None]

# As a rule of thumb a token of English is four characters; the figures are for show.
CHARACTERS_PER_TOKEN = 4


class TurnEnded(Exception):
    """A step has ended the turn."""

    def __init__(self, stop_reason: str) -> None:
        self.stop_reason = stop_reason


class TurnFailed(Exception):
    """A step has ended the turn with an error."""

    def __init__(self, error: ErrorObject) -> None:
        self.error = error


class Turn:
    """The state of one turn.

    Args:
        prompt: Its text.
        shows_usage: Whether the answer carries tokens.
    """

    def __init__(
        self,
        session: Session,
        prompt: str,
        *,
        connection: Connection,
        loop: Loop,
        state: StateDirectory,
        shows_usage: bool,
    ) -> None:
        self.session = session
        self.prompt = prompt
        self.connection = connection
        self.loop = loop
        self.cached_read_tokens: int | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self.is_usage_scripted = False
        self._state = state
        self._shows_usage = shows_usage
        self._said_characters = 0
        self._updates: list[dict[str, Any]] = []
        self._next_id = 0

    @property
    def job(self) -> Job:
        """The task that plays this turn."""
        assert self.session.job is not None
        return self.session.job

    def values(self) -> dict[str, str]:
        """What the placeholders stand for now."""
        session = self.session
        return {
            "prompt": self.prompt,
            "excerpt": excerpt(self.prompt),
            "cwd": session.cwd,
            "session": session.session_id,
            "turn": str(len(session.prompts)),
            "reply": session.reply,
            **{option: session.chosen.get(option, "") for option in session.offered},
        }

    def fill(self, text: str) -> str:
        return fill(text, self.values())

    def path(self, text: str) -> str:
        """A path of the script, absolute."""
        return os.path.normpath(os.path.join(self.session.cwd, self.fill(text)))

    def new_id(self, prefix: str) -> str:
        """An id that no other turn of the session has."""
        self._next_id += 1
        return f"{prefix}_{len(self.session.prompts)}_{self._next_id}"

    def show(self, update: dict[str, Any], *, is_kept: bool = True) -> None:
        """Sends an update, and keeps it for a later replay."""
        if is_kept:
            self._keep(update)
        self.connection.notify("session/update", {"sessionId": self.session.session_id, "update": update})

    def show_text(self, kind: str, text: str, message_id: str | None) -> None:
        """Sends a chunk of a message or thought."""
        self._said_characters += len(text)
        update: dict[str, Any] = {"sessionUpdate": f"agent_{kind}_chunk", "content": {"type": "text", "text": text}}
        if message_id is not None:
            update["messageId"] = message_id
        self.show(update)

    def call(self, method: str, params: dict[str, Any]) -> Generator[Wait, bool, Reply]:
        return self.connection.call(method, params)

    def choose(self, option: str, value: str) -> None:
        """Sets an option of the session."""
        self.session.chosen[option] = value
        self._state.append(self.session.session_id, Chosen(option=option, value=value))

    def result(self, stop_reason: str) -> dict[str, Any]:
        """The answer to the prompt."""
        result: dict[str, Any] = {"stopReason": stop_reason}
        if self._shows_usage:
            result["usage"] = self._usage()
        return result

    def save(self) -> None:
        """Adds what the turn sent to the session's file."""
        if self._updates:
            self._state.append(self.session.session_id, Answered(updates=self._updates))

    def _usage(self) -> dict[str, int]:
        if not self.is_usage_scripted:
            self.input_tokens = math.ceil(len(self.prompt) / CHARACTERS_PER_TOKEN)
            self.output_tokens = math.ceil(self._said_characters / CHARACTERS_PER_TOKEN)
        usage = {"inputTokens": self.input_tokens, "outputTokens": self.output_tokens}
        if self.cached_read_tokens is not None:
            usage["cachedReadTokens"] = self.cached_read_tokens
        return {**usage, "totalTokens": sum(usage.values())}

    def _keep(self, update: dict[str, Any]) -> None:
        """Joins the chunks of one message, as a replay shows messages whole."""
        last = self._updates[-1] if self._updates else {}
        is_chunk = update["sessionUpdate"] in ("agent_message_chunk", "agent_thought_chunk")
        key = ("sessionUpdate", "messageId")
        if is_chunk and all(last.get(name) == update.get(name) for name in key):
            text = last["content"]["text"] + update["content"]["text"]
            self._updates[-1] = {**last, "content": {"type": "text", "text": text}}
        else:
            self._updates.append(update)
