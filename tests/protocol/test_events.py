"""Event lines: their shape on the wire is a contract."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from msgspec import Raw

from avenor.protocol import events as ev
from avenor.protocol.events import AnyEvent, Usage, decode_event, decode_head, encode_event, event_name
from avenor.protocol.methods import unwrap_event, wrap_event

GOLDEN = Path(__file__).parent.parent / "data" / "events.ndjson"
KINDS: tuple[type[ev.Event], ...] = get_args(AnyEvent)
LINES = GOLDEN.read_bytes().splitlines()


def test_the_golden_file_has_a_line_for_every_event() -> None:
    """A new event needs a line, so that its keys are pinned."""
    assert {kind.__struct_config__.tag for kind in KINDS} == {decode_head(line).event for line in LINES}


@pytest.mark.parametrize("line", LINES, ids=lambda line: decode_head(line).event)
def test_decoding_and_encoding_a_golden_line_changes_nothing(line: bytes) -> None:
    """The keys, their order and their values are those of the file; old logs load."""
    assert line == encode_event(decode_event(line))


def test_the_event_comes_first_and_the_line_is_one_line() -> None:
    """Readers may cut lines at newlines and look at the first key."""
    line = encode_event(ev.AgentNoise(text="a\nb\u2028\r", seq=3, ts=4, run_id="r"))

    assert line.startswith(b'{"event":"agent.noise","seq":3,"ts":4,"run_id":"r"')
    assert b"\n" not in line


def test_a_turn_that_failed_tells_what_decides_on_another_attempt() -> None:
    """In members of its own, which no other turn has."""
    line = (
        b'{"event":"turn.end","seq":3,"ts":4,"run_id":"r","stop_reason":"error","error":"boom","class":"rate_limit",'
        b'"permanent":true,"retry_after_ms":1500}'
    )
    end = ev.TurnEnd(stop_reason="error", error="boom", retry_class="rate_limit", permanent=True, retry_after_ms=1500)
    end.seq, end.ts, end.run_id = 3, 4, "r"

    assert encode_event(end) == line
    assert encode_event(decode_event(line)) == line


def test_what_a_backend_adds_is_kept() -> None:
    """Members that we do not know travel under `extra`, byte for byte."""
    event = ev.ToolCall(toolCallId="t", title="x", extra={"_meta": Raw(b'{"a": 1}')})

    assert b'"extra":{"_meta":{"a": 1}}' in encode_event(event)


def test_an_unknown_event_is_refused_by_name() -> None:
    """A reader of a newer log learns which event it does not know."""
    with pytest.raises(msgspec.ValidationError, match="new\\.kind"):
        decode_event(b'{"event":"new.kind","seq":1,"ts":1,"run_id":"r"}')


def test_an_event_knows_its_wire_name() -> None:
    """The tag is the name."""
    assert event_name(ev.TurnEnd(stop_reason="end_turn")) == "turn.end"


@pytest.mark.parametrize("line", LINES[:2])
def test_unwrapping_a_notification_gives_the_line_back(line: bytes) -> None:
    """Neither has a newline."""
    wrapped = wrap_event(line)

    assert line == unwrap_event(wrapped)
    assert b"\n" not in wrapped
    assert line == bytes(msgspec.json.decode(wrapped, type=dict[str, Raw])["params"])


def test_usage_without_a_cost_has_no_cost_key() -> None:
    """A backend that reports no price is not told as free."""
    assert b"cost" not in msgspec.json.encode(Usage(input_tokens=1))
