"""Where prompts of clients wait: for the conversations that run now, or for the one that comes next."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from avenor.protocol.events import Event
from avenor.runtimes.prompts import Prompt, PromptQueue


class Inbox:
    """What waits for one conversation.

    Args:
        mark: Puts on an event which conversation that is.

    Attributes:
        prompts: In the order in which they will be sent.
        session_id: Of the conversation, empty until it is known.
    """

    def __init__(self, mark: Callable[[Event], object] | None = None) -> None:
        self.prompts = PromptQueue()
        self.session_id = ""
        self._mark = mark
        self._interrupted: trio.Event | None = None

    @contextmanager
    def current_prompt(self) -> Generator[trio.Event, None, None]:
        """For the time of one prompt: the event that is set when another is to cut it short."""
        self._interrupted = trio.Event()
        try:
            yield self._interrupted
        finally:
            self._interrupted = None

    def add(self, prompt: Prompt) -> int:
        """Accepts a prompt; returns how many prompts end before it is sent, the one that runs now included.

        Raises:
            Ended: The run is ending.
            LimitReached: Too many prompts wait.
        """
        is_next = self._interrupted is None
        waiting = self.prompts.add(prompt)
        return waiting - 1 if is_next else waiting

    def interrupt(self, prompt: Prompt, *, keep_queue: bool) -> None:
        """Accepts a prompt that cuts the current one short.

        Raises:
            Ended: The run is ending.
        """
        self.prompts.put_first(prompt, keep_queue=keep_queue)
        if self._interrupted is not None:
            self._interrupted.set()

    def mark(self, event: Event) -> Event:
        """The event, with what it belongs to on it."""
        if self._mark is not None:
            self._mark(event)
        return event


class Inboxes:
    """All inboxes of one run.

    Attributes:
        next: Takes what comes while no conversation has an inbox of its own. A single run knows only this one.
    """

    def __init__(self) -> None:
        self.next = Inbox()
        self._open: list[Inbox] = []

    @property
    def has_open(self) -> bool:
        """Whether a conversation has an inbox now."""
        return bool(self._open)

    @property
    def waiting(self) -> int:
        """How many prompts wait."""
        return len(self.next.prompts) + sum(len(inbox.prompts) for inbox in self._open)

    def open(self, inbox: Inbox) -> None:
        """From now on this one gets prompts, beside those that are open already."""
        self._open.append(inbox)

    def close(self, inbox: Inbox) -> list[Prompt]:
        """It gets no more prompts; returns those that it will not send. Harmless twice."""
        if inbox in self._open:
            self._open.remove(inbox)
        return inbox.prompts.close()

    def close_all(self) -> list[Prompt]:
        """No more prompts are accepted; returns those that will not be sent."""
        unread = self.next.prompts.close()
        for inbox in list(self._open):
            unread += self.close(inbox)
        return unread

    def targets(self) -> list[Inbox]:
        """Who gets a prompt that comes now.

        Raises:
            Ended: The run is ending.
            LimitReached: One of them has too many prompts waiting.
        """
        self.next.prompts.check_open()
        targets = list(self._open) or [self.next]
        for inbox in targets:
            inbox.prompts.check_room()
        return targets
