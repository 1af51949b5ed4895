"""What each tool does: one function a tool, from its params to its result. Nothing of the SDK is needed here."""

import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import trio
from msgspec import UNSET

from avenor.control.client import Client
from avenor.control.mcp import tools, views
from avenor.control.mcp.link import Link
from avenor.control.mcp.looking import events_after, inspect, recent_events
from avenor.control.mcp.runs import check_resumable, resuming_params
from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import InvalidParams, NoPendingPermission, Refused
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams

# How long a spawn waits for the agent's session, so that one that cannot start is an error and not a failed run. One
# that takes longer, or waits for a place, is told of as it is: hosts give up a call after about a minute.
SPAWN_SECONDS: Final = 20.0
# How long a wait lasts that has no timeout and whose progress the host does not see: below the minute that is usual.
UNSEEN_WAIT_SECONDS: Final = 50.0
PROGRESS_SECONDS: Final = 5.0

T = TypeVar("T")

# Told the seconds that were waited, and in words how the run is; None where the host does not ask for progress.
Report = Callable[[float, str], Awaitable[None]] | None


class Jockey:
    """Carries out tool calls over one link.

    Args:
        link: To the supervisor; it owns what is spawned.
        parent_id: The runtime that this MCP server works for, whose children its runs are.
    """

    def __init__(self, link: Link, parent_id: str | None = None) -> None:
        self._link = link
        self._parent_id = parent_id

    async def call(self, tool: tools.Tool, arguments: dict[str, Any], report: Report = None) -> msgspec.Struct:
        """The result of a tool.

        Raises:
            InvalidParams: The arguments do not fit the schema.
            AvenorError: It was refused, or went wrong.

        Cancellation: What was begun goes on; a wait only ends.
        """
        try:
            # Not strict: models write "5" for 5 and "true" for true.
            params = msgspec.convert(arguments, tool.params, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(tool.params.__struct_fields__) or "none"
            raise InvalidParams(f"{error}. Its parameters are: {known}") from error
        if isinstance(params, tools.ResultArguments):
            return await self._result(params, report)
        return await self._handlers[type(params)](self, params)

    async def _spawn(self, params: tools.SpawnArguments) -> views.Started:
        run_id = uuid.uuid4().hex
        members = {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}
        members["dir"] = await trio.to_thread.run_sync(_directory, members.pop("repo_dir"))
        return await self._start(SpawnParams(**members, run_id=run_id, key=run_id, parent_id=self._parent_id))

    async def _start(self, params: SpawnParams) -> views.Started:
        run_id = params.run_id or ""
        with trio.move_on_after(SPAWN_SECONDS):
            spawned = await self._link.ask(lambda client: client.spawn(params))
            return views.Started(run_id=run_id, runtime_id=spawned.runtime_id, label=params.label)
        snapshot = await self._find(run_id)
        return views.Started(run_id=run_id, runtime_id=snapshot.runtime_id or "", label=snapshot.label)

    async def _status(self, params: tools.StatusArguments) -> views.Run:
        return views.run_of(await self._find(params.run_id), params.view)

    async def _list(self, params: tools.ListArguments) -> views.Runs:
        fields = None if params.view == "full" else list(views.LIFECYCLE)
        snapshots = await self._link.ask(lambda client: client.list(fields))
        snapshots.sort(key=lambda snapshot: snapshot.started_at or float("inf"))
        return views.Runs(runs=[views.run_of(snapshot, params.view) for snapshot in snapshots])

    async def _result(self, params: tools.ResultArguments, report: Report) -> views.Result:
        snapshot = await self._find(params.run_id)
        seconds = _wait_seconds(params, is_seen=report is not None)
        started = trio.current_time()
        left = seconds
        while not snapshot.wants_attention and left > 0:
            snapshot = await self._link.ask(_waiting(snapshot.runtime_id, min(PROGRESS_SECONDS, left)))
            waited = trio.current_time() - started
            left = seconds - waited
            if report is not None and not snapshot.wants_attention:
                await report(waited, _progress_text(snapshot))
        timed_out = params.wait and not snapshot.wants_attention
        return await self._as_result(snapshot, timed_out=timed_out)

    async def _as_result(self, snapshot: Snapshot, *, timed_out: bool) -> views.Result:
        output = None
        if snapshot.is_settled:
            output = (await self._link.ask(lambda client: client.result(snapshot.runtime_id))).final_output or ""
        return views.Result(
            ready=snapshot.is_settled,
            status=views.status_of(snapshot),
            output=output,
            stop_reason=snapshot.stop_reason or UNSET,
            reason=snapshot.reason or UNSET,
            timed_out=True if timed_out else UNSET,
            pending_permission=views.pending_of(snapshot.permission),
        )

    async def _answer(self, params: tools.AnswerArguments) -> views.Answered:
        snapshot = await self._find(params.run_id)
        request_id = params.request_id or _only_request(snapshot)
        answer = self._once(
            lambda client: client.answer_permission(
                request_id, params.option_id, snapshot.runtime_id, message=params.message
            )
        )
        accepted = await answer
        after = await self._find(snapshot.run_id)
        following = next((p for p in after.permissions if p.request_id != request_id), None)
        return views.Answered(
            accepted=accepted.accepted, request_id=request_id, pending_permission=views.pending_of(following)
        )

    async def _prompt(self, params: tools.PromptArguments) -> views.Prompted:
        snapshot = await self._find(params.run_id)
        _check_takes_prompts(snapshot)
        accepted = await self._once(lambda client: client.prompt(params.prompt, snapshot.runtime_id))
        return views.Prompted(accepted=accepted.accepted, queued=accepted.queued)

    async def _interrupt(self, params: tools.InterruptArguments) -> views.Prompted:
        snapshot = await self._find(params.run_id)
        _check_takes_prompts(snapshot)
        accepted = await self._once(
            lambda client: client.interrupt_and_prompt(params.prompt, snapshot.runtime_id, keep_queue=params.keep_queue)
        )
        return views.Prompted(accepted=accepted.accepted)

    async def _follow_up(self, params: tools.FollowUpArguments) -> views.FollowedUp:
        snapshot = await self._find(params.run_id)
        if snapshot.status == "ended":
            check_resumable(snapshot)
            spec = await self._link.ask(lambda client: client.spec(snapshot.runtime_id))
            run_id = uuid.uuid4().hex
            started = await self._start(resuming_params(snapshot, spec, params.prompt, run_id, self._parent_id))
            return views.FollowedUp(
                run_id=started.run_id, runtime_id=started.runtime_id, label=started.label, resumed=True
            )
        if snapshot.status != "idle":
            raise Refused(
                f"{snapshot.run_id} is still at work ({views.status_of(snapshot)}): avenor_prompt queues a prompt "
                "behind its turn, avenor_interrupt cuts the turn short, avenor_result waits for it"
            )
        await self._once(lambda client: client.prompt(params.prompt, snapshot.runtime_id))
        return views.FollowedUp(
            run_id=snapshot.run_id, runtime_id=snapshot.runtime_id or "", label=snapshot.label, resumed=False
        )

    async def _events(self, params: tools.EventsArguments) -> views.Events:
        snapshot = await self._find(params.run_id)
        after_seq = params.after_seq
        if after_seq is None:
            return await self._link.ask(lambda client: recent_events(client, snapshot, params.events, params.limit))
        return await self._link.ask(
            lambda client: events_after(client, snapshot, params.events, after_seq, params.limit)
        )

    async def _inspect(self, params: tools.InspectArguments) -> views.Inspection:
        snapshot = await self._find(params.run_id)
        return await self._link.ask(lambda client: inspect(client, snapshot))

    async def _cancel(self, params: tools.CancelArguments) -> views.Cancelled:
        snapshot = await self._find(params.run_id)
        if snapshot.status == "ended":
            return views.Cancelled(ok=True, left=[], status=views.status_of(snapshot))
        done = await self._once(lambda client: client.cancel(snapshot.runtime_id))
        after = await self._find(snapshot.run_id)
        return views.Cancelled(ok=done.ok, left=done.left, status=views.status_of(after), unverified=done.unverified)

    async def _shutdown(self, params: tools.ShutdownArguments) -> views.ShuttingDown:
        answer = await self._once(lambda client: client.shutdown(params.mode))
        return views.ShuttingDown(shutting_down=answer.shutting_down)

    async def _find(self, name: str | None) -> Snapshot:
        return await self._link.ask(lambda client: client.status(name))

    async def _once(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Asks what must not be asked twice."""
        return await self._link.ask(question, again=False)

    _handlers: Final[dict[type, Callable[["Jockey", Any], Awaitable[msgspec.Struct]]]] = {
        tools.SpawnArguments: _spawn,
        tools.StatusArguments: _status,
        tools.ListArguments: _list,
        tools.AnswerArguments: _answer,
        tools.PromptArguments: _prompt,
        tools.InterruptArguments: _interrupt,
        tools.FollowUpArguments: _follow_up,
        tools.EventsArguments: _events,
        tools.InspectArguments: _inspect,
        tools.CancelArguments: _cancel,
        tools.ShutdownArguments: _shutdown,
    }


def _directory(path: str) -> str:
    try:
        absolute = os.path.abspath(os.path.expanduser(path))
    except OSError as error:
        raise InvalidParams(f"repo_dir {path!r}: the working directory is gone; give an absolute path") from error
    if not os.path.isdir(absolute):
        raise InvalidParams(f"repo_dir {path!r}: there is no such directory")
    return absolute


def _waiting(runtime_id: str | None, seconds: float) -> Callable[[Client], Awaitable[Snapshot]]:
    return lambda client: client.wait(runtime_id, until="attention", timeout_seconds=seconds)


def _wait_seconds(params: tools.ResultArguments, *, is_seen: bool) -> float:
    if not params.wait:
        return 0.0
    if params.timeout is None:
        return float("inf") if is_seen else UNSEEN_WAIT_SECONDS
    try:
        return parse_duration(params.timeout)
    except ValueError as error:
        raise InvalidParams(f"timeout: {error}") from error


def _progress_text(snapshot: Snapshot) -> str:
    words = [snapshot.label or snapshot.run_id, snapshot.status]
    if snapshot.phase:
        words.append(snapshot.phase)
    if snapshot.phase_label:
        words.append(f"({snapshot.phase_label})")
    words.append(f"last sign of life {snapshot.silent_for_ms // 1000}s ago")
    return " ".join(words)


def _only_request(snapshot: Snapshot) -> str:
    ids = [permission.request_id for permission in snapshot.permissions]
    if len(ids) > 1:
        raise InvalidParams(f"{len(ids)} permissions are pending: give the request_id of one", data={"candidates": ids})
    if not ids:
        raise NoPendingPermission(f"{snapshot.run_id} asks for no permission (it is {views.status_of(snapshot)})")
    return ids[0]


def _check_takes_prompts(snapshot: Snapshot) -> None:
    if snapshot.status == "ended":
        raise Refused(
            f"{snapshot.run_id} has ended ({views.status_of(snapshot)}): avenor_follow_up goes on with its session"
        )
