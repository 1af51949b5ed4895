"""Tokens and cost of a turn."""

import msgspec
import pytest
from acp import schema
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import Usage
from avenor.runtimes.backends.acp_types import PromptResult
from avenor.runtimes.backends.acp_usage import UsageMeter
from tests.runtimes.transcripts import answers


def _result(text: str) -> PromptResult:
    return msgspec.json.decode(text, type=PromptResult)


def _cost(meter: UsageMeter) -> float | UnsetType:
    usage = meter.turn_usage(_result('{"stopReason":"x"}'))
    return UNSET if usage is None else usage.cost_usd


def test_every_recorded_answer_to_a_prompt_can_be_read() -> None:
    """Stop reasons are kept verbatim, and usage is found wherever an agent tells it."""
    with_usage = 0
    for name, answer in answers("session/prompt"):
        if "result" not in answer:
            continue
        schema.PromptResponse.model_validate(answer["result"])
        result = msgspec.json.decode(msgspec.json.encode(answer["result"]), type=PromptResult)
        assert result.stop_reason == answer["result"]["stopReason"], name
        usage = UsageMeter(is_resumed=False).turn_usage(result)
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
        (f'{{"stopReason":"x","usage":{{"inputTokens":{10**320},"totalTokens":1}}}}', None),
        ('{"stopReason":"x"}', None),
    ],
)
def test_usage_is_found_where_agents_put_it(text: str, usage: Usage | None) -> None:
    """In `usage`, or in `_meta.quota`; what is malformed is no usage, and no error."""
    assert UsageMeter(is_resumed=False).turn_usage(_result(text)) == usage


def test_a_turn_costs_what_the_session_total_grew_by() -> None:
    """Agents tell the total of the session so far."""
    meter = UsageMeter(is_resumed=False)
    meter.start_turn()
    assert _cost(meter) is UNSET
    meter.take_cost(Raw(b'{"amount":0.5,"currency":"USD"}'))
    meter.take_cost(Raw(b'{"amount":0.75,"currency":"USD"}'))
    assert _cost(meter) == 0.75
    meter.start_turn()
    meter.take_cost(Raw(b'{"amount":1.0,"currency":"USD"}'))
    assert _cost(meter) == 0.25


def test_the_past_of_a_resumed_session_is_not_the_turns_cost() -> None:
    """The first figure after a resume is where counting starts."""
    meter = UsageMeter(is_resumed=True)
    meter.start_turn()
    meter.take_cost(Raw(b'{"amount":7.0,"currency":"USD"}'))
    assert _cost(meter) == 0.0
    meter.start_turn()
    meter.take_cost(Raw(b'{"amount":7.5,"currency":"USD"}'))
    assert _cost(meter) == 0.5


@pytest.mark.parametrize("cost", [b'{"amount":1,"currency":"EUR"}', b"null", b'"free"', b"{}"])
def test_other_currencies_and_nonsense_do_not_count(cost: bytes) -> None:
    """Only US dollars can be told as `cost_usd`; the event keeps the rest."""
    meter = UsageMeter(is_resumed=False)
    meter.start_turn()
    meter.take_cost(Raw(cost))
    meter.take_cost(UNSET)
    assert _cost(meter) is UNSET


def test_cost_and_tokens_are_told_together() -> None:
    """Claude tells tokens with the answer, and cost with an update."""
    meter = UsageMeter(is_resumed=False)
    meter.start_turn()
    meter.take_cost(Raw(b'{"amount":0.5,"currency":"USD"}'))
    usage = meter.turn_usage(_result('{"stopReason":"x","usage":{"inputTokens":3,"outputTokens":4,"totalTokens":7}}'))
    assert usage == Usage(input_tokens=3, output_tokens=4, total_tokens=7, cost_usd=0.5)


def test_what_a_session_has_used_so_far_is_counted_once() -> None:
    """Copilot tells the session's tokens with each turn; a turn's are what they grew by."""
    meter = UsageMeter(is_resumed=False)
    meter.is_of_session = True
    first = _result('{"stopReason":"x","usage":{"inputTokens":10745,"outputTokens":20,"totalTokens":10765}}')
    assert meter.turn_usage(first) == Usage(input_tokens=10745, output_tokens=20, total_tokens=10765)
    second = _result('{"stopReason":"x","usage":{"inputTokens":21546,"outputTokens":40,"totalTokens":21586}}')
    assert meter.turn_usage(second) == Usage(input_tokens=10801, output_tokens=20, total_tokens=10821)
    assert meter.turn_usage(second) == Usage()


def test_what_the_calls_of_a_turn_used_is_added_up() -> None:
    """Qwen tells the tokens of each call of its model, in chunks without text."""
    meter = UsageMeter(is_resumed=False)
    meter.start_turn()
    meter.take_call(Raw(b'{"usage":{"inputTokens":100,"outputTokens":20,"totalTokens":120,"cachedReadTokens":7}}'))
    meter.take_call(Raw(b'{"usage":{"inputTokens":110,"outputTokens":10,"totalTokens":120}}'))
    meter.take_call(Raw(b'{"usage":"many"}'))
    meter.take_call(Raw(b'{"durationMs":3}'))
    usage = meter.turn_usage(_result('{"stopReason":"x"}'))
    assert usage == Usage(input_tokens=210, output_tokens=30, total_tokens=240, cached_read_tokens=7)
    meter.start_turn()
    assert meter.turn_usage(_result('{"stopReason":"x"}')) is None
