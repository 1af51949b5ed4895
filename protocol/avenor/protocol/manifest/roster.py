"""A roster as it is written (`roster.v1`): what the names in a manifest stand for on this machine.

A manifest names profiles, tools, context sources and write targets; only a roster says which program, which commands,
which files these are. So a manifest can be shared, and grants nothing by itself.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from avenor.protocol.manifest.model import Name, Text

# The kinds of tools that the Agent Client Protocol knows.
ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
TOOL_KINDS: Final[tuple[ToolKind, ...]] = get_args(ToolKind)
WRITING_KINDS: Final[frozenset[ToolKind]] = frozenset({"edit", "delete", "move"})

# What a roster may grant. An agent that may change its mode could stop asking: nobody is granted that.
GrantedKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"]
Dialect = Literal["openai", "anthropic"]
Million = Annotated[float, Meta(ge=0, le=10**9)]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the profile's model really is; its agent talks to the run's gateway instead.

    Attributes:
        dialect: Whose API it speaks.
        url: Its base, as the agent would be configured with.
        key_env: The variable of the run's environment that holds the key; None sends none.
    """

    dialect: Dialect
    url: Annotated[str, Meta(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
    key_env: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars for a million tokens; None of cached tokens is the price of other input."""

    input_per_million: Million
    output_per_million: Million
    cached_read_per_million: Million | None = None

    def cost(self, *, input_tokens: int, output_tokens: int, cached_read_tokens: int = 0) -> float:
        """Dollars for some tokens, of which `cached_read_tokens` are among the input."""
        cached = self.input_per_million if self.cached_read_per_million is None else self.cached_read_per_million
        fresh = max(0, input_tokens - cached_read_tokens)
        return (
            fresh * self.input_per_million + cached_read_tokens * cached + output_tokens * self.output_per_million
        ) / 1_000_000

    def most(self, tokens: int) -> float:
        """Dollars for so many tokens of the dearest kind."""
        return tokens * max(self.input_per_million, self.output_per_million) / 1_000_000


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent and its model.

    Attributes:
        backend: As `--backend`; `agent`, `model`, `thinking`, `agent_command` and `script` are as the flags of these
            names. A script is relative to the roster's folder.
        family: Which models are alike in judgement; the model where it is not said.
        instructions: The id of the chain of instructions that the agent follows, to tell whose judgement depends on it.
        env: Variables of the agent. Values may hold `{gateway_url}`, `{gateway_token}` and `{model}`.
        endpoint: None lets the agent talk to its model itself; then what it reports is counted.
        enforces_tools: Kinds of tools that this profile's own configuration denies or asks for, as its writer states.
    """

    backend: Name
    agent: Text | None = None
    model: Text | None = None
    thinking: Text | None = None
    family: Text | None = None
    instructions: Text | None = None
    agent_command: Text | None = None
    script: Text | None = None
    env: dict[str, str] = {}
    endpoint: Endpoint | None = None
    prices: Prices | None = None
    enforces_tools: list[ToolKind] = []


class ToolGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool of a manifest lets an agent do.

    Attributes:
        kinds: The kinds of tool calls.
        commands: Patterns of command lines; needed with `execute`.
        names: Patterns of the names of an agent's own tools; needed with `other`, which says nothing by itself.
    """

    kinds: Annotated[list[GrantedKind], Meta(min_length=1)]
    commands: list[Text] = []
    names: list[Text] = []


class ContextSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a prompt can hold: exactly one of the four.

    Attributes:
        builtin: The name of one that avenor makes.
        file: A file, relative to the roster's folder.
        command: A program line, run in the repository; what it prints is the context.
        text: The context itself.
    """

    builtin: Name | None = None
    file: Text | None = None
    command: Annotated[list[str], Meta(min_length=1)] | None = None
    text: Text | None = None


class ReceiptCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check that the run makes on each candidate; all of a roster's must pass.

    Attributes:
        command: The program line, run in a worktree of the candidate; exit status 0 passes.
        timeout: Seconds, or text like `90s`.
    """

    command: Annotated[list[str], Meta(min_length=1)]
    timeout: float | str = 60.0


class Roster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All names that a manifest may use.

    Attributes:
        writes: By write target the globs of the paths that it stands for.
        schema: For editors.
    """

    schema_version: Literal["roster.v1"]
    profiles: dict[str, Profile]
    tools: dict[str, ToolGrant] = {}
    context: dict[str, ContextSource] = {}
    writes: dict[str, Annotated[list[Text], Meta(min_length=1)]] = {}
    receipts: dict[str, ReceiptCheck] = {}
    schema: str | None = msgspec.field(name="$schema", default=None)


BUILTIN_TOOLS: Final[dict[str, ToolGrant]] = {
    "read_file": ToolGrant(kinds=["read"]),
    "search_code": ToolGrant(kinds=["search", "read"]),
    "apply_patch": ToolGrant(kinds=["edit", "delete", "move"]),
}

# What avenor itself serves to those members that declare it, and the last two to those who need it anyway.
OWN_TOOLS: Final = (
    "create_task",
    "start_worker",
    "cancel_worker",
    "replan",
    "read_receipt",
    "read_test_receipt",
    "read_diff",
    "hand_off",
    "accept_handoff",
    "reject_handoff",
    "submit_result",
    "submit_verdict",
)
PLANNING_TOOLS: Final = frozenset({"create_task", "start_worker", "replan"})

BUILTIN_CONTEXTS: Final = (
    "task_contract",
    "source_revision",
    "assigned_paths",
    "repository_map",
    "test_map",
    "joined_reader_evidence",
    "joined_evidence",
    "candidate_branch",
    "candidate_revision",
    "candidate_diff",
    "raw_receipts",
    "handoff_record",
)
