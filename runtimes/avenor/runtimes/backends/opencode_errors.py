"""What opencode's errors mean for a turn: of the turn itself, and of a request to the server. Pure."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from avenor.protocol.errors import INTERNAL_ERROR, ErrorObject
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.backends.opencode_tools import members
from avenor.runtimes.backends.opencode_types import MessageInfo, Problem, Status

ABORTED: Final = "MessageAbortedError"

# Errors that are an end with a name of its own.
_STOPS: Final = {"MessageOutputLengthError": "max_tokens", "ContentFilterError": "refusal"}
# What a model says when it is done, where that is not simply the end.
_FINISHES: Final = {"length": "max_tokens", "content-filter": "refusal"}
# Errors that would come again whatever their text says.
_PERMANENT: Final = {
    "ProviderAuthError": "auth",
    "ContextOverflowError": "invalid_request",
    "StructuredOutputError": "invalid_request",
}
_LOST: Final = "the server ended the turn before the answer was whole: it may have been started anew"


def turn_error(problem: Problem) -> TurnError:
    """What an error of a turn means for a retry."""
    values = members(problem.data)
    said = values.get("message")
    error = classify(
        ErrorObject(
            code=INTERNAL_ERROR,
            message=said if isinstance(said, str) and said else problem.name or "the turn failed",
            data=Raw(msgspec.json.encode(_facts(values))),
        )
    )
    reason = _PERMANENT.get(problem.name)
    if reason is None:
        return error
    return msgspec.structs.replace(error, permanent=True, reason=reason, retry_after_seconds=None)


def model_failed(status: Status) -> Problem:
    """The error of a turn whose model fails again and again."""
    message = f"the model has failed {status.attempt} times: {status.message}"
    return Problem(name="ModelFailed", data=Raw(msgspec.json.encode({"message": message})))


def request_error(request: str, status: int, body: bytes) -> TurnError:
    """What an HTTP error means for the turn whose request it answers."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.DecodeError:
        problem = Problem()
    said = members(problem.data).get("message") or body[:1000].decode("utf-8", "replace").strip()
    message = f"{request}: the server answered with HTTP status {status}" + (f", {said}" if said else "")
    return classify(ErrorObject(code=status, message=message, data=Raw(msgspec.json.encode({"status": status}))))


def turn_stop(problem: Problem | None, answer: MessageInfo | None, *, is_cancelling: bool) -> TurnStop:
    """How a turn ended, usage left out.

    Args:
        problem: The error that the server told of, if any.
        answer: The agent's last message.
        is_cancelling: Whether we have asked for the end.
    """
    problem = problem or (None if answer is None else answer.error)
    finish = None if answer is None else answer.finish
    if (problem is not None and problem.name == ABORTED) or (is_cancelling and finish is None):
        return TurnStop(stop_reason="cancelled")
    if problem is not None:
        if problem.name in _STOPS:
            return TurnStop(stop_reason=_STOPS[problem.name])
        return TurnStop(stop_reason="error", error=turn_error(problem))
    if finish is not None:
        return TurnStop(stop_reason=_FINISHES.get(finish, "end_turn"))
    if answer is not None and answer.is_over:
        return TurnStop(stop_reason="cancelled")  # cut off by another client while it waited to try its model again
    return TurnStop(stop_reason="error", error=TurnError(message=_LOST, failure_class="crash", reason="bad_reply"))


def _facts(values: Mapping[str, Any]) -> dict[str, object]:
    """What of an error's data is for programs; the rest is the answer of the model's service, headers and all."""
    facts: dict[str, object] = {"statusCode": values.get("statusCode")}
    headers = values.get("responseHeaders")
    if isinstance(headers, dict):
        for name, value in cast("dict[str, object]", headers).items():
            if name.lower() in ("retry-after", "retry-after-ms"):
                facts[name] = _number(value)
    return facts


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None  # a date: the server's own clock, which ours may differ from
