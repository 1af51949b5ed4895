"""A manifest with everything that its names stand for: what a run's record holds, and its runner acts on.

All names are looked up already. Files of contexts are read, and git revisions resolved, by the runtime.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from avenor.protocol.manifest.authority import Capabilities
from avenor.protocol.manifest.events import Correlation
from avenor.protocol.manifest.model import (
    AggregateBudget,
    Cancellation,
    Evaluation,
    Handoff,
    Join,
    MemberBudget,
)
from avenor.protocol.manifest.roster import PLANNING_TOOLS, Profile


class BoundProfile(Profile, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A profile of the roster, with its name and absolute paths. Tolerant, because records of other versions hold it.

    Attributes:
        name: The name that the manifest uses.
    """

    name: str

    @property
    def model_family(self) -> str | None:
        """Which models judge as this one does; None where nothing is known of it."""
        return self.family or self.model


class BoundContext(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a first prompt.

    Attributes:
        name: As the manifest has it.
        kind: Where it comes from.
        value: The name of a built-in one, the absolute path of a file, or the text.
        command: The program line of a command.
    """

    name: str
    kind: Literal["builtin", "file", "command", "text"]
    value: str = ""
    command: list[str] = []


class BoundMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the runner starts it.

    Attributes:
        field: Where it stands in the manifest: `members[3]`.
        capabilities: What its tools allow and what it may write, as `authority.decide` takes it.
        own_tools: What avenor serves to it, those included that it has without declaring them.
        writes: The globs of all that it may write, relative to the repository.
    """

    id: str
    field: str
    role: str
    profile: BoundProfile
    capabilities: Capabilities
    own_tools: list[str]
    contexts: list[BoundContext]
    writes: list[str]
    budget: MemberBudget
    depends_on: list[str]
    callable_by: list[str] = []

    @property
    def is_writer(self) -> bool:
        """Whether it may change anything."""
        return bool(self.writes)


class BoundReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A check of every candidate; `timeout` is seconds."""

    name: str
    command: list[str]
    timeout: float


class ResolvedManifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="manifest"):
    """A manifest that a run can take. Tolerant, because records of other versions hold it.

    Attributes:
        file: Where it was read from; `roster_file` is its roster.
        source_revision: As it is written, `git:REV`.
        receipts: All of them are required.
    """

    file: str
    roster_file: str
    team_id: str
    contract: str
    source_revision: str
    plan_epoch: int
    budget: AggregateBudget
    members: list[BoundMember]
    joins: list[Join]
    evaluation: Evaluation
    cancellation: Cancellation
    handoffs: list[Handoff]
    receipts: list[BoundReceipt]

    @property
    def revision(self) -> str:
        """What git is to resolve."""
        return self.source_revision.removeprefix("git:")

    def member(self, member_id: str) -> BoundMember:
        """The member of that id, which there is."""
        return next(member for member in self.members if member.id == member_id)


def backends_of_manifest(manifest: ResolvedManifest) -> set[str]:
    """The backends that its members use."""
    return {member.profile.backend for member in manifest.members}


def correlations(manifest: ResolvedManifest) -> list[Correlation]:
    """What the judgement of the evaluation's owner has in common with that of planners and writers.

    A planner is a member that may create tasks, start workers or replan, a writer one that may write: roles are told by
    what they may do, never by what they are called.
    """
    owner = manifest.member(manifest.evaluation.owner)
    return [found for other in manifest.members if other.id != owner.id for found in _shared(owner, other)]


def _shared(owner: BoundMember, other: BoundMember) -> Iterator[Correlation]:
    if not other.is_writer and PLANNING_TOOLS.isdisjoint(other.own_tools):
        return
    for shared, value, same in (
        ("family", owner.profile.model_family, other.profile.model_family),
        ("instructions", owner.profile.instructions, other.profile.instructions),
        ("context", _sources(owner), _sources(other)),
    ):
        if value and value == same:
            yield Correlation(members=[owner.id, other.id], shared=shared, value=value)


def _sources(member: BoundMember) -> str:
    return ", ".join(sorted(context.name for context in member.contexts))
