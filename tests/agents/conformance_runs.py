"""The conformance suite on real agents, run in a thread beside the other tests: one agent after the other."""

import datetime
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from avenor.host import tree
from avenor.runtimes.backends.base import Backend, OpenParams, Session, SessionSink
from tests.agents.acp_dialects import DialectModel
from tests.agents.catalog import Agent, Models, RealKit
from tests.agents.results import Result, Verdict
from tests.agents.standin_model import StandInModel
from tests.runtimes.conformance import Check

# One check, with the time that a busy machine takes; its own bounds are shorter.
_LONGEST_SECONDS = 300.0


class Watched:
    """A backend that counts the sessions that were opened through it, and keeps what the agent called itself."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.opened = 0
        self.version = ""

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> Session:
        """Opens one; see `Backend.open`."""
        session = await self._backend.open(params, sink, nursery)
        if session.session_id and session.agent_version:
            self.opened += 1
            self.version = session.agent_version
        return session


class _Case:
    """One check on one agent."""

    def __init__(self, agent: Agent, check: Check) -> None:
        self.agent = agent
        self.check = check
        self.name = check.__name__
        self.done = threading.Event()
        self.raised: BaseException | None = None
        self.verdict: Verdict = "passed"
        self.reason = ""

    def fail(self, error: BaseException) -> None:
        """Notes what it has raised."""
        self.raised, self.verdict, self.reason = error, "failed", type(error).__name__

    def skip(self, why: str) -> None:
        """Notes that it cannot be met."""
        self.verdict, self.reason = "not offered", why


class ConformanceRuns:
    """Checks, under way.

    Args:
        wanted: The agents, each with its checks.
        folder: For their homes and the checks' working directories.

    Attributes:
        opened: How many sessions were opened so far, by agent.
        left: The agents of which something ran when all their checks were over.
    """

    def __init__(self, wanted: Mapping[str, tuple[Agent, Sequence[Check]]], folder: Path) -> None:
        self._cases = {
            (name, check.__name__): _Case(agent, check) for name, (agent, checks) in wanted.items() for check in checks
        }
        self._folder = folder
        self._versions: dict[str, str] = {}
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self.opened = Counter[str]()
        self.left: list[str] = []

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Runs the checks while this lasts; those that are not done by then are cancelled."""
        thread = threading.Thread(target=trio.run, args=(self._run_all,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            if all(case.done.is_set() for case in self._cases.values()):
                thread.join(_LONGEST_SECONDS)  # it still looks at what is left
            if self._token is not None and thread.is_alive():
                self._token.run_sync_soon(self._scope.cancel)
            thread.join(_LONGEST_SECONDS)

    def verdict(self, agent: str, check: str) -> None:
        """Waits for a check, raises what it has raised, and skips the test of what is not offered."""
        case = self._cases[agent, check]
        # Those before it have their time as well.
        ahead = list(self._cases).index((agent, check)) + 1
        assert case.done.wait(_LONGEST_SECONDS * ahead)
        if case.raised is not None:
            raise case.raised
        if case.verdict == "not offered":
            pytest.skip(case.reason)

    def results(self, agent: str) -> Mapping[str, Result]:
        """What became of an agent's checks that were done, by their names."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        version = self._versions.get(agent, "")
        return {
            name: Result(verdict=case.verdict, version=version, date=today, reason=case.reason)
            for (owner, name), case in self._cases.items()
            if owner == agent and case.done.is_set() and version
        }

    async def _run_all(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope, ExitStack() as stack:
            chat = stack.enter_context(StandInModel())
            models = Models(chat, stack.enter_context(DialectModel(chat.url)))
            for name in {name: None for name, _ in self._cases}:
                await self._run_agent([case for (owner, _), case in self._cases.items() if owner == name], models)

    async def _run_agent(self, cases: list[_Case], models: Models) -> None:
        agent = cases[0].agent
        root = self._folder / agent.name
        root.mkdir()
        limiter = trio.CapacityLimiter(agent.at_once)
        try:
            make_kit = await trio.to_thread.run_sync(agent.make_kits, root, models)
        except Exception as error:
            for case in cases:
                case.fail(error)
                case.done.set()
            return
        async with trio.open_nursery() as nursery:
            for case in cases:
                nursery.start_soon(self._run, case, make_kit(), root, limiter)
        if tree.tagged("HOME", str(root / "home")):
            self.left.append(agent.name)

    async def _run(self, case: _Case, kit: RealKit, root: Path, limiter: trio.CapacityLimiter) -> None:
        name, agent = case.name, case.agent
        if name in agent.lacks:
            case.skip(agent.lacks[name])
            case.done.set()
            return
        folder = root / name
        kit.backend = watched = Watched(kit.backend)
        async with limiter:
            folder.mkdir()
            try:
                await case.check(kit, folder)
            except pytest.skip.Exception as skipped:
                case.skip(skipped.msg or "")
            except Exception as error:
                case.fail(error)
        self.opened[agent.name] += watched.opened
        if watched.version:
            self._versions[agent.name] = watched.version
        case.done.set()
