"""`spawn`: checked, admitted and recorded in one step; answered when the run is where the client wants it."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
import trio

from avenor.control.rpc import Call
from avenor.host.backend_names import backend_names
from avenor.host.failpoints import failpoint
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError, InvalidParams, Refused, RuntimeFailure, SpawnError
from avenor.protocol.methods import Spawned
from avenor.stable.admission import Admission, Decision
from avenor.stable.identifiers import Identifiers
from avenor.stable.records import Surroundings, make_record, write_record
from avenor.stable.registry import Registry
from avenor.stable.requests import SpawnRequest, read_request, tell_refusal
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.settle import last_session

_logger: Final = structlog.get_logger()


class _Keyed(msgspec.Struct):
    """What of spawn params is looked at first. Tolerant: all else may be wrong."""

    key: str | None = None
    wait: Literal["session", "started"] = "session"


_decode_keyed: Final = msgspec.json.Decoder(_Keyed).decode


class Spawner:
    """Carries out spawns.

    Args:
        registry: Takes the new runtimes.
        admission: Says who starts, who waits and who is refused.
        identifiers: Gives the ids.
        around: What every runtime gets.
        claim_seconds: The `permission_claim_timeout` of those that do not say.
        refusal: Why no spawns are taken now, if so.
        refuse_below: Raises `Ended` for a parent that must get no more children.
        start: Starts a runtime that was admitted.
    """

    def __init__(
        self,
        registry: Registry,
        admission: Admission,
        identifiers: Identifiers,
        around: Surroundings,
        *,
        claim_seconds: float,
        refusal: Callable[[], Refused | None],
        refuse_below: Callable[[Runtime], None],
        start: Callable[[Runtime], None],
    ) -> None:
        self._registry = registry
        self._admission = admission
        self._identifiers = identifiers
        self._around = around
        self._claim_seconds = claim_seconds
        self._refusal = refusal
        self._refuse_below = refuse_below
        self._start = start

    def spawn(self, call: Call, raw: msgspec.Raw) -> Awaitable[Spawned]:
        """Handler: accepts, or refuses without having used an id.

        Raises:
            Refused: A bound is reached, or the supervisor is shutting down.
        """
        known = self._known(raw)
        if known is not None:
            return known
        if (refusal := self._refusal()) is not None:
            raise refusal
        try:
            names = backend_names(self._around.environ)
            request = read_request(raw, claim_seconds=self._claim_seconds, backends=names)
            parent = self._parent(request)
        except AvenorError as error:
            return _refuse(raw, error)
        runtime = self._accept(request, parent)
        runtime.spawner = call.client_id
        return _answer(runtime, request.params.wait)

    def _known(self, raw: msgspec.Raw) -> Awaitable[Spawned] | None:
        """The answer for a `key` that was seen before."""
        try:
            keyed = _decode_keyed(raw)
        except msgspec.ValidationError:
            return None
        runtime = self._registry.by_key.get(keyed.key) if keyed.key is not None else None
        return None if runtime is None else _answer(runtime, keyed.wait)

    def _parent(self, request: SpawnRequest) -> Runtime | None:
        parent_id = request.params.parent_id
        if parent_id is None:
            return None
        parent = self._registry.get(parent_id)
        if parent is None:
            raise InvalidParams(f"parent_id {parent_id!r}: there is no such runtime", data={"field": "parent_id"})
        self._refuse_below(parent)
        return parent

    def _accept(self, request: SpawnRequest, parent: Runtime | None) -> Runtime:
        tree_size = None if parent is None else self._registry.tree_size(parent)
        decision = self._admission.decide(busy=self._registry.busy_count, tree_size=tree_size)
        runtime = self._make(request, parent, decision)
        self._registry.add(runtime)
        _logger.info("spawn.accepted", runtime_id=runtime.id, backend=request.spec.backend, decision=decision)
        self._start(runtime)
        return runtime

    def _make(self, request: SpawnRequest, parent: Runtime | None, decision: Decision) -> Runtime:
        path: Path | None = None
        try:
            _, path = self._identifiers.allocate()
            directory = RunDir(path)
            record = make_record(request, directory, self._around, parent=None if parent is None else parent.record)
            if decision == "queue":
                directory.queued_path.touch(mode=0o600)
            failpoint("spawn.before_record")
            write_record(directory, record)
            failpoint("spawn.after_record")
        except OSError as error:
            if path is not None:
                with contextlib.suppress(OSError):
                    RunDir(path).queued_path.unlink(missing_ok=True)
                self._identifiers.give_back(path)  # without a record it was never accepted, whether it stays or not
            raise SpawnError(f"cannot make the directory of a runtime: {error}", retryable=True) from error
        return Runtime(directory, record, Stage.QUEUED if decision == "queue" else Stage.LAUNCHING)


async def _answer(runtime: Runtime, wait: Literal["session", "started"]) -> Spawned:
    await runtime.started.wait()
    if runtime.record.config is not None:  # its phases have sessions of their own, as they come
        wait = "started"
    if wait == "session":
        await runtime.has_session.wait()
    session_id = "" if runtime.record.config is not None else await _session_id(runtime)
    # Of one that had ended before this supervisor there is no process, but its log tells that it came up.
    was_up = runtime.process is not None or runtime.state.started_at is not None
    if runtime.failure is not None or not was_up or (wait == "session" and session_id is None):
        await runtime.ended.wait()
        raise _failure(runtime)
    failpoint("spawn.before_answer")
    return Spawned(
        runtime_id=runtime.id,
        session_id=session_id or "",
        on_event=runtime.on_event,
        sentinel_file=runtime.sentinel_file,
    )


async def _session_id(runtime: Runtime) -> str | None:
    """Its last session; from its log, where of that only beginning and end were read."""
    if runtime.is_summary:
        return await trio.to_thread.run_sync(last_session, runtime.directory.log_path) or None
    return runtime.state.session_id


def _failure(runtime: Runtime) -> AvenorError:
    """Why there is no session, for the one who waited for it."""
    state = runtime.state
    data = {
        "runtime_id": runtime.id,
        "sentinel_file": runtime.sentinel_file,
        "outcome": state.outcome,
        "stop_reason": state.stop_reason,
    }
    if runtime.failure is not None:
        data = {**runtime.failure.data, **data}
        failure = runtime.failure
        return SpawnError(failure.message, data=data, retryable=failure.retryable, reason=failure.reason_word)
    what = state.reason or state.stop_reason or "it has ended"
    return RuntimeFailure(f"runtime {runtime.id} ended before it had a session: {what}", data=data)


async def _refuse(raw: msgspec.Raw, error: AvenorError) -> Spawned:
    """Tell a refusal in the sentinel that was named, then as the answer."""
    try:
        await trio.to_thread.run_sync(tell_refusal, bytes(raw), error)
    except OSError as problem:
        _logger.warning("spawn.sentinel_not_written", error=str(problem))
    raise error
