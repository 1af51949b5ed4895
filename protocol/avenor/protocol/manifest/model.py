"""A manifest as it is written (`team.v1`): the structs, and the words that each choice may have.

A manifest states who may do what, in which order, and for how much. What the names in it stand for on this machine is
in a roster (`roster.py`); both together are bound to what a run takes (`binding.py`).
"""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from avenor.protocol.manifest.amounts import Limits

SCHEMA_VERSION: Final = "team.v1"
# How deep `start_worker` may nest: a member's worker may start one more, and that one nobody.
MAX_DELEGATION_DEPTH: Final = 2
MAX_MEMBERS: Final = 64

TerminalState = Literal["accepted", "rejected", "needs_human", "cancelled", "timed_out", "budget_exhausted"]
TERMINAL_STATES: Final[tuple[TerminalState, ...]] = get_args(TerminalState)

JoinRule = Literal["all_required_results_with_matching_source_revision_and_plan_epoch"]
OnMissing = Literal["needs_human", "rejected"]
OnConflict = Literal["preserve_both_and_pause", "needs_human", "rejected"]
AcceptRule = Literal["contract_checks_and_required_receipts_pass"]
Otherwise = Literal["one_bounded_repair", "rejected", "needs_human"]
ParentCancel = Literal["propagate_to_all_children"]
WorkerTimeout = Literal["cancel_tools_then_mark_timed_out"]
LateResult = Literal["reject_unless_run_id_revision_and_plan_epoch_match"]
OnReject = Literal["return", "needs_human"]

# Ids become parts of file names and git refs, and of attempt ids, which end in a dot and a number.
_ID = Meta(
    pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
    description="Up to 64 letters, digits, `_` and `-`, a letter or digit first.",
)
Id = Annotated[str, _ID]
# Enough for a century of anything, and exact in JSON of every language.
Count = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=1, le=10**9)]
Dollars = Annotated[float, Meta(gt=0, le=10**9)]
Epoch = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]


class AggregateBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the whole run may use, all members and their children together.

    Attributes:
        input_output_tokens: Tokens that models read and write.
        cost_usd: Dollars; None sets no limit, for models without a price.
        deadline_seconds: From the run's start to its end, clean-up included.
    """

    model_calls: Count
    tool_calls: Count
    input_output_tokens: Count
    cost_usd: Dollars | None = None
    deadline_seconds: Seconds

    def limits(self) -> Limits:
        """As the ledger counts it; the deadline is the scheduler's."""
        return Limits(
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            tokens=self.input_output_tokens,
            cost_usd=self.cost_usd,
        )


class MemberBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one member is reserved of the run's budget.

    Attributes:
        tokens: Tokens that its model reads and writes.
        seconds: How long one attempt may take, clean-up included.
        cost_usd: Dollars; None reserves none, so that the run's counts.
    """

    model_calls: Count
    tool_calls: Count
    tokens: Count
    seconds: Seconds
    cost_usd: Dollars | None = None

    def limits(self) -> Limits:
        """As the ledger counts it; the seconds are the scheduler's."""
        return Limits(
            model_calls=self.model_calls, tool_calls=self.tool_calls, tokens=self.tokens, cost_usd=self.cost_usd
        )


class RunPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be done, on what, and for how much.

    Attributes:
        contract: The task, as the evaluation judges it; immutable.
        source_revision: `git:REV`: the revision that everything is about.
        plan_epoch: The plan's number; results of another one are stale.
        terminal_states: All six, so that whoever reads the file knows how it can end.
    """

    contract: Text
    source_revision: Annotated[str, Meta(pattern=r"^git:[^\s-]\S*$", description="`git:REV`")]
    plan_epoch: Epoch
    aggregate_budget: AggregateBudget
    terminal_states: list[TerminalState]


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role: its agent, and all that it may see, use and change.

    Attributes:
        id: Unique among members and joins.
        role: What it is for; it is told to the agent, and grants nothing.
        model_profile: A profile of the roster.
        tools: Names of tools: the roster's, built-in ones, and those that avenor offers itself.
        context_sources: What its first prompt holds, and nothing else.
        allowed_writes: Write targets of the roster; empty for a reader.
        depends_on: Members and joins that must be done before it starts.
        callable_by: Members that start it by `start_worker`, out of their own budgets; it is not scheduled then.
    """

    id: Id
    role: Text
    model_profile: Name
    tools: list[Name]
    context_sources: list[Name]
    allowed_writes: list[Name]
    budget: MemberBudget
    depends_on: list[Id]
    callable_by: list[Id] = []


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where results of several members are brought together.

    Attributes:
        requires: The members whose results it needs.
        on_missing: What becomes of the run without one of them.
        on_conflict: What becomes of it when two of them claim different things of one subject.
    """

    id: Id
    requires: Annotated[list[Id], Meta(min_length=1)]
    rule: JoinRule
    on_missing: OnMissing
    on_conflict: OnConflict


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who judges the candidate, and what may follow when it is not accepted.

    Attributes:
        owner: A member without write authority.
    """

    owner: Id
    accepts_when: AcceptRule
    otherwise: Annotated[list[Otherwise], Meta(min_length=1)]


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How members are ended.

    Attributes:
        grace_seconds: How long an attempt has to end by itself, within its own seconds.
    """

    parent_cancel: ParentCancel
    worker_timeout: WorkerTimeout
    grace_seconds: Annotated[float, Meta(ge=0, le=3600)]
    late_result: LateResult


class Handoff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transfer of ownership from one member to another, which starts when it is offered.

    Attributes:
        sender: `from` in the file.
        receiver: `to` in the file; it must accept before the sender is released.
        on_reject: Whether the sender goes on, or a person is asked for.
    """

    sender: Id = msgspec.field(name="from")
    receiver: Id = msgspec.field(name="to")
    on_reject: OnReject


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team, with its rules.

    Attributes:
        schema: For editors.
    """

    schema_version: Literal["team.v1"]
    team_id: Id
    run: RunPart
    members: Annotated[list[Member], Meta(min_length=1, max_length=MAX_MEMBERS)]
    joins: Annotated[list[Join], Meta(max_length=MAX_MEMBERS)] = []
    evaluation: Evaluation
    cancellation: Cancellation
    handoffs: Annotated[list[Handoff], Meta(max_length=MAX_MEMBERS)] = []
    schema: str | None = msgspec.field(name="$schema", default=None)
