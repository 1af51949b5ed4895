"""What codex app-server says, as far as we read it. All of it tolerant: unknown members are ignored."""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.peer import RequestId
from avenor.runtimes.backends.base import Count


class Tolerant(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all of them."""


class InitializeResult(Tolerant, frozen=True, kw_only=True):
    """`user_agent` begins with our name and codex's version, `avenor/0.171.0 (…)`."""

    user_agent: str = ""


class Effort(Tolerant, frozen=True, kw_only=True):
    reasoning_effort: str


class Model(Tolerant, frozen=True, kw_only=True):
    model: str
    supported_reasoning_efforts: list[Effort] = []


class ModelPage(Tolerant, frozen=True, kw_only=True):
    data: list[Model]
    next_cursor: str | None = None


class Sandbox(Tolerant, frozen=True, kw_only=True):
    type: str = ""


class Thread(Tolerant, frozen=True, kw_only=True):
    id: str


class ThreadResult(Tolerant, frozen=True, kw_only=True):
    """Answer to `thread/start` and `thread/resume`. A policy that is no word (`granular`) stays raw."""

    thread: Thread
    model: str | None = None
    approval_policy: Raw = Raw(b"null")
    sandbox: Sandbox = Sandbox()
    reasoning_effort: str | None = None


class ThreadSettings(Tolerant, frozen=True, kw_only=True):
    """Of `thread/settings/updated`."""

    model: str | None = None
    approval_policy: Raw = Raw(b"null")
    sandbox_policy: Sandbox = Sandbox()


class SettingsParams(Tolerant, frozen=True, kw_only=True):
    thread_settings: ThreadSettings


class ServerStatusParams(Tolerant, frozen=True, kw_only=True):
    """Of `mcpServer/startupStatus/updated`."""

    name: str
    status: str
    error: str | None = None


class ReroutedParams(Tolerant, frozen=True, kw_only=True):
    to_model: str


class TurnProblem(Tolerant, frozen=True, kw_only=True):
    """Why a turn failed; `codex_error_info` is a word, or an object with one member that is named by such a word."""

    message: str = ""
    codex_error_info: Raw | UnsetType = UNSET
    additional_details: str | None = None


class Turn(Tolerant, frozen=True, kw_only=True):
    id: str
    status: Literal["completed", "interrupted", "failed", "inProgress"] = "inProgress"
    error: TurnProblem | None = None


class TurnParams(Tolerant, frozen=True, kw_only=True):
    """Answer to `turn/start`, and params of `turn/started` and `turn/completed`."""

    turn: Turn


class Tokens(Tolerant, frozen=True, kw_only=True):
    """`input_tokens` has the cached ones in it."""

    total_tokens: Count = 0
    input_tokens: Count = 0
    cached_input_tokens: Count = 0
    output_tokens: Count = 0


class TokenUsage(Tolerant, frozen=True, kw_only=True):
    """`total` is the whole thread's, `last` the latest request's."""

    total: Tokens
    last: Tokens
    model_context_window: int | None = None


class UsageParams(Tolerant, frozen=True, kw_only=True):
    token_usage: TokenUsage
    turn_id: str | None = None


class ResolvedParams(Tolerant, frozen=True, kw_only=True):
    """Of `serverRequest/resolved`: a question that codex waits for no longer."""

    request_id: RequestId


class ThreadHead(Tolerant, frozen=True, kw_only=True):
    """Whose a notification is; None if it is nobody's."""

    thread_id: str | None = None
