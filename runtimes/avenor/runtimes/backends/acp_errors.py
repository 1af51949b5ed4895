"""What an agent's JSON-RPC error means for the turn: its class, whether it is permanent, how long to wait. Pure.

Agents wrap their models' errors as they like: a code that is an HTTP status (gemini), members of `data` (codex, claude,
cline), or a sentence (most). So an HTTP status is looked for first, then known words; what nothing fits is `unknown`,
and worth a retry.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET

from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, ErrorObject
from avenor.protocol.events import RetryClass
from avenor.runtimes.backends.acp_types import AUTH_REQUIRED, RESOURCE_NOT_FOUND
from avenor.runtimes.backends.base import TurnError

MESSAGE_LIMIT_CHARS = 4096
LONGEST_WAIT_SECONDS = 7 * 86400.0  # A larger Retry-After is taken for nonsense.
_DEEPEST = 6  # Levels of `data` that are searched; agents nest their provider's error two or three deep.

_STATUS_KEYS: Final = frozenset({"httpstatuscode", "statuscode", "status", "httpstatus", "code"})
# Keys that hold a wait, with the unit of a bare number there in seconds; None where agents do not agree on one.
_WAIT_KEYS: Final[dict[str, float | None]] = {
    "retryafter": 1.0,
    "retryafterseconds": 1.0,
    "retryaftersec": 1.0,
    "retryafterms": 0.001,
    "retrydelay": None,
    "retrydelayms": 0.001,
}

_STATUS_PATTERNS: Final = (
    re.compile(r"\b(?:status(?: code)?|http(?:/[\d.]+)?|error(?: code)?|code)\b[\"'\s:=(-]{0,4}([45]\d\d)\b", re.I),
    re.compile(r"^\W*([45]\d\d)\b"),
    re.compile(
        r"\b([45]\d\d)\W{0,3}(?:bad request|unauthorized|payment required|forbidden|not found|too many requests|"
        r"internal server error|bad gateway|service unavailable|gateway time-?out|overloaded)",
        re.I,
    ),
)
_WAIT_WORDS: Final = re.compile(
    r"\b(?:retry[- ]?after|(?:re)?try again (?:in|after)|retry(?:ing)? in|wait)\b[\"'\s:=]{0,4}"
    r"(?:(?:for|about|at least)\s+)?(?=\d)",
    re.I,
)
# A number and the word behind it; no date, no time of day.
_WAIT_PART: Final = re.compile(r"[\s,]*(?:and\s+)?(\d+(?:\.\d+)?)(?!\d|\.\d|[-:/]\d)(?:\s*([a-z]+))?", re.I)
_UNIT_SECONDS: Final = {
    name: seconds
    for names, seconds in (
        ("ms millis millisecond milliseconds", 0.001),
        ("s sec secs second seconds", 1.0),
        ("m min mins minute minutes", 60.0),
        ("h hr hrs hour hours", 3600.0),
        ("d day days", 86400.0),
    )
    for name in names.split()
}

_AUTH: Final = re.compile(
    r"authenticat|unauthori[sz]ed|invalid[ _]api[ _]key|missing (?:\w+ )?api[ _]key|missing \w*_API_KEY|"
    r"credentials? (?:was|were|is|are)? ?(?:rejected|expired|missing|invalid)|login required|"
    # Not the log in which more is to be read.
    r"please log in\b|\blog in(?:[.!,;)]|\s*$|\s+(?:again|first|to|with|using|via|and|or)\b)",
    re.I | re.M,
)
_RATE_LIMIT: Final = re.compile(r"rate[ _-]?limit|too many requests|quota (?:exceeded|exhausted)|usage limit", re.I)
_OVERLOADED: Final = re.compile(
    r"overloaded|high demand|server[_ ]error|service unavailable|at capacity|temporarily unavailable", re.I
)
_TRANSPORT: Final = re.compile(
    r"ECONN|ETIMEDOUT|EPIPE|ENOTFOUND|EAI_AGAIN|unable to connect|connection (?:dropped|reset|closed|refused|error)|"
    r"stream (?:disconnected|closed|ended)|network error|transport error|socket|fetch failed|terminated|timed? ?out|"
    r"unexpected EOF|decoding response body|parse \S+ stream|missing finish_reason|"
    r"JSON pars|in JSON at position|expecting property name",
    re.I,
)
_NOT_FOUND: Final = re.compile(
    r"(?:session|model|resource|agent|mode)\b.{0,80}?\b(?:not found|does not exist)|unknown (?:session|model|mode)",
    re.I,
)

Verdict = tuple[RetryClass, bool, str]

_PERMANENT_AUTH: Final[Verdict] = ("unknown", True, "auth")
_PERMANENT_REQUEST: Final[Verdict] = ("unknown", True, "invalid_request")
_PERMANENT_NOT_FOUND: Final[Verdict] = ("unknown", True, "not_found")

_BY_STATUS: Final[dict[int, Verdict]] = {
    400: _PERMANENT_REQUEST,
    401: _PERMANENT_AUTH,
    402: _PERMANENT_AUTH,
    403: _PERMANENT_AUTH,
    404: _PERMANENT_NOT_FOUND,
    405: _PERMANENT_REQUEST,
    408: ("transport", False, ""),
    413: _PERMANENT_REQUEST,
    422: _PERMANENT_REQUEST,
    429: ("rate_limit", False, ""),
}
# The order matters: claude calls a dropped connection a `server_error` as well, and a rate limit may name its server.
_BY_WORDS: Final[tuple[tuple[re.Pattern[str], Verdict], ...]] = (
    (_AUTH, _PERMANENT_AUTH),
    (_RATE_LIMIT, ("rate_limit", False, "")),
    (_NOT_FOUND, _PERMANENT_NOT_FOUND),
    (_TRANSPORT, ("transport", False, "")),
    (_OVERLOADED, ("overloaded", False, "")),
)
_BY_CODE: Final[dict[int, Verdict]] = {
    AUTH_REQUIRED: ("unknown", False, ""),
    RESOURCE_NOT_FOUND: _PERMANENT_NOT_FOUND,
    INVALID_REQUEST: _PERMANENT_REQUEST,
    METHOD_NOT_FOUND: _PERMANENT_REQUEST,
    INVALID_PARAMS: _PERMANENT_REQUEST,
}


def classify(error: ErrorObject) -> TurnError:
    """What an agent's error means; never raises on what an agent sends."""
    facts = _Facts(error)
    failure_class, permanent, reason = facts.verdict()
    return TurnError(
        message=facts.message,
        failure_class=failure_class,
        permanent=permanent,
        reason=reason,
        retry_after_seconds=None if permanent else facts.wait_seconds(),
    )


class _Facts:
    """An error, taken apart."""

    def __init__(self, error: ErrorObject) -> None:
        self._code = error.code
        self._pairs = [(_plain(key), value) for key, value in _walk(_decode(error))]
        texts = [value for _key, value in self._pairs if isinstance(value, str) and value]
        details = [text for text in texts if text not in error.message]
        self.message = "; ".join([error.message, *details])[:MESSAGE_LIMIT_CHARS] or f"error {error.code}"
        self._texts = [text[:MESSAGE_LIMIT_CHARS] for text in (error.message, *texts)]

    def verdict(self) -> Verdict:
        status = self._status()
        if status is not None:
            return _BY_STATUS.get(status) or (("overloaded", False, "") if status >= 500 else _PERMANENT_REQUEST)
        joined = "\n".join(self._texts)
        for pattern, verdict in _BY_WORDS:
            if pattern.search(joined):
                return verdict
        return _BY_CODE.get(self._code, ("unknown", False, ""))

    def wait_seconds(self) -> float | None:
        told = (_told_wait(value, _WAIT_KEYS[key]) for key, value in self._pairs if key in _WAIT_KEYS)
        said = (_said_wait(text, words.end()) for text in self._texts for words in _WAIT_WORDS.finditer(text))
        found = (seconds for seconds in chain(told, said) if seconds is not None)
        return next((seconds for seconds in found if 0 <= seconds <= LONGEST_WAIT_SECONDS), None)

    def _status(self) -> int | None:
        if _is_failure(self._code):
            return self._code
        for key, value in self._pairs:
            number = _number(value) if key in _STATUS_KEYS else None
            if number is not None and _is_failure(number):
                return int(number)
        for pattern in _STATUS_PATTERNS:
            for text in self._texts:
                match = pattern.search(text)
                if match is not None:
                    return int(match[1])
        return None


def _decode(error: ErrorObject) -> Any:
    if error.data is UNSET:
        return None
    try:
        return msgspec.json.decode(error.data)
    except msgspec.DecodeError:
        return None


def _walk(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every leaf of `data` with the key that it stands under."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        for name, member in value.items():  # pyright: ignore[reportUnknownVariableType]  # decoded JSON
            yield from _walk(member, str(name), depth + 1)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for member in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _walk(member, key, depth + 1)
    elif value is not None:
        yield key, value


def _plain(key: str) -> str:
    return re.sub(r"[^a-z]", "", key.lower())


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # JSON knows whole numbers that are too large for a float
        return None


def _is_failure(status: float) -> bool:
    return 400 <= status <= 599


def _told_wait(value: Any, unit_seconds: float | None) -> float | None:
    """The seconds that a member of `data` holds: a number of that unit, or text with units of its own."""
    number = _number(value)
    if number is not None:
        return None if unit_seconds is None else number * unit_seconds
    try:
        return parse_duration(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _said_wait(text: str, start: int) -> float | None:
    """The seconds that a sentence asks for from `start` on; None where their unit is unknown.

    A number alone is seconds.
    """
    total: float | None = None
    while (part := _WAIT_PART.match(text, start)) is not None:
        count, word = float(part[1]), part[2]
        if word is None:
            return count if total is None else total
        unit = _UNIT_SECONDS.get(word.lower())
        if unit is None:
            return total
        total, start = (total or 0.0) + count * unit, part.end()
    return total
