"""What an agent's JSON-RPC error is taken for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from avenor.protocol.errors import ErrorObject
from avenor.runtimes.backends.acp_errors import classify
from tests.runtimes.transcripts import answers


def _error(code: int, message: str, data: Any = UNSET) -> ErrorObject:
    return ErrorObject(code=code, message=message, data=UNSET if data is UNSET else Raw(json.dumps(data).encode()))


# What the stand-in model was told to do, and what each agent made of it.
_RECORDED = [
    ("fake error 400", "unknown", True),
    ("fake error 401", "unknown", True),
    ("401", "unknown", True),
    ("fake error 500", "overloaded", False),
    ("429", "rate_limit", False),
    ("ECONNRESET", "transport", False),
    ("stream disconnected", "transport", False),
    ("JSON parsing failed", "transport", False),
    ("terminated", "transport", False),
    ("not found", "unknown", True),
    ("API key", "unknown", True),
    ("credential was rejected", "unknown", True),
    ("Authentication required", "unknown", True),
    ("high demand", "overloaded", False),
]


def test_every_recorded_error_of_a_prompt_is_understood() -> None:
    """Across all agents, each has the class of the failure that the model was told to play."""
    checked: set[str] = set()
    for name, answer in answers("session/prompt"):
        if "error" not in answer:
            continue
        error = answer["error"]
        verdict = classify(_error(error["code"], error["message"], error.get("data", UNSET)))
        text = json.dumps(error)
        if error["code"] == 500:
            assert (verdict.failure_class, verdict.permanent) == ("overloaded", False), name
            continue
        for clue, failure_class, permanent in _RECORDED:
            if clue in text:
                assert (verdict.failure_class, verdict.permanent) == (failure_class, permanent), (name, text)
                checked.add(clue)
                break
    assert len(checked) >= 10


@pytest.mark.parametrize(
    ("error", "failure_class", "permanent", "reason"),
    [
        (_error(-32603, "Internal error: Service Unavailable"), "overloaded", False, ""),
        (_error(-32603, "API Error: 529 overloaded_error"), "overloaded", False, ""),
        (_error(-32603, "Rate limit reached for requests"), "rate_limit", False, ""),
        (_error(-32603, "Internal error", {"cause": {"statusCode": 503}}), "overloaded", False, ""),
        (_error(-32603, "Internal error", {"cause": {"status_code": "403"}}), "unknown", True, "auth"),
        (_error(-32603, "Please log in at https://example.com"), "unknown", True, "auth"),
        (_error(-32603, "your session has expired: log in again"), "unknown", True, "auth"),
        (_error(-32603, "You must log in", {"host": "example.com"}), "unknown", True, "auth"),
        (_error(-32603, "agent crashed; see the full log in /tmp/x.log"), "unknown", False, ""),
        (_error(-32603, "could not write log into the catalog in use"), "unknown", False, ""),
        (_error(-32603, "connect ECONNREFUSED 127.0.0.1:4294"), "transport", False, ""),
        (_error(-32602, "Invalid params: model not found: x/y"), "unknown", True, "not_found"),
        (_error(-32602, "Invalid params"), "unknown", True, "invalid_request"),
        (_error(-32601, "Method not found: session/prompt"), "unknown", True, "invalid_request"),
        (_error(-32603, "HTTP 418"), "unknown", True, "invalid_request"),
        (_error(-32603, "Internal error"), "unknown", False, ""),
        (_error(-32603, "Internal error", {"code": 10**320}), "unknown", False, ""),
        (_error(-32000, "the dog ate it"), "unknown", False, ""),
        (_error(-32603, "see http://127.0.0.1:45000/x after 4290 ms, 512 files"), "unknown", False, ""),
    ],
)
def test_an_error_has_its_class(error: ErrorObject, failure_class: str, permanent: bool, reason: str) -> None:
    """By HTTP status first, by words next, by JSON-RPC code last; numbers that are no status mean nothing."""
    verdict = classify(error)
    assert (verdict.failure_class, verdict.permanent, verdict.reason) == (failure_class, permanent, reason)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (_error(-32603, "429 Too Many Requests, retry after 30 seconds"), 30.0),
        (_error(-32603, "429: Rate limit reached. Please try again in 2.5s."), 2.5),
        (_error(-32603, "429: please try again in 1m30s"), 90.0),
        (_error(-32603, "429: try again in 450ms"), 0.45),
        (_error(-32603, "429: try again in 3 minutes"), 180.0),
        (_error(-32603, "429: try again in 5 min"), 300.0),
        (_error(-32603, "You've hit your usage limit. Try again in 5 hours 22 minutes."), 19320.0),
        (_error(-32603, "usage limit: try again in 4 days, 5 hours and 1 minute"), 363660.0),
        (_error(-32603, "429: try again in 1h2m3s"), 3723.0),
        (_error(-32603, "Too many requests, please wait and try again in 20 seconds"), 20.0),
        (_error(-32603, "rate limit. Wait a moment. Retry after 45 seconds; 3 attempts are left"), 45.0),
        (_error(-32603, "rate limit: retry in 2 minutes 7 attempts"), 120.0),
        (_error(-32603, "rate limit: retrying in 30"), 30.0),
        (_error(-32603, "rate limit: wait for 1 minute 30"), 60.0),
        (_error(-32603, "rate limit: wait 3 turns, then retry in 5s"), 5.0),
        (_error(-32603, "rate limit: try again in 2 fortnights"), None),
        (_error(-32603, "rate limit: try again after 2026-11-30 or retry after 10:30"), None),
        (_error(-32603, "rate limit: try again in 30 days, or wait 1 minute"), 60.0),
        (_error(-32603, "rate limit", {"headers": {"Retry-After": "17"}}), 17.0),
        (_error(-32603, "rate limit", {"retry_after": "1h"}), 3600.0),
        (_error(-32603, "rate limit", {"retryAfterMs": "30s"}), 30.0),
        (_error(-32603, "rate limit", {"details": [{"retryDelay": "34.5s"}]}), 34.5),
        (_error(-32603, "rate limit", {"retryDelay": 5000}), None),
        (_error(-32603, "rate limit", {"retryDelayMs": 5000}), 5.0),
        (_error(-32603, "rate limit, retry after 3 s", {"retry_after": "soon"}), 3.0),
        (_error(-32603, "rate limit", {"retryAfterMs": 1500}), 1.5),
        (_error(-32603, "rate limit", {"retry_after": 12}), 12.0),
        (_error(-32603, "rate limit", {"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}), None),
        (_error(-32603, "rate limit", {"retry_after": 1e12}), None),
        (_error(-32603, "rate limit", {"retry_after": 10**320}), None),
        (_error(-32603, "rate limit, retry after -5"), None),
        (_error(-32603, "rate limit; please wait"), None),
        (_error(-32603, "401 Unauthorized, retry after 30s"), None),
    ],
)
def test_the_wait_that_a_model_asks_for_is_found(error: ErrorObject, seconds: float | None) -> None:
    """In members or in a sentence; nonsense, and waits for what no wait mends, are left out."""
    assert classify(error).retry_after_seconds == seconds


def test_the_message_holds_what_the_data_adds() -> None:
    """`Internal error` alone helps nobody: the details follow, once each, bounded."""
    verdict = classify(_error(-32603, "Internal error", {"details": "disk on fire", "again": "Internal error"}))
    assert verdict.message == "Internal error; disk on fire"
    assert len(classify(_error(-32603, "x" * 100_000)).message) <= 4096


@given(
    st.integers(-(2**31), 2**31),
    st.text(),
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
)
def test_any_error_has_a_verdict(code: int, message: str, data: Any) -> None:
    """Whatever an agent sends, classifying it never raises and never asks for a wait beyond reason."""
    verdict = classify(_error(code, message, data))
    assert verdict.message
    assert 0 <= (verdict.retry_after_seconds or 0) <= 7 * 86400
