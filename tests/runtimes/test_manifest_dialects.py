"""Reading the tokens of an answer, however it is cut into pieces."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest.roster import Dialect
from avenor.runtimes.manifest import gateway_usage
from avenor.runtimes.manifest.dialects import find_route
from avenor.runtimes.manifest.gateway_usage import UsageReader, Used
from tests.runtimes.desk_kit import event

STREAM = {"content-type": "text/event-stream"}
CHAT = (
    event({"choices": [{"delta": {"content": 'say "usage" é'}}], "usage": None})
    + b": a comment\n\n"
    + event({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 4}})
    + b"data: [DONE]\n\n"
)
MESSAGES = (
    event({"type": "message_start", "message": {"usage": {"input_tokens": 20, "cache_read_input_tokens": 10}}})
    + event({"type": "ping"})
    + event({"type": "message_delta", "usage": {"output_tokens": 4, "input_tokens": None}})
    + event({"type": "message_stop"})
)


def read(dialect: Dialect, pieces: list[bytes], headers: dict[str, str] = STREAM) -> Used | None:
    reader = UsageReader(dialect, headers)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


@given(st.data())
def test_any_cut_of_a_stream_tells_the_same_tokens(data: st.DataObject) -> None:
    """Events, lines and characters may be cut anywhere."""
    cases: list[tuple[Dialect, bytes, Used]] = [
        ("openai", CHAT, Used(input_tokens=30, output_tokens=4)),
        ("anthropic", MESSAGES, Used(input_tokens=30, output_tokens=4, cached_read_tokens=10)),
    ]
    dialect, stream, used = data.draw(st.sampled_from(cases))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(dialect, pieces) == used


@pytest.mark.parametrize(
    "told",
    [
        {"usage": None},
        {"usage": 5},
        {"usage": {"prompt_tokens": "many"}},
        {"usage": [1]},
        {"choices": []},
        [{"usage": {"prompt_tokens": 1}}],
    ],
)
def test_what_tells_nothing_is_nothing(told: Any) -> None:
    """Not zero: the log has to show that the service did not say."""
    assert read("openai", [event(told)]) is None
    assert read("openai", [msgspec.json.encode(told)], {}) is None


def test_numbers_that_make_no_sense_are_kept_within_it() -> None:
    """A service's fault must not give a budget back."""
    usage = {"prompt_tokens": 10, "completion_tokens": -5, "prompt_tokens_details": {"cached_tokens": 99}}
    assert read("openai", [event({"usage": usage})]) == Used(input_tokens=10, cached_read_tokens=10)


def test_an_answer_too_long_to_be_kept_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through; what it has used is not known."""
    monkeypatch.setattr(gateway_usage, "_JSON_LIMIT_BYTES", 10)
    assert read("openai", [b'{"usage":{"prompt', b'_tokens":1}}'], {}) is None


def test_an_event_too_long_to_be_kept_leaves_what_was_told_before() -> None:
    """The rest of the stream is the client's alone."""
    pieces = [event({"usage": {"prompt_tokens": 3}}), b"data: " + b"x" * (64 * 1024 * 1024 + 1), b"\n\n", CHAT]
    assert read("openai", pieces) == Used(input_tokens=3)


@pytest.mark.parametrize(
    ("dialect", "pieces", "headers", "complete_after"),
    [
        ("openai", [CHAT[:-16], CHAT[-16:]], STREAM, 2),
        ("openai", [event({"type": "response.created"}), event({"type": "response.completed"}), b""], STREAM, 2),
        ("anthropic", [MESSAGES[:40], MESSAGES[40:], b""], STREAM, 2),
        ("openai", [b"{}", b"  "], {"content-length": "4"}, 2),
        ("openai", [b"{}", b"  "], {}, None),
    ],
)
def test_it_is_known_when_a_client_need_not_wait_for_more(
    dialect: Dialect, pieces: list[bytes], headers: dict[str, str], complete_after: int | None
) -> None:
    """From there on the client may send its next request, and the last one has to be charged by then."""
    reader = UsageReader(dialect, headers)
    complete: list[bool] = []
    for piece in pieces:
        reader.feed(piece)
        complete.append(reader.is_complete)
    expected = len(pieces) if complete_after is None else complete_after - 1
    assert complete == [False] * expected + [True] * (len(pieces) - expected)


@pytest.mark.parametrize("path", ["/models/", "/models/a/../b", "/models/%2E", "/models/a%5c..", "/models/.."])
def test_no_path_leads_out_of_the_list_of_models(path: str) -> None:
    """However it is written."""
    assert find_route("openai", "GET", path) is None
