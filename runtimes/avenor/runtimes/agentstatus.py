"""What an agent is said to be at: by its own status markers, and by avenor where it does not say."""

from collections.abc import Callable

from msgspec import UNSET

from avenor.protocol.events import AgentPhase, AgentStatus, Event, PermissionRequest, PermissionResponse
from avenor.protocol.markers import Directive


class StatusReporter:
    """Emits `agent.status` when it changes.

    Within a turn the agent's own word counts: once it has spoken, avenor adds only that a permission is waited for, and
    `done` at the end unless the agent has left word of `waiting` or `done` itself.

    Args:
        emit: Takes the events, in order.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._shown: tuple[str, str | None] | None = None
        self._said: tuple[str, str | None] | None = None
        self._open: set[str] = set()

    def turn_started(self) -> None:
        """A prompt goes to the agent."""
        self._said = None
        self._show(("thinking", None))

    def observed(self, phase: AgentPhase) -> None:
        """The agent does something that looks like this phase."""
        if self._said is None and not self._open:
            self._show((phase, None))

    def said(self, directive: Directive) -> None:
        """The agent wrote a status marker."""
        self._said = (directive.word, directive.label)
        self._show(self._said, by_agent=True)

    def permission_event(self, event: Event) -> None:
        """A permission was asked of somebody, or settled."""
        if isinstance(event, PermissionRequest) and event.resolver != "automatic":
            self._open.add(event.request_id)
            self._show(("waiting", None))
        elif isinstance(event, PermissionResponse) and event.request_id in self._open:
            self._open.remove(event.request_id)
            if not self._open:
                self._go_on()

    def turn_ended(self) -> None:
        """The turn is over."""
        if self._said is None or self._said[0] not in ("waiting", "done"):
            self._show(("done", None))

    def _go_on(self) -> None:
        if self._said is None:
            self._show(("working", None))
        else:
            self._show(self._said, by_agent=True)

    def _show(self, status: tuple[str, str | None], *, by_agent: bool = False) -> None:
        if status == self._shown:
            return
        self._shown = status
        phase, label = status
        self._emit(
            AgentStatus(phase=phase, label=UNSET if label is None else label, source="agent" if by_agent else "avenor")
        )
