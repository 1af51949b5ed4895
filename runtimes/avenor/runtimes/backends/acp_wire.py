"""The wire to one ACP agent: reads its lines, writes ours, matches answers to calls.

What a message means is the handler's.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import trio
from msgspec import Raw

from avenor.protocol.errors import ErrorObject, RuntimeFailure
from avenor.protocol.framing import Oversized
from avenor.protocol.peer import (
    IncomingError,
    IncomingNotification,
    IncomingRequest,
    IncomingResult,
    Malformed,
    Peer,
    RequestId,
    Stray,
)
from avenor.runtimes.backends import line_wire
from avenor.runtimes.backends.agent_process import AgentProcess
from avenor.runtimes.backends.agent_text import without_escapes
from avenor.runtimes.backends.base import AgentExit
from avenor.runtimes.backends.line_wire import LineWire


class CallFailed(Exception):
    """The agent answered a call with an error."""

    def __init__(self, method: str, error: ErrorObject) -> None:
        super().__init__(f"{method}: {error.message}")
        self.method = method
        self.error = error


class AgentGone(RuntimeFailure):
    """The agent ended, or closed its side, while an answer was awaited."""

    reason = "agent_exited"

    def __init__(self, agent_exit: AgentExit) -> None:
        super().__init__(f"the agent ended ({agent_exit.describe()})")
        self.exit = agent_exit


class LineTooLong(RuntimeFailure):
    """The agent sent a line over the limit, which may have been the answer that was awaited."""

    reason = "line_too_long"

    def __init__(self) -> None:
        super().__init__(f"the agent sent a line of more than {line_wire.LINE_LIMIT_BYTES // 2**20} MiB")


Answer = Raw | CallFailed | AgentGone | LineTooLong


class Handler(Protocol):
    """Takes what the agent says unasked. Called from the reader, in order; never waits."""

    def batch(self) -> AbstractContextManager[None]:
        """Around everything that came at once."""
        ...

    def on_request(self, request: IncomingRequest) -> None:
        """The agent asks; someone must answer."""
        ...

    def on_notification(self, notification: IncomingNotification) -> None:
        """The agent tells."""
        ...

    def on_noise(self, line: bytes) -> None:
        """The agent wrote a line that is no message."""
        ...

    def on_oversized(self) -> None:
        """A line over the limit was skipped; every call has been answered with `LineTooLong`."""
        ...


class AcpWire(LineWire):
    """The JSON-RPC connection over an agent's stdin and stdout."""

    def __init__(self, process: AgentProcess, handler: Handler) -> None:
        super().__init__(process, handler.batch, self._take)
        self._handler = handler
        self._peer = Peer()
        self._waiting: dict[int, tuple[str, Callable[[Answer], None]]] = {}
        self._gone: AgentGone | None = None

    async def call(self, method: str, params: object) -> Raw:
        """The result of a call.

        Raises:
            CallFailed: The agent answered with an error.
            AgentGone: It ended first.
            LineTooLong: Its answer may have been lost.

        Cancellation: The answer is ignored when it comes.
        """
        answers: list[Answer] = []
        arrived = trio.Event()

        def settle(answer: Answer) -> None:
            answers.append(answer)
            arrived.set()

        call_id = self.start_call(method, params, settle)
        try:
            await arrived.wait()
        finally:
            self._waiting.pop(call_id, None)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def start_call(self, method: str, params: object, settle: Callable[[Answer], None]) -> int:
        """Sends a call; `settle` gets its answer from the reader, once. Returns the call's id."""
        call_id, line = self._peer.request(method, params)
        if self._gone is not None:
            self._peer.forget(call_id)
            settle(self._gone)
            return call_id
        self._waiting[call_id] = (method, settle)
        self.send_line(line)
        return call_id

    def notify(self, method: str, params: object) -> None:
        """Sends a notification."""
        self.send_line(self._peer.notify(method, params))

    def reply(self, request_id: RequestId, result: object) -> None:
        """Answers a request."""
        self.send_line(self._peer.reply(request_id, result))

    def reply_error(self, request_id: RequestId, error: ErrorObject) -> None:
        """Answers a request with an error."""
        self.send_line(self._peer.reply_error(request_id, error))

    def give_up(self, agent_exit: AgentExit) -> None:
        """Answers every call, and those to come, with the agent's end."""
        self._gone = AgentGone(agent_exit)
        self._settle_all(self._gone)

    def _take(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            self._settle_all(LineTooLong())
            self._handler.on_oversized()
        elif frame and not frame.isspace():
            self._take_line(frame)

    def _take_line(self, line: bytes) -> None:
        incoming = self._peer.receive(line)
        if isinstance(incoming, Malformed) and not line.startswith(b"{"):
            incoming = self._peer.receive(without_escapes(line))
        match incoming:
            case IncomingResult():
                self._settle(incoming.id, incoming.result)
            case IncomingError():
                method, _settle = self._waiting.get(incoming.id, ("", None))
                self._settle(incoming.id, CallFailed(method, incoming.error))
            case IncomingRequest():
                self._handler.on_request(incoming)
            case IncomingNotification():
                self._handler.on_notification(incoming)
            case Malformed() | Stray():
                self._handler.on_noise(line)

    def _settle(self, call_id: int, answer: Answer) -> None:
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            waiting[1](answer)

    def _settle_all(self, answer: Answer) -> None:
        for call_id in list(self._waiting):
            self._peer.forget(call_id)
            self._settle(call_id, answer)
