"""Owner methods: passed on to the runtime that is meant, in order, in the name of the client that calls.

The runtime decides who owns it; what it answers is passed back as it is. Only what has no process is answered here.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from avenor.control.rpc import Call, MethodTable
from avenor.protocol.errors import Ended, Refused
from avenor.protocol.methods import AnswerParams, InterruptParams, OwnerTarget, PromptParams, Target
from avenor.stable.cancelling import Canceller, is_over, send
from avenor.stable.registry import Registry
from avenor.stable.runtime import Stage

_PARAMS: Final[dict[str, type[Target]]] = {
    "prompt": PromptParams,
    "interrupt_and_prompt": InterruptParams,
    "answer_permission": AnswerParams,
    "claim": OwnerTarget,
    "release": Target,
}


def add_routing(table: MethodTable, registry: Registry, canceller: Canceller) -> None:
    """Register the owner methods.

    Args:
        table: Of the supervisor's socket.
        registry: Where runtimes are found.
        canceller: Carries out `cancel`.
    """
    for name, params in _PARAMS.items():
        table.add(name, params, _passing(name, registry))
    table.add("cancel", OwnerTarget, canceller.cancel)


def _passing(name: str, registry: Registry) -> Callable[[Call, Target], Awaitable[msgspec.Raw]]:
    """The handler that passes this method on."""

    def pass_on(call: Call, params: Target) -> Awaitable[msgspec.Raw]:
        runtime = registry.resolve(params.runtime_id)
        if is_over(runtime):
            raise Ended(f"{name}: runtime {runtime.id} has ended", data={"runtime_id": runtime.id})
        if runtime.stage is Stage.QUEUED:
            raise Refused(
                f"{name}: runtime {runtime.id} waits for a place; try again when it has started, or cancel it",
                data={"runtime_id": runtime.id},
                reason="queued",
                retryable=True,
            )
        return send(runtime, call.client_id, name, params)

    return pass_on
