"""What we read of opencode's HTTP interface. Tolerant: unknown members are ignored, most may be missing.

Source: the server's own description (`GET /doc`) and the events of version 1.18. Members keep opencode's spelling.
"""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.runtimes.backends.base import LARGEST_COUNT


def whole(value: float) -> int:
    """A count of tokens: the server's are any numbers, and the sum of two may be larger than any."""
    return int(max(0.0, min(value, LARGEST_COUNT)))


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the server's structs."""


class Health(Foreign, frozen=True, kw_only=True):
    version: str = ""


class ModelRef(Foreign, frozen=True, kw_only=True):
    """A model, as messages (`modelID`) and sessions (`id`) name it."""

    providerID: str = ""
    modelID: str = ""
    id: str = ""
    variant: str | None = None

    @property
    def name(self) -> str:
        """As `--model` takes it."""
        return f"{self.providerID}/{self.modelID or self.id}"


class SessionInfo(Foreign, frozen=True, kw_only=True):
    id: str
    title: str = ""
    parentID: str | None = None
    agent: str | None = None
    model: ModelRef | None = None


class AgentInfo(Foreign, frozen=True, kw_only=True):
    """An agent of the configuration; subagents and hidden ones cannot be prompted."""

    name: str
    mode: str = ""
    hidden: bool = False
    model: ModelRef | None = None


class ModelLimit(Foreign, frozen=True, kw_only=True):
    context: float = 0


class ModelInfo(Foreign, frozen=True, kw_only=True):
    id: str
    name: str = ""
    limit: ModelLimit = ModelLimit()
    variants: dict[str, Raw] = {}


class ProviderInfo(Foreign, frozen=True, kw_only=True):
    id: str
    models: dict[str, ModelInfo] = {}


class Providers(Foreign, frozen=True, kw_only=True):
    providers: list[ProviderInfo] = []


class Config(Foreign, frozen=True, kw_only=True):
    model: str | None = None
    default_agent: str | None = None


class Cache(Foreign, frozen=True, kw_only=True):
    read: float = 0
    write: float = 0


class Tokens(Foreign, frozen=True, kw_only=True):
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: Cache = Cache()


class Problem(Foreign, frozen=True, kw_only=True):
    """An error of a turn; `data` has a message and, of a model's service, status and headers."""

    name: str = ""
    data: Raw | UnsetType = UNSET


class MessageTime(Foreign, frozen=True, kw_only=True):
    created: float = 0
    completed: float | None = None


class MessageInfo(Foreign, frozen=True, kw_only=True):
    """One message: a user's prompt, or one step of the agent's answer."""

    id: str
    role: str
    sessionID: str = ""
    time: MessageTime = MessageTime()
    agent: str | None = None
    providerID: str = ""
    modelID: str = ""
    cost: float = 0
    tokens: Tokens = Tokens()
    finish: str | None = None
    error: Problem | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is added to it."""
        return self.time.completed is not None


class PartTime(Foreign, frozen=True, kw_only=True):
    start: float = 0
    end: float | None = None


class ToolState(Foreign, frozen=True, kw_only=True):
    status: str = "pending"
    input: Raw | UnsetType = UNSET
    title: str | None = None
    output: str | None = None
    error: str | None = None
    metadata: Raw | UnsetType = UNSET


class Part(Foreign, frozen=True, kw_only=True):
    """A piece of a message; what it has depends on its type."""

    id: str
    messageID: str
    type: str
    text: str = ""
    time: PartTime | None = None
    tool: str = ""
    callID: str = ""
    state: ToolState | None = None


class Message(Foreign, frozen=True, kw_only=True):
    """A message of the session's history, with its parts verbatim."""

    info: MessageInfo
    parts: list[Raw] = []


class Status(Foreign, frozen=True, kw_only=True):
    """`idle`, `busy` or `retry`; the last with the model's error and when it is tried again."""

    type: str
    attempt: int = 0
    message: str = ""


class ToolRef(Foreign, frozen=True, kw_only=True):
    callID: str = ""


class Permission(Foreign, frozen=True, kw_only=True):
    """A question whether a tool may do something."""

    id: str
    sessionID: str
    permission: str = ""
    patterns: list[str] = []
    metadata: Raw | UnsetType = UNSET
    tool: ToolRef | None = None


class Choice(Foreign, frozen=True, kw_only=True):
    label: str
    description: str = ""


class Inquiry(Foreign, frozen=True, kw_only=True):
    """One of the questions of a `Question`."""

    question: str = ""
    header: str = ""
    options: list[Choice] = []


class Question(Foreign, frozen=True, kw_only=True):
    """What the agent's question tool asks the user."""

    id: str
    sessionID: str
    questions: list[Inquiry] = []
    tool: ToolRef | None = None


class ServerEvent(Foreign, frozen=True, kw_only=True):
    type: str
    properties: Raw


class Properties(Foreign, frozen=True, kw_only=True):
    """Of any event: what is looked at depends on its type."""

    sessionID: str = ""
    messageID: str = ""
    partID: str = ""
    field: str = ""
    delta: str = ""
    requestID: str = ""
    info: Raw | UnsetType = UNSET
    part: Raw | UnsetType = UNSET
    status: Status | None = None
    error: Problem | None = None
    todos: Raw | UnsetType = UNSET


class McpStatus(Foreign, frozen=True, kw_only=True):
    status: str = ""
    error: str = ""
