"""Whether a run goes on in a new process when its process was lost."""

import time
from collections.abc import Callable

from avenor.protocol.durations import format_duration
from avenor.stable.runtime import Runtime
from avenor.stable.shutdown import Mode


class Resuming:
    """The decision for each runtime whose process was lost, as its record, its log and the shutdown say.

    Args:
        most: How many new processes a run gets within the window. One that needs more dies of something that stays.
        window_seconds: Counted back from now; the log tells when they were.
        stopping: How the supervisor is to stop, if it is.
    """

    def __init__(self, *, most: int, window_seconds: float, stopping: Callable[[], Mode | None]) -> None:
        self._most = most
        self._window_seconds = window_seconds
        self._stopping = stopping

    @property
    def leaves_to_next(self) -> bool:
        """This supervisor is about to leave what lives to the next one; what is lost now is that one's, too."""
        return self._stopping() == "detach"

    def refusal(self, runtime: Runtime) -> str | None:
        """Why a run that is to go on must not, in words; None if it goes on."""
        if runtime.hub.fold.ending is not None or runtime.end is not None or runtime.cancels:
            return "it was being ended"
        if self._stopping() not in (None, "drain"):
            return "the supervisor was shutting down"
        since_ms = (time.time() - self._window_seconds) * 1000
        if sum(at >= since_ms for at in runtime.hub.fold.resumed_at) >= self._most:
            return f"it had been resumed {self._most} times within {format_duration(self._window_seconds)}"
        return None
