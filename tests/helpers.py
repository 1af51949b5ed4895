"""The one way in which our tests wait for real processes, and the one in which they kill several."""

import contextlib
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, overload

import trio

T = TypeVar("T")

# Short beside what a process needs to do anything, long enough to leave it the processor.
_POLL_SECONDS = 0.01


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], seconds: float = 60) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], seconds: float = 60) -> T: ...
async def eventually(predicate: Callable[[], Any], seconds: float = 60) -> Any:
    """Waits until `predicate()` is true and returns its value; other tasks run meanwhile.

    Args:
        predicate: A function, async or not, that does not block. What it raises is raised here.
        seconds: Real time; never use this with an autojump clock.

    Raises:
        AssertionError: It was still not true after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        _check(deadline, predicate, value, seconds)
        await trio.sleep(_POLL_SECONDS)


def eventually_sync(predicate: Callable[[], T], seconds: float = 60) -> T:
    """Like `eventually`, for tests without trio."""
    deadline = time.monotonic() + seconds
    while not (value := predicate()):
        _check(deadline, predicate, value, seconds)
        time.sleep(_POLL_SECONDS)
    return value


def _check(deadline: float, predicate: Callable[[], object], value: object, seconds: float) -> None:
    if time.monotonic() > deadline:
        name = getattr(predicate, "__qualname__", repr(predicate))
        raise AssertionError(f"{name} was still {value!r} after {seconds:g} s")


def kill_each(pids: Iterable[int]) -> None:
    """SIGKILL for each of these processes. One that was found a moment ago may have ended by itself."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def name_of(pid: int) -> str:
    """What `ps` calls a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
