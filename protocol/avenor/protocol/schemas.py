"""JSON Schemas of what goes over the wire, made from the structs that define it."""

from typing import Any, Final

import msgspec

from avenor.protocol import methods
from avenor.protocol.events import AnyEvent
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams

# Method → params and result. `list` and `wait` answer with snapshots.
METHODS: Final[dict[str, tuple[Any, Any]]] = {
    "ping": (methods.NoParams, methods.Pong),
    "status": (methods.Target, Snapshot),
    "list": (methods.NoParams, list[Snapshot]),
    "result": (methods.Target, methods.RunResult),
    "history": (methods.HistoryParams, methods.History),
    "subscribe": (methods.SubscribeParams, methods.Subscribed),
    "unsubscribe": (methods.UnsubscribeParams, methods.Ok),
    "wait": (methods.WaitParams, Snapshot),
    "spawn": (SpawnParams, methods.Spawned),
    "prompt": (methods.PromptParams, methods.PromptAccepted),
    "interrupt_and_prompt": (methods.InterruptParams, methods.Accepted),
    "answer_permission": (methods.AnswerParams, methods.Accepted),
    "cancel": (methods.OwnerTarget, methods.Cancelled),
    "claim": (methods.OwnerTarget, methods.Owner),
    "release": (methods.Target, methods.Owner),
    "prune": (methods.PruneParams, methods.Pruned),
    "shutdown": (methods.ShutdownParams, methods.ShuttingDown),
}


def control_schema() -> dict[str, Any]:
    """One schema for the whole protocol: under `methods` the params and result of each, then events and notices."""
    types = [kind for pair in METHODS.values() for kind in pair]
    roots, definitions = msgspec.json.schema_components(
        [*types, AnyEvent, methods.Notice], ref_template="#/$defs/{name}"
    )
    pairs = [{"params": params, "result": result} for params, result in zip(roots[:-2:2], roots[1:-2:2], strict=True)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "avenor control protocol",
        "methods": dict(zip(METHODS, pairs, strict=True)),
        "event": roots[-2],
        "notice": roots[-1],
        "$defs": definitions,
    }
