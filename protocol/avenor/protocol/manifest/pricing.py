"""What the fan-out of a manifest costs, told before it is launched: time, reservations, and money at known prices."""

import msgspec

from avenor.protocol.manifest.graph import Reserved, graph_of, reserved
from avenor.protocol.manifest.model import Manifest
from avenor.protocol.manifest.roster import Roster


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A member or join in the order of the plan.

    Attributes:
        needs: What it waits for.
        callable_by: Who may call it, of a member that is not scheduled.
        writes: The paths that it may change; the names of its targets where there is no roster.
        cost_usd: The most that its tokens cost at its profile's prices; None without prices.
    """

    id: str
    kind: str
    needs: list[str]
    callable_by: list[str]
    writes: list[str]
    seconds: float
    cost_usd: float | None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what it is priced at.

    Attributes:
        nodes: In an order in which they could run one by one; then the members that others call.
        critical_path: The longest way through.
        ideal_seconds: How long that takes: with as much at once as the graph allows, and no time lost between.
        serial_seconds: How long it takes one by one.
        budget: What is reserved, unit by unit; seconds are those of the critical path.
        cost_usd: The most that the tokens of all members cost; None where a profile has no prices.
        unpriced: The profiles without prices.
    """

    nodes: list[PlannedNode]
    critical_path: list[str]
    ideal_seconds: float
    serial_seconds: float
    budget: list[Reserved]
    cost_usd: float | None
    unpriced: list[str]

    @property
    def saved_seconds(self) -> float:
        """What working at the same time saves at best."""
        return self.serial_seconds - self.ideal_seconds


def price_of(manifest: Manifest, roster: Roster | None) -> Price:
    """The plan and its price. The graph has no cycle."""
    graph = graph_of(manifest)
    costs = {member.id: _cost(member.model_profile, member.budget.tokens, roster) for member in manifest.members}
    writes = {member.id: _paths(member.allowed_writes, roster) for member in manifest.members}
    path = graph.critical_path()
    nodes = [
        PlannedNode(
            id=node.id,
            kind="join" if node.is_join else "member",
            needs=list(node.needs),
            callable_by=[],
            writes=writes.get(node.id, []),
            seconds=node.seconds,
            cost_usd=costs.get(node.id),
        )
        for node in (graph.nodes[node_id] for node_id in graph.order())
    ]
    called = [member for member in manifest.members if member.callable_by]
    nodes += [
        PlannedNode(
            id=member.id,
            kind="member",
            needs=[],
            callable_by=member.callable_by,
            writes=writes[member.id],
            seconds=member.budget.seconds,
            cost_usd=costs[member.id],
        )
        for member in called
    ]
    known = [costs[member.id] for member in manifest.members if not member.callable_by]
    return Price(
        nodes=nodes,
        critical_path=path.nodes,
        ideal_seconds=path.seconds,
        serial_seconds=graph.serial_seconds(),
        budget=reserved(manifest.members, manifest.run.aggregate_budget, graph),
        cost_usd=None if None in known else round(sum(cost or 0.0 for cost in known), 6),
        unpriced=_unpriced(manifest, roster),
    )


def _paths(targets: list[str], roster: Roster | None) -> list[str]:
    known = {} if roster is None else roster.writes
    return [path for target in targets for path in known.get(target, [target])]


def _cost(profile: str, tokens: int, roster: Roster | None) -> float | None:
    found = None if roster is None else roster.profiles.get(profile)
    return None if found is None or found.prices is None else round(found.prices.most(tokens), 6)


def _unpriced(manifest: Manifest, roster: Roster | None) -> list[str]:
    names = dict.fromkeys(member.model_profile for member in manifest.members)
    return [name for name in names if _cost(name, 1, roster) is None]
