"""Hand-offs: one owner's control ends where another's begins, and not before that one has accepted it."""

from collections.abc import Callable

from avenor.protocol.manifest.events import HandoffEvent, HandoffRecord
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolReply
from avenor.runtimes.manifest.membertools import HandOff, RejectHandoff
from avenor.runtimes.manifest.results import has_handed_over
from avenor.runtimes.manifest.view import View


class Handoffs:
    """The hand-offs of a run.

    Args:
        journal: Takes what is decided.
        look: The run at this moment.
    """

    def __init__(self, journal: Journal, look: Callable[[], View]) -> None:
        self._journal = journal
        self._look = look

    async def offer(self, task: Task, attempt: Attempt, asked: HandOff) -> ToolReply:
        """Offers ownership, and waits for the answer; until it is accepted, it stays where it is."""
        view = self._look()
        declared = {each.receiver: index for index, each in view.plan.offers_of(task.member)}
        if asked.to not in declared:
            return ToolReply(
                f"you may hand over to {', '.join(declared) or 'nobody'}, not to {asked.to}", is_error=True
            )
        if (why := _why_not_now(view, task, attempt, asked.to)) is not None:
            return ToolReply(why, is_error=True)
        field = f"handoffs[{declared[asked.to]}]"
        event = HandoffEvent(from_task=task.task_id, to_task=asked.to, state="offered", permitted_by=field)
        event.record = _record(view, task, attempt, asked)
        self._journal.tell([event])
        while (now := self._look().state.handoffs[task.task_id, asked.to]).state == "offered":
            await self._journal.wait_change()
        if now.state == "accepted":
            return ToolReply(f"{asked.to} has accepted: the task is no longer yours. End your turn.")
        return ToolReply(f"{asked.to} has rejected it ({now.reason}): the task is still yours.", is_error=True)

    def accept(self, task: Task) -> ToolReply:
        """Takes over what was offered."""
        sender = self._look().offer_to(task.task_id)
        if sender is None:
            return ToolReply("nothing is offered to you", is_error=True)
        self._answer(sender, task.task_id, "accepted", None)
        return ToolReply("It is yours now.")

    def reject(self, live: LiveAttempt, task: Task, asked: RejectHandoff) -> ToolReply:
        """Leaves it where it is."""
        sender = self._look().offer_to(task.task_id)
        if sender is None:
            return ToolReply("nothing is offered to you", is_error=True)
        live.refused_handoff = asked.reason
        self._answer(sender, task.task_id, "rejected", asked.reason)
        return ToolReply("It stays where it is. End your turn.")

    def _answer(self, sender: str, receiver: str, state: str, reason: str | None) -> None:
        before = self._look().state.handoffs[sender, receiver]
        event = HandoffEvent(
            from_task=sender,
            to_task=receiver,
            state="accepted" if state == "accepted" else "rejected",
            permitted_by=f"{before.permitted_by}.on_reject" if state == "rejected" else before.permitted_by,
            record=before.record,
        )
        if reason is not None:
            event.reason = reason
        self._journal.tell([event])


def _why_not_now(view: View, task: Task, attempt: Attempt, receiver: str) -> str | None:
    """Why a declared hand-off cannot be offered now; None if it can: a task has one next owner at most."""
    if task.parent_task is not None:
        return f"your task is a part of that of {task.parent_task}, which alone may hand it over"
    if has_handed_over(view, attempt):
        return "you have handed over your result already"
    for _, each in view.plan.offers_of(task.member):
        if each.receiver != receiver and view.offer_to(each.receiver) == task.task_id:
            return f"{each.receiver} has not answered yet: it may still accept"
    return None


def _record(view: View, task: Task, attempt: Attempt, asked: HandOff) -> HandoffRecord:
    receiver = view.plan.members[asked.to]
    is_reserved = view.has_open_account(receiver.id)  # else it will be, for the attempt that is asked
    return HandoffRecord(
        contract="\n\n".join(text for text in (view.plan.manifest.contract, task.contract) if text),
        summary=asked.summary,
        reason=asked.reason,
        source_revision=attempt.revision,
        plan_epoch=view.epoch_of(attempt),
        receipts=[each.receipt_id for each in view.state.receipts_of(view.revision)],
        pending_effects=list(asked.pending_effects),
        rest=view.state.ledger.rest(receiver.id) if is_reserved else receiver.budget.limits(),
        authority=[*(grant.tool for grant in receiver.capabilities.grants), *receiver.writes],
    )
