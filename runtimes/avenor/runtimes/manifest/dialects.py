"""What the gateway has to know of the two dialects that model services speak. Pure.

It passes requests and answers on as they are, and reads of them no more than it must: which requests are model calls,
whether an answer will tell its tokens, and how an error looks so that the client's own library can read it.
"""

from typing import Any, Final, cast

import msgspec

from avenor.protocol.manifest.roster import Dialect

# OpenAI's and Anthropic's libraries do not try again where this says so, whatever the status.
NO_RETRY: Final = (b"x-should-retry", b"false")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is passed on.

    Attributes:
        is_call: It is a model call, which is metered.
        asks_usage: A streaming answer tells its tokens only to those who ask.
    """

    is_call: bool
    asks_usage: bool = False


class BadBody(ValueError):
    """A request that cannot be metered. The message is for the client."""


_CALL: Final = Route(is_call=True)
_CHAT: Final = Route(is_call=True, asks_usage=True)
_FREE: Final = Route(is_call=False)

# A list of what is allowed: the key upstream may open more than models, and a call that is not counted must not pass.
_ROUTES: Final[dict[tuple[Dialect, str, str], Route]] = {
    ("openai", "POST", "/chat/completions"): _CHAT,
    ("openai", "POST", "/completions"): _CHAT,
    ("openai", "POST", "/responses"): _CALL,
    ("openai", "POST", "/responses/compact"): _CALL,
    ("openai", "POST", "/responses/input_tokens"): _FREE,
    ("openai", "POST", "/embeddings"): _CALL,
    ("openai", "GET", "/models"): _FREE,
    ("anthropic", "POST", "/messages"): _CALL,
    ("anthropic", "POST", "/messages/count_tokens"): _FREE,
    ("anthropic", "GET", "/models"): _FREE,
}


def find_route(dialect: Dialect, method: str, path: str) -> Route | None:
    """What a request is; None if it is none that is passed on.

    Args:
        dialect: Of the endpoint.
        method: In capitals.
        path: Below the endpoint's address, as it came, without a query; with `/v1` before it or without.
    """
    plain = path.removeprefix("/v1") if path.startswith("/v1/") else path
    if method == "GET" and plain.startswith("/models/") and not _climbs(plain):
        return _FREE
    return _ROUTES.get((dialect, method, plain))


def prepare(route: Route, body: bytes) -> bytes:
    """The body of a model call as it is sent on.

    What was judged is what is sent: of a member that stands there twice, only the last is passed on, since a service
    might read the first. Beyond that only `stream_options` changes, where a stream would else not tell its tokens.

    Raises:
        BadBody: It is no JSON object, or asks for work whose tokens no answer would tell.
    """
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the request's body is no JSON object: {error}") from error
    if _is_true(members.get("background")):
        raise BadBody("a background response cannot be metered: ask without `background`")
    if route.asks_usage and _is_true(members.get("stream")):
        members["stream_options"] = _with_usage(members.get("stream_options"))
    return msgspec.json.encode(members)


def error_body(dialect: Dialect, kind: str, message: str) -> bytes:
    """The body of an error.

    Args:
        dialect: Whose clients read it.
        kind: A stable word.
        message: For people.
    """
    if dialect == "anthropic":
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": kind}})


def _climbs(path: str) -> bool:
    """Whether a server might take the path for one above it."""
    plain = path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace("\\", "/")
    return any(part in (".", "..", "") for part in plain.split("/")[1:])


def _is_true(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw).strip() == b"true"


def _with_usage(given: msgspec.Raw | None) -> msgspec.Raw:
    options: Any = {} if given is None else msgspec.json.decode(given)
    kept = cast("dict[str, Any]", options) if isinstance(options, dict) else {}
    return msgspec.Raw(msgspec.json.encode({**kept, "include_usage": True}))
