"""What we read of the Agent Client Protocol (version 1). Tolerant: unknown members are ignored, optional ones may be
missing or null.

Source: https://agentclientprotocol.com/protocol, and the messages of the agents in the recorded transcripts.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import PermissionOption
from avenor.runtimes.backends.base import Count

PROTOCOL_VERSION: Final = 1
AUTH_REQUIRED: Final = -32000  # ACP's own code; other agents use it for their own purposes, so look at the text too.
RESOURCE_NOT_FOUND: Final = -32002

McpKind = Literal["stdio", "http", "sse"]


class Foreign(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the agents' structs."""


class Implementation(Foreign, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    version: str = ""
    title: str | None = None


class AuthMethod(Foreign, frozen=True, kw_only=True, rename="camel"):
    id: str = ""
    name: str = ""


class McpCapabilities(Foreign, frozen=True, kw_only=True, rename="camel"):
    http: bool | None = None
    sse: bool | None = None


class AgentCapabilities(Foreign, frozen=True, kw_only=True, rename="camel"):
    load_session: bool = False
    mcp_capabilities: McpCapabilities | None = None
    session_capabilities: dict[str, Any] | None = None

    def can(self, name: str) -> bool:
        """Whether `session/<name>` is offered; present and not null means yes."""
        return (self.session_capabilities or {}).get(name) not in (None, False)

    def takes_mcp(self, kind: McpKind) -> bool:
        """Whether it connects to MCP servers of that kind; every agent does to programs."""
        can = self.mcp_capabilities or McpCapabilities()
        return kind == "stdio" or bool(can.http if kind == "http" else can.sse)


class InitializeResult(Foreign, frozen=True, kw_only=True, rename="camel"):
    protocol_version: int
    agent_capabilities: AgentCapabilities | None = None
    agent_info: Implementation | None = None
    auth_methods: list[AuthMethod] | None = None


class Mode(Foreign, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str = ""


class ModeState(Foreign, frozen=True, kw_only=True, rename="camel"):
    current_mode_id: str
    available_modes: list[Mode]


class Model(Foreign, frozen=True, kw_only=True, rename="camel"):
    model_id: str
    name: str = ""


class ModelState(Foreign, frozen=True, kw_only=True, rename="camel"):
    current_model_id: str
    available_models: list[Model]


class ConfigValue(Foreign, frozen=True, kw_only=True, rename="camel"):
    """One value of a select, or a group of them."""

    value: str | None = None
    name: str = ""
    options: "list[ConfigValue] | None" = None


class ConfigOption(Foreign, frozen=True, kw_only=True, rename="camel"):
    """A setting of a session; only those of type `select` have options."""

    id: str
    category: str | None = None
    type: str | None = None
    current_value: Any = None
    options: list[ConfigValue] | None = None


class SessionResult(Foreign, frozen=True, kw_only=True, rename="camel"):
    """What session/new, session/load and session/resume answer."""

    session_id: str | None = None
    modes: ModeState | None = None
    models: ModelState | None = None
    config_options: list[ConfigOption] | None = None


class ConfigResult(Foreign, frozen=True, kw_only=True, rename="camel"):
    config_options: list[ConfigOption] | None = None


class SessionInfo(Foreign, frozen=True, kw_only=True, rename="camel"):
    session_id: str


class SessionList(Foreign, frozen=True, kw_only=True, rename="camel"):
    sessions: list[SessionInfo] = []
    next_cursor: str | None = None


class PromptUsage(Foreign, frozen=True, kw_only=True, rename="camel"):
    input_tokens: Count = 0
    output_tokens: Count = 0
    total_tokens: Count = 0
    cached_read_tokens: Count | None = None


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Where gemini and others tell tokens instead: `_meta.quota.token_count`. Tolerant."""

    input_tokens: Count = 0
    output_tokens: Count = 0


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    token_count: TokenCount | None = None


class PromptMeta(msgspec.Struct, frozen=True, kw_only=True):
    quota: Quota | None = None


class ChunkMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The `_meta` of a message chunk; only qwen's has this. Tolerant."""

    usage: PromptUsage | None = None


class PromptResult(Foreign, frozen=True, kw_only=True, rename="camel"):
    stop_reason: str
    usage: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


class AskedTool(Foreign, frozen=True, kw_only=True, rename="camel"):
    """The tool call of a permission request; agents leave out what they have told before."""

    tool_call_id: str = ""
    title: str | None = None
    kind: str | None = None
    name: str | None = None
    raw_input: Raw | UnsetType = UNSET


class PermissionParams(Foreign, frozen=True, kw_only=True, rename="camel"):
    tool_call: AskedTool
    options: list[PermissionOption]


class CancelRequestParams(Foreign, frozen=True, kw_only=True, rename="camel"):
    request_id: int | str
