"""One `opencode serve` and the sessions on it: its start, its one stream of events, and its end.

The server's tasks run in the nursery of one of its sessions. When that one is closed and others are left, the tasks are
started again in the nursery of another; what the stream told in between is caught up, as after any break.

Closing a session ends the server when it was the last one, or when the server is dead; then everything that the server
started is ended, and that is proven. While other sessions go on, the tools of the closed one cannot be told from theirs
(all are children of the one server), so its turn is aborted, the server ends its tools, and the close is `unverified`:
what runs below the runtime is swept after all of its sessions.
"""

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import msgspec
import trio

from avenor.host.ladder import Graces, StopResult
from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends.agent_process import READ_BYTES, AgentProcess
from avenor.runtimes.backends.agent_text import Gate, TextLines
from avenor.runtimes.backends.base import AgentExit, StderrTail
from avenor.runtimes.backends.http_client import HttpClient, HttpFailed, HttpUnreachable
from avenor.runtimes.backends.http_sse import EventStream, EventTooLong
from avenor.runtimes.backends.opencode_types import Health, Properties, ServerEvent, SessionInfo

# The server sends a heartbeat every ten seconds.
SILENCE_SECONDS: Final = 45.0
# How long the stream may stay broken before the server counts as gone, though its process may live.
GIVE_UP_SECONDS: Final = 30.0
RECONNECT_SECONDS: Final = (0.0, 0.1, 0.5, 1.0, 2.0)  # The last one again and again.
# What a dead server wrote is in the pipe already; only a tool that inherited the pipe keeps it open for longer.
DRAIN_SECONDS: Final = 1.0

_LISTENING: Final = re.compile(r"listening on (https?://\S+)")
_SHARED: Final = "other sessions share its server, and their tools cannot be told from its own"
_FOREIGN: Final = "the server was running before, and goes on: what its tools started cannot be seen from here"

_event = msgspec.json.Decoder(ServerEvent)
_properties = msgspec.json.Decoder(Properties)
_info = msgspec.json.Decoder(SessionInfo)


class Member(Protocol):
    """A session, as the server sees it."""

    @property
    def session_id(self) -> str:
        """Empty until it is known."""
        ...

    @property
    def nursery(self) -> trio.Nursery:
        """Runs the server's tasks while this is the session that keeps them."""
        ...

    @property
    def tail(self) -> StderrTail:
        """Gets every line of stderr."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """See `SessionSink.batch`."""
        ...

    def tell(self, event: Event) -> None:
        """Takes an event that is about the server."""
        ...

    def take(self, kind: str, properties: Properties, verbatim: bytes) -> None:
        """Takes an event of the session, or of one of its subagents'."""
        ...

    def stream_broke(self) -> None:
        """From now on events may be missed."""
        ...

    def stream_is_up(self) -> None:
        """Events come again; what was missed can be looked up."""
        ...

    def server_gone(self, exit_: AgentExit) -> None:
        """The server has ended, or cannot be reached any more."""
        ...


class OpencodeServer:
    """A server.

    Args:
        directory: Where its sessions work: it keeps a configuration and a stream of events for each directory.
        process: Its program; None for a server that was running before.
        make_client: Makes what speaks to it, from its address.
        url: The address; None takes it from what the program says at its start.

    Attributes:
        lock: Held by whoever sets something up for all sessions.
        handed: MCP servers that it was handed, by name.
        version: As its health tells; None until then.
    """

    def __init__(
        self,
        directory: str,
        process: AgentProcess | None,
        make_client: Callable[[str], HttpClient],
        *,
        url: str | None = None,
    ) -> None:
        self.query = {"directory": directory}
        self.lock = trio.Lock()
        self.handed: set[str] = set()
        self.version: str | None = None
        self.exit: AgentExit | None = None
        self._process = process
        self._make_client = make_client
        self._client = None if url is None else make_client(url)
        self._has_address = trio.Event()
        self._is_up = trio.Event()
        self._gone = trio.Event()
        self._members: list[Member] = []
        self._owners: dict[str, Member] = {}
        self._keeper: Member | None = None
        self._keeping: trio.CancelScope | None = None
        self._kept_ended = trio.Event()
        self._tail = _Tails(self._members)
        self._is_ending = False
        self._stop_lock = trio.Lock()
        self._stop_result: StopResult | None = None
        if url is not None:
            self._has_address.set()

    @property
    def pid(self) -> int:
        """The process id of its program; 0 for a server that is not ours."""
        return 0 if self._process is None else self._process.pid

    @property
    def client(self) -> HttpClient:
        """What speaks to it; there once it has said its address."""
        assert self._client is not None
        return self._client

    @property
    def is_over(self) -> bool:
        """Whether it takes no more sessions: it has ended, or is being ended."""
        has_ended = self._process is not None and self._process.has_ended
        return has_ended or self.exit is not None or self._is_ending

    # Sessions

    def add(self, member: Member) -> None:
        """Adds a session, which keeps the server from ending until it leaves."""
        self._members.append(member)

    async def join(self) -> None:
        """Waits until the server has said that it is well, and events come.

        Raises:
            HttpFailed: The server refuses us.
            HttpUnreachable: It cannot be reached.
            ServerGone: It has ended, or is given up.
            msgspec.DecodeError: It is no such server.
        """
        await self._ensure_kept()
        await self._first_of(self._has_address)
        health = await self.client.call("GET", "/global/health", query={})
        self.version = msgspec.json.decode(health, type=Health).version
        await self._first_of(self._is_up)

    def own(self, session_id: str, member: Member) -> None:
        """From now on events of this session, and of its subagents', go to the member."""
        self._owners[session_id] = member

    def owner_of(self, session_id: str) -> Member | None:
        """Whose a session is; None of another client's."""
        return self._owners.get(session_id)

    def outlives(self, member: Member) -> bool:
        """Whether the server goes on when this session is closed."""
        return not self.is_over and (self._process is None or self._members != [member])

    async def leave(self, member: Member, graces: Graces) -> StopResult:
        """Takes a session out, and ends the server if nobody needs it any more.

        Cancellation: Shield it; cancelled, it may leave processes.
        """
        if member in self._members:
            self._members.remove(member)
        self._owners = {id_: owner for id_, owner in self._owners.items() if owner is not member}
        if not self._members or self.is_over:
            return await self._stop(graces)
        if self._keeper is member:
            await self._let_go()
        await self._ensure_kept()
        return StopResult(unverified=_FOREIGN if self._process is None else _SHARED)

    async def wait_exit(self, seconds: float) -> AgentExit | None:
        """How it has ended, if that is known within so many seconds."""
        with trio.move_on_after(seconds):
            await self._gone.wait()
        return self.exit

    # Tasks

    async def _ensure_kept(self) -> None:
        # One that has died must be kept, too: its keeper is who tells.
        if self._keeper is None and self._members and self.exit is None and not self._is_ending:
            self._keeper = self._members[0]
            self._kept_ended = trio.Event()
            await self._keeper.nursery.start(self._keep)

    async def _let_go(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await self._kept_ended.wait()

    async def _keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Runs the server's tasks until it has ended, or they are to run elsewhere."""
        ended = self._kept_ended
        try:
            with trio.CancelScope() as self._keeping:
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    if self._process is not None:
                        await self._watch(self._process, nursery)
                    else:
                        await self._follow()
                    nursery.cancel_scope.cancel()
        finally:
            self._keeper = None
            self._break_off()
            ended.set()

    async def _watch(self, process: AgentProcess, nursery: trio.Nursery) -> None:
        """Follows a program of ours until it has ended, and then reads what it has left in its pipes."""
        stdout_ended, stderr_ended = trio.Event(), trio.Event()
        nursery.start_soon(self._read_stdout, process, stdout_ended)
        nursery.start_soon(self._read_stderr, process, stderr_ended)
        nursery.start_soon(self._follow)
        returncode = await process.wait()
        with trio.move_on_after(DRAIN_SECONDS):
            await stdout_ended.wait()
            await stderr_ended.wait()
        self._end(AgentExit(returncode=returncode, stderr_tail=self._tail.text()))

    async def _read_stdout(self, process: AgentProcess, ended: trio.Event) -> None:
        lines, gate = TextLines(), Gate()
        with contextlib.suppress(trio.ClosedResourceError):  # we closed the pipe: the server is being stopped
            while data := await process.stdout.receive_some(READ_BYTES):
                said = [line for line in lines.feed(bytes(data)) if not self._take_address(line)]
                for line in gate.admit(said, trio.current_time()):
                    self._tell(events.AgentNoise(text=line))
        ended.set()

    def _take_address(self, line: str) -> bool:
        found = _LISTENING.search(line)
        if found is None or self._has_address.is_set():
            return False
        self._client = self._make_client(found[1])
        self._has_address.set()
        return True

    async def _read_stderr(self, process: AgentProcess, ended: trio.Event) -> None:
        await process.read_stderr(self._tail, lambda text: self._tell(events.AgentStderr(text=text)))
        ended.set()

    def _tell(self, event: Event) -> None:
        """Tells one session of what is the server's: all of them are of the same run."""
        if self._members:
            self._members[0].tell(event)

    # Events

    async def _follow(self) -> None:
        """Follows the stream of events; opens it again when it breaks, until the server is given up."""
        await self._has_address.wait()
        tries, up_at = 0, trio.current_time()
        while not self.is_over:
            why = await self._follow_once()
            if self._break_off():
                tries, up_at = 0, trio.current_time()
                self._tell(events.Error(source="events", message=f"the stream of events broke off: {why}"))
            elif trio.current_time() > up_at + GIVE_UP_SECONDS:
                self._tell(events.Error(source="events", message=f"the server cannot be reached any more: {why}"))
                self._end(AgentExit(returncode=None, stderr_tail=self._tail.text()))
            await trio.sleep(RECONNECT_SECONDS[min(tries, len(RECONNECT_SECONDS) - 1)])
            tries += 1

    async def _follow_once(self) -> str:
        """Follows the stream until it breaks; returns why it did."""
        parser = EventStream()
        try:
            async with self.client.stream("/event", query=self.query, silence_seconds=SILENCE_SECONDS) as chunks:
                async for chunk in chunks:
                    self._take_all(parser.feed(chunk))
        except (HttpFailed, HttpUnreachable, EventTooLong) as error:
            return str(error)
        return "the server has ended it"

    def _break_off(self) -> bool:
        """Notes that the stream is broken; False if it had not been up."""
        if not self._is_up.is_set():
            return False
        self._is_up = trio.Event()
        for member in self._members:
            member.stream_broke()
        return True

    def _take_all(self, found: list[bytes]) -> None:
        with contextlib.ExitStack() as batches:
            for member in self._members:
                batches.enter_context(member.batch())
            for data in found:
                self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            event = _event.decode(data)
            properties = _properties.decode(event.properties)
        except msgspec.DecodeError:
            self._tell(events.AgentNoise(text=f"an event that cannot be read: {data[:200].decode('utf-8', 'replace')}"))
            return
        if event.type == "server.connected":
            self._is_up.set()
            for member in self._members:
                member.stream_is_up()
            return
        if event.type == "session.created":
            self._adopt(properties)
        owner = self._owners.get(properties.sessionID)
        if owner is not None:
            owner.take(event.type, properties, data)
        elif event.type == "session.error" and not properties.sessionID:
            self._tell(events.Error(source="server", message=data.decode("utf-8", "replace")))
        # All else is another client's session, or the server's housekeeping.

    def _adopt(self, properties: Properties) -> None:
        """A subagent's session belongs to the one that it works for."""
        if isinstance(properties.info, msgspec.Raw):
            with contextlib.suppress(msgspec.ValidationError):
                info = _info.decode(properties.info)
                parent = self._owners.get(info.parentID or "")
                if parent is not None:
                    self._owners[info.id] = parent

    # The end

    async def _first_of(self, event: trio.Event) -> None:
        """Waits for an event, or for the server's end."""
        async with trio.open_nursery() as nursery:

            async def watch_end() -> None:
                await self._gone.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch_end)
            await event.wait()
            nursery.cancel_scope.cancel()
        if self.exit is not None:
            raise ServerGone(self.exit)

    def _end(self, exit_: AgentExit) -> None:
        if self.exit is not None:
            return
        self.exit = exit_
        self._gone.set()
        for member in self._members:
            member.server_gone(exit_)

    async def _stop(self, graces: Graces) -> StopResult:
        self._is_ending = True
        async with self._stop_lock:
            if self._stop_result is None:
                try:
                    self._stop_result = await self._stop_process(graces)
                finally:
                    # Cut short, too: nobody who looked after the server is left to tell its sessions.
                    returncode = None if self._process is None else self._process.returncode
                    self._end(AgentExit(returncode=returncode, stderr_tail=self._tail.text()))
                    with trio.CancelScope(shield=True):
                        await self._let_go()
                        if self._client is not None:
                            await self._client.aclose()
        return self._stop_result

    async def _stop_process(self, graces: Graces) -> StopResult:
        if self._process is None:
            return StopResult(unverified=_FOREIGN)
        # Closing its stdin means nothing to it.
        result = await self._process.stop(msgspec.structs.replace(graces, stdin_seconds=0.0))
        with trio.move_on_after(DRAIN_SECONDS):
            await self._gone.wait()
        return result


class ServerGone(Exception):
    """The server has ended, or cannot be reached any more.

    Attributes:
        exit: How.
    """

    def __init__(self, exit_: AgentExit) -> None:
        super().__init__(exit_.describe())
        self.exit = exit_


class _Tails(StderrTail):
    """The end of what the server wrote to stderr, which each of its sessions gets too."""

    def __init__(self, members: list[Member]) -> None:
        super().__init__()
        self._members = members

    def add(self, line: str) -> None:
        super().add(line)
        for member in self._members:
            member.tail.add(line)
