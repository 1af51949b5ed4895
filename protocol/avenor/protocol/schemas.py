"""JSON Schemas of what goes over the wire and of what people write, made from the structs that define it."""

from typing import Any, Final

import msgspec

from avenor.protocol import methods
from avenor.protocol.configs import LoopConfig, TeamConfig
from avenor.protocol.diagnosis import Diagnosis
from avenor.protocol.events import AnyEvent
from avenor.protocol.manifest.model import TERMINAL_STATES, Manifest
from avenor.protocol.manifest.roster import Roster
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams

# Method → params and result. `list` and `wait` answer with snapshots.
METHODS: Final[dict[str, tuple[Any, Any]]] = {
    "ping": (methods.NoParams, methods.Pong),
    "status": (methods.Target, Snapshot),
    "list": (methods.ListParams, list[Snapshot]),
    "spec": (methods.Target, SpawnParams),
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
    "log_level": (methods.LogLevelParams, methods.LogLevelSet),
    "shutdown": (methods.ShutdownParams, methods.ShuttingDown),
}

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SOURCES: Final = ("prompt", "prompt_file", "loop_file", "team_file")


def control_schema() -> dict[str, Any]:
    """One schema for the whole protocol: under `methods` the params and result of each, then events and notices."""
    types = [kind for pair in METHODS.values() for kind in pair]
    roots, definitions = msgspec.json.schema_components(
        [*types, AnyEvent, methods.Notice], ref_template="#/$defs/{name}"
    )
    pairs = [{"params": params, "result": result} for params, result in zip(roots[:-2:2], roots[1:-2:2], strict=True)]
    return {
        "$schema": _DIALECT,
        "title": "avenor control protocol",
        "methods": dict(zip(METHODS, pairs, strict=True)),
        "event": roots[-2],
        "notice": roots[-1],
        "$defs": definitions,
    }


def loop_schema() -> dict[str, Any]:
    """The schema of a loop config, for editors: types, and the rules that concern one phase or list alone."""
    schema = _config_schema(LoopConfig, "loop")
    schema["$defs"]["LoopConfig"]["properties"]["max_iterations"]["minimum"] = 1
    return schema


def team_schema() -> dict[str, Any]:
    """The schema of a team config; as `loop_schema`."""
    return _config_schema(TeamConfig, "team")


def manifest_schema() -> dict[str, Any]:
    """The schema of a manifest, for editors: types, and the rules that concern one part alone."""
    schema = msgspec.json.schema(Manifest)
    states = schema["$defs"]["RunPart"]["properties"]["terminal_states"]
    states |= {"minItems": len(TERMINAL_STATES), "uniqueItems": True}
    schema["$defs"]["Evaluation"]["properties"]["otherwise"]["uniqueItems"] = True
    for name in ("tools", "context_sources", "allowed_writes", "depends_on", "callable_by"):
        schema["$defs"]["Member"]["properties"][name]["uniqueItems"] = True
    return {"$schema": _DIALECT, "title": "A manifest for avenor", **schema}


def roster_schema() -> dict[str, Any]:
    """The schema of a roster; as `manifest_schema`."""
    schema = msgspec.json.schema(Roster)
    source = schema["$defs"]["ContextSource"]
    source["oneOf"] = [_required(name, source["properties"][name]) for name in source["properties"]]
    schema["$defs"]["ToolGrant"]["allOf"] = [
        {
            "if": {"properties": {"kinds": {"contains": {"const": kind}}}},
            "then": {"required": [field], "properties": {field: {"minItems": 1}}},
            "else": {"properties": {field: {"maxItems": 0}}},
        }
        for kind, field in (("execute", "commands"), ("other", "names"))
    ]
    return {"$schema": _DIALECT, "title": "A roster for avenor", **schema}


def _required(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """That a member is there and no null, which is as good as an absent one."""
    kind = next(each["type"] for each in schema["anyOf"] if each["type"] != "null")
    return {"required": [name], "properties": {name: {"type": kind}}}


def doctor_schema() -> dict[str, Any]:
    """The schema of what `avenor doctor --json` prints; every member is always there."""
    schema = msgspec.json.schema(Diagnosis)
    for definition in schema["$defs"].values():
        definition["required"] = list(definition["properties"])
    return {"$schema": _DIALECT, "title": "What avenor doctor has found", **schema}


def _config_schema(config: type[LoopConfig] | type[TeamConfig], main: str) -> dict[str, Any]:
    schema = msgspec.json.schema(config)
    whole, phase = schema["$defs"][config.__name__], schema["$defs"]["Phase"]
    whole["anyOf"] = [{"required": [name], "properties": {name: {"minItems": 1}}} for name in ("pre", main)]
    # A null is as good as an absent member, hence the type.
    phase["oneOf"] = [{"required": [name], "properties": {name: {"type": "string"}}} for name in _SOURCES]
    for name in ("name", "prompt"):
        phase["properties"][name]["pattern"] = r"\S"
    return {"$schema": _DIALECT, "title": f"A {main} for avenor", **schema}
