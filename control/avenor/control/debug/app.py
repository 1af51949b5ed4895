"""The ASGI application: lets requests in, asks the control server in their name, and says what that answered."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec
import structlog
import trio

from avenor.control.debug.asgi import Headers, Receive, Response, Scope, Send, send_response, send_start, values_of
from avenor.control.debug.guard import Guard
from avenor.control.debug.inner import Connect, Inner
from avenor.control.debug.refusals import HttpRefusal, refusal_of, refused, shown
from avenor.control.debug.requests import Body, Gone, parse_query, read_params, read_query
from avenor.control.debug.routes import EVENTS, READ_VERBS, Route, find_route, name_runtime, wrong_verb
from avenor.control.debug.sse import CONTENT_TYPE, Stream, open_stream, pour, read_follow
from avenor.protocol.errors import AvenorError, InternalError, InvalidParams, LimitReached, NoSuchRuntime

_logger: Final = structlog.get_logger()

# Each costs two descriptors besides that of its connection. People look on with a handful.
STREAM_LIMIT: Final = 64
CALL_LIMIT: Final = 64
_VERSIONS: Final = ("1.0", "1.1")
_TOKEN: Final = "token"
# What the query of `/events` may hold; that of no other route holds anything.
_QUERY: Final = ("runtime_id", "after_seq", _TOKEN)


class _Request(msgspec.Struct, frozen=True):
    verb: str
    path: str
    query: bytes
    headers: Headers
    body: bytes


class _Opened(msgspec.Struct, frozen=True):
    inner: Inner
    stream: Stream


class DebugApp:
    """Answers requests.

    Args:
        connect: To the control server.
        guard: Who is let in.
        assets: The page's files by path.
        follows_one: Whether the control server has but one runtime.
    """

    def __init__(self, connect: Connect, guard: Guard, assets: dict[str, Response], *, follows_one: bool) -> None:
        self._connect = connect
        self._guard = guard
        self._assets = assets
        self._follows_one = follows_one
        self._streams = _Places("streams of events", STREAM_LIMIT)
        self._calls = _Places("requests under way", CALL_LIMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        try:
            await self._serve(scope, Body(receive), send)
        except* Gone:
            pass

    async def _serve(self, scope: Scope, body: Body, send: Send) -> None:
        refusal: Response | None = None
        text = b""
        try:
            text = await body.read()
        except HttpRefusal as error:
            refusal = error.response
            await body.discard()
        request = _Request(
            scope["method"], scope["raw_path"].decode("ascii"), scope["query_string"], scope["headers"], text
        )
        # The server tells the client's leaving also when a response ends, amid its last `send`, which must not be cut.
        working = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, body, working)
            last: Response | None = None
            with ExitStack() as held, working:
                answer = refusal or await self._answer(scope["http_version"], request, held)
                _log(request, answer)
                if isinstance(answer, Response):
                    last = answer
                else:
                    await _stream(send, answer)
            if not working.cancelled_caught:
                await _finish(send, last)
            nursery.cancel_scope.cancel()

    async def _answer(self, version: str, request: _Request, held: ExitStack) -> Response | _Opened:
        try:
            if version not in _VERSIONS:
                raise refused(505, f"this is HTTP/1.1 only, not HTTP/{version}", reason="http_version", value=version)
            return await self._let_in(request, held)
        except HttpRefusal as error:
            return error.response
        except AvenorError as error:
            return refusal_of(error)
        except Exception:  # one request's fault is one request's answer
            _logger.exception("http.answer_failed", path=shown(request.path))
            return refusal_of(InternalError("the request failed inside avenor; the server's log says why"))

    async def _let_in(self, request: _Request, held: ExitStack) -> Response | _Opened:
        self._guard.check_place(request.headers)
        asset = self._assets.get(request.path)
        if asset is not None:
            if request.verb not in READ_VERBS:
                raise wrong_verb(request.verb, request.path, READ_VERBS)
            return asset
        route, runtime_id = find_route(request.verb, request.path)
        if route is EVENTS:
            tokens = [value for name, value in parse_query(request.query) if name == _TOKEN]
            self._guard.check_token(request.headers, tokens)
            return await self._follow(request, read_query(request.query, _QUERY), held)
        self._guard.check_token(request.headers, None)
        read_query(request.query, ())
        params = name_runtime(read_params(request.body), runtime_id)
        with self._calls.taken():
            return await self._call(route, params)

    async def _follow(self, request: _Request, query: dict[str, str], held: ExitStack) -> Response | _Opened:
        follow = read_follow(query, values_of(request.headers, b"last-event-id"), follows_one=self._follows_one)
        if request.verb == "HEAD":
            return Response(200, content_type=CONTENT_TYPE)
        held.enter_context(self._streams.taken())
        with _naming_values(query):
            opened = await open_stream(self._connect, follow)
        if opened is None:
            return Response(204)
        inner, stream = opened
        held.enter_context(inner)
        return _Opened(inner, stream)

    async def _call(self, route: Route, params: dict[str, Any]) -> Response:
        with Inner(self._connect) as inner, _naming_values(params):
            return Response(200, bytes(await inner.call(route.method, params)))


class _Places:
    """So many may be taken at a time."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._count = 0

    @contextmanager
    def taken(self) -> Generator[None, None, None]:
        """One of them.

        Raises:
            LimitReached: All are taken.
        """
        if self._count == self._limit:
            raise LimitReached(f"there are {self._limit} {self._what} already: close one, or try again later")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


@contextmanager
def _naming_values(params: Mapping[str, Any]) -> Generator[None, None, None]:
    """Adds to the control server's refusal of a param what that was."""
    try:
        yield
    except (InvalidParams, NoSuchRuntime) as error:
        if isinstance(error, NoSuchRuntime):
            error.data["field"] = "runtime_id"
        field = error.data.get("field")
        if isinstance(field, str) and field in params:
            error.data["value"] = shown(params[field])
        raise


async def _cancel_when_gone(body: Body, scope: trio.CancelScope) -> None:
    await body.wait_gone()
    scope.cancel()


async def _stream(send: Send, opened: _Opened) -> None:
    async def write(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    await send_start(send, 200, [(b"content-type", CONTENT_TYPE.encode())])
    await pour(opened.inner, opened.stream, write)


async def _finish(send: Send, response: Response | None) -> None:
    if response is None:  # a stream
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_response(send, response)


def _log(request: _Request, answer: Response | _Opened) -> None:
    # Without the query, which may have the token.
    status = answer.status if isinstance(answer, Response) else 200
    log = _logger.debug if request.verb in READ_VERBS else _logger.info
    log("http.request", method=shown(request.verb), path=shown(request.path), status=status)
