"""The life of a run between its first event and its last.

Whatever happens inside, a run that was begun ends with `run.end` in its log and with its sentinel.
"""

import signal
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio
from msgspec import UNSET

from avenor.host.endsignals import END_SIGNALS
from avenor.host.failpoints import failpoint
from avenor.protocol.errors import AvenorError
from avenor.protocol.events import RunEnd
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import Record
from avenor.runtimes.endings import Cause
from avenor.runtimes.host import RunHost

Runner = Callable[[Record, RunHost], Awaitable[Outcome]]

_logger: Final = structlog.get_logger()


async def live(host: RunHost, runner: Runner) -> Outcome:
    """Does the run's work, and tells its end in log and sentinel.

    Args:
        host: The run, which begins, or goes on after the process that it had was lost.
        runner: What its work is made of.
    """
    async with trio.open_nursery() as services:
        services.start_soon(host.watch_time_limit)
        services.start_soon(host.watch_sentinel)
        if host.files is not None:
            services.start_soon(host.files.watch_late)
        outcome = await _work(host, runner)
        services.cancel_scope.cancel()
    await _tell_end(host, outcome)
    return outcome


async def fail_to_start(host: RunHost, outcome: Outcome) -> Outcome:
    """Tells start and end of a run that cannot do its work; returns the outcome that counts."""

    async def fail(_record: Record, _host: RunHost) -> Outcome:
        return host.settle(outcome)

    return await live(host, fail)


async def watch_signals(host: RunHost, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Ends the run on the first signal, without any grace on the second. Runs until it is cancelled.

    The signals may be blocked until this has started; it unblocks them. A hang-up that is ignored already stays so:
    that is what `nohup` asks for.
    """
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    watched = [number for number in END_SIGNALS if number != signal.SIGHUP or not ignores_hangup]
    with trio.open_signal_receiver(*watched) as received:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        task_status.started()
        is_second = False
        async for number in received:
            cause = Cause(stop_reason="cancelled", reason=f"signal {signal.Signals(number).name}")
            if is_second:
                host.kill(cause)
            else:
                host.end(cause)
            is_second = True


async def _work(host: RunHost, runner: Runner) -> Outcome:
    outcome: Outcome | None = None
    try:
        async with trio.open_nursery():  # so that whatever goes wrong arrives as a group
            host.begin()
            outcome = await runner(host.record, host)
    except* AvenorError as refusals:
        refusal = _first(refusals)
        outcome = _failed(host, refusal.reason_word, refusal.message)
    except* Exception:  # supervision boundary: one run
        _logger.exception("run.broke")
    return outcome or _failed(host, "internal_error", "a fault in avenor; its stderr has the details")


def _first(group: BaseExceptionGroup[AvenorError]) -> AvenorError:
    """The first error in a group, however deeply nurseries have wrapped it."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _failed(host: RunHost, stop_reason: str, reason: str) -> Outcome:
    return host.settle(Outcome.of(stop_reason, run_id=host.record.run_id, reason=reason))


async def _tell_end(host: RunHost, outcome: Outcome) -> None:
    if host.files is not None:
        host.files.set_late_aside()
    host.check_sentinel()
    failpoint("end.before_log")
    publish = host.log.record(
        RunEnd(
            status=outcome.status.value,
            exit_code=outcome.exit_code,
            stop_reason=outcome.stop_reason,
            reason=outcome.reason or UNSET,
        )
    )
    # The log goes first: after a crash in between, the sentinel is written from it. Clients are told last: whoever
    # hears of the end finds the sentinel.
    await host.log.synced()
    await host.write_final_sentinel(outcome)
    failpoint("end.after_sentinel")
    publish()
    host.finished.set()
