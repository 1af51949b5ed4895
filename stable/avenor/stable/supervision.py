"""The supervisor at work: what happens to runtimes, and why.

It is decided here, in reaction to requests (`spawning`, `routing`, `serving`), to what the runtimes tell
(`runtime_changed`), and to the wish to stop (`shutdown`).
"""

import contextlib
import os
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

import msgspec
import structlog
import trio

from avenor.control.rpc import MethodTable
from avenor.control.server import ControlServer
from avenor.protocol.errors import Refused
from avenor.protocol.methods import RouterReaped
from avenor.stable.admission import Admission, Limits
from avenor.stable.cancelling import Canceller
from avenor.stable.durability import Durability
from avenor.stable.identifiers import Identifiers
from avenor.stable.keeping import Keeper
from avenor.stable.launcher import Launcher
from avenor.stable.link import Link
from avenor.stable.loading import fold_log
from avenor.stable.options import Options
from avenor.stable.pruning import Pruner, add_pruning
from avenor.stable.records import Surroundings, own_environ, read_umask
from avenor.stable.registry import Registry
from avenor.stable.resuming import Resuming
from avenor.stable.retention import retain
from avenor.stable.routing import add_routing
from avenor.stable.runtime import Runtime, Stage
from avenor.stable.serving import make_methods
from avenor.stable.settle import is_unfinished
from avenor.stable.shutdown import Shutdown
from avenor.stable.spawning import Spawner

# The name under which the supervisor itself asks a runtime to end. It is no client's id, so it never owns anything.
_OWN_NAME: Final = "supervisor"
# A runtime kills its agents in milliseconds; one that does not is killed with them.
_SELF_KILL_SECONDS: Final = 1.0
# For the next to end: the stop ladder's last step is bounded by five seconds, and a settlement takes milliseconds; on a
# slow disk those of many runs take longer than all that together.
_KILL_SECONDS: Final = 8.0

_logger: Final = structlog.get_logger()
_decode_reaped: Final = msgspec.json.Decoder(RouterReaped).decode


class Supervision:
    """One supervisor over one state directory, whose lock is held by whoever made it.

    Args:
        options: How to behave.
        launcher: Where runtimes run.
        registry: Takes the runtimes.
        shutdown: Decides when to stop.

    Attributes:
        server: Serves the control socket.
    """

    def __init__(self, options: Options, launcher: Launcher, registry: Registry, shutdown: Shutdown) -> None:
        self._options = options
        self._registry = registry
        self._shutdown = shutdown
        self._identifiers = Identifiers(options.state_path)
        self._durability = Durability(self._identifiers)
        self._pruner = Pruner(registry, self._identifiers, options.state_path)
        self._admission = Admission(
            Limits(
                max_runtimes=options.max_runtimes,
                queue=options.queue,
                max_tree=options.max_tree,
                max_parked=options.max_parked,
            )
        )
        resuming = Resuming(
            most=options.max_resumes, window_seconds=options.resume_window, stopping=lambda: shutdown.mode
        )
        self._keeper = Keeper(launcher, self, self._make_durable, resuming)
        self._canceller = Canceller(registry, self._keeper, self._end_queued, self._spawn_task)
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()
        shutdown.on_decided(self._changed.unpark_all)
        self.server = ControlServer(self._make_methods(), self._client_left)

    async def run(self, loaded: list[Runtime], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep all runtimes until cancelled, which leaves them running.

        Args:
            loaded: What an earlier supervisor left. It is emptied: what is pruned later must be held by nobody.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._take_all(loaded)
            self._start_queued()
            nursery.start_soon(self._stop_when_idle)
            nursery.start_soon(retain, self._pruner, self._options.keep)
            task_status.started()
            await trio.sleep_forever()

    # ---- Listener

    def runtime_changed(self, runtime: Runtime) -> None:
        """See `Listener.runtime_changed`."""
        state = runtime.state
        if state.session_id is not None or state.status == "ended":
            runtime.has_session.set()
        self._canceller.note(runtime)
        has_left = runtime.stage is Stage.ENDED
        if state.status == runtime.last_status and not has_left:
            return
        runtime.last_status = state.status
        if has_left:
            self._registry.note_ended(runtime)
        self._note_parked(runtime)
        self._start_queued()
        self._changed.unpark_all()

    def pass_notice(self, client: str, params: msgspec.Raw) -> None:
        """See `Listener.pass_notice`."""
        self.server.notify(client, params)

    # ---- Actions

    def ask_all(self) -> None:
        """See `Actions.ask_all`."""
        for runtime in self._registry.live:
            self._ask_to_end(runtime, "graceful")

    async def drain(self) -> None:
        """See `Actions.drain`."""
        while self._registry.live:
            for runtime in self._registry.live:
                if runtime.state.status == "idle":
                    self._reap(runtime)
            await self._changed.park()

    async def wait_changed(self) -> None:
        """Return when a runtime has another status, a client has left, or how to stop has been decided."""
        await self._changed.park()

    async def wait_none_live(self) -> None:
        """See `Actions.wait_none_live`."""
        while self._registry.live:
            await self._changed.park()

    async def wait_launched(self) -> None:
        """See `Actions.wait_launched`."""
        for runtime in self._registry.live:
            if runtime.stage is Stage.LAUNCHING:
                await runtime.started.wait()

    async def kill_all(self) -> None:
        """See `Actions.kill_all`."""
        for runtime in self._registry.live:
            self._ask_to_end(runtime, "kill")
        with trio.move_on_after(_SELF_KILL_SECONDS):
            await self.wait_none_live()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for runtime in self._registry.live:
                    nursery.start_soon(self._keeper.kill, runtime)
                await self._wait_while_they_end(scope)
        if left := [runtime.id for runtime in self._registry.live]:
            # As where the kernel does not let go of a process. It is told, and the next supervisor takes them over.
            _logger.error("shutdown.not_all_ended", runtimes=left)

    # ---- its own

    async def _wait_while_they_end(self, scope: trio.CancelScope) -> None:
        """As `wait_none_live`, and cancels the scope where for `_KILL_SECONDS` none has ended."""
        fewest = len(self._registry.live) + 1
        while live := len(self._registry.live):
            if live < fewest:
                fewest = live
                scope.deadline = trio.current_time() + _KILL_SECONDS
            await self._changed.park()

    def _make_methods(self) -> MethodTable:
        kept, skipped = own_environ(os.environb)
        if skipped:
            _logger.warning("environment.not_passed_on", names=skipped)
        around = Surroundings(
            socket=self._options.control_socket,
            environ=kept,
            umask=read_umask(),
            parked_timeout=self._options.parked_timeout,
            on_crash=self._options.on_crash,
            version=version("avenor"),
        )
        spawner = Spawner(
            self._registry,
            self._admission,
            self._identifiers,
            around,
            claim_seconds=self._options.permission_claim_timeout,
            refusal=self._spawn_refusal,
            refuse_below=self._canceller.refuse_below,
            start=self._start,
        )
        table = make_methods(self._registry, spawner, self._shutdown, version=around.version)
        add_routing(table, self._registry, self._canceller)
        add_pruning(table, self._pruner)
        return table

    def _spawn_refusal(self) -> Refused | None:
        if self._shutdown.mode is None:
            return None
        return Refused(
            f"the supervisor is shutting down ({self._shutdown.mode}): spawn on the next one",
            reason="shutting_down",
            retryable=True,
        )

    def _start(self, runtime: Runtime) -> None:
        """Take in a spawn that was admitted: it starts now, or waits for a place."""
        runtime.link = Link(runtime, self)
        self._changed.unpark_all()
        if runtime.stage is Stage.QUEUED:
            self._admission.enqueue(runtime.id)
            self._spawn_task(self._make_queued_durable, runtime)
        else:
            self._spawn_task(self._keeper.launch, runtime)

    def _take_all(self, loaded: list[Runtime]) -> None:
        for runtime in loaded:
            self._take_over(runtime)
        loaded.clear()
        # What their logs tell is acted on, in the order in which it happened: the first to park is the first to go.
        for runtime in sorted(self._registry.live, key=lambda each: each.state.updated_at or 0):
            self.runtime_changed(runtime)
        # An earlier supervisor may have died before all below one that was ordered to end had ended too.
        for runtime in self._registry:
            self._canceller.note(runtime)

    def _take_over(self, runtime: Runtime) -> None:
        self._registry.add(runtime)
        runtime.link = Link(runtime, self)
        match runtime.stage:
            case Stage.LIVE:
                self._spawn_task(self._keeper.adopt, runtime)
            case Stage.LOST:
                self._spawn_task(self._keeper.settle, runtime)
            case Stage.QUEUED:
                self._admission.enqueue(runtime.id)
            case _:
                if is_unfinished(runtime.directory):
                    self._spawn_task(self._keeper.finish, runtime)
                if runtime.is_summary:
                    self._spawn_task(self._read_whole_log, runtime)

    async def _read_whole_log(self, runtime: Runtime) -> None:
        """What was skipped at the start, so that clients are served early."""
        fold = await trio.to_thread.run_sync(fold_log, runtime.directory, runtime.record)
        fold.state.children = runtime.state.children
        runtime.hub.fold = fold
        runtime.is_summary = False
        runtime.revise()
        self._canceller.note(runtime)

    def _start_queued(self) -> None:
        if not self._admission.queued:
            return  # as nearly always; counting the busy ones takes longer the more there are
        if self._shutdown.mode == "detach":
            return  # the next supervisor starts them
        for runtime_id in self._admission.take_startable(busy=self._registry.busy_count):
            runtime = self._registry.get(runtime_id)
            assert runtime is not None
            with contextlib.suppress(OSError):  # it counts only as long as there is no log
                runtime.directory.queued_path.unlink(missing_ok=True)
            runtime.stage = Stage.LAUNCHING
            runtime.state.status = runtime.last_status = "starting"
            runtime.revise()
            self._spawn_task(self._keeper.launch, runtime)

    def _end_queued(self, runtime: Runtime) -> bool:
        if not self._admission.leave_queue(runtime.id):
            return False
        self._spawn_task(self._keeper.end_queued, runtime)
        return True

    def _note_parked(self, runtime: Runtime) -> None:
        if runtime.stage is Stage.ENDED or runtime.state.status != "idle":
            self._admission.unpark(runtime.id)
            return
        for runtime_id in self._admission.park(runtime.id):
            surplus = self._registry.get(runtime_id)
            if surplus is not None:
                self._reap(surplus)

    def _reap(self, runtime: Runtime) -> None:
        """Have a parked runtime end, unless it has accepted a prompt of which its events do not tell yet."""

        def note_answer(result: msgspec.Raw | None) -> None:
            if result is None:  # one of a version that cannot decide it itself
                if runtime.state.status == "idle":
                    self._ask_to_end(runtime, "graceful")
            elif _decode_reaped(result).reaped:
                _logger.info("parked.reaped", runtime_id=runtime.id)
            else:  # it works again; when it parks anew that is news, however soon
                runtime.last_status = "running"

        assert runtime.link is not None
        try:
            runtime.link.reap(note_answer)
        except Refused as error:
            _logger.warning("runtime.deaf", runtime_id=runtime.id, error=error.message)

    def _ask_to_end(self, runtime: Runtime, mode: str) -> None:
        """Ask as an operator may, whoever owns it; what a parked runtime's sentinel says stays."""
        if self._end_queued(runtime) or runtime.link is None:
            return
        try:
            runtime.link.call(_OWN_NAME, "shutdown", msgspec.Raw(msgspec.json.encode({"mode": mode})))
        except Refused as error:
            _logger.warning("runtime.deaf", runtime_id=runtime.id, error=error.message)

    def _client_left(self, client: str) -> None:
        for runtime in self._registry.live:
            if runtime.spawner == client:
                runtime.spawner = None
            if runtime.link is not None:
                runtime.link.client_left(client)
        self._changed.unpark_all()

    async def _make_durable(self, runtime: Runtime) -> None:
        await self._durability.sync(runtime.directory)

    async def _make_queued_durable(self, runtime: Runtime) -> None:
        try:
            await self._make_durable(runtime)
        except OSError as error:
            _logger.error("record.not_synced", runtime_id=runtime.id, error=str(error))

    def _spawn_task(self, task: Callable[[Runtime], Awaitable[None]], runtime: Runtime) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._guard, task, runtime)

    async def _guard(self, task: Callable[[Runtime], Awaitable[None]], runtime: Runtime) -> None:
        try:
            await task(runtime)
        except* Exception as errors:  # supervision boundary: one runtime
            _logger.error("runtime.keeping_failed", runtime_id=runtime.id, exc_info=errors)

    async def _stop_when_idle(self) -> None:
        if self._options.idle_timeout is None:
            return
        while True:
            while self._registry.live or self.server.clients:
                await self._changed.park()
            with trio.move_on_after(self._options.idle_timeout) as quiet:
                await self._changed.park()
            if quiet.cancelled_caught and not self._registry.live and not self.server.clients:
                self._shutdown.request("graceful", "idle")
                return
