"""What a manifest must keep beyond its types: what can be told from the manifest alone.

`bound_rules.py` has what needs the roster. Every rule gives all that breaks it. Paths are JSON paths.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from avenor.protocol.manifest.graph import Graph, graph_of, reserved
from avenor.protocol.manifest.model import MAX_DELEGATION_DEPTH, TERMINAL_STATES, Manifest, Member
from avenor.protocol.validation import Mistake

# The ledger's root account, and names that git or file systems give another meaning.
_RESERVED_IDS: Final = frozenset({"run", "candidate", "lost"})
_EXTRA_TASK: Final = re.compile(r"(?P<member>.+)-[0-9]+")

_NEEDS_WRITER: Final = frozenset({"candidate_revision", "candidate_diff", "raw_receipts"})
_EVIDENCE: Final = frozenset({"joined_reader_evidence", "joined_evidence"})


def find_broken_rules(manifest: Manifest) -> list[Mistake]:
    """Every rule that the manifest breaks by itself."""
    return _all_of(_ERRORS, manifest)


def find_doubts(manifest: Manifest) -> list[Mistake]:
    """What is allowed and can hardly be meant: a warning each."""
    return _all_of(_WARNINGS, manifest)


def _all_of(rules: Sequence["_Rule"], manifest: Manifest) -> list[Mistake]:
    graph = graph_of(manifest)
    return [found for rule in rules for found in rule(manifest, graph)]


def members_of(manifest: Manifest) -> Iterator[tuple[str, Member]]:
    """Each member with its path."""
    for index, member in enumerate(manifest.members):
        yield f"$.members[{index}]", member


# --- ids and what they name -------------------------------------------------------------------------------------------


def _ids(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    places = [(f"{path}.id", member.id) for path, member in members_of(manifest)]
    places += [(f"$.joins[{index}].id", join.id) for index, join in enumerate(manifest.joins)]
    first: dict[str, str] = {}
    names = {name for _, name in places}
    for path, name in places:
        # Git refs and files of them lie beside each other where upper and lower case may be one.
        other = first.setdefault(name.lower(), path)
        if other != path:
            yield Mistake(
                path, f"{name!r} is taken by {_bare(other)}: ids of members and joins differ, not by case only"
            )
        if name.lower() in _RESERVED_IDS:
            yield Mistake(path, f"{name!r} is reserved: choose another id")
        extra = _EXTRA_TASK.fullmatch(name)
        if extra and extra["member"] in names:
            yield Mistake(
                path, f"{name!r} is what an extra task of {extra['member']} would be called: choose another id"
            )


def _references(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    members = {member.id for member in manifest.members}
    called = {member.id for member in manifest.members if member.callable_by}
    nodes = (members | {join.id for join in manifest.joins}) - called
    for path, member in members_of(manifest):
        yield from _resolved(f"{path}.depends_on", member.depends_on, nodes, called, "member or join")
        yield from _resolved(f"{path}.callable_by", member.callable_by, members, set(), "member")
    for index, join in enumerate(manifest.joins):
        yield from _resolved(f"$.joins[{index}].requires", join.requires, members - called, called, "member")
    yield from _resolved("$.evaluation.owner", manifest.evaluation.owner, members - called, called, "member")
    for index, handoff in enumerate(manifest.handoffs):
        yield from _resolved(f"$.handoffs[{index}].from", handoff.sender, members - called, called, "member")
        yield from _resolved(f"$.handoffs[{index}].to", handoff.receiver, members - called, called, "member")


def _resolved(path: str, names: Sequence[str] | str, known: set[str], called: set[str], what: str) -> Iterator[Mistake]:
    places = [(path, names)] if isinstance(names, str) else [(f"{path}[{at}]", name) for at, name in enumerate(names)]
    counts = Counter(name for _, name in places)
    for place, name in places:
        if name in called:
            yield Mistake(place, f"{name!r} is called by others (callable_by) and has no place in the plan")
        elif name not in known:
            yield Mistake(place, f"there is no {what} {name!r}; there are {', '.join(sorted(known)) or 'none'}")
        if counts[name] > 1:
            counts[name] = 0
            yield Mistake(place, f"{name!r} is named more than once")


def _cycle(_manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    chain = graph.find_cycle()
    if chain is not None:
        yield Mistake("$.members", f"these wait for each other: {' → '.join(chain)}")


# --- members that others call -----------------------------------------------------------------------------------------


def _called_members(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    by_id = {member.id: member for member in manifest.members}
    for path, member in members_of(manifest):
        if member.callable_by and member.depends_on:
            yield Mistake(f"{path}.depends_on", "a member that others call waits for nothing else: leave it empty")
        for at, name in enumerate(member.callable_by):
            caller = by_id.get(name)
            if caller is not None:
                yield from _call_rules(f"{path}.callable_by[{at}]", member, caller)
        chain = _longest_call(member, by_id, (member.id,))
        if len(chain) - 1 > MAX_DELEGATION_DEPTH or chain[0] in chain[1:]:
            message = f"calls go at most {MAX_DELEGATION_DEPTH} deep, and not in a circle: {' → '.join(chain)}"
            yield Mistake(f"{path}.callable_by", message)


def _call_rules(path: str, member: Member, caller: Member) -> Iterator[Mistake]:
    if "start_worker" not in caller.tools:
        yield Mistake(path, f"{caller.id!r} cannot call anybody: it needs the tool start_worker")
    for unit in ("model_calls", "tool_calls", "tokens", "seconds"):
        own, theirs = getattr(member.budget, unit), getattr(caller.budget, unit)
        if own > theirs:
            yield Mistake(path, f"its {unit} ({own:g}) come out of those of {caller.id!r}, which has only {theirs:g}")


def _longest_call(member: Member, by_id: dict[str, Member], chain: tuple[str, ...]) -> tuple[str, ...]:
    """The callers of a member and theirs, the outermost first, followed by the chain; stops where it closes."""
    if len(chain) > MAX_DELEGATION_DEPTH + 1 or chain[0] in chain[1:]:
        return chain
    callers = [by_id[name] for name in member.callable_by if name in by_id]
    longer = [_longest_call(caller, by_id, (caller.id, *chain)) for caller in callers]
    return max(longer, key=len, default=chain)


# --- who may do what --------------------------------------------------------------------------------------------------


def _evaluation(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    owner = manifest.evaluation.owner
    unjudged = _unjudged(manifest, graph)
    for path, member in members_of(manifest):
        if member.id == owner and member.allowed_writes:
            yield Mistake(f"{path}.allowed_writes", "whoever judges the candidate must not change it: leave it empty")
        if member.id != owner and "submit_verdict" in member.tools:
            yield Mistake(f"{path}.tools", f"submit_verdict is for the owner of the evaluation, {owner!r}")
        if member.allowed_writes and member.id in unjudged:
            yield Mistake(
                f"{path}.allowed_writes", f"{owner!r} does not wait for it: nobody would judge what it writes"
            )


def _unjudged(manifest: Manifest, graph: Graph) -> set[str]:
    """The members and joins that the owner of the evaluation does not wait for."""
    owner = manifest.evaluation.owner
    return set(graph.nodes) - graph.required_for(owner) if owner in graph.nodes else set()


def _one_writer(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for path, member in members_of(manifest):
        for at, target in enumerate(member.allowed_writes):
            other = first.setdefault(target, member.id)
            if other != member.id:
                message = f"{target!r} is written by {other!r} already: each write path has one writer"
                yield Mistake(f"{path}.allowed_writes[{at}]", message)
        yield from _twice(f"{path}.allowed_writes", member.allowed_writes)
        yield from _twice(f"{path}.tools", member.tools)
        yield from _twice(f"{path}.context_sources", member.context_sources)


def _twice(path: str, names: Sequence[str]) -> Iterator[Mistake]:
    for name, count in Counter(names).items():
        if count > 1:
            at = len(names) - 1 - list(reversed(names)).index(name)
            yield Mistake(f"{path}[{at}]", f"{name!r} is there more than once")


def _handoffs(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    by_id = {member.id: (path, member) for path, member in members_of(manifest)}
    senders = {handoff.sender for handoff in manifest.handoffs}
    receivers = Counter(handoff.receiver for handoff in manifest.handoffs)
    for index, handoff in enumerate(manifest.handoffs):
        if handoff.sender == handoff.receiver:
            yield Mistake(f"$.handoffs[{index}].to", "a member cannot hand over to itself")
        if receivers[handoff.receiver] > 1:
            yield Mistake(f"$.handoffs[{index}].to", f"{handoff.receiver!r} is handed over to more than once")
        for end, name in (("from", handoff.sender), ("to", handoff.receiver)):
            if name == manifest.evaluation.owner:
                yield Mistake(f"$.handoffs[{index}].{end}", f"{name!r} judges: its task is nobody else's")
        for need in graph.nodes[handoff.receiver].needs if handoff.receiver in graph.nodes else ():
            if need != handoff.sender and handoff.sender in graph.needed_by(need):
                told = f"it waits for {need!r}, and that for the end of {handoff.sender!r}: it cannot take over before"
                yield Mistake(f"$.handoffs[{index}].to", told)
        yield from _needs_tools(by_id.get(handoff.sender), ("hand_off",), f"it hands over to {handoff.receiver!r}")
        needed = ("accept_handoff", "reject_handoff")
        yield from _needs_tools(by_id.get(handoff.receiver), needed, f"{handoff.sender!r} hands over to it")
    for path, member in by_id.values():
        if "hand_off" in member.tools and member.id not in senders:
            yield Mistake(f"{path}.tools", "hand_off needs an entry in handoffs that is from this member")
        if {"accept_handoff", "reject_handoff"} & set(member.tools) and member.id not in receivers:
            yield Mistake(f"{path}.tools", "accept_handoff and reject_handoff need an entry in handoffs to this member")


def _needs_tools(found: tuple[str, Member] | None, tools: Sequence[str], why: str) -> Iterator[Mistake]:
    if found is not None:
        path, member = found
        for tool in tools:
            if tool not in member.tools:
                yield Mistake(f"{path}.tools", f"{tool} is missing: {why}")


def _context(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    joins = {join.id for join in manifest.joins}
    writers = {member.id for member in manifest.members if member.allowed_writes}
    receivers = {handoff.receiver for handoff in manifest.handoffs}
    for path, member in members_of(manifest):
        before = graph.needed_by(member.id)
        for at, name in enumerate(member.context_sources):
            place = f"{path}.context_sources[{at}]"
            if name in _EVIDENCE and not before & joins:
                yield Mistake(place, f"{name} needs a join before this member: nothing was joined")
            if name in _NEEDS_WRITER and not before & writers:
                yield Mistake(place, f"{name} needs a member that writes before this one: there is no candidate")
            if name == "candidate_branch" and not member.allowed_writes:
                yield Mistake(place, "candidate_branch is for members that write")
            if name == "handoff_record" and member.id not in receivers:
                yield Mistake(place, "handoff_record is for a member that is handed over to")


# --- budgets and ends -------------------------------------------------------------------------------------------------


def _budgets(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    budget = manifest.run.aggregate_budget
    for row in reserved(manifest.members, budget, graph):
        if not row.is_over:
            continue
        name = {"tokens": "input_output_tokens", "seconds": "deadline_seconds"}.get(row.unit, row.unit)
        message = f"members are reserved {row.reserved:g} {row.unit}, and there are {row.available:g}"
        if row.unit == "seconds":
            way = " → ".join(graph.critical_path().nodes)
            message = f"the longest way through takes {row.reserved:g} s, and there are {row.available:g} s: {way}"
        yield Mistake(f"$.run.aggregate_budget.{name}", message)


def _grace(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    grace = manifest.cancellation.grace_seconds
    for path, member in members_of(manifest):
        if member.budget.seconds <= grace:
            message = (
                f"of {member.budget.seconds:g} s the grace of {grace:g} s is for its end: nothing is left for work"
            )
            yield Mistake(f"{path}.budget.seconds", message)


def _terminal_states(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    states = manifest.run.terminal_states
    missing = [state for state in TERMINAL_STATES if state not in states]
    if missing:
        yield Mistake("$.run.terminal_states", f"a run can end in each of the six: {', '.join(missing)} is missing")
    yield from _twice("$.run.terminal_states", states)
    yield from _twice("$.evaluation.otherwise", manifest.evaluation.otherwise)


# --- what can hardly be meant -----------------------------------------------------------------------------------------


def _idle_members(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    unjudged = _unjudged(manifest, graph)
    for path, member in members_of(manifest):
        if not member.allowed_writes and member.id in unjudged:
            message = f"nothing that {manifest.evaluation.owner!r} judges depends on it: it cannot change the outcome"
            yield Mistake(f"{path}.id", message)
    for index, join in enumerate(manifest.joins):
        if not graph.dependents(join.id):
            yield Mistake(f"$.joins[{index}].id", "nobody waits for it")


def _assigned_paths(manifest: Manifest, graph: Graph) -> Iterator[Mistake]:
    planners = {member.id for member in manifest.members if "create_task" in member.tools}
    for path, member in members_of(manifest):
        if member.callable_by:
            continue  # its caller assigns them
        if "assigned_paths" in member.context_sources and not graph.needed_by(member.id) & planners:
            at = member.context_sources.index("assigned_paths")
            message = "nobody before it can assign any: that needs the tool create_task"
            yield Mistake(f"{path}.context_sources[{at}]", message)


def _called_budgets(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    for path, caller in members_of(manifest):
        callees = [member for member in manifest.members if caller.id in member.callable_by]
        total = sum(member.budget.model_calls for member in callees)
        if total >= caller.budget.model_calls and callees:
            message = (
                f"the members that it can call may use {total} model calls out of its own {caller.budget.model_calls}: "
                "it cannot call all of them and go on"
            )
            yield Mistake(f"{path}.budget.model_calls", message)


def _no_writer(manifest: Manifest, _graph: Graph) -> Iterator[Mistake]:
    repair = "one_bounded_repair"
    if repair in manifest.evaluation.otherwise and not any(member.allowed_writes for member in manifest.members):
        at = manifest.evaluation.otherwise.index(repair)
        yield Mistake(f"$.evaluation.otherwise[{at}]", "nobody writes: there is nothing to repair")


def _bare(path: str) -> str:
    return path.removeprefix("$.")


_Rule = Callable[[Manifest, Graph], Iterator[Mistake]]
_ERRORS: Final[tuple[_Rule, ...]] = (
    _ids,
    _references,
    _cycle,
    _called_members,
    _evaluation,
    _one_writer,
    _handoffs,
    _context,
    _budgets,
    _grace,
    _terminal_states,
)
_WARNINGS: Final[tuple[_Rule, ...]] = (_idle_members, _assigned_paths, _called_budgets, _no_writer)
