"""One attempt at a task, from its worktree to what has become of it.

The agent is told its first prompt, may hand over its result by tool or at the end of its message, and is reminded once.
Whatever ends it, its credentials are revoked and its processes are gone before what it came to is told.
"""

from collections.abc import Callable
from typing import Final, Literal

import msgspec
import structlog
import trio

from avenor.host.failpoints import failpoint
from avenor.protocol.configs import ResolvedPhase
from avenor.protocol.errors import AvenorError
from avenor.protocol.events import Event, PhaseStart
from avenor.protocol.manifest.records import NoResult, Result, Verdict, fenced_block, read_result, read_verdict
from avenor.protocol.manifest.state import Attempt, Task
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.conversations import Conversation
from avenor.runtimes.endings import Cause, Ending
from avenor.runtimes.host import RunHost, Talk
from avenor.runtimes.manifest.contexts import first_prompt, reminder
from avenor.runtimes.manifest.desk import Credentials
from avenor.runtimes.manifest.evaluation import names_candidate, tell_verdict
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.leases import keep_lease
from avenor.runtimes.manifest.metering import Metering
from avenor.runtimes.manifest.openings import Opening
from avenor.runtimes.manifest.results import has_handed_over, tell_invalid, tell_result
from avenor.runtimes.manifest.services import Bench, DeskLike, Workshop
from avenor.runtimes.manifest.toolwatch import ToolWatch
from avenor.runtimes.manifest.view import NO_PROGRESS, OVER_BUDGET, VIOLATION, View
from avenor.runtimes.phase_marks import PhaseMark, Scope
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.retries import Failure
from avenor.runtimes.sinks import Policy
from avenor.runtimes.turns import TurnResult

StopWord = Literal["cancelled", "timed_out", "lost", "no_progress", "budget_exhausted", "violation", "handed_over"]
_CAUSES: Final[dict[StopWord, str]] = {"timed_out": "timeout", "handed_over": "handed_over"}
_NO_MCP: Final = "unsupported_mcp"
_NOT_ACCEPTED: Final = "you have not accepted the task that was handed to you"

_logger: Final = structlog.get_logger()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt works with.

    Attributes:
        look: The run at this moment.
        make_policy: Makes what answers an attempt's questions by rule.
    """

    host: RunHost
    journal: Journal
    metering: Metering
    workshop: Workshop
    desk: DeskLike
    look: Callable[[], View]
    make_policy: Callable[["LiveAttempt", Bench], Policy]


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What has ended an attempt from outside its work."""

    word: StopWord
    reason: str


class LiveAttempt:
    """An attempt that goes on.

    Args:
        setting: What it works with.
        task: What it is at.
        attempt: As it was told.

    Attributes:
        stopped: What has ended it; None if nothing did.
        failure: Why its agent could not go on, where it could not.
        refused_handoff: Why it has rejected the hand-off that it was started for.
        said_blocked: The label with which its agent has said that it cannot go on; None if it did not.
        session_id: Of its agent.
    """

    def __init__(self, setting: Setting, task: Task, attempt: Attempt) -> None:
        self.task_id = task.task_id
        self.attempt_id = attempt.attempt_id
        self.member = setting.look().plan.members[task.member]
        self.stopped: Stopped | None = None
        self.failure: Failure | None = None
        self.refused_handoff: str | None = None
        self.said_blocked: str | None = None
        self.session_id = ""
        self.opened = trio.Event()
        phase = ResolvedPhase(name=task.task_id, kind="member")
        self.mark = PhaseMark(phase, Scope(), 0, attempt.number)
        self._setting = setting
        self._task = task
        self._attempt = attempt
        self._ending: Ending | None = None
        self._tools = ToolWatch()
        self._mistake: str | None = None
        self._is_paid = False

    # ---- for those who steer

    def stop(self, word: StopWord, reason: str) -> None:
        """Ends the attempt; the first cause counts. The agent is asked, and made to after the declared grace."""
        if self.stopped is not None:
            return
        self.stopped = Stopped(word=word, reason=reason)
        if self._ending is not None:
            self._ending.decide(Cause(stop_reason=_CAUSES.get(word, "cancelled"), reason=reason))

    @property
    def not_its_task(self) -> str | None:
        """Whose the task is, where it was handed over or not taken: nothing that it says of it counts."""
        if self._attempt.handed_to is not None:
            return f"the task is {self._attempt.handed_to}'s now"
        return None if self.refused_handoff is None else "you have rejected the task"

    @property
    def is_considering(self) -> bool:
        """Whether it has yet to accept or reject the hand-off that it was started for: the task is another's."""
        return self.refused_handoff is None and self._setting.look().awaits_handoff(self._task)

    def end_if_handed_over(self) -> None:
        """Ends an attempt whose work is done; nothing of what it has handed over is touched."""
        if not self._owes:
            self.stop("handed_over", "it has handed over, and has no budget left")

    def submit(self, result: Result, source: Literal["tool", "message"]) -> str | None:
        """Takes a result; returns why it does not count, None if it does."""
        whose = self.not_its_task or (_NOT_ACCEPTED if self.is_considering else None)
        event = tell_result(self._setting.look(), self._task, self._attempt, result, source, not_its_task=whose)
        told: list[Event] = [event]
        if event.status == "accepted":
            view = self._setting.look()
            told.append(view.tell_task(self._task, "submitted", event.permitted_by, attempt=self._attempt))
        self._setting.journal.tell(told)
        return None if event.status == "accepted" else f"{event.status}: {event.reason}"

    def judge(self, verdict: Verdict) -> str | None:
        """Takes the evaluator's verdict; returns why it does not count, None if it does."""
        view = self._setting.look()
        if self.member.id != view.plan.evaluator:
            return "only the owner of the evaluation has a verdict"
        if self._attempt.is_over or self.stopped is not None:
            return f"late: {self.attempt_id} is over"
        if not view.counts_now(self._task, self._attempt):
            return f"the plan epoch is {view.state.plan_epoch} now, and {self.attempt_id} was begun before"
        if view.verdict_of(self._attempt) is not None:
            return "there is a verdict of this attempt already"
        if not names_candidate(view, verdict.revision):
            return f"the candidate is {view.revision}, and this is a verdict on {verdict.revision}"
        self._setting.journal.tell([tell_verdict(view, self._attempt, verdict)])
        return None

    def note(self, event: Event) -> None:
        """Takes an event of the session: work that comes to the same again and again ends the attempt."""
        title = self._tools.note(event)
        if title is not None:
            self.stop("no_progress", f"{NO_PROGRESS}: {title!r} came to the same three times")

    # ---- its life

    async def talk(self) -> None:
        """Everything up to the moment at which the agent is gone."""
        setting = self._setting
        with setting.host.ending.part() as ending:
            self._ending = ending
            if self.stopped is not None:
                ending.decide(Cause(stop_reason="cancelled", reason=self.stopped.reason))
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_deadline)
                    nursery.start_soon(self._enforce, ending, nursery.cancel_scope)
                    await self._work(ending)
                    nursery.cancel_scope.cancel()
            except* AvenorError as errors:
                first = _first(errors)
                self.failure = Failure(message=first.message, permanent=not first.retryable)
            finally:
                setting.desk.revoke(self.attempt_id)
            if self.stopped is None and ending.cause is not None:
                word: StopWord = "timed_out" if ending.cause.stop_reason == "timeout" else "cancelled"
                self.stopped = Stopped(word=word, reason=ending.cause.reason)

    async def _watch_deadline(self) -> None:
        view, clock = self._setting.look(), self._setting.journal.clock
        if self._attempt.deadline_ms is None:
            return
        await trio.sleep_until(clock.at(self._attempt.deadline_ms - view.grace_ms))
        self.stop("timed_out", "its time is over, but for what it has to end in")

    async def _enforce(self, ending: Ending, scope: trio.CancelScope) -> None:
        """What does not end when it is asked to loses its credentials and its processes."""
        await ending.wait_decided()
        await trio.sleep(self._setting.look().plan.manifest.cancellation.grace_seconds)
        self._setting.desk.revoke(self.attempt_id)
        scope.cancel()

    async def _work(self, ending: Ending) -> None:
        setting = self._setting
        bench = await setting.workshop.open(self.attempt_id, self.member, self._attempt.revision)
        credentials = setting.desk.admit(self.attempt_id, self.member.profile.endpoint)
        failpoint("manifest.attempt_opened")
        text = await first_prompt(setting.look(), setting.workshop, self._task, self._attempt, bench.directory)
        turn = await self._converse(ending, bench, credentials, text)
        if turn is not None and turn.stop_reason == _NO_MCP:  # what it hands over, it then says
            await self._converse(ending, bench, credentials, text, offers_tools=False)

    async def _converse(
        self, ending: Ending, bench: Bench, credentials: Credentials, text: str, *, offers_tools: bool = True
    ) -> TurnResult | None:
        setting = self._setting
        opening = Opening(
            self.member,
            self._attempt,
            bench,
            credentials,
            setting.host.record.spec,
            setting.look().plan,
            offers_tools=offers_tools,
        )
        policy = setting.make_policy(self, bench)
        talk = Talk(
            spec=opening.spec(),
            ending=ending,
            end=self._end,
            opened=self._tell_start,
            mark=self.mark.put_on,
            is_alone=False,
            policy=_Watched(policy, self),
            shape=opening.shape,
        )
        async with setting.host.open_conversation(talk) as conversation, trio.open_nursery() as nursery:
            nursery.start_soon(keep_lease, setting.journal, self._attempt, conversation, self.opened)
            turn = await self._say(conversation, text)
            if turn is not None and self._is_owing(turn):
                await self._say(conversation, self._reminder())
            nursery.cancel_scope.cancel()
        return turn

    async def _say(self, conversation: Conversation, text: str) -> TurnResult | None:
        setting = self._setting
        is_metered = self.member.profile.endpoint is not None
        if not is_metered and not self._is_paid and setting.metering.may_prompt(self.attempt_id) is not None:
            return None
        turn = await conversation.turn(
            Prompt(text=text, source="run"), interrupted=trio.Event(), queued=lambda: 0, finishing=_nothing_more
        )
        self.failure = turn.failure
        self._is_paid = turn.stop_reason == _NO_MCP  # nobody has heard it yet
        if turn.usage is not None and not is_metered:
            setting.metering.reported(self.attempt_id, turn.usage)
        aborts = [each for each in turn.directives if each.kind == "abort"]
        if aborts:
            self.said_blocked = aborts[0].label or "it has not said by what"
        self._take_message(turn.final_output)
        return turn

    def _take_message(self, text: str) -> None:
        """What the agent hands over at the end of its message, where it has not used the tool."""
        block = fenced_block(text)
        if block is None or not (self._owes or self.not_its_task is not None):
            return
        try:
            if self.member.id == self._setting.look().plan.evaluator:
                self._mistake = self.judge(read_verdict(block))
            else:
                self._mistake = self.submit(read_result(block), "message")
        except NoResult as error:
            self._mistake = str(error)
            self._setting.journal.tell([tell_invalid(self._task, self._attempt, self._mistake)])

    @property
    def _owes(self) -> bool:
        view = self._setting.look()
        if self.not_its_task is not None:
            return False
        if self.member.id == view.plan.evaluator:
            return view.verdict_of(self._attempt) is None
        return not has_handed_over(view, self._attempt)

    def _is_owing(self, turn: TurnResult) -> bool:
        """Whether it is worth asking once more for what was not handed over."""
        if self.stopped is not None or not turn.is_session_usable or self.said_blocked is not None or not self._owes:
            return False
        if not self._setting.look().counts_now(self._task, self._attempt):
            return False
        return self._setting.metering.may_go_on(self.attempt_id)

    def _reminder(self) -> str:
        text = reminder(self._setting.look(), self.member)
        return text if self._mistake is None else f"{text}\nWhat you have handed over cannot be used: {self._mistake}"

    def _end(self, cause: Cause) -> bool:
        """Something in the turn ends it, as an agent that is silent for too long."""
        is_first = self.stopped is None
        self.stop("lost", cause.reason)
        return is_first

    def _tell_start(self, session_id: str) -> None:
        if self.session_id:
            return
        self.session_id = session_id
        start = self.mark.put_on(PhaseStart())
        start.session_id = session_id
        self._setting.host.log.emit(start)
        self.opened.set()

    def tell_unopened(self) -> None:
        """It ends and never had a session."""
        self._setting.host.log.emit(self.mark.put_on(PhaseStart()))

    def violated(self, why: str) -> None:
        """It has used what it may not use, without asking."""
        self.stop("violation", f"{VIOLATION}: {why}")

    def over_budget(self, why: str) -> None:
        """It has gone beyond what it may use without asking."""
        self.stop("budget_exhausted", why if why.startswith(OVER_BUDGET) else f"{OVER_BUDGET}: {why}")


class _Watched:
    """The policy of an attempt, which also watches what its tools come to."""

    def __init__(self, policy: Policy, live: LiveAttempt) -> None:
        self._policy = policy
        self._live = live

    def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        return self._policy.answer(ask)

    def note(self, event: Event) -> None:
        self._policy.note(event)
        self._live.note(event)


async def _nothing_more(_turn: TurnResult) -> None:
    """A turn that ends decides nothing by itself."""


def _first(group: BaseExceptionGroup[AvenorError]) -> AvenorError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
