"""The supervisors of one schedule, one after the other on the same socket and state directory."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from avenor.host.failpoints import VARIABLE
from avenor.host.identity import read_stat
from tests.chaos.invariants import STATE
from tests.e2e.harness import AVENOR, Client, Place

T = TypeVar("T")

# Far above what anything takes on a machine that does three schedules at once.
PATIENCE_SECONDS: Final = 40.0
# Each start may be killed by a place that a step has armed; a supervisor that never comes up is a fault.
_STARTS: Final = 6
_POLL_SECONDS: Final = 0.02


class Stuck(Exception):
    """Something that must happen has not happened in all this time."""


def wait_for(what: str, ready: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Return what `ready` gives once it is true.

    Raises:
        Stuck: It was not in time.
    """
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        if time.monotonic() > deadline:
            raise Stuck(f"{what}: not after {seconds:g} s")
        time.sleep(_POLL_SECONDS)
    return value


class ChaosClient(Client):
    """A client that can be asked whether an answer has come."""

    def has_answer(self, request_id: int) -> bool:
        """Whether it came, with whatever was read so far."""
        return request_id in self._answers

    def drain(self) -> None:
        """Take all that the other end, which is dead, has still sent."""
        try:
            while True:
                self.take()
        except (EOFError, OSError):
            return


class Supervisors:
    """Starts, ends and replaces the supervisor.

    Args:
        place: Whose they are.
        flags: More flags of `avenor stable`.
        environ: More variables of its environment.

    Attributes:
        problems: Those that died by themselves.
    """

    def __init__(self, place: Place, flags: list[str], environ: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.starts = 0
        self.failpoints = place.path / "failpoints"
        for kind in ("kill", "hold"):
            (self.failpoints / kind).mkdir(parents=True)
        self.socket = place.path / "s.sock"
        self.state = place.path / STATE
        self._place = place
        self._flags = flags
        self._environ = {VARIABLE: str(self.failpoints), **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: ChaosClient | None = None

    @property
    def pid(self) -> int | None:
        """Of the living one."""
        return self._process.pid if self._process is not None and self.is_up() else None

    def is_up(self) -> bool:
        """Whether one lives; notes one that has died otherwise than by SIGKILL."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self._process = None
        if code != -signal.SIGKILL:
            self.problems.append(f"a supervisor ended with {code} by itself: {self._complaints()}")
        return False

    def connect(self) -> ChaosClient:
        """A connection to the supervisor, which is started if there is none.

        Raises:
            Stuck: None comes up.
        """
        for _ in range(_STARTS):
            if not self.is_up():
                self._start()
            wait_for("the supervisor answers, or is dead", self._answers_or_is_dead)
            client, self._connection = self._connection, None
            if client is not None:
                return client
        raise Stuck(f"no supervisor came up in {_STARTS} starts: {self._complaints()}")

    def kill(self) -> None:
        """SIGKILL to the supervisor, if there is one."""
        if self._process is not None and self.is_up():
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
            self.is_up()

    def wait_exit(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Return when the supervisor, which was told to, has left; a failure is noted.

        Raises:
            Stuck: It has not.
        """
        process = self._process
        if process is None:
            return
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Stuck(f"the supervisor was told to stop, and lives after {seconds:g} s") from None
        if code == 0:
            self._process = None
        else:
            self.is_up()

    def zygotes(self) -> list[int]:
        """The zygote of the living supervisor; none while it has none."""
        pids = self._place.processes_like("avenor.runtimes.zygote")
        stats = [read_stat(pid) for pid in pids]
        return [stat.id.pid for stat in stats if stat is not None and stat.ppid == self.pid]

    def _start(self) -> None:
        self.starts += 1
        command = [AVENOR, "stable", "--control-socket", str(self.socket), "--state-dir", str(self.state)]
        with self._log_path().open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._flags],
                cwd=self._place.work,
                env=self._place.environ(**self._environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._place.started.append(self._process)

    def _answers_or_is_dead(self) -> bool:
        """Makes a connection that is answered on; False while the supervisor lives and does not answer."""
        try:
            client = ChaosClient(self.socket)
        except OSError:
            return not self.is_up()
        try:
            client.call("ping")
        except (EOFError, OSError):
            client.close()
            return not self.is_up()
        self._connection = client
        return True

    def _complaints(self) -> str:
        return self._log_path().read_text(errors="replace")[-2000:]

    def _log_path(self) -> Path:
        return self._place.path / "supervisors.log"
