"""Which requests there are, and which method of the control protocol each is."""

from typing import Any, Final
from urllib.parse import unquote

import msgspec

from avenor.control.debug.refusals import HttpRefusal, bad_request, shown
from avenor.protocol.errors import MethodNotFound

READ_VERBS: Final = ("GET", "HEAD")


class Route(msgspec.Struct, frozen=True):
    """One route.

    Attributes:
        verb: GET, which also answers HEAD, or POST.
        path: Up to the id.
        method: Of the control protocol.
        takes_id: Whether a runtime may be named after the path.
    """

    verb: str
    path: str
    method: str
    takes_id: bool = False

    @property
    def verbs(self) -> tuple[str, ...]:
        """The methods of HTTP that it answers."""
        return READ_VERBS if self.verb == "GET" else (self.verb,)

    def __str__(self) -> str:
        return f"{self.verb} {self.path}{'[/ID]' * self.takes_id}"


EVENTS: Final = Route("GET", "/events", "subscribe")
ROUTES: Final = (
    Route("GET", "/status", "status", takes_id=True),
    Route("GET", "/runtimes", "list"),
    EVENTS,
    Route("POST", "/cancel", "cancel", takes_id=True),
    Route("POST", "/answer-permission", "answer_permission"),
    Route("POST", "/prompt", "prompt", takes_id=True),
)
_LISTED: Final = [*map(str, ROUTES), "GET /"]


def find_route(verb: str, raw_path: str) -> tuple[Route, str | None]:
    """The route of a request, and the runtime that its path names.

    Args:
        verb: Its HTTP method.
        raw_path: Its path, still with percent signs: an id may have a slash in it.

    Raises:
        HttpRefusal: There is no such route, or not with this method.
    """
    for route in ROUTES:
        rest = raw_path.removeprefix(route.path)
        has_id = route.takes_id and rest.startswith("/") and len(rest) > 1
        if not raw_path.startswith(route.path) or (rest and not has_id):
            continue
        if verb not in route.verbs:
            raise wrong_verb(verb, raw_path, route.verbs)
        return route, unquote(rest[1:]) if rest else None
    error = MethodNotFound(
        f"there is nothing at {shown(raw_path)!r}; there are {', '.join(_LISTED)}",
        data={"field": "path", "value": shown(raw_path), "routes": _LISTED},
    )
    raise HttpRefusal(404, error)


def wrong_verb(verb: str, path: str, verbs: tuple[str, ...]) -> HttpRefusal:
    """The refusal of a method that a path does not have."""
    allowed = ", ".join(verbs)
    error = MethodNotFound(
        f"{shown(path)} takes {allowed}, not {shown(verb)}", data={"field": "method", "value": shown(verb)}
    )
    return HttpRefusal(405, error, (b"allow", allowed.encode()))


def name_runtime(params: dict[str, Any], runtime_id: str | None) -> dict[str, Any]:
    """Params with the runtime that the path names, if it names one.

    Raises:
        HttpRefusal: The body names another.
    """
    if runtime_id is None:
        return params
    if params.get("runtime_id", runtime_id) != runtime_id:
        text = f"the path names {shown(runtime_id)!r} and the body another runtime: name it in one place"
        raise bad_request(text, field="runtime_id", value=shown(params["runtime_id"]))
    return {**params, "runtime_id": runtime_id}
