"""What a manifest must keep that can be told only with its roster: that names mean something, and are enforceable."""

from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from typing import Final

import msgspec

from avenor.protocol.manifest.asking import Asking
from avenor.protocol.manifest.globs import overlap
from avenor.protocol.manifest.model import Manifest, Member
from avenor.protocol.manifest.roster import BUILTIN_CONTEXTS, BUILTIN_TOOLS, OWN_TOOLS, WRITING_KINDS, Roster, ToolGrant
from avenor.protocol.manifest.rules import members_of
from avenor.protocol.validation import Mistake

# The sandbox keeps an agent from writing where it may not. What a command does elsewhere, and what is fetched, only
# the agent can ask about; and a granted command is one of a pattern, which is looked at when it is asked about.
_MUST_ASK: Final = frozenset({"execute", "fetch"})


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest is bound to.

    Attributes:
        roster: Its names.
        backends: The names that a profile's backend may have; of others there is nothing to say.
        asks: Tells of a backend before which tools its agent asks.
        unsandboxed: Members run without a sandbox.
    """

    roster: Roster
    backends: Collection[str]
    asks: Callable[[str], Asking]
    unsandboxed: bool = False


def tool_grant(roster: Roster, name: str) -> ToolGrant | None:
    """What a name of a tool grants; None of avenor's own tools, and of a name that means nothing."""
    return roster.tools.get(name) or BUILTIN_TOOLS.get(name)


def find_unbound(manifest: Manifest, bindings: Bindings) -> list[Mistake]:
    """Every rule that the manifest breaks with this roster."""
    return [
        *(found for path, member in members_of(manifest) for found in _names(path, member, bindings.roster)),
        *_shared_paths(manifest, bindings.roster),
        *(found for path, member in members_of(manifest) for found in _writing(path, member, manifest, bindings)),
        *(found for path, member in members_of(manifest) for found in _asking(path, member, bindings)),
    ]


def find_unused_rights(manifest: Manifest, roster: Roster) -> list[Mistake]:
    """What is allowed and can hardly be meant: a warning each."""
    return [*_useless_tools(manifest, roster), *_no_receipts(manifest, roster)]


def find_limits(manifest: Manifest, bindings: Bindings) -> list[Mistake]:
    """What is not enforced, and only recorded: a note each."""
    return [found for path, member in members_of(manifest) for found in _reading(path, member, bindings)]


def _names(path: str, member: Member, roster: Roster) -> Iterator[Mistake]:
    if member.model_profile not in roster.profiles:
        yield _unknown(f"{path}.model_profile", "profile", member.model_profile, roster.profiles)
    tools = (*roster.tools, *BUILTIN_TOOLS, *OWN_TOOLS)
    for at, name in enumerate(member.tools):
        if name not in tools:
            yield _unknown(f"{path}.tools[{at}]", "tool", name, tools)
    contexts = (*roster.context, *BUILTIN_CONTEXTS)
    for at, name in enumerate(member.context_sources):
        if name not in contexts:
            yield _unknown(f"{path}.context_sources[{at}]", "context source", name, contexts)
    for at, name in enumerate(member.allowed_writes):
        if name not in roster.writes:
            yield _unknown(f"{path}.allowed_writes[{at}]", "write target", name, roster.writes)


def _unknown(path: str, what: str, name: str, known: Collection[str]) -> Mistake:
    names = ", ".join(dict.fromkeys(known)) or "none"
    return Mistake(path, f"neither the roster nor avenor has a {what} {name!r}; there are {names}")


def _shared_paths(manifest: Manifest, roster: Roster) -> Iterator[Mistake]:
    """Pairs of globs of two members that a path could fit both of."""
    written = [
        (f"{path}.allowed_writes[{at}]", member.id, target, glob)
        for path, member in members_of(manifest)
        for at, target in enumerate(member.allowed_writes)
        for glob in roster.writes.get(target, ())
    ]
    for (_, one, first, one_glob), (place, other, second, other_glob) in combinations(written, 2):
        # That both name one target is told already.
        if one != other and first != second and overlap(one_glob, other_glob):
            yield Mistake(
                place,
                f"{other_glob!r} ({second}) could be a path of {one_glob!r} ({first}), which {one!r} writes: "
                "each write path has one writer",
            )


def _writing(path: str, member: Member, manifest: Manifest, bindings: Bindings) -> Iterator[Mistake]:
    writing = [name for name in member.tools if _kinds(bindings.roster, name) & WRITING_KINDS]
    known = all(tool_grant(bindings.roster, name) or name in OWN_TOOLS for name in member.tools)
    if member.allowed_writes and not writing and known:
        yield Mistake(f"{path}.tools", "it may write, and has no tool of kind edit, delete or move: declare one")
    if member.id == manifest.evaluation.owner:
        for name in writing:
            at = member.tools.index(name)
            yield Mistake(f"{path}.tools[{at}]", f"{name} writes: whoever judges the candidate must not change it")


def _asking(path: str, member: Member, bindings: Bindings) -> Iterator[Mistake]:
    kinds_at_stake = {*_MUST_ASK, *(WRITING_KINDS if bindings.unsandboxed else ())}
    unchecked = _unchecked(member, bindings, kinds_at_stake)
    if unchecked:
        kinds = ", ".join(sorted(unchecked))
        backend = bindings.roster.profiles[member.model_profile].backend
        yield Mistake(
            f"{path}.model_profile",
            f"authority: {backend}, set up so, is not known to ask before it uses tools of kind {kinds}; nothing would "
            f"hold {member.id!r} to its tools: configure the agent to deny them or to ask, and say so in the profile "
            f"(enforces_tools: [{kinds}]), or choose another backend",
        )


def _reading(path: str, member: Member, bindings: Bindings) -> Iterator[Mistake]:
    granted = {kind for name in member.tools for kind in _kinds(bindings.roster, name)}
    unchecked = sorted(_unchecked(member, bindings, {"read", "search"} - granted))
    if unchecked:
        backend = bindings.roster.profiles[member.model_profile].backend
        message = (
            f"{backend} does not ask before it uses tools of kind {', '.join(unchecked)}, which {member.id!r} is not "
            "granted: that it reads in its own worktree is recorded, not refused"
        )
        yield Mistake(f"{path}.tools", message)


def _unchecked(member: Member, bindings: Bindings, kinds: Collection[str]) -> set[str]:
    """Of these kinds those that nothing holds the member's agent back from."""
    profile = bindings.roster.profiles.get(member.model_profile)
    if profile is None or profile.backend not in bindings.backends:
        return set()
    unchecked = set(kinds) - set(profile.enforces_tools)
    asking = bindings.asks(profile.backend)
    # With another mode, or other settings, an agent may ask for less: then the roster has to say what it does.
    is_as_it_comes = profile.agent is None and asking.variables.isdisjoint(profile.env)
    return unchecked - asking.kinds if is_as_it_comes else unchecked


def _useless_tools(manifest: Manifest, roster: Roster) -> Iterator[Mistake]:
    for path, member in members_of(manifest):
        for at, name in enumerate(member.tools):
            if _kinds(roster, name) & WRITING_KINDS and not member.allowed_writes:
                message = f"{name} writes, and it may write nothing: every use will be refused"
                yield Mistake(f"{path}.tools[{at}]", message)


def _no_receipts(manifest: Manifest, roster: Roster) -> Iterator[Mistake]:
    if roster.receipts:
        return
    if any(member.allowed_writes for member in manifest.members):
        yield Mistake("$.evaluation.accepts_when", "the roster has no receipts: the verdict alone decides")
    for path, member in members_of(manifest):
        if "read_test_receipt" in member.tools:
            yield Mistake(
                f"{path}.tools[{member.tools.index('read_test_receipt')}]", "the roster has no receipts to read"
            )


def _kinds(roster: Roster, name: str) -> set[str]:
    grant = tool_grant(roster, name)
    return set() if grant is None else set(grant.kinds)
