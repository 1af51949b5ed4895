"""Where an agent session reports to: stamps events, reads along with the turn, and brings questions to the broker."""

from collections.abc import Callable
from typing import Protocol

import trio
from msgspec import UNSET

from avenor.protocol.events import Event
from avenor.runtimes.agentstatus import StatusReporter
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.eventlog import EventLog
from avenor.runtimes.permissions import Broker
from avenor.runtimes.readings import Reading, looks_like


class Policy(Protocol):
    """Settles by rule what the agent of one conversation asks."""

    def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """The answer to a question; None leaves it to the run's broker."""
        ...

    def note(self, event: Event) -> None:
        """Takes every event of the conversation, stamped, after it has been told. Raises nothing."""
        ...


class AgentSink:
    """The `SessionSink` of one agent process.

    Args:
        log: Takes the events.
        broker: Settles what the agent asks.
        mark: Puts on every event what it belongs to beside the session; None if that is the run as a whole.
        policy: Is asked before the broker, and sees every event; None leaves all to the broker.

    Attributes:
        session_id: Stamped on every event once it is known.
        reading: Reads along while a turn runs.
        status: Tells what the agent is at.
        batch: See `SessionSink`.
        last_emit_at: When the last event of this session came, on trio's clock.
    """

    def __init__(
        self,
        log: EventLog,
        broker: Broker,
        mark: Callable[[Event], object] | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.session_id = ""
        self.reading: Reading | None = None
        self.status = StatusReporter(self._stamp_and_emit)
        self.batch = log.batch
        self.last_emit_at = log.last_emit_at
        self._log = log
        self._broker = broker
        self._mark = mark
        self._policy = policy

    def emit(self, event: Event) -> None:
        """Takes the next event of the session."""
        self._stamp_and_emit(event)
        if self.reading is None:
            return
        statuses = self.reading.note(event)
        if statuses:
            for directive in statuses:
                self.status.said(directive)
        elif (phase := looks_like(event)) is not None:
            self.status.observed(phase)

    async def ask_permission(self, request: PermissionAsk) -> PermissionAnswer:
        """Brings a question to the policy, and to the broker if that has no answer. See `SessionSink`."""
        answer = None if self._policy is None else self._policy.answer(request)
        if answer is not None:
            self._broker.tell_settled(request, answer, session_id=self.session_id, emit=self._note_permission)
            await trio.lowlevel.checkpoint()
            return answer
        return await self._broker.ask(request, asker=self, session_id=self.session_id, emit=self._note_permission)

    def begin_turn(self) -> Reading:
        """From now on events belong to a turn."""
        self.reading = Reading()
        self.status.turn_started()
        return self.reading

    def end_turn(self) -> None:
        """The turn is over; what comes now belongs to none."""
        if self.reading is not None:
            for directive in self.reading.end():
                self.status.said(directive)
            self.reading = None
            self.status.turn_ended()

    def _note_permission(self, event: Event) -> None:
        """Takes the broker's events about a question of this session."""
        self.emit(event)
        self.status.permission_event(event)

    def _stamp_and_emit(self, event: Event) -> None:
        event.session_id = self.session_id or UNSET
        if self._mark is not None:
            self._mark(event)
        self._log.emit(event)
        self.last_emit_at = self._log.last_emit_at
        if self._policy is not None:
            self._policy.note(event)
