"""The open questions of an ACP agent: each is put to the session's owner, and answered or withdrawn, once."""

import math
from collections.abc import Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from avenor.protocol.errors import INVALID_PARAMS, ErrorObject
from avenor.protocol.peer import IncomingRequest, RequestId
from avenor.runtimes.backends import acp_permissions
from avenor.runtimes.backends.acp_permissions import KnownTool
from avenor.runtimes.backends.acp_types import CancelRequestParams
from avenor.runtimes.backends.acp_wire import AcpWire
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, SessionSink
from avenor.runtimes.backends.profiles import Profile

QUESTIONS_LIMIT = 256  # Open at once; further ones are answered as cancelled.


class _Question:
    """A question of the agent that has not been answered."""

    def __init__(self, request_id: RequestId, ask: PermissionAsk) -> None:
        self.request_id = request_id
        self.ask = ask
        self.scope = trio.CancelScope()


class Questions:
    """The questions of one session.

    Args:
        wire: Where the answers go.
        sink: Answers them.
        profile: Says which options may be trusted.
        on_answer: Told of each answer of the sink, not of what was withdrawn.
    """

    def __init__(
        self,
        wire: AcpWire,
        sink: SessionSink,
        profile: Profile,
        on_answer: Callable[[PermissionAsk, PermissionAnswer], None],
    ) -> None:
        self._wire = wire
        self._sink = sink
        self._profile = profile
        self._on_answer = on_answer
        self._open: dict[RequestId, _Question] = {}
        self._to_ask, self._asked = trio.open_memory_channel[_Question](math.inf)  # bounded by QUESTIONS_LIMIT

    def take(self, request: IncomingRequest, tools: Mapping[str, KnownTool], *, is_wanted: bool) -> None:
        """Takes a `session/request_permission`; one that is not wanted any more is answered as cancelled."""
        try:
            ask = acp_permissions.read_ask(request.params, tools, self._profile)
        except msgspec.DecodeError as problem:
            self._wire.reply_error(request.id, ErrorObject(code=INVALID_PARAMS, message=str(problem)))
            return
        if not is_wanted or len(self._open) >= QUESTIONS_LIMIT:
            self._wire.reply(request.id, acp_permissions.outcome(PermissionAnswer(option_id=None)))
            return
        question = self._open[request.id] = _Question(request.id, ask)
        self._to_ask.send_nowait(question)

    def withdraw(self, params: Raw) -> None:
        """Withdraws the question that a `$/cancel_request` of the agent names."""
        try:
            request_id = msgspec.json.decode(params, type=CancelRequestParams).request_id
        except msgspec.ValidationError:
            return
        question = self._open.get(request_id)
        if question is not None:
            question.scope.cancel()

    def withdraw_all(self) -> None:
        """Withdraws every open question."""
        for question in self._open.values():
            question.scope.cancel()

    async def ask_in_order(self, nursery: trio.Nursery) -> None:
        """Starts asking each question before the next one, in the order in which the agent asked.

        Args:
            nursery: Owns the tasks that wait for the answers.
        """
        async for question in self._asked:
            await nursery.start(self._ask, question)

    async def _ask(self, question: _Question, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        answer = PermissionAnswer(option_id=None)
        if not question.scope.cancel_called:
            with question.scope:
                answer = await self._sink.ask_permission(question.ask)
                self._on_answer(question.ask, answer)
        if self._open.get(question.request_id) is question:
            del self._open[question.request_id]
        self._wire.reply(question.request_id, acp_permissions.outcome(answer))
