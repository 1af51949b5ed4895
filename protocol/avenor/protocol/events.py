"""The events of a run: one flat JSON object a line, `event` first (contract, part 5).

The runtime's event log stamps every event (`seq`, `ts`, the ids) and encodes it once; everyone else passes the same
bytes on. What a backend reports keeps the backend's spelling (`toolCallId`, `rawInput`); members that a backend adds
and we do not know are kept under `extra`, and an update of an unknown kind is kept whole as `session.update`.

An event may have a `kind` of its own (`tool.call`, `permission.response`, `run.start`); the kind of the phase that it
belongs to is then `phase_kind`. The same for `agent.status`, whose `phase` is what the agent is at: `run_phase`.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.event_base import Event as Event
from avenor.protocol.event_base import KindStamped as KindStamped
from avenor.protocol.event_base import OptInt, OptRaw, OptStr
from avenor.protocol.event_base import OwnKind as OwnKind
from avenor.protocol.manifest.events import ManifestEvent

RunKind = Literal["single", "loop", "team", "manifest"]
PhaseKind = Literal["pre", "loop", "team", "post", "member"]
AgentPhase = Literal["thinking", "working", "waiting", "done"]
RetryClass = Literal["crash", "transport", "overloaded", "rate_limit", "unknown"]

Extra = dict[str, Raw] | UnsetType


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a turn or run; `cost_usd` only where the backend reports it."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_read_tokens: int = 0
    cost_usd: float | UnsetType = UNSET

    def plus(self, other: "Usage") -> "Usage":
        """The sum of both, member by member."""
        cost = self.cost_usd
        if other.cost_usd is not UNSET:
            cost = other.cost_usd + (0.0 if cost is UNSET else cost)
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_read_tokens=self.cached_read_tokens + other.cached_read_tokens,
            cost_usd=cost,
        )


class PermissionOption(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer that an agent offers (ACP PermissionOption)."""

    option_id: str
    kind: str
    name: str = ""


class RunStart(OwnKind, kw_only=True, tag="run.start"):
    """A run begins; `parks` says that after a clean turn it stays for follow-up prompts."""

    kind: RunKind
    backend: str
    dir: str
    version: str
    parks: bool = False


class RunResumed(KindStamped, kw_only=True, tag="run.resumed"):
    """A new process goes on with the run, whose process was lost: what that cut short, and where it goes on."""

    cut: str
    goes_on: str


class RunEnding(KindStamped, kw_only=True, tag="run.ending"):
    """Something ends the run from outside its work. Told before anything is cancelled: what the run will come to.

    Attributes:
        ordered: Whether all below it end with it; not where it was parked, and is only reaped.
    """

    status: str
    exit_code: int
    stop_reason: str
    reason: OptStr = UNSET
    ordered: bool = False


class SessionStart(KindStamped, kw_only=True, tag="session.start"):
    backend: str
    dir: str
    model: str | None = None
    agent: str | None = None
    resumed: bool | UnsetType = UNSET


class MessageChunk(KindStamped, kw_only=True, tag="agent.message_chunk"):
    content: Raw
    messageId: OptStr = UNSET
    extra: Extra = UNSET


class ThoughtChunk(KindStamped, kw_only=True, tag="agent.thought_chunk"):
    content: Raw
    messageId: OptStr = UNSET
    extra: Extra = UNSET


class UserChunk(KindStamped, kw_only=True, tag="user.message_chunk"):
    content: Raw
    messageId: OptStr = UNSET
    extra: Extra = UNSET


class ToolCall(OwnKind, kw_only=True, tag="tool.call"):
    toolCallId: str
    title: str
    kind: str = "other"
    status: str = "pending"
    rawInput: OptRaw = UNSET
    locations: OptRaw = UNSET
    content: OptRaw = UNSET
    rawOutput: OptRaw = UNSET
    extra: Extra = UNSET


class ToolCallUpdate(OwnKind, kw_only=True, tag="tool.call_update"):
    toolCallId: str
    title: OptStr = UNSET
    kind: OptStr = UNSET
    status: OptStr = UNSET
    rawInput: OptRaw = UNSET
    locations: OptRaw = UNSET
    content: OptRaw = UNSET
    rawOutput: OptRaw = UNSET
    extra: Extra = UNSET


class SessionPlan(KindStamped, kw_only=True, tag="session.plan"):
    entries: Raw
    extra: Extra = UNSET


class SessionMode(KindStamped, kw_only=True, tag="session.mode"):
    currentModeId: str
    extra: Extra = UNSET


class SessionCommands(KindStamped, kw_only=True, tag="session.commands"):
    availableCommands: Raw
    extra: Extra = UNSET


class SessionUsage(KindStamped, kw_only=True, tag="session.usage"):
    used: int
    size: int
    cost: OptRaw = UNSET
    extra: Extra = UNSET


class SessionInfo(KindStamped, kw_only=True, tag="session.info"):
    title: str | UnsetType | None = UNSET
    updatedAt: str | UnsetType | None = UNSET
    extra: Extra = UNSET


class SessionUpdate(KindStamped, kw_only=True, tag="session.update"):
    """Any update that has no event of its own, verbatim."""

    update: Raw


class PermissionRequest(KindStamped, kw_only=True, tag="permission.request"):
    request_id: str
    tool: str
    question: str
    options: list[PermissionOption]
    resolver: Literal["automatic", "control", "file", "none"]
    input: OptRaw = UNSET


class PermissionResponse(OwnKind, kw_only=True, tag="permission.response"):
    request_id: str
    option_id: str
    kind: Literal["allow", "reject", "cancelled"]
    source: Literal["avenor", "control", "file", "cancel"]
    message: OptStr = UNSET


class AgentStatus(Event, kw_only=True, tag="agent.status"):
    """What the agent is at: `phase` is one of `AgentPhase` here; the run's phase is `run_phase`."""

    source: Literal["avenor", "agent"]
    label: OptStr = UNSET
    run_phase: OptStr = UNSET
    kind: OptStr = UNSET


class AgentStderr(KindStamped, kw_only=True, tag="agent.stderr"):
    text: str


class AgentNoise(KindStamped, kw_only=True, tag="agent.noise"):
    text: str


class PromptQueued(KindStamped, kw_only=True, tag="prompt.queued"):
    """A prompt was accepted; `queued` prompts wait now.

    One that cuts the turn short has `keep_queue`: whether those that waited before it still do.
    """

    text: str
    source: str
    queued: int
    keep_queue: bool | UnsetType = UNSET


class TurnStart(KindStamped, kw_only=True, tag="turn.start"):
    """A prompt went to the agent; `queued` more wait."""

    text: str
    source: str
    queued: int = 0


class TurnEnd(KindStamped, kw_only=True, tag="turn.end"):
    """With an `error`, the rest tells what decides whether the prompt is said again, and when."""

    stop_reason: str
    usage: Usage | UnsetType = UNSET
    final_output: OptStr = UNSET
    error: OptStr = UNSET
    retry_class: RetryClass | UnsetType = msgspec.field(default=UNSET, name="class")
    permanent: bool | UnsetType = UNSET
    retry_after_ms: OptInt = UNSET


class SessionEnd(KindStamped, kw_only=True, tag="session.end"):
    stop_reason: str
    usage: Usage | UnsetType = UNSET
    final_output: OptStr = UNSET
    error: OptStr = UNSET
    left_processes: list[str] | UnsetType = UNSET
    unverified: OptStr = UNSET


class LoopStart(KindStamped, kw_only=True, tag="avenor.loop.start"):
    max_iterations: int
    pre_phase_count: int
    loop_phase_count: int
    post_phase_count: int


class LoopEnd(KindStamped, kw_only=True, tag="avenor.loop.end"):
    exit_reason: str
    iterations_completed: int
    exit_label: OptStr = UNSET
    final_output: OptStr = UNSET


class TeamStart(KindStamped, kw_only=True, tag="avenor.team.start"):
    pre_phase_count: int
    team_member_count: int
    post_phase_count: int


class TeamEnd(KindStamped, kw_only=True, tag="avenor.team.end"):
    exit_reason: str
    members_completed: int
    members_aborted: int
    members_failed: int = 0
    members_cancelled: int = 0
    members_skipped: int = 0
    exit_label: OptStr = UNSET
    final_output: OptStr = UNSET


class PhaseStart(KindStamped, kw_only=True, tag="avenor.phase.start"):
    pass


class PhaseEnd(KindStamped, kw_only=True, tag="avenor.phase.end"):
    """An attempt at a phase has ended; another one follows where `retried` is there."""

    stop_reason: str
    exit_code: int
    commit: OptStr = UNSET
    skips: list[str] | UnsetType = UNSET
    exit_marker: bool | UnsetType = UNSET
    exit_marker_label: OptStr = UNSET
    abort_marker: bool | UnsetType = UNSET
    abort_marker_label: OptStr = UNSET
    retried: bool | UnsetType = UNSET


class Retry(KindStamped, kw_only=True, tag="avenor.retry"):
    """The attempt that comes next is `attempt`, always given here; it starts after `delay_ms`."""

    max_retries: int
    delay_ms: int
    retry_class: RetryClass = msgspec.field(name="class")


class Error(KindStamped, kw_only=True, tag="avenor.error"):
    """Something went wrong beside the turn; a full disk kept the seqs `lost_from` to `lost_to` out of the log."""

    source: str
    message: str
    lost_from: OptInt = UNSET
    lost_to: OptInt = UNSET


class RunEnd(KindStamped, kw_only=True, tag="run.end"):
    """The last line of every log that ended."""

    status: str
    exit_code: int
    stop_reason: str
    reason: OptStr = UNSET


AnyEvent = (
    RunStart
    | RunResumed
    | RunEnding
    | SessionStart
    | MessageChunk
    | ThoughtChunk
    | UserChunk
    | ToolCall
    | ToolCallUpdate
    | SessionPlan
    | SessionMode
    | SessionCommands
    | SessionUsage
    | SessionInfo
    | SessionUpdate
    | PermissionRequest
    | PermissionResponse
    | AgentStatus
    | AgentStderr
    | AgentNoise
    | PromptQueued
    | TurnStart
    | TurnEnd
    | SessionEnd
    | LoopStart
    | LoopEnd
    | TeamStart
    | TeamEnd
    | PhaseStart
    | PhaseEnd
    | Retry
    | Error
    | RunEnd
    | ManifestEvent
)


class EventHead(msgspec.Struct, frozen=True, gc=False):
    """The envelope of an event line, for readers that pass lines on. Tolerant."""

    event: str
    seq: int
    ts: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)
_head_decoder = msgspec.json.Decoder(EventHead)

encode_event = _encoder.encode
decode_head = _head_decoder.decode


def decode_event(line: bytes) -> AnyEvent:
    """The event of one log line.

    Raises:
        msgspec.DecodeError: The line is no event that this version knows.
    """
    return _decoder.decode(line)


def event_name(event: Event) -> str:
    """The wire name of an event, `turn.end` for a `TurnEnd`."""
    return str(event.__struct_config__.tag)
