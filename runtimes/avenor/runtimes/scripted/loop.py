"""The scripted agent's event loop: one thread, one poll, and generators as tasks.

Owns stdin, stdout, signals and time. It knows nothing of ACP: lines go to a handler, and tasks say what they wait for.
"""

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import suppress

import msgspec

from avenor.protocol.framing import LineSplitter, Oversized

# What avenor accepts from an agent (contract, part 9); a scripted one takes as much.
LINE_LIMIT_BYTES = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
# Above this a task that floods waits for the reader. As much as a Linux pipe holds.
OUTBOX_BYTES = 64 * 1024
# How long a process that dies on purpose waits, for each piece, until it is rid of what it said before.
FLUSH_SECONDS = 5.0

STDIN = 0
STDOUT = 1


class Cancelled(Exception):
    """Thrown into a task where it waits."""


class Wait(msgspec.Struct, frozen=True):
    """What a task waits for; the loop answers with whether `is_over` said so, rather than the time being up.

    Args:
        is_over: Asked after everything that happens in the process; None is never.
        until: A `time.monotonic()` time; None is for ever.
    """

    is_over: Callable[[], bool] | None = None
    until: float | None = None


Task = Generator[Wait, bool, None]


def pause(seconds: float) -> Generator[Wait, bool, None]:
    """Waits for a time; 0 lets everything else have its turn."""
    yield Wait(until=time.monotonic() + seconds)


class Job:
    """A running task, played up to where it first waits."""

    def __init__(self, task: Task) -> None:
        self.ignores_cancel = False
        self._task = task
        self._wait = next(task)
        self._is_cancelled = False

    @property
    def wakes_at(self) -> float | None:
        """When it has to be looked at by itself."""
        return self._wait.until

    def cancel(self) -> None:
        """Asks the task to end, where it waits now; it may ignore that."""
        self._is_cancelled = True

    def step(self, now: float) -> bool:
        """Goes on with the task if it can. Returns whether the task has ended."""
        try:
            if self._is_cancelled and not self.ignores_cancel:
                self._is_cancelled = False
                self._wait = self._task.throw(Cancelled())
            elif self._wait.is_over is not None and self._wait.is_over():
                self._wait = self._task.send(True)
            elif self._wait.until is not None and self._wait.until <= now:
                self._wait = self._task.send(False)
        except (StopIteration, Cancelled):
            return True
        return False

    def close(self) -> None:
        """Ends the task without a word; its `finally` blocks run."""
        self._task.close()


class Loop:
    """Runs until stdin ends, the reader of stdout is gone, or a signal asks for the end.

    Args:
        on_line: Gets each line from stdin.
        ignores: Of `stdin_close` and `sigterm`, those that do not end the loop.
    """

    def __init__(self, on_line: Callable[[bytes | Oversized], None], ignores: Collection[str]) -> None:
        self._on_line = on_line
        self._ignores = ignores
        self._jobs: list[Job] = []
        self._children: list[Callable[[], bool]] = []
        self._splitter = LineSplitter(LINE_LIMIT_BYTES)
        self._outbox: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._readers: dict[int, Callable[[], None]] = {STDIN: self._read_stdin}
        self._poll = select.poll()
        self._poll.register(STDIN, select.POLLIN)
        self._is_stopping = False

    def start(self, task: Task) -> Job:
        """Adds a task, which must wait at least once, and runs it up to there."""
        job = Job(task)
        self._jobs.append(job)
        return job

    def add_reader(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Calls `on_readable` whenever the descriptor can be read, or has ended."""
        self._readers[descriptor] = on_readable
        self._poll.register(descriptor, select.POLLIN)

    def remove_reader(self, descriptor: int) -> None:
        self._readers.pop(descriptor)
        self._poll.unregister(descriptor)

    def keep_child(self, has_ended: Callable[[], bool]) -> None:
        """Looks after a child that no task waits for: `has_ended`, called when some child ends, collects it."""
        self._children.append(has_ended)

    def send(self, data: bytes) -> None:
        """Writes to stdout, at once if it takes it, else when it does; never blocks."""
        self._outbox.append(memoryview(data))
        self._unsent_bytes += len(data)
        if len(self._outbox) == 1:
            self._write_stdout()

    def flood_gate(self) -> Generator[Wait, bool, None]:
        """Waits while too much is unsent; else only lets everything else have its turn."""
        yield from pause(0)
        if self._unsent_bytes > OUTBOX_BYTES:
            yield Wait(is_over=lambda: self._unsent_bytes <= OUTBOX_BYTES)

    def flush(self) -> None:
        """Blocks until everything is written, or nobody reads any more; bounded, for a reader that is stuck."""
        while self._outbox and select.select([], [STDOUT], [], FLUSH_SECONDS)[1]:
            self._write_stdout()

    def run(self) -> None:
        """Runs; afterwards every task is closed."""
        os.set_blocking(STDOUT, os.isatty(STDOUT))
        self._catch_signals()
        try:
            while not self._is_stopping:
                self._step_jobs()
                if not self._is_stopping:
                    self._dispatch(self._poll.poll(self._timeout_ms()))
        finally:
            for job in self._jobs:
                job.close()

    def _catch_signals(self) -> None:
        """Makes signals wake the poll: SIGCHLD for the end of a tool, the others for our own."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.add_reader(read_end, lambda: self._on_signal_byte(read_end))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end_signal)

    def _on_end_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGTERM or "sigterm" not in self._ignores:
            self._is_stopping = True

    def _on_signal_byte(self, descriptor: int) -> None:
        _drain(descriptor)
        self._children = [has_ended for has_ended in self._children if not has_ended()]

    def _step_jobs(self) -> None:
        # A task may start others, and its end may be what another waits for.
        while True:
            now = time.monotonic()
            ended = [job for job in list(self._jobs) if job.step(now)]
            self._jobs = [job for job in self._jobs if job not in ended]
            if not ended:
                return

    def _timeout_ms(self) -> float | None:
        times = [job.wakes_at for job in self._jobs if job.wakes_at is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _dispatch(self, ready: list[tuple[int, int]]) -> None:
        for descriptor, _ in ready:
            if descriptor == STDOUT:
                self._write_stdout()
            elif descriptor in self._readers:
                self._readers[descriptor]()

    def _read_stdin(self) -> None:
        try:
            data = os.read(STDIN, READ_BYTES)
        except BlockingIOError:  # stdin and stdout may be one socket
            return
        except OSError:
            data = b""
        if not data:
            self.remove_reader(STDIN)
            self._is_stopping = "stdin_close" not in self._ignores
        for line in self._splitter.feed(data):
            self._on_line(line)

    def _write_stdout(self) -> None:
        try:
            while self._outbox:
                written = os.write(STDOUT, self._outbox[0])
                self._unsent_bytes -= written
                if written == len(self._outbox[0]):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = self._outbox[0][written:]
        except BlockingIOError:
            self._poll.register(STDOUT, select.POLLOUT)
            return
        except OSError:
            self._outbox.clear()
            self._unsent_bytes = 0
            self._is_stopping = True
        self._stop_watching_stdout()

    def _stop_watching_stdout(self) -> None:
        with suppress(KeyError):
            self._poll.unregister(STDOUT)


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        pass
