"""What every event of a loop or team carries beside the run's ids: where in it the event belongs."""

from typing import TypeVar

import msgspec
from msgspec import UNSET

from avenor.protocol.configs import ResolvedPhase
from avenor.protocol.events import AgentStatus, Event, KindStamped, OwnKind

E = TypeVar("E", bound=Event)


class Scope(msgspec.Struct, frozen=True):
    """A loop or team within its run.

    Args:
        outer: The names of the phases around it, the outermost first; empty for the run's own.
    """

    outer: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """As events carry it; empty for the run's own."""
        return "/".join(self.outer)

    def inside(self, phase: str) -> "Scope":
        """The scope of what this phase runs."""
        return Scope((*self.outer, phase))

    def put_on(self, event: E) -> E:
        """The event, with path and depth on it where it is not the run's own."""
        if self.outer:
            event.path = self.path
            event.depth = len(self.outer) + 1
        return event


class PhaseMark:
    """One attempt at one phase.

    Args:
        phase: Which.
        scope: The loop or team that it is part of.
        iteration: From 1 in the loop list, else 0.
        attempt: From 1; the first is not told.
    """

    def __init__(self, phase: ResolvedPhase, scope: Scope, iteration: int, attempt: int = 1) -> None:
        self.attempt = attempt
        self._name = phase.name
        self._kind = phase.kind
        self._scope = scope
        self._iteration = iteration

    def put_on(self, event: E) -> E:
        """The event, with this phase on it."""
        self._scope.put_on(event)
        event.iteration = self._iteration
        if self.attempt > 1 and event.attempt is UNSET:
            event.attempt = self.attempt
        if isinstance(event, AgentStatus):  # whose `phase` is the agent's own
            event.run_phase = self._name
            event.kind = self._kind
            return event
        event.phase = self._name
        if isinstance(event, KindStamped):
            event.kind = self._kind
        elif isinstance(event, OwnKind):
            event.phase_kind = self._kind
        return event
