"""Carries out what the scheduler decides, in one nursery, until the run has its terminal state and nothing goes on."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from avenor.protocol.manifest.events import EndWord
from avenor.runtimes.host import RunHost
from avenor.runtimes.manifest.actions import Action, Ask, Cancel, Doing, Reconcile, RunReceipts, Start, Tell
from avenor.runtimes.manifest.asking import ask_about
from avenor.runtimes.manifest.attempts import LiveAttempt, Setting
from avenor.runtimes.manifest.finishing import finish, reconcile
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.metering import Metering
from avenor.runtimes.manifest.plan import Plan
from avenor.runtimes.manifest.receipts import run_receipts
from avenor.runtimes.manifest.scheduler import decide, next_look_ms
from avenor.runtimes.manifest.services import Bench, DeskLike, Workshop
from avenor.runtimes.manifest.toolbox import Tools
from avenor.runtimes.manifest.view import View
from avenor.runtimes.sinks import Policy

_ENDINGS: Final[dict[str, EndWord]] = {"timeout": "timed_out", "progress_timeout": "timed_out"}

Work = Callable[[], Awaitable[None]]
MakePolicy = Callable[[Journal, Metering, LiveAttempt, Bench], Policy]


class Crew:
    """The one who acts: the scheduler decides, the crew tells it and does it.

    Args:
        host: The run.
        plan: What is declared.
        journal: Its state.
        workshop: Worktrees, sandboxes, and git.
        make_policy: Makes what answers an attempt's questions by rule.

    Attributes:
        doing: What goes on.
        live: The attempts that go on, by id.
        metering: Charges what they use.
        tools: What avenor offers them.
    """

    def __init__(
        self,
        host: RunHost,
        plan: Plan,
        journal: Journal,
        workshop: Workshop,
        *,
        make_policy: MakePolicy,
    ) -> None:
        self.doing = Doing()
        self.live: dict[str, LiveAttempt] = {}
        self.metering = Metering(plan, journal, self._note_refused)
        self.tools = Tools(journal, self.metering, workshop, self.look, self.live)
        self._host = host
        self._plan = plan
        self._journal = journal
        self._workshop = workshop
        self._make_policy = make_policy
        self._asides: set[trio.CancelScope] = set()

    def look(self) -> View:
        """The run at this moment."""
        journal = self._journal
        now_ms = journal.clock.now_ms()
        return View(self._plan, journal.state, self.doing, now_ms, journal.pauses.total_ms(now_ms))

    async def work(self, desk: DeskLike) -> None:
        """Does all there is to do; returns when the run has its terminal state, and nothing goes on any more."""
        setting = Setting(
            host=self._host,
            journal=self._journal,
            metering=self.metering,
            workshop=self._workshop,
            desk=desk,
            look=self.look,
            make_policy=lambda live, bench: self._make_policy(self._journal, self.metering, live, bench),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_ending)
            while True:
                self._decide(setting, nursery)
                if self._journal.state.end is not None and self.doing.is_idle:
                    break
                await self._wait()
            nursery.cancel_scope.cancel()

    def _note_refused(self, attempt_id: str) -> None:
        """An attempt that has handed over and can do nothing more need not go on trying."""
        if (live := self.live.get(attempt_id)) is not None:
            live.end_if_handed_over()

    async def _watch_ending(self) -> None:
        """A cause from outside is the run's terminal state; it is told by the host before anything is cancelled."""
        await self._host.ending.wait_decided()
        self._journal.wake()

    def _tell_cause(self) -> None:
        cause = self._host.ending.cause
        if cause is not None and self._journal.state.end is None:
            word = _ENDINGS.get(cause.stop_reason, "cancelled")
            field = "run.terminal_states" if word == "timed_out" else "cancellation.parent_cancel"
            self._journal.tell(self.look().end(word, field, cause.reason).events)

    def _decide(self, setting: Setting, nursery: trio.Nursery) -> None:
        """Asks the scheduler until it has nothing more to say; each answer is told before it is acted upon."""
        self._tell_cause()
        while actions := decide(self.look()):
            for action in actions:
                self._journal.tell(action.events)
                self._act(action, setting, nursery)
        if self._journal.state.end is not None:
            self._host.conclude()  # from here on no other cause counts
            for scope in list(self._asides):
                scope.cancel()

    def _act(self, action: Action, setting: Setting, nursery: trio.Nursery) -> None:
        match action:
            case Tell():
                pass
            case Start():
                self._start(action, setting, nursery)
            case Cancel():
                self._cancel(action)
            case Reconcile():
                task = self._journal.state.task_of(action.attempt_id)
                assert task is not None
                attempt = task.attempts[-1]
                self._go(nursery, self.doing.reconciling, attempt.attempt_id, lambda: reconcile(setting, task, attempt))
            case RunReceipts():
                revision = action.revision
                self._go(nursery, self.doing.receipts, revision, self._aside(lambda: run_receipts(setting, revision)))
            case Ask():
                join_id = action.join_id
                self._go(nursery, self.doing.asking, join_id, self._aside(lambda: ask_about(setting, join_id)))
            case _:
                raise AssertionError(action)

    def _start(self, action: Start, setting: Setting, nursery: trio.Nursery) -> None:
        task = self._journal.state.tasks[action.task_id]
        attempt = task.attempts[-1]
        live = self.live[attempt.attempt_id] = LiveAttempt(setting, task, attempt)

        async def run() -> None:
            began = trio.current_time()
            try:
                await live.talk()
            finally:
                self.live.pop(attempt.attempt_id, None)
            await finish(setting, task, attempt, live, trio.current_time() - began)

        self._go(nursery, self.doing.attempts, attempt.attempt_id, run)

    def _cancel(self, action: Cancel) -> None:
        self.doing.cancelling.add(action.attempt_id)
        live = self.live.get(action.attempt_id)
        if live is not None:
            live.stop(action.why, action.reason)

    def _go(self, nursery: trio.Nursery, among: set[str], key: str, do: Work) -> None:
        """Does something in the background; it is known to go on before it begins, and no longer when it is over."""
        among.add(key)

        async def run() -> None:
            try:
                await do()
            finally:
                among.discard(key)
                self.doing.cancelling.discard(key)
                self._journal.wake()

        nursery.start_soon(run)

    def _aside(self, do: Work) -> Work:
        """Something that is given up as soon as the run has its terminal state."""

        async def run() -> None:
            with trio.CancelScope() as scope:
                self._asides.add(scope)
                try:
                    await do()
                finally:
                    self._asides.discard(scope)

        return run

    async def _wait(self) -> None:
        """Waits for a change, or for the moment at which time alone may change what is decided."""
        at_ms = next_look_ms(self.look())
        with trio.move_on_at(float("inf") if at_ms is None else self._journal.clock.at(at_ms)):
            await self._journal.wait_change()
