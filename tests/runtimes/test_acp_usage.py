"""Tokens and cost of a turn."""

import msgspec
import pytest
from acp import schema
from msgspec import UNSET, Raw

from avenor.protocol.events import Usage
from avenor.runtimes.backends.acp_types import PromptResult
from avenor.runtimes.backends.acp_usage import CostMeter, turn_usage
from tests.runtimes.transcripts import answers


def _result(text: str) -> PromptResult:
    return msgspec.json.decode(text, type=PromptResult)


def test_every_recorded_answer_to_a_prompt_can_be_read() -> None:
    """Stop reasons are kept verbatim, and usage is found wherever an agent tells it."""
    with_usage = 0
    for name, answer in answers("session/prompt"):
        if "result" not in answer:
            continue
        schema.PromptResponse.model_validate(answer["result"])
        result = msgspec.json.decode(msgspec.json.encode(answer["result"]), type=PromptResult)
        assert result.stop_reason == answer["result"]["stopReason"], name
        usage = turn_usage(result, UNSET)
        told = answer["result"].get("usage")
        if told:
            assert usage is not None
            assert (usage.input_tokens, usage.output_tokens) == (told["inputTokens"], told["outputTokens"]), name
            with_usage += 1
    assert with_usage > 20


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        (
            '{"stopReason":"x","usage":{"inputTokens":3,"outputTokens":4,"totalTokens":9,"cachedReadTokens":2}}',
            Usage(input_tokens=3, output_tokens=4, total_tokens=9, cached_read_tokens=2),
        ),
        (
            '{"stopReason":"x","_meta":{"quota":{"token_count":{"input_tokens":3,"output_tokens":4}}}}',
            Usage(input_tokens=3, output_tokens=4, total_tokens=7),
        ),
        ('{"stopReason":"x","usage":{"inputTokens":1,"cachedReadTokens":null}}', Usage(input_tokens=1, total_tokens=1)),
        ('{"stopReason":"x","usage":null,"_meta":null}', None),
        ('{"stopReason":"x","usage":"lots","_meta":7}', None),
        ('{"stopReason":"x"}', None),
    ],
)
def test_usage_is_found_where_agents_put_it(text: str, usage: Usage | None) -> None:
    """In `usage`, or in `_meta.quota`; what is malformed is no usage, and no error."""
    assert turn_usage(_result(text), UNSET) == usage


def test_a_turn_costs_what_the_session_total_grew_by() -> None:
    """Agents tell the total of the session so far."""
    meter = CostMeter(is_resumed=False)
    meter.start_turn()
    assert meter.turn_cost() is UNSET
    meter.take(Raw(b'{"amount":0.5,"currency":"USD"}'))
    meter.take(Raw(b'{"amount":0.75,"currency":"USD"}'))
    assert meter.turn_cost() == 0.75
    meter.start_turn()
    meter.take(Raw(b'{"amount":1.0,"currency":"USD"}'))
    assert meter.turn_cost() == 0.25
    assert turn_usage(_result('{"stopReason":"x"}'), meter.turn_cost()) == Usage(cost_usd=0.25)


def test_the_past_of_a_resumed_session_is_not_the_turns_cost() -> None:
    """The first figure after a resume is where counting starts."""
    meter = CostMeter(is_resumed=True)
    meter.start_turn()
    meter.take(Raw(b'{"amount":7.0,"currency":"USD"}'))
    assert meter.turn_cost() == 0.0
    meter.start_turn()
    meter.take(Raw(b'{"amount":7.5,"currency":"USD"}'))
    assert meter.turn_cost() == 0.5


@pytest.mark.parametrize("cost", [b'{"amount":1,"currency":"EUR"}', b"null", b'"free"', b"{}"])
def test_other_currencies_and_nonsense_do_not_count(cost: bytes) -> None:
    """Only US dollars can be told as `cost_usd`; the event keeps the rest."""
    meter = CostMeter(is_resumed=False)
    meter.start_turn()
    meter.take(Raw(cost))
    meter.take(UNSET)
    assert meter.turn_cost() is UNSET
