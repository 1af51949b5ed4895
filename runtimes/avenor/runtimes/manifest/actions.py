"""What the scheduler decides: events to tell, and what to do once they are told."""

from typing import Literal

import msgspec

from avenor.protocol.event_base import Event

CancelWord = Literal["cancelled", "timed_out", "lost"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions; by itself it only tells.

    Attributes:
        events: Told, in order, before anything is done.
    """

    events: list[Event] = []


class Tell(Action, frozen=True, kw_only=True):
    """Changes the state."""


class Start(Action, frozen=True, kw_only=True):
    """Starts an attempt."""

    task_id: str
    attempt_id: str


class Cancel(Action, frozen=True, kw_only=True):
    """Ends an attempt that goes on: it is asked to end, and made to."""

    attempt_id: str
    why: CancelWord
    reason: str


class Reconcile(Action, frozen=True, kw_only=True):
    """Looks what an attempt of a writer has left, of which nobody knows how far it came."""

    attempt_id: str


class RunReceipts(Action, frozen=True, kw_only=True):
    """Runs the checks of a revision that were not run on it yet."""

    revision: str


class Ask(Action, frozen=True, kw_only=True):
    """Asks the owner of the run which side of a join's conflicts holds."""

    join_id: str


class Doing(msgspec.Struct, kw_only=True):
    """What this process is doing now; a new process begins with nothing.

    Attributes:
        attempts: The attempts that it runs.
        cancelling: Those of them that were told to end.
        reconciling: The attempts whose remains are looked at.
        receipts: The revisions whose checks run.
        asking: The joins whose conflicts somebody is asked about.
        asked_seconds: By task, how long whoever has started it lets it take at most.
    """

    attempts: set[str] = msgspec.field(default_factory=set[str])
    cancelling: set[str] = msgspec.field(default_factory=set[str])
    reconciling: set[str] = msgspec.field(default_factory=set[str])
    receipts: set[str] = msgspec.field(default_factory=set[str])
    asking: set[str] = msgspec.field(default_factory=set[str])
    asked_seconds: dict[str, float] = msgspec.field(default_factory=dict[str, float])

    @property
    def is_idle(self) -> bool:
        """Whether nothing goes on."""
        return not (self.attempts or self.reconciling or self.receipts or self.asking)
