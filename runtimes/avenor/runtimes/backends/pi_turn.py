"""One prompt to pi, up to the moment when nothing more comes of it. Pure.

pi 0.73 does not mark that moment: `agent_end` comes once for each attempt, and a retry, or a summary of a conversation
that grew too long, may follow. What follows is announced in the same breath, so whoever asks for pi's state after an
`agent_end` knows with the answer: idle, and nothing announced, is the end. 1.x says `agent_settled`, which comes first
then. A prompt that an extension handles by itself has no `agent_start` at all.
"""

from enum import Enum, auto
from typing import Final

import msgspec
from msgspec import UNSET

from avenor.protocol.errors import INTERNAL_ERROR, ErrorObject
from avenor.protocol.events import Usage
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.base import TurnStop
from avenor.runtimes.backends.pi_types import (
    AgentEnd,
    AgentSettled,
    AgentStart,
    CompactionEnd,
    Message,
    MessageEnd,
    Record,
    RetryEnd,
    RetryStart,
    State,
    TokenUsage,
)

# pi's words that have one of ours; all others stay as they are.
_STOP_REASONS: Final = {"stop": "end_turn", "toolUse": "end_turn", "length": "max_tokens", "aborted": "cancelled"}

_usage = msgspec.json.Decoder(TokenUsage)


class Step(Enum):
    """What is to be done next."""

    WAIT = auto()
    ASK_STATE = auto()
    ASK_STATE_LATER = auto()
    ABORT = auto()
    END = auto()


class PiTurn:
    """A turn under way."""

    def __init__(self) -> None:
        self.is_cancelling = False
        self.usage: Usage | None = None
        self._is_accepted = False
        self._has_begun = False
        self._is_running = False
        self._is_going_on = False  # pi has announced another attempt
        self._last: Message | None = None

    def accept(self, disposition: str) -> Step:
        """pi has taken the prompt; `disposition` is empty from 0.73."""
        self._is_accepted = True
        if disposition == "handled":
            return Step.END
        # A cancel that came before there was a run to abort did nothing.
        if self.is_cancelling:
            return Step.ABORT
        return Step.WAIT if disposition else Step.ASK_STATE

    def take_aborted(self) -> Step:
        """pi has carried out an abort."""
        self._is_going_on = False
        return Step.ASK_STATE

    def take_state(self, state: State) -> Step:
        """pi has told its state, asked for as a step said."""
        if not self._is_accepted or self._is_running or self._is_going_on or state.is_compacting:
            return Step.WAIT
        if state.is_streaming:
            return Step.ASK_STATE_LATER if self._has_begun else Step.WAIT
        return Step.END

    def take(self, record: Record) -> Step:
        """pi has told how it goes on."""
        match record:
            case AgentStart():
                self._has_begun = self._is_running = True
                self._is_going_on = False
            case AgentEnd():
                self._is_running = False
                self._is_going_on = record.will_retry
                return Step.ASK_STATE
            case AgentSettled() if self._has_begun:
                return Step.END
            case RetryStart():
                self._is_going_on = True
            case RetryEnd() if not record.success:
                self._is_going_on = False
                return Step.ASK_STATE
            case CompactionEnd():
                self._is_going_on = record.will_retry
                return Step.ASK_STATE
            case MessageEnd() if record.message.role == "assistant":
                self._last = record.message
                self._add_usage(record.message)
            case _:
                pass
        return Step.WAIT

    def judge(self) -> TurnStop:
        """How the turn ended, by its last answer."""
        reason = "stop" if self._last is None else self._last.stop_reason
        if reason == "error" and self._last is not None:
            message = self._last.error_message or "the agent tells no reason"
            error = classify(ErrorObject(code=INTERNAL_ERROR, message=message))
            return TurnStop(stop_reason="cancelled" if self.is_cancelling else "error", error=error, usage=self.usage)
        if self.is_cancelling and (self._last is None or reason == "toolUse"):
            reason = "aborted"
        return TurnStop(stop_reason=_STOP_REASONS.get(reason, reason), usage=self.usage)

    def _add_usage(self, message: Message) -> None:
        told = read_usage(message)
        if told is not None:
            self.usage = told if self.usage is None else self.usage.plus(told)


def read_usage(message: Message) -> Usage | None:
    """What one answer cost; None if it does not say, or nothing was used."""
    if message.usage is UNSET:
        return None
    try:
        told = _usage.decode(message.usage)
    except msgspec.DecodeError:
        return None
    if told.total_tokens == 0 and told.input == 0 and told.output == 0:
        return None
    return Usage(
        input_tokens=told.input,
        output_tokens=told.output,
        total_tokens=told.total_tokens or told.input + told.output,
        cached_read_tokens=told.cache_read,
        cost_usd=UNSET if told.cost is None or told.cost.total is None else told.cost.total,
    )
