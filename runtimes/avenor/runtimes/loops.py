"""The loop: pre phases once, loop phases until a marker or the limit, post phases once (contract, part 4)."""

from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from avenor.protocol.configs import ResolvedLoop
from avenor.protocol.events import LoopEnd, LoopStart
from avenor.protocol.outcomes import ExitCode
from avenor.runtimes.courses import Course, CourseResult, ExitReason, Place, Stage
from avenor.runtimes.phases import PhaseResult


async def run_loop(stage: Stage, config: ResolvedLoop, place: Place) -> CourseResult:
    """Runs a loop to its end, which is always told."""
    loop = _Loop(stage, config, place)
    emit = stage.host.log.emit
    if not place.has_begun(stage):
        emit(
            place.scope.put_on(
                LoopStart(
                    max_iterations=config.max_iterations,
                    pre_phase_count=len(config.pre),
                    loop_phase_count=len(config.loop),
                    post_phase_count=len(config.post),
                )
            )
        )
    came = await loop.run()
    if not place.is_over(stage):
        emit(
            place.scope.put_on(
                LoopEnd(
                    exit_reason=came.exit_reason,
                    iterations_completed=loop.completed,
                    exit_label=came.label or UNSET,
                    final_output=came.final_output,
                )
            )
        )
    return came


class _Loop:
    """One loop.

    Attributes:
        completed: How many iterations ended clean.
    """

    def __init__(self, stage: Stage, config: ResolvedLoop, place: Place) -> None:
        self.completed = 0
        self._config = config
        self._place = place
        self._course = Course(stage, place)
        self._fails_at_limit = place.spec.fail_on_max_iterations

    async def run(self) -> CourseResult:
        config = self._config
        stopped = await self._course.run_list(
            config.pre,
            follows=lambda result: self._course.goes_on(result, has_more=bool(config.loop or config.post)),
            values=self._values(0),
        )
        if stopped is not None:
            return self._end(self._course.reason_for(stopped, "phase_failure"), stopped)
        exit_reason, decided = await self._repeat()
        if exit_reason not in ("end_turn", "marker", "max_iterations"):
            return self._end(exit_reason, decided)
        stopped = await self._course.run_list(
            config.post, follows=lambda result: self._course.goes_on(result, has_more=False), values=self._values(0)
        )
        if stopped is not None:
            return self._end(self._course.reason_for(stopped, "phase_failure"), stopped)
        last = self._course.last
        if exit_reason == "marker" and last is not None and decided is not None:
            last = replace(last, exit=decided.exit)  # its label is the loop's, whatever came after it
        return self._end(exit_reason, last)

    async def _repeat(self) -> tuple[ExitReason, PhaseResult | None]:
        config = self._config
        if not config.loop:
            return "end_turn", None
        for iteration in range(1, config.max_iterations + 1):
            is_last = iteration == config.max_iterations
            stopped = await self._course.run_list(
                config.loop,
                iteration=iteration,
                follows=partial(self._after_iteration, is_last=is_last),
                values=self._values(iteration),
            )
            if stopped is not None and not stopped.is_clean:
                return self._course.reason_for(stopped, "phase_failure"), stopped
            self.completed += 1
            if stopped is not None:
                return "marker", stopped
        if self._fails_at_limit:
            assert self._course.last is not None  # there is an iteration, and a phase in it
            return "phase_failure", _at_limit(self._course.last)
        return "max_iterations", None

    def _after_iteration(self, result: PhaseResult, *, is_last: bool) -> bool:
        """Whether a phase may follow the last one of an iteration."""
        is_over = result.exit is not None or is_last
        if not is_over:
            return self._course.goes_on(result, has_more=True)
        if result.is_clean and result.exit is None and self._fails_at_limit:
            return self._place.follows(_at_limit(result))
        return self._course.goes_on(result, has_more=bool(self._config.post))

    def _end(self, exit_reason: ExitReason, last: PhaseResult | None) -> CourseResult:
        output = "" if self._course.last is None else self._course.last.final_output
        return CourseResult(exit_reason=exit_reason, last=last, final_output=output, mark=self._course.past.latest)

    def _values(self, iteration: int) -> dict[str, str | int]:
        return {"Iteration": iteration, "MaxIterations": self._config.max_iterations}


def _at_limit(last: PhaseResult) -> PhaseResult:
    """The last phase of a loop that must not reach its limit, and has."""
    return replace(last, stop_reason="max_iterations", exit_code=ExitCode.FAILED)
