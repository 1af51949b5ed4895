"""The model gateway: passes an agent's requests on to the model service, and counts what they cost.

The agent has a token of its attempt and nothing else; the service's key is put in its place here. Answers pass through
piece by piece, as they come. A model call is asked for at the meter before it goes out, and charged when it has ended,
however it has ended: what was attempted stays charged.
"""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, Protocol

import httpcore
import msgspec
import structlog
import trio

from avenor.protocol.manifest.roster import Endpoint
from avenor.runtimes.manifest.dialects import (
    NO_RETRY,
    BadBody,
    Route,
    error_body,
    find_route,
    prepare,
)
from avenor.runtimes.manifest.gateway_exchange import Exchange
from avenor.runtimes.manifest.gateway_log import GatewayLine, GatewayLog
from avenor.runtimes.manifest.gateway_usage import UsageReader, Used

CONNECT_SECONDS: Final = 15.0
# Anthropic takes 32 MB a request, OpenAI 50 MB of images.
BODY_LIMIT_BYTES: Final = 64 * 1024 * 1024
# A service may think for as long as it likes before it says anything: the attempt's deadline ends the wait.
_TIMEOUTS: Final = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}

# Two turns of an agent that tries again five times, and some.
QUICK_REFUSALS: Final = 20
WAIT_FOR_NOTHING: Final = ((b"retry-after-ms", b"0"), (b"retry-after", b"0"))

# RFC 9110, section 7.6.1, and what is of one connection alone by custom.
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade".split()
)
# What is told anew, or must not leave this machine. Answers have to be readable here, hence no compressed ones.
_NOT_PASSED: Final = _HOP_BY_HOP | {
    b"host", b"content-length", b"accept-encoding", b"expect", b"cookie", b"authorization", b"x-api-key",
}  # fmt: skip

_logger = structlog.get_logger()


class Meter(Protocol):
    """Counts model calls against budgets. Called in the thread that runs trio."""

    async def may_call(self, attempt_id: str) -> str | None:
        """None lets one more model call of an attempt pass, and reserves it; else why not, for the agent and people.

        It may wait until another call of the attempt has ended.
        """
        ...

    def called(self, attempt_id: str, *, input_tokens: int, output_tokens: int, cached_read_tokens: int) -> None:
        """A call that was let pass has ended. Raises nothing.

        Args:
            attempt_id: Whose it was.
            input_tokens: All of them; 0, like the others, where the answer told none.
            output_tokens: Thinking included.
            cached_read_tokens: How many of the input were read from a cache.
        """
        ...


class Upstream(msgspec.Struct, frozen=True):
    """Where an attempt's requests go.

    Args:
        endpoint: The service.
        key: What it is given in place of the token; None gives it none.
    """

    endpoint: Endpoint
    key: str | None


class _Tally:
    """What is known of a request, up to its line in the log.

    Args:
        attempt_id: Whose it is.
        path: Below the endpoint's address.
        meter: Is told what it has used; None if it is no model call.
    """

    def __init__(self, attempt_id: str, path: str, meter: Meter | None) -> None:
        self.attempt_id = attempt_id
        self.path = path
        self.end: Literal["passed", "cut", "broken", "unreachable", "refused"] = "cut"
        self.reader: UsageReader | None = None
        self._meter = meter
        self._used: Used | None = None
        self._ts_ms = time.time_ns() // 1_000_000
        self._began = time.monotonic()

    def settle(self) -> None:
        """Charges the call, once."""
        meter, self._meter = self._meter, None
        if meter is None:
            return
        self._used = None if self.reader is None else self.reader.finish()
        counted = self._used or Used()
        meter.called(
            self.attempt_id,
            input_tokens=counted.input_tokens,
            output_tokens=counted.output_tokens,
            cached_read_tokens=counted.cached_read_tokens,
        )

    def line(self, status: int | None) -> GatewayLine:
        return GatewayLine(
            ts_ms=self._ts_ms,
            attempt_id=self.attempt_id,
            path=self.path,
            end=self.end,
            status=status,
            used=self._used,
            duration_ms=round((time.monotonic() - self._began) * 1000),
        )


class Gateway:
    """Answers the model requests of all attempts of a run.

    Args:
        meter: Counts.
        log: Gets a line for each model request.
    """

    def __init__(self, meter: Meter, log: GatewayLog) -> None:
        self._meter = meter
        self._log = log
        self._refusals: Counter[str] = Counter()
        # A connection for each request: none is lost on one that the service has just closed, and with it a call that
        # nobody knows the cost of.
        self._pool = httpcore.AsyncConnectionPool(max_connections=None, max_keepalive_connections=0)

    async def aclose(self) -> None:
        """Closes what is open to services."""
        await self._pool.aclose()

    async def answer(
        self, exchange: Exchange, body: bytes | None, attempt_id: str, upstream: Upstream, path: str
    ) -> None:
        """Answers one request.

        Args:
            exchange: The request.
            body: Its body; None if it was over the limit.
            attempt_id: Whose it is.
            upstream: Where it goes.
            path: Below the endpoint's address.

        Cancellation: A call that has gone out is charged with what its answer has told so far.
        """
        dialect = upstream.endpoint.dialect
        route = find_route(dialect, exchange.method, path)
        if route is None:
            message = f"the gateway passes on no {exchange.method} {path} to an endpoint of dialect {dialect}"
            await exchange.answer(404, error_body(dialect, "not_found_error", message))
        elif body is None:
            message = f"the request is over {BODY_LIMIT_BYTES} bytes"
            await exchange.answer(413, error_body(dialect, "request_too_large", message))
        elif route.is_call:
            await self._call(exchange, body, _Tally(attempt_id, path, self._meter), upstream, route)
        else:
            await self._pass_on(exchange, body, _Tally(attempt_id, path, None), upstream)

    async def _call(self, exchange: Exchange, body: bytes, tally: _Tally, upstream: Upstream, route: Route) -> None:
        """A model call: asked for, passed on, charged."""
        dialect = upstream.endpoint.dialect
        try:
            prepared = _checked(exchange, route, body)
        except BadBody as error:
            await exchange.answer(400, error_body(dialect, "invalid_request_error", str(error)))
            return
        refusal = await self._meter.may_call(tally.attempt_id)
        if refusal is not None:
            tally.end = "refused"
            self._log.add(tally.line(429))
            await self._refuse(exchange, tally.attempt_id, error_body(dialect, "budget_exhausted", refusal))
            return
        try:
            await self._pass_on(exchange, prepared, tally, upstream)
        finally:
            tally.settle()
            self._log.add(tally.line(exchange.status))

    async def _refuse(self, exchange: Exchange, attempt_id: str, body: bytes) -> None:
        """Tells an agent that its budget is spent, so that it ends its turn soon.

        Those that try again whatever they are told (opencode and codex, five times) do that at once where they are told
        to wait for nothing, and for a minute where they are not. One that does not stop after that is slowed down.
        """
        self._refusals[attempt_id] += 1
        is_patient = self._refusals[attempt_id] > QUICK_REFUSALS
        await exchange.answer(429, body, NO_RETRY, *(() if is_patient else WAIT_FOR_NOTHING))

    async def _pass_on(self, exchange: Exchange, body: bytes, tally: _Tally, upstream: Upstream) -> None:
        try:
            await self._relay(exchange, body, tally, upstream)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            url = upstream.endpoint.url
            _logger.warning("gateway.upstream_failed", url=url, attempt_id=tally.attempt_id, error=repr(error))
            # An answer that has begun is left unfinished: that is how the client sees that it is not whole.
            tally.end = "broken" if exchange.status is not None else "unreachable"
            tally.settle()
            if exchange.status is None:
                message = f"the model service at {url} gave no answer: {str(error) or type(error).__name__}"
                await exchange.answer(502, error_body(upstream.endpoint.dialect, "upstream_unreachable", message))

    async def _relay(self, exchange: Exchange, body: bytes, tally: _Tally, upstream: Upstream) -> None:
        url = upstream.endpoint.url.rstrip("/") + tally.path + (f"?{exchange.query}" if exchange.query else "")
        headers = _request_headers(exchange, upstream.key)
        content = body if exchange.method == "POST" else None
        async with self._pool.stream(
            exchange.method, url, headers=headers, content=content, extensions={"timeout": _TIMEOUTS}
        ) as answer:
            reader = tally.reader = UsageReader(upstream.endpoint.dialect, _headers(answer))
            await exchange.start(answer.status, _passed(answer.headers, _HOP_BY_HOP))
            async for piece in answer.aiter_stream():
                reader.feed(piece)
                if reader.is_complete:  # the agent may go on as soon as it has this, and its next call be judged
                    tally.settle()
                # Cancelled here, httpcore's generators would be left to the garbage collector. hypercorn does not stop
                # sending anyway; the listener's time-out for stalled connections bounds both.
                with trio.CancelScope(shield=True):
                    await exchange.send(piece)
        tally.end = "passed"
        tally.settle()
        await exchange.finish()


def read_key(endpoint: Endpoint, environ: Mapping[str, str]) -> str | None:
    """The key of a service; None if it needs none.

    Raises:
        KeyError: Its variable is not set, or empty.
    """
    if endpoint.key_env is None:
        return None
    if not environ.get(endpoint.key_env):
        raise KeyError(endpoint.key_env)
    return environ[endpoint.key_env]


def _checked(exchange: Exchange, route: Route, body: bytes) -> bytes:
    """The body of a model call as it is sent on."""
    encoding = exchange.header_values(b"content-encoding")
    if encoding and encoding != [b"identity"]:
        raise BadBody("a compressed request cannot be metered: send it as it is")
    return prepare(route, body)


def _request_headers(exchange: Exchange, key: str | None) -> list[tuple[bytes, bytes]]:
    """What is passed on, with the key in the header in which the token came: services differ in which one they read."""
    headers = [*_passed(exchange.headers, _NOT_PASSED), (b"accept-encoding", b"identity")]
    if key is None:
        return headers
    if exchange.header_values(b"x-api-key"):
        return [*headers, (b"x-api-key", key.encode())]
    return [*headers, (b"authorization", b"Bearer " + key.encode())]


def _passed(headers: list[tuple[bytes, bytes]], left_out: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers but for those that are left out, and those that `Connection` names as its own."""
    named = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in left_out and name.lower() not in named]


def _headers(answer: httpcore.Response) -> dict[str, str]:
    """The headers of an answer, by their names in small letters."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
