"""How a supervisor decides to stop, and how one way gives way to a harder one."""

import os
import signal
from collections.abc import Callable, Generator
from itertools import product

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from avenor.stable.shutdown import SIGNALS, Mode, Shutdown

MODES: tuple[Mode, ...] = ("drain", "graceful", "detach", "kill")


class FakeActions:
    """Notes what a shutdown does; nothing ends until `gone` is set, and nothing comes up until `up` is."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gone = trio.Event()
        self.up = trio.Event()

    def ask_all(self) -> None:
        self.done.append("ask_all")

    async def drain(self) -> None:
        self.done.append("drain")
        await self.gone.wait()

    async def wait_none_live(self) -> None:
        await self.gone.wait()

    async def wait_launched(self) -> None:
        await self.up.wait()

    async def kill_all(self) -> None:
        self.done.append("kill_all")


def make(**options: object) -> Shutdown:
    """A decision not yet made."""
    return Shutdown(timeout_seconds=10, sigterm="detach" if options else "graceful")


@pytest.mark.parametrize(("first", "second"), list(product(MODES, MODES)))
def test_a_later_request_counts_only_if_it_is_harder(first: Mode, second: Mode) -> None:
    """Every pair of modes."""
    shutdown = make()
    shutdown.request(first, "shutdown")
    shutdown.request(second, "shutdown")
    assert shutdown.mode == max(first, second, key=MODES.index)


def test_each_decision_is_told() -> None:
    """A request that changes nothing is none."""
    shutdown = make()
    told: list[Mode | None] = []
    shutdown.on_decided(lambda: told.append(shutdown.mode))
    for mode in ("drain", "graceful", "drain", "kill", "kill"):
        shutdown.request(mode, "shutdown")
    assert told == ["drain", "graceful", "kill"]


@pytest.mark.parametrize(
    ("number", "mode", "reason"),
    [
        (signal.SIGINT, "graceful", "signal"),
        (signal.SIGTERM, "graceful", "signal"),
        (signal.SIGHUP, "detach", "detached"),
    ],
)
def test_signals_mean_what_the_contract_says(number: int, mode: str, reason: str) -> None:
    """The first one."""
    shutdown = make()
    shutdown.note_signal(number)
    assert (shutdown.mode, shutdown.reason) == (mode, reason)


def test_sigterm_detaches_if_it_is_told_to() -> None:
    """`--on-sigterm detach`."""
    shutdown = make(detach=True)
    shutdown.note_signal(signal.SIGTERM)
    assert shutdown.mode == "detach"


@pytest.mark.parametrize("before", [None, *MODES])
@pytest.mark.parametrize("detach", [False, True], ids=["graceful", "detach"])
def test_a_second_signal_kills(before: Mode | None, *, detach: bool) -> None:
    """A person who presses Ctrl-C twice means it, whatever was asked for before, and whatever the first one meant."""
    shutdown = make(detach=True) if detach else make()
    if before is not None:
        shutdown.request(before, "shutdown")
    shutdown.note_signal(signal.SIGTERM)
    assert (shutdown.mode == "kill") == (before == "kill")
    shutdown.note_signal(signal.SIGINT)
    assert shutdown.mode == "kill"
    assert shutdown.reason == ("shutdown" if before == "kill" else "signal")


@pytest.fixture
def ignored() -> Generator[Callable[..., None]]:
    """Has signals ignored, until the test is over."""
    before: dict[int, object] = {}

    def ignore(*numbers: signal.Signals) -> None:
        before.update((number, signal.signal(number, signal.SIG_IGN)) for number in numbers)

    yield ignore
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


async def test_signals_that_are_ignored_already_stay_so(ignored: Callable[..., None]) -> None:
    """A hang-up under `nohup`, and the Ctrl-C of a script for what it has started with `&`."""
    ignored(signal.SIGHUP, signal.SIGINT)
    shutdown = make()
    told: list[Mode | None] = []
    shutdown.on_decided(lambda: told.append(shutdown.mode))
    async with trio.open_nursery() as nursery:
        await nursery.start(shutdown.watch_signals)
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
        await wait_all_tasks_blocked()
        assert told == []
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.wait_decided()
        nursery.cancel_scope.cancel()
    assert told == ["graceful"]


async def test_a_supervisor_that_is_to_ignore_all_signals_does(ignored: Callable[..., None]) -> None:
    """It can still be asked to stop."""
    ignored(*SIGNALS)
    shutdown = make()
    await shutdown.watch_signals()
    assert shutdown.mode is None


def test_a_hang_up_is_no_second_signal() -> None:
    """Neither before an interrupt nor after it."""
    shutdown = make()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGHUP):
        shutdown.note_signal(number)
    assert (shutdown.mode, shutdown.reason) == ("detach", "detached")


async def test_graceful_waits_no_longer_than_its_timeout(autojump_clock: MockClock) -> None:
    """Then it kills."""
    shutdown, actions = make(), FakeActions()
    shutdown.request("graceful", "shutdown")
    await shutdown.carry_out(actions)
    assert actions.done == ["ask_all", "kill_all"]
    assert trio.current_time() == pytest.approx(10)


async def test_graceful_is_over_when_all_are_gone(autojump_clock: MockClock) -> None:
    """Nothing is killed then."""
    shutdown, actions = make(), FakeActions()
    actions.gone.set()
    shutdown.request("graceful", "shutdown")
    await shutdown.carry_out(actions)
    assert actions.done == ["ask_all"]


async def test_a_harder_request_cuts_the_softer_one_short() -> None:
    """Each takes over at once."""
    shutdown, actions = make(), FakeActions()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shutdown.carry_out, actions)
        for mode in MODES:
            shutdown.request(mode, "shutdown")
            await wait_all_tasks_blocked()
    assert actions.done == ["drain", "ask_all", "kill_all"]


async def test_detach_does_nothing_to_anybody() -> None:
    """It only ends the waiting."""
    shutdown, actions = make(), FakeActions()
    actions.up.set()
    shutdown.request("detach", "shutdown")
    await shutdown.carry_out(actions)
    assert actions.done == []


async def test_detach_waits_for_what_starts_no_longer_than_its_timeout(autojump_clock: MockClock) -> None:
    """And does nothing to it then either."""
    shutdown, actions = make(), FakeActions()
    shutdown.request("detach", "shutdown")
    await shutdown.carry_out(actions)
    assert actions.done == []
    assert trio.current_time() == pytest.approx(10)
