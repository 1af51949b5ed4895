"""The backend for agents that speak the Agent Client Protocol on stdio: starting one and opening its session.

Order of an opening: program, `initialize`, `session/new` (or `session/resume`, `session/load`), then agent, model and
thinking level, each checked after it was set. Whatever fails, or is cancelled, on the way ends the program first.
"""

from collections.abc import Mapping

import msgspec
import trio

from avenor.host.failpoints import failpoint
from avenor.host.ladder import Graces
from avenor.protocol.errors import METHOD_NOT_FOUND, AgentExited
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_options import Setting, list_offers
from avenor.runtimes.backends.acp_session import AcpSession
from avenor.runtimes.backends.acp_types import (
    AUTH_REQUIRED,
    PROTOCOL_VERSION,
    AgentCapabilities,
    ConfigResult,
    InitializeResult,
    SessionList,
    SessionResult,
)
from avenor.runtimes.backends.acp_wire import AgentGone, CallFailed, LineTooLong
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import BackendRefused, Capabilities, OpenParams, SessionSink
from avenor.runtimes.backends.profiles import Profile

# Short, since an agent that gave no session has no work to save.
ABORT_GRACES = Graces(stdin_seconds=0.5, term_seconds=1.0, kill_seconds=5.0)
ABORT_SECONDS = 15.0  # Above the sum of the graces: a shield must end.
LIST_PAGES = 20  # Of session/list, when an agent's answer to session/load leaves doubt.

_NO_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class AcpBackend:
    """Opens sessions of one kind of agent.

    Args:
        profile: Which kind.
        version: Ours, as the agent is told.
    """

    def __init__(self, profile: Profile, version: str) -> None:
        self._profile = profile
        self._version = version

    @property
    def name(self) -> str:
        """The name that `--backend` takes."""
        return self._profile.name

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> AcpSession:
        """Starts the agent and opens a session; see `base.Backend.open`."""
        argv = self._profile.argv(params)
        process = await start_agent(
            argv,
            cwd=params.cwd,
            env=self._environment(params),
            tag=params.tag,
            install=self._profile.install,
            procs=params.procs,
            owns_children=params.owns_process,
        )
        session = AcpSession(self._profile, process, params, sink)
        try:
            await nursery.start(session.run)
            failpoint("session.mid_handshake")
            await _Opening(session, params, self._version).run()
        except BaseException as problem:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + ABORT_SECONDS):
                await session.close(ABORT_GRACES)
            if isinstance(problem, AgentGone | CallFailed | LineTooLong | msgspec.DecodeError):
                raise _explained(problem, argv[0], params) from problem
            if isinstance(problem, BackendRefused):
                problem.data["stderr_tail"] = params.stderr_tail.text()
            raise
        session.finish_opening()
        return session

    def _environment(self, params: OpenParams) -> Mapping[str, str]:
        return {**params.env, **{name: make() for name, make in self._profile.env_secrets.items()}}


class _Opening:
    """The handshake of one session."""

    def __init__(self, session: AcpSession, params: OpenParams, version: str) -> None:
        self._session = session
        self._params = params
        self._version = version

    async def run(self) -> None:
        hello = await self._initialize()
        can = hello.agent_capabilities or AgentCapabilities()
        if self._params.resume is None:
            await self._open_new(hello)
        else:
            await self._restore(self._params.resume, can)
        for kind in ("agent", "model", "thinking"):  # an agent may bring its model, a model its thinking levels
            wanted = getattr(self._params, kind)
            if wanted is not None:
                await self._set(kind, wanted)
        self._verify_all()
        offers = self._session.offers
        self._session.capabilities = Capabilities(
            resume="resume" if can.can("resume") else "load" if can.load_session else None,
            agents=offers.values("agent"),
            models=offers.values("model"),
            thinking=offers.values("thinking"),
        )

    async def _initialize(self) -> InitializeResult:
        ours = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": _NO_CAPABILITIES,
            "clientInfo": {"name": "avenor", "version": self._version},
        }
        hello = await self._session.call("initialize", ours, InitializeResult)
        if hello.protocol_version != PROTOCOL_VERSION:
            raise BackendRefused(
                f"the agent speaks ACP version {hello.protocol_version}, and avenor version {PROTOCOL_VERSION}: "
                "use a version of the agent that speaks the same",
                reason="wrong_protocol_version",
                data={"offered": hello.protocol_version},
            )
        if hello.agent_info is not None:
            self._session.agent_version = f"{hello.agent_info.name} {hello.agent_info.version}".strip() or None
        return hello

    async def _open_new(self, hello: InitializeResult) -> None:
        try:
            result = await self._session.call("session/new", self._where(), SessionResult)
        except CallFailed as failure:
            raise _not_opened(failure, hello) from failure
        if not result.session_id:
            raise BackendRefused("the agent answered session/new without a session id", reason="session_refused")
        self._session.session_id = result.session_id
        self._session.offers.take_session(result)

    async def _restore(self, session_id: str, can: AgentCapabilities) -> None:
        self._session.session_id = session_id
        try:
            result = await self._resume_or_load(session_id, can)
        except CallFailed as failure:
            reason = classify(failure.error).message
            raise _not_resumed(session_id, f"the agent refused {failure.method}: {reason}") from failure
        if result.session_id not in (None, session_id):
            raise _not_resumed(session_id, f"the agent opened another session, {result.session_id}")
        self._session.offers.take_session(result)
        self._session.resumed = True

    async def _resume_or_load(self, session_id: str, can: AgentCapabilities) -> SessionResult:
        where = {"sessionId": session_id, **self._where()}
        if can.can("resume"):
            try:
                return await self._session.call("session/resume", where, SessionResult)
            except CallFailed as failure:
                # Some agents declare it and do not have it (qwen 0.15).
                if failure.error.code != METHOD_NOT_FOUND or not can.load_session:
                    raise
        elif not can.load_session:
            raise _not_resumed(session_id, "this agent cannot resume sessions")
        self._session.start_replay()
        result = await self._session.call("session/load", where, SessionResult)
        if await self._session.wait_replayed() == 0 and can.can("list") and not await self._is_listed(session_id):
            # Some agents answer an unknown id with a new session under that id (qwen 0.15, hermes).
            raise _not_resumed(session_id, "the agent does not know it and would start afresh")
        return result

    async def _is_listed(self, session_id: str) -> bool:
        params: dict[str, str] = {"cwd": self._params.cwd}
        for _page in range(LIST_PAGES):
            listed = await self._session.call("session/list", params, SessionList)
            if any(info.session_id == session_id for info in listed.sessions):
                return True
            if listed.next_cursor is None:
                return False
            params["cursor"] = listed.next_cursor
        return True  # too many to look through: the benefit of the doubt

    def _where(self) -> dict[str, object]:
        return {"cwd": self._params.cwd, "mcpServers": []}

    async def _set(self, kind: str, wanted: str) -> None:
        setting = self._session.offers.setting(kind)
        if setting is None:
            raise _unknown(kind, wanted, [], "this agent does not let it be chosen")
        value = setting.find(wanted)
        if value is None:
            raise _unknown(kind, wanted, setting.values(), "this agent does not offer it")
        if value != setting.current:
            try:
                await self._send_setting(setting, value)
            except CallFailed as failure:
                reason = classify(failure.error).message
                raise _unknown(kind, wanted, setting.values(), f"the agent refused it: {reason}") from failure
        self._verify(kind, value)

    async def _send_setting(self, setting: Setting, value: str) -> None:
        session, offers = self._session, self._session.offers
        common = {"sessionId": session.session_id}
        match setting.via:
            case "config":
                params = {**common, "configId": setting.config_id, "value": value}
                result = await session.call("session/set_config_option", params, ConfigResult)
                offers.take_config(result.config_options)
            case "mode":
                await session.call("session/set_mode", {**common, "modeId": value}, object)
                offers.take_mode(value)
            case "model":
                await session.call("session/set_model", {**common, "modelId": value}, object)
                offers.take_model(value)

    def _verify_all(self) -> None:
        """Setting one thing may have changed another."""
        for kind in ("agent", "model", "thinking"):
            wanted = getattr(self._params, kind)
            setting = self._session.offers.setting(kind)
            if wanted is not None and setting is not None:
                self._verify(kind, setting.find(wanted) or wanted)

    def _verify(self, kind: str, value: str) -> None:
        current = self._session.offers.current(kind)
        if current != value:
            raise BackendRefused(
                f"{kind} {value!r} was set, but the agent uses {current!r}",
                reason="not_applied",
                data={"field": kind, "value": value, "current": current},
            )


def _unknown(kind: str, wanted: str, offered: list[str], why: str) -> BackendRefused:
    choice = f"choose one of: {list_offers(offered)}" if offered else f"leave {kind} out"
    return BackendRefused(
        f"{kind} {wanted!r}: {why}; {choice}",
        reason=f"unknown_{kind}",
        data={"field": kind, "value": wanted, "offers": offered},
    )


def _not_resumed(session_id: str, why: str) -> BackendRefused:
    return BackendRefused(
        f"session {session_id} cannot be resumed: {why}", reason="resume_failed", data={"session_id": session_id}
    )


def _not_opened(failure: CallFailed, hello: InitializeResult) -> BackendRefused:
    verdict = classify(failure.error)
    if verdict.reason == "auth" or (failure.error.code == AUTH_REQUIRED and hello.auth_methods):
        ways = ", ".join(method.name or method.id for method in hello.auth_methods or [])
        how = f"; it offers: {ways}" if ways else ""
        return BackendRefused(f"the agent wants you to log in: {verdict.message}{how}", reason="auth_required")
    return BackendRefused(
        f"the agent opened no session: {verdict.message}", reason="session_refused", retryable=not verdict.permanent
    )


def _explained(problem: Exception, program: str, params: OpenParams) -> AgentExited | BackendRefused:
    """The start error for what went wrong on the wire, with the end of the agent's stderr."""
    data = {"program": program, "stderr_tail": params.stderr_tail.text()}
    if isinstance(problem, AgentGone):
        how = problem.exit.describe()
        message = f"{program} ended before it gave a session ({how}){params.stderr_tail.suffix()}"
        return AgentExited(message, data={**data, "returncode": problem.exit.returncode}, retryable=True)
    message = f"{program} gave no session: {problem}{params.stderr_tail.suffix()}"
    return BackendRefused(message, reason="session_refused", data=data)
