"""A run in a temporary directory, on a fake backend, without a control socket."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from avenor.host.ladder import Graces, StopResult
from avenor.host.sentinelfile import Sentinel
from avenor.protocol.events import AnyEvent, EventHead, decode_event
from avenor.protocol.methods import unwrap_event
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.protocol.spec import Record, RunSpec
from avenor.runtimes.backends.base import OpenParams
from avenor.runtimes.eventlog import EventLog, LineFile, Stamp
from avenor.runtimes.host import RunHost, Surroundings
from avenor.runtimes.life import live
from avenor.runtimes.phased import run_phased
from avenor.runtimes.replay import read_past
from avenor.runtimes.single import run_single
from tests.runtimes.fake_backend import FakeBackend


class Folding:
    """Stands in for the hub: keeps the lines and folds them."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.lines: list[bytes] = []

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        for wrapped, head in zip(lines, heads, strict=True):
            line = unwrap_event(wrapped)
            self.lines.append(line)
            self.fold.apply_line(head, line)


class RunRig:
    """One run and what can be seen of it. Make it inside a test that runs in trio.

    Args:
        directory: Where its files go.
        backend: What it runs on.
        parks: See `Record`.
        sentinel: The name of its sentinel.
        lost: What an earlier process of it has told; `events` are those of this one.
        spec: See `make_record`.
    """

    def __init__(
        self,
        directory: Path,
        backend: FakeBackend,
        *,
        parks: bool = False,
        sentinel: str = "done.env",
        lost: Sequence[bytes] = (),
        **spec: Any,
    ) -> None:
        self.backend = backend
        self.sentinel_path = directory / sentinel
        self.log_path = directory / "events.ndjson"
        self.record = make_record(directory, parks=parks, **spec)
        self.fold = Fold(Snapshot(runtime_id="rt_1", run_id="run_1"))
        self.published = Folding(self.fold)
        self.killed = 0
        self.swept = 0
        log = EventLog(
            journal=LineFile(str(self.log_path), truncate=True),
            copy=None,
            stamp=Stamp(run_id=self.record.run_id, runtime_id=self.record.runtime_id, label=self.record.spec.label),
            publisher=self.published,
            clock=trio.current_time,
        )
        self.host = RunHost(
            self.record,
            log=log,
            fold=self.fold,
            surroundings=Surroundings(
                find_backend=backend.found,
                open_params=lambda spec, owns_process: OpenParams(
                    cwd=str(directory), env={}, tag=("T", "1"), model=spec.model, owns_process=owns_process
                ),
                scratch=str(directory),
                sweep=self._sweep,
                sentinel=Sentinel(self.sentinel_path, is_private=True),
                kill_all=self._kill_all,
            ),
            past=read_past(lost, self.fold),
        )
        self.outcome: Outcome | None = None

    async def run(self) -> Outcome:
        """Runs to the end."""
        self.outcome = await live(self.host, run_single if self.record.config is None else run_phased)
        return self.outcome

    async def start(self, nursery: trio.Nursery, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Runs in the background; returns when everything waits."""
        nursery.start_soon(self.run)
        await (until or trio.testing.wait_all_tasks_blocked)()

    @property
    def events(self) -> list[AnyEvent]:
        """The log, read back from its file."""
        return [decode_event(line) for line in self.log_path.read_bytes().splitlines()]

    @property
    def names(self) -> list[str]:
        """The events' names in order."""
        return [str(event.__struct_config__.tag) for event in self.events]

    @property
    def sentinel(self) -> Outcome | None:
        """What the sentinel says, None without one."""
        return parse_sentinel(self.sentinel_path.read_text()) if self.sentinel_path.exists() else None

    def only(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if type(event) is kind]

    async def _sweep(self, _graces: Graces) -> StopResult:
        self.swept += 1
        return StopResult()

    def _kill_all(self) -> None:
        self.killed += 1
        for session in self.backend.sessions:
            session.cancelled.set()


def make_record(directory: Path, *, parks: bool = False, **spec: Any) -> Record:
    """A resolved record as a supervisor writes it; `parked_timeout` and `config` are its own, the rest the spec's."""
    parked_timeout = float(spec.pop("parked_timeout", 0.0))
    config = spec.pop("config", None)
    values = {"prompt": "hello", "dir": str(directory), "backend": "scripted", "progress_timeout": 0.0, **spec}
    return Record(
        runtime_id="rt_1",
        run_id="run_1",
        spec=msgspec.convert(values, RunSpec),
        prompt=str(values["prompt"]),
        config=config,
        parks=parks,
        parked_timeout=parked_timeout,
        version="1",
    )


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs what goes to a worker thread at once: a clock that jumps does not wait for threads."""

    async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_inline)
