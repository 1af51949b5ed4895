"""The single run: one session, a prompt, then whatever prompts are queued behind it."""

import time

import trio

from avenor.protocol.methods import RunResult
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import Record
from avenor.runtimes.attempts import run_prompt
from avenor.runtimes.conversations import Conversation
from avenor.runtimes.host import RunHost, Talk
from avenor.runtimes.prompts import CONTINUE, Prompt
from avenor.runtimes.replay import PastTalk
from avenor.runtimes.turns import TurnResult, past_turn


async def run_single(config: Record, host: RunHost) -> Outcome:
    """Runs the record's prompt and all that follow it; returns what the run came to.

    The run ends when its queue is empty or, if the record says that it parks, when a cause ends it while it is parked,
    or nobody has sent a prompt for as long as it may wait.
    """
    first = Prompt(text=config.prompt, source="run")
    past = None if host.past is None else host.past.whole
    async with host.open_conversation(_talk(host, first, past)) as conversation:
        run = _SingleRun(config, host, conversation)
        return await run.converse(first) if past is None else await run.go_on(first, past)


def _talk(host: RunHost, first: Prompt, past: PastTalk | None) -> Talk:
    resume = host.record.spec.resume
    if past is None or not past.session_id:
        return host.whole(resume=resume)
    # What was never answered can be said anew. Anything else must not be lost, not even by a fresh start.
    has_history = past.has_history or resume is not None
    return host.whole(resume=past.session_id, anew=None if has_history else lambda: first)


class _SingleRun:
    def __init__(self, config: Record, host: RunHost, conversation: Conversation) -> None:
        self._config = config
        self._host = host
        self._conversation = conversation

    async def converse(
        self, prompt: Prompt, *, attempt: int = 1, ended: TurnResult | None = None, wait_seconds: float = 0.0
    ) -> Outcome:
        """Says this after so long, unless this attempt at it has ended already, then whatever follows it."""
        while True:
            result = await self._say(prompt, attempt, ended, wait_seconds)
            # Until the outcome is settled nothing awaits, so that no prompt is accepted into a run that has ended.
            following = self._following(result)
            if following is None and self._host.is_parked:
                following = await self._wait_parked()
            if following is None:
                return self._host.settle(self._outcome(result))
            if not result.is_session_usable:
                await self._conversation.close()
            prompt, attempt, ended, wait_seconds = following, 1, None, 0.0

    async def go_on(self, first: Prompt, past: PastTalk) -> Outcome:
        """Goes on where the process before this one was lost."""
        interrupting = self._host.inboxes.next.prompts.take_nowait() if past.was_interrupted else None
        if interrupting is not None:
            return await self.converse(interrupting)
        if past.is_cut:
            return await self.converse(CONTINUE, attempt=past.attempt)
        if past.is_retrying:
            wait_seconds = past.wait_seconds(time.time_ns() // 1_000_000)
            return await self.converse(past.prompt or first, attempt=past.attempt, wait_seconds=wait_seconds)
        if past.last is None:
            return await self.converse(first)
        ended = past_turn(past.last)
        self._host.result = RunResult(final_output=ended.final_output, stop_reason=ended.stop_reason)
        return await self.converse(past.prompt or first, attempt=past.attempt, ended=ended)

    async def _say(self, prompt: Prompt, attempt: int, ended: TurnResult | None, wait_seconds: float) -> TurnResult:
        with self._host.inboxes.next.current_prompt() as interrupted:
            return await run_prompt(
                self._conversation,
                prompt,
                plan=self._host.retry_plan,
                log=self._host.log,
                ending=self._host.ending,
                interrupted=interrupted,
                queued=lambda: self._host.inboxes.waiting,
                finishing=self._finish_turn,
                attempt=attempt,
                ended=ended,
                wait_seconds=wait_seconds,
            )

    async def _finish_turn(self, result: TurnResult) -> None:
        """Decides, before the end of a clean turn is told, whether the run parks or ends with it."""
        self._host.result = RunResult(final_output=result.final_output, stop_reason=result.stop_reason)
        if not result.is_clean or self._host.inboxes.waiting:
            return
        if self._config.parks:
            await self._host.park(self._outcome(result))
        else:
            self._host.settle(self._outcome(result))

    def _following(self, result: TurnResult) -> Prompt | None:
        """The next prompt, if one waits and this result lets the run go on."""
        if result.is_clean or result.is_session_usable or result.was_interrupted:
            return self._host.inboxes.next.prompts.take_nowait()
        return None

    async def _wait_parked(self) -> Prompt | None:
        """Waits for a prompt; None when the run is to end."""
        timeout = self._config.parked_timeout or float("inf")
        with self._host.ending.interruptible(), trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_when_lost)
                await self._host.inboxes.next.prompts.wait_arrival()
                nursery.cancel_scope.cancel()
        return self._host.inboxes.next.prompts.take_nowait()

    async def _close_when_lost(self) -> None:
        """An agent that dies while nobody waits for it is opened again by the next prompt."""
        how = await self._conversation.wait_lost()
        await self._conversation.close(error=f"the agent ended while the run was parked: {how}")

    def _outcome(self, result: TurnResult) -> Outcome:
        return Outcome.of(
            result.stop_reason,
            run_id=self._config.run_id,
            session_id=self._conversation.session_id,
            reason=None if result.failure is None else result.failure.message,
        )
