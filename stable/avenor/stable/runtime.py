"""What the supervisor knows of one runtime: its record, its state as its events tell it, and its link."""

import enum
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from avenor.control.hub import EventHub
from avenor.host.identity import ProcessId
from avenor.host.ladder import StopResult
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError
from avenor.protocol.methods import Cancelled
from avenor.protocol.outcomes import Outcome
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.protocol.spec import Record

if TYPE_CHECKING:
    from avenor.stable.link import Link

_SILENT: Final = b'"silent_for_ms":1,'

_encode: Final = msgspec.json.Encoder().encode


class Stage(enum.Enum):
    """How far the supervisor is with a runtime; what the run is at is in its snapshot.

    `LOST` is dead, and not settled yet: what an earlier supervisor left.
    """

    QUEUED = "queued"
    LAUNCHING = "launching"
    LIVE = "live"
    LOST = "lost"
    ENDED = "ended"


class Runtime:
    """One runtime. The task that keeps it is its one writer.

    Args:
        directory: Its directory.
        record: Its record.
        stage: Where it starts.
        fold: What its log came to, if that was read already.

    Attributes:
        hub: Its events, and the fold over them.
        link: The connection to its process; it takes calls before there is one.
        process: Which process it is, once it has said so.
        end: The outcome to settle it with where its log has none, if we know better than that it was lost.
        failure: Why it never started.
        stopped: What the sweep after its death came to, where there was one.
        not_resumed: Why no new process goes on with it, where its record asks for one.
        cancels: How many clients wait for the answer to a cancel.
        ends_tree: It was ordered to end, and all below it with it: nothing is started there any more.
        proof: What it has answered when it was cancelled together with one above it.
        is_summary: Only the beginning and the end of its log were read.
        last_status: The status that the supervisor has acted on.
        spawner: The client whose spawn it was, while that has not left.
        started: It answers on its socket and its spawner owns it, or it never will.
        has_session: The agent has given a session id, or never will.
        ended: Its outcome is settled: log, sentinel, processes.
    """

    def __init__(self, directory: RunDir, record: Record, stage: Stage, fold: Fold | None = None) -> None:
        self.id = record.runtime_id
        self.directory = directory
        self.record = record
        self.stage = stage
        fold = fold or Fold(first_snapshot(directory, record, stage))
        self.hub = EventHub(self.id, directory.log_path, fold)
        self.link: Link | None = None
        self.process: ProcessId | None = None
        self.end: Outcome | None = None
        self.failure: AvenorError | None = None
        self.stopped: StopResult | None = None
        self.not_resumed: str | None = None
        self.cancels = 0
        self.ends_tree = False
        self.proof: Cancelled | None = None
        self.is_summary = False
        self.last_status = self.state.status
        self.spawner: str | None = None
        self.started = trio.Event()
        self.has_session = trio.Event()
        self.ended = trio.Event()
        self._revision = 0
        self._stamp: tuple[int, int] | None = None
        self._head = b""
        self._tail: bytes | None = None

    @property
    def state(self) -> Snapshot:
        """The state that its events came to. Change only what no event carries, and say so with `revise`."""
        return self.hub.fold.state

    @property
    def is_live(self) -> bool:
        """Whether its end is still to come."""
        return self.stage is not Stage.ENDED

    @property
    def is_busy(self) -> bool:
        """Whether it has one of the places: it starts, or works. One that was lost may go on in a moment."""
        is_up = self.stage in (Stage.LAUNCHING, Stage.LIVE, Stage.LOST)
        return is_up and self.state.status in ("starting", "running")

    @property
    def counts_in_tree(self) -> bool:
        """Whether it counts against the bound of its tree: it works, or waits for a place to. A parked one does not."""
        return self.is_busy or self.stage is Stage.QUEUED

    @property
    def on_event(self) -> str:
        """The path of its event log, as its spawner wanted it."""
        return self.record.spec.on_event or str(self.directory.log_path)

    @property
    def sentinel_file(self) -> str:
        """The path of its sentinel."""
        return self.record.spec.sentinel_file or str(self.directory.sentinel_path)

    def revise(self) -> None:
        """Something in the snapshot has changed that no event tells."""
        self._revision += 1
        self.hub.touch()

    def encoded_snapshot(self, now_ms: int) -> bytes:
        """The snapshot as JSON. Encoded once for each change: only the silence goes on by itself."""
        stamp = (self.state.latest_seq, self._revision)
        if stamp != self._stamp:
            self._encode()
            self._stamp = stamp
        if self._tail is None:
            return self._head
        silent_ms = max(0, now_ms - (self.state.updated_at or now_ms))
        return b'%b"silent_for_ms":%d,%b' % (self._head, silent_ms, self._tail)

    def _encode(self) -> None:
        # One millisecond after the last event shows whether the fold counts this time as silence. A quote within a
        # string is escaped, so the key is found nowhere but where it stands.
        encoded = _encode(self.hub.fold.snapshot((self.state.updated_at or 0) + 1))
        head, found, tail = encoded.partition(_SILENT)
        self._head, self._tail = (head, tail) if found else (encoded, None)


def first_snapshot(directory: RunDir, record: Record, stage: Stage) -> Snapshot:
    """What is known of a run before its first event."""
    spec = record.spec
    return Snapshot(
        runtime_id=record.runtime_id,
        run_id=record.run_id,
        label=spec.label,
        agent=spec.agent,
        model=spec.model,
        backend=record.backend,
        dir=spec.dir,
        status="queued" if stage is Stage.QUEUED else "starting",
        max_retries=spec.max_retries,
        on_event=spec.on_event or str(directory.log_path),
        sentinel_file=spec.sentinel_file or str(directory.sentinel_path),
        parent_id=record.parent_id,
        depth=record.depth,
    )
