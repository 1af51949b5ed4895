"""What the error of a failed codex turn means: its class, whether it is permanent. Pure.

codex names most causes itself (`codexErrorInfo`). Where it does not (`other`), or gives only an HTTP status, the
message and the status are judged as those of every other agent are.
"""

from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw

from avenor.protocol.errors import ErrorObject
from avenor.protocol.events import RetryClass
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.base import TurnError
from avenor.runtimes.backends.codex_types import TurnProblem

_Verdict = tuple[RetryClass, bool, str]

_PASSING_OVERLOAD: Final[_Verdict] = ("overloaded", False, "")
_PASSING_LIMIT: Final[_Verdict] = ("rate_limit", False, "")
_REFUSED: Final[_Verdict] = ("unknown", True, "invalid_request")

_BY_WORD: Final[dict[str, _Verdict]] = {
    "rateLimitExceeded": _PASSING_LIMIT,
    "usageLimitExceeded": _PASSING_LIMIT,
    "serverOverloaded": _PASSING_OVERLOAD,
    "internalServerError": _PASSING_OVERLOAD,
    "flexUnavailable": _PASSING_OVERLOAD,
    "policyCapacityUnavailable": _PASSING_OVERLOAD,
    "unauthorized": ("unknown", True, "auth"),
    "modelNotFound": ("unknown", True, "not_found"),
    "badRequest": _REFUSED,
    "contextWindowExceeded": ("unknown", True, "context_window"),
    "sessionBudgetExceeded": _REFUSED,
    "cyberPolicy": _REFUSED,
    "bioPolicy": _REFUSED,
    "misalignmentPolicyViolation": _REFUSED,
    "tooManyDenials": _REFUSED,
    "inferenceHookDenied": _REFUSED,
}
# These have an object with the HTTP status, which is null when there was no answer at all.
_CONNECTION: Final = frozenset(
    {
        "httpConnectionFailed",
        "responseStreamConnectionFailed",
        "responseStreamDisconnected",
        "responseTooManyFailedAttempts",
    }
)


def turn_error(problem: TurnProblem | None) -> TurnError:
    """The error of a turn that codex calls failed; never raises on what it sends."""
    if problem is None:
        return TurnError(message="codex says that the turn failed, and not why")
    word, status = _cause(problem)
    data = {"httpStatusCode": status, "additionalDetails": problem.additional_details}
    judged = classify(ErrorObject(code=0, message=_plain(problem.message) or word, data=Raw(msgspec.json.encode(data))))
    verdict = _BY_WORD.get(word)
    if verdict is None and word in _CONNECTION and judged.failure_class == "unknown" and not judged.permanent:
        verdict = ("transport", False, "")
    if verdict is None:
        return judged
    failure_class, permanent, reason = verdict
    return msgspec.structs.replace(
        judged,
        failure_class=failure_class,
        permanent=permanent,
        reason=reason,
        retry_after_seconds=None if permanent else judged.retry_after_seconds,
    )


def _cause(problem: TurnProblem) -> tuple[str, int | None]:
    """codex's word for the cause, and the HTTP status beside it."""
    info = _decoded(problem.codex_error_info) if problem.codex_error_info is not UNSET else None
    if isinstance(info, dict):
        for word, details in cast("dict[str, Any]", info).items():
            status = cast("dict[str, Any]", details).get("httpStatusCode") if isinstance(details, dict) else None
            return word, status if isinstance(status, int) else None
    return (info, None) if isinstance(info, str) else ("", None)


def _plain(message: str) -> str:
    """The words of a message; codex passes on the body of a refusal as it came, often a JSON object around them."""
    if not message.startswith("{"):
        return message
    body = _decoded(message.encode())
    error = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return message
    members = cast("dict[str, Any]", error)
    words, code = members.get("message"), members.get("code")
    if not isinstance(words, str):
        return message
    return f"{words} (code {code})" if code else words


def _decoded(raw: Raw | bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
