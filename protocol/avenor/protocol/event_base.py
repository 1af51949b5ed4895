"""What every event of a run carries; `avenor.protocol.events` has the events themselves."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

OptStr = str | UnsetType
OptInt = int | UnsetType
OptRaw = Raw | UnsetType


class Event(msgspec.Struct, kw_only=True, tag_field="event", gc=False):
    """What every event carries. Not frozen: the event log, its one writer, stamps it in place.

    Attributes:
        seq: Number within the runtime, from 1; 0 until it is stamped.
        ts: Unix milliseconds.
    """

    seq: int = 0
    ts: int = 0
    run_id: str = ""
    run_label: OptStr = UNSET
    runtime_id: OptStr = UNSET
    session_id: OptStr = UNSET
    path: OptStr = UNSET
    depth: OptInt = UNSET
    phase: OptStr = UNSET
    iteration: OptInt = UNSET
    attempt: OptInt = UNSET


class KindStamped(Event, kw_only=True):
    """Events that have no `kind` of their own, so that the phase's is stamped under that name."""

    kind: OptStr = UNSET


class OwnKind(Event, kw_only=True):
    """Events with a `kind` of their own."""

    phase_kind: OptStr = UNSET
