"""The methods that only look at a runtime: `status`, `list`, `result`, `history` and `wait`.

They are the same on every socket, and for ended runtimes as for live ones: what memory does not hold is in the log.
"""

from collections.abc import Awaitable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from msgspec import Raw

from avenor.control.hub import EventHub, HubSource
from avenor.control.rpc import Call, MethodTable
from avenor.host.logfile import last_event_named, last_seq, read_after, seq_of
from avenor.protocol.errors import InvalidParams
from avenor.protocol.events import LoopEnd, TeamEnd, TurnEnd, decode_event
from avenor.protocol.manifest.events import ManifestEnd
from avenor.protocol.methods import (
    LINE_LIMIT_BYTES,
    History,
    HistoryParams,
    ListParams,
    RunResult,
    Target,
    WaitParams,
    unwrap_event,
)
from avenor.protocol.snapshot import Snapshot

# Leaves room for the rest of the answer.
HISTORY_LIMIT_BYTES: Final = LINE_LIMIT_BYTES - 64 * 1024
# A character has up to six bytes in JSON, and a snapshot has more than its output.
OUTPUT_LIMIT_CHARS: Final = LINE_LIMIT_BYTES // 8
# Thousands of years; JSON has integers that no float can hold.
_ENDLESS_MS: Final = 10**15
_PIECE_BYTES: Final = 256 * 1024
# The last of these says what a run has come to, so far or at all; of a manifest only its end does.
_TELL_RESULT: Final = ("turn.end", "avenor.loop.end", "avenor.team.end")
_TELLS_MANIFEST: Final = ("avenor.manifest.end",)


def add_snapshots(table: MethodTable, hubs: HubSource) -> None:
    """Registers `status` and `list`."""

    def status(_call: Call, params: Target) -> Snapshot:
        return hubs.find(params.runtime_id).snapshot()

    def list_all(_call: Call, params: ListParams) -> list[Snapshot] | list[dict[str, Any]]:
        snapshots = [hub.snapshot() for hub in hubs.all_hubs()]
        return snapshots if params.fields is None else narrowed(snapshots, params.fields)

    table.add("status", Target, status)
    table.add("list", ListParams, list_all)


def narrowed(snapshots: Iterable[Snapshot], fields: list[str]) -> list[dict[str, Any]]:
    """These members of each snapshot; valid as long as they are.

    Raises:
        InvalidParams: A snapshot has no such member.
    """
    for name in fields:
        if name not in Snapshot.__struct_fields__:
            raise InvalidParams(f"list: a snapshot has no member {name!r}", data={"field": "fields", "value": name})
    return [{name: getattr(snapshot, name) for name in fields} for snapshot in snapshots]


def add_reading(table: MethodTable, hubs: HubSource) -> None:
    """Registers `result`, `history` and `wait`."""

    def result(_call: Call, params: Target) -> RunResult | Awaitable[RunResult]:
        return _result(hubs.find(params.runtime_id))

    def history(_call: Call, params: HistoryParams) -> History | Awaitable[History]:
        for field, value, least in (("after_seq", params.after_seq, 0), ("limit", params.limit, 1)):
            if value < least:
                raise InvalidParams(f"history: {field} must be {least} or more", data={"field": field})
        return _history(hubs.find(params.runtime_id), params.after_seq, params.limit)

    def wait(_call: Call, params: WaitParams) -> Snapshot | Awaitable[Snapshot]:
        if params.timeout_ms is not None and params.timeout_ms < 0:
            raise InvalidParams("wait: timeout_ms must be 0 or more", data={"field": "timeout_ms"})
        hub = hubs.find(params.runtime_id)
        if params.complete_output:
            return _wait_with_output(hub, params)
        return hub.snapshot() if _is_reached(hub.fold.state, params) else _wait(hub, params)

    table.add("result", Target, result)
    table.add("history", HistoryParams, history)
    table.add("wait", WaitParams, wait)


def _is_reached(state: Snapshot, params: WaitParams) -> bool:
    return state.is_settled if params.until == "done" else state.wants_attention


async def _wait(hub: EventHub, params: WaitParams) -> Snapshot:
    timeout_seconds = float("inf") if params.timeout_ms is None else min(params.timeout_ms, _ENDLESS_MS) / 1000
    with trio.move_on_after(timeout_seconds):
        return await hub.wait_until(lambda state: _is_reached(state, params))
    return hub.snapshot()


async def _wait_with_output(hub: EventHub, params: WaitParams) -> Snapshot:
    """The same, with the output that `result` gives: who asks for that afterwards finds a server that has closed."""
    snapshot = await _wait(hub, params)
    found = _result(hub)
    output = (found if isinstance(found, RunResult) else await found).final_output
    if output is not None and len(output) > OUTPUT_LIMIT_CHARS:
        return snapshot
    return msgspec.structs.replace(snapshot, final_output=output, final_output_truncated=False)


def _result(hub: EventHub) -> RunResult | Awaitable[RunResult]:
    ring, names = hub.ring, _telling(hub)
    for index in range(len(ring.names) - 1, -1, -1):
        if ring.names[index] in names:
            return _result_of(unwrap_event(ring.lines[index]), hub.fold.state)
    if ring.floor == 0:
        return RunResult(final_output=None, stop_reason=hub.fold.state.stop_reason)
    return _result_from_log(hub)


async def _result_from_log(hub: EventHub) -> RunResult:
    line = await trio.to_thread.run_sync(last_event_named, hub.log_path, *_telling(hub))
    if line is None:
        return RunResult(final_output=None, stop_reason=hub.fold.state.stop_reason)
    return _result_of(line, hub.fold.state)


def _telling(hub: EventHub) -> tuple[str, ...]:
    return _TELLS_MANIFEST if hub.fold.state.kind == "manifest" else _TELL_RESULT


def _result_of(line: bytes, state: Snapshot) -> RunResult:
    try:
        event = decode_event(line)
    except msgspec.DecodeError:  # from a newer version
        return RunResult(final_output=None, stop_reason=None)
    assert isinstance(event, TurnEnd | LoopEnd | TeamEnd | ManifestEnd)
    output = None if event.final_output is msgspec.UNSET else event.final_output
    stop_reason = event.stop_reason if isinstance(event, TurnEnd) else state.stop_reason
    return RunResult(final_output=output, stop_reason=stop_reason)


def _history(hub: EventHub, after_seq: int, limit: int) -> History | Awaitable[History]:
    ring = hub.ring
    if after_seq < ring.floor:
        return _history_from_log(hub, after_seq, limit)
    lines = (unwrap_event(line) for line in islice(ring.lines, ring.index_after(after_seq), None))
    return _as_history(_page(lines, limit), hub.latest_seq, after_seq)


async def _history_from_log(hub: EventHub, after_seq: int, limit: int) -> History:
    lines, latest = await trio.to_thread.run_sync(_read_history, hub.log_path, after_seq, limit)
    return _as_history(lines, max(latest, hub.latest_seq), after_seq)


def _as_history(lines: list[bytes], latest_seq: int, after_seq: int) -> History:
    reached = (seq_of(lines[-1]) or 0) if lines else after_seq
    return History(events=[Raw(line) for line in lines], latest_seq=latest_seq, complete=reached >= latest_seq)


def _read_history(path: Path, after_seq: int, limit: int) -> tuple[list[bytes], int]:
    """One page, and the last `seq` that the log has. Blocks."""
    return _page(_lines_after(path, after_seq), limit), last_seq(path)


def _lines_after(path: Path, after_seq: int) -> Iterator[bytes]:
    offset = 0
    while True:
        piece, offset = read_after(path, after_seq, _PIECE_BYTES, offset)
        if not piece:
            return
        yield from piece
        after_seq = seq_of(piece[-1]) or after_seq


def _page(lines: Iterable[bytes], limit: int) -> list[bytes]:
    """The first of these events that fit into one answer.

    One that fits into no answer is left out: it can never be sent, and must not stop those who page through.
    """
    page: list[bytes] = []
    size_bytes = 0
    for line in lines:
        if len(line) >= HISTORY_LIMIT_BYTES:
            continue
        size_bytes += len(line) + 1
        if size_bytes > HISTORY_LIMIT_BYTES:
            break
        page.append(line)
        if len(page) == limit:
            break
    return page
