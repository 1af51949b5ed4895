"""Fixtures for the tests on real agents, and what makes sure that they were real.

These tests are skipped, unless AVENOR_TEST_AGENTS=1 asks for them; then what is missing is a failure, the last line
tells how many sessions of real agents were opened, and none is a failure as well.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from avenor.control.blocking import Client, open_client
from avenor.protocol.events import TurnEnd
from tests.agents.conformance_runs import ConformanceRuns
from tests.agents.harness import WAIT_SECONDS, Home, MakeRun, Run, Runtime, Stable, count_sessions, ended
from tests.agents.install import opencode_program
from tests.agents.standin_model import StandInModel

_IS_WANTED: Final = os.environ.get("AVENOR_TEST_AGENTS") == "1"
_ROOT: Final = pytest.StashKey[Path]()
_RUNS: Final = pytest.StashKey[ConformanceRuns]()
# Sessions that are opened before they are needed: as many as there are processors on a small machine.
_AHEAD: Final = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what was not asked for. The conformance runs go on beside the other tests, so they are looked at last."""
    mine = [item for item in items if item.get_closest_marker("agents")]
    if not _IS_WANTED:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="drives real agents: run `make test-agents`"))
    items.sort(key=lambda item: "verdict" in _fixtures(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Tells, as the last line of all, how many real sessions there were; fails without any."""
    root, runs = session.config.stash.get(_ROOT, None), session.config.stash.get(_RUNS, None)
    count = (count_sessions(root) if root else 0) + (runs.opened if runs else 0)
    if _IS_WANTED and count == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    result = yield
    if _IS_WANTED:
        print(f"real sessions: {count} opencode", flush=True)
    return result


@pytest.fixture(scope="session")
def model() -> Generator[StandInModel, None, None]:
    """The model that all agents talk to."""
    with StandInModel() as running:
        yield running


@pytest.fixture(scope="session")
def home(
    request: pytest.FixtureRequest, model: StandInModel, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Home, None, None]:
    """A user who has opencode; nothing may run in this home when the tests are over."""
    if not opencode_program().exists():
        pytest.fail(f"{opencode_program()} is missing: `make agents` installs it")
    request.config.stash[_ROOT] = tmp_path_factory.getbasetemp()
    made = Home(tmp_path_factory.mktemp("user"), model.url)
    # The very first start makes the database: of two at once in a new home, one fails with "database is locked".
    first = made.command(["opencode", "session", "list"], made.path)
    assert first.returncode == 0, first.stderr
    yield made
    assert made.processes() == []


@pytest.fixture(scope="session", autouse=True)
def conformance(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[ConformanceRuns | None, None, None]:
    """The conformance suite on opencode, begun at once where any of it was selected."""
    names = [item.name for item in request.session.items if "verdict" in _fixtures(item)]
    if not _IS_WANTED or not names:
        yield None
        return
    user: Home = request.getfixturevalue("home")
    model: StandInModel = request.getfixturevalue("model")
    runs = ConformanceRuns(user, model, tmp_path_factory.mktemp("conformance"))
    request.config.stash[_RUNS] = runs
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


def _fixtures(item: pytest.Item) -> list[str]:
    return list(item.fixturenames) if isinstance(item, pytest.Function) else []
