"""The wire to one pi: reads its lines, writes ours, matches answers to commands.

What a record means is the handler's.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import trio
from msgspec import UNSET, Raw

from avenor.protocol.framing import Oversized
from avenor.runtimes.backends.acp_wire import AgentGone, LineTooLong
from avenor.runtimes.backends.agent_process import AgentProcess
from avenor.runtimes.backends.agent_text import without_escapes
from avenor.runtimes.backends.base import AgentExit
from avenor.runtimes.backends.line_wire import LineWire
from avenor.runtimes.backends.pi_types import Record, Response, Unread, read_record

_NOTHING = Raw(b"null")


class CommandFailed(Exception):
    """pi refused a command."""

    def __init__(self, command: str, message: str) -> None:
        super().__init__(f"{command}: {message}")
        self.command = command
        self.message = message


Answer = Raw | CommandFailed | AgentGone | LineTooLong


class Handler(Protocol):
    """Takes what pi says. Called from the reader, in order; never waits."""

    def batch(self) -> AbstractContextManager[None]:
        """Around everything that came at once."""
        ...

    def on_record(self, record: Record | Unread, line: bytes) -> None:
        """pi tells or asks something; answers to our commands do not come here."""
        ...

    def on_noise(self, line: bytes) -> None:
        """pi wrote a line that is no record."""
        ...

    def on_oversized(self) -> None:
        """A line over the limit was skipped; every command has been answered with `LineTooLong`."""
        ...


class PiWire(LineWire):
    """The connection over pi's stdin and stdout."""

    def __init__(self, process: AgentProcess, handler: Handler) -> None:
        super().__init__(process, handler.batch, self._take)
        self._handler = handler
        self._last_id = 0
        self._waiting: dict[str, tuple[str, Callable[[Answer], None]]] = {}
        self._gone: AgentGone | None = None

    async def call(self, command: str) -> Raw:
        """The data of the answer to a command without parameters.

        Raises:
            CommandFailed: pi refused it.
            AgentGone: It ended first.
            LineTooLong: Its answer may have been lost.
        """
        answers: list[Answer] = []
        arrived = trio.Event()

        def settle(answer: Answer) -> None:
            answers.append(answer)
            arrived.set()

        self.start_call(command, {}, settle)
        await arrived.wait()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def start_call(self, command: str, params: Mapping[str, object], settle: Callable[[Answer], None]) -> None:
        """Sends a command; `settle` gets its answer from the reader, once."""
        if self._gone is not None:
            settle(self._gone)
            return
        self._last_id += 1
        call_id = f"avenor-{self._last_id}"
        self._waiting[call_id] = (command, settle)
        self.send({"id": call_id, "type": command, **params})

    def send(self, record: Mapping[str, object]) -> None:
        """Sends a record; nothing answers it."""
        self.send_line(msgspec.json.encode(record) + b"\n")

    def give_up(self, agent_exit: AgentExit) -> None:
        """Answers every command, and those to come, with pi's end."""
        self._gone = AgentGone(agent_exit)
        self._settle_all(self._gone)

    def _take(self, frame: bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            self._settle_all(LineTooLong())
            self._handler.on_oversized()
        elif frame and not frame.isspace():
            self._take_line(frame)

    def _take_line(self, line: bytes) -> None:
        record = read_record(line)
        if record is None and not line.startswith(b"{"):
            line_without = without_escapes(line)
            record = read_record(line_without)
            line = line if record is None else line_without
        match record:
            case None:
                self._handler.on_noise(line)
            case Response() if (call_id := self._called(record)) is not None:
                self._settle(call_id, _answer(record))
            case _:
                self._handler.on_record(record, line)

    def _called(self, response: Response) -> str | None:
        """The command that is answered: the oldest of its kind where pi leaves the id out."""
        if response.id is not None:
            return response.id if response.id in self._waiting else None
        return next((id for id, (command, _settle) in self._waiting.items() if command == response.command), None)

    def _settle(self, call_id: str, answer: Answer) -> None:
        _command, settle = self._waiting.pop(call_id)
        settle(answer)

    def _settle_all(self, answer: Answer) -> None:
        for call_id in list(self._waiting):
            self._settle(call_id, answer)


def _answer(response: Response) -> Raw | CommandFailed:
    if not response.success:
        return CommandFailed(response.command, response.error)
    return _NOTHING if response.data is UNSET else response.data
