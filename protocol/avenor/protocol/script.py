"""The script of the scripted agent: what it answers to which prompt.

Ours, hence strict: an unknown member, a bad regular expression or a bad duration is refused with its JSON path.
`docs/reference/script.md` describes it for users; playing it is `avenor.runtimes.scripted`'s work.
"""

import re
import signal
from base64 import b64decode
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from avenor.protocol.durations import parse_duration
from avenor.protocol.validation import decode_document

Count = Annotated[int, Meta(ge=1)]
Tokens = Annotated[int, Meta(ge=0)]
Duration = float | str
Text = Annotated[str, Meta(min_length=1)]

# ACP, schema 1.19: the kinds of tools, and the kinds of answers to a permission request.
ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
OptionKind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all parts of a script."""


# --- steps ----------------------------------------------------------------------------------------------------------


class _Step(_Part, frozen=True, kw_only=True, tag_field="do"):
    """Base of all steps."""


class _Spoken(_Step, frozen=True, kw_only=True):
    """Base of the steps that stream text.

    Attributes:
        chunks: Into how many updates the text is cut, as evenly as it goes.
        every: The pause before each chunk but the first.
        message_id: The message the chunks belong to; null sends none, absent makes a new one for the step.
    """

    chunks: Count = 1
    every: Duration = 0.0
    message_id: str | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        parse_duration(self.every)


class Say(_Spoken, frozen=True, kw_only=True, tag="say"):
    """Streams a message."""

    text: str


class Think(_Spoken, frozen=True, kw_only=True, tag="think"):
    """Streams a thought."""

    text: str


class Echo(_Spoken, frozen=True, kw_only=True, tag="echo"):
    """Says the prompt."""


class Recall(_Spoken, frozen=True, kw_only=True, tag="recall"):
    """Says what the earlier prompts of this session were, which proves that the session was kept."""


class PermissionOption(_Part, frozen=True, kw_only=True):
    """One answer that a permission request offers."""

    id: Text
    kind: OptionKind
    name: str


DEFAULT_OPTIONS: Final = (
    PermissionOption(id="once", kind="allow_once", name="Allow once"),
    PermissionOption(id="always", kind="allow_always", name="Always allow"),
    PermissionOption(id="reject", kind="reject_once", name="Reject"),
)


class Ask(_Part, frozen=True, kw_only=True):
    """A permission request.

    Attributes:
        options: The answers on offer.
        on_allow: Steps after the tool, when it was allowed.
        on_reject: Steps after a refusal. End them with `stop` for an agent that gives its turn up; without, it goes on.
        on_option: Steps by option id, in place of the two above.
    """

    options: Annotated[list[PermissionOption], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: list(DEFAULT_OPTIONS)
    )
    on_allow: list["Step"] = []
    on_reject: list["Step"] = []
    on_option: dict[str, list["Step"]] = {}

    def __post_init__(self) -> None:
        ids = [option.id for option in self.options]
        if len(set(ids)) < len(ids):
            raise ValueError(f"the ids of the options are not distinct: {', '.join(ids)}")
        if unknown := sorted(set(self.on_option) - set(ids)):
            raise ValueError(f"on_option names {', '.join(unknown)}, which is not among the options")


class _ToolStep(_Step, frozen=True, kw_only=True):
    """Base of the steps that show as a tool call.

    Attributes:
        ask: Whether permission is asked first; true offers allow once, always allow and reject.
        id: The tool call's id; absent makes a new one.
    """

    ask: bool | Ask = False
    id: str | None = None


class Tool(_ToolStep, frozen=True, kw_only=True, tag="tool"):
    """Calls a tool that only pretends.

    Attributes:
        input: What is sent as `rawInput`.
        locations: Files it names; relative ones are in the session's directory.
        steps: What happens while it is in progress.
        output: Its result, as text.
    """

    title: Text
    kind: ToolKind = "other"
    input: dict[str, Any] = {}
    locations: list[str] = []
    steps: list["Step"] = []
    output: str = ""
    status: Literal["completed", "failed"] = "completed"


class Write(_ToolStep, frozen=True, kw_only=True, tag="write"):
    """Writes a file, with the folders it needs; a relative path is in the session's directory."""

    path: Text
    text: str
    append: bool = False


class Run(_ToolStep, frozen=True, kw_only=True, tag="run"):
    """Runs a shell command in a session of its own, as real agents do.

    Attributes:
        background: Leave it running and go on. Nothing ends it, not even the end of the agent.
    """

    command: Text
    background: bool = False


class OnReply(_Part, frozen=True, kw_only=True):
    """What follows some replies.

    Attributes:
        match: A Python regular expression, searched for in the reply; absent fits any.
    """

    steps: list["Step"]
    match: str | None = None

    def __post_init__(self) -> None:
        _check_pattern(self.match)


class Mcp(_ToolStep, frozen=True, kw_only=True, tag="mcp"):
    """Calls a tool of an MCP server that the session was handed, over http.

    Attributes:
        tool: Its name.
        server: The server's name; absent is the first one that is reached over http.
        on_reply: The first that fits the reply is played after the tool.
    """

    tool: Text
    server: str | None = None
    arguments: dict[str, Any] = {}
    on_reply: list[OnReply] = []


class Model(_Step, frozen=True, kw_only=True, tag="model"):
    """Asks a real model once, in OpenAI's dialect. What it answers is `{reply}` from then on, and not said by itself.

    Attributes:
        url: The base address, over http; the customary variables are the defaults of this and of the key.
        on_reply: The first that fits the reply is played. An error that fits none ends the turn with an error.
    """

    prompt: str = "{prompt}"
    url: Text = "{env:OPENAI_BASE_URL}"
    key: str = "{env:OPENAI_API_KEY}"
    model: Text = "scripted"
    on_reply: list[OnReply] = []


class Wait(_Step, frozen=True, kw_only=True, tag="wait"):
    """Waits for a time."""

    seconds: Duration

    def __post_init__(self) -> None:
        parse_duration(self.seconds)


class WaitFor(_Step, frozen=True, kw_only=True, tag="wait_for"):
    """Waits until a file exists, without a limit unless `timeout` gives one, after which the turn goes on."""

    path: Text
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        parse_duration(self.timeout or 0)


class Barrier(_Step, frozen=True, kw_only=True, tag="barrier"):
    """Waits until so many turns, in any processes, have come to the barrier of this directory."""

    directory: Text
    count: Count


class PlanEntry(_Part, frozen=True, kw_only=True):
    """One task of a plan."""

    content: str
    priority: Literal["high", "medium", "low"] = "medium"
    status: Literal["pending", "in_progress", "completed"] = "pending"


class Plan(_Step, frozen=True, kw_only=True, tag="plan"):
    """Sends a plan; a plain text is a pending task."""

    entries: list[str | PlanEntry]


class Usage(_Step, frozen=True, kw_only=True, tag="usage"):
    """Adds to the tokens of the turn, which its answer carries, and sends a usage update.

    Attributes:
        cost: US dollars; added to what the session has cost.
        context_size: Tokens that the model's context holds.
    """

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cached_read_tokens: Tokens | None = None
    cost: Annotated[float, Meta(ge=0)] | None = None
    context_size: Tokens = 200_000


class Stop(_Step, frozen=True, kw_only=True, tag="stop"):
    """Ends the turn. Any word will do, unknown ones too."""

    reason: str = "end_turn"


class Fail(_Step, frozen=True, kw_only=True, tag="fail"):
    """Ends the turn with a JSON-RPC error.

    Attributes:
        retry_after: Seconds; added to `data` as `retryAfter`.
    """

    message: str = "Internal error"
    code: int = -32603
    data: dict[str, Any] | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None


class Hang(_Step, frozen=True, kw_only=True, tag="hang"):
    """Never goes on; only a cancel ends the turn."""


class IgnoreCancel(_Step, frozen=True, kw_only=True, tag="ignore_cancel"):
    """From here on the turn ignores cancels."""


class Die(_Step, frozen=True, kw_only=True, tag="die"):
    """Ends the process at once, its tools left alone.

    Attributes:
        signal: A name such as `SIGKILL`, sent to itself in place of the exit.
        mid_line: Write half of a message first.
    """

    exit_code: Annotated[int, Meta(ge=0, le=255)] = 1
    signal: str | None = None
    mid_line: bool = False

    def __post_init__(self) -> None:
        if self.signal is not None and self.signal not in signal.Signals.__members__:
            raise ValueError(f"signal {self.signal!r} is none that this system has; write it like SIGKILL")


class Flood(_Step, frozen=True, kw_only=True, tag="flood"):
    """Streams `count` message chunks (or thoughts) of `size` characters each, as fast as they are read."""

    count: Count
    size: Count = 100
    kind: Literal["message", "thought"] = "message"


class Noise(_Step, frozen=True, kw_only=True, tag="noise"):
    """Writes what is no protocol to stdout, exactly as given: no newline is added. Bytes go by base64."""

    text: str | None = None
    base64: str | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give text or base64")
        if self.base64 is not None:
            b64decode(self.base64, validate=True)


class Stderr(_Step, frozen=True, kw_only=True, tag="stderr"):
    """Writes to stderr, exactly as given."""

    text: str


class Update(_Step, frozen=True, kw_only=True, tag="update"):
    """Sends a `session/update` with this `update`, of any kind."""

    update: dict[str, Any]


class Notify(_Step, frozen=True, kw_only=True, tag="notify"):
    """Sends any notification."""

    method: Text
    params: dict[str, Any] = {}


class Request(_Step, frozen=True, kw_only=True, tag="request"):
    """Sends any request to the client and says what was answered."""

    method: Text
    params: dict[str, Any] = {}


class Set(_Step, frozen=True, kw_only=True, tag="set"):
    """Changes the session's model, mode or thought level as agents do by themselves, and tells the client."""

    option: Literal["model", "mode", "thought_level"]
    value: Text


Step = (
    Say
    | Think
    | Echo
    | Recall
    | Tool
    | Write
    | Run
    | Mcp
    | Model
    | Wait
    | WaitFor
    | Barrier
    | Plan
    | Usage
    | Stop
    | Fail
    | Hang
    | IgnoreCancel
    | Die
    | Flood
    | Noise
    | Stderr
    | Update
    | Notify
    | Request
    | Set
)


# --- the script -----------------------------------------------------------------------------------------------------


class Rule(_Part, frozen=True, kw_only=True):
    """What to do for which prompts. The first rule that fits is played.

    Attributes:
        match: A Python regular expression, searched for in the prompt; absent fits any.
        times: How often the rule fits; absent is always.
        per: What `times` counts in: all agents of one avenor run together, or one session.
    """

    steps: list[Step]
    match: str | None = None
    times: Count | None = None
    per: Literal["run", "session"] = "run"

    def __post_init__(self) -> None:
        _check_pattern(self.match)


class Choice(_Part, frozen=True, kw_only=True):
    """A model, mode or thought level on offer."""

    id: Text
    name: str | None = None
    description: str | None = None


class Capabilities(_Part, frozen=True, kw_only=True):
    """What the agent offers; what is switched off is neither announced nor done.

    Attributes:
        config_options: Model, mode and thought level as config options.
        modes: The modes in the older form, with `session/set_mode`.
        set_model: `session/set_model`.
        usage: Tokens in the answer to a prompt.
    """

    load: bool = True
    resume: bool = True
    list: bool = True
    close: bool = True
    config_options: bool = True
    modes: bool = True
    set_model: bool = True
    usage: bool = True


class Handshake(_Part, frozen=True, kw_only=True):
    """What goes wrong when a session is being opened.

    Attributes:
        at: Before stdin is read, at `initialize`, or at `session/new`, `session/load` and `session/resume`.
        noise: Written to stdout first.
        stderr: Written to stderr first.
        delay: Waited for next.
        fault: What then happens in place of the answer.
        protocol_version: What `initialize` answers.
        times: How many starts of one avenor run have the fault; absent is all.
    """

    at: Literal["start", "initialize", "session"] = "initialize"
    noise: str = ""
    stderr: str = ""
    delay: Duration = 0.0
    fault: Literal["none", "hang", "die", "error"] = "none"
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 1
    error: Fail = Fail()
    protocol_version: Annotated[int, Meta(ge=0, le=65535)] = 1
    times: Count | None = None

    def __post_init__(self) -> None:
        parse_duration(self.delay)
        if self.at == "start" and self.fault == "error":
            raise ValueError("at the start there is no request to answer with an error")


class Script(_Part, frozen=True, kw_only=True):
    """All that the scripted agent does.

    Attributes:
        rules: Tried in order; a prompt that fits none is echoed.
        models: The first is the one in use at the start; likewise the next two. An empty list offers none.
        ignores: What the agent does not react to, in order to rehearse a forced end.
    """

    rules: list[Rule] = []
    models: list[str | Choice] = msgspec.field(default_factory=lambda: ["small", "large"])
    modes: list[str | Choice] = msgspec.field(default_factory=lambda: ["build", "plan"])
    thought_levels: list[str | Choice] = msgspec.field(default_factory=lambda: ["low", "medium", "high"])
    capabilities: Capabilities = Capabilities()
    handshake: Handshake | None = None
    ignores: list[Literal["stdin_close", "sigterm", "cancel"]] = []
    schema: str | None = msgspec.field(name="$schema", default=None)

    def __post_init__(self) -> None:
        for name in ("models", "modes", "thought_levels"):
            ids = [choice.id for choice in choices(getattr(self, name))]
            if len(set(ids)) < len(ids):
                raise ValueError(f"the ids in {name} are not distinct: {', '.join(ids)}")


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"match is no regular expression: {error}") from error


def choices(listed: list[str | Choice]) -> list[Choice]:
    """The choices, a plain text being an id."""
    return [Choice(id=item) if isinstance(item, str) else item for item in listed]


def load_script(data: bytes, *, file: str) -> Script:
    """The script in the bytes of a file.

    Raises:
        ConfigError: It cannot be played; `data.errors` lists every mistake with its JSON path.
    """
    return decode_document(data, Script, file=file)


def script_schema() -> dict[str, Any]:
    """The JSON Schema of a script, made from the structs."""
    schema = msgspec.json.schema(Script)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A script for avenor", **schema}
