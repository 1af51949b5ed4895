"""One phase of a loop or team: its prompt, its session, its turns, its markers and its retries.

A phase stands when nothing more will be said in it: its own prompt and all that were queued behind it have run, and no
attempt follows. That is decided without an await, so that a prompt of a client is either sent in it, kept for the next
phase, or refused. Only then is its agent ended, and its end told.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog
import trio
from msgspec import UNSET, UnsetType

from avenor.host.failpoints import failpoint
from avenor.protocol.configs import ResolvedPhase
from avenor.protocol.events import PhaseEnd, PhaseStart
from avenor.protocol.markers import Directive, DirectiveKind, most_severe
from avenor.protocol.outcomes import ExitCode
from avenor.protocol.spec import RunSpec
from avenor.protocol.templates import TemplateError, parse_template
from avenor.runtimes.conversations import Conversation
from avenor.runtimes.endings import Ending
from avenor.runtimes.gitdelta import GitDelta, GitDeltas, GitMark, GitPast
from avenor.runtimes.host import RunHost, Talk
from avenor.runtimes.inboxes import Inbox
from avenor.runtimes.phase_marks import PhaseMark, Scope
from avenor.runtimes.prompts import CONTINUE, Prompt
from avenor.runtimes.replay import Key, PastTalk
from avenor.runtimes.retries import Failure, should_retry
from avenor.runtimes.turns import TurnResult, past_failure, past_turn

_logger: Final = structlog.get_logger()


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a phase ended.

    Attributes:
        stop_reason: Of its last turn, or of what kept it from having one.
        exit_code: What that means; 0 is clean.
        session_id: Of its last attempt, empty if there was none.
        final_output: Of its last turn; of a nested run, what that came to.
        failure: Why it failed, where it did.
        was_cut: What it is part of has ended before it.
        abort: The marker that blocks the run.
        exit: The marker that ends the loop which the phase belongs to.
        skips: The names of the members that it skipped.
        mark: The repository when it ended; None where there is none.
    """

    stop_reason: str
    exit_code: int
    session_id: str = ""
    final_output: str = ""
    failure: Failure | None = None
    was_cut: bool = False
    abort: Directive | None = None
    exit: Directive | None = None
    skips: list[str] = []
    mark: GitMark | None = None

    @property
    def is_clean(self) -> bool:
        """Whether what comes next may come."""
        return self.exit_code == ExitCode.OK and self.abort is None


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase finds around it.

    Attributes:
        scope: The loop or team that it is part of.
        spec: The agent, the model and the limits that it gets.
        ending: Of that loop or team.
        iteration: From 1 in the loop list, else 0.
        values: What its template can use, the git delta and its name left out.
        addition: Text that follows its prompt as it is.
        past: What the git delta tells of.
        resume: The session that it goes on with.
        is_alone: No other phase runs beside it.
        skippable: The conditional members, by their names in lower case.
        stands: Told once its result stands; returns whether another phase may follow in the whole run.
    """

    scope: Scope
    spec: RunSpec
    ending: Ending
    stands: Callable[[PhaseResult], bool]
    iteration: int = 0
    values: Mapping[str, str | int] = {}
    addition: str = ""
    past: GitPast = GitPast()
    resume: str | None = None
    is_alone: bool = True
    skippable: Mapping[str, str] = {}


async def run_phase(
    host: RunHost, git: GitDeltas, phase: ResolvedPhase, around: Around, *, inbox: Inbox | None = None
) -> PhaseResult:
    """Runs a phase that has a prompt, with as many attempts as the run allows.

    Args:
        host: The run.
        git: Tells what has changed in the repository.
        phase: What to do.
        around: What it finds.
        inbox: Where prompts for it wait; opened already when it starts beside others.
    """
    past = host.past_of(Key.of(around.scope, phase.name, around.iteration))
    if inbox is None:
        inbox = open_inbox(host, phase, around, host.inboxes.next.prompts.take_all())
    try:
        return await _Phase(host, git, phase, around, inbox).run(past)
    finally:
        host.inboxes.close(inbox)


def open_inbox(host: RunHost, phase: ResolvedPhase, around: Around, waiting: Sequence[Prompt]) -> Inbox:
    """An inbox for the phase, which gets what clients say from now on.

    Args:
        host: The run.
        phase: The phase.
        around: What it finds.
        waiting: What clients have said before it, and nobody has heard.
    """
    inbox = Inbox(PhaseMark(phase, around.scope, around.iteration).put_on)
    past = host.past_of(Key.of(around.scope, phase.name, around.iteration))
    for prompt in [*waiting, *(() if past is None else past.queued)]:
        inbox.add(prompt)
    host.inboxes.open(inbox)
    return inbox


class _Phase:
    def __init__(self, host: RunHost, git: GitDeltas, phase: ResolvedPhase, around: Around, inbox: Inbox) -> None:
        self._host = host
        self._git = git
        self._phase = phase
        self._around = around
        self._inbox = inbox
        self._sent: list[Prompt] = []
        self._stands = False

    async def run(self, past: PastTalk | None) -> PhaseResult:
        """Runs it, or goes on with what an earlier process of the run has left of it."""
        try:
            text = await self._render()
        except TemplateError as error:
            return await self._refuse(Failure(message=f"template: {error}", permanent=True))
        attempt = 1 if past is None else past.attempt
        if past is not None:
            self._sent += past.sent
            if not past.has_started:
                with self._around.ending.interruptible():
                    await trio.sleep(past.wait_seconds(time.time_ns() // 1_000_000))
        while True:
            mark = PhaseMark(self._phase, self._around.scope, self._around.iteration, attempt)
            begun, past = past if past is not None and past.has_started else None, None
            result = await _Attempt(self._host, self._phase, self._around, mark, self, begun).run(text)
            result = await self._end(result, mark)
            if self._stands:
                return result
            if not await self._wait(result, mark, attempt):
                result = msgspec.structs.replace(result, was_cut=True)
                self._stand(result)
                return result
            attempt += 1

    @property
    def inbox(self) -> Inbox:
        """Where prompts for the phase wait."""
        return self._inbox

    def next_prompt(self) -> Prompt | None:
        """What a client wants said now."""
        prompt = self._inbox.prompts.take_nowait()
        if prompt is not None:
            self._sent.append(prompt)
        return prompt

    def say_again(self) -> None:
        """What clients have said was lost with the session; it waits again, unless the run is about to end."""
        if self._inbox.prompts.is_open:
            for prompt in reversed(self._sent):
                self._inbox.prompts.put_first(prompt, keep_queue=True)
        self._sent.clear()

    def judge(self, result: PhaseResult, attempt: int) -> None:
        """An attempt has come to this: stands, if no other follows."""
        if self._around.ending.cause is not None or not should_retry(
            exit_code=result.exit_code,
            failure=result.failure,
            attempt=attempt,
            max_retries=self._host.retry_plan.max_retries,
        ):
            self._stand(result)

    def _stand(self, result: PhaseResult) -> None:
        """The result stands: the phase takes no more prompts, and the run none if nothing follows."""
        if self._stands:
            return
        self._stands = True
        unread = self._host.inboxes.close(self._inbox)
        if not self._around.stands(result) and not self._host.inboxes.has_open:
            self._host.conclude()
        if unread and self._around.ending.cause is None:
            told = f"{len(unread)} accepted prompts were not sent: the phase has failed before them"
            self._host.report("prompts", told)

    async def _render(self) -> str:
        prompt = self._phase.prompt or ""
        if not self._phase.is_literal:
            delta = await self._delta()
            values: dict[str, str | int] = {
                **self._around.values,
                "RunID": self._host.record.run_id,
                "Phase": self._phase.name,
                "WorkDir": self._around.spec.dir,
                "PrevPhaseCommit": delta.prev_commit,
                "DiffStat": delta.diff_stat,
                "ChangedFiles": delta.changed_files,
            }
            prompt = parse_template(prompt, fields=values, name=self._phase.name).render(values)
        return prompt + self._around.addition

    async def _delta(self) -> GitDelta:
        past = self._around.past
        if past.ended is None:
            return GitDelta()
        with self._around.ending.interruptible():
            delta = await self._git.since(past.began)
            return msgspec.structs.replace(delta, prev_commit=past.ended.commit)
        return GitDelta()

    async def _refuse(self, failure: Failure) -> PhaseResult:
        mark = PhaseMark(self._phase, self._around.scope, self._around.iteration)
        self._host.log.emit(mark.put_on(PhaseStart()))
        result = PhaseResult(stop_reason="template_error", exit_code=ExitCode.FAILED, failure=failure)
        self._stand(result)
        return await self._end(result, mark)

    async def _end(self, result: PhaseResult, mark: PhaseMark) -> PhaseResult:
        """Notes what the repository is now, and tells the end."""
        with self._around.ending.interruptible():
            result = msgspec.structs.replace(result, mark=await self._git.mark())
        return await tell_end(self._host, result, mark, is_retried=not self._stands)

    async def _wait(self, result: PhaseResult, mark: PhaseMark, attempt: int) -> bool:
        """Tells of the retry and waits for its time; False if the run ends meanwhile."""
        if self._around.ending.cause is not None:
            return False
        retry = self._host.retry_plan.retry(attempt, result.failure, result.stop_reason)
        self._host.log.emit(mark.put_on(retry))
        self.say_again()
        with self._around.ending.interruptible():
            await trio.sleep(retry.delay_ms / 1000)
        return self._around.ending.cause is None


class _Attempt:
    """One attempt at a phase: a session of its own, the prompt, and what is queued behind it."""

    def __init__(
        self,
        host: RunHost,
        phase: ResolvedPhase,
        around: Around,
        mark: PhaseMark,
        whole: _Phase,
        past: PastTalk | None,
    ) -> None:
        self._host = host
        self._phase = phase
        self._around = around
        self._mark = mark
        self._whole = whole
        self._past = past
        self._directives: list[Directive] = [] if past is None else [*past.directives]
        self._has_started = past is not None

    async def run(self, text: str) -> PhaseResult:
        with self._around.ending.part() as ending:
            resume = self._around.resume if self._past is None else self._past.session_id
            talk = Talk(
                spec=msgspec.structs.replace(self._around.spec, resume=resume),
                ending=ending,
                end=ending.decide,
                opened=self._tell_start,
                mark=self._mark.put_on,
                is_alone=self._around.is_alone,
                anew=None if self._past is None else lambda: self._begin_anew(text),
            )
            async with self._host.open_conversation(talk) as conversation:
                turn = await self._talk(conversation, text)
                result = self._result(turn, conversation.session_id)
                self._whole.judge(result, self._mark.attempt)
            if not self._has_started:
                self._host.log.emit(self._mark.put_on(PhaseStart()))
        return result

    async def _talk(self, conversation: Conversation, text: str) -> TurnResult:
        """Says the phase's own prompt and what waits behind it; returns how the last turn ended.

        After the last turn nothing awaits until the result stands: no prompt is accepted into what has ended.
        """
        first = self._first(text)
        if isinstance(first, TurnResult):
            return first
        prompt = first
        while True:
            with self._whole.inbox.current_prompt() as interrupted:
                turn = await conversation.turn(
                    prompt,
                    interrupted=interrupted,
                    queued=lambda: self._host.inboxes.waiting,
                    finishing=self._note_turn,
                )
            following = self._following(turn)
            if following is None:
                return turn
            if not turn.is_session_usable:  # it has not heard that it was interrupted, or is gone
                await conversation.close()
            prompt = following

    def _first(self, text: str) -> Prompt | TurnResult:
        """What is said first, or how the last turn ended if an earlier process of the run has said all there was."""
        if self._past is not None and self._past.is_cut:
            interrupting = self._whole.next_prompt() if self._past.was_interrupted else None
            return interrupting or CONTINUE
        if self._past is not None and self._past.last is not None:
            turn = past_turn(self._past.last)
            return self._following(turn) or turn
        return Prompt(text=text, source="run")

    def _begin_anew(self, text: str) -> Prompt:
        """The session of an earlier process cannot be restored: the attempt begins once more, and says everything."""
        self._directives.clear()
        self._whole.say_again()
        return Prompt(text=text, source="run")

    async def _note_turn(self, turn: TurnResult) -> None:
        self._directives += turn.directives

    def _following(self, turn: TurnResult) -> Prompt | None:
        if not (turn.is_clean or turn.is_session_usable or turn.was_interrupted):
            return None
        return self._whole.next_prompt()

    def _tell_start(self, session_id: str) -> None:
        self._whole.inbox.session_id = session_id
        if not self._has_started:
            self._has_started = True
            start = self._mark.put_on(PhaseStart())
            start.session_id = session_id
            self._host.log.emit(start)

    def _result(self, turn: TurnResult, session_id: str) -> PhaseResult:
        deciding = [each for each in self._directives if each.kind != "exit" or self._phase.kind == "loop"]
        marker = most_severe(deciding)
        skips = [each.label.casefold() for each in self._directives if each.kind == "skip" and each.label]
        return PhaseResult(
            stop_reason=turn.stop_reason,
            exit_code=turn.exit_code,
            session_id=session_id,
            final_output=turn.final_output,
            failure=turn.failure,
            was_cut=self._around.ending.cause is not None,
            abort=marker if marker is not None and marker.kind == "abort" else None,
            exit=marker if marker is not None and marker.kind == "exit" else None,
            skips=[name for key, name in self._around.skippable.items() if key in skips],
        )


def past_result(talk: PastTalk, output: str | None, skippable: Mapping[str, str]) -> PhaseResult:
    """The result of a phase that has ended in an earlier process of the run.

    Args:
        talk: What was said in it.
        output: Of a nested loop or team, what that had to say; else None.
        skippable: See `Around`.
    """
    end = talk.end
    assert end is not None
    said = "" if talk.last is None or talk.last.final_output is UNSET else talk.last.final_output
    # Any commit stands for its tree: what was not committed then counts as changed since.
    mark = None if end.commit is UNSET else GitMark(commit=end.commit, tree=end.commit)
    return PhaseResult(
        stop_reason=end.stop_reason,
        exit_code=end.exit_code,
        session_id="" if end.session_id is UNSET else end.session_id,
        final_output=said if output is None else output,
        failure=None if talk.last is None else past_failure(talk.last),
        was_cut=end.exit_code == ExitCode.CANCELLED,
        abort=_past_marker("abort", end.abort_marker, end.abort_marker_label),
        exit=_past_marker("exit", end.exit_marker, end.exit_marker_label),
        skips=[] if end.skips is UNSET else [name for name in skippable.values() if name in end.skips],
        mark=mark,
    )


def _past_marker(kind: DirectiveKind, is_there: bool | UnsetType, label: str | UnsetType) -> Directive | None:
    if is_there is not True:
        return None
    return Directive(kind=kind, label=None if label is UNSET else label, word=kind)


async def tell_end(host: RunHost, result: PhaseResult, mark: PhaseMark, *, is_retried: bool = False) -> PhaseResult:
    """Tells the end of a phase, or of an attempt that another one follows; returns when that is on the disk."""
    end = PhaseEnd(
        stop_reason=result.stop_reason,
        exit_code=result.exit_code,
        commit=result.mark.commit if result.mark is not None and result.mark.commit else UNSET,
        skips=result.skips or UNSET,
        exit_marker=True if result.exit is not None else UNSET,
        exit_marker_label=_label(result.exit),
        abort_marker=True if result.abort is not None else UNSET,
        abort_marker_label=_label(result.abort),
        retried=True if is_retried else UNSET,
    )
    mark.put_on(end)
    end.session_id = result.session_id or UNSET
    failpoint("phase.before_end")
    host.log.emit(end)
    await host.log.synced()
    failpoint("phase.after_end")
    return result


def _label(directive: Directive | None) -> str | msgspec.UnsetType:
    return UNSET if directive is None or directive.label is None else directive.label
