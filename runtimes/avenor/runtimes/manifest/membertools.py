"""The tools that avenor itself offers to members of a manifest: their parameters, and how agents are told of them.

Pure. Which member has which tool is decided by its manifest; what a tool does is the runner's. Every description here
is read by a model that has no other documentation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from avenor.protocol.manifest.records import Evidence, NoResult, Result, Verdict, read_verdict
from avenor.protocol.validation import Mistake, find_mistakes

_TEXT_LIMIT: Final = 16 * 1024
_SHOWN_CHARACTERS: Final = 200
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")

Contract = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=_TEXT_LIMIT,
        description="What exactly the worker has to find out or do, and how it will be judged",
    ),
]
Paths = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=4096)]],
    Meta(
        max_length=1000, description="Files and folders of the repository that the task is about, relative to its root"
    ),
]
Reason = Annotated[str, Meta(min_length=1, max_length=_TEXT_LIMIT, description="Why; it is kept in the run's log")]
TaskId = Annotated[
    str, Meta(min_length=1, max_length=256, description="The task's id, as start_worker gave it, or a member's id")
]


class _Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parameters. Strict: a misspelt one must not be passed over."""


class WorkerBudget(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker may use, at most. It is taken out of what you have left; what the worker leaves comes back."""

    model_calls: Annotated[int, Meta(ge=0, description="Calls to the model")] | UnsetType = UNSET
    tool_calls: Annotated[int, Meta(ge=0, description="Tool calls")] | UnsetType = UNSET
    tokens: Annotated[int, Meta(ge=0, description="Input and output tokens together")] | UnsetType = UNSET
    cost_usd: Annotated[float, Meta(ge=0, description="US dollars")] | UnsetType = UNSET
    seconds: Annotated[float, Meta(gt=0, description="Time on the clock, clean-up included")] | UnsetType = UNSET


class CreateTask(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Give a member of the team its sub-contract: what it is to do when the scheduler starts it. Nothing starts now."""

    member: Annotated[str, Meta(min_length=1, max_length=256, description="The member's id, as in the team's list")]
    contract: Contract
    paths: Paths = []


class StartWorker(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Start a worker for a task of its own. Its budget comes out of yours, so ask only for what it needs.

    Attributes:
        wait: Whether the call lasts until the worker has ended, and gives its result.
    """

    member: Annotated[
        str, Meta(min_length=1, max_length=256, description="Whose role, tools and model the worker has: a member's id")
    ]
    contract: Contract
    paths: Paths = []
    budget: Annotated[
        WorkerBudget | UnsetType,
        Meta(description="Left out: as much as the member's own budget, if you have that left"),
    ] = UNSET
    wait: Annotated[
        bool, Meta(description="true: wait for the worker's end and get its result; false: get its task id at once")
    ] = True


class CancelWorker(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Cancel a worker that you have started. What it has found so far is kept."""

    task_id: TaskId
    reason: Reason


class Replan(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Raise the plan epoch: results of work that was begun under the old plan are kept for audit and not used."""

    reason: Reason


class ReadReceipt(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Read what a worker has handed in, or how a check went: results, states and receipts, as they were recorded."""

    task_id: Annotated[str, Meta(max_length=256, description="A task's or member's id; left out, of all tasks")] = ""
    name: Annotated[str, Meta(max_length=256, description="A receipt's name or id; left out, all of them")] = ""


class ReadTestReceipt(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Read the raw receipts of the checks that were run on the candidate: command, exit code and output."""

    name: Annotated[str, Meta(max_length=256, description="A receipt's name or id; left out, all of them")] = ""


class ReadDiff(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Read the candidate's diff against the revision that it was made from."""

    path: Annotated[
        str, Meta(max_length=4096, description="One file, relative to the repository's root; left out, the whole diff")
    ] = ""


class SubmitResult(Result, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hand in your result. Do this once, as the last thing: without it your work counts as missing."""


class SubmitVerdict(Verdict, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hand in your verdict on the candidate. Do this once, as the last thing: without it there is no verdict."""

    evidence: Annotated[list[Evidence], Meta(max_length=100, description="Receipts and places that show it")] = (
        msgspec.field(default_factory=list[Evidence])
    )


class HandOff(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Hand the whole task over to another member, but for what you have changed. It is yours until the other one has
    accepted it; then stop."""

    to: Annotated[str, Meta(min_length=1, max_length=256, description="The member's id")]
    summary: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=_TEXT_LIMIT,
            description="What the next owner has to know: state, findings, open ends",
        ),
    ]
    reason: Reason
    pending_effects: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=4096)]],
        Meta(max_length=100, description="What was begun and whose outcome is not known yet"),
    ] = []


class AcceptHandoff(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Accept the task that was handed to you, before anything else: from then on it is yours."""

    note: Annotated[str, Meta(max_length=_TEXT_LIMIT, description="For the log")] = ""


class RejectHandoff(_Parameters, frozen=True, kw_only=True, omit_defaults=True):
    """Refuse the task that was handed to you, when you cannot own it; then stop."""

    reason: Reason


MemberTool = (
    CreateTask
    | StartWorker
    | CancelWorker
    | Replan
    | ReadReceipt
    | ReadTestReceipt
    | ReadDiff
    | SubmitResult
    | SubmitVerdict
    | HandOff
    | AcceptHandoff
    | RejectHandoff
)

# By the names that manifests and agents use.
MEMBER_TOOLS: Final[Mapping[str, type[MemberTool]]] = {
    "create_task": CreateTask,
    "start_worker": StartWorker,
    "cancel_worker": CancelWorker,
    "replan": Replan,
    "read_receipt": ReadReceipt,
    "read_test_receipt": ReadTestReceipt,
    "read_diff": ReadDiff,
    "submit_result": SubmitResult,
    "submit_verdict": SubmitVerdict,
    "hand_off": HandOff,
    "accept_handoff": AcceptHandoff,
    "reject_handoff": RejectHandoff,
}


class BadArguments(ValueError):
    """Arguments that a tool cannot take. The message is for the agent: each field, what was given, what is expected."""


def decode_arguments(name: str, arguments: bytes) -> MemberTool:
    """The parameters of a call.

    Args:
        name: One of `MEMBER_TOOLS`.
        arguments: A JSON object; empty is one without members.

    Raises:
        BadArguments: They do not fit; the message lists every mistake.
        KeyError: There is no such tool.
    """
    type_ = MEMBER_TOOLS[name]
    try:
        found = msgspec.json.decode(arguments or b"{}", type=type_)
        if isinstance(found, SubmitVerdict):
            read_verdict(arguments)
    except NoResult as error:
        raise BadArguments(f"{name}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadArguments(_explain(name, type_, arguments, error)) from error
    return found


def describe(name: str) -> dict[str, Any]:
    """The tool as MCP lists it: name, description and the JSON Schema of its parameters, which refers to nothing else.

    Raises:
        KeyError: There is no such tool.
    """
    schema = input_schema(MEMBER_TOOLS[name])
    return {"name": name, "description": schema.pop("description"), "inputSchema": schema}


def input_schema(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a struct, with everything in its place: some agents do not follow references."""
    (root,), parts = msgspec.json.schema_components([type_], ref_template="{name}")
    return cast("dict[str, Any]", _inline(root, parts))


def _inline(value: object, parts: Mapping[str, Any]) -> object:
    """The schema with its references replaced, titles left out, and descriptions cut to their first paragraph."""
    if isinstance(value, list):
        return [_inline(item, parts) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    if "$ref" in members:
        beside = {name: item for name, item in members.items() if name != "$ref"}
        return {**cast("dict[str, Any]", _inline(parts[members["$ref"]], parts)), **beside}
    inlined = {
        name: _inline(item, parts) for name, item in members.items() if not (name == "title" and isinstance(item, str))
    }
    if isinstance(inlined.get("description"), str):
        inlined["description"] = " ".join(str(inlined["description"]).partition("\n\n")[0].split())
    # Providers want the type beside an enumeration, though JSON Schema does not.
    return {"type": "string", **inlined} if "enum" in inlined else inlined


# --- what is wrong with arguments -----------------------------------------------------------------------------------


def _explain(name: str, type_: type[MemberTool], arguments: bytes, error: Exception) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return f"{name}: the arguments are no JSON object: {problem}"
    mistakes = find_mistakes(value, type_) or [Mistake("$", str(error))]
    lines = [f"{name} was not called, since its arguments do not fit:"]
    lines += [f"- {_explain_one(mistake, value, type_)}" for mistake in mistakes]
    return "\n".join([*lines, "Mend them and call it again."])


def _explain_one(mistake: Mistake, value: object, type_: type[MemberTool]) -> str:
    steps = list(_steps(mistake.path))
    place = mistake.path.removeprefix("$").removeprefix(".") or "the arguments"
    text = f"{place}: {mistake.message}"
    if steps:
        text += f"; given: {_shown(value, steps)}"
    wanted = _field_description(type_, str(steps[0])) if steps else ""
    return f"{text}; expected: {wanted}" if wanted else text


def _steps(path: str) -> Iterator[str | int]:
    for member, index in _STEP.findall(path):
        yield member or int(index)


def _shown(value: Any, steps: list[str | int]) -> str:
    """What stands at a place, shortened."""
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return "nothing"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _field_description(type_: type[MemberTool], name: str) -> str:
    properties: dict[str, Any] = input_schema(type_)["properties"]
    return str(properties.get(name, {}).get("description", ""))
