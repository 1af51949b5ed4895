"""What avenor's own tools do for a member, within what its manifest declares; all else is refused and recorded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.events import AuthorityEvent, PlanEvent
from avenor.protocol.manifest.records import Result, Verdict
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.contexts import candidate_diff, receipts
from avenor.runtimes.manifest.handoffs import Handoffs
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolReply
from avenor.runtimes.manifest.membertools import (
    AcceptHandoff,
    BadArguments,
    CancelWorker,
    CreateTask,
    HandOff,
    MemberTool,
    ReadDiff,
    ReadReceipt,
    ReadTestReceipt,
    RejectHandoff,
    Replan,
    StartWorker,
    SubmitResult,
    SubmitVerdict,
    decode_arguments,
)
from avenor.runtimes.manifest.metering import Metering
from avenor.runtimes.manifest.services import Workshop
from avenor.runtimes.manifest.view import View
from avenor.runtimes.manifest.workers import Workers

T = TypeVar("T", bound=msgspec.Struct)

# By these a receiver finds out whether it takes what was handed to it; all others are for the task's owner.
_BEFORE_ACCEPTING: Final = frozenset(
    {"accept_handoff", "reject_handoff", "read_receipt", "read_test_receipt", "read_diff"}
)
# What ends work is not paid for with a tool call: it must be possible when there is none left.
_FREE: Final = frozenset({"submit_result", "submit_verdict", "accept_handoff", "reject_handoff", "cancel_worker"})


class Tools:
    """The `ToolBox` of a run.

    Args:
        journal: Takes what is decided.
        metering: Charges the calls.
        workshop: Reads diffs.
        look: The run at this moment.
        live: The attempts that go on, by id.
    """

    def __init__(
        self,
        journal: Journal,
        metering: Metering,
        workshop: Workshop,
        look: Callable[[], View],
        live: Mapping[str, LiveAttempt],
    ) -> None:
        self._journal = journal
        self._metering = metering
        self._workshop = workshop
        self._look = look
        self._live = live
        self._workers = Workers(journal, look, live)
        self._handoffs = Handoffs(journal, look)

    def tools(self, attempt_id: str) -> Sequence[str]:
        """The names of those that an attempt may use."""
        live = self._live.get(attempt_id)
        return [] if live is None else live.member.own_tools

    async def call(self, attempt_id: str, name: str, arguments: bytes) -> ToolReply:
        """Does a call.

        Cancellation: What was decided before stays decided.
        """
        live = self._live.get(attempt_id)
        if live is None or live.stopped is not None:
            return ToolReply(f"{attempt_id} is over: nothing that it does counts any more", is_error=True)
        if live.not_its_task is not None:
            return ToolReply(f"{live.not_its_task}: end your turn", is_error=True)
        if live.is_considering and name not in _BEFORE_ACCEPTING:
            return ToolReply("call accept_handoff first, or reject_handoff: the task is not yours yet", is_error=True)
        field = live.member.capabilities.own_tools.get(name)
        if field is None:
            self._deny(attempt_id, name, f"{live.member.field}.tools")
            return ToolReply(f"{name} is not among your tools", is_error=True)
        if name not in _FREE and (why := self._metering.use_tool(attempt_id)) is not None:
            return ToolReply(f"{why}: hand over what you have", is_error=True)
        try:
            asked = decode_arguments(name, arguments)
        except BadArguments as error:
            return ToolReply(str(error), is_error=True)
        view = self._look()
        task = view.state.task_of(attempt_id)
        assert task is not None
        return await self._do(live, task, task.attempts[-1], asked, field)

    async def _do(self, live: LiveAttempt, task: Task, attempt: Attempt, asked: MemberTool, field: str) -> ToolReply:
        match asked:
            case SubmitResult():
                return _counted(live.submit(_plain(asked, Result), "tool"), "Your result is recorded. End your turn.")
            case SubmitVerdict():
                return _counted(live.judge(_plain(asked, Verdict)), "Your verdict is recorded. End your turn.")
            case CreateTask():
                return self._workers.create_task(task, asked, field)
            case StartWorker():
                return await self._workers.start(task, attempt, asked, field)
            case CancelWorker():
                return await self._workers.cancel(task, asked)
            case Replan():
                return self._replan(attempt, asked, field)
            case HandOff():
                return await self._handoffs.offer(task, attempt, asked)
            case AcceptHandoff():
                return self._handoffs.accept(task)
            case RejectHandoff():
                return self._handoffs.reject(live, task, asked)
            case _:
                return await self._read(asked)

    def _replan(self, attempt: Attempt, asked: Replan, field: str) -> ToolReply:
        epoch = self._look().state.plan_epoch + 1
        event = PlanEvent(plan_epoch=epoch, reason=asked.reason, permitted_by=field, attempt_id=attempt.attempt_id)
        self._journal.tell([event])
        return ToolReply(
            f"The plan epoch is {epoch} now, also for your own result. What others have begun under an older plan does "
            "not count; what is needed of it is done anew."
        )

    async def _read(self, asked: ReadReceipt | ReadTestReceipt | ReadDiff) -> ToolReply:
        view = self._look()
        match asked:
            case ReadDiff():
                return ToolReply(await candidate_diff(view, self._workshop, asked.path))
            case ReadTestReceipt():
                found = view.state.receipts_of(view.revision)
                return ToolReply(receipts([each for each in found if asked.name in ("", each.name, each.receipt_id)]))
            case ReadReceipt():
                return ToolReply(_records(view, asked))

    def _deny(self, attempt_id: str, name: str, field: str) -> None:
        event = AuthorityEvent(
            attempt_id=attempt_id,
            tool=name,
            tool_kind="other",
            decision="deny",
            permitted_by=field,
            detail="it is not declared",
        )
        events: list[Event] = [event]
        self._journal.tell(events)


def _records(view: View, asked: ReadReceipt) -> str:
    """What tasks have handed over and come to, and the receipts of the candidate, as they were recorded."""
    tasks = [
        {
            "task_id": task.task_id,
            "state": task.state,
            "reason": "" if task.latest is None else task.latest.reason,
            "result": task.result,
        }
        for task in view.state.tasks.values()
        if asked.task_id in ("", task.task_id) and (not asked.name or asked.task_id)
    ]
    found = [] if asked.task_id else view.state.receipts_of(view.revision)
    shown = [
        {"receipt_id": each.receipt_id, "name": each.name, "passed": each.passed, "output": each.output}
        for each in found
        if asked.name in ("", each.name, each.receipt_id)
    ]
    if asked.task_id and not tasks:
        return f"There is no task {asked.task_id}; there are {', '.join(view.state.tasks)}."
    return msgspec.json.format(msgspec.json.encode({"tasks": tasks, "receipts": shown}), indent=1).decode()


def _counted(why_not: str | None, told: str) -> ToolReply:
    if why_not is None:
        return ToolReply(told)
    is_kept = why_not.startswith("stale")
    text = f"It is recorded, and does not count: {why_not}" if is_kept else f"It does not count: {why_not}"
    return ToolReply(text, is_error=True)


def _plain(asked: msgspec.Struct, kind: type[T]) -> T:
    """The arguments as the record that they are."""
    return msgspec.convert(msgspec.to_builtins(asked), kind)
