"""The backend for `codex app-server`: starting it and opening a thread.

Order of an opening: program, `initialize`, `model/list`, then `thread/start` (or `thread/resume`) with mode, model and
thinking level, each of which is checked in what codex answers: it takes any word for a model or a level and only fails
later. Whatever fails, or is cancelled, on the way ends the program first.
"""

from typing import Any, Final

import msgspec
import trio

from avenor.host.ladder import Graces
from avenor.protocol.errors import AgentExited
from avenor.protocol.mcp import McpServer
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_mcp import refuse_unless
from avenor.runtimes.backends.acp_options import list_offers
from avenor.runtimes.backends.acp_wire import AgentGone, CallFailed, LineTooLong
from avenor.runtimes.backends.agent_process import start_agent
from avenor.runtimes.backends.base import BackendRefused, Capabilities, OpenParams, SessionSink, abort_opening
from avenor.runtimes.backends.codex_modes import DEFAULT_MODE, MODES, Models
from avenor.runtimes.backends.codex_session import CodexSession
from avenor.runtimes.backends.codex_types import InitializeResult, Model, ModelPage, ThreadResult
from avenor.runtimes.backends.profiles import Profile

# Short, since an agent that gave no session has no work to save.
ABORT_GRACES: Final = Graces(stdin_seconds=0.5, term_seconds=1.0, kill_seconds=5.0)
MODEL_PAGES: Final = 20  # Of `model/list`; one is usual.


class CodexBackend:
    """Opens threads of codex.

    Args:
        profile: How it is started.
        version: Ours, as codex is told.
    """

    def __init__(self, profile: Profile, version: str) -> None:
        self._profile = profile
        self._version = version

    @property
    def name(self) -> str:
        """The name that `--backend` takes."""
        return self._profile.name

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> CodexSession:
        """Starts codex and opens a thread; see `base.Backend.open`."""
        refuse_unless(params.mcp_servers, self._profile.mcp, "codex")
        argv = self._profile.command(params)
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
        session = CodexSession(self._profile, process, params, sink)
        try:
            await nursery.start(session.run)
            await _Opening(session, params, self._version).run()
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

    def __init__(self, session: CodexSession, params: OpenParams, version: str) -> None:
        self._session = session
        self._params = params
        self._version = version

    async def run(self) -> None:
        params = self._params
        if params.agent is not None and params.agent not in MODES:
            raise _unknown("agent", params.agent, list(MODES))
        await self._initialize()
        models = Models(await self._list_models())
        result = await self._open_thread(models)
        self._session.take_thread(result)
        self._verify_mode()
        self._verify_model(models, result)
        self._session.resumed = params.resume is not None
        self._session.capabilities = Capabilities(
            resume="resume",
            agents=list(MODES),
            models=models.names(result.model),
            thinking=models.efforts(result.model),
        )

    async def _initialize(self) -> None:
        ours = {
            "clientInfo": {"name": "avenor", "title": "avenor", "version": self._version},
            "capabilities": {"experimentalApi": True},
        }
        hello = await self._session.call("initialize", ours, InitializeResult)
        version = hello.user_agent.partition("/")[2].partition(" ")[0]
        self._session.agent_version = f"codex {version}".strip()
        self._session.notify("initialized", {})

    async def _list_models(self) -> list[Model]:
        listed: list[Model] = []
        params: dict[str, str] = {}
        for _page in range(MODEL_PAGES):
            page = await self._session.call("model/list", params, ModelPage)
            listed += page.data
            if page.next_cursor is None:
                break
            params["cursor"] = page.next_cursor
        return listed

    async def _open_thread(self, models: Models) -> ThreadResult:
        wanted = self._thread_params(models)
        session_id = self._params.resume
        if session_id is None:
            return await self._session.call("thread/start", wanted, ThreadResult)
        # The history stays where it is: it can be long, and is not told again.
        wanted = {"threadId": session_id, **wanted, "excludeTurns": True}
        try:
            result = await self._session.call("thread/resume", wanted, ThreadResult)
        except CallFailed as failure:
            reason = classify(failure.error).message
            raise _not_resumed(session_id, f"codex refused it: {reason}") from failure
        if result.thread.id != session_id:
            raise _not_resumed(session_id, f"codex opened another thread, {result.thread.id}")
        return result

    def _thread_params(self, models: Models) -> dict[str, Any]:
        params = self._params
        mode = MODES[params.agent or DEFAULT_MODE]
        wanted: dict[str, Any] = {
            "cwd": params.cwd,
            "approvalPolicy": mode.approval,
            "approvalsReviewer": "user",
            "sandbox": mode.sandbox,
        }
        # One that is not listed may be the one that codex is configured for: then it comes without asking.
        if params.model is not None and params.model in models:
            wanted["model"] = params.model
        config: dict[str, Any] = {}
        if params.thinking is not None:
            config["model_reasoning_effort"] = params.thinking
        if params.mcp_servers:
            config["mcp_servers"] = {server.name: _mcp_config(server, params.tag) for server in params.mcp_servers}
        return {**wanted, "config": config} if config else wanted

    def _verify_mode(self) -> None:
        wanted = self._params.agent or DEFAULT_MODE
        if self._session.agent != wanted:
            raise _not_applied("agent", wanted, self._session.agent)

    def _verify_model(self, models: Models, result: ThreadResult) -> None:
        model, thinking = self._params.model, self._params.thinking
        offered = models.names(result.model)
        if model is not None and model not in offered:
            raise _unknown("model", model, offered)
        if model is not None and model != result.model:
            raise _not_applied("model", model, result.model)
        efforts = models.efforts(result.model)
        if thinking is not None and thinking not in efforts:
            raise _unknown("thinking", thinking, efforts)
        if thinking is not None and thinking != result.reasoning_effort:
            raise _not_applied("thinking", thinking, result.reasoning_effort)


def _mcp_config(server: McpServer, tag: tuple[str, str]) -> dict[str, Any]:
    """A server as codex's configuration has it; it is added to those that the user has.

    codex gives a server's program an environment of its own, so the tag has to be handed on.
    """
    if server.type == "stdio":
        return {"command": server.command, "args": server.args, "env": {**server.env, tag[0]: tag[1]}}
    return {"url": server.url, **({"http_headers": server.headers} if server.headers else {})}


def _unknown(kind: str, wanted: str, offered: list[str]) -> BackendRefused:
    choice = f"choose one of: {list_offers(offered)}" if offered else f"leave {kind} out"
    return BackendRefused(
        f"{kind} {wanted!r}: codex does not offer it; {choice}",
        reason=f"unknown_{kind}",
        data={"field": kind, "value": wanted, "offers": offered},
    )


def _not_applied(kind: str, wanted: str, current: str | None) -> BackendRefused:
    return BackendRefused(
        f"{kind} {wanted!r} was set, but codex uses {current!r}",
        reason="not_applied",
        data={"field": kind, "value": wanted, "current": current},
    )


def _not_resumed(session_id: str, why: str) -> BackendRefused:
    return BackendRefused(
        f"session {session_id} cannot be resumed: {why}", reason="resume_failed", data={"session_id": session_id}
    )


def _explained(problem: Exception, program: str, params: OpenParams) -> AgentExited | BackendRefused:
    """The start error for what went wrong on the wire, with the end of codex's stderr."""
    data = {"program": program, "stderr_tail": params.stderr_tail.text()}
    if isinstance(problem, AgentGone):
        how = problem.exit.describe()
        message = f"{program} ended before it gave a session ({how}){params.stderr_tail.suffix()}"
        return AgentExited(message, data={**data, "returncode": problem.exit.returncode}, retryable=True)
    reason = classify(problem.error).message if isinstance(problem, CallFailed) else str(problem)
    message = f"{program} gave no session: {reason}{params.stderr_tail.suffix()}"
    return BackendRefused(message, reason="session_refused", data=data)
