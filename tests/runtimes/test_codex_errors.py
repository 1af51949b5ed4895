"""What codex's errors mean: as recorded, by its own words, and by the HTTP status beside them."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from avenor.runtimes.backends.codex_errors import turn_error
from avenor.runtimes.backends.codex_types import TurnProblem
from tests.runtimes.transcripts import HERE, read_transcript


def _problem(info: object, message: str = "it failed", details: str | None = None) -> TurnProblem:
    raw = UNSET if info is UNSET else Raw(msgspec.json.encode(info))
    return TurnProblem(message=message, codex_error_info=raw, additional_details=details)


def _recorded() -> list[dict[str, Any]]:
    told = [message for _, message in read_transcript(HERE / "codex-errors.ndjson")]
    turns = [message["params"]["turn"] for message in told if message.get("method") == "turn/completed"]
    return [turn["error"] for turn in turns if turn["status"] == "failed"]


def test_the_recorded_errors_are_told_apart() -> None:
    """In the order of the recording: 400, 401, a broken stream, and 500."""
    errors = [turn_error(msgspec.convert(error, TurnProblem)) for error in _recorded_raw()]
    assert [(error.failure_class, error.permanent, error.reason) for error in errors] == [
        ("unknown", True, "invalid_request"),
        ("unknown", True, "auth"),
        ("transport", False, ""),
        ("overloaded", False, ""),
    ]
    assert errors[0].message == "fake error 400 (code 400)"
    assert "fake error 401" in errors[1].message


def _recorded_raw() -> list[dict[str, Any]]:
    """The recorded errors with their cause still encoded, as it is on the wire."""
    return [{**e, "codexErrorInfo": Raw(msgspec.json.encode(e["codexErrorInfo"]))} for e in _recorded()]


@pytest.mark.parametrize(
    ("info", "failure_class", "permanent", "reason"),
    [
        ("rateLimitExceeded", "rate_limit", False, ""),
        ("usageLimitExceeded", "rate_limit", False, ""),
        ("serverOverloaded", "overloaded", False, ""),
        ("unauthorized", "unknown", True, "auth"),
        ("badRequest", "unknown", True, "invalid_request"),
        ("modelNotFound", "unknown", True, "not_found"),
        ("contextWindowExceeded", "unknown", True, "context_window"),
        ("sandboxError", "unknown", False, ""),
        ("aWordOfTomorrow", "unknown", False, ""),
        (UNSET, "unknown", False, ""),
        (None, "unknown", False, ""),
        (7, "unknown", False, ""),
        ({}, "unknown", False, ""),
        ({"httpConnectionFailed": {"httpStatusCode": None}}, "transport", False, ""),
        ({"responseStreamDisconnected": {}}, "transport", False, ""),
        ({"responseStreamConnectionFailed": None}, "transport", False, ""),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "rate_limit", False, ""),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "unknown", True, "auth"),
        ({"httpConnectionFailed": {"httpStatusCode": 503}}, "overloaded", False, ""),
        ({"activeTurnNotSteerable": {"turnKind": "review"}}, "unknown", False, ""),
    ],
)
def test_each_cause_has_its_class(info: object, failure_class: str, permanent: bool, reason: str) -> None:
    """A word of codex's own counts; a status counts where that is all there is."""
    error = turn_error(_problem(info))
    assert (error.failure_class, error.permanent, error.reason) == (failure_class, permanent, reason)
    assert error.message == "it failed"


def test_the_message_and_the_details_are_searched_as_well() -> None:
    """With how long to wait, if they say so; what would fail again is not waited for."""
    passing = turn_error(_problem("rateLimitExceeded", details="try again in 20s"))
    assert passing.message == "it failed; try again in 20s"
    assert passing.retry_after_seconds == 20.0
    assert turn_error(_problem("unauthorized", details="try again in 20s")).retry_after_seconds is None
    assert turn_error(_problem("other", message="last status: 429 Too Many Requests")).failure_class == "rate_limit"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ('{"error": {"message": "too much"}}', "too much"),
        ('{"error": "too much"}', '{"error": "too much"}'),
        ('{"error": {"code": 5}}', '{"error": {"code": 5}}'),
        ("{not JSON", "{not JSON"),
        ("", "other"),
    ],
)
def test_the_words_are_taken_out_of_a_body_in_json(message: str, shown: str) -> None:
    """What is no such body stays as it is; without any words, the cause is shown."""
    assert turn_error(_problem("other", message=message)).message == shown


def test_a_failed_turn_without_an_error_is_one_all_the_same() -> None:
    """Nothing is known of it, so it may be tried again."""
    error = turn_error(None)
    assert (error.failure_class, error.permanent) == ("unknown", False)
    assert error.message
