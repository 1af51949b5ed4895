"""The open questions of one codex session: asked in order, answered once, and forgotten when codex withdraws them."""

import math
from collections.abc import Callable
from typing import Final

import trio

from avenor.protocol.peer import RequestId
from avenor.runtimes.backends.acp_wire import AcpWire
from avenor.runtimes.backends.base import PermissionAnswer, SessionSink
from avenor.runtimes.backends.codex_questions import Question

QUESTIONS_LIMIT: Final = 256  # Open at once; further ones are declined.


class _Asked:
    """A question that has not been answered."""

    def __init__(self, request_id: RequestId, question: Question) -> None:
        self.request_id = request_id
        self.question = question
        self.scope = trio.CancelScope()


class OpenQuestions:
    """The questions that codex waits for.

    Args:
        sink: Is asked.
        on_answer: Gets each answer before codex does.
    """

    def __init__(self, sink: SessionSink, on_answer: Callable[[PermissionAnswer], None]) -> None:
        self._sink = sink
        self._on_answer = on_answer
        self._open: dict[RequestId, _Asked] = {}
        self._to_ask, self._asked = trio.open_memory_channel[_Asked](math.inf)  # bounded by QUESTIONS_LIMIT

    def take(self, request_id: RequestId, question: Question, wire: AcpWire) -> None:
        """Takes a new question; declines it when there are too many."""
        if len(self._open) >= QUESTIONS_LIMIT:
            wire.reply(request_id, question.declined)
            return
        asked = self._open[request_id] = _Asked(request_id, question)
        self._to_ask.send_nowait(asked)

    def forget(self, request_id: RequestId) -> None:
        """codex does not wait for this one any more, so that an answer would be to nothing."""
        asked = self._open.pop(request_id, None)
        if asked is not None:
            asked.scope.cancel()

    def withdraw_all(self) -> None:
        """Nobody shall be asked any more; codex is told that they are cancelled."""
        for asked in self._open.values():
            asked.scope.cancel()

    async def ask_in_order(self, wire: AcpWire, nursery: trio.Nursery) -> None:
        """Starts asking each question before the next one, in the order in which codex asked.

        Args:
            wire: For the answers.
            nursery: Owns the asking.
        """
        async for asked in self._asked:
            await nursery.start(self._ask, asked, wire)

    async def _ask(self, asked: _Asked, wire: AcpWire, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        answer: PermissionAnswer | None = None
        if not asked.scope.cancel_called:
            with asked.scope:
                answer = await self._sink.ask_permission(asked.question.ask)
        if self._open.get(asked.request_id) is not asked:
            return
        del self._open[asked.request_id]
        if answer is None:
            wire.reply(asked.request_id, asked.question.cancelled)
            return
        self._on_answer(answer)
        wire.reply(asked.request_id, asked.question.result(answer))
