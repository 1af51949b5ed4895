"""The team: pre phases once, all members at the same time, post phases once (contract, part 4)."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import trio
from msgspec import UNSET
from msgspec.structs import replace

from avenor.protocol.configs import ResolvedPhase, ResolvedTeam
from avenor.protocol.events import TeamEnd, TeamStart
from avenor.protocol.markers import Directive
from avenor.protocol.spec import phase_spec
from avenor.runtimes.courses import Course, CourseResult, ExitReason, Place, Stage
from avenor.runtimes.endings import Cause, Ending
from avenor.runtimes.inboxes import Inbox
from avenor.runtimes.phases import Around, PhaseResult, open_inbox
from avenor.runtimes.replay import Key

# Of what a member said last, in what post phases are told.
OUTPUT_LIMIT_BYTES: Final = 64 * 1024

Fate = Literal["completed", "aborted", "failed", "cancelled", "skipped"]


async def run_team(stage: Stage, config: ResolvedTeam, place: Place) -> CourseResult:
    """Runs a team to its end, which is always told."""
    team = _Team(stage, config, place)
    emit = stage.host.log.emit
    if not place.has_begun(stage):
        emit(
            place.scope.put_on(
                TeamStart(
                    pre_phase_count=len(config.pre),
                    team_member_count=len(config.team),
                    post_phase_count=len(config.post),
                )
            )
        )
    came = await team.run()
    if not place.is_over(stage):
        counts = team.counts()
        emit(
            place.scope.put_on(
                TeamEnd(
                    exit_reason=came.exit_reason,
                    members_completed=counts["completed"],
                    members_aborted=counts["aborted"],
                    members_failed=counts["failed"],
                    members_cancelled=counts["cancelled"],
                    members_skipped=counts["skipped"],
                    exit_label=came.label or UNSET,
                    final_output=came.final_output,
                )
            )
        )
    return came


class _Team:
    def __init__(self, stage: Stage, config: ResolvedTeam, place: Place) -> None:
        self._stage = stage
        self._config = config
        self._place = place
        self._course = Course(stage, place)
        self._results: dict[str, PhaseResult] = {}
        self._running: set[str] = set()
        self._first_abort: str | None = None
        self._decided: PhaseResult | None = None

    async def run(self) -> CourseResult:
        stopped = await self._run_pre()
        if stopped is not None:
            return self._end(self._course.reason_for(stopped, "pre_failure"), stopped)
        members = [member for member in self._config.team if member.name not in self._course.skips]
        if members:
            await self._run_members(members)
            if (ended := self._judge(members)) is not None:
                return ended
        stopped = await self._course.run_list(
            self._config.post,
            follows=lambda result: self._course.goes_on(result, has_more=False),
            values={"TeamOutput": self.output()},
        )
        if stopped is not None:
            return self._end(self._course.reason_for(stopped, "post_failure"), stopped)
        last = self._course.last
        if members and not self._config.post:
            last = self._results[members[-1].name]
        return self._end("end_turn", last)

    def counts(self) -> Counter[Fate]:
        """How many members came to what; together they are all in the config."""
        return Counter(self._fate(member.name) for member in self._config.team)

    def output(self) -> str:
        """What the members said last, under their names, in the order of the config."""
        parts = [
            f"## {member.name}\n{_cut(self._results[member.name].final_output)}\n"
            for member in self._config.team
            if member.name in self._results
        ]
        return "\n".join(parts)

    # ---- before the members

    async def _run_pre(self) -> PhaseResult | None:
        skippable = {member.name.casefold(): member.name for member in self._config.team if member.conditional}
        additions: dict[str, str] = {}
        if skippable:
            asked = [phase.name for phase in self._config.pre if phase.nested is None][-1:]
            additions = {name: _instructions(list(skippable.values())) for name in asked}

        def follows(result: PhaseResult) -> bool:
            has_members = any(member.name not in self._course.skips for member in self._config.team)
            return self._course.goes_on(result, has_more=has_members or bool(self._config.post))

        return await self._course.run_list(self._config.pre, follows=follows, additions=additions, skippable=skippable)

    # ---- the members

    async def _run_members(self, members: Sequence[ResolvedPhase]) -> None:
        self._running = {member.name for member in members}
        with self._place.ending.part() as ending:
            arounds = {member.name: self._around(member, ending) for member in members}
            inboxes = self._open_inboxes(members, arounds)
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(self._run_member, member, arounds[member.name], inboxes.get(member.name))
        if self._place.is_alone:
            await self._stage.host.sweep()
        with self._place.ending.interruptible():
            self._course.past = self._course.past.then(await self._stage.git.mark())

    def _around(self, member: ResolvedPhase, ending: Ending) -> Around:
        around = self._course.around(
            member, values={}, stands=lambda result: self._note_standing(member, result, ending), ending=ending
        )
        spec = phase_spec(around.spec, member.agent, member.model, member.backend)
        return replace(around, spec=spec, is_alone=False)

    def _open_inboxes(self, members: Sequence[ResolvedPhase], arounds: dict[str, Around]) -> dict[str, Inbox]:
        """Before any member begins, so that from the first moment on every one gets what clients say."""
        host = self._stage.host
        talking = [member for member in members if member.nested is None and not self._has_ended(member, arounds)]
        waiting = host.inboxes.next.prompts.take_all() if talking else []
        return {member.name: open_inbox(host, member, arounds[member.name], waiting) for member in talking}

    def _has_ended(self, member: ResolvedPhase, arounds: dict[str, Around]) -> bool:
        """Whether an earlier process of the run has seen its end."""
        past = self._stage.host.past_of(Key.of(arounds[member.name].scope, member.name, 0))
        return past is not None and past.end is not None

    async def _run_member(self, member: ResolvedPhase, around: Around, inbox: Inbox | None) -> None:
        self._results[member.name] = await self._course.run_one(member, around, inbox=inbox)

    def _note_standing(self, member: ResolvedPhase, result: PhaseResult, ending: Ending) -> bool:
        """A member takes no more prompts; returns whether another phase may follow."""
        self._running.discard(member.name)
        if self._first_abort is not None:
            return False
        if result.abort is not None and not result.was_cut:
            return self._abort(member, result, result.abort, ending)
        if self._decided is None or self._decided.is_clean:
            self._decided = result
        return bool(self._running) or self._course.goes_on(self._decided, has_more=bool(self._config.post))

    def _abort(self, member: ResolvedPhase, result: PhaseResult, marker: Directive, ending: Ending) -> bool:
        """The first member that aborts ends the others, and all that is around this team; nothing may follow."""
        self._first_abort = member.name
        self._stage.host.conclude()
        label = "" if marker.label is None else f": {marker.label}"
        ending.decide(Cause(stop_reason="cancelled", reason=f"member {member.name} aborted{label}"))
        return self._place.follows(result)

    def _judge(self, members: Sequence[ResolvedPhase]) -> CourseResult | None:
        """How the team ends if its post phases must not run; None if they may."""
        results = [self._results[member.name] for member in members]
        unclean = [result for result in results if not result.is_clean]
        if not unclean:
            return None
        decided = unclean[0]
        if self._first_abort is not None:
            return self._end("abort", self._results[self._first_abort])
        return self._end(self._course.reason_for(decided, "phase_failure"), decided)

    # ---- for all

    def _fate(self, name: str) -> Fate:
        if name in self._course.skips:
            return "skipped"
        result = self._results.get(name)
        if result is None:
            return "cancelled"
        if result.abort is not None:
            return "aborted"
        if result.is_clean:
            return "completed"
        return "cancelled" if result.was_cut else "failed"

    def _end(self, exit_reason: ExitReason, last: PhaseResult | None) -> CourseResult:
        output = self.output()
        if self._config.post and self._course.last is not None and exit_reason == "end_turn":
            output = self._course.last.final_output
        return CourseResult(exit_reason=exit_reason, last=last, final_output=output, mark=self._course.past.latest)


def _cut(text: str) -> str:
    text = text.rstrip("\n")
    data = text.encode()
    if len(data) <= OUTPUT_LIMIT_BYTES:
        return text
    kept = data[:OUTPUT_LIMIT_BYTES].decode(errors="ignore")
    return f"{kept}\n[cut: {len(data) - len(kept.encode())} more bytes]"


def _instructions(names: Sequence[str]) -> str:
    """What the agent is told that decides which conditional members run.

    The example names nobody, so that an agent that repeats what it was told skips nobody either.
    """
    listed = "\n".join(f"- {name}" for name in names)
    return f"""

---
After this phase a team starts, in which these members run only if you do not skip them:
{listed}
To skip a member, write a line of its own that holds nothing but this marker, with the member's name for NAME. Write one
line for each member to skip.
<|team: skip | NAME|>
A member that you do not skip runs."""
