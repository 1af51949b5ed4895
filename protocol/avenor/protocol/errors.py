"""The error tree, and its one mapping to and from JSON-RPC error objects.

A class is named by whose fault it is and carries the code that the peer sees. `reason` is the stable word that
scripts may test; the message is for people and says what to do next.
"""

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
FAILED = -32000
NO_PENDING_PERMISSION = -32001
NOT_OWNER = -32010
UNSUPPORTED = -32020


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON-RPC 2.0 error object (specification, section 5.1). Tolerant: peers may add members."""

    code: int
    message: str
    data: msgspec.Raw | UnsetType = UNSET


class AvenorError(Exception):
    """Anything that avenor refuses or cannot do.

    Args:
        message: What was tried, on what, and what to do next.
        data: Facts for programs; a `reason` and `retryable` are added on the wire.
        retryable: Whether the same call may succeed later; defaults to the class's answer.
    """

    code: ClassVar[int] = FAILED
    reason: ClassVar[str] = "failed"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        data: dict[str, Any] | None = None,
        retryable: bool | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = dict(data or {})
        if retryable is not None:
            self.retryable = retryable
        self.reason_word = reason or type(self).reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r}, reason={self.reason_word!r}, data={self.data!r})"


class ProtocolError(AvenorError):
    """The rules of a wire protocol were broken."""

    code = INVALID_REQUEST
    reason = "protocol_error"


class LocalProtocolError(ProtocolError):
    """We misused the protocol: a fault in avenor."""

    code = INTERNAL_ERROR
    reason = "local_protocol_error"


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow."""


class ParseFailed(RemoteProtocolError):
    """A line was no JSON, nested too deeply, or over the size limit."""

    code = PARSE_ERROR
    reason = "parse_error"


class MethodNotFound(RemoteProtocolError):
    """No such method on this kind of socket."""

    code = METHOD_NOT_FOUND
    reason = "method_not_found"


class InvalidParams(RemoteProtocolError):
    """Params of the wrong shape or value; `data.field` names the field, `data.errors` lists several."""

    code = INVALID_PARAMS
    reason = "invalid_params"


class ConfigError(AvenorError):
    """Configuration that cannot be used; `data.file` and `data.path` say where."""

    code = INVALID_PARAMS
    reason = "invalid_config"


class RuntimeFailure(AvenorError):
    """A runtime or its agent could not do the work."""

    reason = "runtime_failure"


class SpawnError(RuntimeFailure):
    """A program could not be started."""

    reason = "spawn_failed"


class HandshakeTimeout(RuntimeFailure):
    """The agent did not open a session within its deadline."""

    reason = "handshake_timeout"


class AgentExited(RuntimeFailure):
    """The agent's process ended when it should not have."""

    reason = "agent_exited"


class Refused(AvenorError):
    """Understood, and not done."""

    reason = "refused"


class LimitReached(Refused):
    """A declared bound is reached."""

    reason = "limit_reached"
    retryable = True


class NotOwner(Refused):
    """Another client owns this runtime; `data.owner` says who."""

    code = NOT_OWNER
    reason = "not_owner"


class NoPendingPermission(Refused):
    """No permission request with that id is open."""

    code = NO_PENDING_PERMISSION
    reason = "no_pending_permission"


class Unsupported(Refused):
    """The backend, or this kind of socket, cannot do that."""

    code = UNSUPPORTED
    reason = "unsupported"


class NoSuchRuntime(Refused):
    """No runtime has that id, or several could be meant; `data.candidates` lists them."""

    reason = "no_such_runtime"


class Ended(Refused):
    """The run is over, or ending, and takes no more work."""

    reason = "run_ending"


class Unavailable(AvenorError):
    """A connection that is not there."""

    reason = "unavailable"
    retryable = True


class ClosedError(Unavailable):
    """We closed it."""

    reason = "closed"


class BrokenError(Unavailable):
    """The other side, or the system, broke it."""

    reason = "broken"


class InternalError(AvenorError):
    """A fault in avenor; details are in the server's log only."""

    code = INTERNAL_ERROR
    reason = "internal_error"


_BY_CODE: dict[int, type[AvenorError]] = {
    PARSE_ERROR: ParseFailed,
    INVALID_REQUEST: RemoteProtocolError,
    METHOD_NOT_FOUND: MethodNotFound,
    INVALID_PARAMS: InvalidParams,
    INTERNAL_ERROR: InternalError,
    NO_PENDING_PERMISSION: NoPendingPermission,
    NOT_OWNER: NotOwner,
    UNSUPPORTED: Unsupported,
}
_BY_REASON: dict[str, type[AvenorError]] = {
    cls.reason: cls
    for cls in (
        ConfigError,
        RuntimeFailure,
        SpawnError,
        HandshakeTimeout,
        AgentExited,
        Refused,
        LimitReached,
        NoSuchRuntime,
        Ended,
        Unavailable,
        ClosedError,
        BrokenError,
    )
}


def to_wire(error: AvenorError) -> ErrorObject:
    """The error object for an error; `data` always holds `reason` and `retryable`."""
    data = {"reason": error.reason_word, "retryable": error.retryable, **error.data}
    return ErrorObject(code=error.code, message=error.message, data=msgspec.Raw(msgspec.json.encode(data)))


def from_wire(error: ErrorObject) -> AvenorError:
    """The typed error that a peer's error object stands for; unknown codes become plain `AvenorError`."""
    data = _decode_data(error.data)
    reason = str(data.pop("reason", "")) or None
    retryable = bool(data.pop("retryable", False))
    kind = _BY_REASON.get(reason or "") or _BY_CODE.get(error.code, AvenorError)
    return kind(error.message, data=data, retryable=retryable, reason=reason)


def _decode_data(raw: msgspec.Raw | UnsetType) -> dict[str, Any]:
    if raw is UNSET:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.ValidationError:  # JSON-RPC lets a peer put anything there
        return {"value": msgspec.json.decode(raw)}
