"""Lines over a program's stdin and stdout, in both directions; what they mean is for the wire of a protocol.

The reader never waits for the writer, so that an agent that writes without reading cannot bring both to a halt: what
is to be written goes to an outbox, which a task of its own empties.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import trio

from avenor.protocol.framing import LineSplitter, Oversized
from avenor.runtimes.backends.agent_process import READ_BYTES, AgentProcess

LINE_LIMIT_BYTES = 64 * 1024 * 1024  # The contract's limit for a line of an agent (part 9).
OUTBOX_LIMIT_BYTES = 16 * 1024 * 1024  # Unread answers of ours; an agent behind by this much does not read at all.


class LineWire:
    """The pipes of one agent.

    Args:
        process: Just started.
        batch: Goes around everything that came at once.
        take: Gets each line, without its newline, or the news of one that was skipped. Never waits.

    Attributes:
        closed: Set when the agent has closed its stdout, or does not take what we write.
    """

    def __init__(
        self,
        process: AgentProcess,
        batch: Callable[[], AbstractContextManager[None]],
        take: Callable[[bytes | Oversized], None],
    ) -> None:
        self._process = process
        self._batch = batch
        self._take_frame = take
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._has_lines = trio.Event()
        self._is_flushed = trio.Event()
        self._is_flushed.set()
        self.closed = trio.Event()

    async def read(self) -> None:
        """Reads and dispatches until the agent closes its stdout."""
        splitter = LineSplitter(LINE_LIMIT_BYTES)
        try:
            while data := await self._process.stdout.receive_some(READ_BYTES):
                frames = splitter.feed(bytes(data))
                with self._batch():
                    for frame in frames:
                        self._take_frame(frame)
            self._take_frame(splitter.rest())
        except trio.ClosedResourceError:
            pass  # we closed the pipe: the agent is being stopped
        self.closed.set()

    async def write(self) -> None:
        """Empties the outbox until the agent takes no more."""
        try:
            while True:
                await self._has_lines.wait()
                lines, self._outbox = b"".join(self._outbox), deque()
                self._outbox_bytes = 0
                self._has_lines = trio.Event()
                await self._process.stdin.send_all(lines)
                if not self._outbox:
                    self._is_flushed.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._is_flushed.set()
            self.closed.set()

    async def wait_flushed(self) -> None:
        """Waits until everything has been handed to the system, or cannot be."""
        await self._is_flushed.wait()

    def send_line(self, line: bytes) -> None:
        """Puts a line, newline included, into the outbox."""
        if self.closed.is_set():
            return
        if self._outbox_bytes > OUTBOX_LIMIT_BYTES:
            # Only an agent that asks without reading comes here: it has stopped to be a partner.
            self.closed.set()
            return
        self._outbox.append(line)
        self._outbox_bytes += len(line)
        self._has_lines.set()
        if self._is_flushed.is_set():
            self._is_flushed = trio.Event()
