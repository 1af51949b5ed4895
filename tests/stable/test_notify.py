"""What a service manager is told, over its datagram socket."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from avenor.stable.notify import Notifier, describe, take_notifier
from tests.helpers import eventually
from tests.stable.kit import SPAWN, open_stable


class Manager:
    """The receiving end, as systemd has it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def messages(self) -> list[str]:
        """What has come since the last time."""
        taken: list[str] = []
        while True:
            try:
                taken.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return taken

    def fill(self) -> None:
        """Be too busy to take any more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                while True:
                    sender.sendto(b"X=1", self.address)
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Be gone; a path stays, and nobody is behind it."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """One that listens at a path, and one in the abstract namespace."""
    opened = Manager(str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}")
    yield opened
    opened.close()


async def never() -> None:
    """Nothing changes any more."""
    await trio.sleep_forever()


async def test_ready_comes_first_and_then_what_is_news(manager: Manager, autojump_clock: MockClock) -> None:
    """The status is told when it is another, and a crowd of changes within a second is told once."""
    texts = iter(["one", "one", "two"])
    counts = 0

    async def wait_changed() -> None:
        nonlocal counts
        counts += 1
        if counts == 3:
            await trio.sleep_forever()

    with closing(Notifier(manager.address)) as notifier, trio.move_on_after(60):
        await notifier.report(lambda: next(texts), wait_changed)
    assert manager.messages() == ["READY=1", "STATUS=one", "STATUS=two"]


async def test_ready_is_said_again_until_it_is_taken(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A manager that is too busy for it would wait for it in vain, and then kill."""
    manager = Manager(str(tmp_path / "notify"))
    manager.fill()
    with closing(Notifier(manager.address)) as notifier:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.report, lambda: "fine", never)
            await trio.sleep(10)
            assert "READY=1" not in manager.messages()
            await trio.sleep(10)
            assert manager.messages() == ["READY=1", "STATUS=fine"]
            nursery.cancel_scope.cancel()
    manager.close()


async def test_a_status_is_said_again_until_it_is_taken(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The next change may be hours away."""
    manager = Manager(str(tmp_path / "notify"))
    changed = trio.Event()
    text = "old"
    with closing(Notifier(manager.address)) as notifier:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.report, lambda: text, lambda: changed.wait())
            await trio.sleep(10)
            assert manager.messages() == ["READY=1", "STATUS=old"]
            manager.fill()
            text = "new"
            changed.set()
            changed = trio.Event()
            await trio.sleep(10)
            assert "STATUS=new" not in manager.messages()
            await trio.sleep(10)
            assert manager.messages() == ["STATUS=new"]
            nursery.cancel_scope.cancel()
    manager.close()


async def test_stopping_is_said_again_until_it_is_taken(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A manager that does not hear it takes the end for a crash."""
    manager = Manager(str(tmp_path / "notify"))
    manager.fill()
    with closing(Notifier(manager.address)) as notifier:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notifier.tell_stopping)
            await trio.sleep(10)
            assert "STOPPING=1" not in manager.messages()
    assert manager.messages() == ["STOPPING=1"]
    manager.close()


async def test_signs_of_life_come_twice_in_each_interval(manager: Manager, autojump_clock: MockClock) -> None:
    """From the trio loop, so that they stop when it does."""
    with closing(Notifier(manager.address, watchdog_seconds=10)) as notifier, trio.move_on_after(26):
        await notifier.tell_alive()
    assert manager.messages() == ["WATCHDOG=1"] * 6


@pytest.mark.parametrize("address", [None, "/nowhere/at/all", "gone"])
async def test_nothing_goes_wrong_without_a_manager(
    address: str | None, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """None, one that never was, and one that has gone: the supervisor works on."""
    if address == "gone":
        manager = Manager(str(tmp_path / "notify"))
        manager.close()
        address = manager.address
    with closing(Notifier(address, watchdog_seconds=1)) as notifier:
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(notifier.tell_alive)
                nursery.start_soon(notifier.report, lambda: "fine", never)
        await notifier.tell_stopping()


@pytest.mark.parametrize(
    ("variables", "told", "is_watched"),
    [
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, True, True),
        ({"WATCHDOG_USEC": "2000000"}, True, True),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, True, False),
        ({"WATCHDOG_USEC": "soon", "WATCHDOG_PID": "7"}, True, False),
        ({"WATCHDOG_USEC": "0"}, True, False),
        ({}, True, False),
        ({"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "2000000"}, False, False),
        ({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "2000000"}, False, False),
    ],
)
async def test_what_the_environment_asks_for_is_taken_out_of_it(
    variables: dict[str, str], told: bool, is_watched: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Runtimes must not speak for the supervisor. A watchdog for another process is none, as is one without a time."""
    manager = Manager(str(tmp_path / "notify"))
    environ = {"NOTIFY_SOCKET": manager.address, **variables, "PATH": "/bin"}
    with closing(take_notifier(environ, pid=7)) as notifier:
        assert environ == {"PATH": "/bin"}
        with trio.move_on_after(1.5):
            await notifier.tell_alive()
        await notifier.tell_stopping()
    assert manager.messages() == ["WATCHDOG=1"] * 2 * is_watched + ["STOPPING=1"] * told
    manager.close()


async def test_the_status_counts_the_runtimes_by_what_they_are_at(tmp_path: Path) -> None:
    """The queued ones too, and how the supervisor is stopping, if it is. An accepted spawn is a change."""
    async with open_stable(tmp_path, max_runtimes=2) as stable:
        assert describe(stable.registry.live) == "no runtime is live"
        client = await stable.connect()
        await stable.spawned(client)
        await stable.spawned(client)
        changes = 0

        async def count() -> None:
            nonlocal changes
            while True:
                await stable.supervision.wait_changed()
                changes += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await wait_all_tasks_blocked()
            queued = await client.send("spawn", **SPAWN, wait="started")
            await eventually(lambda: changes)
            nursery.cancel_scope.cancel()
        assert describe(stable.registry.live) == "2 running, 1 queued"
        stable.runtime("rt_2").park()
        assert "result" in await client.answer(queued)
        assert describe(stable.registry.live, "drain") == "shutting down (drain): 1 running, 1 starting, 1 idle"
