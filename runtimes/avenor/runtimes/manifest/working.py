"""The run of a manifest: begun, worked off by its crew, and what it comes to; the machine is given to it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec
import trio

from avenor.host.logfile import iter_lines
from avenor.host.rundir import RunDir
from avenor.protocol.event_base import Event
from avenor.protocol.events import decode_event
from avenor.protocol.manifest.binding import ResolvedManifest, correlations
from avenor.protocol.manifest.events import EndWord, ManifestStart
from avenor.protocol.methods import RunResult
from avenor.protocol.outcomes import ExitCode, Outcome
from avenor.protocol.spec import Record
from avenor.runtimes.host import RunHost
from avenor.runtimes.manifest.crew import Crew, MakePolicy
from avenor.runtimes.manifest.finishing import set_aside
from avenor.runtimes.manifest.gateway import Meter
from avenor.runtimes.manifest.journal import Journal
from avenor.runtimes.manifest.mcp_http import ToolBox
from avenor.runtimes.manifest.plan import Plan
from avenor.runtimes.manifest.services import DeskLike, Workshop
from avenor.runtimes.manifest.view import View

OpenDesk = Callable[[Meter, ToolBox], AbstractAsyncContextManager[DeskLike]]

# Git on a large repository and a slow disk; only a git that hangs takes longer.
_TIDY_SECONDS: Final = 60.0


async def work_off(
    record: Record, host: RunHost, workshop: Workshop, *, open_desk: OpenDesk, make_policy: MakePolicy
) -> Outcome:
    """Runs the record's manifest; returns what the run came to.

    Args:
        record: With the manifest.
        host: The run.
        workshop: Worktrees, sandboxes, and git.
        open_desk: Opens the listener at which its agents reach models and avenor's own tools.
        make_policy: Makes what answers an attempt's questions by rule.

    Raises:
        ConfigError: There is no repository, no such revision in it, or no room for the run's branches.
    """
    manifest = record.config
    assert isinstance(manifest, ResolvedManifest)
    host.inboxes.close_all()  # a member is told what is declared, and nothing else
    plan = Plan(manifest, run_id=record.run_id, max_parallel=record.spec.max_parallel)
    journal = Journal(host.log, _past(host))
    crew = Crew(host, plan, journal, workshop, make_policy=make_policy)
    if journal.state.end is not None:  # only the end of its process was not told
        host.conclude()
    elif journal.state.start is None:
        with host.ending.interruptible():
            journal.tell([await _start(plan, journal, workshop)])
    if journal.state.start is not None:
        async with open_desk(crew.metering, crew.tools) as desk:
            await crew.work(desk)
    await host.sweep()
    await _tidy(host, workshop, crew.look())
    return _settle(record, host, journal)


async def _start(plan: Plan, journal: Journal, workshop: Workshop) -> ManifestStart:
    manifest = plan.manifest
    await workshop.check_branches(plan.branches)
    revision = await workshop.resolve(manifest.revision)
    return ManifestStart(
        team_id=manifest.team_id,
        source_revision=manifest.source_revision,
        revision=revision,
        plan_epoch=manifest.plan_epoch,
        sandbox="bubblewrap" if workshop.is_sandboxed else "none",
        metering={member.id: "agent" if member.profile.endpoint is None else "gateway" for member in manifest.members},
        limits=manifest.budget.limits(),
        deadline_ms=journal.clock.now_ms() + round(manifest.budget.deadline_seconds * 1000),
        correlations=correlations(manifest),
    )


def _past(host: RunHost) -> Iterator[Event]:
    """What an earlier process of the run has told."""
    if host.past is None:
        return
    for line in iter_lines(RunDir(host.scratch).log_path):
        try:
            yield decode_event(line)
        except msgspec.DecodeError:  # of another version, or damaged
            continue


async def _tidy(host: RunHost, workshop: Workshop, view: View) -> None:
    """Removes the run's worktrees; what stays of it are the branches of its candidate and of what was lost."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _TIDY_SECONDS) as scope:
        await set_aside(host, workshop, view)
        await workshop.forget_all()
    if scope.cancelled_caught:
        host.report("worktree", f"the run's worktrees could not be removed within {_TIDY_SECONDS:g} s")


_STOP_REASONS: Final[dict[EndWord, str]] = {
    "accepted": "accepted",
    "rejected": "rejected",
    "needs_human": "blocked",
    "budget_exhausted": "budget_exhausted",
    "timed_out": "timeout",
    "cancelled": "cancelled",
}


def _settle(record: Record, host: RunHost, journal: Journal) -> Outcome:
    end = journal.state.end
    if end is None:  # it was ended before it had begun
        return host.settle(Outcome.of("cancelled", run_id=record.run_id))
    reason = "" if end.reason is msgspec.UNSET else end.reason
    stop_reason = _STOP_REASONS[end.state]
    said = None if end.final_output is msgspec.UNSET else end.final_output
    host.result = RunResult(final_output=said, stop_reason=stop_reason)
    return host.settle(
        Outcome.of(
            stop_reason,
            run_id=record.run_id,
            reason=reason or None,
            exit_code=ExitCode.OK if end.state == "accepted" else None,
        )
    )
