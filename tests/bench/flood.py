"""A runtime whose agent is a loop in its own process: `python -m tests.bench.flood DIRECTORY READY_FD`.

All of it is the real thing (run host, sink, event log, hub, control server) but the backend, which emits what a prompt
asks for as fast as the runtime takes it. So what is measured begins where a backend hands an event over.
"""

import gc
import sys
import time
from unittest import mock

import msgspec
import trio

from avenor.host.ladder import Graces, StopResult
from avenor.protocol.events import MessageChunk, ToolCall
from avenor.runtimes import process
from avenor.runtimes.backends.base import AgentExit, Capabilities, OpenParams, SessionSink, TurnStop
from avenor.runtimes.main import run_directory
from tests.bench.agents import BURST, TEXT

_CONTENT = msgspec.Raw(msgspec.json.encode({"type": "text", "text": TEXT}))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt asks for, as JSON.

    Attributes:
        count: How many events.
        burst: How many at a time, between which the rest of the runtime has its turn. An agent's pipe holds 64 KiB, so
            that some three hundred of its messages come at once.
        gap_seconds: How long nothing is said between bursts.
        is_timed: Whether the text of each is the monotonic clock in nanoseconds, as it was emitted.
    """

    count: int = 0
    burst: int = BURST
    gap_seconds: float = 0.0
    is_timed: bool = False


_decode = msgspec.json.Decoder(Plan).decode


class FloodSession:
    """A `Session` that does as it is told.

    Args:
        sink: Gets the events.
    """

    session_id = "flood"
    agent_pid = 0
    agent_version: str | None = None
    agent: str | None = None
    model: str | None = None
    is_lost = False
    resumed = False
    capabilities = Capabilities()

    def __init__(self, sink: SessionSink) -> None:
        self._sink = sink

    async def prompt(self, text: str) -> TurnStop:
        """See `Session.prompt`."""
        plan = _decode(text)
        for start in range(0, plan.count, plan.burst):
            with self._sink.batch():  # as the ACP backend does with what it reads at once
                self._emit(min(plan.burst, plan.count - start), is_timed=plan.is_timed)
                if plan.burst > 1:
                    self._end_message()
            await trio.sleep(plan.gap_seconds)
        self._end_message()
        return TurnStop(stop_reason="end_turn")

    async def cancel(self) -> None:
        """See `Session.cancel`."""

    async def close(self, graces: Graces) -> StopResult:
        """See `Session.close`."""
        return StopResult()

    async def wait_exited(self) -> AgentExit:
        """See `Session.wait_exited`."""
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def _end_message(self) -> None:
        """Ends what is said, which else would all be the turn's final output, in one line too long to be sent."""
        self._sink.emit(ToolCall(toolCallId="flood", title="flood"))

    def _emit(self, count: int, *, is_timed: bool) -> None:
        for _ in range(count):
            content = msgspec.Raw(b'{"type":"text","text":"%d"}' % time.monotonic_ns()) if is_timed else _CONTENT
            self._sink.emit(MessageChunk(content=content))


class FloodBackend:
    """The `Backend` of it."""

    name = "flood"

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> FloodSession:
        """See `Backend.open`."""
        return FloodSession(sink)


def _get_backend(_name: str, _folder: str) -> FloodBackend:
    return FloodBackend()


def main(directory: str, ready_fd: int) -> int:
    """Runs what is in a runtime directory, as a fork of the zygote would."""
    gc.collect()
    gc.freeze()
    with mock.patch.object(process, "usable_backend", _get_backend):
        return run_directory(directory, ready_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
