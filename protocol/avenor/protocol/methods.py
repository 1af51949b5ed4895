"""Params and results of the control protocol (contract, part 6), and the frame that carries an event.

Ours are strict: an unknown member is refused with its name.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.snapshot import Snapshot

# Both sides refuse a longer line: large enough for a prompt with a big file in it, small enough that a client cannot
# fill the supervisor's memory. gRPC's and containerd's defaults for one message are of the same order (4 to 16 MiB).
LINE_LIMIT_BYTES: Final = 16 * 1024 * 1024

# Each costs a look at the events that it is for; more than anybody has a use for.
SUBSCRIPTION_LIMIT: Final = 1024

LogLevel = Literal["debug", "info", "warning", "error"]

EVENT_PREFIX: Final = b'{"jsonrpc":"2.0","method":"event","params":'
EVENT_SUFFIX: Final = b"}"


def wrap_event(line: bytes) -> bytes:
    """The notification that carries one event, as a line like the event's own: without newline."""
    return EVENT_PREFIX + line + EVENT_SUFFIX


def unwrap_event(notification: bytes) -> bytes:
    """The event line inside a notification made by `wrap_event`."""
    return notification[len(EVENT_PREFIX) : -len(EVENT_SUFFIX)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all params."""


class NoParams(Params, frozen=True):
    """For methods that take none."""


class Target(Params, frozen=True, kw_only=True):
    """Which runtime is meant; with none, the only live one."""

    runtime_id: str | None = None


class OwnerTarget(Target, frozen=True, kw_only=True):
    """For owner methods: `force` takes the ownership over."""

    force: bool = False


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    """`ping`. `start_time` is the process's kernel start in clock ticks, which with `boot_id` and `pid` names it."""

    version: str
    pid: int
    mode: Literal["run", "stable"]
    uptime_ms: int
    start_time: int
    boot_id: str
    runtime_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET


class ListParams(Params, frozen=True, kw_only=True):
    """`list`: with `fields` only these members of each snapshot, so that thousands of runs fit into an answer."""

    fields: list[str] | None = None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """`result`: of the last turn, complete; both None before the first has ended."""

    final_output: str | None
    stop_reason: str | None


class HistoryParams(Target, frozen=True, kw_only=True):
    after_seq: int = 0
    limit: int = 64


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`history`: `complete` says that no event after the last one given is in the log yet."""

    events: list[Raw]
    latest_seq: int
    complete: bool


class SubscribeParams(Target, frozen=True, kw_only=True):
    """`subscribe`. Without `runtime_id` every runtime is meant, later ones too.

    Attributes:
        replay: Start with what is in the log.
        after_seq: Start after this one (implies a replay of what follows); needs a runtime.
        limit: Replay at most so many of the last events.
        events: Only events of these names.
        on_lag: When the subscriber is too slow, drop the oldest and say so, or catch up from the log.
    """

    replay: bool = False
    after_seq: int | None = None
    limit: int | None = None
    events: list[str] | None = None
    on_lag: Literal["drop", "disk"] = "drop"


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    subscribed: bool
    id: str
    latest_seq: int | UnsetType = UNSET
    reset: bool | UnsetType = UNSET


class UnsubscribeParams(Params, frozen=True, kw_only=True):
    id: str


class Ok(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool = True


class WaitParams(Target, frozen=True, kw_only=True):
    until: Literal["attention", "done"]
    timeout_ms: int | None = None
    complete_output: bool = False


class Spawned(msgspec.Struct, frozen=True, kw_only=True):
    """`spawn`. `session_id` is empty where the answer did not wait for one."""

    runtime_id: str
    session_id: str
    on_event: str
    sentinel_file: str


class PromptParams(OwnerTarget, frozen=True, kw_only=True):
    text: str


class PromptAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt`: `queued` prompts wait before it runs; 0 means that it goes to the agent at once."""

    accepted: bool
    queued: int
    sessions: list[str] | UnsetType = UNSET


class InterruptParams(OwnerTarget, frozen=True, kw_only=True):
    text: str
    keep_queue: bool = False


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    accepted: bool = True


class AnswerParams(OwnerTarget, frozen=True, kw_only=True):
    request_id: str
    option_id: str
    message: str | None = None


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """`cancel`: the run has ended. `left` names what could not be ended, `unverified` why nothing could be proven."""

    ok: bool
    left: list[str]
    unverified: str | UnsetType = UNSET


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    owner: str | None


class ShutdownParams(Params, frozen=True, kw_only=True):
    mode: Literal["graceful", "drain", "detach", "kill"] = "graceful"


class ShuttingDown(msgspec.Struct, frozen=True, kw_only=True):
    shutting_down: bool = True


class PruneParams(Params, frozen=True, kw_only=True):
    """`prune`: forgets runtimes that ended longer ago than `keep` (seconds, or text like `7d`), and their files.

    With `dry_run` nothing is forgotten: the answer names what would be.
    """

    keep: float | str
    dry_run: bool = False


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """`prune`: the ids of the runtimes that are gone now; they are never used again."""

    pruned: list[str]


class LogLevelParams(Params, frozen=True, kw_only=True):
    """`log_level`: the least important messages that the supervisor logs from now on; with none it only tells."""

    level: LogLevel | None = None


class LogLevelSet(msgspec.Struct, frozen=True, kw_only=True):
    """`log_level`: what is logged now."""

    level: LogLevel


class Lagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="subscriber.lagged"):
    """Notice to one subscriber: so many events of this runtime were dropped for it."""

    dropped_count: int
    runtime_id: str | None


class OwnerChanged(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="owner.changed"):
    """Notice to the old owner of a runtime."""

    runtime_id: str | None
    owner: str | None


Notice = Lagged | OwnerChanged


# ---- between a supervisor and its runtimes


class RouterHello(msgspec.Struct, frozen=True, kw_only=True):
    """`router.hello`: who the runtime is, and where it stands."""

    ping: Pong
    snapshot: Snapshot


class RouterCall(Params, frozen=True, kw_only=True):
    """A client's call, passed on in its name. `params` is absent where the client sent none."""

    client: str
    method: str
    params: Raw | UnsetType = UNSET


class RouterLeft(Params, frozen=True, kw_only=True):
    client: str


class RouterReaped(msgspec.Struct, frozen=True, kw_only=True):
    """`router.reap`: whether the runtime ends now. If not, it has accepted a prompt, or ends anyhow."""

    reaped: bool


class RouterNotice(Params, frozen=True, kw_only=True):
    """A notice for one of the router's clients."""

    client: str
    params: Raw


class RouterOwner(Params, frozen=True, kw_only=True):
    owner: str | None
