"""The methods that the supervisor answers itself, from what its runtimes' events came to."""

import os
import time
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from avenor.control.reading import add_reading, narrowed
from avenor.control.rpc import Call, MethodTable, add_ping
from avenor.control.subscriptions import add_subscriptions
from avenor.host.identity import process_id
from avenor.protocol.methods import (
    ListParams,
    LogLevelParams,
    LogLevelSet,
    NoParams,
    Pong,
    ShutdownParams,
    ShuttingDown,
    Target,
)
from avenor.protocol.spec import SpawnParams
from avenor.stable.logs import log_level, set_log_level
from avenor.stable.records import spawn_of
from avenor.stable.registry import Registry
from avenor.stable.runtime import Runtime
from avenor.stable.shutdown import Shutdown
from avenor.stable.spawning import Spawner

_RAW: Final = cast("type[NoParams]", msgspec.Raw)


def make_methods(registry: Registry, spawner: Spawner, shutdown: Shutdown, *, version: str) -> MethodTable:
    """The table of the supervisor's socket, but for the owner methods."""
    table = MethodTable()
    add_ping(table, _pong(version))
    add_subscriptions(table, registry)
    add_reading(table, registry)
    _add_snapshots(table, registry)

    def spawn(call: Call, raw: NoParams) -> object:
        # Undecoded: a refusal lists everything that is wrong with them.
        return spawner.spawn(call, cast("msgspec.Raw", raw))

    def stop(_call: Call, params: ShutdownParams) -> ShuttingDown:
        shutdown.request(params.mode, "shutdown")
        return ShuttingDown()

    def spec(_call: Call, params: Target) -> SpawnParams:
        runtime = registry.resolve(params.runtime_id)
        return spawn_of(runtime.record, runtime.directory)

    table.add("spawn", _RAW, spawn)
    table.add("spec", Target, spec)
    table.add("log_level", LogLevelParams, _log_level)
    table.add("shutdown", ShutdownParams, stop)
    return table


def _log_level(_call: Call, params: LogLevelParams) -> LogLevelSet:
    if params.level is not None:
        set_log_level(params.level)
    return LogLevelSet(level=log_level())


def _add_snapshots(table: MethodTable, registry: Registry) -> None:
    def status(_call: Call, params: Target) -> msgspec.Raw:
        return msgspec.Raw(registry.resolve(params.runtime_id).encoded_snapshot(_now_ms()))

    def list_all(_call: Call, params: ListParams) -> msgspec.Raw | list[dict[str, Any]]:
        now_ms = _now_ms()
        if params.fields is None:
            return msgspec.Raw(encode_list(registry, now_ms))
        return narrowed([runtime.hub.fold.snapshot(now_ms) for runtime in registry], params.fields)

    table.add("status", Target, status)
    table.add("list", ListParams, list_all)


def encode_list(runtimes: Registry | list[Runtime], now_ms: int) -> bytes:
    """The snapshots of all runtimes as one JSON array."""
    return b"[" + b",".join([runtime.encoded_snapshot(now_ms) for runtime in runtimes]) + b"]"


def _pong(version: str) -> Callable[[], Pong]:
    own = process_id(os.getpid())
    assert own is not None  # we run, so we can be found
    started_at = time.monotonic()

    def pong() -> Pong:
        return Pong(
            version=version,
            pid=own.pid,
            mode="stable",
            uptime_ms=int((time.monotonic() - started_at) * 1000),
            start_time=own.start_ticks,
            boot_id=own.boot_id,
        )

    return pong


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
