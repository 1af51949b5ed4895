"""The tools by which a member gives out work: sub-contracts for declared members, and workers out of its own budget."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import UNSET

from avenor.protocol.event_base import Event
from avenor.protocol.manifest.amounts import UNITS, Limits, Unit, limits_of
from avenor.protocol.manifest.binding import BoundMember
from avenor.protocol.manifest.ledger import Exhausted
from avenor.protocol.manifest.model import MAX_DELEGATION_DEPTH
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.manifest.attempts import LiveAttempt
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolReply
from avenor.runtimes.manifest.membertools import CancelWorker, CreateTask, StartWorker
from avenor.runtimes.manifest.scheduler import unusable
from avenor.runtimes.manifest.view import View


class Workers:
    """Gives out work.

    Args:
        journal: Takes what is decided.
        look: The run at this moment.
        live: The attempts that go on, by id.
    """

    def __init__(self, journal: Journal, look: Callable[[], View], live: Mapping[str, LiveAttempt]) -> None:
        self._journal = journal
        self._look = look
        self._live = live

    def create_task(self, caller: Task, asked: CreateTask, field: str) -> ToolReply:
        """Fills the sub-contract of a declared member that has not started yet."""
        view = self._look()
        task = view.state.tasks.get(asked.member)
        if task is None or asked.member not in view.plan.graph.nodes:
            return _refused(f"there is no member {asked.member} to be scheduled; there are {_names(view, caller)}")
        if task.task_id == caller.task_id or task.attempts:
            return _refused(f"{asked.member} has been started already: its contract stands")
        event = view.tell_task(task, "created", field)
        event.contract = asked.contract
        event.paths = list(asked.paths)
        self._journal.tell([event])
        return ToolReply(f"{asked.member} has its contract. The scheduler starts it when what it depends on is done.")

    async def start(self, caller: Task, attempt: Attempt, asked: StartWorker, field: str) -> ToolReply:
        """Starts a worker out of the caller's rest; refused, and nothing has begun, where that does not reach."""
        view = self._look()
        member = view.plan.members.get(asked.member)
        why = _why_no_worker(view, caller, member, asked.member)
        if why is not None or member is None:
            return _refused(why or asked.member)
        task = Task(
            task_id=_free_id(view, member.id), member=member.id, parent_task=caller.task_id, depth=caller.depth + 1
        )
        permitted_by = f"{member.field}.callable_by" if member.callable_by else field
        limits = _limits(view, caller, member, asked)
        reserved = unusable(caller.task_id, limits) or view.state.ledger.reserve(
            task.task_id, caller.task_id, limits, permitted_by=permitted_by
        )
        if isinstance(reserved, Exhausted):
            blocked: list[Event] = [view.state.ledger.block(reserved, attempt_id=attempt.attempt_id)]
            self._journal.tell(blocked)
            return _refused(f"budget_exhausted: {reserved}. Ask for less, or do it yourself")
        if asked.budget is not UNSET and asked.budget.seconds is not UNSET:
            view.doing.asked_seconds[task.task_id] = asked.budget.seconds
        created = view.tell_task(task, "created", permitted_by)
        created.contract = asked.contract
        created.paths = list(asked.paths)
        self._journal.tell([created, reserved])
        return await self._wait(task.task_id) if asked.wait else ToolReply(f"Started as {task.task_id}.")

    async def cancel(self, caller: Task, asked: CancelWorker) -> ToolReply:
        """Ends a worker that the caller has started."""
        view = self._look()
        task = view.state.tasks.get(asked.task_id)
        if task is None or task.parent_task != caller.task_id:
            started = ", ".join(each.task_id for each in view.state.children_of(caller.task_id)) or "none"
            return _refused(f"you have started no worker {asked.task_id}; there are: {started}")
        if task.is_finished:
            return _refused(f"{task.task_id} has ended already: it is {task.state}")
        if task.latest is not None and (live := self._live.get(task.latest.attempt_id)) is not None:
            live.stop("cancelled", asked.reason)
        else:
            cancelled = view.tell_task(task, "cancelled", "cancellation.parent_cancel", reason=asked.reason)
            self._journal.tell([cancelled])
        return ToolReply(f"{task.task_id} is being cancelled.")

    async def _wait(self, task_id: str) -> ToolReply:
        """What the worker has come to, once it has ended."""
        while not (task := self._look().state.tasks[task_id]).is_finished:
            await self._journal.wait_change()
        latest = task.latest
        if task.state != "done" or task.result is None:
            reason = "" if latest is None else latest.reason
            return _refused(f"{task_id} has {task.state.replace('_', ' ')}, and no result counts: {reason}")
        return ToolReply(msgspec.json.encode({"task_id": task_id, "result": task.result}).decode())


def _why_no_worker(view: View, caller: Task, member: BoundMember | None, name: str) -> str | None:
    """Why a member cannot be started as a worker by this task; None if it can."""
    if member is None:
        return f"there is no member {name}; there are {_names(view, caller)}"
    if caller.depth >= MAX_DELEGATION_DEPTH:
        return f"you are {caller.depth} deep already, and nobody delegates deeper than {MAX_DELEGATION_DEPTH}"
    if member.is_writer:
        return f"{name} writes: nobody starts a writer but the scheduler"
    if member.callable_by:
        return None if caller.member in member.callable_by else f"{name} is callable by {', '.join(member.callable_by)}"
    if member.id in (caller.member, view.plan.evaluator):
        return f"{name} is started by the scheduler alone"
    return None


def _limits(view: View, caller: Task, member: BoundMember, asked: StartWorker) -> Limits:
    """What a worker gets: what was asked for, else its member's own budget, or what its caller has left of that."""
    rest, own = view.state.ledger.rest(caller.task_id), member.budget.limits()
    values: dict[Unit, float | None] = {}
    for unit in UNITS:
        given = UNSET if asked.budget is UNSET else getattr(asked.budget, unit)
        if given is not UNSET:
            values[unit] = float(given)
        else:
            known = [each for each in (own.of(unit), rest.of(unit)) if each is not None]
            values[unit] = min(known) if own.of(unit) is not None else None
    return limits_of(values)


def _free_id(view: View, member_id: str) -> str:
    number = 2
    while (task_id := f"{member_id}-{number}") in view.state.tasks or task_id in view.plan.members:
        number += 1
    return task_id


def _names(view: View, caller: Task) -> str:
    return ", ".join(each for each in view.plan.members if each != caller.member)


def _refused(text: str) -> ToolReply:
    return ToolReply(text, is_error=True)
