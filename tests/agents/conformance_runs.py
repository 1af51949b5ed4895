"""The backends' conformance suite on real opencode, run in a thread beside the other tests, two checks at a time."""

import secrets
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import trio

from avenor.runtimes.backends.base import Backend, OpenParams, Session, SessionSink
from avenor.runtimes.backends.registry import get_backend
from tests.agents.harness import Home
from tests.agents.standin_model import StandInModel
from tests.runtimes.agent_kit import make_params
from tests.runtimes.conformance import CHECKS, Check

_AT_ONCE = 2
# All checks together; a hang fails by the bounds of the check itself long before.
_LONGEST_SECONDS = 600.0


class OpencodeKit:
    """opencode under its own backend; files are in the session's folder, and the home is everybody's."""

    def __init__(self, home: Home, model: StandInModel) -> None:
        self._counting = _Counting(get_backend("opencode-acp"))
        self.backend: Backend = self._counting
        self.choice = {"model": "standin/small", "agent": "plan"}
        self._home = home
        self._model = model
        self._recalled = ""

    @property
    def opened(self) -> int:
        """How many sessions were opened."""
        return self._counting.opened

    def params(
        self,
        folder: Path,
        *,
        resume: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
    ) -> OpenParams:
        return make_params(folder, env=self._home.env, resume=resume, agent=agent, model=model, thinking=thinking)

    def say(self, text: str) -> str:
        return f"[[text: {text}]]"

    def touch(self, path: Path) -> str:
        return f"[[shell: touch {path.name}]][[text: touched]]"

    def talk_on(self) -> str:
        return "[[slow: 300 x 0.2]]"

    def work_on(self, path: Path) -> str:
        return f"[[shell: touch {path.name}; exec python3 -c 'import time; time.sleep(60)']]"

    def recall(self) -> str:
        self._recalled = secrets.token_hex(8)
        return f"[[text: I know]] {self._recalled}"

    def has_recalled(self, word: str, said: str) -> bool:
        (request,) = self._model.asked(self._recalled)
        return word in request.earlier


class _Counting:
    """A backend that counts the sessions that real agents have opened."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.opened = 0

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> Session:
        session = await self._backend.open(params, sink, nursery)
        if session.session_id and (session.agent_version or "").lower().startswith("opencode"):
            self.opened += 1
        return session


class ConformanceRuns:
    """Every check of the suite, under way.

    Args:
        home: Whose opencode it is.
        model: What that talks to.
        folder: For the checks' working directories.
    """

    def __init__(self, home: Home, model: StandInModel, folder: Path) -> None:
        self._kits = {check.__name__: OpencodeKit(home, model) for check in CHECKS}
        self._folder = folder
        self._done = {check.__name__: threading.Event() for check in CHECKS}
        self._failures: dict[str, BaseException] = {}
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def opened(self) -> int:
        """How many sessions were opened so far."""
        return sum(kit.opened for kit in self._kits.values())

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Runs the checks while this lasts; those that are not done by then are cancelled."""
        thread = threading.Thread(target=trio.run, args=(self._run_all,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            if self._token is not None and thread.is_alive():
                self._token.run_sync_soon(self._scope.cancel)
            thread.join(_LONGEST_SECONDS)

    def verdict(self, check: Check) -> None:
        """Waits for a check, and raises what it has raised."""
        assert self._done[check.__name__].wait(_LONGEST_SECONDS)
        if check.__name__ in self._failures:
            raise self._failures[check.__name__]

    async def _run_all(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        limiter = trio.CapacityLimiter(_AT_ONCE)
        with self._scope:
            async with trio.open_nursery() as nursery:
                for check in CHECKS:
                    nursery.start_soon(self._run, check, limiter)

    async def _run(self, check: Check, limiter: trio.CapacityLimiter) -> None:
        name = check.__name__
        folder = self._folder / name
        async with limiter:
            folder.mkdir()
            try:
                await check(self._kits[name], folder)
            except Exception as error:
                self._failures[name] = error
        self._done[name].set()
