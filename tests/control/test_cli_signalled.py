"""Waiting in the command line while signals come."""

import ctypes
import itertools
import operator
import os
import select
import signal
import threading
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest

from avenor.cli import signalled
from avenor.cli.signalled import wait_readable

_POLL = select.poll


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(signalled, "_told_fd", None)
    before = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(before)


class SignalledJustBefore:
    """A poll object that is interrupted in the last instant: between our instructions and the system's wait.

    Nothing here may run as Python code, for that would run the handler first.
    """

    def __init__(self) -> None:
        poller = _POLL()
        self.register = poller.register
        raise_signal: Any = ctypes.CDLL(None)["raise"]
        raise_signal.restype = ().__mul__  # whatever it returns, as nothing ready
        both: tuple[Any, ...] = (partial(raise_signal, int(signal.SIGUSR1)), poller.poll)
        self.poll: Any = partial(list, itertools.chain.from_iterable(map(operator.call, both)))


class Came(Exception):
    """Raised by a handler."""


def raise_came(_number: int, _frame: object) -> None:
    """The handler."""
    raise Came


@pytest.fixture
def quiet() -> Generator[int]:
    """A descriptor that is never readable."""
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


@pytest.mark.timeout(20)
def test_a_signal_just_before_the_wait_ends_it(quiet: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a Ctrl-C would wait for the next event of a run that has none."""
    monkeypatch.setattr(select, "poll", SignalledJustBefore)
    old = signal.signal(signal.SIGUSR1, raise_came)
    try:
        with pytest.raises(Came):
            wait_readable(quiet)
    finally:
        signal.signal(signal.SIGUSR1, old)


@pytest.mark.timeout(20)
def test_what_can_be_read_ends_the_wait(quiet: int) -> None:
    """Again and again, and a signal that was handled in between does not."""
    ends = os.pipe()
    os.write(ends[1], b"x")
    wait_readable(ends[0])
    os.read(ends[0], 1)
    assert select.select([quiet, ends[0]], [], [], 0)[0] == []
    os.close(ends[1])
    wait_readable(ends[0])
    os.close(ends[0])


@pytest.mark.timeout(20)
def test_another_thread_waits_without_being_told(quiet: int) -> None:
    """It runs no handlers, and may not ask to be told."""
    ends = os.pipe()
    waiting = threading.Thread(target=wait_readable, args=(ends[0],))
    waiting.start()
    os.write(ends[1], b"x")
    waiting.join(20)
    assert not waiting.is_alive()
    assert signal.set_wakeup_fd(-1) == -1
    for end in ends:
        os.close(end)
