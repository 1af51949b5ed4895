"""A supervisor's client in memory, for what the MCP tools make of its answers."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec
import trio

from avenor.control.client import Client
from avenor.control.mcp.link import Link
from avenor.protocol.errors import MethodNotFound, NoSuchRuntime
from avenor.protocol.methods import History, RunResult, Spawned
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams

T = TypeVar("T")


class FakeClient:
    """Answers from `snapshots` and `log`; waits end with `changed`, in virtual time."""

    def __init__(self, *snapshots: Snapshot, log: list[dict[str, Any]] | None = None) -> None:
        self.snapshots = list(snapshots)
        self.log = log or []
        self.specs: dict[str | None, SpawnParams] = {}
        self.spawned: list[SpawnParams] = []
        self.session_id: str | None = None
        self.asked: list[str] = []
        self.fields: list[str] | None = None
        self.page_size = 1_000_000
        self.changed = trio.Event()
        self.history_calls = 0

    async def list(self, fields: list[str] | None = None) -> list[Snapshot]:
        """All of them."""
        self.fields = fields
        names = Snapshot.__struct_fields__ if fields is None else fields
        return [Snapshot(**{name: getattr(snapshot, name) for name in names}) for snapshot in self.snapshots]

    async def status(self, name: str | None = None) -> Snapshot:
        """The first that goes by this name."""
        self.asked.append("status")
        for snapshot in self.snapshots:
            if name in (None, snapshot.run_id, snapshot.runtime_id, snapshot.label):
                return snapshot
        raise NoSuchRuntime(f"there is no runtime {name!r}")

    async def wait(self, runtime_id: str | None, *, until: str, timeout_seconds: float | None = None) -> Snapshot:
        """Until `changed`, or the time is over."""
        assert until == "attention"
        with trio.move_on_after(timeout_seconds if timeout_seconds is not None else float("inf")):
            await self.changed.wait()
        return next(snapshot for snapshot in self.snapshots if snapshot.runtime_id == runtime_id)

    async def result(self, runtime_id: str | None) -> RunResult:
        """What the snapshot has."""
        found = next(snapshot for snapshot in self.snapshots if snapshot.runtime_id == runtime_id)
        return RunResult(final_output=found.final_output, stop_reason=found.stop_reason)

    async def spec(self, runtime_id: str | None) -> SpawnParams:
        """From `specs`, as a server that knows the method."""
        if runtime_id not in self.specs:
            raise MethodNotFound("there is no method 'spec'")
        return self.specs[runtime_id]

    async def spawn(self, params: SpawnParams) -> Spawned:
        """A run with `session_id`; without one it waits for a place: it is known, and nobody is told."""
        self.asked.append("spawn")
        self.spawned.append(params)
        run_id, runtime_id = params.run_id or "", f"rt_{len(self.snapshots) + 1}"
        self.snapshots.append(Snapshot(run_id=run_id, runtime_id=runtime_id, label=params.label, status="queued"))
        if self.session_id is None:
            await trio.sleep_forever()
        return Spawned(runtime_id=runtime_id, session_id=self.session_id or "", on_event="/e", sentinel_file="/s")

    async def history(self, _runtime_id: str | None, *, after_seq: int = 0, limit: int = 64) -> History:
        """From the log, at most `page_size` events at a time."""
        self.history_calls += 1
        events = [event for event in self.log if event["seq"] > after_seq][: min(limit, self.page_size)]
        raws = [msgspec.Raw(msgspec.json.encode(event)) for event in events]
        latest = len(self.log)
        return History(events=raws, latest_seq=latest, complete=not events or events[-1]["seq"] == latest)

    @property
    def client(self) -> Client:
        """Itself, as what it stands for."""
        return cast("Client", self)

    @property
    def link(self) -> Link:
        """A link that is always connected to it."""
        return cast("Link", _FakeLink(self))


class _FakeLink:
    def __init__(self, client: FakeClient) -> None:
        self._client = client

    async def ask(self, question: Callable[[Client], Awaitable[T]], *, again: bool = True) -> T:
        del again
        return await question(self._client.client)


def events(*each: dict[str, Any], session: str = "s") -> list[dict[str, Any]]:
    """Events with the stamps that a log has."""
    return [{"seq": seq, "ts": seq, "session_id": session, **event} for seq, event in enumerate(each, 1)]
