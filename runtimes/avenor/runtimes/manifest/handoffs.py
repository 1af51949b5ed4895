"""Hand-offs: one owner's control ends where another's begins, and not before that one has accepted it."""

from collections.abc import Callable, Mapping

from avenor.protocol.manifest.events import HandoffEvent, HandoffRecord
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolReply
from avenor.runtimes.manifest.membertools import HandOff, RejectHandoff
from avenor.runtimes.manifest.view import View


class Handoffs:
    """The hand-offs of a run.

    Args:
        journal: Takes what is decided.
        look: The run at this moment.
        live: The attempts that go on, by id.
    """

    def __init__(self, journal: Journal, look: Callable[[], View], live: Mapping[str, LiveAttempt]) -> None:
        self._journal = journal
        self._look = look
        self._live = live

    async def offer(self, task: Task, attempt: Attempt, asked: HandOff) -> ToolReply:
        """Offers ownership, and waits for the answer; until it is accepted, it stays where it is."""
        view = self._look()
        declared = {each.receiver: index for index, each in view.plan.offers_of(task.member)}
        if asked.to not in declared:
            return ToolReply(
                f"you may hand over to {', '.join(declared) or 'nobody'}, not to {asked.to}", is_error=True
            )
        if view.was_handed_to(asked.to):
            return ToolReply(f"{asked.to} has accepted a hand-off already", is_error=True)
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
        sent_by = self._look().state.tasks[sender].latest
        if sent_by is not None and (live := self._live.get(sent_by.attempt_id)) is not None:
            live.handed_to = task.task_id
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


def _record(view: View, task: Task, attempt: Attempt, asked: HandOff) -> HandoffRecord:
    receiver = view.plan.members[asked.to]
    return HandoffRecord(
        contract="\n\n".join(text for text in (view.plan.manifest.contract, task.contract) if text),
        summary=asked.summary,
        reason=asked.reason,
        source_revision=attempt.revision,
        plan_epoch=view.epoch_of(attempt),
        receipts=[each.receipt_id for each in view.state.receipts_of(view.revision)],
        pending_effects=list(asked.pending_effects),
        rest=view.state.ledger.rest(receiver.id),
        authority=[*(grant.tool for grant in receiver.capabilities.grants), *receiver.writes],
    )
