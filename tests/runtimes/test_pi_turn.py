"""When a prompt to pi is over, record by record: the same for pi that marks the end and pi that does not."""

from typing import Any

import msgspec
import pytest

from avenor.protocol.events import Usage
from avenor.runtimes.backends.base import TurnStop
from avenor.runtimes.backends.pi_turn import PiTurn, Step
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
)

IDLE = State(session_id="s")
BUSY = State(session_id="s", is_streaming=True)
COMPACTING = State(session_id="s", is_compacting=True)


def answered(stop_reason: str, error: str = "", **usage: Any) -> MessageEnd:
    """The end of an answer of the model."""
    told = msgspec.Raw(msgspec.json.encode(usage)) if usage else msgspec.UNSET
    return MessageEnd(message=Message(role="assistant", stop_reason=stop_reason, error_message=error, usage=told))


def begun(*records: Record) -> PiTurn:
    """A turn that pi has taken, with what came since."""
    turn = PiTurn()
    assert turn.accept("started") is Step.WAIT
    for record in records:
        turn.take(record)
    return turn


def test_an_attempt_without_a_mark_of_the_end_is_asked_about() -> None:
    """0.73: idle, and nothing announced, is the end."""
    turn = PiTurn()
    assert turn.accept("") is Step.ASK_STATE
    assert turn.take(AgentStart()) is Step.WAIT
    assert turn.take_state(BUSY) is Step.WAIT
    assert turn.take(answered("stop")) is Step.WAIT
    assert turn.take(AgentEnd()) is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.END
    assert turn.judge() == TurnStop(stop_reason="end_turn")


def test_a_settled_agent_is_the_end() -> None:
    """1.x says so, before it answers."""
    turn = begun(AgentStart(), answered("stop"), AgentEnd())
    assert turn.take(AgentSettled()) is Step.END


def test_what_an_earlier_turn_left_behind_does_not_end_the_next() -> None:
    """A mark that comes late, before this turn has begun, is another's."""
    turn = PiTurn()
    assert turn.take(AgentSettled()) is Step.WAIT
    assert turn.take_state(IDLE) is Step.WAIT  # pi has not even taken the prompt


def test_an_announced_retry_is_waited_for() -> None:
    """Idle between two attempts is no end, however pi announces the next."""
    for announced in ((AgentEnd(), RetryStart()), (AgentEnd(will_retry=True),)):
        turn = begun(AgentStart(), answered("error", "500 oh"), *announced)
        assert turn.take_state(IDLE) is Step.WAIT
        turn.take(AgentStart())
        turn.take(answered("stop"))
        turn.take(RetryEnd(success=True))
        assert turn.take(AgentEnd()) is Step.ASK_STATE
        assert turn.take_state(IDLE) is Step.END
        assert turn.judge() == TurnStop(stop_reason="end_turn")


def test_retries_that_are_over_end_the_turn_as_failed() -> None:
    """With the last attempt's words."""
    turn = begun(AgentStart(), answered("error", "500 oh"), AgentEnd(), RetryStart(), AgentStart())
    turn.take(answered("error", "529 overloaded"))
    turn.take(AgentEnd())
    assert turn.take(RetryEnd(success=False)) is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.END
    stop = turn.judge()
    assert stop.error is not None
    assert (stop.stop_reason, stop.error.message, stop.error.failure_class) == ("error", "529 overloaded", "overloaded")


def test_a_summary_of_the_conversation_is_waited_for() -> None:
    """And the attempt that follows it, if pi announces one."""
    turn = begun(AgentStart(), answered("error", "too long"), AgentEnd())
    assert turn.take_state(COMPACTING) is Step.WAIT
    assert turn.take(CompactionEnd(will_retry=True)) is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.WAIT
    turn.take(AgentStart())
    turn.take(answered("stop"))
    assert turn.take(AgentEnd()) is Step.ASK_STATE
    assert turn.take(CompactionEnd()) is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.END


def test_a_pi_that_is_busy_without_a_word_is_asked_again() -> None:
    """An extension of the user's may do something after the attempt."""
    turn = begun(AgentStart(), answered("stop"), AgentEnd())
    assert turn.take_state(BUSY) is Step.ASK_STATE_LATER
    assert turn.take_state(IDLE) is Step.END


def test_a_prompt_that_an_extension_handles_ends_with_its_answer() -> None:
    """There is no attempt, and no answer of the model."""
    turn = PiTurn()
    assert turn.accept("handled") is Step.END
    assert turn.judge() == TurnStop(stop_reason="end_turn")


@pytest.mark.parametrize("disposition", ["", "started"])
def test_a_cancel_that_came_too_early_is_said_again(disposition: str) -> None:
    """There was nothing to abort before pi had taken the prompt."""
    turn = PiTurn()
    turn.is_cancelling = True
    assert turn.take_aborted() is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.WAIT
    assert turn.accept(disposition) is Step.ABORT
    assert turn.take_aborted() is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.END
    assert turn.judge() == TurnStop(stop_reason="cancelled")


def test_a_cancel_ends_the_wait_for_a_retry() -> None:
    """What the failed attempt said is kept; the turn is cancelled."""
    turn = begun(AgentStart(), answered("error", "terminated"), AgentEnd(), RetryStart())
    turn.is_cancelling = True
    assert turn.take_aborted() is Step.ASK_STATE
    assert turn.take_state(IDLE) is Step.END
    stop = turn.judge()
    assert stop.stop_reason == "cancelled"
    assert stop.error is not None


@pytest.mark.parametrize(("said", "ours"), [("stop", "end_turn"), ("toolUse", "cancelled"), ("aborted", "cancelled")])
def test_a_cancel_that_came_too_late_is_none(said: str, ours: str) -> None:
    """What had ended by itself has; what stopped at a tool has been cancelled."""
    turn = begun(AgentStart(), answered(said), AgentEnd())
    turn.is_cancelling = True
    assert turn.judge().stop_reason == ours


@pytest.mark.parametrize(
    ("words", "failure_class", "permanent", "reason"),
    [
        ("400 fake error 400", "unknown", True, "invalid_request"),
        ('401: {"message":"fake error 401","type":"authentication_error"}', "unknown", True, "auth"),
        ('429: {"message":"fake error 429","type":"rate_limit_error","code":"429"}', "rate_limit", False, ""),
        ("500 fake error 500", "overloaded", False, ""),
        ("terminated: other side closed (UND_ERR_SOCKET)", "transport", False, ""),
        ("Expected property name or '}' in JSON at position 1", "transport", False, ""),
        ("", "unknown", False, ""),
    ],
)
def test_what_pi_says_of_a_fault_has_a_class(words: str, failure_class: str, permanent: bool, reason: str) -> None:
    """The words are those of the recordings."""
    stop = begun(AgentStart(), answered("error", words), AgentEnd()).judge()
    assert stop.error is not None
    assert (stop.error.failure_class, stop.error.permanent, stop.error.reason) == (failure_class, permanent, reason)
    assert stop.error.message


def test_usage_is_summed_over_the_answers_of_a_turn() -> None:
    """What pi does not tell, or tells as nothing, is left out."""
    first = answered("toolUse", input=10, output=5, cacheRead=3, totalTokens=18, cost={"total": 0.5})
    second = answered("stop", input=20, output=6, cost={"total": 0.25})
    turn = begun(AgentStart(), first, answered("toolUse", input=0, totalTokens=0), second, answered("stop", input="x"))
    assert turn.usage == Usage(input_tokens=30, output_tokens=11, total_tokens=44, cached_read_tokens=3, cost_usd=0.75)
    assert begun(AgentStart(), answered("stop")).judge().usage is None


def test_a_count_beyond_reason_is_no_usage() -> None:
    """Nobody can reckon with it; the answer counts all the same."""
    stop = begun(AgentStart(), answered("stop", input=10**320, totalTokens=1), AgentEnd()).judge()
    assert (stop.stop_reason, stop.usage) == ("end_turn", None)


def test_messages_of_others_are_not_the_models() -> None:
    """A tool's result, or the user's own message, says nothing of the end."""
    other = MessageEnd(message=Message(role="toolResult", stop_reason="error"))
    assert begun(AgentStart(), answered("stop"), other).judge() == TurnStop(stop_reason="end_turn")
