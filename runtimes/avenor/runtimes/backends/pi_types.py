"""What pi says in its RPC mode: one JSON object a line, told apart by `type`. Tolerant: unknown members are ignored.

Source: `docs/rpc-commands.md`, `docs/json.md` and `docs/rpc-extension-ui.md` of pi 1.6; 0.73 says the same with fewer
members. A record of another type, or with members of other types, is kept as it came (`Unread`).
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.runtimes.backends.base import Count


class PiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """A record of pi."""


class Response(PiStruct, frozen=True, kw_only=True, tag="response"):
    """The answer to a command; pi 0.73 leaves the id out where it does not know the command."""

    command: str
    success: bool
    id: str | None = None
    error: str = ""
    data: Raw | UnsetType = UNSET


class AgentStart(PiStruct, frozen=True, kw_only=True, tag="agent_start"):
    """One attempt at a prompt begins."""


class AgentEnd(PiStruct, frozen=True, kw_only=True, tag="agent_end"):
    """One attempt has ended; `will_retry` is told since 1.x."""

    will_retry: bool = False


class AgentSettled(PiStruct, frozen=True, kw_only=True, tag="agent_settled"):
    """Nothing more comes of the prompt; told since 1.x."""


class TurnStart(PiStruct, frozen=True, kw_only=True, tag="turn_start"):
    """One answer of the model begins."""


class TurnEnd(PiStruct, frozen=True, kw_only=True, tag="turn_end"):
    """One answer of the model, and its tools, have ended."""


class RetryStart(PiStruct, frozen=True, kw_only=True, tag="auto_retry_start"):
    """pi waits before it tries a failed answer again."""


class RetryEnd(PiStruct, frozen=True, kw_only=True, tag="auto_retry_end"):
    """The retries are over."""

    success: bool = False


class CompactionEnd(PiStruct, frozen=True, kw_only=True, tag="compaction_end"):
    """The conversation has been summed up, or not; `will_retry` if the prompt is tried again then."""

    will_retry: bool = False


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """In US dollars, by the prices that pi knows."""

    total: float | None = None


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens of one answer."""

    input: Count = 0
    output: Count = 0
    cache_read: Count = 0
    total_tokens: Count = 0
    cost: Cost | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message of the conversation, as far as it is read here."""

    role: str
    stop_reason: str = ""
    error_message: str = ""
    usage: Raw | UnsetType = UNSET


class MessageStart(PiStruct, frozen=True, kw_only=True, tag="message_start"):
    message: Message


class MessageEnd(PiStruct, frozen=True, kw_only=True, tag="message_end"):
    message: Message


class Delta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a message that has just come: of which block, and what is new in it."""

    type: str
    content_index: int = 0
    delta: str = ""


class MessageUpdate(PiStruct, frozen=True, kw_only=True, tag="message_update"):
    assistant_message_event: Delta


class ToolStart(PiStruct, frozen=True, kw_only=True, tag="tool_execution_start"):
    tool_call_id: str
    tool_name: str
    args: Raw | UnsetType = UNSET


class ToolUpdate(PiStruct, frozen=True, kw_only=True, tag="tool_execution_update"):
    tool_call_id: str
    partial_result: Raw | UnsetType = UNSET


class ToolEnd(PiStruct, frozen=True, kw_only=True, tag="tool_execution_end"):
    tool_call_id: str
    result: Raw | UnsetType = UNSET
    is_error: bool = False


class UiRequest(PiStruct, frozen=True, kw_only=True, tag="extension_ui_request"):
    """An extension shows something, or asks; `timeout` is in milliseconds."""

    id: str
    method: str
    title: str = ""
    message: str = ""
    options: Sequence[str] = ()
    timeout: float | None = None


Record = (
    Response
    | AgentStart
    | AgentEnd
    | AgentSettled
    | TurnStart
    | TurnEnd
    | RetryStart
    | RetryEnd
    | CompactionEnd
    | MessageStart
    | MessageEnd
    | MessageUpdate
    | ToolStart
    | ToolUpdate
    | ToolEnd
    | UiRequest
)


class Unread(msgspec.Struct, frozen=True):
    """An object that is none of the records above."""


class PiModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model; `thinking_level_map` has null for levels that it does not have."""

    id: str
    provider: str
    reasoning: bool = False
    context_window: int = 0
    thinking_level_map: dict[str, str | None] | None = None

    @property
    def name(self) -> str:
        """As `--model` takes it."""
        return f"{self.provider}/{self.id}"


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of `get_state`."""

    session_id: str
    model: PiModel | None = None
    thinking_level: str | None = None
    is_streaming: bool = False
    is_compacting: bool = False


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """The data of `get_available_models`."""

    models: list[PiModel]


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """The data of `get_available_thinking_levels`."""

    levels: list[str]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A slash command."""

    name: str
    description: str = ""
    source: str = ""


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """The data of `get_commands`."""

    commands: list[Command]


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the answer to `prompt`, since 1.x: `started`, or `handled` without the model."""

    disposition: str = ""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What our extension tells in its command's description."""

    version: str
    asks: bool


class AskedTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tool call that our extension asks about."""

    tool_call_id: str
    tool_name: str
    input: Raw


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The title of our extension's question."""

    avenor: AskedTool


_record = msgspec.json.Decoder(Record)
_any_object = msgspec.json.Decoder(dict[str, Raw])


def read_record(line: bytes) -> Record | Unread | None:
    """The record of a line; `Unread` for any other object, None for what is no object at all."""
    try:
        return _record.decode(line)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        _any_object.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Unread()
