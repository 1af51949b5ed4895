"""Waiting in the command line while signals come."""

import ctypes
import itertools
import operator
import os
import select
import signal
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest

from avenor.cli.signalled import wait_readable

_POLL = select.poll


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
def test_what_can_be_read_ends_the_wait() -> None:
    """Nothing is left behind: whoever has asked to be told of signals before is told again."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    before = signal.set_wakeup_fd(into)
    descriptors = os.listdir("/proc/self/fd")
    os.write(into, b"x")
    assert not wait_readable(out)
    assert os.listdir("/proc/self/fd") == descriptors
    assert signal.set_wakeup_fd(before) == into
    os.close(out)
    os.close(into)
