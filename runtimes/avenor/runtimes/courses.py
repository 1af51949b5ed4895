"""What loops and teams have in common: lists of phases, one after the other, around a middle of their own.

A phase of either may itself be a loop or team, which runs inside it in the same way.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from avenor.protocol.configs import ResolvedConfig, ResolvedPhase
from avenor.protocol.events import PhaseStart
from avenor.protocol.outcomes import ExitCode, exit_code_for
from avenor.protocol.spec import RunSpec
from avenor.runtimes.endings import Ending
from avenor.runtimes.gitdelta import GitDeltas, GitMark, GitPast
from avenor.runtimes.host import RunHost
from avenor.runtimes.inboxes import Inbox
from avenor.runtimes.phase_marks import PhaseMark, Scope
from avenor.runtimes.phases import Around, PhaseResult, past_result, run_phase, tell_end
from avenor.runtimes.replay import Key, PastTalk

ExitReason = Literal[
    "end_turn",
    "marker",
    "max_iterations",
    "abort",
    "phase_failure",
    "pre_failure",
    "post_failure",
    "cancelled",
    "timeout",
]
_CLEAN: frozenset[ExitReason] = frozenset({"end_turn", "marker", "max_iterations"})


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a loop or team runs.

    Attributes:
        scope: Within the run.
        spec: What its phases get, where they do not say otherwise.
        ending: Cuts it short.
        past: What its first phase's git delta tells of.
        follows: Told the phase that decides what this comes to, as soon as that stands; returns whether another phase
            may follow in the run when this is over.
        is_alone: Nothing of the run goes on beside it.
    """

    scope: Scope
    spec: RunSpec
    ending: Ending
    past: GitPast
    follows: Callable[[PhaseResult], bool]
    is_alone: bool

    def has_begun(self, stage: "Stage") -> bool:
        """Whether an earlier process of the run has told the start of this loop or team."""
        return stage.host.past is not None and self.scope.path in stage.host.past.begun

    def is_over(self, stage: "Stage") -> bool:
        """Whether it has told the end, too."""
        return stage.host.past is not None and self.scope.path in stage.host.past.over


class CourseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop or team came to.

    Attributes:
        exit_reason: As its end event tells it.
        last: The phase that decided: that aborted, or failed, or was the last; None if there was none.
        final_output: What it has to say.
        mark: The repository at its end.
    """

    exit_reason: ExitReason
    last: PhaseResult | None
    final_output: str = ""
    mark: GitMark | None = None

    @property
    def is_clean(self) -> bool:
        """Whether what comes after it may come."""
        return self.exit_reason in _CLEAN

    @property
    def clean_stop_reason(self) -> str:
        """The stop reason of a clean end."""
        return "max_iterations" if self.exit_reason == "max_iterations" else "end_turn"

    @property
    def label(self) -> str | None:
        """Of the marker that ended it, if that had one."""
        if self.last is None:
            return None
        directive = {"abort": self.last.abort, "marker": self.last.exit}.get(self.exit_reason)
        return None if directive is None else directive.label


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What all loops and teams of one run share.

    Attributes:
        host: The run.
        git: Tells what has changed in the repository.
        nest: Runs a loop or team.
    """

    host: RunHost
    git: GitDeltas
    nest: "Callable[[Stage, ResolvedConfig, Place], Awaitable[CourseResult]]"


class Course:
    """The way through the phases of one loop or team.

    Attributes:
        last: The phase that ended last, of those that ran one after the other.
        past: What the next phase's git delta tells of.
        skips: The members that phases have skipped, by name.
    """

    def __init__(self, stage: Stage, place: Place) -> None:
        self.last: PhaseResult | None = None
        self.past = place.past
        self.skips: set[str] = set()
        self._stage = stage
        self._place = place

    async def run_list(
        self,
        phases: Sequence[ResolvedPhase],
        *,
        follows: Callable[[PhaseResult], bool],
        iteration: int = 0,
        values: Mapping[str, str | int] | None = None,
        additions: Mapping[str, str] | None = None,
        skippable: Mapping[str, str] | None = None,
    ) -> PhaseResult | None:
        """Runs phases one after the other; returns the one after which nothing must come, None if something may.

        Args:
            phases: In their order.
            follows: Whether anything may follow the last of them, if it has ended like this.
            iteration: From 1 in the loop list.
            values: For their templates.
            additions: Text that follows the prompt of the phase of that name.
            skippable: Conditional members, by their names in lower case.
        """
        resume: str | None = None
        for index, phase in enumerate(phases):
            if (cut := self._cut_short()) is not None:
                return cut

            def stands(result: PhaseResult, is_last: bool = index + 1 == len(phases)) -> bool:
                self.skips.update(result.skips)
                if not is_last and result.is_clean and result.exit is None:
                    return True
                return follows(result)

            around = self.around(
                phase,
                stands=stands,
                iteration=iteration,
                values=values or {},
                addition=(additions or {}).get(phase.name, ""),
                resume=resume if phase.resume_from_previous else None,
                skippable=skippable or {},
            )
            result = await self.run_one(phase, around)
            self.last = result
            self.past = self.past.then(result.mark)
            resume = None if phase.nested is not None else result.session_id or None
            if not result.is_clean or result.exit is not None:
                return result
        return self._cut_short()

    def around(
        self,
        phase: ResolvedPhase,
        *,
        stands: Callable[[PhaseResult], bool],
        iteration: int = 0,
        values: Mapping[str, str | int],
        addition: str = "",
        resume: str | None = None,
        skippable: Mapping[str, str] | None = None,
        ending: Ending | None = None,
    ) -> Around:
        """What a phase finds around it here."""
        return Around(
            scope=self._place.scope,
            spec=self._place.spec,
            ending=ending or self._place.ending,
            stands=stands,
            iteration=iteration,
            values=values,
            addition=addition,
            past=self.past,
            resume=resume,
            is_alone=self._place.is_alone,
            skippable=skippable or {},
        )

    async def run_one(self, phase: ResolvedPhase, around: Around, *, inbox: Inbox | None = None) -> PhaseResult:
        """Runs one phase, whatever it is made of, unless an earlier process of the run has seen its end."""
        past = self._stage.host.past_of(Key.of(around.scope, phase.name, around.iteration))
        if past is not None and past.end is not None:
            return self._take_past(phase, around, past)
        if phase.nested is None:
            return await run_phase(self._stage.host, self._stage.git, phase, around, inbox=inbox)
        return await self._run_nested(phase, phase.nested, around)

    def _take_past(self, phase: ResolvedPhase, around: Around, past: PastTalk) -> PhaseResult:
        host = self._stage.host
        output: str | None = None
        if host.past is not None and phase.nested is not None:
            end = host.past.over.get(around.scope.inside(phase.name).path)
            output = "" if end is None or end.final_output is UNSET else end.final_output
        result = past_result(past, output, around.skippable)
        if not around.stands(result) and not host.inboxes.has_open:
            host.conclude()
        return result

    def goes_on(self, result: PhaseResult, *, has_more: bool) -> bool:
        """Whether a phase may follow one that stands like this, after which this course has more or has not."""
        return (result.is_clean and has_more) or self._place.follows(result)

    def reason_for(self, stopped: PhaseResult, otherwise: ExitReason) -> ExitReason:
        """Why the course ends with a phase that did not end clean."""
        cause = self._place.ending.cause
        if cause is not None:
            return "timeout" if cause.stop_reason == "timeout" else "cancelled"
        return otherwise if stopped.abort is None else "abort"

    def _cut_short(self) -> PhaseResult | None:
        """What stands for the phase that cannot begin any more, if the course is to end."""
        cause = self._place.ending.cause
        if cause is None:
            return None
        return PhaseResult(
            stop_reason=cause.stop_reason,
            exit_code=exit_code_for(cause.stop_reason),
            session_id="" if self.last is None else self.last.session_id,
            was_cut=True,
        )

    async def _run_nested(self, phase: ResolvedPhase, config: ResolvedConfig, around: Around) -> PhaseResult:
        mark = PhaseMark(phase, around.scope, around.iteration)
        if self._stage.host.past_of(Key.of(around.scope, phase.name, around.iteration)) is None:
            self._stage.host.log.emit(mark.put_on(PhaseStart()))
        stands: list[bool] = []
        with around.ending.part() as ending:

            def follows(decided: PhaseResult) -> bool:
                ending.settle()  # what it comes to is certain, though its agents have still to end
                stands.append(around.stands(_standing(decided)))
                return stands[-1]

            place = Place(
                scope=around.scope.inside(phase.name),
                spec=around.spec,
                ending=ending,
                past=around.past,
                follows=follows,
                is_alone=around.is_alone,
            )
            came = await self._stage.nest(self._stage, config, place)
        result = _phase_result(came)
        if not stands:  # no phase of it ran, so none has said that it was the last
            around.stands(result)
        return await tell_end(self._stage.host, result, mark)


def _standing(decided: PhaseResult) -> PhaseResult:
    """What a nested phase comes to, as soon as the phase in it stands that decides; other markers stay inside."""
    return replace(decided, exit=None, skips=[])


def _phase_result(came: CourseResult) -> PhaseResult:
    """What a nested loop or team means for the phase that it is."""
    last = came.last
    if came.is_clean:
        return PhaseResult(
            stop_reason=came.clean_stop_reason,
            exit_code=ExitCode.OK,
            session_id="" if last is None else last.session_id,
            final_output=came.final_output,
            mark=came.mark,
        )
    assert last is not None  # nothing but a phase, or what stands for one, ends a course otherwise
    is_blocked = came.exit_reason == "abort"
    return PhaseResult(
        stop_reason="blocked" if is_blocked else last.stop_reason,
        exit_code=ExitCode.BLOCKED if is_blocked else last.exit_code,
        session_id=last.session_id,
        final_output=came.final_output,
        failure=last.failure,
        was_cut=came.exit_reason in ("cancelled", "timeout"),
        abort=last.abort,
        mark=came.mark,
    )
