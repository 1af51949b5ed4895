"""Why a run ends: the first cause wins, and it is recorded before anything is cancelled."""

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import trio


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a run from outside its work.

    Attributes:
        stop_reason: The word that the run's outcome gets; not used when the run was parked.
        reason: For people: who or what did it.
    """

    stop_reason: str
    reason: str


class Ending:
    """The one decision of a run, or of a part of one, to end, and its effect on whatever waits at that moment."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self._decided = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._children: set[Ending] = set()
        self._is_settled = False

    @property
    def is_decided(self) -> bool:
        """Whether the run is ending, by a cause or by itself."""
        return self._is_settled

    def settle(self) -> bool:
        """The work has ended by itself, and no later cause counts; False if a cause was there first."""
        if self._is_settled:
            return False
        self._is_settled = True
        return True

    def decide(self, cause: Cause) -> bool:
        """Ends the run for this cause; False if it was already ending."""
        if not self.settle():
            return False
        self.cause = cause
        self._decided.set()
        for child in list(self._children):
            child.decide(cause)
        for scope in list(self._scopes):
            scope.cancel()
        return True

    @contextmanager
    def part(self) -> Generator["Ending", None, None]:
        """The ending of a part of the work: it ends with the whole, and can end by itself before."""
        part = Ending()
        if self.cause is not None:
            part.decide(self.cause)
        self._children.add(part)
        try:
            yield part
        finally:
            self._children.discard(part)

    async def wait_decided(self) -> None:
        """Returns once a cause was recorded."""
        await self._decided.wait()

    @contextmanager
    def interruptible(self) -> Generator[trio.CancelScope, None, None]:
        """A scope that is cancelled when a cause is recorded, at once if one was."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.cause is not None:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
