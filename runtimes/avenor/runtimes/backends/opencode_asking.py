"""The open questions of one session: brought to the sink in their order, and answered to the server.

The server keeps a question open that nobody answers, also when its turn was aborted, and a later rejection would reject
what is asked then. So what was withdrawn is rejected before the next prompt goes out.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio
from msgspec import Raw

from avenor.protocol import events
from avenor.protocol.events import Event
from avenor.runtimes.backends import opencode_questions
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, SessionSink
from avenor.runtimes.backends.http_client import HttpClient, HttpFailed, HttpUnreachable, quoted
from avenor.runtimes.backends.opencode_types import Permission, Question
from avenor.runtimes.backends.profiles import Profile

QUESTIONS_LIMIT: Final = 256  # Open at once; further ones are rejected.
_NOT_FOUND: Final = 404  # It was answered by another client, or went with its turn.

_permission = msgspec.json.Decoder(Permission)
_question = msgspec.json.Decoder(Question)

# Where an answer goes, below the server's address, and what it is.
_Reply = tuple[str, object]


class _Open:
    """A question that has not been answered: how it is asked, and what rejects it."""

    def __init__(self, ask: Callable[[], Awaitable[_Reply]], rejection: _Reply) -> None:
        self.ask = ask
        self.rejection = rejection
        self.scope = trio.CancelScope()


class Asker:
    """Asks what a session's agent, and its subagents, want to know.

    Args:
        sink: Answers the questions.
        profile: Says which options may be trusted.
        client: Gives what speaks to the server.
        query: Goes with every request.
        emit: Takes what goes wrong.
    """

    def __init__(
        self,
        sink: SessionSink,
        profile: Profile,
        *,
        client: Callable[[], HttpClient],
        query: dict[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._sink = sink
        self._profile = profile
        self._client = client
        self._query = query
        self._emit = emit
        self._open: dict[str, _Open] = {}
        self._stale: list[_Reply] = []
        self._to_ask, self._asked = trio.open_memory_channel[tuple[str, _Open]](math.inf)  # by QUESTIONS_LIMIT

    def take_permission(self, payload: Raw, *, may_ask: bool) -> None:
        """Takes the question whether a tool may do something; one that may not be asked is rejected in time.

        Raises:
            msgspec.DecodeError: It is no such question.
        """
        asked = _permission.decode(payload)
        ask = opencode_questions.permission_ask(asked, payload.copy(), self._profile)
        path = f"/permission/{quoted(asked.id)}/reply"
        question = _Open(lambda: self._ask_permission(path, ask), (path, {"reply": opencode_questions.REJECT}))
        self._take(asked.id, question, may_ask=may_ask)

    def take_question(self, payload: Raw, *, may_ask: bool) -> None:
        """Takes what the agent asks the user.

        Raises:
            msgspec.DecodeError: It is no such question.
        """
        asked = _question.decode(payload)
        asks = [opencode_questions.inquiry_ask(inquiry, payload.copy()) for inquiry in asked.questions]
        path = f"/question/{quoted(asked.id)}"
        question = _Open(lambda: self._ask_question(path, asks), (f"{path}/reject", {}))
        self._take(asked.id, question, may_ask=may_ask)

    def settle(self, request_id: str) -> None:
        """The server says that a question is settled: withdraws it, unless the answer was ours."""
        question = self._open.pop(request_id, None)
        if question is not None:
            question.scope.cancel()

    def withdraw_all(self) -> None:
        """Nobody needs to answer what is open now."""
        for question in self._open.values():
            question.scope.cancel()
            self._stale.append(question.rejection)
        self._open.clear()

    async def reject_stale(self) -> None:
        """Tells the server that what was withdrawn gets no answer."""
        while self._stale:
            await self._reply(self._stale.pop(0))

    async def run(self, nursery: trio.Nursery) -> None:
        """Starts asking each question before the next one, in the order in which the agent asked."""
        async for request_id, question in self._asked:
            await nursery.start(self._ask, request_id, question)

    def _take(self, request_id: str, question: _Open, *, may_ask: bool) -> None:
        if request_id in self._open:
            return
        if not may_ask or len(self._open) >= QUESTIONS_LIMIT:
            self._stale.append(question.rejection)
            return
        self._open[request_id] = question
        self._to_ask.send_nowait((request_id, question))

    async def _ask(self, request_id: str, question: _Open, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        reply: _Reply | None = None
        if not question.scope.cancel_called:
            with question.scope:
                reply = await question.ask()
        if reply is not None and self._open.get(request_id) is question:
            del self._open[request_id]
            await self._reply(reply)

    async def _ask_permission(self, path: str, ask: PermissionAsk) -> _Reply:
        return path, opencode_questions.permission_reply(await self._sink.ask_permission(ask))

    async def _ask_question(self, path: str, asks: list[PermissionAsk]) -> _Reply:
        answers: list[PermissionAnswer] = []
        for ask in asks:
            answers.append(await self._sink.ask_permission(ask))
        chosen = opencode_questions.inquiry_answers(answers)
        return (f"{path}/reject", {}) if chosen is None else (f"{path}/reply", {"answers": chosen})

    async def _reply(self, reply: _Reply) -> None:
        path, body = reply
        try:
            await self._client().call("POST", path, query=self._query, body=body)
        except HttpFailed as failure:
            if failure.status != _NOT_FOUND:
                self._emit(events.Error(source="permission", message=f"the answer was refused: {failure}"))
        except HttpUnreachable as failure:
            # If the server lives, the question is still open there, and is asked again when the stream is back.
            self._emit(events.Error(source="permission", message=f"the answer did not get there: {failure}"))
