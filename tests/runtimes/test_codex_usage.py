"""Tokens of codex's turns, and the names of its modes and models."""

import msgspec
import pytest
from msgspec import Raw

from avenor.protocol.events import Usage
from avenor.runtimes.backends.codex_modes import MODES, Models, mode_name
from avenor.runtimes.backends.codex_types import Effort, Model, Tokens, TokenUsage
from avenor.runtimes.backends.codex_usage import TokenMeter


def _told(total: int, last: int, cached: int = 0, last_cached: int = 0) -> TokenUsage:
    """So many tokens, a tenth of them output."""
    return TokenUsage(
        total=Tokens(
            total_tokens=total, input_tokens=total * 9 // 10, output_tokens=total // 10, cached_input_tokens=cached
        ),
        last=Tokens(
            total_tokens=last, input_tokens=last * 9 // 10, output_tokens=last // 10, cached_input_tokens=last_cached
        ),
    )


def test_a_turn_has_what_all_of_its_requests_have_added() -> None:
    """Cached tokens are no input, so that input, cached and output are the total."""
    meter = TokenMeter()
    meter.start_turn()
    assert meter.turn_usage() is None
    meter.take(_told(100, 100, cached=50, last_cached=50), is_of_turn=True)
    meter.take(_told(300, 200, cached=80), is_of_turn=True)
    assert meter.turn_usage() == Usage(input_tokens=190, output_tokens=30, total_tokens=300, cached_read_tokens=80)
    meter.start_turn()
    assert meter.turn_usage() is None
    meter.take(_told(350, 50, cached=80), is_of_turn=True)
    assert meter.turn_usage() == Usage(input_tokens=45, output_tokens=5, total_tokens=50)


@pytest.mark.parametrize("is_late", [False, True])
def test_the_past_of_a_resumed_thread_is_no_part_of_a_turn(is_late: bool) -> None:
    """Though codex may tell it after the turn has begun."""
    meter = TokenMeter()
    if is_late:
        meter.start_turn()
    meter.take(_told(1000, 400), is_of_turn=False)
    if not is_late:
        meter.start_turn()
    assert meter.turn_usage() is None
    meter.take(_told(1100, 100), is_of_turn=True)
    usage = meter.turn_usage()
    assert usage is not None
    assert usage.total_tokens == 100


def test_a_past_that_nobody_told_is_seen_in_the_first_request() -> None:
    """The total has it, the request has not."""
    meter = TokenMeter()
    meter.start_turn()
    meter.take(_told(1100, 100), is_of_turn=True)
    usage = meter.turn_usage()
    assert usage is not None
    assert usage.total_tokens == 100


def test_a_thread_that_was_rolled_back_uses_nothing_rather_than_less() -> None:
    """Its total may fall."""
    meter = TokenMeter()
    meter.take(_told(1000, 400), is_of_turn=False)
    meter.start_turn()
    meter.take(_told(500, 0), is_of_turn=True)
    assert meter.turn_usage() == Usage()


def test_each_mode_is_found_by_what_codex_reports_of_it() -> None:
    """No two are the same."""
    for name, mode in MODES.items():
        assert mode_name(Raw(msgspec.json.encode(mode.approval)), mode.sandbox_type) == name


@pytest.mark.parametrize("approval", [b'"never"', b'{"granular":{}}', b"null"])
def test_what_has_no_name_of_ours_has_none(approval: bytes) -> None:
    """A policy of one's own, for instance."""
    assert mode_name(Raw(approval), "workspaceWrite") is None


def test_the_model_in_use_is_offered_even_if_it_is_not_listed() -> None:
    """Its thinking levels are not known, so it is offered all that any model has."""
    models = Models(
        [
            Model(model="a", supported_reasoning_efforts=[Effort(reasoning_effort="low")]),
            Model(model="b", supported_reasoning_efforts=[Effort(reasoning_effort=e) for e in ("low", "high")]),
        ]
    )
    assert models.names("a") == models.names(None) == ["a", "b"]
    assert models.names("mine") == ["mine", "a", "b"]
    assert models.efforts("a") == ["low"]
    assert models.efforts("mine") == ["low", "high"]
    assert "a" in models
    assert "mine" not in models
