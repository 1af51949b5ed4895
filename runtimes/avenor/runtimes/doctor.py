"""Finds out which backends work here: starts each agent, opens a session without a prompt, and ends it again.

Several are examined at once; nothing that was started is left, however it goes. What is found is data
(`protocol/diagnosis`); showing it is the command line's.
"""

import itertools
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any, Final, cast

import msgspec
import trio
from msgspec.structs import replace

from avenor.host.backend_names import BackendNames
from avenor.host.endsignals import END_SIGNALS
from avenor.host.identity import process_id, signal_process
from avenor.host.ladder import Graces, stop_tree
from avenor.host.tree import become_subreaper, descendants, part_tag, tree_tag
from avenor.protocol.diagnosis import Diagnosis, Examined
from avenor.protocol.errors import AvenorError, InvalidParams
from avenor.protocol.events import Event
from avenor.protocol.spec import SERVER_BACKEND, check_server_url
from avenor.runtimes.backends.agent_process import READ_BYTES, AgentProcess, start_agent
from avenor.runtimes.backends.base import (
    OpenParams,
    PermissionAnswer,
    PermissionAsk,
    Session,
    StderrTail,
    close_in_time,
    open_within,
)
from avenor.runtimes.backends.profiles import Profile
from avenor.runtimes.backends.registry import Found, find_backend
from avenor.runtimes.backends.wiretap import Tap, set_tap
from avenor.runtimes.environment import SERVER_URL

# Most agents are a whole Node.js each: more at once make all of them late for the handshake.
_AT_ONCE: Final = 4
_VERSION_SECONDS: Final = 20.0
_VERSION_BYTES: Final = 64 * 1024
_VERSION_CHARS: Final = 80
# An idle session has nothing to save.
_GRACES: Final = Graces(stdin_seconds=1.0, term_seconds=1.0, kill_seconds=5.0)
_CLOSE_SECONDS: Final = 10.0
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# No agent that does work: it comes with avenor and plays scripts.
_REHEARSAL: Final = "scripted"


class Interrupted(Exception):
    """A signal ended the examination; everything that it had started is gone."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What to examine.

    Attributes:
        backends: By name, in the order of the result.
        named: Whether they were asked for by name, so that all of them have to work.
        folder: Where the user's profile files are.
        directory: Where sessions are opened; absolute.
        environ: What the agents start from.
        command: The program line of backend `acp`; empty leaves it out.
        timeout_seconds: What each handshake may take.
        tapping: Makes a tap for a backend, given the names of the variables that hold its secrets; None taps nothing.
        done: Told of each backend when it is through.
    """

    backends: Sequence[str]
    named: bool
    folder: str
    directory: str
    environ: Mapping[str, str]
    command: Sequence[str] = ()
    timeout_seconds: float = 60.0
    tapping: Callable[[str, Sequence[str]], Tap] | None = None
    done: Callable[[Examined], None] = lambda _examined: None


def examine(what: Examination) -> Diagnosis:
    """Examines them all, in this process, which must have nothing else to do.

    Raises:
        Interrupted: A signal came. A second one ends all programs without any grace.
    """
    become_subreaper()
    return trio.run(_examine_until_signal, what)


async def _examine_until_signal(what: Examination) -> Diagnosis:
    """As `examine`, in a running loop."""
    began = trio.current_time()
    numbers: list[int] = []
    doctor = _Doctor(what)
    left: list[str] = []
    with trio.open_signal_receiver(*END_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            work = trio.CancelScope()
            nursery.start_soon(_watch, signals, work, numbers)
            try:
                with work:
                    await doctor.run()
            finally:
                with trio.CancelScope(shield=True):  # bounded by its graces
                    left = await doctor.sweep()
            nursery.cancel_scope.cancel()
    if numbers:
        raise Interrupted(numbers[0])
    found = [doctor.results[name] for name in what.backends]
    return Diagnosis(
        ok=_is_well(found, named=what.named),
        version=version("avenor"),
        dir=what.directory,
        seconds=round(trio.current_time() - began, 3),
        left=left,
        backends=found,
    )


def _is_well(found: Sequence[Examined], *, named: bool) -> bool:
    if named:
        return all(examined.state == "works" for examined in found)
    return any(examined.state == "works" and examined.backend != _REHEARSAL for examined in found)


async def _watch(signals: AsyncIterator[int], work: trio.CancelScope, numbers: list[int]) -> None:
    """Ends the work at the first signal, and at every later one whatever still runs, at once."""
    async for number in signals:
        if numbers:
            for found in descendants(os.getpid()):
                signal_process(found.id, signal.SIGKILL)
        numbers.append(number)
        work.cancel()


class _Doctor:
    def __init__(self, what: Examination) -> None:
        self._what = what
        own = process_id(os.getpid())
        assert own is not None  # we run, so we can be found
        self._own = own
        self._tag = tree_tag(own.pid, own.start_ticks)
        self._numbers = itertools.count(1)
        self._limit = trio.CapacityLimiter(_AT_ONCE)
        self._names = BackendNames(what.folder)
        self.results: dict[str, Examined] = {}

    async def run(self) -> None:
        """Examines every backend; the results are then there."""
        async with trio.open_nursery() as nursery:
            for name in self._what.backends:
                nursery.start_soon(self._examine, name)

    async def sweep(self) -> list[str]:
        """Ends whatever is still there; what cannot be ended, in words."""
        stopped = await stop_tree(
            roots=[], tag=self._tag, close_stdin=None, graces=_GRACES, own_children_of=os.getpid()
        )
        return [f"{process.name} ({process.pid}): {process.reason}" for process in stopped.left]

    async def _examine(self, name: str) -> None:
        async with self._limit:
            began = trio.current_time()
            examined = Examined(backend=name, source=self._names.source(name) or "builtin", state="failed")
            try:
                found = find_backend(name, self._what.folder)
                if self._what.tapping is not None:
                    set_tap(self._what.tapping(name, () if found.profile is None else found.profile.secrets))
                examined = await _Patient(found, examined, self._params(name), self._what).examine()
            except AvenorError as error:
                examined = replace(examined, error=error.message, reason=error.reason_word)
            except Exception as error:  # supervision boundary: an adapter of a package may raise anything
                examined = replace(examined, error=_in_words(error), reason="internal_error")
            examined = replace(examined, seconds=round(trio.current_time() - began, 3))
            self.results[name] = examined
            self._what.done(examined)

    def _params(self, name: str) -> OpenParams:
        env = {**self._what.environ, self._tag[0]: self._tag[1]}
        url = env.get(SERVER_URL) if name == SERVER_BACKEND else None
        return OpenParams(
            cwd=self._what.directory,
            env=env,
            tag=part_tag(self._own.pid, self._own.start_ticks, next(self._numbers)),
            command=self._what.command if name == "acp" else (),
            server_url=check_server_url(url) if url else None,
        )


def _in_words(error: Exception) -> str:
    """An error that no adapter should raise, without the groups in which nurseries have wrapped it."""
    first: BaseException = error
    while isinstance(first, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", first)
        first = group.exceptions[0]
    return f"{type(first).__name__}: {first}"


class _Patient:
    """One backend under examination."""

    def __init__(self, found: Found, examined: Examined, params: OpenParams, what: Examination) -> None:
        self._found = found
        self._examined = examined
        self._params = params
        self._what = what

    async def examine(self) -> Examined:
        """What is found; a failure that an adapter tells is raised with nothing left behind."""
        profile = self._found.profile
        if profile is not None:
            self._learn(install=profile.install, note=profile.note, mcp=list(profile.mcp))
            if not profile.argv and not self._params.command:
                return self._over("skipped", "name its program with --agent-command", "agent_command")
            if self._params.server_url is None and not self._is_installed(profile.command(self._params)[0]):
                return self._over("not_installed", None, "not_installed")
            if profile.version_argv and self._params.server_url is None:
                self._learn(version=await self._ask_version(profile))
        failure = await self._shake_hands()
        if failure is not None:
            return self._over("failed", failure.message, failure.reason_word)
        return self._over("works", None, None)

    def _is_installed(self, program: str) -> bool:
        env_path = self._params.env.get("PATH")
        path = shutil.which(os.path.join(self._params.cwd, program) if os.sep in program else program, path=env_path)
        self._learn(program=path)
        return path is not None

    async def _shake_hands(self) -> AvenorError | None:
        """Opens a session, looks at it and closes it; what kept it from being opened."""
        seconds, backend = self._what.timeout_seconds, self._found.backend
        async with trio.open_nursery() as nursery:
            try:
                session = await open_within(seconds, backend, self._params, _Deaf(), nursery)
            except AvenorError as error:
                nursery.cancel_scope.cancel()
                return error
            try:
                self._note(session)
            finally:
                await close_in_time(session, _GRACES)
            nursery.cancel_scope.cancel()
        return None

    def _note(self, session: Session) -> None:
        can = session.capabilities
        self._learn(
            agent=session.agent_version,
            resume=can.resume,
            mode=session.agent,
            modes=list(can.agents),
            model=session.model,
            models=list(can.models),
            thinking=list(can.thinking),
        )
        if can.mcp is not None:
            self._learn(mcp=list(can.mcp))

    async def _ask_version(self, profile: Profile) -> str | None:
        """What the program says of its version; None if it says nothing that looks like one."""
        try:
            process = await start_agent(
                profile.version_argv,
                cwd=self._params.cwd,
                env=self._params.env,
                tag=self._params.tag,
                install=profile.install,
                procs=None,
            )
        except AvenorError:
            return None
        tail, told = StderrTail(), bytearray()
        try:
            with trio.move_on_after(_VERSION_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.read_stderr, tail, _ignore)
                    await process.stdin.aclose()
                    if not await _read_to_end(process, told):
                        nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
                await process.stop(_GRACES)
        return _version_line(told.decode(errors="replace")) or _version_line(tail.text())

    def _learn(self, **changes: Any) -> None:
        self._examined = replace(self._examined, **changes)

    def _over(self, state: str, error: str | None, reason: str | None) -> Examined:
        self._learn(state=state, error=error, reason=reason)
        return self._examined


async def _read_to_end(process: AgentProcess, told: bytearray) -> bool:
    """Reads what the program prints; whether that was all of it."""
    while len(told) < _VERSION_BYTES:
        data = await process.stdout.receive_some(READ_BYTES)
        if not data:
            return True
        told += data
    return False


def _version_line(text: str) -> str | None:
    """The first line with a digit in it, without colours."""
    lines = (_ANSI.sub("", line).strip() for line in text.splitlines())
    found = next((line for line in lines if any(map(str.isdigit, line))), None)
    return found[:_VERSION_CHARS] if found else None


def _ignore(_line: str) -> None:
    """What an agent says beside the wire is in its start errors."""


class _Deaf:
    """A sink for a session in which nothing is said."""

    def emit(self, event: Event) -> None:
        """Not kept."""

    def batch(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    async def ask_permission(self, request: PermissionAsk) -> PermissionAnswer:
        """Left open: nothing was asked of the agent, so nothing is allowed."""
        await trio.sleep_forever()
        raise InvalidParams("unreachable")
