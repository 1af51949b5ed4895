"""Methods by name: from params to a handler, and from what it gives to an answer line.

The one module that knows jsonrpcserver. It calls the methods and has the two kinds of outcome; msgspec decodes and
encodes in its place, and what it does against JSON-RPC 2.0 or gives away is mended here: texts of foreign exceptions
never reach the peer, handlers return plain values, and what waits is awaited by the caller, under trio. Its check of
arguments is not used: every method here takes the same two, and the check takes longer than all the rest.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import structlog
from jsonrpcserver import Error, Success
from jsonrpcserver.dispatcher import call as call_method
from jsonrpcserver.request import Request as RpcRequest
from jsonrpcserver.response import ErrorResponse, serialize_error
from msgspec import UNSET, Raw

from avenor.control.envelope import Request, RequestId
from avenor.protocol.errors import AvenorError, InternalError, InvalidParams, MethodNotFound, Refused, to_wire
from avenor.protocol.methods import LINE_LIMIT_BYTES, NoParams

if TYPE_CHECKING:
    from avenor.control.connection import Connection

P = TypeVar("P", bound=msgspec.Struct)

_logger: Final = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode
_NO_PARAMS: Final = Raw(b"{}")


class Call:
    """One request, as its handler sees it.

    Attributes:
        connection: Where it came in.
        client_id: Who calls: the connection's id, or the client that a router named.
        request_id: As the client wrote it; UNSET for a notification.
        is_detached: Whether it goes on when its client has left.
    """

    __slots__ = ("_afterwards", "client_id", "connection", "is_detached", "request_id")

    def __init__(self, connection: "Connection", client_id: str, request_id: Any = UNSET) -> None:
        self.connection = connection
        self.client_id = client_id
        self.request_id = request_id
        self.is_detached = False
        self._afterwards: list[Callable[[], None]] = []

    def detach(self) -> None:
        """Lets what the handler returned go on to its end even if the client disconnects."""
        self.is_detached = True

    def after_answer(self, action: Callable[[], None]) -> None:
        """Has `action` done once the answer is on its way: whatever it sends comes after the answer."""
        self._afterwards.append(action)

    def answered(self) -> None:
        """Does what was to come after the answer; called by the connection."""
        for action in self._afterwards:
            action()


Handler = Callable[[Call, P], Any]


class MethodTable:
    """The methods of one kind of socket.

    A handler is a function `(call, params) -> result`. It runs in the connection's reader, in request order, and must
    not block; if it must wait it returns an awaitable, which then runs as a task. The result is a struct, anything that
    msgspec encodes, or `Raw`. It refuses by raising an `AvenorError`, before or while waiting.
    """

    def __init__(self) -> None:
        self._raw: dict[str, Callable[[Call, Raw], Any]] = {}
        self._bound: dict[str, Callable[..., Any]] = {}

    @property
    def names(self) -> list[str]:
        """The methods there are."""
        return list(self._raw)

    def method(self, name: str, params_type: type[P]) -> Callable[[Handler[P]], Handler[P]]:
        """Decorator: the handler of a method whose params are this struct."""

        def register(handler: Handler[P]) -> Handler[P]:
            self.add(name, params_type, handler)
            return handler

        return register

    def add(self, name: str, params_type: type[P], handler: Handler[P]) -> None:
        """Registers a handler.

        Raises:
            ValueError: The name is taken.
        """
        if name in self._raw:
            raise ValueError(f"method {name!r} is registered twice")
        decode = msgspec.json.Decoder(params_type).decode

        def invoke(call: Call, params: Raw) -> Any:
            try:
                decoded = decode(params)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _bad_params(name, error) from error
            return handler(call, decoded)

        self._raw[name] = invoke
        self._bound[name] = _bind(name, invoke)

    def invoke(self, call: Call, name: str, params: Raw = _NO_PARAMS) -> Any:
        """The result of a method, or the awaitable that will give it.

        Raises:
            AvenorError: It is refused, or there is no such method.
        """
        invoke = self._raw.get(name)
        if invoke is None:
            raise _no_such_method(name, self.names)
        return invoke(call, params)

    def dispatch(self, call: Call, request: Request) -> Any:
        """Runs a request up to where it waits. The outcome is for `awaitable_of`, `settle` and `encode_answer`."""
        method = self._bound.get(request.method)
        if method is None:
            return failure(_no_such_method(request.method, self.names))
        return call_method(RpcRequest(request.method, [request.params], None), call, method)


def add_ping(table: MethodTable, pong: Callable[[], object]) -> None:
    """Registers `ping`, answered with what `pong` gives."""
    table.add("ping", NoParams, lambda _call, _params: pong())


def awaitable_of(outcome: Any) -> Awaitable[Any] | None:
    """What must be awaited before there is an answer, if anything."""
    success = getattr(outcome, "_value", None)
    return success.result if success is not None and hasattr(success.result, "__await__") else None


async def settle(method: str, awaitable: Awaitable[Any]) -> Any:
    """Waits for what a handler returned; the outcome is for `encode_answer`. Only cancellation is raised."""
    try:
        return Success(await awaitable)
    except Exception as error:  # one request's fault is one request's answer
        return failure(_own_error(method, error))


def failure(error: AvenorError) -> Any:
    """The outcome of a call that was refused."""
    wire = to_wire(error)
    return Error(wire.code, wire.message, wire.data)


def encode_answer(request_id: RequestId, outcome: Any) -> bytes:
    """The answer, without newline. One that does not fit into a line becomes a refusal that says so."""
    try:
        line = _encode(_answer(request_id, outcome))
    except Exception as error:  # a result that is not JSON is a fault of ours
        return _encode(_answer(request_id, failure(_own_error("encode", error))))
    if len(line) >= LINE_LIMIT_BYTES:
        return _encode(_answer(request_id, failure(too_large(len(line)))))
    # Only `Raw` parts can bring line feeds, and in JSON they are blanks between tokens.
    return line.replace(b"\n", b" ") if b"\n" in line else line


def too_large(size: int) -> AvenorError:
    """The refusal of an answer that no line can hold."""
    return Refused(
        f"the answer has {size} bytes and a line may have {LINE_LIMIT_BYTES}: ask for less, as with `fields` of a list",
        reason="answer_too_large",
    )


def encode_notification(method: str, params: object) -> bytes:
    """The line of a notification, with its newline."""
    line = _encode({"jsonrpc": "2.0", "method": method, "params": params})
    return line.replace(b"\n", b" ") + b"\n"


def _answer(request_id: RequestId, outcome: Any) -> Any:
    success = getattr(outcome, "_value", None)
    if success is not None:
        return {"jsonrpc": "2.0", "result": success.result, "id": request_id}
    refused = outcome._error
    return serialize_error(ErrorResponse(refused.code, refused.message, refused.data, request_id))


def _bind(name: str, invoke: Callable[[Call, Raw], Any]) -> Callable[[Call, Raw], Any]:
    """The method as jsonrpcserver calls it: it gives an outcome, and raises nothing."""

    def bound(call: Call, params: Raw) -> Any:
        try:
            return Success(invoke(call, params))
        except Exception as error:  # one request's fault is one request's answer
            return failure(_own_error(name, error))

    return bound


def _own_error(method: str, error: Exception) -> AvenorError:
    if isinstance(error, AvenorError):
        return error
    _logger.error("rpc.handler_failed", method=method, exc_info=error)
    return InternalError(f"{method} failed inside avenor; the server's log says why")


def _no_such_method(name: str, known: list[str]) -> MethodNotFound:
    shown = name if len(name) <= 80 else name[:80] + "…"
    return MethodNotFound(f"there is no method {shown!r} here; there are {', '.join(sorted(known))}")


def _bad_params(method: str, error: Exception) -> InvalidParams:
    """The refusal of params, with the path of the field that msgspec complains about."""
    message, _, path = str(error).partition(" - at `$")
    parts = [path.removesuffix("`").removeprefix(".")]
    if "field `" in message:  # an unknown or a missing one: msgspec gives the path of what should hold it
        parts.append(message.split("field `")[1].partition("`")[0])
    field = ".".join(part for part in parts if part)
    return InvalidParams(f"{method}: {error}", data={"field": field or "params"})
