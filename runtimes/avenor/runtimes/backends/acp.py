"""The backend for agents that speak the Agent Client Protocol on stdio: starting one and opening its session.

Order of an opening: program, `initialize`, `session/new` (or `session/resume`, `session/load`), then agent, model and
thinking level, each checked after it was set. Whatever fails, or is cancelled, on the way ends the program first.
"""

import msgspec
import trio

from avenor.host.failpoints import failpoint
from avenor.host.ladder import Graces
from avenor.protocol.errors import AgentExited
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_mcp import refuse_unless, to_wire
from avenor.runtimes.backends.acp_resume import Restoring, wait_loadable
from avenor.runtimes.backends.acp_session import AcpSession
from avenor.runtimes.backends.acp_settings import apply_settings
from avenor.runtimes.backends.acp_types import (
    AUTH_REQUIRED,
    PROTOCOL_VERSION,
    AgentCapabilities,
    Implementation,
    InitializeResult,
    McpKind,
    SessionResult,
)
from avenor.runtimes.backends.acp_wire import AgentGone, CallFailed, LineTooLong
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import BackendRefused, Capabilities, OpenParams, SessionSink, abort_opening
from avenor.runtimes.backends.profiles import Profile

# Short, since an agent that gave no session has no work to save.
ABORT_GRACES = Graces(stdin_seconds=0.5, term_seconds=1.0, kill_seconds=5.0)

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
        argv = self._profile.command(params)
        refuse_unless(params.mcp_servers, self._profile.mcp, f"backend {self.name}")
        await wait_loadable(self._profile, params)
        process = await start_agent(
            argv,
            cwd=params.cwd,
            env=self._profile.environment(params),
            tag=params.tag,
            install=self._profile.install,
            procs=params.procs,
            owns_children=params.owns_process,
            prefix=params.prefix,
        )
        session = AcpSession(self._profile, process, params, sink)
        try:
            await nursery.start(session.run)
            failpoint("session.mid_handshake")
            await _Opening(self._profile, session, params, self._version).run()
        except BaseException as problem:
            await abort_opening(session, params, ABORT_GRACES)
            if isinstance(problem, AgentGone | CallFailed | LineTooLong | msgspec.DecodeError):
                raise _explained(problem, argv[0], params) from problem
            if isinstance(problem, BackendRefused):
                problem.data["stderr_tail"] = params.stderr_tail.text()
            raise
        session.finish_opening()
        return session


class _Opening:
    """The handshake of one session."""

    def __init__(self, profile: Profile, session: AcpSession, params: OpenParams, version: str) -> None:
        self._profile = profile
        self._session = session
        self._params = params
        self._version = version

    async def run(self) -> None:
        hello = await self._initialize()
        can = hello.agent_capabilities or AgentCapabilities()
        kinds: list[McpKind] = [kind for kind in self._profile.mcp if can.takes_mcp(kind)]
        refuse_unless(self._params.mcp_servers, kinds, self._session.agent_version or "the agent")
        if self._params.resume is None:
            await self._open_new(hello)
        else:
            await Restoring(self._profile, self._session, self._params, self._where()).run(can)
        await apply_settings(self._profile, self._session, self._params)
        offers = self._session.offers
        self._session.capabilities = Capabilities(
            resume="resume" if can.can("resume") else "load" if can.load_session else None,
            mcp=kinds,
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
        self._session.meet(hello.agent_info or Implementation())
        return hello

    async def _open_new(self, hello: InitializeResult) -> None:
        try:
            result = await self._call_new()
        except CallFailed as failure:
            raise _not_opened(failure, hello) from failure
        if not result.session_id:
            raise BackendRefused("the agent answered session/new without a session id", reason="session_refused")
        self._session.session_id = result.session_id
        self._session.offers.take_session(result)

    async def _call_new(self) -> SessionResult:
        method = self._profile.authenticate
        try:
            return await self._session.call("session/new", self._where(), SessionResult)
        except CallFailed as failure:
            if not method or failure.error.code != AUTH_REQUIRED:
                raise
        await self._session.call("authenticate", {"methodId": method}, object)
        return await self._session.call("session/new", self._where(), SessionResult)

    def _where(self) -> dict[str, object]:
        params = self._params
        return {"cwd": params.cwd, "mcpServers": to_wire(params.mcp_servers, params.env, params.tag)}


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
