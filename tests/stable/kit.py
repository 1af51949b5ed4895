"""Runtimes without agents, for tests of the supervisor: each serves a real socket, and does what the test says."""

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import trio
from msgspec import UNSET, Raw

from avenor.control.hub import EventHub
from avenor.control.rpc import Call, MethodTable
from avenor.control.server import ControlServer
from avenor.control.subscriptions import add_subscriptions
from avenor.host.identity import ProcessId, process_id
from avenor.host.ladder import StopResult
from avenor.host.lock import FileLock, is_locked
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import write_sentinel
from avenor.host.unixsock import bind_listener
from avenor.protocol.errors import NotOwner
from avenor.protocol.events import (
    Event,
    EventHead,
    RunEnd,
    RunStart,
    SessionStart,
    TurnEnd,
    TurnStart,
    encode_event,
    event_name,
)
from avenor.protocol.methods import (
    Cancelled,
    NoParams,
    Ok,
    Owner,
    OwnerChanged,
    Pong,
    RouterCall,
    RouterHello,
    RouterLeft,
    RouterNotice,
    RouterOwner,
    RouterReaped,
    ShuttingDown,
    wrap_event,
)
from avenor.protocol.outcomes import Outcome
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.protocol.spec import Record
from avenor.stable.options import Options
from avenor.stable.registry import Registry
from avenor.stable.shutdown import Shutdown
from avenor.stable.supervision import Supervision


class FakeRuntime:
    """One runtime: a lock, a log, a socket, and a process that does nothing but live.

    Attributes:
        calls: What was called in a client's name: client, method, params.
        behaviour: By method, what to do instead of the usual; its result is the answer.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDir(path)
        self.record = msgspec.json.decode(self.directory.read_record() or b"", type=Record)
        self.id = self.record.runtime_id
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.left: list[str] = []
        self.behaviour: dict[str, Callable[[Call, dict[str, Any]], Any]] = {}
        self.owner: str | None = None
        self.lock = FileLock(self.directory.lock_path)
        self.body = subprocess.Popen(["sleep", "1000"])
        self.hub = EventHub(self.id, self.directory.log_path, Fold(Snapshot(runtime_id=self.id)))
        self._links: set[str] = set()
        self._table = MethodTable()
        self._table.add("router.hello", NoParams, self._hello)
        self._table.add("router.call", RouterCall, self._route)
        self._table.add("router.left", RouterLeft, self._left)
        self._table.add("router.reap", NoParams, self._reap)
        add_subscriptions(self._table, _OneHub(self.hub))
        self.server = ControlServer(self._table)
        self._dead = trio.Event()

    @property
    def process(self) -> ProcessId:
        found = process_id(self.body.pid)
        assert found is not None
        return found

    async def live(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until `die`."""
        assert self.lock.try_acquire()
        self.directory.process_path.write_bytes(msgspec.json.encode(self.process))
        with bind_listener(self.directory.socket_path) as listener:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.server.serve, listener)
                task_status.started()
                await self._dead.wait()
                nursery.cancel_scope.cancel()
        self.lock.release()
        self.body.kill()
        self.body.wait()

    def die(self) -> None:
        """End as by SIGKILL: nothing more is said."""
        self._dead.set()

    def emit(self, event: Event) -> None:
        """Log one event, and publish it."""
        self.emit_together(event)

    def emit_together(self, *events: Event) -> None:
        """Log events, and publish them all at once."""
        lines: list[bytes] = []
        for seq, event in enumerate(events, self.hub.latest_seq + 1):
            event.seq = seq
            event.ts = 1_700_000_000_000 + seq
            event.run_id = self.record.run_id
            event.runtime_id = self.id
            lines.append(encode_event(event))
        with open(self.directory.log_path, "ab") as log:
            log.write(b"".join(line + b"\n" for line in lines))
        heads = [EventHead(event_name(event), event.seq, event.ts) for event in events]
        self.hub.publish([wrap_event(line) for line in lines], heads)

    def begin(self, session_id: str = "ses_1") -> None:
        """Get going: a session and a turn."""
        self.emit(RunStart(kind="single", backend="scripted", dir="/", version="0", parks=True))
        self.directory.note_sentinel(is_due=True)
        self.emit(SessionStart(backend="scripted", dir="/", session_id=session_id))
        self.emit(TurnStart(text="x", source="run"))

    def park(self) -> None:
        """End the turn cleanly, with its sentinel."""
        self._tell("end_turn")
        self.emit(TurnEnd(stop_reason="end_turn", final_output="done"))

    def end(self, stop_reason: str = "end_turn", *, keep_sentinel: bool = False) -> None:
        """End the run in good order."""
        outcome = Outcome.of(stop_reason, run_id=self.record.run_id)
        self.emit(RunEnd(status=outcome.status.value, exit_code=outcome.exit_code, stop_reason=stop_reason))
        if not keep_sentinel:
            self._tell(stop_reason)
        self.die()

    def _tell(self, stop_reason: str) -> None:
        write_sentinel(cast("str", self.record.spec.sentinel_file), Outcome.of(stop_reason, run_id=self.record.run_id))
        self.directory.note_sentinel(is_due=False)

    def _hello(self, call: Call, _params: NoParams) -> RouterHello:
        self._links.add(call.client_id)
        ping = Pong(
            version="0", pid=self.body.pid, mode="run", uptime_ms=0, start_time=self.process.start_ticks, boot_id="b"
        )
        return RouterHello(ping=ping, snapshot=self.hub.snapshot())

    def _route(self, call: Call, routed: RouterCall) -> Any:
        params: dict[str, Any] = {} if routed.params is UNSET else msgspec.json.decode(routed.params)
        self.calls.append((routed.client, routed.method, params))
        if routed.method in self.behaviour:
            return self.behaviour[routed.method](call, params)
        match routed.method:
            case "shutdown":
                is_parked = self.hub.fold.state.status == "idle"
                self.end("end_turn" if is_parked else "cancelled", keep_sentinel=is_parked)
                return ShuttingDown()
            case "release":
                self.set_owner(None)
                return Owner(owner=None)
            case _:
                pass
        self._own(routed.client, force=bool(params.get("force")))
        if routed.method == "cancel":
            self.end("cancelled")
            return Cancelled(ok=True, left=[])
        return Owner(owner=self.owner) if routed.method == "claim" else Ok()

    def _left(self, _call: Call, params: RouterLeft) -> None:
        self.left.append(params.client)
        if self.owner == params.client:
            self.set_owner(None)

    def _reap(self, call: Call, _params: NoParams) -> Any:
        self.calls.append(("", "router.reap", {}))
        if "router.reap" in self.behaviour:
            return self.behaviour["router.reap"](call, {})
        is_parked = self.hub.fold.state.status == "idle"
        if is_parked:
            self.end(keep_sentinel=True)
        return RouterReaped(reaped=is_parked)

    def _own(self, client: str, *, force: bool) -> None:
        if self.owner not in (None, client) and not force:
            raise NotOwner(f"{self.owner} owns it", data={"owner": self.owner})
        before = self.owner
        self.set_owner(client)
        if before not in (None, client):
            notice = msgspec.json.encode(OwnerChanged(runtime_id=self.id, owner=client))
            for link in self._links:
                self.server.notify(link, RouterNotice(client=str(before), params=Raw(notice)), method="router.notice")

    def set_owner(self, owner: str | None) -> None:
        """Change the owner and tell the links."""
        self.owner = owner
        for link in self._links:
            self.server.notify(link, RouterOwner(owner=owner), method="router.owner")


class _OneHub:
    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    def find(self, runtime_id: str | None) -> EventHub:
        return self._hub

    def all_hubs(self) -> list[EventHub]:
        return [self._hub]

    def on_hub_added(self, action: Callable[[EventHub], None]) -> None:
        pass


class FakeLauncher:
    """Runs `FakeRuntime`s.

    Attributes:
        runtimes: All that were launched, by id.
        failures: What the next launches raise instead.
        gate: If set, launches wait for it.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.runtimes: dict[str, FakeRuntime] = {}
        self.failures: list[Exception] = []
        self.gate: trio.Event | None = None
        self.ended: list[str] = []
        self._nursery = nursery

    async def launch(self, path: Path) -> ProcessId:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        runtime = FakeRuntime(path)
        self.runtimes[path.name] = runtime
        await self._nursery.start(runtime.live)
        return runtime.process

    def probe(self, path: Path) -> ProcessId | None:
        directory = RunDir(path)
        return directory.read_process() if is_locked(directory.lock_path) else None

    async def end(self, path: Path) -> StopResult:
        self.ended.append(path.name)
        runtime = self.runtimes.get(path.name)
        if runtime is not None:
            runtime.die()
            await trio.to_thread.run_sync(runtime.body.wait)
        return StopResult()

    async def exit_status(self, path: Path) -> int | None:
        return -signal.SIGKILL if path.name in self.runtimes else None

    def forget(self, path: Path) -> None:
        pass


class Client:
    """A client of the supervisor's socket, which keeps what it did not ask for."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""
        self._last_id = 0
        self.notices: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}

    async def send(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        await self._stream.send_all(msgspec.json.encode(request) + b"\n")
        return self._last_id

    async def answer(self, request_id: int) -> dict[str, Any]:
        """The answer to one request, with `result` or `error`."""
        while request_id not in self._answers:
            await self._take()
        return self._answers.pop(request_id)

    async def call(self, method: str, **params: Any) -> Any:
        """The result of a call, which must have one."""
        answer = await self.answer(await self.send(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    async def refusal(self, method: str, **params: Any) -> dict[str, Any]:
        """The error of a call, which must have one."""
        answer = await self.answer(await self.send(method, **params))
        assert "error" in answer, answer
        return cast("dict[str, Any]", answer["error"])

    async def notice(self) -> dict[str, Any]:
        """The next notice."""
        while not self.notices:
            await self._take()
        return self.notices.pop(0)

    async def wait_event(self, name: str) -> dict[str, Any]:
        """Take events until one with this name has come."""
        while not self.events or self.events[-1]["event"] != name:
            await self._take()
        return self.events[-1]

    async def close(self) -> None:
        """Disconnect."""
        await self._stream.aclose()

    def cut(self) -> None:
        """Disconnect at once."""
        self._stream.socket.close()

    async def _take(self) -> None:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some()
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = msgspec.json.decode(line)
        if "method" not in message:
            self._answers[message["id"]] = message
        elif message["method"] == "event":
            self.events.append(message["params"])
        else:
            self.notices.append(message["params"])


class Stable:
    """A supervisor with fake runtimes, in this process."""

    def __init__(self, options: Options, launcher: FakeLauncher, nursery: trio.Nursery) -> None:
        self.options = options
        self.launcher = launcher
        self.shutdown = Shutdown(timeout_seconds=options.shutdown_timeout, sigterm=options.on_sigterm)
        self.registry = Registry()
        self.supervision = Supervision(options, launcher, self.registry, self.shutdown)
        self.stopped = trio.Event()
        self.clients: list[Client] = []
        self._nursery = nursery

    def runtime(self, runtime_id: str) -> FakeRuntime:
        """The fake behind an id."""
        return self.launcher.runtimes[runtime_id]

    async def connect(self) -> Client:
        """A new client."""
        client = Client(await trio.open_unix_socket(self.options.control_socket))
        self.clients.append(client)
        return client

    async def spawned(self, client: Client, **params: Any) -> str:
        """Spawn, have the agent get going, and return the id."""
        spawned = await client.call("spawn", **{**SPAWN, "wait": "started", **params})
        self.runtime(spawned["runtime_id"]).begin()
        await client.call("wait", runtime_id=spawned["runtime_id"], until="attention", timeout_ms=0)
        return cast("str", spawned["runtime_id"])


SPAWN: dict[str, Any] = {"prompt": "do it", "dir": "/", "backend": "scripted"}


def make_options(tmp_path: Path, **options: Any) -> Options:
    """Options for a supervisor below a temporary directory."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    return Options(control_socket=str(tmp_path / "s.sock"), state_dir=str(state), **options)


@asynccontextmanager
async def open_stable(
    tmp_path: Path, launcher: FakeLauncher | None = None, loaded: list[Any] | None = None, **options: Any
) -> AsyncGenerator[Stable, None]:
    """A running supervisor; it is cut off at the exit, and fake runtimes that it launched end."""
    chosen = make_options(tmp_path, **options)
    async with trio.open_nursery() as bodies:
        launcher = launcher or FakeLauncher(bodies)
        try:
            async with trio.open_nursery() as nursery:
                stable = Stable(chosen, launcher, nursery)
                with bind_listener(chosen.control_socket) as listener:
                    await nursery.start(stable.supervision.run, loaded or [])
                    await nursery.start(stable.supervision.server.serve, listener)
                    nursery.start_soon(_stop, stable)
                    try:
                        yield stable
                    finally:
                        for client in stable.clients:
                            client.cut()
                    nursery.cancel_scope.cancel()
                os.unlink(chosen.control_socket)
        finally:
            for runtime in launcher.runtimes.values():
                runtime.die()


async def _stop(stable: Stable) -> None:
    await stable.shutdown.carry_out(stable.supervision)
    stable.stopped.set()
