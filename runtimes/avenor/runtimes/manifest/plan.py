"""What a manifest says, as the scheduler asks for it: who needs whom, who may write, who must have a result. Pure."""

from collections.abc import Sequence
from typing import Final

from avenor.protocol.manifest.binding import BoundMember, ResolvedManifest
from avenor.protocol.manifest.graph import graph_of
from avenor.protocol.manifest.model import Handoff, Join

# How often an attempt at a task may be lost before the task counts as having no result.
LOSSES_LIMIT: Final = 3


class Plan:
    """A manifest, looked up by id. `branches` is where the run's are, of which `branch` is the candidate's.

    Args:
        manifest: As the record holds it.
        run_id: Of the run.
        max_parallel: How many tasks of the scheduler may run at once; None sets no limit.
    """

    def __init__(self, manifest: ResolvedManifest, *, run_id: str, max_parallel: int | None = None) -> None:
        self.manifest = manifest
        self.run_id = run_id
        self.max_parallel = max_parallel
        self.evaluator = manifest.evaluation.owner
        self.members = {member.id: member for member in manifest.members}
        self.joins = {join.id: join for join in manifest.joins}
        self.graph = graph_of(manifest)
        self.required = self.graph.required_for(self.evaluator)
        self.branches = f"avenor/{run_id}"
        self.branch = f"{self.branches}/candidate"

    @property
    def scheduled(self) -> list[BoundMember]:
        """The members that have a task of their own, in the order of the file."""
        return [member for member in self.manifest.members if member.id in self.graph.nodes]

    @property
    def writers_above(self) -> list[str]:
        """The writers that the evaluator waits for, each after what it needs."""
        above = self.graph.needed_by(self.evaluator)
        return [each for each in self.graph.order() if each in above and self.is_writer(each)]

    def is_writer(self, member_id: str) -> bool:
        """Whether it is a member that may change anything."""
        member = self.members.get(member_id)
        return member is not None and member.is_writer

    def has_writer_above(self, member_id: str) -> bool:
        """Whether a writer must be done before it."""
        return any(self.is_writer(each) for each in self.graph.needed_by(member_id))

    def joins_with(self, member_id: str) -> list[Join]:
        """The joins that need a member's result."""
        return [join for join in self.joins.values() if member_id in join.requires]

    def join_permits(self, join_id: str, key: str) -> str:
        """The field of a join, as events name it."""
        return f"joins[{list(self.joins).index(join_id)}].{key}"

    def offers_to(self, member_id: str) -> list[Handoff]:
        """The hand-offs that a member may receive."""
        return [each for each in self.manifest.handoffs if each.receiver == member_id]

    def offers_of(self, member_id: str) -> list[tuple[int, Handoff]]:
        """The hand-offs that a member may make, with their places in the manifest."""
        return [(index, each) for index, each in enumerate(self.manifest.handoffs) if each.sender == member_id]

    def depends(self, one: str, other: str) -> bool:
        """Whether the first task waits for the second, at any distance."""
        return other in self.graph.needed_by(one)

    def is_source_name(self, name: str) -> bool:
        """Whether it is what the manifest calls the source revision."""
        return name in (self.manifest.source_revision, self.manifest.revision)

    def direct_needs(self, member_id: str) -> Sequence[str]:
        """The members and joins that must be done right before it."""
        return self.graph.nodes[member_id].needs
