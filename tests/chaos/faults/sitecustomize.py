"""Faults that are put into avenor from outside, to see that the suite finds them.

Python imports this by itself when its folder is on `PYTHONPATH`: in the supervisor, in its zygote, and in runtimes that
are started plainly. Which fault it is says `AVENOR_CHAOS_FAULT`. Agents and other programs are left as they are.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

FAULTS: dict[str, Callable[[], None]] = {}


def _fault(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(put_in: Callable[[], None]) -> Callable[[], None]:
        FAULTS[name] = put_in
        return put_in

    return note


@_fault("no-sentinel")
def no_sentinel() -> None:
    """What a supervisor settles gets its outcome into the log, and no sentinel."""

    def write_nothing(_path: str, _outcome: object) -> None:
        pass

    _module("avenor.stable.settle")._write_sentinel = write_nothing


@_fault("lost-event")
def lost_event() -> None:
    """Whoever reads on in a log after something misses one event."""
    logfile = _module("avenor.host.logfile")
    read_after = logfile.read_after

    def read_after_the_next(path: Any, after_seq: int, *rest: Any) -> Any:
        return read_after(path, after_seq + (after_seq > 0), *rest)

    logfile.read_after = read_after_the_next


@_fault("repeated-seq")
def repeated_seq() -> None:
    """A runtime that goes on with a log repeats its last number."""
    log = _module("avenor.runtimes.eventlog").EventLog
    begin = log.__init__

    def begin_one_too_low(self: Any, *, seq: int = 0, **rest: Any) -> None:
        begin(self, seq=max(0, seq - 1), **rest)

    log.__init__ = begin_one_too_low


@_fault("left-tool")
def left_tool() -> None:
    """The stop ladder asks, and never kills: what ignores SIGTERM lives on, and is not told of."""

    async def kill_nothing(ladder: Any, _seconds: float) -> None:
        ladder._is_empty = True

    _module("avenor.host.ladder")._Ladder.kill = kill_nothing


@_fault("open-sandbox")
def open_sandbox() -> None:
    """Members of manifests work without a sandbox, and nobody is told."""

    def cage_nothing(*_cage: object) -> list[str]:
        return []

    _module("avenor.runtimes.manifest.workshop").GitWorkshop._make_cage = cage_nothing


@_fault("left-worktree")
def left_worktree() -> None:
    """A manifest run removes no worktree."""

    async def remove_nothing(*_which: object) -> None:
        pass

    workshop = _module("avenor.runtimes.manifest.workshop").GitWorkshop
    workshop.close = workshop.forget_all = remove_nothing


@_fault("trusted-writer")
def trusted_writer() -> None:
    """A writer that was lost begins anew at once, as a reader does."""
    losses = _module("avenor.runtimes.manifest.losses")
    tell_loss = losses._tell_loss

    def tell_lost(*what: Any) -> Any:
        event = tell_loss(*what)
        event.state = "lost" if event.state == "effect_unknown" else event.state
        return event

    losses._tell_loss = tell_lost


@_fault("forgotten-attempts")
def forgotten_attempts() -> None:
    """A process that goes on with a manifest run knows of no attempt that was begun before."""
    working = _module("avenor.runtimes.manifest.working")
    past = working._past

    def past_without_starts(host: Any) -> Any:
        return (event for event in past(host) if getattr(event, "state", None) != "started")

    working._past = past_without_starts


@_fault("free-turns")
def free_turns() -> None:
    """Members of manifests are charged for no prompt."""

    def allow(*_prompt: object) -> None:
        pass

    _module("avenor.runtimes.manifest.metering").Metering.may_prompt = allow


def _module(name: str) -> Any:
    """A module of avenor, whose parts can be replaced."""
    return importlib.import_module(name)


def _is_avenor() -> bool:
    words = sys.orig_argv
    is_supervisor = len(words) > 2 and words[1].endswith("avenor") and words[2] == "stable"
    return is_supervisor or any(word in ("avenor.runtimes", "avenor.runtimes.zygote") for word in words)


if (_chosen := os.environ.get("AVENOR_CHAOS_FAULT")) is not None and _is_avenor():
    FAULTS[_chosen]()
