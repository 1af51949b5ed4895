"""Settles what agents ask: by rule, by the owner, through files, or whenever somebody answers (contract, part 8).

A request moves from resolver to resolver, but every resolver stays open until it is settled: the first valid answer
wins. Nothing is ever answered because time passed.
"""

from collections.abc import Callable
from typing import Final, Literal

import trio
from msgspec import UNSET

from avenor.host.failpoints import failpoint
from avenor.protocol.errors import InvalidParams, NoPendingPermission
from avenor.protocol.events import Error, Event, PermissionOption, PermissionRequest, PermissionResponse
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.permission_file import FileHandler, FileRequest, Presentation

Source = Literal["avenor", "control", "file", "cancel"]
Resolver = Literal["automatic", "control", "file", "none"]
Emit = Callable[[Event], None]

_ALLOW_ONCE: Final = "allow_once"


class Pending:
    """One request that nobody has settled yet."""

    def __init__(self, request_id: str, session_id: str, ask: PermissionAsk, emit: Emit, asker: object) -> None:
        self.request_id = request_id
        self.session_id = session_id
        self.asker = asker
        self.ask = ask
        self.emit = emit
        self.resolver: Resolver | None = None
        self.settled = trio.Event()
        self.answer = PermissionAnswer(option_id=None)

    def option(self, option_id: str) -> PermissionOption | None:
        """The offered option of that id."""
        return next((o for o in self.ask.options if o.option_id == option_id), None)


class Broker:
    """All permission requests of one runtime.

    Args:
        auto_approve: Whether requests are settled by rule where the rule allows it.
        claim_seconds: How long the owner alone is asked before the file handler is as well.
        files: The file handler, if there is one.
        has_owner: Whether a client owns the run now.
        token: What no other run has. It is part of every request's id, so that an answer to one run's question never
            fits another's where both ask at the same BASE.
    """

    def __init__(
        self,
        *,
        token: str,
        auto_approve: bool,
        claim_seconds: float,
        files: FileHandler | None,
        has_owner: Callable[[], bool],
    ) -> None:
        self._token = token
        self._auto_approve = auto_approve
        self._claim_seconds = claim_seconds
        self._files = files
        self._has_owner = has_owner
        self._pending: dict[str, Pending] = {}
        self._count = 0
        self._is_closed = False
        self._owner_changed = trio.Event()

    def is_waiting(self, asker: object) -> bool:
        """Whether somebody is being asked for this session."""
        return any(pending.asker is asker for pending in self._pending.values())

    async def ask(self, ask: PermissionAsk, *, asker: object, session_id: str, emit: Emit) -> PermissionAnswer:
        """The answer to a request, whenever it comes.

        Args:
            ask: The question.
            asker: Stands for the session: ids of different agents may be alike.
            session_id: Its id.
            emit: Takes the events of that session.

        Cancellation: The request is settled as cancelled.
        """
        self._count += 1
        pending = Pending(f"perm_{self._count}_{self._token}", session_id, ask, emit, asker)
        if self._auto_approve and (chosen := self._by_rule(pending)) is not None:
            return chosen
        return await self._ask_people(pending)

    def tell_settled(self, ask: PermissionAsk, answer: PermissionAnswer, *, session_id: str, emit: Emit) -> None:
        """Tells of a request that somebody's rule has settled before anybody was asked, as of one that ours settles."""
        self._count += 1
        pending = Pending(f"perm_{self._count}_{self._token}", session_id, ask, emit, None)
        self._announce(pending, "automatic")
        emit(_response(pending, answer, "avenor"))

    def answer(self, request_id: str, option_id: str, message: str | None) -> None:
        """Settles a request for a control client.

        Raises:
            NoPendingPermission: It is settled already, or never was.
            InvalidParams: The option was not offered.
        """
        pending = None if self._is_closed else self._pending.get(request_id)
        if pending is None:
            raise NoPendingPermission(
                f"no permission request {request_id!r} is open", data={"pending": list(self._pending)}
            )
        if pending.option(option_id) is None:
            offered = [option.option_id for option in pending.ask.options]
            raise InvalidParams(
                f"option_id {option_id!r}: choose one of {', '.join(offered)}",
                data={"field": "option_id", "options": offered},
            )
        self._settle(pending, option_id, message, "control")

    def cancel(self, asker: object) -> None:
        """Settles every open request of this session as cancelled."""
        for pending in list(self._pending.values()):
            if pending.asker is asker:
                self._settle(pending, None, None, "cancel")

    def close(self) -> None:
        """The run is ending: from now on nobody's answer counts, and new requests are settled as cancelled."""
        self._is_closed = True

    def owner_changed(self) -> None:
        """Takes notice that the run has another owner, or none."""
        self._owner_changed.set()
        self._owner_changed = trio.Event()

    def _by_rule(self, pending: Pending) -> PermissionAnswer | None:
        for option_id in pending.ask.trusted_options:
            option = pending.option(option_id)
            if option is not None and option.kind == _ALLOW_ONCE:
                self._announce(pending, "automatic")
                chosen = PermissionAnswer(option_id=option_id)
                pending.emit(_response(pending, chosen, "avenor"))
                return chosen
        offered = ", ".join(option.option_id for option in pending.ask.options)
        pending.emit(
            Error(
                source="permission",
                message=f"auto-approve takes none of the options of {pending.request_id} ({offered}): answer it",
            )
        )
        return None

    async def _ask_people(self, pending: Pending) -> PermissionAnswer:
        self._pending[pending.request_id] = pending
        self._announce(pending, self._first_resolver())
        failpoint("permission.pending")
        try:
            if self._is_closed:
                self._settle(pending, None, None, "cancel")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._escalate, pending)
                await pending.settled.wait()
                nursery.cancel_scope.cancel()
        finally:
            if not pending.settled.is_set():
                self._settle(pending, None, None, "cancel")
        return pending.answer

    def _first_resolver(self) -> Resolver:
        if self._has_owner():
            return "control"
        return "none" if self._files is None else "file"

    async def _escalate(self, pending: Pending) -> None:
        if self._has_owner():
            with trio.move_on_after(self._claim_seconds):
                await self._wait_no_owner()
        if self._files is not None:
            self._announce(pending, "file")
            await self._files.present(self._presentation(pending))
        self._announce(pending, "none")

    async def _wait_no_owner(self) -> None:
        while self._has_owner():
            await self._owner_changed.wait()

    def _presentation(self, pending: Pending) -> Presentation:
        return Presentation(
            request=FileRequest(
                request_id=pending.request_id,
                session_id=pending.session_id,
                tool=pending.ask.tool,
                question=pending.ask.question,
                options=pending.ask.options,
                payload=pending.ask.payload,
            ),
            answer=lambda option_id, message: self._settle(pending, option_id, message, "file"),
            expired=lambda: self._announce(pending, "none"),
        )

    def _announce(self, pending: Pending, resolver: Resolver) -> None:
        """Tells of a request, and again whenever it has moved on."""
        if pending.resolver == resolver or pending.settled.is_set():
            return
        pending.resolver = resolver
        pending.emit(
            PermissionRequest(
                request_id=pending.request_id,
                tool=pending.ask.tool,
                question=pending.ask.question,
                options=list(pending.ask.options),
                resolver=resolver,
                input=pending.ask.input,
            )
        )

    def _settle(self, pending: Pending, option_id: str | None, message: str | None, source: Source) -> None:
        if pending.settled.is_set():
            return
        if self._is_closed:
            option_id, message, source = None, None, "cancel"
        del self._pending[pending.request_id]
        pending.answer = PermissionAnswer(option_id=option_id, message=message)
        pending.settled.set()
        pending.emit(_response(pending, pending.answer, source))


def _response(pending: Pending, answer: PermissionAnswer, source: Source) -> PermissionResponse:
    return PermissionResponse(
        request_id=pending.request_id,
        option_id=answer.option_id or "",
        kind=_answer_kind(pending, answer.option_id),
        source=source,
        message=UNSET if answer.message is None else answer.message,
    )


def _answer_kind(pending: Pending, option_id: str | None) -> Literal["allow", "reject", "cancelled"]:
    option = None if option_id is None else pending.option(option_id)
    if option is None:
        return "cancelled"
    return "allow" if option.kind.startswith("allow") else "reject"
