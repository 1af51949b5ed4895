"""The entry of a runtime process: takes its directory, and runs what is in it.

`run_directory` is a runtime under a supervisor, which has written the record; `run_once` is `avenor run`, which writes
one in a directory of its own. From there on they are the same.
"""

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from avenor.host.backend_names import backend_names
from avenor.host.config_files import load_config_of
from avenor.host.endsignals import END_SIGNALS
from avenor.host.failpoints import failpoint
from avenor.host.gitworktrees import remove_run
from avenor.host.lock import FileLock
from avenor.host.logfile import last_event_named
from avenor.host.mcp_file import load_servers
from avenor.host.rundir import RunDir
from avenor.host.script_file import check_script
from avenor.host.sentinelfile import write_sentinel
from avenor.host.tree import become_subreaper
from avenor.host.xdg import state_home
from avenor.protocol.configs import ResolvedConfig, backends_of
from avenor.protocol.errors import AvenorError, InvalidParams, SpawnError
from avenor.protocol.manifest.binding import ResolvedManifest, backends_of_manifest
from avenor.protocol.outcomes import ExitCode, Outcome
from avenor.protocol.spec import Record, RunSpec, resolve_spec
from avenor.runtimes.backends.registry import find_backend
from avenor.runtimes.logs import configure_logs
from avenor.runtimes.patience import Interrupted, read_patiently
from avenor.runtimes.process import Ended, HttpServer, Listening, Place, run_process
from avenor.runtimes.readiness import Readiness
from avenor.runtimes.terminal import complain, make_view, print_reply

_logger: Final = structlog.get_logger()


def run_directory(path: str, ready_fd: int) -> int:
    """Runs the record in a runtime directory to its end; returns the exit code.

    Args:
        path: The directory, with its record in it.
        ready_fd: Gets one line, `ready` once the socket answers, or `error` and an error object; closed then.
    """
    ready = Readiness(ready_fd)
    _hold_signals()
    if not structlog.is_configured():  # the process that it was forked from has done it already
        configure_logs(level="info", is_terminal=False)
    rundir = RunDir(path)
    try:
        record, _ = take(rundir)
    except AvenorError as error:
        _logger.error("runtime.not_started", error=error.message)
        ready.tell(error)
        return ExitCode.FAILED
    place = Place(
        rundir=rundir,
        identity=rundir.write_process(),
        sentinel_path=record.spec.sentinel_file or str(rundir.sentinel_path),
        sockets=[Listening(path=str(rundir.socket_path), is_private=True)],
        told=ready.tell,
        has_supervisor=True,
    )
    return _run(record, place).outcome.exit_code


def run_once(
    spec: RunSpec,
    *,
    quiet: bool = False,
    control_socket: str | None = None,
    http_debug: str | None = None,
    http_token_file: str | None = None,
) -> int:
    """Runs one spec in this process, as `avenor run` does; returns the exit code.

    The run is shown on the terminal as it goes; a stdout that is no terminal gets only the final reply. What is wrong
    with the spec is told on stderr, and in the sentinel if it named one.

    Args:
        spec: As the user gave it, with an absolute `dir`; other paths and defaults are resolved here.
        quiet: Shows nothing.
        control_socket: Where to listen, an absolute path, if anywhere.
        http_debug: Where to answer HTTP, if anywhere.
        http_token_file: Where its token goes; None puts it beside the socket, or into the run's directory.
    """
    _hold_signals()
    configure_logs(level="error", is_terminal=sys.stderr.isatty())
    # A supervisor does this itself: its runtimes, each of which is a fork of what is loaded, do without.
    from avenor.runtimes.leftovers import PREFIX, sweep_leftovers

    try:
        record = _own_record(spec)
        runs = _runs_directory()
        for place in sweep_leftovers(runs):
            print(f"avenor: a run was killed; what its writers have left is in {place}", file=sys.stderr)
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=runs))
    except Interrupted as interrupted:
        return _tell(spec, Outcome.of("cancelled", run_id=spec.run_id or "", reason=str(interrupted)))
    except AvenorError as error:
        return _refuse(spec, error)
    except OSError as error:
        return _refuse(spec, SpawnError(f"cannot make a directory for the run: {error}"))
    try:
        token_path = http_token_file or _beside(control_socket, directory)
        open_http = None if http_debug is None else partial(_open_http, http_debug, token_path, quiet=quiet)
        ended = _run_in(directory, record, quiet=quiet, control_socket=control_socket, open_http=open_http)
    except OSError as error:
        return _refuse(spec, SpawnError(f"cannot use {directory} for the run: {error}"))
    finally:
        remove_run(directory)
    # A single run has shown it on the terminal as it came; of a loop or team only the board was shown.
    is_shown = sys.stdout.isatty() and record.config is None
    if not quiet and not is_shown and ended.result.final_output:
        return _print(ended.result.final_output, ended.outcome)
    return ended.outcome.exit_code


def _print(reply: str, outcome: Outcome) -> int:
    """Prints the reply and gives the exit code: a success whose reply got lost is none for who started it."""
    try:
        print_reply(reply)
    except OSError as error:
        complain(f"avenor: cannot write the output: {error.strerror or error}")
        return outcome.exit_code or ExitCode.FAILED
    return outcome.exit_code


def _beside(control_socket: str | None, directory: Path) -> str:
    return str(directory / "http.token") if control_socket is None else f"{control_socket}.token"


@contextmanager
def _open_http(where: str, token_path: str, *, quiet: bool) -> Generator[HttpServer, None, None]:
    from avenor.control.debug.server import open_debug

    with open_debug(where, token_path, follows_one=True) as server:
        if not quiet:
            print(f"avenor: {server.told(is_terminal=sys.stderr.isatty())}", file=sys.stderr, flush=True)
        yield server


def _run_in(
    directory: Path,
    record: Record,
    *,
    quiet: bool,
    control_socket: str | None,
    open_http: Callable[[], AbstractContextManager[HttpServer]] | None,
) -> Ended:
    rundir = RunDir(directory)
    lock = FileLock(rundir.lock_path)
    if not lock.try_acquire():
        raise AssertionError(f"somebody locked our new directory {directory}")
    if isinstance(record.config, ResolvedManifest):
        rundir.write_record(msgspec.json.encode(record))  # for a sweep, should this process be killed
    place = Place(
        rundir=rundir,
        identity=rundir.write_process(),
        sentinel_path=record.spec.sentinel_file,
        sockets=[] if control_socket is None else [Listening(path=control_socket, is_private=False)],
        told=_tell_start_error,
        view=make_view(quiet=quiet, is_board=record.config is not None),
        open_http=open_http,
    )
    try:
        return _run(record, place)
    finally:
        lock.release()


def _run(record: Record, place: Place) -> Ended:
    become_subreaper()
    return trio.run(run_process, record, place)


def take(rundir: RunDir) -> tuple[Record, FileLock]:
    """The record of a directory that nobody else runs in, and nobody has; and its lock, held until this process ends.

    Raises:
        SpawnError: It is taken, has ended, was being ended, or has no usable record.
    """
    failpoint("runtime.before_lock")
    lock = FileLock(rundir.lock_path)
    if not lock.try_acquire():
        raise SpawnError(f"{rundir.path}: another process runs in it")
    rundir.clear_passing()
    failpoint("runtime.after_lock")
    if last_event_named(rundir.log_path, "run.end", "run.ending") is not None:
        raise SpawnError(f"{rundir.path}: the run in it has ended already, or was being ended")
    try:
        return msgspec.json.decode(rundir.read_record() or b"", type=Record), lock
    except (OSError, msgspec.DecodeError) as error:
        raise SpawnError(f"{rundir.record_path}: cannot read the record: {error}") from error


def _own_record(spec: RunSpec) -> Record:
    names = backend_names(os.environ)
    resolved = load_servers(resolve_spec(spec, backends=names))
    prompt = _prompt_of(resolved)
    check_script(resolved.script)
    config, warnings = load_config_of(resolved, prompt, backends=names)
    for name in _backends(resolved, config):
        find_backend(name, names.folder)  # what is wrong with one is told before anything starts
    for found in warnings:
        print(f"avenor: {found.line('warning')}", file=sys.stderr)
    return Record(
        runtime_id="",
        run_id=resolved.run_id or f"run_{secrets.token_hex(6)}",
        spec=resolved,
        prompt=prompt,
        config=config,
        profiles_folder=names.folder,
        created_at=time.time_ns() // 1_000_000,
        version=version("avenor"),
    )


def _backends(spec: RunSpec, config: ResolvedConfig | ResolvedManifest | None) -> set[str]:
    if isinstance(config, ResolvedManifest):
        return backends_of_manifest(config)
    return {spec.backend} if config is None else {spec.backend, *backends_of(config)}


def _prompt_of(spec: RunSpec) -> str:
    if spec.prompt_file is None:
        return spec.prompt or ""
    try:
        text = read_patiently(spec.prompt_file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParams(
            f"prompt_file {spec.prompt_file}: cannot read it: {error}", data={"field": "prompt_file"}
        ) from error
    if not text.strip():
        raise InvalidParams(
            f"prompt_file {spec.prompt_file}: it is empty, give it some text", data={"field": "prompt_file"}
        )
    return text


def _runs_directory() -> Path:
    directory = Path(state_home(os.environ), "avenor", "runs")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _refuse(spec: RunSpec, error: AvenorError) -> int:
    print(f"avenor: {error.message}", file=sys.stderr)
    return _tell(spec, Outcome.of(error.reason_word, run_id=spec.run_id or "", reason=error.message))


def _tell(spec: RunSpec, outcome: Outcome) -> int:
    """Tells the end of a run that never began; returns its exit code."""
    if spec.sentinel_file is not None:
        path = os.path.join(spec.dir, spec.sentinel_file)
        try:
            write_sentinel(path, outcome)
        except OSError as problem:
            print(f"avenor: cannot write the sentinel {path}: {problem.strerror}", file=sys.stderr)
    return outcome.exit_code


def _tell_start_error(error: AvenorError | None) -> None:
    if error is not None:
        print(f"avenor: {error.message}", file=sys.stderr)


def _hold_signals() -> None:
    """Nothing ends us before there is a run that can say so; they are let through when it watches for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    # A reader that goes away, or a file that grows too large, is an error of a write, not our end.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
