"""Puts a manifest and its roster together: names become what they stand for. Both have been checked before."""

import os.path

from msgspec.structs import asdict, replace

from avenor.protocol.manifest.authority import Capabilities, Grant, WriteGrant
from avenor.protocol.manifest.binding import BoundContext, BoundMember, BoundProfile, BoundReceipt, ResolvedManifest
from avenor.protocol.manifest.bound_rules import tool_grant
from avenor.protocol.manifest.model import Manifest, Member
from avenor.protocol.manifest.roster import OWN_TOOLS, Roster
from avenor.protocol.manifest.roster_rules import receipt_seconds


def resolve(manifest: Manifest, roster: Roster, *, file: str, roster_file: str) -> ResolvedManifest:
    """The manifest as a run takes it. Both must be without mistakes."""
    return ResolvedManifest(
        file=file,
        roster_file=roster_file,
        team_id=manifest.team_id,
        contract=manifest.run.contract,
        source_revision=manifest.run.source_revision,
        plan_epoch=manifest.run.plan_epoch,
        budget=manifest.run.aggregate_budget,
        members=[
            _member(f"members[{at}]", each, manifest, roster, roster_file) for at, each in enumerate(manifest.members)
        ],
        joins=manifest.joins,
        evaluation=manifest.evaluation,
        cancellation=manifest.cancellation,
        handoffs=manifest.handoffs,
        receipts=[
            BoundReceipt(name=name, command=check.command, timeout=receipt_seconds(check))
            for name, check in roster.receipts.items()
        ],
    )


def beside(file: str, name: str) -> str:
    """A path as it is meant in a file: relative to the folder of that file."""
    return os.path.normpath(os.path.join(os.path.dirname(file), name))


def _member(field: str, member: Member, manifest: Manifest, roster: Roster, roster_file: str) -> BoundMember:
    own_tools = _own_tools(field, member, manifest)
    writes = [
        WriteGrant(target=target, field=f"{field}.allowed_writes[{at}]", globs=roster.writes[target])
        for at, target in enumerate(member.allowed_writes)
    ]
    return BoundMember(
        id=member.id,
        field=field,
        role=member.role,
        profile=_profile(member.model_profile, roster, roster_file),
        capabilities=Capabilities(
            field=field, grants=_grants(field, member, roster), writes=writes, own_tools=own_tools
        ),
        own_tools=list(own_tools),
        contexts=[_context(name, roster, roster_file) for name in member.context_sources],
        writes=list(dict.fromkeys(glob for write in writes for glob in write.globs)),
        budget=member.budget,
        depends_on=member.depends_on,
        callable_by=member.callable_by,
    )


def _own_tools(field: str, member: Member, manifest: Manifest) -> dict[str, str]:
    """avenor's tools that a member has: the declared ones, and those that bring its own result."""
    declared = {name: f"{field}.tools[{at}]" for at, name in enumerate(member.tools) if name in OWN_TOOLS}
    if member.id == manifest.evaluation.owner:
        declared.setdefault("submit_verdict", "evaluation.owner")
    declared.setdefault("submit_result", field)
    return declared


def _grants(field: str, member: Member, roster: Roster) -> list[Grant]:
    grants: list[Grant] = []
    for at, name in enumerate(member.tools):
        found = tool_grant(roster, name)
        if found is not None:
            place = f"{field}.tools[{at}]"
            grants.append(Grant(tool=name, field=place, kinds=found.kinds, commands=found.commands, names=found.names))
    return grants


def _profile(name: str, roster: Roster, roster_file: str) -> BoundProfile:
    profile = roster.profiles[name]
    bound = BoundProfile(**asdict(profile), name=name)
    return bound if profile.script is None else replace(bound, script=beside(roster_file, profile.script))


def _context(name: str, roster: Roster, roster_file: str) -> BoundContext:
    source = roster.context.get(name)
    if source is None:
        return BoundContext(name=name, kind="builtin", value=name)
    if source.builtin is not None:
        return BoundContext(name=name, kind="builtin", value=source.builtin)
    if source.file is not None:
        return BoundContext(name=name, kind="file", value=beside(roster_file, source.file))
    if source.command is not None:
        return BoundContext(name=name, kind="command", command=source.command)
    return BoundContext(name=name, kind="text", value=source.text or "")
