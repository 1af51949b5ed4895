"""What supervisord and circus have in common here: private, on a socket in a folder of their own, small children."""

import os
import select
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType

from tests.bench import machine
from tests.helpers import kill_each

_START_SECONDS = 20.0


class Peer(ABC):
    """Another supervisor with `count` children, each a program that says that it runs and then waits.

    Args:
        folder: Made for it.
        child: The children's command; the path of the pipe is added.
        count: How many children it has.
        are_started: Whether it starts them itself, at its own start.

    Attributes:
        is_stuck: It did not end when it was asked to.
    """

    name: str

    def __init__(self, folder: Path, child: list[str], *, count: int, are_started: bool) -> None:
        folder.mkdir(parents=True)
        self.is_stuck = False
        self._folder = folder
        self._child = [*child, str(folder / "ready")]
        self._count = count
        self._are_started = are_started
        self._process: subprocess.Popen[bytes] | None = None
        os.mkfifo(folder / "ready")
        # Open for both, so that it never is at its end.
        self._ready = os.open(folder / "ready", os.O_RDWR)

    def __enter__(self) -> "Peer":
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, start_new_session=True)
        self._connect()
        if self._are_started:
            for _ in range(self._count):
                self.wait_child()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        os.close(self._ready)

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        assert self._process is not None
        return self._process.pid

    def start_child(self, index: int) -> float:
        """Starts a child that is not running; the seconds until it says that it runs."""
        began = time.perf_counter()
        self._send_start(index)
        self.wait_child()
        taken = time.perf_counter() - began
        self._take_started()
        return taken

    def wait_child(self) -> None:
        """Waits until one more child says that it runs."""
        if not select.select([self._ready], [], [], _START_SECONDS)[0]:
            raise RuntimeError(f"{self.name} started no child:\n{(self._folder / 'log').read_text()}")
        os.read(self._ready, 1)

    def stop(self) -> float:
        """Asks it to end; the seconds until it has, children and all. One that does not is killed with its children."""
        assert self._process is not None
        if self._process.poll() is not None:
            return 0.0
        running = machine.children(self.pid)
        began = time.perf_counter()
        self._ask_to_stop(self._process)
        try:
            self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self.is_stuck = True
            self._process.kill()
            self._process.wait()
        taken = time.perf_counter() - began
        kill_each(pid for pid in running if machine.runs_program(pid, self._child[0]))
        return taken

    def _ask_to_stop(self, process: "subprocess.Popen[bytes]") -> None:
        """Asks it to end, by SIGTERM where it has nothing better."""
        process.terminate()

    @abstractmethod
    def ask(self) -> float:
        """The smallest question over a held connection; the seconds until it is answered."""

    @abstractmethod
    def ask_all(self) -> float:
        """The state of all children over a held connection; the seconds until it is answered."""

    @abstractmethod
    def list_command(self) -> list[str]:
        """The command line that shows the state of all children."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that starts it, its configuration written."""

    @abstractmethod
    def _connect(self) -> None:
        """Waits until it answers, and keeps the connection."""

    @abstractmethod
    def _send_start(self, index: int) -> None:
        """Sends the request to start a child."""

    @abstractmethod
    def _take_started(self) -> None:
        """Takes the answer to that."""


def script(name: str) -> str:
    """A program of the environment that the benchmark runs in."""
    return str(Path(sys.executable).with_name(name))
