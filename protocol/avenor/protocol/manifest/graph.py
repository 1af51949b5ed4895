"""The graph of a manifest: what must be done before what, how long that takes, and what it is paid from.

Nodes are members and joins. A member waits for what it depends on, a join for what it requires, the receiver of a
hand-off for its sender. A member that others call is part of its callers: it is no node.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from avenor.protocol.manifest.binding import ResolvedManifest
from avenor.protocol.manifest.model import AggregateBudget, Handoff, Join, Manifest, MemberBudget


class _Member(Protocol):
    """What both a written and a bound member have."""

    @property
    def id(self) -> str: ...
    @property
    def budget(self) -> MemberBudget: ...
    @property
    def depends_on(self) -> list[str]: ...
    @property
    def callable_by(self) -> list[str]: ...


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A member or a join.

    Attributes:
        needs: What must be done before it, in the order of the file.
        seconds: How long it may take; a join takes no time.
    """

    id: str
    is_join: bool
    needs: tuple[str, ...]
    seconds: float


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """A way through the graph.

    Attributes:
        nodes: Members and joins, the first one first.
        seconds: What they take one after the other.
    """

    nodes: list[str]
    seconds: float


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one unit is reserved for members, and how much there is; None where the run sets no limit."""

    unit: str
    reserved: float
    available: float | None

    @property
    def is_over(self) -> bool:
        """Whether members were promised more than there is."""
        # Sums of dollars are not exact.
        return self.available is not None and self.reserved > self.available + 1e-9


class Graph:
    """The nodes in the order of the file, members before joins. Needs that name no node are left out.

    Args:
        members: All; those that others call are left out.
        joins: As in the file.
        handoffs: As in the file.
    """

    def __init__(self, members: Sequence[_Member], joins: Sequence[Join], handoffs: Sequence[Handoff] = ()) -> None:
        scheduled = [member for member in members if not member.callable_by]
        known = {member.id for member in scheduled} | {join.id for join in joins}
        offered: dict[str, list[str]] = {}
        for handoff in handoffs:
            offered.setdefault(handoff.receiver, []).append(handoff.sender)
        self.nodes: dict[str, Node] = {}
        for member in scheduled:
            needs = _known([*member.depends_on, *offered.get(member.id, [])], known)
            self.nodes[member.id] = Node(id=member.id, is_join=False, needs=needs, seconds=member.budget.seconds)
        for join in joins:
            self.nodes.setdefault(
                join.id, Node(id=join.id, is_join=True, needs=_known(join.requires, known), seconds=0)
            )

    def find_cycle(self) -> list[str] | None:
        """Nodes that wait for each other, each for the one before it, the first one repeated at the end; or None."""
        done: set[str] = set()
        for start in self.nodes:
            chain = self._chain_back(start, done)
            if chain is not None:
                return chain
        return None

    def _chain_back(self, start: str, done: set[str]) -> list[str] | None:
        """Walks from a node to all that it needs; `done` are nodes that no cycle goes through."""
        way: list[str] = [start]
        pending = [iter(self.nodes[start].needs)]
        while way:
            need = next(pending[-1], None)
            if need is None:
                done.add(way.pop())
                pending.pop()
            elif need in way:
                return [need, *reversed(way[way.index(need) :])]
            elif need not in done:
                way.append(need)
                pending.append(iter(self.nodes[need].needs))
        return None

    def order(self) -> list[str]:
        """All nodes, each after what it needs, else as in the file; without a cycle and what waits for it."""
        order: dict[str, None] = {}
        while ready := self.ready(order):
            order.update(dict.fromkeys(ready))
        return list(order)

    def ready(self, done: Collection[str]) -> list[str]:
        """The nodes that are not done and wait for nothing that is not done, in the order of the file."""
        return [
            node.id for node in self.nodes.values() if node.id not in done and all(need in done for need in node.needs)
        ]

    def needed_by(self, node_id: str) -> set[str]:
        """All that must be done before a node, nearest and farthest."""
        return _closure(node_id, {node.id: node.needs for node in self.nodes.values()})

    def dependents(self, node_id: str) -> set[str]:
        """All that waits for a node, nearest and farthest."""
        waiting: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for need in node.needs:
                waiting.setdefault(need, []).append(node.id)
        return _closure(node_id, waiting)

    def required_for(self, owner: str) -> set[str]:
        """The members and joins without which the evaluation's owner cannot decide, itself included."""
        return {owner, *self.needed_by(owner)} & set(self.nodes)

    def critical_path(self) -> Path:
        """The longest way through: no run of the graph is over sooner, however much goes on at once."""
        best: dict[str, Path] = {}
        for node_id in self.order():
            node = self.nodes[node_id]
            before = max((best[need] for need in node.needs), key=lambda path: path.seconds, default=_NOTHING)
            best[node_id] = Path(nodes=[*before.nodes, node_id], seconds=before.seconds + node.seconds)
        return max(best.values(), key=lambda path: path.seconds, default=_NOTHING)

    def serial_seconds(self) -> float:
        """How long all members take one after the other."""
        return sum(node.seconds for node in self.nodes.values())


_NOTHING = Path(nodes=[], seconds=0.0)


def reserved(members: Sequence[_Member], budget: AggregateBudget, graph: Graph) -> list[Reserved]:
    """What is reserved for members of each unit: sums, and seconds along the critical path.

    Members that others call are paid from their callers' budgets.
    """
    budgets = [member.budget for member in members if not member.callable_by]
    rows = (
        ("model_calls", budget.model_calls, sum(each.model_calls for each in budgets)),
        ("tool_calls", budget.tool_calls, sum(each.tool_calls for each in budgets)),
        ("tokens", budget.input_output_tokens, sum(each.tokens for each in budgets)),
        ("cost_usd", budget.cost_usd, sum(each.cost_usd or 0.0 for each in budgets)),
        ("seconds", budget.deadline_seconds, graph.critical_path().seconds),
    )
    return [Reserved(unit=unit, reserved=promised, available=available) for unit, available, promised in rows]


def graph_of(manifest: Manifest | ResolvedManifest) -> Graph:
    """The graph of a written or resolved manifest."""
    return Graph(manifest.members, manifest.joins, manifest.handoffs)


def _known(names: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name in known))


def _closure(start: str, steps: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(steps.get(start, ()))
    while waiting:
        node_id = waiting.pop()
        if node_id not in found:
            found.add(node_id)
            waiting += steps.get(node_id, ())
    return found
