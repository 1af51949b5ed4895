"""Fixtures for the tests on real agents, and what makes sure that they were real.

These tests are skipped, unless AVENOR_TEST_AGENTS names agents (as `catalog.chosen` takes them). Then those of the
named agents run, and the run fails, whatever its tests say, where one of them opened no session, a check of it has no
result, something was skipped without a reason, or something of it still runs. The last lines tell what was seen.
"""

import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from avenor.control.blocking import Client, open_client
from avenor.protocol.events import TurnEnd
from tests.agents.audit import is_silent, problems
from tests.agents.catalog import AGENTS, Agent, wanted
from tests.agents.conformance_runs import ConformanceRuns, Watched
from tests.agents.harness import WAIT_SECONDS, Home, MakeRun, Run, Runtime, Stable, count_sessions, ended
from tests.agents.manifest_team import Team
from tests.agents.model_checks import ALL_CHECKS
from tests.agents.pi_agent import PiLine
from tests.agents.results import KEPT_IN, keep
from tests.agents.standin_model import StandInModel
from tests.runtimes.conformance import Check

_ROOT: Final = pytest.StashKey[Path]()
_RUNS: Final = pytest.StashKey[ConformanceRuns]()
_SEEN: Final = pytest.StashKey[dict[str, list[Watched]]]()
_SILENT_SKIPS: Final = pytest.StashKey[list[str]]()
# Sessions that are opened before they are needed: as many as there are processors on a small machine.
_AHEAD: Final = 2


def pytest_configure(config: pytest.Config) -> None:
    """Begins to note what is seen; a name that names no agent ends the run."""
    config.stash[_SEEN], config.stash[_SILENT_SKIPS] = {}, []
    try:
        wanted()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was not asked for. The conformance runs go on beside the other tests, and are looked at last."""
    names = {agent.name for agent in wanted()}
    mine = [item for item in items if item.get_closest_marker("agents")]
    if not names:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="drives real agents: run `make test-agents`"))
    others = [item for item in mine if names and not agents_of(item) <= names]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    items.sort(key=_is_verdict)


def agents_of(item: pytest.Item) -> frozenset[str]:
    """The names of all agents that a test needs."""
    team = _params(item).get("team")
    return team.columns if isinstance(team, Team) else frozenset({agent_of(item)})


def agent_of(item: pytest.Item) -> str:
    """The name of the agent that a test is about."""
    match _params(item):
        case {"agent": str(name)} | {"name": str(name)}:
            return name
        case {"line": PiLine(name=name)}:
            return name
        case _:
            # The longest beginning: opencode's HTTP has a file among opencode's.
            fitting = [agent for agent in AGENTS.values() if item.path.stem.startswith(agent.module)]
            return max(fitting, key=lambda agent: len(agent.module)).name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Counts the sessions of tests that drive a backend by themselves."""
    kit: Any = getattr(item, "funcargs", {}).get("kit")
    if item.get_closest_marker("agents") and kit is not None and not isinstance(kit.backend, Watched):
        kit.backend = Watched(kit.backend)
        item.config.stash[_SEEN].setdefault(agent_of(item), []).append(kit.backend)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes what was skipped without saying why."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and is_silent(str(report.longrepr[2])):
        item.config.stash[_SILENT_SKIPS].append(item.nodeid)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Keeps the results, and tells at the very end what is wrong besides, and how many real sessions there were."""
    agents: Sequence[Agent] = () if session.config.option.collectonly else wanted()
    counts = _count(session.config)
    wrong = _problems(session, agents, counts) if agents else []
    if wrong and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    runs, folder = session.config.stash.get(_RUNS, None), os.environ.get(KEPT_IN)
    if runs and folder:
        for agent in agents:
            if results := runs.results(agent.name):
                keep(Path(folder), agent.name, agent.backend, results, [check.__name__ for check in ALL_CHECKS])
    result = yield
    for problem in wrong:
        print(f"real agents: {problem}", flush=True)
    if agents:
        print(f"real sessions: {', '.join(f'{counts[agent.name]} {agent.name}' for agent in agents)}", flush=True)
    return result


def _count(config: pytest.Config) -> Counter[str]:
    """How many sessions each agent has opened."""
    root, runs = config.stash.get(_ROOT, None), config.stash.get(_RUNS, None)
    counts = Counter({name: sum(one.opened for one in seen) for name, seen in config.stash[_SEEN].items()})
    counts += count_sessions(root) if root else Counter()
    return counts + runs.opened if runs else counts


def _problems(session: pytest.Session, agents: Sequence[Agent], counts: Mapping[str, int]) -> list[str]:
    runs = session.config.stash.get(_RUNS, None)
    silent = session.config.stash[_SILENT_SKIPS]
    return problems(
        [agent.name for agent in agents],
        counts,
        selected=[(agent_of(item), _params(item)["check"].__name__) for item in session.items if _is_verdict(item)],
        done={(agent.name, check) for agent in agents if runs for check in runs.results(agent.name)},
        left=runs.left if runs else [],
        silent_skips=silent,
    )


@pytest.fixture(scope="session")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[StandInModel, None, None]:
    """The model that all agents talk to."""
    request.config.stash[_ROOT] = tmp_path_factory.getbasetemp()
    with StandInModel() as running:
        yield running


@pytest.fixture(scope="session")
def home(model: StandInModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[Home, None, None]:
    """A user who has opencode; nothing may run in this home when the tests are over."""
    made = Home(tmp_path_factory.mktemp("user"), model.url)
    made.make_database()
    yield made
    assert made.processes() == []


@pytest.fixture(scope="session", autouse=True)
def conformance(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[ConformanceRuns | None, None, None]:
    """The conformance suite on all agents that were asked for, begun at once where any of it was selected."""
    selected: dict[str, tuple[Agent, list[Check]]] = {}
    for item in request.session.items:
        if wanted() and _is_verdict(item):
            name = agent_of(item)
            selected.setdefault(name, (AGENTS[name], []))[1].append(_params(item)["check"])
    if not selected:
        yield None
        return
    runs = request.config.stash[_RUNS] = ConformanceRuns(selected, tmp_path_factory.mktemp("conformance"))
    with runs.running():
        yield runs


@pytest.fixture(scope="session")
def stable(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stable, None, None]:
    """One supervisor for all tests; it must end in good order."""
    running = Stable(home, tmp_path_factory.mktemp("stable"))
    with ended(running):
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def client(stable: Stable) -> Generator[Client, None, None]:
    """The held connection that speaks for the tests."""
    with open_client(stable.socket, timeout_seconds=WAIT_SECONDS) as connected:
        yield connected


class Stall:
    """Parked runtimes on real opencode, opened ahead of the tests that take them.

    Args:
        stable: Their supervisor.
        client: For the runtimes that are handed out.
        make_folder: Makes a working directory.
        count: How many will be taken.
    """

    def __init__(self, stable: Stable, client: Client, make_folder: Callable[[], Path], count: int) -> None:
        self._stable = stable
        self._client = client
        self._make_folder = make_folder
        self._left = count
        self._executor = ThreadPoolExecutor(_AHEAD)
        self._coming: deque[Future[Runtime]] = deque()
        for _ in range(_AHEAD):
            self._open_next()

    def take(self) -> Runtime:
        """A runtime that has said `ready` and waits for its second prompt; nobody owns it."""
        self._open_next()
        return self._coming.popleft().result()

    def close(self) -> None:
        """Waits for those that are still coming."""
        self._executor.shutdown()

    def _open_next(self) -> None:
        if self._left > 0:
            self._left -= 1
            self._coming.append(self._executor.submit(self._open, self._make_folder()))

    def _open(self, folder: Path) -> Runtime:
        id = self._stable.spawn(prompt="[[text: ready]]", dir=str(folder), max_retries=1)
        runtime = Runtime(self._stable, self._client, id, folder)
        assert runtime.wait(TurnEnd).final_output == "ready"
        return runtime


@pytest.fixture(scope="session")
def stall(
    request: pytest.FixtureRequest, stable: Stable, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Stall, None, None]:
    """Gives out as many parked runtimes as the selected tests ask for."""
    singles = sum("fresh" in _fixtures(item) for item in request.session.items)
    modules = {item.path for item in request.session.items if "shared" in _fixtures(item)}
    made = Stall(stable, client, lambda: tmp_path_factory.mktemp("repo"), singles + len(modules))
    yield made
    made.close()


@pytest.fixture
def fresh(stall: Stall) -> Runtime:
    """A parked runtime of a test's own, to be ended in whatever way."""
    return stall.take()


@pytest.fixture(scope="module")
def shared(stall: Stall) -> Runtime:
    """A parked runtime for the tests of a file that leave it parked."""
    return stall.take()


@pytest.fixture
def run(home: Home, tmp_path: Path) -> Generator[MakeRun, None, None]:
    """Starts `avenor run` with more words; each in a folder of its own."""
    started: list[Run] = []
    numbers = itertools.count(1)

    def make(*words: str) -> Run:
        folder = tmp_path / f"run-{next(numbers)}"
        folder.mkdir()
        started.append(Run(home, folder, *words))
        return started[-1]

    yield make
    for one in started:
        one.kill()


def _is_verdict(item: pytest.Item) -> bool:
    """Whether a test only looks at what the conformance runs have found."""
    return "verdict" in _fixtures(item)


def _params(item: pytest.Item) -> dict[str, Any]:
    """What a test is parametrized with."""
    call = getattr(item, "callspec", None)
    return dict(call.params) if call is not None else {}


def _fixtures(item: pytest.Item) -> list[str]:
    return list(item.fixturenames) if isinstance(item, pytest.Function) else []
