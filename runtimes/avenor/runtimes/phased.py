"""The run of a loop or team: its root, and what that comes to."""

import os

from msgspec.structs import replace

from avenor.protocol.configs import ResolvedConfig, ResolvedLoop, ResolvedTeam
from avenor.protocol.methods import RunResult
from avenor.protocol.outcomes import Outcome, Status
from avenor.protocol.spec import Record, with_servers
from avenor.runtimes.courses import CourseResult, Place, Stage
from avenor.runtimes.gitdelta import GitDeltas, GitPast
from avenor.runtimes.host import RunHost
from avenor.runtimes.loops import run_loop
from avenor.runtimes.phase_marks import Scope
from avenor.runtimes.teams import run_team


async def run_phased(record: Record, host: RunHost) -> Outcome:
    """Runs the record's loop or team; returns what the run came to."""
    assert isinstance(record.config, ResolvedLoop | ResolvedTeam)
    with GitDeltas(record.spec.dir, os.environ, scratch=host.scratch) as git:
        began = None
        if host.past is None:  # else nobody knows any more
            with host.ending.interruptible():
                began = await git.mark()
        stage = Stage(host=host, git=git, nest=_run)
        place = Place(
            scope=Scope(),
            spec=record.spec,
            ending=host.ending,
            past=GitPast(began=began),
            follows=lambda _decided: False,
            is_alone=True,
        )
        came = await _run(stage, record.config, place)
    outcome = _outcome(came, record.run_id)
    host.result = RunResult(final_output=came.final_output, stop_reason=outcome.stop_reason)
    return host.settle(outcome)


async def _run(stage: Stage, config: ResolvedConfig, place: Place) -> CourseResult:
    place = replace(place, spec=with_servers(place.spec, config.mcp_servers))
    if isinstance(config, ResolvedLoop):
        return await run_loop(stage, config, place)
    return await run_team(stage, config, place)


def _outcome(came: CourseResult, run_id: str) -> Outcome:
    last = came.last
    session_id = "" if last is None else last.session_id
    if came.exit_reason == "abort":
        return Outcome.of("blocked", run_id=run_id, session_id=session_id, reason=came.label)
    if came.is_clean or last is None:
        return Outcome.of(came.clean_stop_reason, run_id=run_id, session_id=session_id, exit_code=0)
    return Outcome(
        status=Status.FAILED,
        exit_code=last.exit_code,
        stop_reason=last.stop_reason,
        session_id=session_id,
        reason=None if last.failure is None else last.failure.message,
        run_id=run_id,
    )
