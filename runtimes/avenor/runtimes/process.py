"""One run in one process: opens its files, serves its sockets, lives it, and stops serving.

This is where the parts of a run are put together; what it runs in is given by `main.py`.
"""

import itertools
import os
import shlex
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from signal import SIGKILL
from typing import Final, Protocol

import msgspec
import trio

from avenor.control.hub import EventHub
from avenor.control.server import ControlServer
from avenor.host.backend_names import profiles_folder
from avenor.host.children import CHILDREN
from avenor.host.failpoints import failpoint
from avenor.host.identity import ProcessId, signal_process
from avenor.host.ladder import Graces, StopResult, stop_tree
from avenor.host.logfile import complete_copy, iter_lines, repair
from avenor.host.procs import ProcsFile
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import Sentinel
from avenor.host.tree import descendants, part_tag, tree_tag
from avenor.host.unixsock import bind_listener, remove_if_ours, socket_inode
from avenor.protocol.errors import AvenorError, ConfigError, InvalidParams, SpawnError
from avenor.protocol.events import EventHead
from avenor.protocol.methods import RunResult
from avenor.protocol.outcomes import Outcome
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.protocol.spec import SERVER_BACKEND, Record, RunSpec, check_server_url
from avenor.runtimes.backends.base import OpenParams
from avenor.runtimes.backends.registry import silence_limit, usable_backend
from avenor.runtimes.environment import SERVER_URL, agent_environment
from avenor.runtimes.eventlog import EventLog, LineFile, Publisher, Stamp
from avenor.runtimes.host import RunHost, Surroundings
from avenor.runtimes.life import Runner, fail_to_start, live, watch_signals
from avenor.runtimes.phased import run_phased
from avenor.runtimes.replay import Past, read_past
from avenor.runtimes.serving import make_server
from avenor.runtimes.single import run_single
from avenor.runtimes.terminal import View

# A supervisor connects within milliseconds of hearing that a runtime is ready, unless it was killed just now.
_LINK_SECONDS: Final = 1.0


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """A socket to serve.

    Attributes:
        is_private: Whether the path is in the run's own directory, whose lock this process holds: nobody else starts
            there, and it may be longer than foreign clients can dial.
    """

    path: str
    is_private: bool


class HttpServer(Protocol):
    """What serves a run over HTTP. Its module is loaded only where that was asked for."""

    async def serve(
        self, control: ControlServer, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answers until `close`."""
        ...

    async def close(self) -> None:
        """Ends `serve`, after the control server has closed."""
        ...


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run happens.

    Attributes:
        rundir: Its directory, whose lock this process holds.
        identity: This process.
        sentinel_path: None for a run that was not asked for one.
        sockets: Where to listen.
        told: Called once, with None when the sockets answer, or with what kept the run from starting.
        view: Shows the run to a person.
        open_http: Gives the server for HTTP, where there is to be one; raises `AvenorError`.
        has_supervisor: One has started it, and connects once it was told. The run begins when it has, so that nothing
            happens before its spawner owns it, and nobody waits for an answer while the agent is being started.
    """

    rundir: RunDir
    identity: ProcessId
    sentinel_path: str | None
    sockets: Sequence[Listening]
    told: Callable[[AvenorError | None], None]
    view: View | None = None
    open_http: Callable[[], AbstractContextManager[HttpServer]] | None = None
    has_supervisor: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to, and its last turn's result."""

    outcome: Outcome
    result: RunResult


async def run_process(record: Record, place: Place) -> Ended:
    """Runs a record to its end.

    Raises:
        OSError: The runtime's own log cannot be opened; nothing else was done.
    """
    past, fold = _read_past(record, place)
    hub = EventHub(record.runtime_id or None, place.rundir.log_path, fold)
    journal = _open_journal(place.rundir)
    with ExitStack() as held:
        own = _take_own(record, place, past, held)
        log = EventLog(
            journal=journal,
            copy=own.copy,
            stamp=Stamp(run_id=record.run_id, runtime_id=record.runtime_id, label=record.spec.label),
            publisher=hub if place.view is None else _Both(hub, place.view),
            clock=trio.current_time,
            seq=hub.latest_seq,
        )
        try:
            surroundings = _surroundings(record, place, own.sentinel)
            host = RunHost(record, log=log, fold=hub.fold, surroundings=surroundings, past=past)
            outcome = await _serve_and_live(host, hub, place, own)
        finally:
            log.close()
    return Ended(outcome=outcome, result=host.result)


class _Own(msgspec.Struct, kw_only=True):
    """What a run has for itself while it lives.

    Attributes:
        problem: Why it cannot have all of it, if so. It tells then that it has failed, where that is nobody else's.
    """

    listeners: list[socket.socket] = []
    http: HttpServer | None = None
    copy: LineFile | None = None
    sentinel: Sentinel | None = None
    problem: AvenorError | None = None


def _take_own(record: Record, place: Place, past: Past | None, held: ExitStack) -> _Own:
    """Takes what the run is to have, up to the first that it cannot have.

    The order is always the same, so that of several starts with the same files one gets all. The sentinel is for those
    that fail, too.
    """
    own = _Own()
    with _noting_in(own):
        own.listeners = [held.enter_context(_bound(listening)) for listening in place.sockets]
        own.http = None if place.open_http is None else held.enter_context(place.open_http())
        own.copy = _open_copy(record, place.rundir, is_new=past is None)
    with _noting_in(own):
        # A failure is told only where nobody lives who may just be telling an outcome.
        own.sentinel = _keep_sentinel(place, past, is_patient=own.problem is None)
    if own.sentinel is not None:
        held.callback(own.sentinel.give_up)
    return own


@contextmanager
def _noting_in(own: _Own) -> Generator[None, None, None]:
    try:
        yield
    except AvenorError as error:
        own.problem = own.problem or error


async def _serve_and_live(host: RunHost, hub: EventHub, place: Place, own: _Own) -> Outcome:
    problem = own.problem
    linked = trio.Event()
    server = make_server(host, hub, place.identity, linked=linked.set)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, host)
        await nursery.start(CHILDREN.keep_reaping)
        for listener in own.listeners:
            await nursery.start(server.serve, listener)
        if own.http is not None:
            await nursery.start(own.http.serve, server)
        if place.view is not None:
            nursery.start_soon(place.view.run)
        failpoint("runtime.before_ready")
        place.told(problem)
        if place.has_supervisor and problem is None:
            with trio.move_on_after(_LINK_SECONDS), host.ending.interruptible():
                await linked.wait()
        outcome = await _live_or_fail(host, problem)
        await server.close()
        if own.http is not None:
            await own.http.close()
        if place.view is not None:
            await place.view.wait_shown()
        nursery.cancel_scope.cancel()
    return outcome


async def _live_or_fail(host: RunHost, problem: AvenorError | None) -> Outcome:
    if problem is None:
        return await live(host, _runner(host.record))
    outcome = Outcome.of(problem.reason_word, run_id=host.record.run_id, reason=problem.message)
    return await fail_to_start(host, outcome)


def _runner(record: Record) -> Runner:
    if record.kind == "single":
        return run_single
    if record.kind == "manifest":
        # Most runs are none, and do without all that it needs.
        from avenor.runtimes.manifest.runner import run_manifest

        return run_manifest
    return run_phased


@contextmanager
def _bound(listening: Listening) -> Generator[socket.socket, None, None]:
    """A listener, whose file is removed at the end if it is still ours.

    Raises:
        AvenorError: It cannot be bound.
    """
    path, is_private = listening.path, listening.is_private
    try:
        listener = bind_listener(path, allow_long_path=is_private, has_directory=is_private)
    except OSError as error:
        raise SpawnError(f"cannot listen on {path}: {error.strerror}; choose another path") from error
    with listener:
        inode = socket_inode(path)
        try:
            yield listener
        finally:
            remove_if_ours(path, inode, has_directory=is_private)


def _first_snapshot(record: Record, place: Place) -> Snapshot:
    """What is known of a run before its first event."""
    spec = record.spec
    return Snapshot(
        runtime_id=record.runtime_id or None,
        run_id=record.run_id,
        label=spec.label,
        agent=spec.agent,
        model=spec.model,
        backend=record.backend,
        dir=spec.dir,
        max_retries=spec.max_retries,
        pid=place.identity.pid,
        on_event=spec.on_event or str(place.rundir.log_path),
        sentinel_file=place.sentinel_path,
        parent_id=record.parent_id,
        depth=record.depth,
    )


def _read_past(record: Record, place: Place) -> tuple[Past | None, Fold]:
    """What an earlier process of the run has left in the log, whose torn end is cut, and the state that it comes to."""
    fold = Fold(_first_snapshot(record, place))
    path = place.rundir.log_path
    if not path.exists():
        return None, fold
    repair(path)
    past = read_past(iter_lines(path), fold)
    failpoint("resume.replayed")
    return past, fold


def _open_journal(rundir: RunDir) -> LineFile:
    return LineFile(str(rundir.log_path), truncate=False)


def _open_copy(record: Record, rundir: RunDir, *, is_new: bool) -> LineFile | None:
    """The file of `--on-event`, unless that is the journal itself.

    A new run begins it anew; one that goes on first adds what the process before it has not brought there.

    Raises:
        ConfigError: It cannot be opened, or another run that lives writes to it.
    """
    path = record.spec.on_event
    if path is None or os.path.realpath(path) == os.path.realpath(rundir.log_path):
        return None
    try:
        if not is_new:
            complete_copy(rundir.log_path, path)
        return LineFile(path, truncate=is_new, is_alone=True)
    except OSError as error:
        raise _unusable("on_event", path, error) from error


def _keep_sentinel(place: Place, past: Past | None, *, is_patient: bool) -> Sentinel | None:
    """The sentinel, kept for this run; but one that is parked has told its outcome there, and leaves it to others.

    Raises:
        ConfigError: Another run that lives keeps it.
    """
    path = place.sentinel_path
    if path is None:
        return None
    sentinel = Sentinel(path, is_private=path == str(place.rundir.sentinel_path))
    if past is None or not past.is_parked:
        try:
            sentinel.keep(is_patient=is_patient)
        except OSError as error:
            raise _unusable("sentinel_file", path, error) from error
    return sentinel


def _unusable(field: str, path: str, error: OSError) -> ConfigError:
    return ConfigError(f"{field} {path}: {error.strerror}; choose another file", data={"field": field})


def _surroundings(record: Record, place: Place, sentinel: Sentinel | None) -> Surroundings:
    pid, start_ticks = place.identity.pid, place.identity.start_ticks
    tag = tree_tag(pid, start_ticks)
    sessions = itertools.count(1)
    env = agent_environment(record, record.environ or os.environ, tag)
    folder = record.profiles_folder or profiles_folder(os.environ)

    def open_params(spec: RunSpec, owns_process: bool) -> OpenParams:
        return OpenParams(
            cwd=spec.dir,
            env=env,
            tag=tag if owns_process else part_tag(pid, start_ticks, next(sessions)),
            procs=ProcsFile(place.rundir.procs_path),
            agent=spec.agent,
            model=spec.model,
            thinking=spec.thinking,
            command=_command(spec.agent_command) if spec.backend == "acp" else [],
            script=spec.script if spec.backend == "scripted" else None,
            server_url=_server_url(spec, env),
            label=spec.label,
            mcp_servers=spec.mcp_servers,
            auto_approve=spec.auto_approve,
            owns_process=owns_process,
        )

    return Surroundings(
        find_backend=lambda spec: usable_backend(spec.backend, folder),
        open_params=open_params,
        scratch=str(place.rundir.path),
        sweep=partial(_sweep, tag),
        sentinel=sentinel,
        kill_all=_kill_all,
        silence_limit=lambda spec: silence_limit(spec.backend, folder),
    )


def _command(line: str | None) -> list[str]:
    """The words of a program line.

    Raises:
        InvalidParams: A quote is not closed.
    """
    try:
        return shlex.split(line or "")
    except ValueError as error:
        raise InvalidParams(f"agent_command {line!r}: {error}", data={"field": "agent_command"}) from error


def _server_url(spec: RunSpec, env: Mapping[str, str]) -> str | None:
    """The server that the agent is to be reached at; None starts one.

    Raises:
        InvalidParams: It is no address.
    """
    if spec.backend != SERVER_BACKEND:
        return None
    if spec.server_url is not None:
        return spec.server_url
    url = env.get(SERVER_URL)
    return check_server_url(url) if url else None


async def _sweep(tag: tuple[str, str], graces: Graces) -> StopResult:
    return await stop_tree(roots=[], tag=tag, close_stdin=None, graces=graces, own_children_of=os.getpid())


def _kill_all() -> None:
    for found in descendants(os.getpid()):
        signal_process(found.id, SIGKILL)


class _Both:
    """Publishes to the hub and to the view."""

    def __init__(self, hub: Publisher, view: Publisher) -> None:
        self._hub = hub
        self._view = view

    def publish(self, lines: Sequence[bytes], heads: Sequence[EventHead]) -> None:
        self._hub.publish(lines, heads)
        self._view.publish(lines, heads)
