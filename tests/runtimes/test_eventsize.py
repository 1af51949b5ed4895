"""Events are kept short enough to be sent."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from avenor.protocol import events as ev
from avenor.protocol.events import encode_event
from avenor.runtimes.eventsize import fit


@given(st.text(alphabet=st.sampled_from('a\x00é€\U0001f40e"\n'), min_size=300, max_size=900))
def test_a_long_text_keeps_its_beginning_and_says_how_much_was_cut(text: str) -> None:
    """Whatever its escapes, the line fits, and it is still JSON."""
    event = ev.TurnEnd(stop_reason="end_turn", final_output=text)
    line, cut = fit(event, encode_event(event), limit_bytes=300)
    assert len(line) <= 300
    assert set(cut) == {"final_output"}
    kept, _, mark = msgspec.json.decode(line)["final_output"].partition(" [")
    assert text.startswith(kept.partition(" [")[0])
    assert mark.endswith("characters cut]")


def test_long_data_of_a_tool_is_replaced_by_its_size() -> None:
    """Half a JSON value would be worth nothing; the rest of the event stays."""
    event = ev.ToolCallUpdate(toolCallId="t", status="completed", rawOutput=Raw(b'"%b"' % (b"x" * 1000)))
    line, cut = fit(event, encode_event(event), limit_bytes=200)
    decoded = msgspec.json.decode(line)
    assert cut == ["rawOutput"]
    assert decoded["rawOutput"] == {"cut_bytes": 1002}
    assert decoded["status"] == "completed"


def test_whoever_told_a_long_event_keeps_all_of_it() -> None:
    """Only the line is cut: what is read out of an event after it was told is what the agent said."""
    said = "x" * 1000
    event = ev.TurnEnd(stop_reason="end_turn", final_output=said)
    line, _ = fit(event, encode_event(event), limit_bytes=300)
    assert len(line) <= 300
    assert event.final_output == said


@pytest.mark.parametrize("size", [0, 100])
def test_an_event_that_fits_is_left_alone(size: int) -> None:
    """Byte for byte."""
    event = ev.AgentNoise(text="x" * size)
    line = encode_event(event)
    assert fit(event, line, limit_bytes=len(line)) == (line, [])
