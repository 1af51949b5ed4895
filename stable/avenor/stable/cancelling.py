"""`cancel`: of one runtime, and of all that are below it.

Whatever was ordered to end takes those along that were started for it: its children, theirs, and so on. It was ordered
to by a cancel, a signal, or its own timeout. A runtime that has ended by itself, failed or was lost leaves its children
as they are: their work counts, and they are listed below it.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog
import trio

from avenor.control.rpc import Call
from avenor.protocol.errors import AvenorError, BrokenError, Ended, InternalError, NotOwner, Refused
from avenor.protocol.methods import Cancelled, OwnerTarget, Target
from avenor.protocol.outcomes import Status
from avenor.stable.keeping import Keeper, describe_left
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime, Stage

# After a runtime has answered that all is gone it only has to leave; and the sweep after a crash is bounded, too.
_LEAVE_SECONDS: Final = 15.0
# The whole stop ladder takes less than half of it. A runtime that has not ended by then does not listen.
_PATIENCE_SECONDS: Final = 30.0
# In whose name it goes down: the client that asked for it need not own those below.
_OWN_NAME: Final = "supervisor"
_ORDERED: Final = (Status.KILLED, Status.TIMEOUT)

_logger: Final = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode
_decode_cancelled: Final = msgspec.json.Decoder(Cancelled).decode


class Canceller:
    """Ends runtimes at somebody's wish, each with all that are below it.

    Args:
        registry: Where runtimes are found.
        keeper: Kills what does not listen.
        end_queued: Ends a runtime that has not started; False if it has meanwhile.
        start_task: Starts a task for a runtime, which outlives the call.
    """

    def __init__(
        self,
        registry: Registry,
        keeper: Keeper,
        end_queued: Callable[[Runtime], bool],
        start_task: Callable[[Callable[[Runtime], Awaitable[None]], Runtime], None],
    ) -> None:
        self._registry = registry
        self._keeper = keeper
        self._end_queued = end_queued
        self._start_task = start_task

    def cancel(self, call: Call, params: OwnerTarget) -> Awaitable[Cancelled]:
        """Handler: answers when the run and all below it have ended, their processes are gone, and so are their own.

        Who may not cancel the run leaves those below it alone, too. Who may need not own them. The runtime says who
        may, and one that does not listen is killed for whoever may by what it last said of its owner. One that waits
        for a place is its spawner's.

        Raises:
            NotOwner: It waits for a place, and this client may not end it.
        """
        runtime = self._registry.resolve(params.runtime_id)

        def refusal() -> NotOwner | None:
            return None if params.force else _refusal(runtime, call.client_id)

        _logger.info("cancel.requested", runtime_id=runtime.id, client=call.client_id)
        if runtime.stage is Stage.QUEUED and (refused := refusal()) is not None:
            raise refused
        if is_over(runtime) or self._end_queued(runtime):
            self.end_below(runtime)
            return self._with_those_below(runtime, _wait_ended(runtime))

        def note_answer(result: msgspec.Raw | None) -> None:
            # Not by the caller's task, which ends when the caller leaves.
            if result is not None:
                self.end_below(runtime)

        try:
            answer = send(runtime, call.client_id, "cancel", params, note_answer)
        except Refused:
            if refusal() is not None:
                raise
            answer = _no_answer(runtime)
        # As little as the call itself is it taken back by the caller's leaving.
        ending = _Ending(self._wait_cancelled(runtime, answer, refusal))
        self._start_task(ending.see_through, runtime)
        return self._with_those_below(runtime, ending.wait())

    def note(self, runtime: Runtime) -> None:
        """Its events have told something new: if it was ordered to end, so are those below it."""
        if not runtime.ends_tree and _is_ordered_to_end(runtime):
            self.end_below(runtime)

    def refuse_below(self, runtime: Runtime) -> None:
        """Let nothing new be started below a runtime that takes those below it along.

        Raises:
            Ended: It, or one of those that it is below of, does.
        """
        for each in (runtime, *self._registry.ancestors(runtime)):
            if each.ends_tree or _is_ordered_to_end(each):
                raise Ended(
                    f"parent_id {runtime.id!r}: {each.id} was ordered to end, and all below it; nothing starts there",
                    data={"field": "parent_id", "runtime_id": each.id},
                )

    def end_below(self, runtime: Runtime) -> None:
        """Cancel all that are below a runtime, whoever owns them, and refuse what would be started there."""
        runtime.ends_tree = True
        for each in self._registry.descendants(runtime):
            if not each.is_live or each.ends_tree:
                continue
            each.ends_tree = True
            _logger.info("cancel.goes_down", runtime_id=each.id, ordered=runtime.id)
            if not self._end_queued(each):
                # For good: the loss of its process is its end, and no other goes on with it.
                each.cancels += 1
                self._start_task(self._end, each)

    async def _end(self, runtime: Runtime) -> None:
        def keep_proof(result: msgspec.Raw | None) -> None:
            if result is not None:
                runtime.proof = _decode_cancelled(result)

        with trio.move_on_after(_PATIENCE_SECONDS):
            try:
                await send(runtime, _OWN_NAME, "cancel", OwnerTarget(force=True), keep_proof)
            except AvenorError as error:
                _logger.warning("cancel.unanswered", runtime_id=runtime.id, error=error.message)
            await runtime.ended.wait()
            return
        await self._kill_deaf(runtime)

    async def _kill_deaf(self, runtime: Runtime) -> None:
        _logger.warning("runtime.deaf", runtime_id=runtime.id, patience_seconds=_PATIENCE_SECONDS)
        await self._keeper.kill(runtime)

    async def _wait_cancelled(
        self, runtime: Runtime, answer: Awaitable[msgspec.Raw], refusal: Callable[[], NotOwner | None]
    ) -> Cancelled:
        # For as long as this waits, the loss of its process is its end, and no other goes on with it.
        runtime.cancels += 1
        try:
            result = await self._hear(runtime, answer, refusal)
            if result is None:
                return await _wait_ended(runtime)
        except BrokenError:
            # It died of something else meanwhile: then its end is what was asked for, and if not, nobody knows.
            with trio.move_on_after(_LEAVE_SECONDS):
                return await _wait_ended(runtime)
            raise
        finally:
            runtime.cancels -= 1
        with trio.move_on_after(_LEAVE_SECONDS):
            await runtime.ended.wait()
        return _decode_cancelled(result)

    async def _hear(
        self, runtime: Runtime, answer: Awaitable[msgspec.Raw], refusal: Callable[[], NotOwner | None]
    ) -> msgspec.Raw | None:
        """What a runtime answers to a cancel; None if it did not in time, and was killed.

        Raises:
            NotOwner: It did not in time, and this client may not end it.
        """
        with trio.move_on_after(_PATIENCE_SECONDS):
            return await answer
        if (refused := refusal()) is not None:
            raise refused
        await self._kill_deaf(runtime)
        return None

    async def _with_those_below(self, runtime: Runtime, own: Awaitable[Cancelled]) -> Cancelled:
        answers = [await own]
        self.end_below(runtime)  # it may have ended by itself, and not answered any more
        for each in self._registry.descendants(runtime):
            if each.ends_tree:
                await each.ended.wait()
                answers.append(_named(each))
        return _merged(answers)


class _Ending:
    """What becomes of a cancel, for whoever still waits for it.

    Args:
        work: Comes to its answer.
    """

    def __init__(self, work: Awaitable[Cancelled]) -> None:
        self._work = work
        self._answer: Cancelled | AvenorError = InternalError("a fault in avenor; its log has the details")
        self._is_known = trio.Event()

    async def see_through(self, _runtime: Runtime) -> None:
        """Bring the work to its end; the task that does it is the supervisor's."""
        try:
            self._answer = await self._work
        except AvenorError as error:
            self._answer = error
        finally:
            self._is_known.set()

    async def wait(self) -> Cancelled:
        """Return the answer.

        Raises:
            AvenorError: That is the answer.
        """
        await self._is_known.wait()
        if isinstance(self._answer, AvenorError):
            raise self._answer
        return self._answer


def is_over(runtime: Runtime) -> bool:
    """Whether no process of it will take calls any more."""
    is_lost = runtime.stage is Stage.LOST and runtime.record.on_crash != "resume"
    return is_lost or runtime.stage is Stage.ENDED


def send(
    runtime: Runtime,
    client: str,
    method: str,
    params: Target,
    on_answer: Callable[[msgspec.Raw | None], None] | None = None,
) -> Awaitable[msgspec.Raw]:
    """Pass a client's call on to a runtime; it is on its way when this returns.

    Args:
        runtime: One that is not over, and not queued.
        client: Whose call it is.
        method, params: What is called.
        on_answer: See `avenor.stable.link.Call`.

    Raises:
        Refused: The runtime does not read what is sent to it.
    """
    assert runtime.link is not None
    _logger.debug("request.passed_on", method=method, runtime_id=runtime.id, client=client)
    params = msgspec.structs.replace(params, runtime_id=runtime.id)  # it may have been called by its label
    return runtime.link.call(client, method, msgspec.Raw(_encode(params)), on_answer).wait()


def _is_ordered_to_end(runtime: Runtime) -> bool:
    """Whether a cancel, a signal or its own timeout ends it, or has, as its events tell."""
    state, ending = runtime.state, runtime.hub.fold.ending
    if ending is not None:  # an earlier version's tells it by the status alone
        return ending.ordered or ending.status in _ORDERED
    return state.status == "ended" and state.outcome in _ORDERED


def _refusal(runtime: Runtime, client: str) -> NotOwner | None:
    """Why a client may not end a runtime that does not say so itself; None if it may."""
    # Before there is a connection nobody owns it yet, and its spawner is about to.
    owner = runtime.state.owner if runtime.started.is_set() else runtime.spawner
    if owner in (None, client):
        return None
    return NotOwner(
        f"client {owner} owns runtime {runtime.id}: use force to end it anyhow",
        data={"owner": owner, "runtime_id": runtime.id},
    )


async def _no_answer(runtime: Runtime) -> msgspec.Raw:
    """In the place of the answer to a call that could not be sent."""
    await runtime.ended.wait()
    raise BrokenError(f"runtime {runtime.id} has ended without an answer", data={"runtime_id": runtime.id})


async def _wait_ended(runtime: Runtime) -> Cancelled:
    await runtime.ended.wait()
    return _found(runtime)


def _found(runtime: Runtime) -> Cancelled:
    """What its end and the sweep after it have shown."""
    stopped = runtime.stopped
    return Cancelled(
        ok=True,
        left=runtime.state.left_processes or ([] if stopped is None else describe_left(stopped)),
        unverified=msgspec.UNSET if stopped is None or stopped.unverified is None else stopped.unverified,
    )


def _named(runtime: Runtime) -> Cancelled:
    """What became of one of those below, with its name in each line."""
    proof = runtime.proof or _found(runtime)
    return Cancelled(
        ok=True,
        left=[f"{runtime.id}: {line}" for line in proof.left],
        unverified=msgspec.UNSET if proof.unverified is msgspec.UNSET else f"{runtime.id}: {proof.unverified}",
    )


def _merged(answers: list[Cancelled]) -> Cancelled:
    reasons = [each.unverified for each in answers if each.unverified is not msgspec.UNSET]
    return Cancelled(
        ok=True,
        left=[line for each in answers for line in each.left],
        unverified="; ".join(reasons) or msgspec.UNSET,
    )
