"""Loop and team configs (contract, part 4): as they are written, and as a run takes them.

A config file is read strictly into `LoopConfig` or `TeamConfig`. Loading resolves it, with every file that it names,
into a `ResolvedLoop` or `ResolvedTeam`, which holds all that a run needs: it is kept in the run's record.
"""

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from avenor.protocol.events import PhaseKind
from avenor.protocol.mcp import McpServer

INITIAL: Final = "(initial)"
DEFAULT_MAX_ITERATIONS: Final = 10
# The root is 1.
MAX_DEPTH: Final = 8

ConfigKind = Literal["loop", "team"]


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase as it is written.

    Attributes:
        name: Unique within the config.
        prompt: A template; exactly one of this and the three files is given.
        prompt_file: A file with a template. Like the other two relative to the folder of the file that names it.
        loop_file: A nested loop.
        team_file: A nested team.
        resume_from_previous: Goes on in the session of the phase before it.
        conditional: A team member that a pre phase may skip.
        agent: This and the next two override the run's, for a team member.
    """

    name: str
    prompt: str | None = None
    prompt_file: str | None = None
    loop_file: str | None = None
    team_file: str | None = None
    resume_from_previous: bool = False
    conditional: bool = False
    agent: str | None = None
    model: str | None = None
    backend: str | None = None


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A loop: `pre` once, `loop` over and over until a marker or `max_iterations`, `post` once.

    Attributes:
        mcp_servers: What the agents of its phases, and of those nested in them, are handed beside the run's own.
        schema: For editors.
    """

    pre: list[Phase] = []
    loop: list[Phase] = []
    post: list[Phase] = []
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    mcp_servers: list[McpServer] = []
    schema: str | None = msgspec.field(name="$schema", default=None)


class TeamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team: `pre` once, in order; `team` all at once; `post` once, in order.

    Attributes:
        mcp_servers: As of a loop.
        schema: For editors.
    """

    pre: list[Phase] = []
    team: list[Phase] = []
    post: list[Phase] = []
    mcp_servers: list[McpServer] = []
    schema: str | None = msgspec.field(name="$schema", default=None)


class ResolvedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase as a run takes it. Tolerant, because records of other versions hold it.

    Attributes:
        name: Unique within its config.
        kind: The list that it stands in.
        prompt: The text to render, and None for a nested phase.
        is_literal: The prompt is no template.
        nested: What to run instead of a prompt.
    """

    name: str
    kind: PhaseKind
    prompt: str | None = None
    is_literal: bool = False
    nested: "ResolvedLoop | ResolvedTeam | None" = None
    resume_from_previous: bool = False
    conditional: bool = False
    agent: str | None = None
    model: str | None = None
    backend: str | None = None


class ResolvedLoop(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="loop"):
    """A loop with all that its files hold.

    Attributes:
        file: Where it was read from.
        mcp_servers: What its phases get beside what comes from around it.
    """

    file: str
    pre: list[ResolvedPhase] = []
    loop: list[ResolvedPhase] = []
    post: list[ResolvedPhase] = []
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    mcp_servers: list[McpServer] = []


class ResolvedTeam(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="team"):
    """A team with all that its files hold."""

    file: str
    pre: list[ResolvedPhase] = []
    team: list[ResolvedPhase] = []
    post: list[ResolvedPhase] = []
    mcp_servers: list[McpServer] = []


ResolvedConfig = ResolvedLoop | ResolvedTeam


def with_initial(config: ResolvedConfig, prompt: str) -> ResolvedConfig:
    """The config with the run's own prompt, which is literal text, as a pre phase before all others."""
    initial = ResolvedPhase(name=INITIAL, kind="pre", prompt=prompt, is_literal=True)
    return replace(config, pre=[initial, *config.pre])


def backends_of(config: ResolvedConfig) -> set[str]:
    """The backends that its members, and those of nested teams, choose for themselves."""
    middle = config.loop if isinstance(config, ResolvedLoop) else config.team
    phases = [*config.pre, *middle, *config.post]
    found = {phase.backend for phase in phases if phase.backend is not None}
    for phase in phases:
        if phase.nested is not None:
            found |= backends_of(phase.nested)
    return found
