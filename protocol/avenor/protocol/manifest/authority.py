"""Decides whether a member may use a tool: from what it was granted, never from what it is called.

The decision names the field of the manifest that it rests on. Command lines are decided in `commandlines.py`, paths by
`globs.py`. What the sandbox holds back by itself (a write whose path the agent does not tell) is not refused twice.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from avenor.protocol.manifest.commandlines import why_not_allowed
from avenor.protocol.manifest.globs import matches_glob
from avenor.protocol.manifest.roster import TOOL_KINDS, WRITING_KINDS, GrantedKind

# The name under which the run's own tools are served to an agent over MCP.
OWN_SERVER: Final = "avenor"
# How agents name a tool of an MCP server: `mcp__avenor__x` (claude), `avenor_x` (opencode), `avenor.x` and `avenor/x`
# (codex), `x (avenor MCP Server)` (gemini, qwen), `avenor:x`.
_OWN_TOOL: Final = re.compile(
    rf"(?:mcp__{OWN_SERVER}__|{OWN_SERVER}(?:_{{1,2}}|[-./:]))(?P<name>[a-z_]+)"
    rf"|(?P<other>[a-z_]+) \({OWN_SERVER}(?: MCP Server)?\)"
)


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one declared tool allows.

    Attributes:
        tool: Its name.
        field: Where it is declared: `members[3].tools[1]`.
        kinds: The kinds of tool calls.
        commands: Patterns of command lines, for `execute`.
        names: Patterns of tool names, for `other`.
    """

    tool: str
    field: str
    kinds: list[GrantedKind]
    commands: list[str] = []
    names: list[str] = []


class WriteGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What one write target allows.

    Attributes:
        target: Its name.
        field: Where it is declared: `members[3].allowed_writes[0]`.
        globs: The paths, relative to the repository.
    """

    target: str
    field: str
    globs: list[str]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """All that a member may do.

    Attributes:
        field: The member: `members[3]`.
        grants: By its declared tools, in their order.
        writes: By its write targets.
        own_tools: The tools that avenor serves to it, by name, each with the field that it is declared in.
    """

    field: str
    grants: list[Grant] = []
    writes: list[WriteGrant] = []
    own_tools: dict[str, str] = {}


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is about to do.

    Attributes:
        tool: The tool's name, as far as the agent tells it.
        kind: As the agent calls it; None, or what is no known kind, counts as `other`.
        title: What it shows to people.
        mcp: The server and the name of a tool of an MCP server, where the agent tells these.
        command: The command line, as one text for a shell or as the words of a program line.
        paths: What it touches, relative to the member's working folder; absolute or with `..` where that is outside.
    """

    tool: str = ""
    kind: str | None = None
    title: str = ""
    mcp: tuple[str, str] | None = None
    command: str | Sequence[str] | None = None
    paths: Sequence[str] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it may.

    Attributes:
        field: The field of the manifest that decided.
        reason: One line for people and for the agent.
        tool: The declared tool that allows it.
    """

    allow: bool
    field: str
    reason: str
    tool: str | None = None


def decide(capabilities: Capabilities, use: ToolUse) -> Decision:
    """Whether a member with these capabilities may do that."""
    own = own_tool_name(use)
    if own is not None:
        return _decide_own(capabilities, own)
    kind = use.kind if use.kind in TOOL_KINDS else "other"
    # An agent that runs a command is executing, whatever it calls that.
    if use.command is not None:
        kind = "execute"
    grants = [grant for grant in capabilities.grants if kind in grant.kinds]
    tools_field = f"{capabilities.field}.tools"
    if not grants:
        return _deny(tools_field, f"none of its tools is of kind {kind}")
    if kind == "execute":
        return _decide_command(tools_field, grants, use)
    if kind == "other":
        return _decide_name(tools_field, grants, use)
    if kind in WRITING_KINDS:
        return _decide_paths(capabilities, grants[0], use)
    return _allow(grants[0], f"{grants[0].tool} is of kind {kind}")


def own_tool_name(use: ToolUse) -> str | None:
    """The name of the tool of avenor's own MCP server that is meant; None for anything else.

    The server checks for itself who may call what; so what only looks like such a call gains nothing but a refusal
    there. A use that has a command or paths is none.
    """
    if use.command is not None or use.paths:
        return None
    if use.mcp is not None:
        server, name = use.mcp
        return name if server == OWN_SERVER else None
    for text in (use.tool, use.title):
        found = _OWN_TOOL.fullmatch(text)
        if found:
            return found["name"] or found["other"]
    return None


def may_write(capabilities: Capabilities, path: str) -> bool:
    """Whether a path, relative to the repository, is within the member's write targets."""
    return _write_grant(capabilities, path) is not None


def _write_grant(capabilities: Capabilities, path: str) -> WriteGrant | None:
    for write in capabilities.writes:
        if any(matches_glob(glob, path) for glob in write.globs):
            return write
    return None


def _decide_own(capabilities: Capabilities, name: str) -> Decision:
    field = capabilities.own_tools.get(name)
    if field is None:
        return _deny(f"{capabilities.field}.tools", f"it does not declare {name}")
    return Decision(allow=True, field=field, reason=f"{name} is a declared tool of avenor's", tool=name)


def _decide_command(field: str, grants: Sequence[Grant], use: ToolUse) -> Decision:
    if use.command is None:
        return _deny(field, "the agent does not tell which command it is about to run")
    reasons: dict[str, None] = {}
    for grant in grants:
        for pattern in grant.commands:
            reason = why_not_allowed(use.command, pattern)
            if reason is None:
                return _allow(grant, f"{grant.tool} allows the command {pattern!r}")
            reasons[reason] = None
    names = ", ".join(grant.tool for grant in grants)
    return _deny(grants[0].field, f"{names} does not allow the command: {'; '.join(reasons)}")


def _decide_name(field: str, grants: Sequence[Grant], use: ToolUse) -> Decision:
    name = "/".join(use.mcp) if use.mcp is not None else use.tool or use.title
    for grant in grants:
        for pattern in grant.names:
            if fnmatchcase(name, pattern):
                return _allow(grant, f"{grant.tool} allows the tool {pattern!r}")
    return _deny(field, f"no declared tool allows {name!r}" if name else "the agent does not tell which tool it is")


def _decide_paths(capabilities: Capabilities, grant: Grant, use: ToolUse) -> Decision:
    field = f"{capabilities.field}.allowed_writes"
    if not capabilities.writes:
        return _deny(field, "it may not write anything")
    for path in use.paths:
        if not may_write(capabilities, path):
            return _deny(field, f"{path!r} is in none of its write targets")
    return _allow(grant, f"{grant.tool} is of kind {use.kind}")


def _allow(grant: Grant, reason: str) -> Decision:
    return Decision(allow=True, field=grant.field, reason=reason, tool=grant.tool)


def _deny(field: str, reason: str) -> Decision:
    return Decision(allow=False, field=field, reason=reason)
