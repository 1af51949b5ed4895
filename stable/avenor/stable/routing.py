"""Owner methods: passed on to the runtime that is meant, in order, in the name of the client that calls.

The runtime decides who owns it; what it answers is passed back as it is. Only what has no process is answered here.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog
import trio

from avenor.control.rpc import Call, MethodTable
from avenor.protocol.errors import BrokenError, Ended, Refused
from avenor.protocol.methods import (
    AnswerParams,
    Cancelled,
    InterruptParams,
    OwnerTarget,
    PromptParams,
    Target,
)
from avenor.stable.keeping import describe_left
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime, Stage

# After a runtime has answered that all is gone it only has to leave; and the sweep after a crash is bounded, too.
_LEAVE_SECONDS: Final = 15.0

_PARAMS: Final[dict[str, type[Target]]] = {
    "prompt": PromptParams,
    "interrupt_and_prompt": InterruptParams,
    "answer_permission": AnswerParams,
    "claim": OwnerTarget,
    "release": Target,
}

_logger: Final = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode


def add_routing(table: MethodTable, registry: Registry, end_queued: Callable[[Runtime], bool]) -> None:
    """Register the owner methods.

    Args:
        table: Of the supervisor's socket.
        registry: Where runtimes are found.
        end_queued: Ends a runtime that has not started; False if it has meanwhile.
    """
    router = Router(registry, end_queued)
    for name, params in _PARAMS.items():
        table.add(name, params, router.passing(name))
    table.add("cancel", OwnerTarget, router.cancel)


class Router:
    """See `add_routing`."""

    def __init__(self, registry: Registry, end_queued: Callable[[Runtime], bool]) -> None:
        self._registry = registry
        self._end_queued = end_queued

    def passing(self, name: str) -> Callable[[Call, Target], Awaitable[msgspec.Raw]]:
        """The handler that passes this method on."""

        def pass_on(call: Call, params: Target) -> Awaitable[msgspec.Raw]:
            runtime = self._registry.resolve(params.runtime_id)
            if _is_over(runtime):
                raise Ended(f"{name}: runtime {runtime.id} has ended", data={"runtime_id": runtime.id})
            if runtime.stage is Stage.QUEUED:
                raise Refused(
                    f"{name}: runtime {runtime.id} waits for a place; try again when it has started, or cancel it",
                    data={"runtime_id": runtime.id},
                    reason="queued",
                    retryable=True,
                )
            return _send(runtime, call, name, params)

        return pass_on

    def cancel(self, call: Call, params: OwnerTarget) -> Awaitable[Cancelled | msgspec.Raw]:
        """Handler: answers when the run has ended, its processes are gone, and so is its own."""
        runtime = self._registry.resolve(params.runtime_id)
        _logger.info("cancel.requested", runtime_id=runtime.id, client=call.client_id)
        if _is_over(runtime) or self._end_queued(runtime):
            return _wait_ended(runtime)
        return _cancel(runtime, _send(runtime, call, "cancel", params))


def _is_over(runtime: Runtime) -> bool:
    """Whether no process of it will take calls any more."""
    is_lost = runtime.stage is Stage.LOST and runtime.record.on_crash != "resume"
    return is_lost or runtime.stage is Stage.ENDED


def _send(runtime: Runtime, call: Call, name: str, params: Target) -> Awaitable[msgspec.Raw]:
    assert runtime.link is not None
    _logger.debug("request.passed_on", method=name, runtime_id=runtime.id, client=call.client_id)
    params = msgspec.structs.replace(params, runtime_id=runtime.id)  # it may have been called by its label
    return runtime.link.call(call.client_id, name, msgspec.Raw(_encode(params))).wait()


async def _cancel(runtime: Runtime, answer: Awaitable[msgspec.Raw]) -> Cancelled | msgspec.Raw:
    # For as long as this waits, the loss of its process is its end, and no other goes on with it.
    runtime.cancels += 1
    try:
        result = await answer
    except BrokenError:
        # It died of something else meanwhile: then its end is what was asked for, and if not, nobody knows.
        with trio.move_on_after(_LEAVE_SECONDS):
            return await _wait_ended(runtime)
        raise
    finally:
        runtime.cancels -= 1
    with trio.move_on_after(_LEAVE_SECONDS):
        await runtime.ended.wait()
    return result


async def _wait_ended(runtime: Runtime) -> Cancelled:
    await runtime.ended.wait()
    stopped = runtime.stopped
    return Cancelled(
        ok=True,
        left=runtime.state.left_processes or ([] if stopped is None else describe_left(stopped)),
        unverified=msgspec.UNSET if stopped is None or stopped.unverified is None else stopped.unverified,
    )
