"""One run from the inside: what its runner works with, and where everything that happens to it is decided.

The host owns the queue, the ownership, the broker and the decision to end. It knows nothing of how it is spoken to
(`methods.py`), how it lives (`life.py`) or what its work is made of (`single.py`).
"""

import contextlib
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
import trio
from msgspec import UNSET, UnsetType

from avenor.host.atomic import is_passing, remove_if_exists
from avenor.host.failpoints import failpoint
from avenor.host.ladder import Graces, StopResult
from avenor.host.rundir import RunDir
from avenor.host.sentinelfile import Sentinel, clear_stale
from avenor.protocol.events import Error, Event, PermissionResponse, PromptQueued, RunEnding, RunResumed, RunStart
from avenor.protocol.methods import PromptAccepted, RunResult
from avenor.protocol.outcomes import Outcome
from avenor.protocol.snapshot import Fold
from avenor.protocol.spec import Record, RunSpec, permission_base
from avenor.runtimes.attempts import RetryPlan
from avenor.runtimes.backends.base import Backend, OpenParams
from avenor.runtimes.conversations import Conversation, describe_left
from avenor.runtimes.endings import Cause, Ending
from avenor.runtimes.eventlog import EventLog
from avenor.runtimes.inboxes import Inbox, Inboxes
from avenor.runtimes.ownership import Client, Ownership
from avenor.runtimes.permission_file import FileHandler
from avenor.runtimes.permissions import Broker
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.replay import Key, Past, PastTalk
from avenor.runtimes.sinks import AgentSink, Policy
from avenor.runtimes.turns import TurnServices

_logger: Final = structlog.get_logger()
_URGENT: Final = Graces(stdin_seconds=0.0, term_seconds=0.0, kill_seconds=Graces().kill_seconds)

_LATE_SECONDS: Final = 0.5


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given by the process that it lives in.

    Attributes:
        find_backend: Gives the adapter that a spec names; raises `InvalidParams` if there is none.
        open_params: Makes the parameters of a session as a spec describes it, but for what to resume; the second
            argument is `OpenParams.owns_process`.
        scratch: An existing directory for files that go with the run.
        sweep: Ends everything below this process, when no session is open.
        sentinel: Kept for the run; None for one that was not asked for one, or that another run has.
        kill_all: Sends SIGKILL to everything below this process, at once.
        silence_limit: The progress timeout in seconds where a spec leaves it to the backend; 0 is none.
    """

    find_backend: Callable[[RunSpec], Backend]
    open_params: Callable[[RunSpec, bool], OpenParams]
    scratch: str
    sweep: Callable[[Graces], Awaitable[StopResult]]
    sentinel: Sentinel | None
    kill_all: Callable[[], None]
    silence_limit: Callable[[RunSpec], float] = lambda _spec: 0.0


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation is opened with.

    Attributes:
        spec: The agent, the model, where it works, and what to resume.
        ending: Cuts it short.
        end: Records a cause that ends it alone.
        opened: Told the session's id whenever one was opened.
        mark: Puts on its events what they belong to; None where that is the run as a whole.
        is_alone: No other conversation is open beside it, so that whatever runs below this process is its own.
        anew: See `Conversation`.
        policy: Is asked before the run's broker, and sees every event; None leaves all to the broker.
        shape: Changes the parameters of each opening, once they are made and before `resume` is filled in.
    """

    spec: RunSpec
    ending: Ending
    end: Callable[[Cause], bool]
    opened: Callable[[str], None]
    mark: Callable[[Event], object] | None = None
    is_alone: bool = True
    anew: Callable[[], Prompt] | None = None
    policy: Policy | None = None
    shape: Callable[[OpenParams], None] | None = None


class RunHost:
    """One run.

    Args:
        record: What to run, resolved.
        log: Its event log.
        fold: The state that its events come to; the host sets the owner in it.
        surroundings: The process around it.
        past: What an earlier process of the run has left; None of a new run.

    Attributes:
        left: What closed sessions could not end, by name.
        unverified: Why it could not be proven that nothing else is left; None if it could.
        finished: Set when the run has ended: log, sentinel and processes.
        result: Of the last turn, complete.
    """

    def __init__(
        self, record: Record, *, log: EventLog, fold: Fold, surroundings: Surroundings, past: Past | None = None
    ) -> None:
        self.record = record
        self.past = past
        self.log = log
        self.fold = fold
        self.ending = Ending()
        self.inboxes = Inboxes()
        self.ownership = Ownership()
        self.finished = trio.Event()
        self.result = RunResult(final_output=None, stop_reason=None)
        self.left: list[str] = []
        self.unverified: str | None = None
        base = permission_base(record.spec.permission_handler)
        self.files = None if base is None else FileHandler(base, lambda text: self.report("permission", text))
        self.broker = Broker(
            token=secrets.token_hex(4),
            auto_approve=record.spec.auto_approve,
            claim_seconds=float(record.spec.permission_claim_timeout or 0.0),
            files=self.files,
            has_owner=lambda: self.ownership.owner is not None,
        )
        self.on_owner_change: Callable[[Client | None], None] = _nobody_to_tell
        self._around = surroundings
        self._sentinel = surroundings.sentinel
        self._parked: Outcome | None = None
        self._outcome: Outcome | None = None
        self._is_urgent = False
        self._has_begun = False
        self._sentinel_is_due = trio.lowlevel.ParkingLot()
        self._rundir = RunDir(surroundings.scratch)
        self._timeout = float(record.spec.timeout or 0.0) or float("inf")
        self._time_limit = trio.CancelScope(deadline=trio.current_time() + self._timeout)
        if past is not None:
            self._go_on_from(past)

    # ---- for runners

    @property
    def is_parked(self) -> bool:
        """Whether the run waits for a prompt, its last turn's sentinel written."""
        return self._parked is not None

    @property
    def scratch(self) -> str:
        """An existing directory for files that go with the run."""
        return self._around.scratch

    def past_of(self, key: Key) -> PastTalk | None:
        """What an earlier process of the run has left of a phase."""
        return None if self.past is None else self.past.talks.get(key)

    @property
    def retry_plan(self) -> RetryPlan:
        """How often a failed attempt is tried again."""
        return RetryPlan(max_retries=self.record.spec.max_retries, remaining_seconds=self._remaining_seconds)

    def whole(self, *, resume: str | None, anew: Callable[[], Prompt] | None = None) -> Talk:
        """The conversation that a run as a whole is: as the record describes it, but for the session to restore."""
        spec = msgspec.structs.replace(self.record.spec, resume=resume)
        return Talk(spec=spec, ending=self.ending, end=self.end, opened=lambda _session_id: None, anew=anew)

    @asynccontextmanager
    async def open_conversation(self, talk: Talk) -> AsyncGenerator[Conversation, None]:
        """A conversation with an agent; its agent is ended at the exit.

        Raises:
            InvalidParams: There is no such backend, or its command cannot be read.
        """
        async with trio.open_nursery() as nursery:
            conversation = Conversation(
                talk.spec,
                backend=self._around.find_backend(talk.spec),
                params=lambda: self._shaped(talk),
                sink=lambda: AgentSink(self.log, self.broker, talk.mark, talk.policy),
                services=TurnServices(
                    log=self.log,
                    broker=self.broker,
                    ending=talk.ending,
                    end=talk.end,
                    progress_seconds=self._progress_seconds(talk.spec),
                ),
                nursery=nursery,
                graces=lambda: _URGENT if self._is_urgent else Graces(),
                opened=talk.opened,
                closed=self._note_closed if talk.is_alone else self._note_part_closed,
                anew=talk.anew,
            )
            try:
                yield conversation
            finally:
                await conversation.close()
                nursery.cancel_scope.cancel()

    async def sweep(self) -> None:
        """Ends whatever sessions that were open side by side have left behind, and proves that nothing is left.

        Cancellation: Ignored, within the bounds of the stop ladder.
        """
        graces = _URGENT if self._is_urgent else Graces(stdin_seconds=0.0)
        with trio.CancelScope(shield=True):
            self._note_closed(await self._around.sweep(graces))

    async def park(self, outcome: Outcome) -> None:
        """The turn's outcome stands until a prompt comes: writes its sentinel."""
        self._parked = outcome
        self._time_limit.deadline = float("inf")
        if self._sentinel is None:
            return
        try:
            await self._write_parked(self._sentinel, outcome)
        except OSError as error:
            self.report("sentinel", f"cannot write {self._sentinel.path}: {error.strerror}")
            if is_passing(error):
                self._sentinel_is_due.unpark_all()

    def conclude(self) -> None:
        """What the work comes to is certain, though it has still to end: no later cause counts, no prompt comes in."""
        if self.ending.settle() and (unread := self.inboxes.close_all()):
            self.report("prompts", f"{len(unread)} accepted prompts were not sent: the run has failed before them")

    def settle(self, outcome: Outcome) -> Outcome:
        """The work has come to this by itself; returns the outcome that counts, which an earlier cause may have set."""
        self.conclude()
        cause = self.ending.cause
        if cause is None:
            self._outcome = self._outcome or outcome
        elif self._outcome is None:
            self._outcome = Outcome.of(
                cause.stop_reason,
                run_id=self.record.run_id,
                session_id=outcome.session_id,
                reason=cause.reason,
            )
        return self._outcome

    # ---- for those who steer

    def end(self, cause: Cause, *, is_ordered: bool = True) -> bool:
        """Ends the run; False if it was ending already. The outcome of a parked run stays what it was.

        Args:
            cause: What ends it.
            is_ordered: Whether those below it end with it.
        """
        if not self.ending.decide(cause):
            return False
        self.begin()  # a supervisor may say so as soon as it has connected
        self._outcome = self._parked
        coming = self._parked or Outcome.of(cause.stop_reason, run_id=self.record.run_id)
        # Before anything is cancelled, so that not even the loss of this process can change what the run comes to.
        self.log.emit(
            RunEnding(
                status=coming.status.value,
                exit_code=coming.exit_code,
                stop_reason=coming.stop_reason,
                reason=cause.reason,
                ordered=is_ordered,
            )
        )
        self.inboxes.close_all()
        self.broker.close()
        _logger.info("run.ending", stop_reason=cause.stop_reason, reason=cause.reason)
        failpoint("cancel.begun")
        return True

    def reap(self, cause: Cause) -> bool:
        """Ends the run if it is parked, and has accepted no prompt since; False if it does not end by this."""
        return self.is_parked and self.end(cause, is_ordered=False)

    def kill(self, cause: Cause) -> None:
        """Ends the run without any grace."""
        self.end(cause)
        self._is_urgent = True
        self._around.kill_all()

    def accept_prompt(self, text: str, source: str) -> PromptAccepted:
        """Queues a prompt for every conversation that runs, or for the next; durable as soon as the log is synced.

        Raises:
            Ended: The run is ending.
            LimitReached: Too many prompts wait.
        """
        targets = self.inboxes.targets()
        ahead = [inbox.add(Prompt(text=text, source=source)) for inbox in targets]
        self._accepted(targets, text, source)
        return PromptAccepted(accepted=True, queued=max(ahead), sessions=self._sessions(targets))

    def interrupt_and_prompt(self, text: str, source: str, *, keep_queue: bool) -> None:
        """Cuts the current turns short and sends this prompt next; durable as soon as the log is synced.

        Raises:
            Ended: The run is ending.
            LimitReached: Too many prompts wait.
        """
        targets = self.inboxes.targets()
        for inbox in targets:
            inbox.interrupt(Prompt(text=text, source=source), keep_queue=keep_queue)
        self._accepted(targets, text, source, keep_queue)

    def take_ownership(self, client: Client, *, force: bool) -> None:
        """Makes the client the owner.

        Raises:
            NotOwner: Somebody else is, and `force` was not given.
        """
        before = self.ownership.owner
        self.ownership.take(client, force=force)
        self._note_owner(before)

    def release_ownership(self, client: Client) -> None:
        """Gives up what the client owned, if it did."""
        before = self.ownership.owner
        self.ownership.release(client)
        self._note_owner(before)

    def connection_lost(self, connection: str) -> None:
        """Gives up what a connection, or any client named over it, owned."""
        before = self.ownership.owner
        self.ownership.connection_lost(connection)
        self._note_owner(before)

    # ---- for the life of the run

    async def watch_time_limit(self) -> None:
        """Ends the run when its timeout is over. The time stands still while the run is parked."""
        with self._time_limit:
            await trio.sleep_forever()
        self.end(Cause(stop_reason="timeout", reason=f"the run took longer than {self._timeout:g} s"))

    async def watch_sentinel(self) -> None:
        """Writes the sentinel of a parked run later, if there was no room for it. Runs until it is cancelled."""
        while True:
            await self._sentinel_is_due.park()
            # Polling: nothing tells that there is room again.
            while (outcome := self._parked) is not None and self._sentinel is not None:
                await trio.sleep(_LATE_SECONDS)
                try:
                    await self._write_parked(self._sentinel, outcome)
                    break
                except OSError as error:
                    _logger.warning("sentinel.not_written", error=str(error))

    def begin(self) -> None:
        """Tells, once, that the run begins or goes on, and clears what earlier runs left."""
        if self._has_begun:
            return
        self._has_begun = True
        record = self.record
        if self.past is None:
            kind, directory = record.kind, record.spec.dir
            self.log.emit(
                RunStart(kind=kind, backend=record.backend, dir=directory, version=record.version, parks=record.parks)
            )
        else:
            self.tell_resumed()
        self.clear_stale_files()

    def tell_resumed(self) -> None:
        """Tells that this process goes on with the run, and settles what the agents of the one before it have asked."""
        assert self.past is not None
        cut, goes_on = self.past.describe()
        self.log.emit(RunResumed(cut=cut, goes_on=goes_on))
        for each in self.past.asked.values():
            self.log.emit(
                PermissionResponse(
                    request_id=each.request_id,
                    option_id="",
                    kind="cancelled",
                    source="cancel",
                    session_id=each.session_id,
                    path=each.path,
                    depth=each.depth,
                    phase=each.phase,
                    phase_kind=each.kind,
                    iteration=each.iteration,
                    attempt=each.attempt,
                )
            )

    def clear_stale_files(self) -> None:
        """Removes sentinel and permission files that an earlier run left; of the same run, only its open questions."""
        sentinel = self._sentinel if self.past is None else None
        try:
            clear_stale(
                None if sentinel is None else sentinel.path, permission_base(self.record.spec.permission_handler)
            )
        except OSError as error:
            self.report("start", f"cannot remove what an earlier run left: {error}")
        if sentinel is not None:
            self._owe_sentinel()

    def check_sentinel(self) -> None:
        """Reports a sentinel that will not be writable while there is still a log to say so in."""
        if self._sentinel is None or self._parked is not None:
            return
        path = self._sentinel.path
        if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
            self.report("sentinel", f"cannot write {path}: its directory is missing or not writable")

    async def write_final_sentinel(self, outcome: Outcome) -> None:
        """Writes the sentinel of the run's end; a parked run's stays as it was.

        What fails is told on stderr, and left to the supervisor.
        """
        if self._sentinel is None or self._parked is not None:
            return
        try:
            await trio.to_thread.run_sync(self._write_sentinel, self._sentinel, outcome)
        except OSError as error:
            _logger.error("sentinel.not_written", path=self._sentinel.path, error=str(error))
            self._owe_sentinel()  # where there was no room for the mark before

    def report(self, source: str, message: str) -> None:
        """Tells of a problem beside the work: in the log, and on stderr."""
        _logger.warning("run.problem", source=source, message=message)
        self.log.emit(Error(source=source, message=message))

    # ---- its own

    def _shaped(self, talk: Talk) -> OpenParams:
        params = self._around.open_params(talk.spec, talk.is_alone)
        if talk.shape is not None:
            talk.shape(params)
        return params

    def _go_on_from(self, past: Past) -> None:
        """What the process before this one had accepted, and how much of its time was used."""
        self._time_limit.deadline -= past.used_ms / 1000
        for prompt in past.whole.queued if self.record.config is None else past.waiting:
            self.inboxes.next.add(prompt)
        if past.is_parked:
            state = self.fold.state
            self._time_limit.deadline = float("inf")
            self._parked = Outcome.of(
                state.stop_reason or "end_turn", run_id=self.record.run_id, session_id=state.session_id or ""
            )
            self.result = RunResult(final_output=past.final_output, stop_reason=state.stop_reason)

    def _accepted(self, targets: list[Inbox], text: str, source: str, keep_queue: bool | UnsetType = UNSET) -> None:
        if self._parked is not None:
            self._parked = None
            self._time_limit.deadline = trio.current_time() + self._timeout
            self._clear_sentinel()
        for inbox in targets:
            queued = PromptQueued(text=text, source=source, queued=self.inboxes.waiting, keep_queue=keep_queue)
            self.log.emit(inbox.mark(queued))

    async def _write_parked(self, sentinel: Sentinel, outcome: Outcome) -> None:
        if self._parked is outcome:
            await trio.to_thread.run_sync(self._write_sentinel, sentinel, outcome)
        if not self.is_parked:  # a prompt came meanwhile, and took away what was not there yet
            self._clear_sentinel()

    def _sessions(self, targets: list[Inbox]) -> list[str] | UnsetType:
        """Which sessions got a prompt, where there may be several."""
        return UNSET if targets == [self.inboxes.next] else [inbox.session_id for inbox in targets]

    def _note_owner(self, before: Client | None) -> None:
        if self.ownership.owner != before:
            self.fold.state.owner = self.ownership.owner_name
            self.broker.owner_changed()
            self.on_owner_change(before)

    def _progress_seconds(self, spec: RunSpec) -> float:
        if spec.progress_timeout is None:
            return self._around.silence_limit(spec)
        return float(spec.progress_timeout)

    def _note_closed(self, stopped: StopResult) -> None:
        self.left.extend(describe_left(stopped))
        self.unverified = stopped.unverified or self.unverified

    def _note_part_closed(self, stopped: StopResult) -> None:
        """What such a session could not prove, the sweep after all of them does."""
        self.left.extend(describe_left(stopped))

    def _remaining_seconds(self) -> float:
        return self._time_limit.deadline - trio.current_time()

    def _write_sentinel(self, sentinel: Sentinel, outcome: Outcome) -> None:
        sentinel.write(outcome)
        with contextlib.suppress(OSError):
            self._rundir.note_sentinel(is_due=False)
        sentinel.give_up()  # whoever has read it may go on to a run with the same one

    def _owe_sentinel(self) -> None:
        """Leaves the mark for whoever settles the run if this process cannot."""
        with contextlib.suppress(OSError):
            self._rundir.note_sentinel(is_due=True)

    def _clear_sentinel(self) -> None:
        self._sentinel = sentinel = self._around.sentinel
        if sentinel is None:
            return
        path = sentinel.path
        try:
            sentinel.keep(is_patient=False)
        except OSError as error:
            self.report("sentinel", f"cannot write {path} for this turn: {error.strerror}")
            self._sentinel = None
            return
        self._owe_sentinel()
        try:
            remove_if_exists(path)
        except OSError as error:
            self.report("sentinel", f"cannot remove {path}: {error.strerror}")


def _nobody_to_tell(_old: Client | None) -> None:
    pass
