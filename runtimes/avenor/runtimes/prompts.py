"""The queue of prompts that wait for the agent.

Accepting, taking and closing are synchronous, so that a prompt is either accepted and run, or refused: nothing is
accepted into a run that has decided to end.
"""

from collections import deque
from typing import Final

import msgspec
import trio

from avenor.protocol.errors import Ended, LimitReached

# More waiting prompts than a person can mean. Beyond it a prompt is refused, retryable.
QUEUE_LIMIT: Final = 256


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and where it came from (`run` for the one that the run was started with)."""

    text: str
    source: str


# Said in a session that was restored after its agent's process was lost in the middle of a turn.
CONTINUE: Final = Prompt(
    text=(
        "Your process was lost in the middle of your last turn. A new one has restored this session. Look at what is "
        "done already, and go on with your task from where you were interrupted."
    ),
    source="resume",
)


class PromptQueue:
    """Prompts in the order in which they will be sent."""

    def __init__(self) -> None:
        self._waiting: deque[Prompt] = deque()
        self._arrived = trio.Event()
        self._is_open = True

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether prompts are still accepted."""
        return self._is_open

    def add(self, prompt: Prompt) -> int:
        """Accepts a prompt at the end; returns how many wait now.

        Raises:
            Ended: The run is ending.
            LimitReached: The queue is full.
        """
        self.check_open()
        self.check_room()
        self._waiting.append(prompt)
        return self._announce()

    def put_first(self, prompt: Prompt, *, keep_queue: bool) -> int:
        """Accepts a prompt before all others, which are dropped unless the queue is kept; returns how many wait now.

        Raises:
            Ended: The run is ending.
        """
        self.check_open()
        if not keep_queue:
            self._waiting.clear()
        self._waiting.appendleft(prompt)
        return self._announce()

    def take_nowait(self) -> Prompt | None:
        """The next prompt, or None."""
        return self._waiting.popleft() if self._waiting else None

    def take_all(self) -> list[Prompt]:
        """All that wait, which they do no longer."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def close(self) -> list[Prompt]:
        """Refuses prompts from now on; returns those that will not run."""
        self._is_open = False
        return self.take_all()

    async def wait_arrival(self) -> None:
        """Returns once a prompt waits."""
        while not self._waiting:
            await self._arrived.wait()

    def check_open(self) -> None:
        """Does nothing while prompts are accepted.

        Raises:
            Ended: The run is ending.
        """
        if not self._is_open:
            raise Ended("the run is ending and takes no more prompts: start a new one")

    def check_room(self) -> None:
        """Does nothing while there is room for a prompt.

        Raises:
            LimitReached: The queue is full.
        """
        if len(self._waiting) >= QUEUE_LIMIT:
            raise LimitReached(
                f"{QUEUE_LIMIT} prompts wait already: try again when some have run", data={"limit": QUEUE_LIMIT}
            )

    def _announce(self) -> int:
        self._arrived.set()
        self._arrived = trio.Event()
        return len(self._waiting)
