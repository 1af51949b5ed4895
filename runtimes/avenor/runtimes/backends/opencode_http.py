"""The backend for `opencode serve`: finding or starting the server of a run, and opening a session on it.

Order of an opening: server, its health and its events, MCP servers, what it offers, then the session; agent, model and
thinking level (opencode's variants of a model) are checked against the offers and go with every prompt. Whatever fails,
or is cancelled, on the way takes the session out again, which ends a server that nobody else uses.
"""

from collections.abc import Sequence
from typing import Final, NoReturn

import msgspec
import trio

from avenor.host.ladder import Graces
from avenor.host.tree import TREE
from avenor.protocol import events
from avenor.protocol.errors import AgentExited, InvalidParams
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.acp_mcp import refuse_unless
from avenor.runtimes.backends.acp_options import list_offers
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import BackendRefused, Capabilities, OpenParams, SessionSink, abort_opening
from avenor.runtimes.backends.http_client import HttpClient, HttpFailed, HttpUnreachable, quoted
from avenor.runtimes.backends.opencode_errors import request_error
from avenor.runtimes.backends.opencode_server import OpencodeServer, ServerGone
from avenor.runtimes.backends.opencode_session import OpencodeSession
from avenor.runtimes.backends.opencode_types import (
    AgentInfo,
    Config,
    McpStatus,
    Message,
    ModelInfo,
    ModelRef,
    Providers,
    SessionInfo,
    whole,
)
from avenor.runtimes.backends.profiles import Profile

PASSWORD: Final = "OPENCODE_SERVER_PASSWORD"
USER: Final = "OPENCODE_SERVER_USERNAME"

# Short, since a session that was not opened has no work to save.
ABORT_GRACES: Final = Graces(stdin_seconds=0.0, term_seconds=1.0, kill_seconds=5.0)
_NO_VARIANT: Final = "default"  # opencode's word for a model as it comes.
_UNAUTHORIZED: Final = (401, 403)
_NOT_FOUND: Final = 404

_agents = msgspec.json.Decoder(list[AgentInfo])
_providers = msgspec.json.Decoder(Providers)
_config = msgspec.json.Decoder(Config)
_session = msgspec.json.Decoder(SessionInfo)
_messages = msgspec.json.Decoder(list[Message])
_mcp = msgspec.json.Decoder(dict[str, McpStatus])

# Whose a server is: the runtime, where it works, and the address of one that runs already.
_Key = tuple[str, str, str | None, tuple[str, ...]]
_NOT_BOXED: Final = "a server that runs already cannot be put into a sandbox: leave server_url out"


class OpencodeHttpBackend:
    """Opens sessions on servers, one for each runtime and directory.

    Args:
        profile: How the server is started.
        _version: Ours; the server does not ask.
    """

    def __init__(self, profile: Profile, _version: str) -> None:
        self._profile = profile
        self._servers: dict[_Key, OpencodeServer] = {}
        self._starting = trio.Lock()

    @property
    def name(self) -> str:
        """The name that `--backend` takes."""
        return self._profile.name

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> OpencodeSession:
        """Opens a session on the run's server; see `base.Backend.open`."""
        refuse_unless(params.mcp_servers, self._profile.mcp, f"backend {self.name}")
        server = await self._find_server(params)
        session = OpencodeSession(self._profile, server, params, sink, nursery)
        server.add(session)  # before anything awaits: the last one that leaves ends the server
        try:
            await nursery.start(session.run)
            await server.join()
            await _Opening(session, server, params).run()
        except BaseException as problem:
            await abort_opening(session, params, ABORT_GRACES)
            self._explain(problem, params)
        session.finish_opening()
        return session

    async def _find_server(self, params: OpenParams) -> OpencodeServer:
        """The server of the run, started if there is none that takes sessions."""
        key = (params.env.get(TREE, params.tag[1]), params.cwd, params.server_url, tuple(params.prefix))
        async with self._starting:
            self._servers = {each: server for each, server in self._servers.items() if not server.is_over}
            if key not in self._servers:
                self._servers[key] = await self._start_server(params)
            return self._servers[key]

    async def _start_server(self, params: OpenParams) -> OpencodeServer:
        env = params.env if params.server_url is not None else self._profile.environment(params)

        def make_client(url: str) -> HttpClient:
            return HttpClient(url, user=env.get(USER) or "opencode", password=env.get(PASSWORD, ""))

        if params.server_url is not None:
            if params.prefix:
                raise InvalidParams(_NOT_BOXED, data={"field": "server_url"})
            return OpencodeServer(params.cwd, None, make_client, url=params.server_url)
        process = await start_agent(
            self._profile.command(params),
            cwd=params.cwd,
            env=env,
            tag=params.tag,
            install=self._profile.install,
            procs=params.procs,
            owns_children=params.owns_process,
            prefix=params.prefix,
        )
        return OpencodeServer(params.cwd, process, make_client)

    def _explain(self, problem: BaseException, params: OpenParams) -> NoReturn:
        """Raises the start error for what went wrong, with the end of the server's stderr."""
        who = params.server_url or self._profile.argv[0]
        data = {"server": who, "stderr_tail": params.stderr_tail.text()}
        match problem:
            case BackendRefused():
                problem.data["stderr_tail"] = params.stderr_tail.text()
                raise problem
            case ServerGone():
                how = problem.exit.describe()
                message = f"{who} ended before it gave a session ({how}){params.stderr_tail.suffix()}"
                raise AgentExited(message, data=data, retryable=True) from problem
            case HttpUnreachable() if params.server_url is not None:
                message = f"the server cannot be reached: {problem}"
                raise BackendRefused(message, reason="server_unreachable", data=data, retryable=True) from problem
            case HttpUnreachable():
                raise AgentExited(f"{problem}{params.stderr_tail.suffix()}", data=data, retryable=True) from problem
            case HttpFailed() if problem.status in _UNAUTHORIZED:
                message = f"{who} wants another password: set {PASSWORD} in the run's environment"
                raise BackendRefused(message, reason="auth_required", data=data) from problem
            case HttpFailed():
                verdict = request_error(str(problem).partition(":")[0], problem.status, problem.body)
                message = f"{who} opened no session: {verdict.message}{params.stderr_tail.suffix()}"
                raise BackendRefused(
                    message, reason="session_refused", data=data, retryable=not verdict.permanent
                ) from problem
            case msgspec.DecodeError():
                message = f"{who} does not answer as opencode does: {problem}"
                raise BackendRefused(message, reason="session_refused", data=data) from problem
            case _:
                raise problem


class _Offers:
    """What the server offers.

    Args:
        agents: All of its configuration.
        providers: With their models.
        config: What is used where nothing was asked for.
    """

    def __init__(self, agents: list[AgentInfo], providers: Providers, config: Config) -> None:
        # Its own order: the default first.
        self.agents = {agent.name: agent for agent in agents if agent.mode != "subagent" and not agent.hidden}
        self.models = {
            f"{provider.id}/{model_id}": model
            for provider in providers.providers
            for model_id, model in provider.models.items()
        }
        self.config = config

    def ref(self, name: str | None) -> ModelRef | None:
        """A model that is offered; None for one that is not."""
        if name is None or name not in self.models:
            return None
        provider, _, model_id = name.partition("/")
        return ModelRef(providerID=provider, modelID=model_id)


class _Opening:
    """The opening of one session."""

    def __init__(self, session: OpencodeSession, server: OpencodeServer, params: OpenParams) -> None:
        self._session = session
        self._server = server
        self._params = params

    async def run(self) -> None:
        await self._hand_over(self._params.mcp_servers)
        offers = _Offers(
            _agents.decode(await self._get("/agent")),
            _providers.decode(await self._get("/config/providers")),
            _config.decode(await self._get("/config")),
        )
        earlier = None if self._params.resume is None else await self._restore(self._params.resume)
        self._choose(offers, earlier)
        if earlier is None:
            body = self._session.choice_for_session()
            made = await self._server.client.call("POST", "/session", query=self._server.query, body=body)
            self._session.begin(_session.decode(made), [])

    async def _get(self, path: str) -> bytes:
        return await self._server.client.call("GET", path, query=self._server.query)

    async def _hand_over(self, servers: Sequence[McpServer]) -> None:
        """Hands MCP servers over, once for all sessions; one that does not start is told, and the session goes on."""
        async with self._server.lock:
            for server in servers:
                if server.name in self._server.handed:
                    continue
                body = {"name": server.name, "config": _mcp_config(server)}
                answer = await self._server.client.call("POST", "/mcp", query=self._server.query, body=body)
                self._server.handed.add(server.name)
                state = _mcp.decode(answer).get(server.name, McpStatus())
                if state.status != "connected":
                    why = state.error or state.status or "no word of it"
                    message = f"MCP server {server.name} is not connected: {why}"
                    self._session.tell(events.Error(source="mcp", message=message))

    async def _restore(self, session_id: str) -> SessionInfo:
        path = f"/session/{quoted(session_id)}"
        try:
            info = _session.decode(await self._get(path))
            history = _messages.decode(await self._get(f"{path}/message"))
        except HttpFailed as failure:
            if failure.status in _UNAUTHORIZED:
                raise
            error = request_error(str(failure).partition(":")[0], failure.status, failure.body)
            raise BackendRefused(
                f"session {session_id} cannot be resumed: {error.message}",
                reason="resume_failed",
                data={"session_id": session_id},
                retryable=failure.status != _NOT_FOUND and not error.permanent,
            ) from failure
        self._session.begin(info, history)
        self._session.resumed = True
        return info

    def _choose(self, offers: _Offers, earlier: SessionInfo | None) -> None:
        """Sets what was asked for, or what the server would take, so that it is known.

        Raises:
            BackendRefused: Something is not offered.
        """
        session, params = self._session, self._params
        agent = params.agent or (earlier.agent if earlier else None) or offers.config.default_agent
        if params.agent is not None and agent not in offers.agents:
            raise _unknown("agent", params.agent, list(offers.agents), "this server does not offer it")
        session.agent = agent if agent in offers.agents else next(iter(offers.agents), None)
        session.model_ref = self._model(offers, earlier, offers.agents.get(session.agent or ""))
        variants = self._variants(offers.models.get(session.model or ""))
        session.context_sizes = {name: whole(model.limit.context) for name, model in offers.models.items()}
        session.capabilities = Capabilities(
            resume="resume", agents=list(offers.agents), models=list(offers.models), thinking=variants
        )

    def _model(self, offers: _Offers, earlier: SessionInfo | None, agent: AgentInfo | None) -> ModelRef | None:
        if self._params.model is not None:
            name = _find_model(self._params.model, offers.models)
            if name is None:
                raise _unknown("model", self._params.model, list(offers.models), "this server does not offer it")
            return offers.ref(name)
        if earlier is not None and earlier.model is not None and (ref := offers.ref(earlier.model.name)) is not None:
            variant = earlier.model.variant if earlier.model.variant != _NO_VARIANT else None
            return msgspec.structs.replace(ref, variant=variant)
        if agent is not None and agent.model is not None:
            return offers.ref(agent.model.name)
        return offers.ref(offers.config.model)

    def _variants(self, model: ModelInfo | None) -> list[str]:
        """The thinking levels of the chosen model; the one that was asked for is set."""
        variants = [] if model is None else list(model.variants)
        wanted, ref = self._params.thinking, self._session.model_ref
        if wanted is not None:
            if ref is None or wanted not in variants:
                raise _unknown("thinking", wanted, variants, f"model {self._session.model} does not offer it")
            self._session.model_ref = msgspec.structs.replace(ref, variant=wanted)
        return variants


def _find_model(wanted: str, models: dict[str, ModelInfo]) -> str | None:
    """The model that a user's word means: its own name, or a name for people that only one has."""
    if wanted in models:
        return wanted
    named = [name for name, model in models.items() if model.name.casefold() == wanted.casefold()]
    return named[0] if len(named) == 1 else None


def _unknown(kind: str, wanted: str, offered: list[str], why: str) -> BackendRefused:
    choice = f"choose one of: {list_offers(offered)}" if offered else f"leave {kind} out"
    return BackendRefused(
        f"{kind} {wanted!r}: {why}; {choice}",
        reason=f"unknown_{kind}",
        data={"field": kind, "value": wanted, "offers": offered},
    )


def _mcp_config(server: McpServer) -> dict[str, object]:
    if server.type == "stdio":
        return {"type": "local", "command": [server.command, *server.args], "environment": server.env}
    return {"type": "remote", "url": server.url, "headers": server.headers}
