"""The tools as data: names, params with their schemas, results, hints and descriptions. No SDK is needed here.

An agent reads these descriptions and nothing else: each says what comes back, and what to call next.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from avenor.control.mcp import views

EVENTS_AT_MOST: Final = 500

RunId = Annotated[
    str,
    Meta(
        min_length=1,
        description="The run: its run_id, runtime_id or label. Of several runs with one label the only live one is "
        "meant, else the newest.",
    ),
]
OptionalRunId = Annotated[
    str | None,
    Meta(description="The run: its run_id, runtime_id or label. Left out, the only live one is meant."),
]
ViewName = Annotated[
    views.View,
    Meta(description="lifecycle: ids, status, pending permission. full: also agent, phases, usage, output excerpt …"),
]
Text = Annotated[str, Meta(min_length=1, description="What to tell the agent.")]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all params: an unknown one is refused by name."""


class SpawnArguments(Params, frozen=True, kw_only=True):
    repo_dir: Annotated[
        str,
        Meta(min_length=1, description="The agent's working directory, best absolute; other paths are relative to it."),
    ]
    prompt: Annotated[
        str | None,
        Meta(
            description="The task. The agent sees nothing of this conversation: name files, limits and what to report. "
            "One of prompt, prompt_file, loop_file, team_file and manifest is needed."
        ),
    ] = None
    prompt_file: Annotated[str | None, Meta(description="A file that holds the task.")] = None
    loop_file: Annotated[str | None, Meta(description="A loop config (JSON): phases that repeat.")] = None
    team_file: Annotated[str | None, Meta(description="A team config (JSON): agents at the same time.")] = None
    manifest: Annotated[
        str | None,
        Meta(description="A manifest (YAML or JSON): members with budgets and rights; needs roster."),
    ] = None
    roster: Annotated[str | None, Meta(description="What the names in the manifest stand for.")] = None
    label: Annotated[str | None, Meta(description="A short name of your own; all tools take it for run_id.")] = None
    agent: Annotated[str | None, Meta(description="The agent (mode) that the backend is to use.")] = None
    model: Annotated[str | None, Meta(description="The model, as the backend calls it.")] = None
    backend: Annotated[
        str | None,
        Meta(description="Which kind of agent: opencode-acp (default), acp (any; needs agent_command), scripted."),
    ] = None
    agent_command: Annotated[str | None, Meta(description="Backend acp only: the program line of the agent.")] = None
    script: Annotated[str | None, Meta(description="Backend scripted only: the script to play (rehearsals).")] = None
    timeout: Annotated[
        str | float | None,
        Meta(description="End the run after so long: 30m, 1h30m; a number is seconds. Default none."),
    ] = None
    auto_approve: Annotated[
        bool, Meta(description="Allow what the agent asks for, once each. Otherwise you are asked: see avenor_result.")
    ] = False


class StatusArguments(Params, frozen=True, kw_only=True):
    run_id: OptionalRunId = None
    view: ViewName = "lifecycle"


class ListArguments(Params, frozen=True, kw_only=True):
    view: ViewName = "lifecycle"


class ResultArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    wait: Annotated[bool, Meta(description="Wait until the run is done or asks for a permission.")] = True
    timeout: Annotated[
        str | float | None,
        Meta(
            description="Wait at most so long: 30s, 5m; a number is seconds. Default: until it is ready, or 50s where "
            "your host shows no progress."
        ),
    ] = None


class AnswerArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    option_id: Annotated[str, Meta(min_length=1, description="One of the option_ids of the request.")]
    request_id: Annotated[str | None, Meta(description="Which request; needed only if several are pending.")] = None
    message: Annotated[str | None, Meta(description="A word to the agent with the answer.")] = None


class PromptArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    prompt: Text


class InterruptArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    prompt: Text
    keep_queue: Annotated[bool, Meta(description="Keep the prompts that wait; they come after this one.")] = False


class FollowUpArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    prompt: Text


class EventsArguments(Params, frozen=True, kw_only=True):
    run_id: RunId
    events: Annotated[
        list[str] | None,
        Meta(
            description="Only events of these names: turn.start, turn.end, agent.message_chunk, tool.call, "
            "tool.call_update, permission.request, avenor.phase.end, avenor.error, run.end …"
        ),
    ] = None
    after_seq: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="What follows this event, forwards. Left out: the most recent ones."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=EVENTS_AT_MOST, description="How many at most.")] = 50


class InspectArguments(Params, frozen=True, kw_only=True):
    run_id: RunId


class CancelArguments(Params, frozen=True, kw_only=True):
    run_id: RunId


class ShutdownArguments(Params, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["graceful", "drain", "detach", "kill"],
        Meta(description="graceful: cancel all runs; drain: wait for them; detach: leave them running; kill: at once."),
    ] = "graceful"


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool.

    Attributes:
        reads: It changes nothing.
        destroys: It ends or discards work.
        repeats: Doing it twice is the same as doing it once.
        acts: It sets an agent to work, which may then do anything that it is allowed to.
    """

    name: str
    title: str
    params: type[Params]
    result: type[msgspec.Struct]
    description: str
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    acts: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the params: an object at the root, as MCP wants it."""
        return _object_schema(self.params)

    @property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of the result."""
        return _object_schema(self.result)


def _object_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    _, definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for schema in definitions.values():
        schema.pop("title", None)
        schema.pop("description", None)  # docstrings are for those who read the code
        for member in schema["properties"].values():
            _drop_null(member)
    root = definitions.pop(kind.__name__)
    return {**root, "$defs": definitions} if definitions else root


def _drop_null(member: dict[str, Any]) -> None:
    """Tell of a param that may be left out as just that: some hosts take no unions with null."""
    if "default" not in member or member["default"] is not None:
        return
    del member["default"]
    kinds = [kind for kind in member.pop("anyOf") if kind != {"type": "null"}]
    if len(kinds) == 1:
        member.update(kinds[0])
    else:
        member["anyOf"] = kinds


INSTRUCTIONS: Final = """\
avenor runs coding agents for you, each in a process of its own that goes on whether you wait or not.
1. avenor_spawn starts one and answers at once; start several for parallel work, with a label each.
2. avenor_result waits for one. If it has pending_permission, decide with avenor_answer_permission and wait again.
3. avenor_follow_up gives a finished agent another task in the same session; avenor_prompt adds one to a busy agent, \
avenor_interrupt cuts it short first.
4. avenor_inspect shows what an agent is doing, avenor_list all runs, also those from before a restart.
5. avenor_cancel ends a run that is not needed any more."""

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="avenor_spawn",
        title="Start an agent",
        params=SpawnArguments,
        result=views.Started,
        description="Starts an agent (or a loop or team of agents) on a task and returns its ids while it works. "
        "Next: avenor_result to wait for it. If the agent cannot start, the error says why.",
        acts=True,
    ),
    Tool(
        name="avenor_status",
        title="Look at a run",
        params=StatusArguments,
        result=views.Run,
        description="One run: status is running; waiting (for a permission, then pending_permission says which, or "
        "for a free place); done; failed, timeout, killed or blocked (a person is needed), then stop_reason and "
        "reason say why. state idle means done and kept ready for avenor_follow_up. Does not wait: avenor_result does.",
        reads=True,
        repeats=True,
    ),
    Tool(
        name="avenor_list",
        title="List the runs",
        params=ListArguments,
        result=views.Runs,
        description="All runs, the newest last, also those that were started before this server was. Each as "
        "avenor_status shows it.",
        reads=True,
        repeats=True,
    ),
    Tool(
        name="avenor_result",
        title="Wait for a result",
        params=ResultArguments,
        result=views.Result,
        description="Waits until the run's turn is over and returns its final output, complete. ready false means "
        "that it goes on: with pending_permission answer it (avenor_answer_permission) and call this again; with "
        "timed_out just call this again. Giving up the call leaves the run alone.",
        reads=True,
        repeats=True,
    ),
    Tool(
        name="avenor_answer_permission",
        title="Answer a permission",
        params=AnswerArguments,
        result=views.Answered,
        description="Settles what the agent asks for with one of the options offered (kinds allow_once, "
        "allow_always, reject_once …). Rejecting does not end the run. Next: avenor_result.",
        acts=True,
    ),
    Tool(
        name="avenor_prompt",
        title="Queue a prompt",
        params=PromptArguments,
        result=views.Prompted,
        description="Gives the agent one more prompt, behind the turn that is running. In a loop or team every "
        "agent that runs gets it. For an agent that has finished use avenor_follow_up.",
        acts=True,
    ),
    Tool(
        name="avenor_interrupt",
        title="Interrupt with a prompt",
        params=InterruptArguments,
        result=views.Prompted,
        description="Cuts the running turn short and gives the agent this prompt instead, in the same session. "
        "Prompts that wait are dropped unless keep_queue. To end the run use avenor_cancel.",
        destroys=True,
        acts=True,
    ),
    Tool(
        name="avenor_follow_up",
        title="Follow up",
        params=FollowUpArguments,
        result=views.FollowedUp,
        description="Gives an agent that has finished another task in the same session, so that it remembers. One "
        "that is idle is woken; one that has ended is resumed in a new run, whose ids are returned (resumed true): "
        "use those. Refused while it works: then use avenor_prompt or avenor_interrupt. Next: avenor_result.",
        acts=True,
    ),
    Tool(
        name="avenor_events",
        title="Read the event log",
        params=EventsArguments,
        result=views.Events,
        description="Raw events of a run, oldest first: the most recent ones, or with after_seq what follows. For a "
        "readable digest use avenor_inspect.",
        reads=True,
        repeats=True,
    ),
    Tool(
        name="avenor_inspect",
        title="See what an agent does",
        params=InspectArguments,
        result=views.Inspection,
        description="What a run is at, in bounded size: for each of its sessions the prompt, the end of the agent's "
        "text, the last tool calls and the plan; and all pending permissions. Does not disturb the agent.",
        reads=True,
        repeats=True,
    ),
    Tool(
        name="avenor_cancel",
        title="Cancel a run",
        params=CancelArguments,
        result=views.Cancelled,
        description="Ends a run and everything that it started, and returns when that is proven. Work that is on "
        "the disk stays. Its session can still be followed up.",
        destroys=True,
        repeats=True,
    ),
    Tool(
        name="avenor_shutdown",
        title="Stop the supervisor",
        params=ShutdownArguments,
        result=views.ShuttingDown,
        description="Stops the supervisor, by default with all its runs, also those of others. Not needed at the "
        "end of your work: one that nobody uses stops by itself.",
        destroys=True,
        repeats=True,
    ),
)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}
