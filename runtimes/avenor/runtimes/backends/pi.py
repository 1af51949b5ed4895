"""The backend for pi in its RPC mode: starting it and opening its session.

Model, thinking level and session are given on its command line, and checked against what it then says; its commands for
the first two would make them the user's defaults in 0.73. pi takes an unknown model as a custom one, or ends: either
way the refusal lists what it offers, which may need another start. It never asks before it acts; the extension that we
give it does, and a pi that has not loaded it is refused.
"""

import re
from pathlib import Path
from typing import Final

import msgspec
import trio

from avenor.host.ladder import Graces
from avenor.protocol.errors import AgentExited
from avenor.runtimes.backends.acp_mcp import refuse_unless
from avenor.runtimes.backends.acp_options import list_offers
from avenor.runtimes.backends.acp_wire import AgentGone, LineTooLong
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import BackendRefused, Capabilities, OpenParams, SessionSink, abort_opening
from avenor.runtimes.backends.pi_session import PiSession
from avenor.runtimes.backends.pi_types import Command, Commands, Levels, Loaded, Models, PiModel, State
from avenor.runtimes.backends.pi_wire import CommandFailed
from avenor.runtimes.backends.profiles import Profile

EXTENSION: Final = Path(__file__).with_name("pi_ask.js")
ASK_VARIABLE: Final = "AVENOR_PI_ASK"

# Short, since an agent that gave no session has no work to save.
ABORT_GRACES = Graces(stdin_seconds=0.5, term_seconds=1.0, kill_seconds=5.0)

# Of a model that thinks, where pi does not list them itself (0.73); `xhigh` only if the model says so.
_LEVELS: Final = ("off", "minimal", "low", "medium", "high", "xhigh")
_SESSION_ID: Final = re.compile(r"[\w-]+")
_NOT_FOUND: Final = re.compile(r"no session found|session found in different project", re.IGNORECASE)

_loaded = msgspec.json.Decoder(Loaded)


class PiBackend:
    """Opens sessions of pi.

    Args:
        profile: Which pi.
        _version: Ours; pi is not told.
    """

    def __init__(self, profile: Profile, _version: str) -> None:
        self._profile = profile

    @property
    def name(self) -> str:
        """The name that `--backend` takes."""
        return self._profile.name

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> PiSession:
        """Starts pi and opens a session; see `base.Backend.open`."""
        _check(params)
        try:
            return await self._open(params, sink, nursery)
        except AgentExited as ended:
            if params.model is None or params.resume is not None:
                raise
            # Of an unknown model, pi says no more than that; perhaps that was it.
            offers = await self._offers(params, sink, nursery)
            if any(_is_model(model, params.model) for model in offers):
                raise
            raise _unknown_model(params.model, offers) from ended

    async def _offers(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> list[PiModel]:
        plain = msgspec.structs.replace(params, model=None, thinking=None)
        session = await self._open(plain, sink, nursery)
        try:
            return (await session.call("get_available_models", Models)).models
        finally:
            await abort_opening(session, params, ABORT_GRACES)

    async def _open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> PiSession:
        argv = [*self._profile.command(params), "-e", str(EXTENSION)]
        if params.resume is not None:
            argv += ["--session", params.resume]
        process = await start_agent(
            argv,
            cwd=params.cwd,
            env={**self._profile.environment(params), ASK_VARIABLE: "0" if params.auto_approve else "1"},
            tag=params.tag,
            install=self._profile.install,
            procs=params.procs,
            owns_children=params.owns_process,
            prefix=params.prefix,
        )
        session = PiSession(self._profile, process, params, sink)
        try:
            await nursery.start(session.run)
            await _Opening(session, params).run()
        except BaseException as problem:
            await abort_opening(session, params, ABORT_GRACES)
            if isinstance(problem, AgentGone | CommandFailed | LineTooLong | msgspec.DecodeError):
                raise _explained(problem, session, argv[0], params) from problem
            if isinstance(problem, BackendRefused):
                problem.data["stderr_tail"] = params.stderr_tail.text()
            raise
        session.finish_opening()
        return session


class _Opening:
    """The first questions to pi."""

    def __init__(self, session: PiSession, params: OpenParams) -> None:
        self._session = session
        self._params = params

    async def run(self) -> None:
        state = await self._session.call("get_state", State)
        if self._params.resume not in (None, state.session_id):
            raise _not_resumed(str(self._params.resume), f"pi opened another session, {state.session_id}")
        self._session.take_state(state)
        self._session.resumed = self._params.resume is not None
        await self._check_extension()
        models = (await self._session.call("get_available_models", Models)).models
        levels = await self._levels(state)
        _verify_model(self._params.model, state, models)
        _verify_thinking(self._params.thinking, state, levels)
        self._session.capabilities = Capabilities(
            resume="resume", models=[model.name for model in models], thinking=levels
        )

    async def _check_extension(self) -> None:
        commands = (await self._session.call("get_commands", Commands)).commands
        loaded = next((found for found in map(_read_loaded, commands) if found is not None), None)
        if loaded is not None and loaded.version:
            self._session.agent_version = f"pi {loaded.version}"
        if not self._params.auto_approve and (loaded is None or not loaded.asks):
            raise BackendRefused(
                f"pi has not loaded {EXTENSION}, so it would not ask before it acts: allow extensions, or run with "
                "auto-approve",
                reason="not_applied",
                data={"extension": str(EXTENSION)},
            )

    async def _levels(self, state: State) -> list[str]:
        try:
            return (await self._session.call("get_available_thinking_levels", Levels)).levels
        except CommandFailed:
            return _known_levels(state.model)  # pi 0.73 does not have the command


def _check(params: OpenParams) -> None:
    """Refuses what pi cannot do, before it is started."""
    if params.agent is not None:
        raise BackendRefused(
            f"agent {params.agent!r}: pi has no agents to choose from; leave agent out",
            reason="unknown_agent",
            data={"field": "agent", "value": params.agent, "offers": []},
        )
    refuse_unless(params.mcp_servers, (), "pi")
    # A path would be opened whatever it is: pi 0.73 makes an empty session of a file that is none.
    if params.resume is not None and _SESSION_ID.fullmatch(params.resume) is None:
        raise _not_resumed(params.resume, "this is no session id of pi")


def _is_model(model: PiModel, wanted: str) -> bool:
    return wanted in (model.id, model.name)


def _verify_model(wanted: str | None, state: State, offers: list[PiModel]) -> None:
    if wanted is None:
        return
    if not any(_is_model(model, wanted) for model in offers):
        raise _unknown_model(wanted, offers)
    if state.model is None or not _is_model(state.model, wanted):
        current = None if state.model is None else state.model.name
        raise _not_applied("model", wanted, current)


def _verify_thinking(wanted: str | None, state: State, offers: list[str]) -> None:
    if wanted is None:
        return
    if wanted not in offers:
        raise _unknown("thinking", wanted, offers, "the model does not offer it")
    if state.thinking_level != wanted:
        raise _not_applied("thinking", wanted, state.thinking_level)


def _known_levels(model: PiModel | None) -> list[str]:
    if model is None or not model.reasoning:
        return ["off"]
    told = model.thinking_level_map or {}
    lacking = {level for level, value in told.items() if value is None}
    return [level for level in _LEVELS if level not in lacking and (level != "xhigh" or level in told)]


def _read_loaded(command: Command) -> Loaded | None:
    if command.name != "avenor":
        return None
    try:
        return _loaded.decode(command.description)
    except msgspec.DecodeError:
        return None


def _unknown_model(wanted: str, offers: list[PiModel]) -> BackendRefused:
    return _unknown("model", wanted, [model.name for model in offers], "pi does not offer it")


def _unknown(kind: str, wanted: str, offers: list[str], why: str) -> BackendRefused:
    choice = f"choose one of: {list_offers(offers)}" if offers else f"leave {kind} out"
    return BackendRefused(
        f"{kind} {wanted!r}: {why}; {choice}",
        reason=f"unknown_{kind}",
        data={"field": kind, "value": wanted, "offers": offers},
    )


def _not_applied(kind: str, wanted: str, current: str | None) -> BackendRefused:
    return BackendRefused(
        f"{kind} {wanted!r} was asked for, but pi uses {current!r}",
        reason="not_applied",
        data={"field": kind, "value": wanted, "current": current},
    )


def _not_resumed(session_id: str, why: str) -> BackendRefused:
    return BackendRefused(
        f"session {session_id} cannot be resumed: {why}", reason="resume_failed", data={"session_id": session_id}
    )


def _explained(
    problem: Exception, session: PiSession, program: str, params: OpenParams
) -> AgentExited | BackendRefused:
    """The start error for what went wrong on the wire, with the end of pi's stderr."""
    data = {"program": program, "stderr_tail": params.stderr_tail.text()}
    said = f"{session.spoken}\n{params.stderr_tail.text()}"
    if params.resume is not None and _NOT_FOUND.search(said):
        refusal = _not_resumed(params.resume, f"pi has no such session for this folder{params.stderr_tail.suffix()}")
        refusal.data.update(data)
        return refusal
    if isinstance(problem, AgentGone):
        how = problem.exit.describe()
        message = f"{program} ended before it gave a session ({how}){params.stderr_tail.suffix()}"
        return AgentExited(message, data={**data, "returncode": problem.exit.returncode}, retryable=True)
    message = f"{program} gave no session: {problem}{params.stderr_tail.suffix()}"
    return BackendRefused(message, reason="session_refused", data=data)
