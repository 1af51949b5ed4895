"""What the runtime asks of a backend: the adapter to one kind of agent.

`Backend.open` starts an agent and gives a `Session`; the session reports what happens through the `SessionSink` that
its owner hands in. A backend decides nothing about retries, permissions or the log: that is the owner's.

The order of things that a sink may rely on: noise and stderr may come from the first moment; everything else comes
after `open` has returned and the caller's task has met its next checkpoint, so that a caller that emits
`session.start` at once has it before the agent's first update.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Final, Literal, Protocol

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from avenor.host.ladder import Graces, StopResult
from avenor.host.procs import ProcsFile
from avenor.protocol.errors import HandshakeTimeout, Refused
from avenor.protocol.events import Event, PermissionOption, RetryClass, Usage
from avenor.protocol.mcp import McpServer

# Of what an agent counts: every reader of JSON takes so much exactly, and sums of it can be divided and written.
LARGEST_COUNT: Final = 2**53 - 1
Count = Annotated[int, msgspec.Meta(le=LARGEST_COUNT)]

# What a session's close may take beyond the graces: last words are written, the agent is reaped, its pipes are emptied
# (`agent_link`, `agent_process`), and one second is for our own bookkeeping.
CLOSING_SECONDS: Final = 4.5

TAIL_LIMIT_CHARS = 4096  # About one screen of a traceback: enough to see why a program did not start.


class BackendRefused(Refused):
    """The agent runs, and does not do what was asked: wrong protocol version, unknown model, no such session.

    The reason word is one of `wrong_protocol_version`, `auth_required`, `session_refused`, `resume_failed`,
    `unknown_model`, `unknown_agent`, `unknown_thinking`, `not_applied`, `unsupported_mcp`.
    """

    reason = "backend_refused"


class StderrTail:
    """The end of what an agent wrote to stderr, for every start error."""

    def __init__(self, limit_chars: int = TAIL_LIMIT_CHARS) -> None:
        self._limit = limit_chars
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        """Appends a line, and forgets the oldest ones beyond the limit."""
        self._lines.append(line[-self._limit :])
        self._size += len(self._lines[-1]) + 1
        while self._size > self._limit and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        """The kept lines, joined by newlines; empty if the agent wrote nothing."""
        return "\n".join(self._lines)

    def suffix(self) -> str:
        """The tail as the end of an error message; empty if the agent wrote nothing."""
        return f"; its stderr ends with:\n{self.text()}" if self._lines else ""


class OpenParams(msgspec.Struct, kw_only=True):
    """What a session is opened with.

    Attributes:
        cwd: The working directory, absolute.
        env: The whole environment of the agent; the profile's defaults are added where a name is not in it.
        tag: Name and value of the environment variable by which all that the agent starts is found again.
        procs: Where each started process is recorded, for the sweep after a crash.
        agent: The mode or agent, model and thinking level to set; None leaves the agent's default.
        resume: The id of the session to restore; None opens a new one.
        command: The program line of backend `acp`; empty for the others, which have their own.
        script: The script file of backend `scripted`.
        server_url: A server that runs already, for `opencode-http`; None starts one.
        label: The run's label, for messages only.
        mcp_servers: What the agent is handed, of the kinds that its profile names.
        auto_approve: Whether the run answers questions by itself, so that the agent need not be made to ask.
        prefix: Words that are put before the program line, a sandbox's: see `agent_process.start_agent`.
        owns_process: Everything that runs below this process belongs to this session, so that closing it ends all of
            that, and proves it. False where several sessions share the process: then `close` is `unverified`.
        stderr_tail: Filled while the agent runs; whoever handles a failed start reads it.
        aborted: What the end of each agent that gave no session has left behind.
        handshake: Has the deadline of the opening. A backend that waits for anything but its agent puts it off by that.
    """

    cwd: str
    env: Mapping[str, str]
    tag: tuple[str, str]
    procs: ProcsFile | None = None
    agent: str | None = None
    model: str | None = None
    thinking: str | None = None
    resume: str | None = None
    command: Sequence[str] = ()
    script: str | None = None
    server_url: str | None = None
    label: str | None = None
    mcp_servers: Sequence[McpServer] = ()
    auto_approve: bool = False
    prefix: Sequence[str] = ()
    owns_process: bool = False
    stderr_tail: StderrTail = msgspec.field(default_factory=StderrTail)
    aborted: list[StopResult] = []
    handshake: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)


class PermissionAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One question of an agent.

    Attributes:
        tool: A short word for what asks.
        question: The whole question, for people.
        options: In the agent's order.
        input: The tool's input, if the agent gave one.
        payload: The agent's request as it came.
        trusted_options: Ids of the options that auto-approve may take, the first of them first; empty if none may.
        tool_call_id: Which of the tool calls that the agent tells of it is about; None if it does not say.
        kind: ACP's word for what that tool does; None if the agent does not say.
        server: The MCP server whose tool it is, where the agent says that by itself and not in the tool's name.
    """

    tool: str
    question: str
    options: Sequence[PermissionOption]
    payload: Raw
    input: Raw | UnsetType = UNSET
    trusted_options: Sequence[str] = ()
    tool_call_id: str | None = None
    kind: str | None = None
    server: str | None = None


class PermissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; `option_id` is one that was offered, None withdraws the tool call.

    The `message` is for the log: ACP has no place for it.
    """

    option_id: str | None
    message: str | None = None


class TurnError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a turn failed.

    Attributes:
        message: For people, in the agent's own words where it gave any.
        failure_class: What the retry policy goes by.
        retry_after_seconds: How long the agent's model asked us to wait.
        permanent: The same prompt would fail again: no retry.
        reason: A stable word where the cause is known: `agent_exited`, `line_too_long`, `auth`, `invalid_request`,
            `not_found`, `write_failed`, `bad_reply`, `context_window`; empty otherwise.
    """

    message: str
    failure_class: RetryClass = "unknown"
    retry_after_seconds: float | None = None
    permanent: bool = False
    reason: str = ""


class TurnStop(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended; `stop_reason` is the agent's word, or `error`, or `agent_exited`."""

    stop_reason: str
    usage: Usage | None = None
    error: TurnError | None = None


class AgentExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an agent's process.

    Attributes:
        returncode: As the system tells it, negative for a signal; None when it closed its side of the wire and runs on.
        stderr_tail: The end of what it wrote to stderr.
    """

    returncode: int | None
    stderr_tail: str = ""

    def describe(self) -> str:
        """The exit in words, `exit status 3` or `signal 9`."""
        if self.returncode is None:
            return "closed its input or output"
        return f"signal {-self.returncode}" if self.returncode < 0 else f"exit status {self.returncode}"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent offered when the session was opened.

    Attributes:
        mcp: The kinds of MCP servers that it takes; None where it does not tell, and its profile has to.
    """

    resume: Literal["resume", "load"] | None = None
    mcp: Sequence[Literal["stdio", "http", "sse"]] | None = None
    agents: Sequence[str] = ()
    models: Sequence[str] = ()
    thinking: Sequence[str] = ()


class SessionSink(Protocol):
    """Where a session reports to. Implemented by the owner."""

    def emit(self, event: Event) -> None:
        """Takes the next event, in order. Never blocks, never raises."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """What is emitted inside may be told together, at its end. There is no `await` inside."""
        ...

    async def ask_permission(self, request: PermissionAsk) -> PermissionAnswer:
        """The answer to a question.

        Cancellation: The agent withdrew the question, or its turn ends; the sink settles it as cancelled.
        """
        ...


class Session(Protocol):
    """One conversation with a running agent. One turn at a time."""

    @property
    def session_id(self) -> str:
        """The agent's own id, with which the session can be resumed."""
        ...

    @property
    def agent_pid(self) -> int:
        """The process id of the agent's program."""
        ...

    @property
    def agent_version(self) -> str | None:
        """Name and version as the agent tells them."""
        ...

    @property
    def agent(self) -> str | None:
        """The mode or agent in use now, if the agent tells."""
        ...

    @property
    def model(self) -> str | None:
        """The model in use now, if the agent tells."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the agent's process has ended, or has closed its side of the wire; `wait_exited` tells how, later."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether an earlier session was restored."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the agent offers."""
        ...

    async def prompt(self, text: str) -> TurnStop:
        """Runs one turn, and returns how it ended; a failed turn is a result, not an exception.

        Raises:
            LocalProtocolError: A turn is running, or the session is closed.

        Cancellation: The agent is not told; the turn goes on in it. `cancel` and `close` still work, and the next
        prompt is refused until the agent has answered the old one.
        """
        ...

    async def cancel(self) -> None:
        """Asks the agent to end its turn, politely, and returns; nothing happens without a turn.

        Every open question is withdrawn. The turn's stop comes from `prompt` as ever.
        """
        ...

    async def close(self, graces: Graces) -> StopResult:
        """Ends the agent and everything that it started; a second call returns the first one's result.

        Cancellation: See `close_in_time`; cancelled, the session is over all the same, but it may leave processes, and
            can be called again for them.
        """
        ...

    async def wait_exited(self) -> AgentExit:
        """Waits until the agent's process has ended, or has closed its side of the wire."""
        ...


class Backend(Protocol):
    """The adapter to one kind of agent."""

    @property
    def name(self) -> str:
        """The name that `--backend` takes."""
        ...

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> Session:
        """Starts the agent and opens a session; returns once it takes prompts.

        Args:
            params: What to open.
            sink: Gets every event.
            nursery: Owns the session's tasks until it is closed.

        Raises:
            SpawnError: The program could not be started; `retryable` says whether that may change.
            AgentExited: It ended before it gave a session. Retryable.
            BackendRefused: It runs, and does not do what was asked.

        Cancellation: Everything that was started is ended first, by `abort_opening`, as after any error.
        """
        ...


async def open_within(
    seconds: float, backend: Backend, params: OpenParams, sink: SessionSink, nursery: trio.Nursery
) -> Session:
    """Opens a session within the handshake deadline.

    Args:
        seconds: The deadline, as long as the backend does not put it off; 0 or less is none.
        backend: See `Backend.open`, as the rest.
        params: What to open.
        sink: Gets every event.
        nursery: Owns the session's tasks.

    Raises:
        HandshakeTimeout: No session within `seconds`; the message ends with the agent's stderr. The agent is gone.
    """
    session: Session | None = None
    params.handshake = trio.move_on_after(seconds if seconds > 0 else float("inf"))
    with params.handshake:
        session = await backend.open(params, sink, nursery)
    if session is None:
        raise HandshakeTimeout(
            f"{backend.name} gave no session within {seconds:g} s{params.stderr_tail.suffix()}",
            data={"backend": backend.name, "stderr_tail": params.stderr_tail.text()},
            retryable=True,
        )
    return session


async def abort_opening(session: Session, params: OpenParams, graces: Graces) -> None:
    """Ends the agent of an opening that came to nothing, and puts what that has left behind into `params.aborted`."""
    params.aborted.append(await close_in_time(session, graces))


async def close_in_time(session: Session, graces: Graces) -> StopResult:
    """Closes a session; a close that takes longer than any may has proven nothing.

    Cancellation: Ignored, within the graces and `CLOSING_SECONDS`.
    """
    bound = graces.stdin_seconds + graces.term_seconds + graces.kill_seconds + CLOSING_SECONDS
    with trio.CancelScope(shield=True, deadline=trio.current_time() + bound):
        return await session.close(graces)
    return StopResult(unverified="ending the agent took longer than it may")
