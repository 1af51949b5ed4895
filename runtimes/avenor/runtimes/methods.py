"""What can be asked of one run over a control socket, its own or a supervisor's.

Each handler decides and records before it waits, so that pipelined requests take effect in order.
"""

import os
import time
from collections.abc import Awaitable
from functools import partial
from typing import Final, TypeVar

import msgspec

from avenor.control.hub import HubSource
from avenor.control.rpc import Call, MethodTable, add_ping
from avenor.host.identity import ProcessId
from avenor.protocol.errors import InvalidParams, NoSuchRuntime, Unsupported
from avenor.protocol.methods import (
    Accepted,
    AnswerParams,
    Cancelled,
    InterruptParams,
    Owner,
    OwnerTarget,
    Pong,
    PromptAccepted,
    PromptParams,
    ShutdownParams,
    ShuttingDown,
    Target,
)
from avenor.runtimes.endings import Cause
from avenor.runtimes.host import RunHost
from avenor.runtimes.ownership import Client

_SOURCE: Final = "control"
# What a client may take for a method of this socket, because it is one of the other kind.
_SUPERVISORS_ONLY: Final = ("spawn", "spec", "prune", "log_level")
_Answer = TypeVar("_Answer")


class _Anything(msgspec.Struct):
    """Params that are not looked at."""


class RunMethods:
    """The methods that steer one run.

    Args:
        host: The run.
        process: Whose run it is: this process.
        hubs: Finds the run's events, if it is this one that a client means.
    """

    def __init__(self, host: RunHost, process: ProcessId, hubs: HubSource) -> None:
        self._host = host
        self._process = process
        self._hubs = hubs
        self._started_at = time.monotonic()

    def add_to(self, table: MethodTable) -> None:
        """Registers them."""
        add_ping(table, self.pong)
        table.add("prompt", PromptParams, self._prompt)
        table.add("interrupt_and_prompt", InterruptParams, self._interrupt)
        table.add("answer_permission", AnswerParams, self._answer)
        table.add("cancel", OwnerTarget, self._cancel)
        table.add("claim", OwnerTarget, self._claim)
        table.add("release", Target, self._release)
        table.add("shutdown", ShutdownParams, self._shutdown)
        for name in _SUPERVISORS_ONLY:
            table.add(name, _Anything, partial(_refuse, name))

    def pong(self) -> Pong:
        """Who answers here."""
        record = self._host.record
        return Pong(
            version=record.version,
            pid=os.getpid(),
            mode="run",
            uptime_ms=int((time.monotonic() - self._started_at) * 1000),
            start_time=self._process.start_ticks,
            boot_id=self._process.boot_id,
            runtime_id=record.runtime_id or msgspec.UNSET,
            run_id=record.run_id,
        )

    def _prompt(self, call: Call, params: PromptParams) -> Awaitable[PromptAccepted]:
        self._check_text(params.text)
        self._own(call, params)
        accepted = self._host.accept_prompt(params.text, _SOURCE)
        return self._durably(accepted)

    def _interrupt(self, call: Call, params: InterruptParams) -> Awaitable[Accepted]:
        self._check_text(params.text)
        self._own(call, params)
        self._host.interrupt_and_prompt(params.text, _SOURCE, keep_queue=params.keep_queue)
        return self._durably(Accepted())

    def _answer(self, call: Call, params: AnswerParams) -> Awaitable[Accepted]:
        self._own(call, params)
        self._host.broker.answer(params.request_id, params.option_id, params.message)
        return self._durably(Accepted())

    def _cancel(self, call: Call, params: OwnerTarget) -> Awaitable[Cancelled]:
        self._own(call, params)
        self._host.end(Cause(stop_reason="cancelled", reason=f"cancelled by client {call.client_id}"))
        return self._when_ended()

    def _claim(self, call: Call, params: OwnerTarget) -> Owner:
        self._own(call, params)
        return Owner(owner=self._host.ownership.owner_name)

    def _release(self, call: Call, params: Target) -> Owner:
        self._hubs.find(params.runtime_id)
        self._host.release_ownership(client_of(call))
        return Owner(owner=self._host.ownership.owner_name)

    def _shutdown(self, call: Call, params: ShutdownParams) -> Awaitable[ShuttingDown]:
        cause = Cause(stop_reason="cancelled", reason=f"shutdown by client {call.client_id}")
        match params.mode:
            case "detach":
                raise Unsupported("a run has nothing to detach from: disconnect, and it goes on")
            case "kill":
                self._host.kill(cause)
            case "graceful" | "drain":
                self._host.end(cause)
        return self._when_down()

    def _own(self, call: Call, params: OwnerTarget) -> None:
        self._hubs.find(params.runtime_id)
        self._host.take_ownership(client_of(call), force=params.force)

    @staticmethod
    def _check_text(text: str) -> None:
        if not text.strip():
            raise InvalidParams("text: give the prompt some text", data={"field": "text"})

    async def _durably(self, answer: _Answer) -> _Answer:
        await self._host.log.synced()
        return answer

    async def _when_ended(self) -> Cancelled:
        await self._host.finished.wait()
        unverified = self._host.unverified
        return Cancelled(ok=True, left=self._host.left, unverified=unverified or msgspec.UNSET)

    async def _when_down(self) -> ShuttingDown:
        await self._host.finished.wait()
        return ShuttingDown()


def no_such_runtime(host: RunHost, name: str) -> NoSuchRuntime:
    """The refusal of another runtime's name."""
    own = host.record.runtime_id or host.record.run_id
    return NoSuchRuntime(
        f"no runtime {name!r} on this socket, which is that of {own}: leave runtime_id out", data={"candidates": [own]}
    )


def client_of(call: Call) -> Client:
    """Who calls."""
    return Client(connection=call.connection.client_id, name=call.client_id)


def _refuse(name: str, _call: Call, _params: _Anything) -> None:
    raise Unsupported(f"this socket is a single run's, and {name} is for a supervisor: use that of `avenor stable`")
